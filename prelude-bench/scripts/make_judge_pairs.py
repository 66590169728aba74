#!/usr/bin/env python3
"""Write data/judge_pairs.csv: which wrong intent each test message is judged against.

The demo language model's recorded accuracy (training.json, `judge`) is over one right and one
wrong intent for each test message of banking77. The wrong ones were drawn with Python's
generator; this repeats the draw of golden/tools/train_demo.py, so that the accuracy command needs
no Python. Needs data/topics.csv and the test set:

    python3 scripts/make_judge_pairs.py path/to/banking77/test.csv
"""
import csv
import pathlib
import random
import sys

SEED = 20770 + 1
DATA = pathlib.Path(__file__).resolve().parent.parent / "data"


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main():
    topic_of = {row["intent"]: row["topic"] for row in read(DATA / "topics.csv")}
    intents = sorted(topic_of)
    rng = random.Random(SEED)
    with open(DATA / "judge_pairs.csv", "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["row", "wrong_intent"])
        for index, row in enumerate(read(sys.argv[1])):
            right = row["category"]
            others = [x for x in intents if x != right]
            alike = [x for x in others if topic_of[x] == topic_of[right]]
            # The order of the two draws is part of what is repeated.
            pool = alike if rng.random() < 0.5 else others
            out.writerow([index, rng.choice(pool)])


if __name__ == "__main__":
    main()
