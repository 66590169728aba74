"""Measures transformers. Arguments: the folder of the model, the vocabulary's size.

Prints the seconds of loading; then for each line of JSON on standard input the seconds of that work.
"""

import json
import os
import sys
import time

# What libraries print goes to standard error.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM

STEPS = 16


@torch.inference_mode()
def main():
    folder, vocabulary = sys.argv[1], int(sys.argv[2])
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()
    drawn = torch.Generator().manual_seed(1)

    def ids(rows, count):
        return torch.randint(0, vocabulary, (rows, count), generator=drawn)

    def forward(tokens, past=None, keep=False):
        out = model(
            input_ids=tokens, past_key_values=past, use_cache=keep, logits_to_keep=1
        )
        return out.logits.argmax(-1), out.past_key_values

    def measure(work):
        if "rows" in work:
            # A prompt of all rows at once would take gigabytes for its attention.
            token, past = forward(ids(1, work["context"]), None, True)
            past.batch_repeat_interleave(work["rows"])
            token = token.repeat(work["rows"], 1)
            start = time.perf_counter()
            for _ in range(STEPS):
                token, past = forward(token, past, True)
            return (time.perf_counter() - start) / STEPS
        own = ids(work["count"], work["own"])
        shared = ids(1, work["shared"]) if work["shared"] else None
        start = time.perf_counter()
        if shared is None:
            forward(own)
        else:
            # The shared part once, its keys and values for all.
            _, past = forward(shared, None, True)
            past.batch_repeat_interleave(work["count"])
            forward(own, past, True)
        return time.perf_counter() - start

    print(time.perf_counter() - start, file=answers)
    for line in sys.stdin:
        print(measure(json.loads(line)), file=answers)


if __name__ == "__main__":
    main()
