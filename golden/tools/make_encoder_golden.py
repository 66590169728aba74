#!/usr/bin/env python3
"""Write small random encoders and their reference outputs, one for each entry of a spec file.

  make_encoder_golden.py --spec encoders.json --out ../golden [--only NAME ...]

Each entry becomes <out>/<name>/model/ (config.json, safetensors, tokenizer files) and
<out>/<name>/golden.json and golden.safetensors.  Keys of an entry:

  name      folder name
  seed      weights and prompts are functions of the seed alone
  arch      architectures[0] of config.json
  config    the config.json fields that matter for the structure
  tokenizer "wordpiece", "unigram", "bytes", "mpnet" (WordPiece with the special tokens of MPNet) or
            "modern" (bytes with those of ModernBERT): trained on the text below
  dtype     stored tensor type: bfloat16, float16 or float32
  pooling   "cls" or "mean": write the files of sentence-transformers
  set       config.json fields to add or to change as they are, null included

Runs the checkpoint with Hugging Face transformers (eager attention, batch 1, no padding) in
float32 and in bfloat16.  A token of type k has the id of its word plus k times the vocabulary's
size in `tokens`.  The README next to this folder describes the arrays.
"""
import argparse
import json
import os
import random
import shutil

import numpy as np
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

from make_golden import compare

# Texts for tokenizers with added tokens of several spaces, and with NFC.
MODERN = ["two  spaces, three   and\tfour    .", "e\u0301te\u0301 [MASK] o\u0300 [SEP]"]
LENGTHS = [1, 2, 3, 5, 9, 15, 16, 17, 31, 33, 63, 64, 65, 130]

TEXT = """
A decision is made of a question and of what is known. The answer is yes or no, or one of some labels.
Where is my card? It was sent two weeks ago and it has not come. Please tell me when it will be here.
The queue is long when many people ask at once, and short prompts go first when the policy says so.
Tokens are numbers that stand for words or for parts of words. A model reads them and gives vectors.
Two texts are near when their vectors point the same way. A query is compared with each document.
Rain fell on the hills all day, and the river rose over the old stone bridge by the evening.
She wrote a letter, read it twice, and then put it into the fire without a word to anybody.
The price of bread went up by three percent in March, and by one more percent in the summer.
Ein Satz in einer anderen Sprache; une phrase en français, avec des accents: été, où, ça.
""".strip().split("\n")
SINGLE = ["Where is my card?", "yes", "The river rose over the bridge.", "été où",
          "Tokens are numbers, or parts of words; a model reads them. " * 3]
PAIRS = [("Where is my card?", "It was sent two weeks ago."),
         ("a query", "The price of bread went up by three percent in March."),
         ("yes", "no"), ("When is the answer yes?", TEXT[0]), (TEXT[1], TEXT[4])]


def make_tokenizer(entry):
    """A tokenizer in the form of the family's published ones, trained on the text above."""
    from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                            trainers)
    kind, size = entry["tokenizer"], entry["config"]["vocab_size"]
    if kind == "wordpiece":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tok.normalizer = normalizers.BertNormalizer(lowercase=True)
        tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tok.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special,
                                            show_progress=False)
        cls, sep, names = "[CLS]", "[SEP]", ["pad", "unk", "cls", "sep", "mask"]
    elif kind == "unigram":
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        tok = Tokenizer(models.Unigram())
        tok.normalizer = normalizers.NFKC()
        tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
        tok.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
        trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=special,
                                          unk_token="<unk>", show_progress=False)
        cls, sep, names = "<s>", "</s>", ["cls", "pad", "sep", "unk", "mask"]
    elif kind == "mpnet":
        special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tok.normalizer = normalizers.BertNormalizer(lowercase=True)
        tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tok.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special,
                                            show_progress=False)
        cls, sep, names = "<s>", "</s>", ["cls", "pad", "sep", "unk", "mask"]
    elif kind == "modern":
        # Its special tokens have the last ids.
        special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
        tok = Tokenizer(models.BPE())
        tok.normalizer = normalizers.NFC()
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=size - 10,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                      show_progress=False)
        cls, sep, names = "[CLS]", "[SEP]", ["unk", "cls", "sep", "pad", "mask"]
    else:
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                      show_progress=False)
        cls, sep, names = "<s>", "</s>", ["cls", "pad", "sep", "unk", "mask"]
    tok.train_from_iterator(TEXT, trainer)
    if kind == "modern":
        tok.add_tokens([AddedToken(s, normalized=True) for s in ("   ", "  ", "|||IP_ADDRESS|||")])
        tok.add_special_tokens([AddedToken(s, lstrip=s == "[MASK]", normalized=False, special=True)
                                for s in special])
    ids = [(s, tok.token_to_id(s)) for s in (cls, sep)]
    if kind in ("wordpiece", "modern"):
        tok.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=ids)
    elif kind in ("unigram", "mpnet"):
        tok.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} {sep} $B {sep}", special_tokens=ids)
    else:
        tok.post_processor = processors.RobertaProcessing(
            ids[1], ids[0], trim_offsets=True, add_prefix_space=False)
    assert tok.get_vocab_size() <= size, (tok.get_vocab_size(), size)
    config = {f"{n}_token": s for n, s in zip(names, special)}
    config.update({"model_max_length": 160, "tokenizer_class": "PreTrainedTokenizerFast"})
    if kind == "wordpiece":
        config.update({"do_lower_case": True, "strip_accents": None,
                       "tokenize_chinese_chars": True, "tokenizer_class": "BertTokenizer"})
    return tok, config


