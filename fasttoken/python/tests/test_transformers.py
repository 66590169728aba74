"""Tokenizers of transformers, with the patch and without."""

import copy
import functools
import pickle
import tempfile
import unittest
import warnings
from pathlib import Path

import common
import fasttoken

try:
    import numpy
    import tokenizers
    import transformers
except ImportError as error:
    transformers = None
    missing = error.name
else:
    missing = None

# What is compared of each call.
CALLS = [
    {},
    {"add_special_tokens": False},
    {"truncation": True, "max_length": 9},
    {"truncation": "only_first", "max_length": 300, "padding": "max_length"},
    {"padding": True, "return_special_tokens_mask": True},
    {"padding": True, "pad_to_multiple_of": 8, "return_tensors": "np"},
    {"truncation": True, "max_length": 12, "stride": 2, "return_overflowing_tokens": True},
    {"return_offsets_mapping": True, "return_length": True, "return_token_type_ids": True},
]


@unittest.skipIf(transformers is None, f"SKIP: {missing} is not installed")
class Transformers(unittest.TestCase):
    def setUp(self):
        self.addCleanup(fasttoken.unpatch_transformers)

    @staticmethod
    @functools.lru_cache(maxsize=None)
    def load_once(file):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tokenizer.json").write_bytes(file.read_bytes())
            return transformers.PreTrainedTokenizerFast.from_pretrained(folder)

    def load(self, file):
        return copy.deepcopy(self.load_once(file))

    def usable(self):
        """Return a tokenizer for each file, with a padding token."""
        for file in common.tokenizers():
            tokenizer = self.load_once(file)
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.convert_ids_to_tokens(3)
            yield common.name(file), tokenizer

    def outcome(self, tokenizer, arguments, options):
        try:
            return tokenizer(*arguments, **options)
        except Exception as error:
            return type(error)

    def same(self, found, expected):
        if isinstance(expected, type):
            self.assertEqual(found, expected)
            return
        self.assertEqual(list(found), list(expected))
        for key, value in expected.items():
            self.assertEqual(type(found[key]), type(value), key)
            if isinstance(value, numpy.ndarray):
                numpy.testing.assert_array_equal(found[key], value, key, strict=True)
            else:
                self.assertEqual(found[key], value, key)
        for n in range(len(expected.encodings or ())):
            for method in ("word_ids", "sequence_ids"):
                self.assertEqual(getattr(found, method)(n), getattr(expected, method)(n))

    def test_calls(self):
        for name, tokenizer in self.usable():
            random = common.source(f"transformers {name}")
            texts = common.texts(random, 12, 30)
            batches = [(texts,), (texts, texts[::-1]), (texts[5],), (texts[6], texts[7])]
            for options in CALLS:
                fasttoken.unpatch_transformers()
                outcomes = [self.outcome(tokenizer, arguments, options) for arguments in batches]
                fasttoken.patch_transformers()
                for arguments, expected in zip(batches, outcomes):
                    with self.subTest(tokenizer=name, options=options, inputs=len(arguments)):
                        with warnings.catch_warnings():
                            fails = isinstance(expected, type)
                            warnings.simplefilter("ignore" if fails else "error", RuntimeWarning)
                            found = self.outcome(tokenizer, arguments, options)
                        self.same(found, expected)

    def test_decoding(self):
        for name, tokenizer in self.usable():
            random = common.source(f"transformers decode {name}")
            sequences = tokenizer(common.texts(random, 12, 30))["input_ids"]
            sequences += [numpy.asarray([5, 7, 9]), [11], []]
            for skip in (True, False):
                expected = [tokenizer.decode(ids, skip_special_tokens=skip) for ids in sequences]
                fasttoken.patch_transformers()
                found = [tokenizer.decode(ids, skip_special_tokens=skip) for ids in sequences]
                batch = tokenizer.batch_decode(sequences, skip_special_tokens=skip)
                fasttoken.unpatch_transformers()
                self.assertEqual(found, expected, name)
                self.assertEqual(batch, expected, name)

    def demo(self):
        return common.REPOSITORY / "prelude-server" / "demo" / "demo-lm"

    def test_auto_tokenizer_uses_fasttoken(self):
        fasttoken.patch_transformers()
        fasttoken.patch_transformers()  # once is enough
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.demo())
        backend = tokenizer.backend_tokenizer
        self.assertIsInstance(backend, tokenizers.Tokenizer)
        self.assertIsInstance(backend.encode("Where is my card?"), fasttoken.Encoding)
        batch = tokenizer(["Where is my card?"], return_offsets_mapping=True)
        self.assertIsInstance(batch.encodings[0], fasttoken.Encoding)
        self.assertEqual(batch.char_to_token(0, 1), 0)
        fasttoken.unpatch_transformers()
        fasttoken.unpatch_transformers()
        self.assertIs(type(tokenizer.backend_tokenizer), tokenizers.Tokenizer)
        again = tokenizer(["Where is my card?"])
        self.assertIsInstance(again.encodings[0], tokenizers.Encoding)
        self.assertEqual(again["input_ids"], batch["input_ids"])

    def test_changes_are_seen(self):
        file = common.REPOSITORY / "golden" / "rand-bert-embed" / "model" / "tokenizer.json"
        tokenizer = self.load(file)
        text = "Where is my CARD? <new> card [MASK]"

        def change(how):
            fasttoken.patch_transformers()
            tokenizer(text)
            how()
            found = tokenizer(text)["input_ids"]
            fasttoken.unpatch_transformers()
            self.assertEqual(found, tokenizer(text)["input_ids"])
            return found

        seen = [tokenizer(text)["input_ids"]]
        seen.append(change(lambda: tokenizer.add_tokens(["<new>"])))
        template = tokenizers.processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
        seen.append(change(lambda: setattr(tokenizer.backend_tokenizer, "post_processor", template)))
        normalizer = tokenizers.normalizers.NFC()
        seen.append(change(lambda: setattr(tokenizer.backend_tokenizer, "normalizer", normalizer)))
        # A part that was handed out and is changed in place.
        fasttoken.patch_transformers()
        model = tokenizer.backend_tokenizer.model
        seen.append(change(lambda: setattr(model, "max_input_chars_per_word", 3)))
        for before, after in zip(seen, seen[1:]):
            self.assertNotEqual(before, after)

    def test_what_is_not_loaded_says_so_and_works(self):
        model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
        reference = tokenizers.Tokenizer(model)
        reference.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        fasttoken.patch_transformers()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=reference)
        with self.assertWarnsRegex(RuntimeWarning, "model WordLevel"):
            self.assertEqual(tokenizer("a b")["input_ids"], [0, 1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(tokenizer("b a")["input_ids"], [1, 0])
            self.assertEqual(tokenizer.decode([0, 1]), "a b")

    def test_calls_that_are_not_taken_say_so_and_work(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.demo())
        words = {"is_split_into_words": True}
        control = {"split_special_tokens": True}
        expected = tokenizer(["my", "card"], **words)["input_ids"]
        split = tokenizer("a<|im_end|>", **control)["input_ids"]
        fasttoken.patch_transformers()
        with self.assertWarnsRegex(RuntimeWarning, "split into words"):
            self.assertEqual(tokenizer(["my", "card"], **words)["input_ids"], expected)
        with self.assertWarnsRegex(RuntimeWarning, "split_special_tokens"):
            self.assertEqual(tokenizer("a<|im_end|>", **control)["input_ids"], split)
        self.assertNotEqual(tokenizer("a<|im_end|>")["input_ids"], split)

    def test_streams_take_patched_tokenizers(self):
        before = tokenizers.decoders.DecodeStream
        fasttoken.patch_transformers()
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.demo())
        ids = tokenizer("Where is my card? €")["input_ids"]
        stream = tokenizers.decoders.DecodeStream(skip_special_tokens=True)
        chunks = [stream.step(tokenizer._tokenizer, id) for id in ids]
        self.assertEqual("".join(filter(None, chunks)), "Where is my card? €")
        fasttoken.unpatch_transformers()
        self.assertIs(tokenizers.decoders.DecodeStream, before)

    def test_copies_and_files(self):
        fasttoken.patch_transformers()
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.demo())
        text = "Where is my card?<|im_end|>"
        expected = tokenizer(text)["input_ids"]
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            saved = transformers.AutoTokenizer.from_pretrained(folder)
        backend = tokenizer.backend_tokenizer
        same_backend = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
        for one in (
            copy.deepcopy(tokenizer),
            pickle.loads(pickle.dumps(tokenizer)),
            saved,
            same_backend,
            pickle.loads(pickle.dumps(backend)),
        ):
            encoded = one.encode(text)
            self.assertEqual(getattr(encoded, "ids", encoded), expected)


if __name__ == "__main__":
    unittest.main()
