# requires: lm-eval[api]==0.4.13 transformers==5.23.0
"""lm-eval's multiple choice over HTTP against the same tasks run by transformers.

harness/golden.json was made by harness/make_golden.py.
"""

import json
import os
import sys

# lm-eval reads the key from here.
os.environ["OPENAI_API_KEY"] = os.environ["PRELUDE_KEY"]

from support import *

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "harness"))
from tasks import HERE, TASKS, evaluate

golden = json.load(open(os.path.join(HERE, "golden.json")))
for tokenized in [True, False]:
    found = evaluate("local-completions", model="demo-lm", tokenizer=MODEL_DIR,
                     base_url=FULL_URL + "/v1/completions", num_concurrent=4, batch_size=3,
                     max_length=4096, tokenizer_backend="huggingface",
                     tokenized_requests=tokenized)
    largest = 0.0
    for task in TASKS:
        ours, theirs = found[task], golden[task]
        equal((ours["acc"], ours["acc_norm"]), (theirs["acc"], theirs["acc_norm"]))
        for a, b in zip(ours["options"], theirs["options"], strict=True):
            close([x for x, _ in a], [x for x, _ in b], 2e-4)
            equal([g for _, g in a], [g for _, g in b])
            largest = max([largest] + [abs(x - y) for (x, _), (y, _) in zip(a, b)])
        print(f"{task}: acc {ours['acc']:.4f}, largest difference {largest:.1e}")
