#!/usr/bin/env python3
"""Trains small SentencePiece models and records what the library makes of random texts.

    spm_models.py -o tests/data/spm
    spm_models.py -o /tmp/spm --strings 20000 --large
    FASTTOKEN_SPM_DATA=/tmp/spm cargo test --release -p fasttoken --test exact spm

Writes NAME.model and NAME.json for each kind of model. Each record of a text has its ids, the
offsets of the pieces in bytes and the decoded text; each record of random ids has their text.
With --large, models with the published maps of characters are there too. Needs the package
`sentencepiece`.
"""

import argparse
import io
import json
import pathlib
import random

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as proto

HERE = pathlib.Path(__file__).resolve().parent.parent

FOREIGN = [
    "Где моя карта? Карта пришла, но оплата не прошла, почему так долго?",
    "私のカードはどこですか。カードが届きましたが、支払いができません。",
    "我的银行卡在哪里?银行卡已经到了,但是付款没有成功。",
    "Où est ma carte ? La carte est arrivée, mais le paiement a échoué à l’été.",
    "أين بطاقتي؟ وصلت البطاقة ولكن الدفع لم ينجح.",
    "내 카드는 어디에 있나요? 카드가 도착했지만 결제가 되지 않았습니다.",
]

# Of a map: one character to several and to none, several to one, and one key that begins another.
RULES = [
    ("ﬁ", "fi"), ("Ａ", "A"), ("①", "1"), ("…", "..."), ("\u200b", ""), ("\u3000", " "), ("\t", " "),
    ("\n", " "), ("e\u0301", "é"), ("e\u0301\u0301", "ë"), ("½", " 1/2 "), ("ß", "ss"),
    ("が", "か\u3099"), ("か\u3099", "が"), ("\u00a0", "  "),
]

ALPHABET = (
    list("abcdefghijklmnopqrstuvwxyz") * 2 + list("ABCXYZ0123456789.,;:!?'\"()<>/-_=+*") + [" "] * 30
    + ["  ", "   ", "    ", "\n", "\t", "▁", "▁▁", "e\u0301", "e\u0301\u0301", "\u0301", "ﬁ", "Ａ", "①",
       "…", "\u200b", "\u3000", "½", "ß", "が", "か\u3099", "\u3099", "\u00a0", "\ufffd", "\0", "é", "我",
       "的", "カ", "ー", "ド", "Г", "д", "е", "ا", "ل", "가", "각", "😀", "👍🏽", "𝔸", "〆", "<s>", "</s>",
       "<unk>", "<0x41>", "<tool>", "<tool", "tool>", "|x y|", "aa", "aaa", "aaaa", "abab", "the", "card"]
)


def training_text():
    lines = (HERE / "README.md").read_text(encoding="utf-8").splitlines()
    runs = ["a" * n + " b" * (n % 3) + " " * (n % 7) + "x" for n in range(2, 40)]
    code = ["    if card:", "        return  card", "            pass"] * 20
    return [line for line in lines if line] + FOREIGN * 5 + runs + code


def train(**settings):
    model = io.BytesIO()
    defaults = {"character_coverage": 0.98, "hard_vocab_limit": False, "num_threads": 1}
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(training_text()),
        model_writer=model,
        minloglevel=2,
        **(defaults | settings),
    )
    read = proto.ModelProto()
    read.ParseFromString(model.getvalue())
    # Not needed, and full of paths.
    read.trainer_spec.ClearField("input")
    read.trainer_spec.ClearField("model_prefix")
    read.normalizer_spec.ClearField("normalization_rule_tsv")
    return read


