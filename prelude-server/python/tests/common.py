"""Models and servers that the tests share."""

import functools
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from prelude_serve import LLM

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = Path(sys.executable).parent / "prelude"

# The models of the tests: the options of `LLM`, and the same as flags of `prelude serve`.
MODELS = {
    "lm": (("demo-lm",), {}, []),
    "classifier": (("demo-classifier",), {}, []),
    "embedder": (("demo-lm",), {"pooling": "last"}, ["--pooling", "last"]),
    "reranker": (("demo-lm",), {"kind": "reranker"}, ["--kind", "reranker"]),
}

MESSAGES = [
    "Where is my card? I ordered it two weeks ago.",
    "The exchange rate of my last payment was wrong!",
    "My top-up is still pending.",
    "How do I close my account?",
    "Can I get a second card for my daughter?",
    "The machine swallowed my card.",
    " ",
    "Größe, 日本語 and 👍🏽",
]


@functools.lru_cache(maxsize=None)
def model(name):
    """Return a model, which is loaded once."""
    (path,), options, _ = MODELS[name]
    return LLM(path, progress=False, **options)


class Server:
    """The program `prelude` of the same wheel, with one of the models."""

    def __init__(self, name, *more):
        (path,), _, flags = MODELS[name]
        command = [PROGRAM, "serve", path, "--port", "0", *flags, *more]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        seen = ""
        for line in self.process.stderr:
            seen += line
            found = re.search(r"ready.*(http://[\d.:]+)|(http://[\d.:]+).*ready", line)
            if found:
                self.address = found.group(1) or found.group(2)
                # The pipe stays open and is read by nobody: there are fewer requests than it holds lines.
                return
        raise AssertionError(f"the server ended before it was ready:\n{seen}")

    def ask(self, path, body=None):
        """Return the status and the body of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def skip(what):
    """Say aloud what is not tested."""
    print(f"SKIP {what}", file=sys.stderr)


def has_numpy():
    try:
        import numpy  # noqa: F401
    except ImportError:
        skip("arrays: numpy is not installed")
        return False
    return True


def run_python(script, **variables):
    """Run a script in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", script],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
