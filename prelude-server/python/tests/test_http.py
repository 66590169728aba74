"""Answers in process are those of the server over HTTP, byte for byte but for ids and times."""

import json
import re
import unittest

import common
from common import MESSAGES

SYSTEM_ONE = {
    "state": {"message": MESSAGES[0], "days": 14},
    "instructions": "You read messages to a bank.",
    "questions": {
        "topic": {"type": "choice", "instructions": "Which topic?", "criteria": {"card": None, "transfer": "money"}},
        "lost": {"type": "noul", "instructions": "Is a card missing?"},
        "anger": {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Cross", "Furious"]},
    },
}
CHAT = [{"role": "user", "content": MESSAGES[0]}]

REQUESTS = {
    "lm": [
        ("/classify", {"input": MESSAGES, "labels": ["card_arrival", "exchange_rate", "top_up_pending"]}),
        ("/v1/systemone", SYSTEM_ONE),
        ("/v1/decisions", {"input": MESSAGES[0], "questions": [{"type": "predicate", "name": "lost", "instructions": "Lost?"}]}),
        ("/score", {"query": "Is it ", "items": ["late?", "lost?"], "labels": ["yes", "no"]}),
        ("/v1/completions", {"prompt": MESSAGES[:3], "max_tokens": 9, "temperature": 0, "logprobs": 3, "n": 1}),
        ("/v1/completions", {"prompt": "Where", "max_tokens": 20, "temperature": 1, "seed": 7, "n": 3}),
        ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 0, "echo": True, "prompt_logprobs": 2}),
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 9, "temperature": 0, "enable_thinking": False}),
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 9, "seed": 5, "structured_outputs": {"choice": ["yes", "no"]}}),
        ("/tokenize", {"prompt": MESSAGES[-1]}),
        # Refusals are the same too.
        ("/classify", {"input": MESSAGES}),
        ("/v1/completions", {"prompt": "a", "temperature": "hot"}),
        ("/v1/systemone", {"state": "a", "questions": {}}),
        ("/v1/embeddings", {"input": "a"}),
        ("/nothing", {}),
    ],
    "classifier": [
        ("/classify", {"input": MESSAGES}),
        ("/classify", {"input": MESSAGES, "use_activation": False}),
        ("/predict", {"inputs": MESSAGES[0]}),
        ("/v1/moderations", {"input": MESSAGES}),
    ],
    "embedder": [
        ("/v1/embeddings", {"input": MESSAGES[:6]}),
        ("/v1/embeddings", {"input": MESSAGES[:6], "dimensions": 5, "encoding_format": "base64"}),
        ("/embed", {"inputs": MESSAGES[0]}),
        ("/v2/embed", {"texts": MESSAGES[:3], "input_type": "search_query", "embedding_types": ["float", "binary"]}),
        ("/pooling", {"input": MESSAGES[0]}),
    ],
    "reranker": [
        ("/v1/rerank", {"query": "card", "documents": MESSAGES, "top_n": 3}),
        ("/v2/rerank", {"query": "card", "documents": MESSAGES}),
        ("/score", {"text_1": "card", "text_2": MESSAGES}),
    ],
}

IDS = re.compile(rb'"(id|request_id|created)":("[a-z]*-[0-9a-f]+"|\d+)')


def without_ids(body):
    """Return a body with the parts blank that no two answers have in common."""
    return IDS.sub(rb'"\1":0', body)


class SameAnswers(unittest.TestCase):
    def test_bodies_are_the_same(self):
        for name, requests in REQUESTS.items():
            server = common.Server(name)
            self.addCleanup(server.close)
            engine = common.model(name)._engine
            for number, (path, body) in enumerate(requests):
                if path != "/tokenize":
                    # What is cached of a prompt is told, and the two have been asked other things.
                    body = {**body, "cache_salt": f"request {number}"}
                with self.subTest(model=name, path=path, body=body):
                    over_http = server.ask(path, body)
                    here = engine.answer("POST", path, json.dumps(body).encode(), False)
                    self.assertEqual(here[0], over_http[0], over_http[1])
                    self.assertEqual(without_ids(here[1]), without_ids(over_http[1]))

    @unittest.skipUnless(common.has_numpy(), "needs numpy")
    def test_methods_return_the_numbers_of_http(self):
        import numpy as np

        def ask(name, path, body):
            status, answer = servers[name].ask(path, body)
            self.assertEqual(status, 200, answer)
            return json.loads(answer)

        servers = {name: common.Server(name) for name in common.MODELS}
        for server in servers.values():
            self.addCleanup(server.close)

        lm = common.model("lm")
        labels = ["card_arrival", "exchange_rate"]
        data = ask("lm", "/classify", {"input": MESSAGES, "labels": labels})["data"]
        # Batches of other sizes than the request's change no bit.
        found = lm.classify(MESSAGES, labels, batch_size=3)
        self.assertEqual(found.labels, [item["label"] for item in data])
        np.testing.assert_array_equal(found.probs, [item["probs"] for item in data])
        self.assertEqual(found.names, labels)

        data = ask("classifier", "/classify", {"input": MESSAGES})["data"]
        found = common.model("classifier").classify(np.array(MESSAGES))
        np.testing.assert_array_equal(found.probs, [item["probs"] for item in data])
        self.assertEqual([found.names[i] for i in found.probs.argmax(axis=1)], [item["label"] for item in data])

        raw = ask("lm", "/v1/systemone", SYSTEM_ONE)
        found = lm.decide(SYSTEM_ONE["state"], SYSTEM_ONE["questions"], instructions=SYSTEM_ONE["instructions"])
        self.assertEqual(found.raw, raw)

        body = {"query": "Is it ", "items": ["late?", "lost?", "here?"], "labels": ["yes", "no"], "apply_softmax": True}
        scores = ask("lm", "/score", body)["scores"]
        found = lm.score_labels(body["query"], body["items"], ["yes", "no"], apply_softmax=True, batch_size=2)
        np.testing.assert_array_equal(found, scores)

        data = ask("embedder", "/v1/embeddings", {"input": MESSAGES[:6]})["data"]
        found = common.model("embedder").embed(MESSAGES[:6], batch_size=4)
        self.assertEqual(found.dtype, np.float32)
        np.testing.assert_array_equal(found, np.array([item["embedding"] for item in data], np.float32))

        data = ask("reranker", "/score", {"queries": "card", "documents": MESSAGES})["data"]
        found = common.model("reranker").score("card", MESSAGES, batch_size=3)
        np.testing.assert_array_equal(found, [item["score"] for item in data])
        results = ask("reranker", "/v1/rerank", {"query": "card", "documents": MESSAGES})["results"]
        for batch_size in (64, 3):
            found = common.model("reranker").rerank("card", MESSAGES, batch_size=batch_size)
            self.assertEqual(found.indices.tolist(), [item["index"] for item in results])
            np.testing.assert_array_equal(found.scores, [item["relevance_score"] for item in results])

        fields = {"max_tokens": 12, "temperature": 0.9, "seed": 3, "n": 2}
        body = {"prompt": MESSAGES[0], **fields}
        choices = ask("lm", "/v1/completions", body)["choices"]
        (found,) = lm.generate(MESSAGES[0], **fields)
        self.assertEqual(found.texts, [choice["text"] for choice in choices])


if __name__ == "__main__":
    unittest.main()
