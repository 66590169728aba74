#!/usr/bin/env python3
"""What Hugging Face transformers says to some prompts, in float32 and in bfloat16.

  parity.py QUESTIONS.json

Writes the safetensors file that QUESTIONS.json names in "out": for each dtype and prompt `p`,
`<dtype>.<p>.logits` (of "labels", after the whole prompt), `.lse`, `.logprobs` and `.ranks` (of
each token but the first), `.last` and `.mean` (hidden states after the final norm, length 1), and
for the first "continued" prompts `.text` and `.leads` (greedy tokens, and the gap between the two
largest logits at each).  TF32 is off.  The last line of its output is what went wrong, if anything.
Written for transformers 4.51 (the first that has Qwen3) and later.
"""
import json
import os
import sys
import time

# Everything is in a folder; where there is no network, asking for more would take minutes.
os.environ["HF_HUB_OFFLINE"] = "1"

try:
    import torch
    import transformers
    from safetensors.torch import save_file
except ImportError as error:
    sys.exit(f"python3 has no {error.name}")

ROWS = 256  # rows of logits over the vocabulary held at once


def unit(v):
    return (v.double() / v.double().norm()).float()


@torch.inference_mode()
def prompt(model, ids, labels, out, name):
    tokens = torch.tensor([ids], device=model.device)
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state[0]
    out[name + "last"] = unit(hidden[-1])
    out[name + "mean"] = unit(hidden.float().mean(0))
    logits = model.lm_head(hidden[-1:]).float()[0]
    out[name + "logits"] = logits[labels]
    out[name + "lse"] = torch.logsumexp(logits, 0).reshape(1)
    logprobs, ranks = [], []
    for start in range(0, len(ids) - 1, ROWS):
        part = model.lm_head(hidden[start : min(start + ROWS, len(ids) - 1)]).float()
        targets = tokens[0, start + 1 : start + 1 + len(part)]
        score = part.gather(1, targets[:, None])
        logprobs.append(score[:, 0] - torch.logsumexp(part, 1))
        ranks.append(1 + (part > score).sum(1))
    if logprobs:
        out[name + "logprobs"] = torch.cat(logprobs)
        out[name + "ranks"] = torch.cat(ranks).to(torch.int32)


@torch.inference_mode()
def text(model, ids, count, out, name):
    tokens = torch.tensor([ids], device=model.device)
    cache, chosen, leads = None, [], []
    for _ in range(count):
        answer = model.model(input_ids=tokens, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        best = model.lm_head(answer.last_hidden_state[0, -1]).float().topk(2)
        chosen.append(int(best.indices[0]))
        leads.append(float(best.values[0] - best.values[1]))
        tokens = best.indices[:1].reshape(1, 1)
    out[name + "text"] = torch.tensor(chosen, dtype=torch.int32)
    out[name + "leads"] = torch.tensor(leads)


def load(folder, dtype, device):
    arguments = {"attn_implementation": "eager", "local_files_only": True}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **arguments)
    except TypeError:
        model = None
    # What is `dtype` now was `torch_dtype` once, and the other name was passed over or refused.
    if model is None or model.dtype != dtype:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype, **arguments)
    if model.dtype != dtype:
        sys.exit(f"transformers {transformers.__version__} loads {model.dtype} and not {dtype}")
    return model.to(device).eval()


def main():
    questions = json.load(open(sys.argv[1], encoding="utf-8"))
    deadline = time.monotonic() + questions["seconds"]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    device = questions["device"]
    if device != "cpu" and not torch.cuda.is_available():
        # Large models on the host would take all the time there is.
        sys.exit(f"torch {torch.__version__} sees no GPU")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {device}", flush=True)
    out = {}
    for dtype in ("float32", "bfloat16"):
        model = load(questions["model"], getattr(torch, dtype), device)
        labels = torch.tensor(questions["labels"], device=device)
        for p, ids in enumerate(questions["prompts"]):
            if time.monotonic() > deadline:
                sys.exit(f"no time left at prompt {p} in {dtype}")
            prompt(model, ids, labels, out, f"{dtype}.{p}.")
            if p < questions["continued"]:
                text(model, ids, questions["tokens"], out, f"{dtype}.{p}.")
        del model
    save_file({k: v.cpu().contiguous() for k, v in out.items()}, questions["out"])
    print("done")


if __name__ == "__main__":
    main()
