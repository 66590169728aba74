"""Tokenizers in Python against each other: `cargo xtask bench tokenizer --python` runs this.

In each round every engine encodes the same new texts, another one first each time. Values are
medians over rounds of wall time; `x tokenizers` is the median over rounds of the ratio within a round.
"""

import argparse
import importlib.metadata
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import fasttoken

REPOSITORY = Path(__file__).resolve().parents[3]
REFERENCE = "tokenizers: ids"


def engines(path):
    """Return functions that encode one text and a batch, by the name of what a program gets."""
    found = {}

    def add(name, make):
        try:
            found[name] = make()
        except Exception as error:
            print(f"SKIP {name}: {type(error).__name__}: {error}")

    ours = fasttoken.Tokenizer.from_file(path)
    ours.no_truncation()
    ours.no_padding()
    plain = {"add_special_tokens": False}

    def both(tokenizer):
        def one(text):
            encoding = tokenizer.encode(text, **plain)
            return encoding.ids, encoding.offsets

        def batch(texts):
            encodings = tokenizer.encode_batch(texts, **plain)
            ids, _ = zip(*[(encoding.ids, encoding.offsets) for encoding in encodings])
            return list(ids)

        return one, batch

    found["fasttoken: buffers"] = (
        lambda text: ours.encode_ids(text, **plain),
        lambda texts: ours.encode_batch_ids(texts, **plain),
    )
    found["fasttoken: ids"] = (
        lambda text: ours.encode(text, **plain).ids,
        lambda texts: [encoding.ids for encoding in ours.encode_batch(texts, **plain)],
    )
    found["fasttoken: ids, offsets"] = both(ours)

    def reference(batch):
        def make():
            import tokenizers

            theirs = tokenizers.Tokenizer.from_file(str(path))
            theirs.no_truncation()
            theirs.no_padding()
            if batch == "both":
                return both(theirs)
            call = getattr(theirs, batch)
            return (
                (lambda text: theirs.encode(text, **plain).ids) if batch == "encode_batch" else None,
                lambda texts: [encoding.ids for encoding in call(texts, **plain)],
            )

        return make

    add(REFERENCE, reference("encode_batch"))
    add("tokenizers: ids, offsets", reference("both"))
    add("tokenizers: fast, ids", reference("encode_batch_fast"))

    def fast(flat):
        def make():
            import fastokens

            theirs = fastokens.Tokenizer.from_file(str(path))
            if flat:
                return None, theirs.encode_batch_flat
            return (
                lambda text: theirs.encode(text).ids,
                lambda texts: [encoding.ids for encoding in theirs.encode_batch(texts)],
            )

        return make

    add("fastokens: ids", fast(False))
    add("fastokens: buffers", fast(True))

    def giga():
        import gigatoken

        theirs = gigatoken.Tokenizer(str(path)).backend
        return theirs.encode, theirs.encode_batch_list

    add("gigatoken: arrays, lists", giga)

    def tiktoken_():
        import tiktoken

        theirs = tiktoken.Encoding("race", **tiktoken_arguments(path))
        return theirs.encode_ordinary, theirs.encode_ordinary_batch

    add("tiktoken: ids", tiktoken_)
    return found


def tiktoken_arguments(path):
    """Return what tiktoken needs of a byte-level tokenizer.json whose ids are in the order of merges."""
    file = json.loads(Path(path).read_bytes())
    alphabet = {}
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        alphabet[chr(byte if printable else 256 + sum(c > chr(255) for c in alphabet))] = byte
    pretokenizers = file["pre_tokenizer"].get("pretokenizers", [file["pre_tokenizer"]])
    patterns = [p["pattern"]["Regex"] for p in pretokenizers if p["type"] == "Split"]
    if len(patterns) != 1:
        raise ValueError("it takes one split pattern")
    special = {token["content"]: token["id"] for token in file["added_tokens"]}
    ranks = {
        bytes(alphabet[c] for c in token): id
        for token, id in file["model"]["vocab"].items()
        if token not in special
    }
    return {"pat_str": patterns[0], "mergeable_ranks": ranks, "special_tokens": special}


