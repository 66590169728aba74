"""The page about Python, and the README: every block runs and prints what is shown behind it."""

import contextlib
import io
import re
import unittest

import common

PAGES = ["docs/python.md", "prelude-server/python/README.md"]
# Numbers are shown as f32 computes them: bfloat16 is rounded differently by different processors.
SHOWN = 5e-3


def blocks(page):
    """Return (language, text, line) of each fenced block."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [(m.group(1), m.group(2), page.count("\n", 0, m.start()) + 1) for m in found]


@unittest.skipUnless(common.has_numpy(), "needs numpy")
class Guide(unittest.TestCase):
    def test_blocks_run_and_print_what_is_shown(self):
        for name in PAGES:
            namespace, printed, ran, compared = {}, None, 0, 0
            for language, text, line in blocks((common.REPOSITORY / name).read_text()):
                at = f"{name}:{line}"
                if language == "python":
                    out = io.StringIO()
                    with contextlib.redirect_stdout(out):
                        exec(compile(text, at, "exec"), namespace)
                    printed, ran = out.getvalue(), ran + 1
                elif language == "text":
                    self.compare(text, printed, at)
                    compared += 1
                else:
                    self.assertEqual(language, "sh", at)
            self.assertGreater(min(ran, compared), 0, name)

    def compare(self, shown, found, at):
        # Numbers apart from the rest: brackets and commas may touch them.
        number = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
        self.assertEqual(number.sub("0", shown).split(), number.sub("0", found).split(), f"{at}: printed\n{found}")
        for left, right in zip(number.findall(shown), number.findall(found)):
            digits = len(left.split(".")[1].split("e")[0])
            self.assertAlmostEqual(float(left), float(right), delta=SHOWN + 0.5 * 10**-digits, msg=f"{at}: {found}")


if __name__ == "__main__":
    unittest.main()
