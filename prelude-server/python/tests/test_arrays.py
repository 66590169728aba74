"""NumPy in and out: shapes, kinds of inputs, and batches that change no bit."""

import base64
import unittest

import common
from common import MESSAGES
from prelude_serve import LLM, Choice, InvalidRequest, Noul, Score

HAS_NUMPY = common.has_numpy()
if HAS_NUMPY:
    import numpy as np


@unittest.skipUnless(HAS_NUMPY, "needs numpy")
class Arrays(unittest.TestCase):
    def same(self, left, right):
        np.testing.assert_array_equal(left, right, strict=True)

    def test_inputs_of_all_kinds_are_the_same(self):
        llm = common.model("classifier")
        expected = llm.classify(MESSAGES)
        self.assertEqual((len(expected), expected.probs.shape, expected.probs.dtype), (8, (8, 77), np.float64))
        self.assertEqual(expected.labels[0], "card_arrival")
        for texts in (
            tuple(MESSAGES),
            (text for text in MESSAGES),
            np.array(MESSAGES),
            np.array(MESSAGES, dtype=object),
            dict.fromkeys(MESSAGES).keys(),
        ):
            self.same(llm.classify(texts).probs, expected.probs)
        one = llm.classify(MESSAGES[0])
        self.same(one.probs, expected.probs[:1])
        self.same(llm.classify(np.array(MESSAGES[0])).probs, one.probs)

    def test_token_ids(self):
        llm = common.model("embedder")
        ids = [llm.ask("/tokenize", {"prompt": text})["tokens"] for text in MESSAGES[:3]]
        expected = llm.embed(ids)
        self.same(llm.embed([np.array(some, np.uint32) for some in ids]), expected)
        self.same(llm.embed(np.array(ids[0])), expected[:1])
        self.same(llm.embed(ids[0]), expected[:1])
        self.same(llm.embed(np.array([ids[1], ids[1]])), expected[[1, 1]])

    def test_batch_sizes_change_no_bit(self):
        classifier, embedder, reranker = (common.model(name) for name in ("classifier", "embedder", "reranker"))
        texts = [f"{text} {i}" for i in range(30) for text in MESSAGES[:5]]
        probs, vectors = classifier.classify(texts).probs, embedder.embed(texts)
        scores = reranker.score("card", texts)
        ranking = reranker.rerank("card", texts)
        self.same(ranking.scores, scores[ranking.indices])
        self.assertTrue((np.diff(ranking.scores) <= 0).all())
        for size in (1, 7, 1000):
            self.same(classifier.classify(texts, batch_size=size).probs, probs)
            self.same(embedder.embed(texts, batch_size=size), vectors)
            self.same(reranker.score("card", texts, batch_size=size), scores)
            best = reranker.rerank("card", texts, top_n=9, batch_size=size)
            self.same(best.indices, ranking.indices[:9])
        self.same(reranker.score(["card"] * len(texts), texts, batch_size=7), scores)

    def test_requests_that_are_too_large_are_asked_in_parts(self):
        with LLM("demo-lm", settings={"limits": {"rows": 8}}) as llm:
            labels = ["card_arrival", "exchange_rate", "top_up_pending"]
            found = llm.classify(MESSAGES, labels, batch_size=8)
        self.same(found.probs, common.model("lm").classify(MESSAGES, labels).probs)
        self.assertEqual(found.names, labels)

    def test_vectors(self):
        llm = common.model("embedder")
        vectors = llm.embed(MESSAGES[:4])
        self.assertEqual(vectors.dtype, np.float32)
        self.assertTrue(vectors.flags.writeable)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        self.assertEqual(llm.embed(MESSAGES[:4], dimensions=5).shape, (4, 5))
        raw = llm.embed(MESSAGES[:4], use_activation=False)
        self.assertGreater(abs(np.linalg.norm(raw, axis=1) - 1).max(), 1e-3)

    def test_vectors_in_bits_are_those_of_numpy(self):
        llm = common.model("embedder")
        vectors = llm.embed(MESSAGES[:4])
        body = {"texts": MESSAGES[:4], "embedding_types": ["float", "ubinary", "binary", "base64"]}
        found = llm.ask("/v2/embed", body)["embeddings"]
        self.same(np.array(found["float"], np.float32), vectors)
        self.same(np.array(found["ubinary"], np.uint8), np.packbits(vectors > 0, axis=1))
        signed = np.packbits(vectors > 0, axis=1).astype(np.int16) - 128
        self.same(np.array(found["binary"], np.int16), signed)
        for text, vector in zip(found["base64"], vectors):
            self.same(np.frombuffer(base64.b64decode(text), "<f4"), vector)

    def test_scores_of_labels(self):
        llm = common.model("lm")
        scores = llm.score_labels("Is it ", ["late?", "lost?", "here?"], ["yes", "no"])
        self.assertEqual((scores.shape, scores.dtype), ((3, 2), np.float64))
        ids = [llm.ask("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"][0] for text in ("yes", "no")]
        self.same(llm.score_labels("Is it ", ["late?", "lost?", "here?"], np.array(ids)), scores)
        softmax = llm.score_labels("Is it ", ["late?"], ["yes", "no"], apply_softmax=True)
        self.assertAlmostEqual(softmax.sum(), 1)

    def test_states_with_the_same_questions(self):
        llm = common.model("lm")
        questions = {
            "lost": Noul("Is a card missing?"),
            "topic": Choice("Which topic?", ["card", "transfer"]),
            "anger": Score("How angry?", ["Calm", "Cross", "Furious"]),
        }
        found = llm.decide_all(np.array(MESSAGES[:5]), questions)
        self.assertEqual(len(found), 5)
        for state, decisions in zip(MESSAGES, found):
            self.assertEqual(decisions.raw, llm.decide(state, questions).raw)
        lost = found.values("lost")
        self.assertEqual((lost.shape, lost.dtype), ((5,), np.float64))
        self.same(found.probabilities("lost")[:, 1], lost)
        self.assertEqual(found.options("lost"), ["no", "yes"])
        topic = found.probabilities("topic")
        self.assertEqual(topic.shape, (5, 2))
        self.assertEqual([found.options("topic")[i] for i in topic.argmax(axis=1)], found.values("topic").tolist())
        self.same(found[1:3].values("anger"), found.values("anger")[1:3])
        # A state may be JSON.
        llm.decide_all([{"message": text, "day": np.int64(3)} for text in MESSAGES[:2]], {"q": "Is it?"})

    def test_a_model_that_chooses_by_template(self):
        labels = ["card", "transfer"]
        with_template = common.model("lm").classify(MESSAGES[0], labels, template="{{ text }}\nWhich topic?")
        without = common.model("lm").classify(MESSAGES[0], labels)
        self.assertEqual(with_template.labels, ["card"])
        self.assertFalse(np.array_equal(with_template.probs, without.probs))

    def test_wrong_inputs(self):
        classifier, reranker = common.model("classifier"), common.model("reranker")

        def fails(kind, text, call, *args, **kwargs):
            with self.assertRaisesRegex(kind, text):
                call(*args, **kwargs)

        fails(TypeError, r"texts\[1\] must be a str, not int", classifier.classify, ["a", 5])
        fails(TypeError, r"texts\[1\] must be a list of token ids, or texts texts alone", classifier.classify, [[1], "a"])
        fails(TypeError, "must be a text or a list of texts, not bytes", classifier.classify, b"a")
        fails(TypeError, "must be a text or a list of texts, not dict", classifier.classify, {"a": 1})
        fails(ValueError, "texts must not be empty", classifier.classify, [])
        fails(ValueError, "texts must not be empty", common.model("embedder").embed, np.array([], dtype=str))
        fails(ValueError, "2 queries and 3 documents are no pairs", reranker.score, ["a", "b"], ["c", "d", "e"])
        fails(ValueError, "top_n must be at least 1", reranker.rerank, "a", ["b"], top_n=0)
        fails(ValueError, "batch_size must be at least 1", classifier.classify, ["a", "b"], batch_size=0)
        fails(InvalidRequest, "labels", classifier.classify, "a", ["b", "c"])
        fails(InvalidRequest, "token", common.model("embedder").embed, [2**31])


if __name__ == "__main__":
    unittest.main()
