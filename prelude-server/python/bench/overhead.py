"""The time of 50 questions about one state, beside the engine's own part of it.

The engine's time is from the first step of a request to its end, as `/metrics` has it. The rest is what
a call costs beyond it: JSON, templates, tokens, threads, Python.
"""

import argparse
import re
import statistics
import time

from prelude_serve import LLM, Noul

QUESTIONS = 50
STATE = "Where is my card? I ordered it two weeks ago, and nobody could tell me when it comes. "


def engine_seconds(llm):
    """Return the engine's time of all requests so far, in seconds, and their number."""
    page = llm.ask("/metrics", method="GET")

    def total(name):
        found = re.findall(rf"^prelude:exec_seconds_{name}{{.*}} (\S+)$", page, re.MULTILINE)
        return sum(map(float, found))

    return total("sum"), total("count")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo-lm")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sentences", type=int, nargs="+", default=[1, 8, 24, 40], help="lengths of states")
    args = parser.parse_args()
    questions = {f"q{i}": Noul(f"Is it true that number {i} was asked for?") for i in range(QUESTIONS)}
    with LLM(args.model) as llm:
        print(f"{llm.name} on the CPU: {QUESTIONS} questions about one state, medians of {args.rounds} calls, ms")
        print(f"{'prompt tokens':>14} {'call':>8} {'engine':>8} {'ratio':>6}   (a state not seen before)")
        for sentences in args.sentences:
            calls, engine, tokens = [], [], 0
            for i in range(args.rounds + 3):
                before, count = engine_seconds(llm)
                began = time.perf_counter()
                found = llm.decide(f"{i}. " + STATE * sentences, questions)
                took = time.perf_counter() - began
                after, counted = engine_seconds(llm)
                assert counted == count + 1, "another request was counted"
                # The first calls warm up caches.
                if i >= 3:
                    calls.append(took)
                    engine.append(after - before)
                    tokens = found.raw["usage"]["input_tokens"]
            ratio = statistics.median(call / own for call, own in zip(calls, engine))
            call, own = (1000 * statistics.median(times) for times in (calls, engine))
            print(f"{tokens:>14} {call:>8.2f} {own:>8.2f} {ratio:>6.2f}")


if __name__ == "__main__":
    main()
