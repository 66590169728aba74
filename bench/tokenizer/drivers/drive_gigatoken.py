"""gigatoken behind the orders of src/protocol.rs: one JSON object per line, in and out.

Texts are handed over as bytes, which gigatoken takes without a copy. Times are taken in this
process around the calls, so neither starting Python nor the pipe counts.
"""

import gc
import json
import struct
import sys
import time

import gigatoken
import numpy as np

THREADS = int(sys.argv[1])

tokenizer = None
texts = []
ids = np.zeros(0, dtype=np.uint32)


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
        tokenizer = gigatoken.Tokenizer(path)

    cost = measured(work)
    return cost | {"rss_before": before, "rss_after": resident()}


def encode(passes):
    call = tokenizer.backend.encode

    def work():
        for _ in range(passes):
            for text in texts:
                call(text)

    return measured(work)


def batch(passes):
    call, parallel = tokenizer.backend.encode_batch_list, THREADS > 1

    def work():
        for _ in range(passes):
            call(texts, parallel=parallel)

    return measured(work)


def decode(passes):
    call = tokenizer.backend.decode

    def work():
        for _ in range(passes):
            call(ids)

    return measured(work)


def each(passes):
    call, lists = tokenizer.backend.decode, [ids[n : n + 1] for n in range(len(ids))]

    # To a string, as the others' calls: half a character becomes a replacement character.
    def work():
        for _ in range(passes):
            for one in lists:
                str(call(one), "utf-8", "replace")

    return measured(work)


def decoded(how, path):
    if how == "whole":
        text = tokenizer.decode(ids)
    else:
        lines = [tokenizer.decode(ids[n : n + 1]) for n in range(len(ids))]
        text = "\n".join(str(line, "utf-8", "replace") for line in lines).encode()
    with open(path, "wb") as file:
        file.write(text)
    return {"cpu_s": 0.0, "wall_s": 0.0}


def dump(path):
    with open(path, "wb") as file:
        for text in texts:
            found = np.asarray(tokenizer.encode(text), dtype="<u4")
            file.write(struct.pack("<I", len(found)) + found.tobytes())
    return {"cpu_s": 0.0, "wall_s": 0.0}


def obey(order):
    global texts, ids
    op, nothing = order["op"], {"cpu_s": 0.0, "wall_s": 0.0}
    if op == "load":
        return load(order["path"])
    if op == "texts":
        texts = records(order["path"], 1)
        return nothing
    if op == "ids":
        ids = np.frombuffer(records(order["path"], 4)[-1], dtype="<u4")
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
    raise NotImplementedError(f"gigatoken has no {how or op} in Python")


for line in sys.stdin:
    try:
        reply = {"cost": obey(json.loads(line)), "error": None}
    except Exception as error:
        reply = {"cost": None, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), flush=True)
