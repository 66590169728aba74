"""The commands `prelude-serve` and `prelude`: the program, which the compiled module holds."""

from __future__ import annotations

import os
import signal
import sys

from ._prelude_serve import run


def main() -> int:
    """Run the program with the arguments of the command line, and return its exit code."""
    # Python's handler would raise KeyboardInterrupt once the server has drained.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The program asks `python3` where NVIDIA's libraries are: this one, also if its environment is not
    # the active one.
    if sys.executable:
        folders = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
        os.environ["PATH"] = os.pathsep.join(folders)
    return run(sys.argv[1:])