class Texts:
    """New texts of a length, cut from this repository's pages, lines in a random order.

    Lines with added tokens are left out, since not every engine's call recognises them.
    """

    def __init__(self, seed, path):
        added = [token["content"] for token in json.loads(Path(path).read_bytes())["added_tokens"]]
        listed = ["git", "ls-files", "-z", "*.md", "*.rs", "*.py"]
        names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, check=True).stdout
        files = [REPOSITORY / name for name in os.fsdecode(names).split("\0") if name]
        lines = []
        for file in files:
            # Mostly prose, and some code.
            every = 1 if file.suffix == ".md" else 8
            lines += file.read_text(encoding="utf-8").splitlines()[::every]
        lines = [line for line in lines if line.strip() and not any(token in line for token in added)]
        random.Random(seed).shuffle(lines)
        self.text, self.at = "\n".join(lines), 0

    def next(self, length):
        if self.at + length > len(self.text):
            self.at = 0  # again from the beginning, and cut at other places
            self.text = self.text[length // 3 :]
        self.at += length
        return self.text[self.at - length : self.at]


def lists(result):
    """Return the ids of each text, in whatever form an engine gives them."""
    if isinstance(result, tuple):
        ids, offsets = (memoryview(part) for part in result)
        ids = ids if ids.format == "I" else ids.cast("I")
        offsets = offsets if offsets.format == "q" else offsets.cast("q")
        return [ids[a:b].tolist() for a, b in zip(offsets, offsets[1:])]
    return [list(map(int, ids)) for ids in result]


def measure(call, inputs):
    start = time.perf_counter_ns()
    for one in inputs:
        call(one)
    return (time.perf_counter_ns() - start) / len(inputs) / 1e3


def race(name, calls, make, rounds, bytes_of):
    """Measure one workload and print its rows."""
    times = {engine: [] for engine in calls}
    order = list(calls)
    for number in range(rounds + 1):
        inputs = make()
        first = number % len(order)
        for engine in order[first:] + order[:first]:
            times[engine].append(measure(calls[engine], inputs))
    for column in times.values():
        del column[0]  # the first round warms up
    size = statistics.mean(bytes_of(one) for one in make())
    print(f"\n{name}\n{'':28}{'µs':>10}{'MB/s':>8}{'x tokenizers':>14}")
    reference = times.get(REFERENCE)
    for engine, column in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        median = statistics.median(column)
        ratio = "–"
        if reference:
            ratio = f"{statistics.median(r / t for r, t in zip(reference, column)):.1f}"
        print(f"{engine:28}{median:10.2f}{size / median:8.1f}{ratio:>14}")


def default_tokenizer():
    shared = os.environ.get("PRELUDE_SHARED_TOKENIZERS", REPOSITORY / ".." / "shared" / "tokenizers")
    real = Path(shared) / "qwen3" / "tokenizer.json"
    return real if real.exists() else REPOSITORY / "fasttoken" / "tests" / "data" / "tokenizer.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, default=default_tokenizer())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    packages = ("fasttoken", "tokenizers", "fastokens", "gigatoken", "tiktoken")
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    print(f"{', '.join(versions)}; Python {sys.version.split()[0]}; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print(f"vocabulary {options.tokenizer.parent.name}; {options.rounds} rounds; batches on all processors")
    found = engines(options.tokenizer)
    texts = Texts(options.seed, options.tokenizer)
    sample = [texts.next(1024) for _ in range(64)]
    expected = lists(found[REFERENCE][1](sample)) if REFERENCE in found else None
    for engine, (_, batch) in found.items():
        if expected and lists(batch(sample)) != expected:
            print(f"≠ {engine}: other ids than tokenizers")
    utf8 = lambda text: len(text.encode())
    for length, calls in ((100, 400), (1024, 100), (10240, 20)):
        singles = {name: one for name, (one, _) in found.items() if one}
        make = lambda: [texts.next(length) for _ in range(calls)]
        race(f"one call, {length} characters", singles, make, options.rounds, utf8)
    batches = {name: batch for name, (_, batch) in found.items()}
    make = lambda: [[texts.next(1024) for _ in range(64)] for _ in range(3)]
    race("64 texts of 1024 characters", batches, make, options.rounds, lambda b: sum(map(utf8, b)))
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
