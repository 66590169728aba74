# requires: sglang-router==0.3.2 vllm-router==0.1.17
"""The routers of SGLang and of vLLM in front of two engines.

Asked are the routes that they forward whole. They forward /v1/classify too, but without `labels`, so
a language model cannot answer it there."""

from support import *

CHAT = {"messages": TOPIC, "max_tokens": 4, "temperature": 0, **NO_THINKING}
RERANK = {"query": QUERY, "documents": DOCUMENTS}


def stream(url, path, body):
    """The data of the server-sent events that answer a request."""
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = [line.decode().strip() for line in response]
    return [line[len("data: "):] for line in lines if line.startswith("data: ")]


def without_ids(value):
    """A response without what differs between two requests that are alike."""
    gone = ("id", "created", "usage", "system_fingerprint")
    return {key: each for key, each in value.items() if key not in gone}


def check(url, engine, extra):
    """Asks a router and an engine the same and compares what they answer."""
    same = [
        ("/v1/chat/completions", {"model": "demo-lm", **CHAT}),
        ("/v1/completions", {"model": "demo-lm", "prompt": CARD, "max_tokens": 4, "temperature": 0}),
        ("/v1/embeddings", {"model": "demo-lm", "input": CARD}),
        *extra,
    ]
    for path, body in same:
        expected = post(path, body, engine)
        for _ in range(2):
            equal(without_ids(post(path, body, url)), without_ids(expected))
    chunks = stream(url, "/v1/chat/completions", {"model": "demo-lm", "stream": True, **CHAT})
    equal(chunks[-1], "[DONE]")
    texts = [json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]]
    answer = post("/v1/chat/completions", {"model": "demo-lm", **CHAT}, engine)
    equal("".join(texts), answer["choices"][0]["message"]["content"])
    # Routers write a placeholder for the model's name, and read a list.
    expected = post("/v1/rerank", RERANK, engine)["results"]
    for path, more in [("/v1/rerank", {}), ("/rerank", {"model": "demo-lm"})]:
        found = post(path, {**RERANK, **more}, url)["results"]
        equal([(r["index"], r["document"]) for r in found],
              [(r["index"], r["document"]["text"]) for r in expected])
        close([r["score"] for r in found], [r["relevance_score"] for r in expected])


def main():
    program = os.environ["PRELUDE_PROGRAM"]
    folder = os.environ["PRELUDE_CLIENT_BIN"]
    score = {"model": "demo-lm", "text_1": QUERY, "text_2": DOCUMENTS}
    tokenize = {"model": "demo-lm", "prompt": CARD}
    routers = [
        (["sglang-router", "launch"], []),
        (["vllm-router"], [("/score", score), ("/v1/score", score), ("/tokenize", tokenize)]),
    ]
    with contextlib.ExitStack() as stack:
        engines = []
        for _ in range(2):
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            command = [program, "serve", MODEL_DIR, "--served-model-name=demo-lm", "--dtype=f32",
                       "--pooling=last", "--rerank-template=qwen3", f"--port={port}"]
            stack.enter_context(running(command, url, "/health"))
            engines.append(url)
        for command, extra in routers:
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            command = [os.path.join(folder, command[0]), *command[1:], "--worker-urls", *engines,
                       "--host=127.0.0.1", f"--port={port}", "--policy=round_robin",
                       f"--prometheus-port={free_port()}"]
            with running(command, url, "/v1/models"):
                check(url, engines[0], extra)


main()
