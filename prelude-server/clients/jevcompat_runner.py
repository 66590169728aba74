# requires: jevcompat==0.1.1
"""The public conformance runner for System One servers: every MUST and every SHOULD."""

import os
import subprocess

from support import *

program = os.path.join(os.environ["PRELUDE_CLIENT_BIN"], "jevcompat")
run = subprocess.run([program, "test", FULL_URL, "--key", KEY], capture_output=True, text=True)
print(run.stdout)
equal(run.returncode, 0)
