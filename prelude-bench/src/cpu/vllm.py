"""Measures vLLM in process. Arguments: the folder of the model, the vocabulary's size.

Prints the seconds of loading; then for each line of JSON on standard input the seconds of that work.
"""

import json
import os
import random
import sys
import time

# What libraries print goes to standard error.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "4"
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

STEPS = 16
ROWS = 4
LONGEST = 4096


def main():
    from vllm import LLM, SamplingParams

    folder, vocabulary = sys.argv[1], int(sys.argv[2])
    drawn = random.Random(1)
    start = time.perf_counter()
    # Compiled, as it is by default, with room for all prompts in one step.
    engine = LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=LONGEST,
        max_num_seqs=16,
        max_num_batched_tokens=LONGEST,
        enable_prefix_caching=True,
    )

    def ids(count):
        return [drawn.randrange(vocabulary) for _ in range(count)]

    def seconds(prompts, tokens):
        params = SamplingParams(
            max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
        start = time.perf_counter()
        engine.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    generations = [ids(LONGEST) for _ in range(ROWS)]

    def measure(work):
        if "rows" in work:
            # The steps after the first token, by the difference of two runs, both of which find the
            # prompts in the prefix cache.
            prompts = [row[: work["context"]] for row in generations[: work["rows"]]]
            seconds(prompts, 1)
            first = seconds(prompts, 1)
            return (seconds(prompts, 1 + STEPS) - first) / STEPS
        shared = ids(work["shared"])
        return seconds([shared + ids(work["own"]) for _ in range(work["count"])], 1)

    print(time.perf_counter() - start, file=answers)
    for line in sys.stdin:
        print(measure(json.loads(line)), file=answers)


if __name__ == "__main__":
    main()
