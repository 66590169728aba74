"""Type checkers accept the package, and a program that uses it as described."""

import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import common
import prelude_serve

PROGRAM = """
import numpy as np
from numpy.typing import NDArray
from prelude_serve import LLM, Answer, Choice, Noul, Ranking, Score

with LLM("demo-lm", pooling="last", settings={"kv": {"num_blocks": 64}}) as llm:
    vectors: NDArray[np.float32] = llm.embed(["a", "b"])
    more: NDArray[np.float32] = llm.embed(np.array(["a"]))
    labels: list[str | None] = llm.classify("a", ["b", "c"]).labels
    answer: Answer = llm.decide("a", {"q": Noul("b"), "c": Choice("d", {"e": None}), "s": "f"})["q"]
    ranking: Ranking = llm.rerank("a", ["b"], top_n=1)
    text: str = llm.generate([{"role": "user", "content": "a"}], max_tokens=3, top_p=0.5)[0].text
"""
WRONG = """
from prelude_serve import LLM

LLM("demo-lm", kind="judge")
"""


@unittest.skipUnless(common.has_numpy(), "needs numpy")
class Types(unittest.TestCase):
    def setUp(self):
        if importlib.util.find_spec("mypy") is None:
            common.skip("the check of types: mypy is not installed")
            self.skipTest("needs mypy")

    def check(self, *what):
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, *what]
            done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_the_package_is_typed(self):
        status, said = self.check("-p", "prelude_serve")
        self.assertEqual(status, 0, said)
        self.assertTrue((Path(prelude_serve.__file__).parent / "py.typed").is_file())

    def test_programs_are_checked(self):
        with tempfile.TemporaryDirectory() as folder:
            for text, expected in ((PROGRAM, 0), (WRONG, 1)):
                file = Path(folder) / "program.py"
                file.write_text(text)
                status, said = self.check(str(file))
                self.assertEqual(status, expected, said)


if __name__ == "__main__":
    unittest.main()
