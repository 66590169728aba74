"""An engine of Python behind the orders of src/protocol.rs: one JSON object per line, in and out.

The first argument names the engine, the second the number of threads. Times are taken in this
process around the calls, so neither starting Python nor the pipe counts.
"""

import base64
import gc
import importlib
import json
import sys
import time


class Gigatoken:
    """gigatoken. Texts are handed over as bytes, which it takes without a copy."""

    def __init__(self, path):
        module = importlib.import_module("gigatoken")
        self.tokenizer = module.Tokenizer(path)
        backend = self.tokenizer.backend
        self.encode, self.decode = backend.encode, backend.decode
        self.batch = lambda texts: backend.encode_batch_list(texts, parallel=THREADS > 1)

    def text(self, text):
        return text.encode()

    def ids(self, ids):
        return importlib.import_module("numpy").array(ids, dtype="uint32")


class SentencePiece:
    """The library sentencepiece, with a .model file."""

    def __init__(self, path):
        module = importlib.import_module("sentencepiece")
        processor = module.SentencePieceProcessor(model_file=path)
        self.encode, self.decode = processor.encode_as_ids, processor.decode_ids
        self.batch = lambda texts: processor.encode(texts, num_threads=THREADS)

    def text(self, text):
        return text

    def ids(self, ids):
        return ids


class Tiktoken(SentencePiece):
    """tiktoken, with a file of ranks or a tekken.json, which mistral-common gives to it too."""

    def __init__(self, path):
        tiktoken = importlib.import_module("tiktoken")
        special = {}
        if path.endswith(".json"):
            with open(path, encoding="utf-8") as file:
                tekken = json.load(file)
            config = tekken["config"]
            pattern, first = config["pattern"], config["default_num_special_tokens"]
            vocab = tekken["vocab"][: config["default_vocab_size"] - first]
            ranks = {base64.b64decode(token["token_bytes"]): first + token["rank"] for token in vocab}
            special = {name: id for id, name in enumerate(TEKKEN_SPECIAL)}
        else:
            with open(path, "rb") as file:
                pairs = [line.split() for line in file if line.strip()]
            ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
            pattern = CL100K
        encoding = tiktoken.Encoding(
            "race", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
        )
        if special:
            # Text with a special token's name stands for that token, as for the other engines.
            self.encode = lambda text: encoding.encode(text, allowed_special="all")
            self.batch = lambda texts: encoding.encode_batch(
                texts, num_threads=THREADS, allowed_special="all"
            )
        else:
            self.encode = encoding.encode_ordinary
            self.batch = lambda texts: encoding.encode_ordinary_batch(texts, num_threads=THREADS)
        self.decode = encoding.decode


# The pattern of cl100k, as tiktoken has it: the race loads files of ranks with it.
CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"""
    r"""| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)

# The special tokens of a tekken.json that names none, by their ids.
TEKKEN_SPECIAL = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
    "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()

ENGINES = {"gigatoken": Gigatoken, "sentencepiece": SentencePiece, "tiktoken": Tiktoken}
ENGINE, THREADS = sys.argv[1], int(sys.argv[2])
importlib.import_module(ENGINE)

tokenizer = None
texts = []
ids = None


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def resident():
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def measured(work):
    gc.disable()
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    work()
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    gc.enable()
    return {"cpu_s": cpu / 1e9, "wall_s": wall / 1e9}


def load(path):
    global tokenizer
    before = resident()

    def work():
        global tokenizer
        tokenizer = ENGINES[ENGINE](path)

    cost = measured(work)
    return cost | {"rss_before": before, "rss_after": resident()}


def repeat(work, passes):
    call = {"encode": tokenizer.encode, "batch": tokenizer.batch}.get(work, tokenizer.decode)
    each = [ids[n : n + 1] for n in range(len(ids))] if work == "each" else []
    given = {"encode": texts, "batch": [texts], "decode": [ids], "each": each}[work]

    def calls():
        for _ in range(passes):
            for one in given:
                call(one)

    def decoding_each():
        for _ in range(passes):
            for one in given:
                as_text(call(one)).encode()

    return measured(decoding_each if work == "each" else calls)


def as_text(text):
    """Decoded text; half a character becomes a replacement character."""
    return text if isinstance(text, str) else str(text, "utf-8", "replace")


def answer(work):
    if work == "decode":
        return [as_text(tokenizer.decode(ids))]
    if work == "each":
        return [as_text(tokenizer.decode(ids[n : n + 1])) for n in range(len(ids))]
    return [list(map(int, tokenizer.encode(text))) for text in texts]


def obey(order):
    global texts, ids
    op, work = order["op"], order.get("work")
    if op in ("share", "crowd") or work == "stream":
        raise NotImplementedError(f"{ENGINE} has no {work or op} in Python")
    if op == "load":
        return load(order["path"])
    if op == "repeat":
        return repeat(work, order["passes"])
    if op == "texts":
        texts = [tokenizer.text(text) for text in read(order["path"])]
    if op == "ids":
        ids = tokenizer.ids(read(order["path"]))
    if op == "answer":
        with open(order["path"], "w", encoding="utf-8") as file:
            json.dump(answer(work), file)
    return {"cpu_s": 0.0, "wall_s": 0.0}


for line in sys.stdin:
    try:
        reply = {"Ok": obey(json.loads(line))}
    except Exception as error:
        reply = {"Err": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), flush=True)