def models(large, rules):
    """Names and models."""
    symbols = ["<tool>", "|x y|", "▁▁", "aaa", "ドが", "e"]
    custom = {"normalization_rule_tsv": rules}
    plain = {"normalization_rule_name": "identity"}
    as_is = {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
    blanks = {"remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True}
    for kind, size in ("unigram", 420), ("bpe", 500):
        base = {"model_type": kind, "vocab_size": size}
        with_bytes = base | {"byte_fallback": True, "vocab_size": size + 256}
        yield f"{kind}", train(**base, **custom)
        yield f"{kind}-symbols", train(**base, **custom, **blanks, user_defined_symbols=symbols)
        yield f"{kind}-bytes", train(**with_bytes, **plain, **blanks)
        yield f"{kind}-as-is", train(**with_bytes, **plain, **as_is)
        yield f"{kind}-suffix", train(**base, **custom, treat_whitespace_as_suffix=True)
        model = train(**base, **plain, split_by_whitespace=False, user_defined_symbols=symbols)
        model.normalizer_spec.escape_whitespaces = False
        for piece in model.pieces:
            piece.piece = piece.piece.replace("▁", " ")
        yield f"{kind}-spaces", model
        # Many equal scores, as quantized or edited models have them.
        model = train(**base, **plain, **blanks)
        for piece in model.pieces:
            piece.score = round(piece.score / (8 if kind == "bpe" else 2))
        yield f"{kind}-ties", model
        if kind == "unigram":
            model = train(**base, **plain)
            for number, piece in enumerate(model.pieces):
                if piece.type == 1 and number % 3 == 0:
                    piece.type = 5
            yield f"{kind}-unused", model
        if large:
            for name in "nmt_nfkc", "nfkc_cf", "nfkc":
                yield f"{kind}-{name}", train(**base, normalization_rule_name=name)
            big = base | {"vocab_size": 1500, "character_coverage": 0.9995}
            yield f"{kind}-long", train(**big, **plain, **blanks)


def random_text(rng, words):
    count = rng.choice([0, 1, 2, 3, 5, 8, 13, 21, 40])
    parts = []
    for _ in range(count):
        which = rng.random()
        if which < 0.45:
            parts.append(rng.choice(words) + rng.choice(["", " ", " ", "  "]))
        elif which < 0.93:
            parts.append(rng.choice(ALPHABET))
        elif which < 0.97:
            parts.append(rng.choice(ALPHABET) * rng.randrange(2, 12))
        else:
            code = rng.choice([rng.randrange(0x20, 0x3000), rng.randrange(0x3000, 0x30000)])
            parts.append(chr(code) if not 0xD800 <= code < 0xE000 else "x")
    return "".join(parts)


def record(processor, model, rng, words, strings):
    texts = []
    for number in range(strings):
        text = random_text(rng, words)
        if number % 500 == 499:
            # Enough for sums of scores that SentencePiece counts from zero again.
            count = 4000 if number % 5000 == 4999 else 200
            text = "".join(random_text(rng, words) for _ in range(count))
        pieces = processor.encode(text, return_type="proto").pieces
        ids = [piece.id for piece in pieces]
        offsets = [[piece.begin, piece.end] for piece in pieces]
        texts.append([text, ids, offsets, processor.decode(ids)])
    sequences = []
    for _ in range(strings // 4):
        ids = [rng.randrange(len(model.pieces)) for _ in range(rng.randrange(12))]
        if rng.random() < 0.5:
            ids = [rng.choice([rng.randrange(min(260, len(model.pieces))), one]) for one in ids]
        sequences.append([ids, processor.decode(ids)])
    return {"texts": texts, "sequences": sequences}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True, help="folder")
    parser.add_argument("--strings", type=int, default=40, help="texts of each model")
    parser.add_argument("--large", action="store_true", help="also models with published maps")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rules = options.out / "rules.tsv"
    hexes = lambda text: " ".join(f"{ord(c):X}" for c in text)
    rules.write_text("".join(f"{hexes(a)}\t{hexes(b)}\n" for a, b in RULES))
    words = " ".join(training_text()).split()
    for name, model in models(options.large, str(rules)):
        data = model.SerializeToString()
        (options.out / f"{name}.model").write_bytes(data)
        processor = spm.SentencePieceProcessor(model_proto=data)
        records = record(processor, model, random.Random(name), words, options.strings)
        text = json.dumps(records, ensure_ascii=False, separators=(",", ":"))
        (options.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(model.pieces)} pieces, {len(data)} bytes")
    rules.unlink()


if __name__ == "__main__":
    main()
