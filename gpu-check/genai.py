#!/usr/bin/env python3
"""Runs genai-bench until its figures are written: no plots and no sheet behind them.

  genai.py benchmark OPTIONS...

OPTIONS are genai-bench's own, and so are requests and their times.  The time per token differs:
genai-bench 0.0.5 drops all it measured of an answer that has none, such as one of a single token.
It is 0 here, as genai-bench notes it for answers that are not text; nothing reads it.
The last line of the output is what went wrong, if anything.
"""
import os
import sys

# Everything is in a folder; where there is no network, asking for more would take minutes.
os.environ["HF_HUB_OFFLINE"] = "1"

try:
    from genai_bench.cli.cli import cli
    from genai_bench.metrics.aggregated_metrics_collector import AggregatedMetricsCollector
    from genai_bench.metrics.request_metrics_collector import RequestMetricsCollector
except ImportError as error:
    sys.exit(f"genai-bench cannot be imported by {sys.executable}: {error}")

calculate = RequestMetricsCollector._calculate_output_metrics
save = AggregatedMetricsCollector.save


def calculate_all(self, response):
    calculate(self, response)
    for name in ("tpot", "output_inference_speed", "output_throughput"):
        if getattr(self.metrics, name) is None:
            setattr(self.metrics, name, 0)


def save_and_end(self, *more):
    save(self, *more)
    if not self.all_request_metrics:
        print("no request was answered")
    sys.stdout.flush()
    # Not by an exception: genai-bench would go on to its plots.
    os._exit(0 if self.all_request_metrics else 1)


RequestMetricsCollector._calculate_output_metrics = calculate_all
# It would take the time per token from an answer whose tokens came within 1 ms.
AggregatedMetricsCollector.filter_metrics = staticmethod(lambda metrics: False)
AggregatedMetricsCollector.save = save_and_end
cli()
