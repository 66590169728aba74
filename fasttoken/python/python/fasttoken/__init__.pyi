from collections.abc import Buffer, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict, final

__version__: str

_Path = str | PathLike[str]
_Pair = tuple[str, str] | list[str]
_Ids = Sequence[int] | Buffer
_Direction = Literal["left", "right"]
_Strategy = Literal["longest_first", "only_first", "only_second"]

class _Truncation(TypedDict):
    max_length: int
    stride: int
    strategy: _Strategy
    direction: _Direction

class _Padding(TypedDict):
    length: int | None
    pad_to_multiple_of: int | None
    pad_id: int
    pad_token: str
    pad_type_id: int
    direction: _Direction

class LoadError(ValueError): ...
class EncodeError(ValueError): ...
class UnsupportedError(NotImplementedError): ...

@final
class AddedToken:
    """A token that is recognised as a whole, before anything else happens to a text."""

    def __init__(
        self,
        content: str,
        *,
        single_word: bool = False,
        lstrip: bool = False,
        rstrip: bool = False,
        normalized: bool | None = None,
        special: bool = False,
    ) -> None: ...
    @property
    def content(self) -> str:
        """The text of the token."""
    @property
    def single_word(self) -> bool:
        """Recognised only where no word character touches it."""
    @property
    def lstrip(self) -> bool:
        """Takes the blanks to its left with it."""
    @property
    def rstrip(self) -> bool:
        """Takes the blanks to its right with it."""
    @property
    def normalized(self) -> bool:
        """Searched in normalized text. By default, special tokens are not."""
    @property
    def special(self) -> bool:
        """Left out of decoded text on request."""

