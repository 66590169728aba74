"""Every method against the package tokenizers, on random texts."""

import copy
import functools
import json
import pickle
import unittest

import common
import fasttoken

try:
    import tokenizers
except ImportError:
    tokenizers = None

COLUMNS = (
    "ids tokens offsets type_ids attention_mask special_tokens_mask word_ids sequence_ids n_sequences"
).split()
# The columns that are the same with and without offsets.
FULL = ["ids", "tokens", "type_ids", "attention_mask", "special_tokens_mask"]
COUNT = 150


def load(file):
    return fasttoken.Tokenizer.from_file(file), tokenizers.Tokenizer.from_file(str(file))


# Large files take the reference a second.
load_once = functools.lru_cache(maxsize=None)(load)


def for_each(load):
    """Run a test with each tokenizer, as this package and the reference load it."""

    def decorate(test):
        @functools.wraps(test)
        def run(self):
            for file in common.tokenizers():
                name = common.name(file)
                with self.subTest(tokenizer=name):
                    test(self, common.source(f"{test.__name__} {name}"), *load(file))

        return run

    return decorate


@unittest.skipIf(tokenizers is None, "SKIP: tokenizers is not installed")
class Reference(unittest.TestCase):
    def same(self, ours, theirs, columns=COLUMNS):
        """Compare all columns of two encodings and of what overflowed."""
        for column in columns:
            self.assertEqual(getattr(ours, column), getattr(theirs, column), column)
        self.assertEqual(len(ours), len(theirs))
        self.assertEqual(len(ours.overflowing), len(theirs.overflowing))
        for mine, other in zip(ours.overflowing, theirs.overflowing):
            self.same(mine, other, columns)

    @for_each(load_once)
    def test_encode(self, random, ours, theirs):
        for text in common.texts(random, COUNT):
            for special in (True, False):
                mine = ours.encode(text, add_special_tokens=special)
                self.same(mine, theirs.encode(text, add_special_tokens=special))
                ids = ours.encode_ids(text, add_special_tokens=special)
                self.assertEqual(ids.tolist(), mine.ids)
                self.assertEqual(ours.count(text, add_special_tokens=special), len(mine))

    @for_each(load_once)
    def test_pairs_and_places(self, random, ours, theirs):
        all_texts = common.texts(random, COUNT, 6)
        for first, second in zip(all_texts, reversed(all_texts)):
            mine, other = ours.encode(first, second), theirs.encode(first, second)
            self.same(mine, other)
            self.assertEqual(ours.encode_ids(first, second).tolist(), mine.ids)
            self.places(random, mine, other, first)
        for text in all_texts[:20]:
            self.places(random, ours.encode(text), theirs.encode(text), text)

    def places(self, random, mine, other, text):
        """Compare the methods that find tokens, words and characters."""
        for n in (0, len(mine) - 1, len(mine), len(mine) + 1, random.randrange(len(mine) + 1)):
            for method in ("token_to_chars", "token_to_word", "token_to_sequence"):
                if n >= 0:
                    self.assertEqual(getattr(mine, method)(n), getattr(other, method)(n), method)
        for sequence in (0, 1):
            for n in (0, len(text), random.randrange(len(text) + 1)):
                for method in ("char_to_token", "char_to_word", "word_to_tokens", "word_to_chars"):
                    found = getattr(mine, method)(n, sequence)
                    self.assertEqual(found, getattr(other, method)(n, sequence), method)

    @for_each(load)
    def test_batches_and_settings(self, random, ours, theirs):
        for _ in range(25):
            self.choose_settings(random, ours, theirs)
            self.assertEqual(ours.truncation, theirs.truncation)
            self.assertEqual(ours.padding, theirs.padding)
            batch = common.texts(random, random.randrange(2, 8), 20)
            batch += list(zip(batch, reversed(batch)))
            special = random.random() < 0.7
            with self.subTest(truncation=ours.truncation, padding=ours.padding):
                try:
                    expected = theirs.encode_batch(batch, add_special_tokens=special)
                except Exception as error:
                    with self.assertRaises(fasttoken.EncodeError, msg=str(error)):
                        ours.encode_batch(batch, add_special_tokens=special)
                    continue
                found = ours.encode_batch(batch, add_special_tokens=special)
                for mine, other in zip(found, expected, strict=True):
                    self.same(mine, other)
                slow, expected = expected, theirs.encode_batch_fast(batch, add_special_tokens=special)
                found = ours.encode_batch_fast(batch, add_special_tokens=special)
                for mine, other, whole in zip(found, expected, slow, strict=True):
                    # Their tokens are empty here, and types of pairs may all be 0.
                    self.same(mine, other, [column for column in COLUMNS if column not in ("tokens", "type_ids")])
                    self.same(mine, whole, FULL)

    def choose_settings(self, random, ours, theirs):
        for both in (ours, theirs):
            both.no_truncation()
            both.no_padding()
        if random.random() < 0.7:
            length = random.choice((4, 7, 20))
            strategy = random.choice(("longest_first", "only_first", "only_second"))
            # The reference panics where a stride leaves no room.
            strides = length == 20 and strategy == "longest_first"
            arguments = {
                "stride": random.choice((0, 1, 2)) if strides else 0,
                "strategy": strategy,
                "direction": random.choice(("left", "right")),
            }
            for both in (ours, theirs):
                both.enable_truncation(length, **arguments)
        if random.random() < 0.7:
            arguments = {
                "direction": random.choice(("left", "right")),
                "pad_id": random.choice((0, 5)),
                "pad_type_id": random.choice((0, 3)),
                "pad_token": random.choice(("[PAD]", "a name")),
                "length": random.choice((None, 12)),
                "pad_to_multiple_of": random.choice((None, 8)),
            }
            for both in (ours, theirs):
                both.enable_padding(**arguments)

    @for_each(load)
    def test_flat_batches(self, random, ours, theirs):
        texts = common.texts(random, 40)
        ids, offsets = ours.encode_batch_ids(texts)
        expected = [encoding.ids for encoding in theirs.encode_batch(texts)]
        bounds = offsets.tolist()
        found = [ids[a:b].tolist() for a, b in zip(bounds, bounds[1:])]
        self.assertEqual(found, expected)
        self.assertEqual((ids.format, offsets.format), ("I", "q"))

    @for_each(load_once)
    def test_decode(self, random, ours, theirs):
        size = theirs.get_vocab_size()
        sequences = [[random.randrange(size + 3) for _ in range(n)] for n in range(30)]
        sequences += [theirs.encode(text).ids for text in common.texts(random, 40)]
        for skip in (True, False):
            expected = theirs.decode_batch(sequences, skip_special_tokens=skip)
            self.assertEqual(ours.decode_batch(sequences, skip_special_tokens=skip), expected)
            for ids, text in zip(sequences, expected):
                self.assertEqual(ours.decode(ids, skip_special_tokens=skip), text)
        self.assertEqual(ours.decode(sequences[-1]), theirs.decode(sequences[-1]))

    @for_each(load_once)
    def test_vocabulary(self, random, ours, theirs):
        for added in (True, False):
            vocab = theirs.get_vocab(with_added_tokens=added)
            self.assertEqual(ours.get_vocab(with_added_tokens=added), vocab)
            size = theirs.get_vocab_size(with_added_tokens=added)
            self.assertEqual(ours.get_vocab_size(with_added_tokens=added), size)
        for token, id in list(theirs.get_vocab().items())[::97]:
            self.assertEqual(ours.token_to_id(token), theirs.token_to_id(token))
            self.assertEqual(ours.id_to_token(id), theirs.id_to_token(id))
        self.assertIsNone(ours.token_to_id("no such token"))
        self.assertIsNone(ours.id_to_token(2**32 - 1))
        for pair in (True, False):
            number = theirs.num_special_tokens_to_add(pair)
            self.assertEqual(ours.num_special_tokens_to_add(pair), number)
        self.same_added(ours, theirs)

    def same_added(self, ours, theirs):
        flags = "content single_word lstrip rstrip normalized special".split()

        def plain(decoder):
            return {n: [getattr(token, flag) for flag in flags] for n, token in decoder.items()}

        found = plain(ours.get_added_tokens_decoder())
        self.assertEqual(found, plain(theirs.get_added_tokens_decoder()))

    @for_each(load)
    def test_added_tokens(self, random, ours, theirs):
        lists = [
            ["<tool>", "<tool>", "card"],
            [],
            [tokenizers.AddedToken("<a b>", lstrip=True), tokenizers.AddedToken("<tool>", rstrip=True)],
            [fasttoken.AddedToken("wörd", single_word=True, normalized=False), "<|im_end|>"],
        ]
        for n, tokens in enumerate(lists):
            method = "add_special_tokens" if n % 2 else "add_tokens"
            theirs_too = [
                tokenizers.AddedToken(
                    t.content, single_word=t.single_word, normalized=t.normalized
                )
                if isinstance(t, fasttoken.AddedToken)
                else t
                for t in tokens
            ]
            count = getattr(theirs, method)(theirs_too)
            self.assertEqual(getattr(ours, method)(tokens), count, tokens)
            self.same_added(ours, theirs)
        for text in common.texts(random, 40):
            text = text.replace("x", "<tool>").replace("a", " <a b> ") + " wörd card"
            mine, other = ours.encode(text), theirs.encode(text)
            self.same(mine, other)
            self.assertEqual(ours.decode(mine.ids), theirs.decode(other.ids))

    @for_each(load)
    def test_json_and_pickles(self, random, ours, theirs):
        for both in (ours, theirs):
            both.add_tokens(["<new>"])
            both.enable_truncation(9, strategy="only_first", direction="left")
            both.enable_padding(pad_id=3, pad_token="x", pad_to_multiple_of=4)
        # As the reference reads and writes it: the order and defaults of fields do not count.
        again = tokenizers.Tokenizer.from_str(ours.to_str())
        self.assertEqual(json.loads(again.to_str()), json.loads(theirs.to_str()))
        copies = [pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)]
        copies.append(fasttoken.Tokenizer.from_buffer(theirs.to_str().encode()))
        copies.append(fasttoken.Tokenizer.from_str(theirs.to_str()))
        ours.no_truncation()  # not theirs
        text = " ".join(common.texts(random, 20)) + " <new>"
        expected = theirs.encode(text)
        for one in copies:
            self.same(one.encode(text), expected, ["ids", "offsets", "attention_mask"])


if __name__ == "__main__":
    unittest.main()
