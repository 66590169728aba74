"""Runs the harness' two tasks on a model and returns what matters of the result."""

import os

import lm_eval
from lm_eval.tasks import TaskManager

TASKS = ["demo_topics", "demo_intents"]
HERE = os.path.dirname(os.path.abspath(__file__))


def evaluate(model_type, /, **args):
    """Accuracies, and for every message the log-likelihood of each option."""
    # Data files are named relative to the tasks.
    os.chdir(HERE)
    found = lm_eval.simple_evaluate(model=model_type, model_args=args, tasks=TASKS, log_samples=True,
                                    task_manager=TaskManager(include_path=HERE),
                                    bootstrap_iters=0)
    result = {}
    for task in TASKS:
        scores = found["results"][task]
        samples = sorted(found["samples"][task], key=lambda s: s["doc_id"])
        result[task] = {
            "acc": scores["acc,none"],
            "acc_norm": scores["acc_norm,none"],
            "options": [[[float(r[0]), bool(r[1])] for r in s["filtered_resps"]] for s in samples],
        }
    return result
