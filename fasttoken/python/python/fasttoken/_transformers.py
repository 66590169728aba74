"""Tokenizers of transformers that encode and decode by fasttoken.

A tokenizer of transformers keeps a `tokenizers.Tokenizer` in its attribute `_tokenizer`. While the
patch is on, that attribute is a property of the class, which puts a `_Backend` in front of the
kept object. So it works for tokenizers of any age and subclass, and taking the property away undoes it.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from functools import partial
from typing import Any

from ._fasttoken import EncodeError, LoadError, Tokenizer

_lock = threading.Lock()
# While the patch is on, what was in the places that it changes: object, name, value.
_replaced: list[tuple[Any, str, Any]] = []

# What changes nothing about ids, texts or settings.
_READS = frozenset(
    "async_decode_batch async_encode async_encode_batch async_encode_batch_fast "
    "encode_special_tokens from_buffer from_file from_pretrained from_str get_added_tokens_decoder "
    "get_vocab get_vocab_size id_to_token num_special_tokens_to_add padding post_process save "
    "to_str token_to_id truncation".split()
)
# Parts of a tokenizer, which others can change once they have them.
_PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor", "decoder")
_MODEL_SETTINGS = (
    "dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
    "ignore_merges max_input_chars_per_word"
).split()
# Settings that do not need another tokenizer.
_SETTINGS = frozenset(("enable_padding", "enable_truncation", "no_padding", "no_truncation"))


def patch_transformers() -> None:
    """Let all fast tokenizers of transformers encode and decode by fasttoken.

    It holds for tokenizers that exist and for those that are made later. A tokenizer that fasttoken
    does not load, or a call that it does not take, warns once and goes to `tokenizers` as before.
    """
    import tokenizers.decoders
    from transformers import PreTrainedTokenizerFast

    with _lock:
        if not _replaced:
            default = vars(PreTrainedTokenizerFast).get("_tokenizer", _MISSING)
            _replace(PreTrainedTokenizerFast, "_tokenizer", _Property(default))
            if stream := getattr(tokenizers.decoders, "DecodeStream", None):
                _replace(tokenizers.decoders, "DecodeStream", partial(_DecodeStream, stream))


def unpatch_transformers() -> None:
    """Undo `patch_transformers`, for all tokenizers."""
    with _lock:
        while _replaced:
            place, name, before = _replaced.pop()
            if before is _MISSING:
                delattr(place, name)
            else:
                setattr(place, name, before)


# Stands for the value of an attribute that is not there.
_MISSING = object()


def _replace(place: Any, name: str, value: Any) -> None:
    _replaced.append((place, name, vars(place).get(name, _MISSING)))
    setattr(place, name, value)


class _DecodeStream:
    """A `DecodeStream` that takes the tokenizers of transformers, which need not be of their type."""

    def __init__(self, kind: Any, *args: Any, **kwargs: Any) -> None:
        self._stream = kind(*args, **kwargs)

    def step(self, tokenizer: Any, id: Any) -> str | None:
        return self._stream.step(_without_backend(tokenizer), id)


def _without_backend(value: Any) -> Any:
    return value._reference if type(value) is _Backend else value


class _Property:
    """The attribute `_tokenizer` while the patch is on."""

    def __init__(self, default: Any) -> None:
        self._default = default
        self._backends: weakref.WeakKeyDictionary[Any, _Backend] = weakref.WeakKeyDictionary()

    def __get__(self, instance: Any, owner: type) -> Any:
        reference = None if instance is None else vars(instance).get("_tokenizer")
        if reference is None:
            if self._default is _MISSING:
                raise AttributeError("_tokenizer")
            return self._default
        backend = self._backends.get(instance)
        if backend is None or backend._reference is not reference:
            backend = self._backends[instance] = _Backend(reference)
        return backend

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)["_tokenizer"] = _without_backend(value)

    def __delete__(self, instance: Any) -> None:
        del vars(instance)["_tokenizer"]


class _Backend:
    """A `tokenizers.Tokenizer` whose encoding and decoding are fasttoken's.

    Everything else goes to the `tokenizers.Tokenizer`. What may change it makes this object load it
    again before the next text.
    """

    __slots__ = ("_reference", "_fast", "_watched", "_warned", "__weakref__")

    def __init__(self, reference: Any) -> None:
        put = object.__setattr__
        put(self, "_reference", reference)
        # The tokenizer, `None` before it is loaded, or `False` if it cannot be.
        put(self, "_fast", None)
        # The parts that others have, and what they were when they were handed out.
        put(self, "_watched", {})
        put(self, "_warned", set())

    # Encoding and decoding.

    def encode(self, sequence, pair=None, is_pretokenized=False, add_special_tokens=True):
        fast = self._ready(is_pretokenized)
        if fast:
            try:
                return fast.encode(sequence, pair, add_special_tokens=add_special_tokens)
            except EncodeError as error:
                self._warn(f"it refuses to encode ({error})")
        return self._reference.encode(sequence, pair, is_pretokenized, add_special_tokens)

    def encode_batch(self, input, is_pretokenized=False, add_special_tokens=True):
        return self._batch("encode_batch", input, is_pretokenized, add_special_tokens)

    def encode_batch_fast(self, input, is_pretokenized=False, add_special_tokens=True):
        return self._batch("encode_batch_fast", input, is_pretokenized, add_special_tokens)

    def _batch(self, name, input, is_pretokenized, add_special_tokens):
        fast = self._ready(is_pretokenized)
        if fast:
            try:
                return getattr(fast, name)(input, add_special_tokens=add_special_tokens)
            except EncodeError as error:
                self._warn(f"it refuses to encode ({error})")
        return getattr(self._reference, name)(input, is_pretokenized, add_special_tokens)

    def decode(self, ids, skip_special_tokens=True):
        target = self._ready() or self._reference
        return target.decode(ids, skip_special_tokens)

    def decode_batch(self, sequences, skip_special_tokens=True):
        target = self._ready() or self._reference
        return target.decode_batch(sequences, skip_special_tokens)

    # Settings, which both have.

    def _set(self, name, args, kwargs):
        getattr(self._reference, name)(*args, **kwargs)
        if self._fast:
            self._copy_settings(self._fast)

    def _copy_settings(self, fast):
        """Give `fast` the truncation and padding of the reference."""
        truncation, padding = self._reference.truncation, self._reference.padding
        try:
            if truncation is None:
                fast.no_truncation()
            else:
                fast.enable_truncation(**truncation)
            if padding is None:
                fast.no_padding()
            else:
                fast.enable_padding(**padding)
        except (ValueError, OverflowError) as error:
            self._warn(f"it does not take the truncation or padding ({error})")
            object.__setattr__(self, "_fast", False)

    # Loading.

    def _ready(self, is_pretokenized=False):
        """Return the tokenizer of fasttoken, or something false if the reference has to do it."""
        if is_pretokenized:
            self._warn("it does not take text that was split into words")
            return None
        if self._reference.encode_special_tokens:
            self._warn("it does not encode special tokens as text (split_special_tokens)")
            return None
        if self._fast is not None and any(
            self._state_of(part) != state for part, state in self._watched.items()
        ):
            self._forget()
        if self._fast is None:
            object.__setattr__(self, "_fast", self._load())
        return self._fast

    def _load(self):
        for part in self._watched:
            self._watched[part] = self._state_of(part)
        try:
            fast = Tokenizer.from_str(self._reference.to_str())
        except LoadError as error:
            self._warn(f"it does not load this tokenizer ({error})")
            return False
        if not fast.is_exact:
            self._warn(f"its ids are not known to be equal ({'; '.join(fast.warnings)})")
            return False
        return fast

    def _forget(self):
        object.__setattr__(self, "_fast", None)

    def _state_of(self, part):
        """Return something that differs if a part of the reference was changed."""
        value = getattr(self._reference, part)
        if part == "model":
            settings = (getattr(value, name, None) for name in _MODEL_SETTINGS)
            return (type(value), *settings)
        return None if value is None else value.__getstate__()

    def _warn(self, why):
        if why not in self._warned:
            self._warned.add(why)
            warnings.warn(
                f"fasttoken leaves a tokenizer of transformers to tokenizers: {why}",
                RuntimeWarning,
                stacklevel=2,
            )

    # Everything else.

    def __getattr__(self, name):
        value = getattr(self._reference, name)
        if name in _PARTS:
            if value is not None and name not in self._watched:
                self._watched[name] = self._state_of(name)
            return value
        if name in _READS or name.startswith("__"):
            return value
        if name in _SETTINGS:
            return lambda *args, **kwargs: self._set(name, args, kwargs)
        if not callable(value):
            return value

        def changes(*args, **kwargs):
            try:
                return value(*args, **kwargs)
            finally:
                self._forget()

        return changes

    def __setattr__(self, name, value):
        setattr(self._reference, name, value)
        if name != "encode_special_tokens":
            self._forget()

    @property
    def __class__(self):
        # For `isinstance`.
        return type(self._reference)

    def __deepcopy__(self, memo):
        import copy

        return copy.deepcopy(self._reference, memo)

    def __copy__(self):
        import copy

        return copy.copy(self._reference)

    def __reduce_ex__(self, protocol):
        return self._reference.__reduce_ex__(protocol)

    def __repr__(self):
        return repr(self._reference)
