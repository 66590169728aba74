"""Measures llama.cpp in process. Arguments: the model as a GGUF file, the vocabulary's size.

Prints the seconds of loading; then for each line of JSON on standard input the seconds of that work.
"""

import ctypes
import json
import os
import random
import sys
import time

# What libraries print goes to standard error.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import llama_cpp as api
import numpy as np

STEPS = 16
SEQUENCES = 16
# The tokens of a call, and those that a prompt has room for.
TOKENS = 4096
LONGEST = 512
# Generations, and the tokens that one has room for.
ROWS = 4
CONTEXT = 4096


class Engine:
    """A context of the model, with one batch that is filled again for each call."""

    def __init__(self, model, vocabulary, sequences, cells, unified=False):
        params = api.llama_context_default_params()
        threads = len(os.sched_getaffinity(0))
        params.n_threads = params.n_threads_batch = threads
        params.n_batch = TOKENS
        # Sequences that do not share cells have equal parts of them.
        params.n_ctx = cells
        # Of 256, 512, 1,024 and 2,048 tokens in a pass, this is the fastest here.
        params.n_ubatch = 512
        params.n_seq_max = sequences
        # Sequences share the cells of a prefix in a unified cache alone.
        params.kv_unified = unified
        params.no_perf = True
        self.context = api.llama_init_from_model(model, params)
        assert self.context, "llama_init_from_model failed"
        self.memory = api.llama_get_memory(self.context)
        self.batch = api.llama_batch_init(TOKENS, 0, 1)
        self.vocabulary = vocabulary

    def clear(self):
        api.llama_memory_clear(self.memory, False)

    def share(self, count):
        """Lets sequences 1 to count - 1 begin with what sequence 0 has."""
        for sequence in range(1, count):
            api.llama_memory_seq_cp(self.memory, 0, sequence, -1, -1)

    def forward(self, rows, position, first=0):
        """Appends a row of ids to each sequence from `first` on and returns the likeliest next id of each."""
        batch, at, last = self.batch, 0, []
        for sequence, row in enumerate(rows, first):
            for offset, token in enumerate(row):
                batch.token[at] = token
                batch.pos[at] = position + offset
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = sequence
                batch.logits[at] = offset + 1 == len(row)
                at += 1
            last.append(at - 1)
        batch.n_tokens = at
        assert api.llama_decode(self.context, batch) == 0, "llama_decode failed"

        def likeliest(index):
            logits = api.llama_get_logits_ith(self.context, index)
            return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

        return [likeliest(index) for index in last]


def main():
    path, vocabulary = sys.argv[1], int(sys.argv[2])
    quiet = api.llama_log_callback(lambda level, text, user: None)
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    api.llama_backend_init()
    start = time.perf_counter()
    model = api.llama_model_load_from_file(
        path.encode(), api.llama_model_default_params()
    )
    assert model, f"{path} cannot be loaded"
    apart = Engine(model, vocabulary, SEQUENCES, SEQUENCES * LONGEST)
    loaded = time.perf_counter() - start
    together = Engine(model, vocabulary, SEQUENCES, TOKENS, unified=True)
    long = Engine(model, vocabulary, ROWS, ROWS * CONTEXT)
    drawn = random.Random(1)

    def ids(count):
        return [drawn.randrange(vocabulary) for _ in range(count)]

    def measure(work):
        if "rows" in work:
            long.clear()
            context, tokens = work["context"], []
            for row in range(work["rows"]):
                tokens += long.forward([ids(context)], 0, row)
            start = time.perf_counter()
            for step in range(STEPS):
                tokens = long.forward([[token] for token in tokens], context + step)
            return (time.perf_counter() - start) / STEPS
        shared = ids(work["shared"])
        own = [ids(work["own"]) for _ in range(work["count"])]
        engine = together if shared else apart
        engine.clear()
        start = time.perf_counter()
        if shared:
            engine.forward([shared], 0)
            engine.share(work["count"])
        engine.forward(own, len(shared))
        return time.perf_counter() - start

    print(loaded, file=answers)
    for line in sys.stdin:
        print(measure(json.loads(line)), file=answers)


if __name__ == "__main__":
    main()
