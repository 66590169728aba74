# requires: sentence-transformers==6.2.0 torch==2.13.0
"""sentence-transformers beside our server, on the golden encoders: vectors and cross-encoders' scores.

The library computes in float32. Ours is compared with it in float32 and in bfloat16, over HTTP, on
texts of many lengths that are sent together and alone."""

import logging

import numpy
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from support import *

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden")
EMBEDDERS = ["rand-bert-embed", "rand-mpnet-embed", "rand-modernbert-embed"]
CROSS_ENCODERS = ["rand-bert-rank", "rand-xlmr-rank", "rand-modernbert-rank"]

# The greatest distance of two vectors (1 - cosine), and of two scores, which lie between 0 and 1.
BOUNDS = {"f32": (1e-6, 1e-5), "bf16": (1e-3, 1e-2)}

WORDS = "Where is my card? I ordered it two weeks ago, and the river rose over the old bridge.".split()
TEXTS = [" ".join((WORDS * 8)[i % 7:][:count]) for i, count in enumerate([1, 2, 3, 5, 9, 17, 25, 33])]
TEXTS += ["été où", "ONE, Two; three!", "  blanks   inside ", "naïve résumé"]


@contextlib.contextmanager
def served(folder, dtype):
    """The address of a server of one model, while the block runs."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [os.environ["PRELUDE_PROGRAM"], "serve", folder, "--dtype", dtype,
               "--served-model-name", "it", "--port", str(port)]
    with running(command, url, "/health"):
        yield url


def vectors(url, texts):
    """The vectors of texts as the server gives them, as OpenAI's clients read them."""
    found = post("/v1/embeddings", {"model": "it", "input": texts}, url)["data"]
    return numpy.array([each["embedding"] for each in found])


def embedder(name):
    folder = os.path.join(GOLDEN, name, "model")
    library = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32})
    expected = library.encode(TEXTS, batch_size=4).astype(numpy.float64)
    expected /= numpy.linalg.norm(expected, axis=1, keepdims=True)
    for dtype, (bound, _) in BOUNDS.items():
        with served(folder, dtype) as url:
            together = vectors(url, TEXTS)
            alone = numpy.concatenate([vectors(url, [text]) for text in TEXTS])
        assert (together == alone).all(), name
        found = together / numpy.linalg.norm(together, axis=1, keepdims=True)
        far = 1 - (found * expected).sum(1)
        print(f"{name}, {dtype}: 1 - cosine is at most {far.max():.1e}")
        assert far.max() <= bound, (name, dtype, far)
    # Vectors that are all alike would agree whatever was computed.
    apart = 1 - expected @ expected.T
    assert apart.max() > 10 * BOUNDS["bf16"][0], apart


def cross_encoder(name):
    folder = os.path.join(GOLDEN, name, "model")
    library = CrossEncoder(folder, device="cpu", model_kwargs={"dtype": torch.float32})
    expected = library.predict([(QUERY, text) for text in TEXTS], batch_size=4)
    for dtype, (_, bound) in BOUNDS.items():
        with served(folder, dtype) as url:
            results = post("/rerank", {"model": "it", "query": QUERY, "documents": TEXTS}, url)
        found = numpy.zeros(len(expected))
        for result in results["results"]:
            found[result["index"]] = result["relevance_score"]
        far = numpy.abs(found - expected)
        print(f"{name}, {dtype}: scores differ by at most {far.max():.1e}")
        assert far.max() <= bound, (name, dtype, far)
    assert expected.max() - expected.min() > 10 * BOUNDS["f32"][1], expected


logging.getLogger("transformers").setLevel(logging.ERROR)
for name in EMBEDDERS:
    embedder(name)
for name in CROSS_ENCODERS:
    cross_encoder(name)