@final
class Encoding:
    """Ids with what is known about each of them. Each property makes a new list."""

    @property
    def ids(self) -> list[int]:
        """The ids."""
    @property
    def tokens(self) -> list[str]:
        """Each id's token; for an id from padding, the name that padding has for it."""
    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Start and end of each id in its own text, in characters."""
    @property
    def type_ids(self) -> list[int]:
        """The part of the input that each id belongs to, as the file's template numbers parts."""
    @property
    def attention_mask(self) -> list[int]:
        """0 for ids from padding, else 1."""
    @property
    def special_tokens_mask(self) -> list[int]:
        """1 for ids from the file's template and from padding, else 0."""
    @property
    def word_ids(self) -> list[int | None]:
        """The word that each id comes from, or None for ids from the template and from padding."""
    @property
    def sequence_ids(self) -> list[int | None]:
        """The text that each id comes from, 0 or 1, or None for ids from the template."""
    @property
    def overflowing(self) -> list[Encoding]:
        """The ids that truncation cut off, in pieces of the same length with the same template."""
    @property
    def n_sequences(self) -> int:
        """The number of texts: 2 for a pair."""
    def char_to_token(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """Return the place of the first id that covers a character of a text."""
    def char_to_word(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """Return the word that covers a character of a text."""
    def token_to_chars(self, token_index: int) -> tuple[int, int] | None:
        """Return the start and end of an id in its text, in characters."""
    def token_to_word(self, token_index: int) -> int | None:
        """Return the word that an id comes from."""
    def token_to_sequence(self, token_index: int) -> int | None:
        """Return the text that an id comes from, 0 or 1."""
    def word_to_tokens(self, word_index: int, sequence_index: int = 0) -> tuple[int, int] | None:
        """Return the places of the first id of a word and of the id after its last one."""
    def word_to_chars(self, word_index: int, sequence_index: int = 0) -> tuple[int, int] | None:
        """Return the start and end of a word, in characters."""
    def __len__(self) -> int: ...

@final
class Tokenizer:
    """A tokenizer as one tokenizer.json describes it.

    Any number of threads may use it at once, also while others change its settings.
    """

    @staticmethod
    def from_file(path: _Path) -> Tokenizer:
        """Load a tokenizer.json."""
    @staticmethod
    def from_str(json: str) -> Tokenizer:
        """Load the contents of a tokenizer.json."""
    @staticmethod
    def from_buffer(buffer: bytes | bytearray) -> Tokenizer:
        """Load the contents of a tokenizer.json from bytes."""
    @staticmethod
    def from_file_cached(path: _Path, cache: _Path) -> Tokenizer:
        """Load a tokenizer.json by its compiled form in the folder `cache`, which needs no parsing.

        If the folder lacks it, the file is compiled and stored there first. A user who can write to the
        folder decides which ids come out. A folder that cannot be written gives a RuntimeWarning.
        """
    @staticmethod
    def from_tiktoken(path: _Path, encoding: str) -> Tokenizer:
        """Load a file of ranks of tiktoken, with the pattern and special tokens of a named encoding."""
    @staticmethod
    def from_tekken(path: _Path) -> Tokenizer:
        """Load a tekken.json, the format of Mistral's models since Nemo."""
    def encode(
        self,
        sequence: str,
        pair: str | None = None,
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
    ) -> Encoding:
        """Encode a text or a pair of texts with all that is known about each id."""
    def encode_batch(
        self,
        input: Sequence[str | _Pair],
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
        *,
        threads: int | None = None,
    ) -> list[Encoding]:
        """Encode texts and pairs by up to `threads` threads, by default one for each processor."""
    def encode_batch_fast(
        self,
        input: Sequence[str | _Pair],
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
        *,
        threads: int | None = None,
    ) -> list[Encoding]:
        """Encode texts and pairs as `encode_batch` does, without offsets and words."""
    def encode_ids(
        self, sequence: str, pair: str | None = None, *, add_special_tokens: bool = True
    ) -> memoryview:
        """Return the ids alone, as a memoryview of format "I" that NumPy takes without copying."""
    def encode_ordinary_ids(self, text: str) -> memoryview:
        """Return the ids of a text in which no added token is recognised, without special tokens.

        It is for text from people who must not be able to write control tokens.
        """
    def encode_batch_ids(
        self,
        input: Sequence[str | _Pair],
        *,
        add_special_tokens: bool = True,
        threads: int | None = None,
    ) -> tuple[memoryview, memoryview]:
        """Return the ids of all texts one after the other, and where each begins and the last ends.

        The ids of text n are `ids[offsets[n]:offsets[n + 1]]`; offsets have format "q" (int64).
        """
    def count(self, sequence: str, pair: str | None = None, *, add_special_tokens: bool = True) -> int:
        """Return the number of ids that `encode_ids` gives."""
    def decode(self, ids: _Ids, skip_special_tokens: bool = True) -> str:
        """Return the text of ids, which may be a list, a memoryview or a NumPy array."""
    def decode_batch(
        self, sequences: Sequence[_Ids], skip_special_tokens: bool = True, *, threads: int | None = None
    ) -> list[str]:
        """Return the text of each of several sequences of ids."""
    def enable_truncation(
        self,
        max_length: int,
        stride: int = 0,
        strategy: _Strategy = "longest_first",
        direction: _Direction = "right",
    ) -> None:
        """Cut what is encoded to at most `max_length` ids."""
    def no_truncation(self) -> None:
        """Encode texts of any length."""
    @property
    def truncation(self) -> _Truncation | None:
        """The arguments of `enable_truncation`, or None."""
    def enable_padding(
        self,
        direction: _Direction = "right",
        pad_id: int = 0,
        pad_type_id: int = 0,
        pad_token: str = "[PAD]",
        length: int | None = None,
        pad_to_multiple_of: int | None = None,
    ) -> None:
        """Fill up what is encoded to `length` ids, or to the longest of a batch."""
    def no_padding(self) -> None:
        """Do not fill up what is encoded."""
    @property
    def padding(self) -> _Padding | None:
        """The arguments of `enable_padding`, or None."""
    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        """Return all tokens and their ids."""
    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Return the number of tokens."""
    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token."""
    def id_to_token(self, id: int) -> str | None:
        """Return the token of an id as the vocabulary spells it."""
    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        """Return the number of ids that the file's template adds to a text or a pair."""
    def add_tokens(self, tokens: Sequence[str | AddedToken]) -> int:
        """Add tokens and return how many are new or changed.

        The tokenizer is loaded again for it, so add all tokens in one call.
        """
    def add_special_tokens(self, tokens: Sequence[str | AddedToken]) -> int:
        """Add special tokens, as `add_tokens` does."""
    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Return the added tokens by their ids."""
    @property
    def encode_special_tokens(self) -> bool:
        """False: special tokens in a text are recognised. Setting it to True is refused."""
    @encode_special_tokens.setter
    def encode_special_tokens(self, value: bool) -> None: ...
    @property
    def is_exact(self) -> bool:
        """False if a split pattern runs on an engine that is not proved to match as tokenizers does."""
    @property
    def warnings(self) -> list[str]:
        """Notes about the file: parts that make encoding slow, or that are not known to be exact."""
    def to_str(self) -> str:
        """Return a tokenizer.json with the settings and added tokens of now."""
    def save(self, path: _Path) -> None:
        """Write a tokenizer.json with the settings and added tokens of now."""
    def __copy__(self) -> Tokenizer: ...
    def __deepcopy__(self, memo: Any) -> Tokenizer: ...

def patch_transformers() -> None: ...
def unpatch_transformers() -> None: ...
