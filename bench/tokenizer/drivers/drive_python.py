"""An engine of Python behind the orders of src/protocol.rs: one JSON object per line, in and out.

The first argument names the engine, the second the number of threads. Times are taken in this
process around the calls, so neither starting Python nor the pipe counts.
"""

import base64
import gc
import importlib
import json
import struct
import sys
import time
from array import array


class Gigatoken:
    """gigatoken. Texts are handed over as bytes, which it takes without a copy."""

    def __init__(self, path):
        module = importlib.import_module("gigatoken")
        self.tokenizer = module.Tokenizer(path)
        backend = self.tokenizer.backend
        self.encode, self.decode = backend.encode, backend.decode
        self.batch = lambda texts: backend.encode_batch_list(texts, parallel=THREADS > 1)

    def text(self, data):
        return data

    def ids(self, data):
        numpy = importlib.import_module("numpy")
        return numpy.frombuffer(data, dtype="<u4")


class SentencePiece:
    """The library sentencepiece, with a .model file."""

    def __init__(self, path):
        module = importlib.import_module("sentencepiece")
        processor = module.SentencePieceProcessor(model_file=path)
        self.encode, self.decode = processor.encode_as_ids, processor.decode_ids
        self.batch = lambda texts: processor.encode(texts, num_threads=THREADS)

    def text(self, data):
        return str(data, "utf-8")

    def ids(self, data):
        return list(struct.unpack(f"<{len(data) // 4}I", data))


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


def records(path, width):
    with open(path, "rb") as file:
        data = file.read()
    at, found = 0, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        found.append(data[at : at + count * width])
        at += count * width
    return found


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


def encode(passes):
    call = tokenizer.encode

    def work():
        for _ in range(passes):
            for text in texts:
                call(text)

    return measured(work)


def batch(passes):
    call = tokenizer.batch

    def work():
        for _ in range(passes):
            call(texts)

    return measured(work)


def decode(passes):
    call = tokenizer.decode

    def work():
        for _ in range(passes):
            call(ids)

    return measured(work)


def each(passes):
    call, lists = tokenizer.decode, [ids[n : n + 1] for n in range(len(ids))]

    def work():
        for _ in range(passes):
            for one in lists:
                as_bytes(call(one))

    return measured(work)


def as_bytes(text):
    """Decoded text as UTF-8; half a character becomes a replacement character."""
    text = text if isinstance(text, str) else str(text, "utf-8", "replace")
    return text.encode()


def decoded(how, path):
    if how == "whole":
        text = as_bytes(tokenizer.decode(ids))
    else:
        lines = [as_bytes(tokenizer.decode(ids[n : n + 1])) for n in range(len(ids))]
        text = b"\n".join(lines)
    with open(path, "wb") as file:
        file.write(text)
    return {"cpu_s": 0.0, "wall_s": 0.0}


def dump(path):
    with open(path, "wb") as file:
        for text in texts:
            found = array("I", map(int, tokenizer.encode(text)))
            file.write(struct.pack("<I", len(found)) + found.tobytes())
    return {"cpu_s": 0.0, "wall_s": 0.0}


def obey(order):
    global texts, ids
    op, nothing = order["op"], {"cpu_s": 0.0, "wall_s": 0.0}
    if op == "load":
        return load(order["path"])
    if op == "texts":
        texts = [tokenizer.text(text) for text in records(order["path"], 1)]
        return nothing
    if op == "ids":
        ids = tokenizer.ids(records(order["path"], 4)[-1])
        return nothing
    if op == "encode":
        return encode(order["passes"])
    if op == "batch":
        return batch(order["passes"])
    how = order.get("how")
    if op == "decode" and how == "whole":
        return decode(order["passes"])
    if op == "decode" and how == "each":
        return each(order["passes"])
    if op == "decoded" and how != "stream":
        return decoded(how, order["path"])
    if op == "dump":
        return dump(order["path"])
    raise NotImplementedError(f"{ENGINE} has no {how or op} in Python")


for line in sys.stdin:
    try:
        reply = {"cost": obey(json.loads(line)), "error": None}
    except Exception as error:
        reply = {"cost": None, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), flush=True)
