"""Measures encoders in process. Arguments: the model's folder, embed or rank, torch, onnx or openvino, a
dtype or, of openvino, what it is to be compiled for.

Prints `ready`; then for each line of JSON on standard input the median of milliseconds for a text
alone, or the texts per second of several at once.
"""

import json
import os
import statistics
import sys
import time

# What libraries print goes to standard error.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

folder, task, backend, dtype = sys.argv[1:5]


def by_torch():
    """The calls that users of the library make."""
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer

    torch.set_grad_enabled(False)
    how = {"device": "cpu", "model_kwargs": {"dtype": getattr(torch, dtype)}}
    if task == "rank":
        model = CrossEncoder(folder, **how)
        return lambda pairs: model.predict(pairs, batch_size=64, show_progress_bar=False)
    model = SentenceTransformer(folder, **how)
    return lambda pairs: model.encode(
        [text for _, text in pairs], batch_size=64, show_progress_bar=False
    )


def traceable(attention):
    """The model's first output as a module, its configuration, and the names of its inputs."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(folder)
    kind = AutoModelForSequenceClassification if task == "rank" else AutoModel
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
    names = ["input_ids", "attention_mask"]
    if config.model_type == "bert":
        names.append("token_type_ids")

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *tensors):
            return self.model(**dict(zip(names, tensors)))[0]

    return First(), config, names


def exported():
    """The model as a file of ONNX, with fused operators where the optimizer knows the family."""
    path = os.path.join(folder, "model.onnx")
    if os.path.exists(path):
        return path
    import torch
    from onnxruntime.transformers import optimizer

    first, config, names = traceable("eager")
    example = torch.ones(2, 8, dtype=torch.int64)
    raw = path + ".raw"
    axes = {name: {0: "batch", 1: "tokens"} for name in names}
    torch.onnx.export(
        first, (example,) * len(names), raw, input_names=names, output_names=["out"],
        dynamic_axes=axes, opset_version=17, dynamo=False,
    )
    if config.model_type in ("bert", "xlm-roberta"):
        fused = optimizer.optimize_model(
            raw, model_type="bert", num_heads=config.num_attention_heads,
            hidden_size=config.hidden_size, opt_level=1,
        )
        fused.save_model_to_file(path)
    else:
        os.rename(raw, path)
    return path


def by_onnx():
    """The runtime alone."""
    path = exported()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = {given.name for given in session.get_inputs()}

    def infer(given):
        return session.run(None, {k: v for k, v in given.items() if k in wanted})[0]

    return behind_tokenizer(infer)


def by_openvino():
    """The runtime alone, in bfloat16, with its own conversion of the model, tokenized and pooled as above."""
    import openvino
    import torch

    path = os.path.join(folder, "openvino.xml")
    if not os.path.exists(path):
        first, _, names = traceable("sdpa")
        example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names)
        with torch.no_grad():
            model = openvino.convert_model(first, example_input=example)
        for given, name in zip(model.inputs, names):
            given.get_tensor().set_names({name})
        openvino.save_model(model, path)
    cores = len(os.sched_getaffinity(0))
    settings = {
        "PERFORMANCE_HINT": dtype.upper(),
        "INFERENCE_PRECISION_HINT": "bf16",
        "INFERENCE_NUM_THREADS": cores,
    }
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    wanted = {name for given in compiled.inputs for name in given.get_names()}
    requests = [compiled.create_infer_request() for _ in range(cores)]

    def infer(given):
        import numpy

        count = len(given["input_ids"])
        parts = 1 if dtype == "latency" else min(cores, count)
        cuts = [count * part // parts for part in range(parts + 1)]
        for request, start, end in zip(requests, cuts, cuts[1:]):
            request.start_async({k: v[start:end] for k, v in given.items() if k in wanted})
        outs = []
        for request in requests[:parts]:
            request.wait()
            outs.append(request.get_output_tensor(0).data)
        return numpy.concatenate(outs)

    return behind_tokenizer(infer)


def behind_tokenizer(infer):
    """The calls of a runtime with the tokenizer's library and pooling by numpy, as fastembed does it."""
    import numpy
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.enable_padding()
    cls = False
    if task == "embed":
        with open(os.path.join(folder, "1_Pooling", "config.json")) as file:
            cls = json.load(file)["pooling_mode_cls_token"]

    def run(pairs):
        inputs = pairs if task == "rank" else [text for _, text in pairs]
        encoded = tokenizer.encode_batch(inputs)
        mask = numpy.array([e.attention_mask for e in encoded], dtype=numpy.int64)
        out = infer({
            "input_ids": numpy.array([e.ids for e in encoded], dtype=numpy.int64),
            "attention_mask": mask,
            "token_type_ids": numpy.array([e.type_ids for e in encoded], dtype=numpy.int64),
        })
        if task == "rank":
            return 1 / (1 + numpy.exp(-out))
        mask = mask[..., None]
        pooled = out[:, 0] if cls else (out * mask).sum(1) / mask.sum(1)
        return pooled / numpy.linalg.norm(pooled, axis=1, keepdims=True)

    return run


def main():
    run = {"torch": by_torch, "onnx": by_onnx, "openvino": by_openvino}[backend]()
    lists, places = {}, {}

    def take(path, count):
        """The next pairs of a file, from its beginning again where it ends."""
        if path not in lists:
            with open(path) as file:
                lists[path] = [tuple(pair) for pair in json.load(file)]
        pairs, at = lists[path], places.get(path, 0)
        places[path] = at + count
        return [pairs[i % len(pairs)] for i in range(at, at + count)]

    def measure(work):
        path, count = work["texts"], work["at_once"]
        end = time.perf_counter() + work["warm_up"]
        while time.perf_counter() < end:
            run(take(path, count))
        took = []
        start = time.perf_counter()
        while time.perf_counter() - start < work["seconds"]:
            pairs = take(path, count)
            begin = time.perf_counter()
            assert len(run(pairs)) == count
            took.append(time.perf_counter() - begin)
        median = statistics.median(took)
        return 1e3 * median if count == 1 else count / median

    print("ready", file=answers)
    for line in sys.stdin:
        print(measure(json.loads(line)), file=answers)


if __name__ == "__main__":
    main()
