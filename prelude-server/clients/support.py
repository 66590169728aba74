"""What the client scripts share; the standard library only.

Each script runs an unmodified client against a running server and compares what the client
returns with what the server says when asked plainly. `cargo xtask clients` sets:

PRELUDE_URL        the two demo models as the program carries them, open to everybody
PRELUDE_FULL_URL   `demo-lm` in f32 with embeddings and reranking switched on, behind a key
PRELUDE_KEY        that key
PRELUDE_MODEL_DIR  the folder of `demo-lm`
PRELUDE_PROGRAM    the program, for scripts that start servers of their own
PRELUDE_CLIENT_BIN the folder of the client's programs
PRELUDE_KV_MAPS, PRELUDE_KV_ARRAYS   sockets of KV events of `demo-lm` on the full server and on the
                   first one, and with _REPLAY behind them those that replay
"""

import contextlib
import json
import math
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

URL = os.environ["PRELUDE_URL"]
FULL_URL = os.environ["PRELUDE_FULL_URL"]
KEY = os.environ["PRELUDE_KEY"]
MODEL_DIR = os.environ["PRELUDE_MODEL_DIR"]

CARD = "Where is my card? I ordered it two weeks ago."
TOPIC = [{"role": "user", "content": "Where is my card?\nWhich topic?"}]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}

QUERY = "Where is my card?"
DOCUMENTS = ["The card is sent by post.", "Rates change daily.", "Top up by bank transfer."]


def post(path, body, url=None):
    """Asks the server without any client; on the full server unless `url` is given."""
    request = urllib.request.Request(
        (url or FULL_URL) + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def close(found, expected, tolerance=1e-6):
    """Fails unless two numbers, or two lists of them, are equal within `tolerance`."""
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), (found, expected)
        for a, b in zip(found, expected):
            close(a, b, tolerance)
        return
    assert math.isfinite(found) and abs(found - expected) <= tolerance, (found, expected)


def equal(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


def raises(kind, call):
    """Runs `call`, which must fail with `kind`, and returns the error."""
    try:
        found = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} expected, got {found!r}")


def ranking():
    """The expected order of DOCUMENTS and the scores, asked plainly."""
    body = {"query": QUERY, "documents": DOCUMENTS}
    results = post("/v1/rerank", body)["results"]
    return [(r["index"], r["relevance_score"]) for r in results]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def running(command, url, path):
    """Runs a program until the block ends, which begins when `path` answers."""
    # Variables of clients are no settings of the server, which refuses them.
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PRELUDE_")}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=variables)
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    with urllib.request.urlopen(url + path, timeout=5):
                        break
                except (urllib.error.URLError, ConnectionError, TimeoutError):
                    if process.poll() is not None or time.monotonic() > deadline:
                        log.seek(0)
                        raise AssertionError(f"{command[0]}: {log.read()[-2000:].decode()}")
                    time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
