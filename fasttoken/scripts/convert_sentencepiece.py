#!/usr/bin/env python3
"""Writes a tokenizer.json from a SentencePiece model (BPE), for the equality gate.

    convert_sentencepiece.py tokenizer.model --shape llama2 -o vocabularies/llama2
    cargo xtask tokenizer-gate --vocabularies vocabularies

The shapes are those of published files: `llama2` (normalizer Prepend and Replace),
`mistral` (pre-tokenizer Metaspace), `gemma` (Replace, and Split after a space). Merges
are every cut of a token into two tokens, by the score of the token, as converters of
published files order them. Standard library only.
"""

import argparse
import json
import pathlib
import struct

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


def varint(data, at):
    """A number and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at


def fields(data):
    """Numbers and values of the fields of a protocol-buffer message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise SystemExit(f"wire type {wire}: this is no SentencePiece model")
        yield tag >> 3, value


def read_pieces(path):
    """Text, score and type of each piece, in the order of the ids."""
    pieces = []
    for number, value in fields(path.read_bytes()):
        if number == 1:
            piece = {2: 0.0, 3: NORMAL} | dict(fields(value))
            score = piece[2]
            if isinstance(score, bytes):
                (score,) = struct.unpack("<f", score)
            pieces.append((piece[1].decode(), score, piece[3]))
    return pieces


def merges(pieces, ids):
    """All cuts of ordinary tokens into two of them, the best token first."""
    ordinary = {text for text, _, kind in pieces if kind == NORMAL}
    found = []
    for text, score, kind in pieces:
        if kind != NORMAL:
            continue
        cuts = [(text[:at], text[at:]) for at in range(1, len(text))]
        cuts = [cut for cut in cuts if cut[0] in ordinary and cut[1] in ordinary]
        cuts.sort(key=lambda cut: (ids[cut[0]], ids[cut[1]]))
        found += [(score, left, right) for left, right in cuts]
    found.sort(key=lambda rule: (rule[0], len(rule[1]), len(rule[2])), reverse=True)
    return [f"{left} {right}" for _, left, right in found]


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def shape(name):
    """Normalizer, pre-tokenizer and decoder."""
    spaces = replace(" ", "▁")
    decoders = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    if name == "gemma":
        split = {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        }
        return spaces, split, {"type": "Sequence", "decoders": decoders}
    decoder = {"type": "Sequence", "decoders": [*decoders, strip]}
    if name == "llama2":
        steps = [{"type": "Prepend", "prepend": "▁"}, spaces]
        return {"type": "Sequence", "normalizers": steps}, None, decoder
    metaspace = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "first",
        "split": False,
    }
    return None, metaspace, decoder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--shape", choices=["llama2", "mistral", "gemma"], default="llama2")
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True, help="folder")
    options = parser.parse_args()
    pieces = read_pieces(options.model)
    ids = {text: number for number, (text, _, _) in enumerate(pieces)}
    if len(ids) != len(pieces):
        raise SystemExit("two pieces have the same text")
    added = {UNKNOWN, CONTROL}
    if options.shape == "gemma":
        added.add(USER_DEFINED)
    added_tokens = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for number, (text, _, kind) in enumerate(pieces)
        if kind in added
    ]
    begin = next(text for text in ("<s>", "<bos>") if text in ids)
    unknown = next(text for text, _, kind in pieces if kind == UNKNOWN)
    template = [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    second = [{"SpecialToken": {"id": begin, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    normalizer, pre_tokenizer, decoder = shape(options.shape)
    file = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template,
            "pair": template + second,
            "special_tokens": {begin: {"id": begin, "ids": [ids[begin]], "tokens": [begin]}},
        },
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": ids,
            "merges": merges(pieces, ids),
        },
    }
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(file, ensure_ascii=False, indent=2)
    (options.out / "tokenizer.json").write_text(text, encoding="utf-8")
    print(f"{len(ids)} tokens, {len(file['model']['merges'])} merges")


if __name__ == "__main__":
    main()
