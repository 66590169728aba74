"""The notebook runs from its first cell to its last."""

import contextlib
import io
import json
import unittest

import common

NOTEBOOK = common.REPOSITORY / "prelude-server" / "python" / "examples" / "decisions.ipynb"


def has_runner():
    try:
        import ipykernel  # noqa: F401
        import nbclient  # noqa: F401
    except ImportError:
        common.skip("the notebook in Jupyter's runner: nbclient or ipykernel is not installed; its cells are run plainly")
        return False
    return True


@unittest.skipUnless(common.has_numpy(), "needs numpy")
class Notebook(unittest.TestCase):
    def check(self, printed):
        # The notebook prints these; it would be of no use if it printed something else.
        for part in ("card_arrival", "is a card missing", "(6, 6)"):
            self.assertIn(part, printed)

    def test_cells_run_plainly(self):
        notebook = json.loads(NOTEBOOK.read_text())
        self.assertEqual(notebook["nbformat"], 4)
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        self.assertGreater(len(cells), 5)
        namespace, out = {}, io.StringIO()
        with contextlib.redirect_stdout(out):
            for number, cell in enumerate(cells):
                exec(compile(cell, f"{NOTEBOOK.name}, cell {number}", "exec"), namespace)
        self.check(out.getvalue())

    @unittest.skipUnless(has_runner(), "needs nbclient and ipykernel")
    def test_jupyter_runs_it(self):
        import nbclient
        import nbformat

        notebook = nbformat.read(NOTEBOOK, as_version=4)
        nbformat.validate(notebook)
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        self.assertFalse([output for output in outputs if output.output_type == "error"])
        self.check("".join(output.get("text", "") for output in outputs))


if __name__ == "__main__":
    unittest.main()
