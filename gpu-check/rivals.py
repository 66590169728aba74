#!/usr/bin/env python3
"""How fast Hugging Face transformers' continuous batching answers some loads.

  rivals.py QUESTIONS.json

QUESTIONS.json has "model" (a folder), "device" (as torch names it), "seconds" (for all), "out" and
"loads": each a "name", "input" and "output" (tokens), "at_once" (requests at the same time) and
"requests".  Prompts are random ids below "ids".  Writes to "out", for each load that was done, its
name, the seconds of each request and of all, in JSON.  A first round of each load warms up.
The last line of its output is what went wrong, if anything.  Written for transformers 5.17.
"""
import json
import os
import random
import sys
import time

# Everything is in a folder; where there is no network, asking for more would take minutes.
os.environ["HF_HUB_OFFLINE"] = "1"

try:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig
except ImportError as error:
    sys.exit(f"python3 has no {error.name}")
try:
    from transformers import ContinuousBatchingConfig
except ImportError:
    sys.exit(f"transformers {transformers.__version__} has no continuous batching of this form")


def run(manager, prompts, output, at_once, until):
    """Seconds of each request, and of all, with so many at once."""
    waiting, begun, seconds = list(prompts), {}, []
    start = time.perf_counter()
    while waiting or begun:
        while waiting and len(begun) < at_once:
            now = time.perf_counter()
            begun[manager.add_request(input_ids=waiting.pop(), max_new_tokens=output)] = now
        result = manager.get_result(timeout=1)
        # A load that was given up may still have answers.
        if result is not None and result.is_finished() and result.request_id in begun:
            assert result.error is None, result.error
            assert len(result.generated_tokens) == output, len(result.generated_tokens)
            seconds.append(time.perf_counter() - begun.pop(result.request_id))
        elif result is None and not manager.is_running():
            sys.exit("the engine ended")
        if time.time() > until:
            return None
    return seconds, time.perf_counter() - start


def main():
    ask = json.load(open(sys.argv[1]))
    until = time.time() + ask["seconds"]
    model = AutoModelForCausalLM.from_pretrained(
        ask["model"], dtype=torch.bfloat16, attn_implementation="paged|sdpa"
    )
    model = model.to(ask["device"]).eval()
    draw, done = random.Random(1), []
    # No prompt begins as another does, and nothing ends a text early.
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(allow_block_sharing=False)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching, block=True, timeout=5
    ) as manager:
        for load in ask["loads"]:
            found, end = None, min(until, time.time() + ask["seconds"] / 3)
            for count in (min(load["requests"], 4 * load["at_once"]), load["requests"]):
                prompts = [
                    [draw.randrange(ask["ids"]) for _ in range(load["input"])] for _ in range(count)
                ]
                found = run(manager, prompts, load["output"], load["at_once"], end)
                if found is None:
                    break
            if found is None:
                print(f"no time for {load['name']}", flush=True)
                continue
            done.append({"name": load["name"], "seconds": sorted(found[0]), "all": found[1]})
            print(f"{load['name']}: {load['requests'] / found[1]:.1f} req/s", flush=True)
            with open(ask["out"], "w") as file:
                json.dump(done, file)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)


main()
