"""`python -m prelude_serve` is the command `prelude-serve`."""

import sys

from ._program import main

sys.exit(main())
