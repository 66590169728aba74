# requires: schemathesis==4.32.5
"""A schema fuzzer over `/openapi.json`: requests that fit the document and requests that do not.

No request may yield a 5xx, every status, media type, header and body must be described, a method
or key that is missing must be refused. Not asked is that everything which fits the document is
accepted: that two fields exclude each other, or that a text is too long, no schema can say.
"""

import os
import subprocess
import tempfile

from support import *

program = os.path.join(os.environ["PRELUDE_CLIENT_BIN"], "schemathesis")
checks = ["not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_headers_conformance", "response_schema_conformance", "unsupported_method",
          "ignored_auth"]
# The events of the status never end, and steps are seldom: the first event is enough.
folder = tempfile.TemporaryDirectory()
config = os.path.join(folder.name, "schemathesis.toml")
with open(config, "w", encoding="utf-8") as file:
    file.write("""[[operations]]
include-path = "/v1/status/events"
max-stream-events = 1
""")
run = subprocess.run(
    [program, "--config-file", config, "run", FULL_URL + "/openapi.json", "--header", f"Authorization: Bearer {KEY}",
     "--checks", ",".join(checks), "--max-examples", os.environ.get("PRELUDE_FUZZ_EXAMPLES", "25"),
     "--seed", "1", "--no-color", "--phases", "coverage,fuzzing", "--generation-database", "none",
     "--request-timeout", "30"],
    capture_output=True, text=True, cwd=os.environ.get("TMPDIR", "/tmp"))
print(run.stdout[-4000:], run.stderr[-1000:])
equal(run.returncode, 0)
