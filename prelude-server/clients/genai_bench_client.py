# requires: genai-bench==0.0.5
"""genai-bench: a small load of chat, of embeddings and of reranking, without an error."""

import glob
import json
import os
import subprocess
import tempfile

from support import *

program = os.path.join(os.environ["PRELUDE_CLIENT_BIN"], "genai-bench")
REQUESTS = 8


def bench(task, scenario, more=()):
    with tempfile.TemporaryDirectory() as folder:
        texts = os.path.join(folder, "texts.txt")
        with open(texts, "w") as out:
            out.write("\n".join([CARD, "The rate was wrong.", "I lost my phone."] * 20))
        run = subprocess.run(
            [program, "benchmark", "--api-backend", "vllm", "--api-base", FULL_URL, "--api-key",
             KEY, "--api-model-name", "demo-lm", "--model-tokenizer", MODEL_DIR, "--task", task,
             "--traffic-scenario", scenario, "--max-requests-per-run", str(REQUESTS),
             "--max-time-per-run", "1", "--server-engine", "vLLM", "--server-version", "0",
             "--server-gpu-type", "H100", "--server-gpu-count", "1", "--dataset-path", texts,
             "--experiment-base-dir", folder, "--log-dir", folder, *more],
            capture_output=True, text=True, cwd=folder, stdin=subprocess.DEVNULL)
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
        reports = glob.glob(os.path.join(folder, "**", "*.json"), recursive=True)
        reports = [r for r in reports if "experiment_metadata" not in r]
        equal(len(reports), 1)
        report = json.load(open(reports[0]))["aggregated_metrics"]
    equal((report["num_error_requests"], report["error_rate"]), (0, 0))
    assert report["num_completed_requests"] >= REQUESTS, report
    return report["stats"]


stats = bench("text-to-text", "D(40,6)", ["--num-concurrency", "2"])
close(stats["num_output_tokens"]["mean"], 6.0)
assert 0 < stats["ttft"]["mean"] <= stats["e2e_latency"]["mean"], stats
assert stats["num_input_tokens"]["mean"] > 30, stats
stats = bench("text-to-embeddings", "E(32)", ["--batch-size", "2"])
assert stats["num_input_tokens"]["mean"] > 30, stats
stats = bench("text-to-rerank", "R(24,8)", ["--batch-size", "2"])
assert stats["num_input_tokens"]["mean"] > 30, stats
