"""Records what lm-eval finds when it runs demo-lm by transformers, in f32.

python -m venv v && v/bin/pip install "lm-eval[hf]==0.4.13" torch transformers
v/bin/python make_golden.py ../../demo/demo-lm > golden.json
"""

import json
import os
import sys

folder = os.path.abspath(sys.argv[1])
print_to, sys.stdout = sys.stdout, sys.stderr

import torch
import transformers
from tasks import TASKS, evaluate

torch.set_num_threads(1)
found = evaluate("hf", pretrained=folder, dtype="float32", device="cpu", batch_size=1)
made_with = {"torch": torch.__version__, "transformers": transformers.__version__,
             "lm_eval": __import__("lm_eval").__version__}
# One message on a line.
tasks = [f' "{task}": {{"acc": {found[task]["acc"]}, "acc_norm": {found[task]["acc_norm"]}, "options": [\n  '
         + ",\n  ".join(json.dumps(options) for options in found[task]["options"]) + "]}"
         for task in TASKS]
print_to.write("{\n" + ",\n".join(tasks) + f',\n "made_with": {json.dumps(made_with)}\n}}\n')