def make_model(entry, folder):
    """Saves config.json and the weights of a model with random weights."""
    import transformers
    cls = getattr(transformers, entry["arch"])
    fields = dict(entry["config"])
    labels = fields.pop("labels", None)
    if labels:
        fields["id2label"] = {str(i): n for i, n in enumerate(labels)}
        fields["label2id"] = {n: i for i, n in enumerate(labels)}
    config = cls.config_class(**{k: v for k, v in fields.items() if k != "id2label"})
    if labels:
        config.id2label, config.label2id = dict(enumerate(labels)), fields["label2id"]
        config.num_labels = len(labels)
    model = cls(config)
    g = torch.Generator().manual_seed(entry["seed"])
    dtype = getattr(torch, entry.get("dtype", "bfloat16"))
    tensors = {}
    for name, x in model.state_dict().items():
        if name.endswith(("position_ids", "token_type_ids")):
            continue
        if name.endswith("bias"):
            x = torch.rand(x.shape, generator=g) - 0.5
        elif "embeddings." in name and x.dim() == 2:
            x = torch.randn(x.shape, generator=g) * 0.6
        elif x.dim() == 1:
            x = 0.5 + torch.rand(x.shape, generator=g)
        else:
            gain = 2.0 if "classifier" in name or "out_proj" in name else 1.3
            x = torch.randn(x.shape, generator=g) * (gain / x.shape[1] ** 0.5)
        tensors[name] = x.to(dtype).contiguous()
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    written = {"architectures": [entry["arch"]], "model_type": config.model_type,
               "torch_dtype": entry.get("dtype", "bfloat16"), "transformers_version": "4.57.0",
               **fields, **entry.get("set", {})}
    dump(os.path.join(folder, "config.json"), dict(sorted(written.items())))


def dump(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")


def make_prompts(entry, tok):
    """Random ids around the edges of tiles, then texts and pairs of texts."""
    rng = random.Random(entry["seed"])
    size, types = entry["config"]["vocab_size"], entry["config"].get("type_vocab_size", 1)
    out = []
    for n in LENGTHS:
        # No special tokens: the reference counts positions without those of padding.
        ids = [rng.randrange(5, size) for _ in range(n)]
        kinds = [int(types > 1 and i > n // 2) for i in range(n)]
        out.append({"kind": "length", "text": None, "ids": ids, "types": kinds})
    for text in SINGLE + (MODERN if entry["tokenizer"] == "modern" else []):
        enc = tok.encode(text)
        out.append({"kind": "text", "text": text, "ids": enc.ids, "types": enc.type_ids})
    for a, b in PAIRS:
        enc = tok.encode(a, b)
        out.append({"kind": "pair", "text": None, "pair": [a, b], "ids": enc.ids,
                    "types": enc.type_ids})
    for p in out:
        if types == 1:
            p["types"] = [0] * len(p["ids"])
        assert all(t < types for t in p["types"])
    return out


def run(model, arch, prompts, types):
    """All outputs of one model at one dtype, as float32 arrays."""
    r = {k: [] for k in ("embed_first", "embed_last", "embed_mean", "cls_logits", "cls_probs",
                         "tok_logits")}
    for p in prompts:
        inputs = {"input_ids": torch.tensor([p["ids"]]),
                  "attention_mask": torch.ones(1, len(p["ids"]), dtype=torch.long)}
        if types > 1:
            inputs["token_type_ids"] = torch.tensor([p["types"]])
        with torch.no_grad():
            body = model if arch.endswith("Model") else getattr(model, model.base_model_prefix)
            h = body(**inputs).last_hidden_state[0].float()
            r["embed_first"].append(h[0])
            r["embed_last"].append(h[-1])
            r["embed_mean"].append(h.mean(0))
            if arch.endswith("ForSequenceClassification"):
                z = model(**inputs).logits[0].float()
                r["cls_logits"].append(z)
                r["cls_probs"].append(torch.sigmoid(z) if len(z) == 1 else torch.softmax(z, -1))
            if arch.endswith("ForTokenClassification"):
                r["tok_logits"].extend(model(**inputs).logits[0].float())
    return {k: torch.stack(v).numpy() for k, v in r.items() if v}


def build(entry, out):
    import transformers
    folder = os.path.join(out, entry["name"])
    shutil.rmtree(folder, ignore_errors=True)
    path = os.path.join(folder, "model")
    os.makedirs(path)
    tok, tok_config = make_tokenizer(entry)
    tok.save(os.path.join(path, "tokenizer.json"), pretty=False)
    dump(os.path.join(path, "tokenizer_config.json"), tok_config)
    make_model(entry, path)
    if entry.get("pooling"):
        os.makedirs(os.path.join(path, "1_Pooling"))
        kinds = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"]
        own = {"cls": "cls_token", "mean": "mean_tokens"}[entry["pooling"]]
        width = entry["config"].get("hidden_size") or entry["config"]["dim"]
        dump(os.path.join(path, "1_Pooling", "config.json"),
             {"word_embedding_dimension": width,
              **{f"pooling_mode_{k}": k == own for k in kinds}})
        names = ["Transformer", "Pooling", "Normalize"]
        paths = ["", "1_Pooling", "2_Normalize"]
        dump(os.path.join(path, "modules.json"), [
            {"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{n}"}
            for i, (n, p) in enumerate(zip(names, paths))])
    prompts = make_prompts(entry, tok)
    size, types = entry["config"]["vocab_size"], entry["config"].get("type_vocab_size", 1)
    offsets = np.cumsum([0] + [len(p["ids"]) for p in prompts]).astype(np.int32)
    ids = [i + size * t for p in prompts for i, t in zip(p["ids"], p["types"])]
    arrays = {"tokens": np.array(ids, np.int32), "offsets": offsets}
    res = {}
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        cls = getattr(transformers, entry["arch"])
        model, info = cls.from_pretrained(path, dtype=dtype, attn_implementation="eager",
                                          output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        res[name] = run(model.eval(), entry["arch"], prompts, types)
        arrays.update({f"{name}.{k}": np.ascontiguousarray(v) for k, v in res[name].items()})
    tol = {"f32 against bf16": compare(res["f32"], res["bf16"], offsets)}
    doc = {
        "model": entry["name"], "architecture": entry["arch"], "loaded_as": entry["arch"],
        "attention": "full", "class_pooling": entry["config"].get("classifier_pooling", "cls"),
        "seed": entry["seed"],
        "made_with": {"torch": torch.__version__.split("+")[0],
                      "transformers": transformers.__version__,
                      "tokenizers": __import__("tokenizers").__version__},
        "eos_token_ids": [], "yes_no_ids": [], "greedy_prompts": [], "tolerances": tol,
        "prompts": [{k: v for k, v in p.items() if k not in ("ids", "types")}
                    | {"len": len(p["ids"])} for p in prompts],
    }
    save_arrays(arrays, os.path.join(folder, "golden.safetensors"))
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as f:
        json.dump(doc, f, indent=1, ensure_ascii=False)
        f.write("\n")
    size = sum(os.path.getsize(os.path.join(r, x)) for r, _, fs in os.walk(folder) for x in fs)
    print(entry["name"], len(prompts), "prompts", f"{size / 1e6:.2f} MB",
          {k: v["max"] if isinstance(v, dict) else v
           for k, v in tol["f32 against bf16"].items()})


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--spec", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--only", nargs="*", help="names of the entries to build")
    a = ap.parse_args()
    torch.set_num_threads(1)
    for entry in json.load(open(a.spec)):
        if not a.only or entry["name"] in a.only:
            build(entry, a.out)


if __name__ == "__main__":
    main()
