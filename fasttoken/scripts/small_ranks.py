"""Writes a small file of ranks and a small tekken.json, and what tiktoken and mistral-common make
of some texts.

    pip install tokenizers==0.23.1 tiktoken==0.14.0 mistral-common==1.13.1
    python3 fasttoken/scripts/small_ranks.py
"""

import base64
import collections
import json
import pathlib
import random
import re
import tempfile

import tiktoken
import tiktoken_ext.openai_public as public
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

import small_models

DATA = pathlib.Path(__file__).parent.parent / "tests" / "data"
MERGES = 700
SPECIAL = {"<|endoftext|>": 1000, "<|endofprompt|>": 1007}
# tiktoken would fetch the ranks, which are not needed here.
public.load_tiktoken_bpe = lambda *_, **__: {}
public.data_gym_to_mergeable_bpe_ranks = lambda **_: {}
PATTERNS = {name: getattr(public, name)()["pat_str"]
            for name in ["r50k_base", "cl100k_base", "o200k_base"]}
# Kimi K2 ships a file of ranks; its pattern is in the Python file beside it.
KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS["kimi"] = "|".join([
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}*{KIMI_LOWER}+{CONTRACTIONS}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}+{KIMI_LOWER}*{CONTRACTIONS}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
          "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
          "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")


def train(corpus: str) -> list[bytes]:
    """Tokens by rank: all bytes, then merges of the most frequent pair."""
    words = collections.Counter(re.findall(r" ?\w+| ?[^\w\s]+|\s+", corpus))
    words = [([bytes([byte]) for byte in word.encode()], count) for word, count in words.items()]
    tokens = [bytes([byte]) for byte in range(256)]
    for _ in range(MERGES):
        pairs = collections.Counter()
        for word, count in words:
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        (left, right), _ = max(pairs.items(), key=lambda item: (item[1], item[0]))
        tokens.append(left + right)
        for word, _ in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == (left, right):
                    word[at:at + 2] = [left + right]
                at += 1
    assert len(set(tokens)) == len(tokens)
    return tokens


def texts() -> list[str]:
    rng = random.Random(27)
    blanks = ["\n", "\n  ", " \n", "\t", "  ", "\r\n", "'s", "'LL", "'ſ", "12345", "//\n", "!!\n"]
    parts = small_models.PARTS + blanks + ["<|endoftext|>", "[INST]", "</s>", "<SPECIAL_21>"]
    mixed = ["".join(rng.choices(parts, k=rng.randrange(2, 7))) for _ in range(250)]
    return parts + small_models.LINES.split("\n") + mixed


def main() -> None:
    tokens = train("\n".join(small_models.LINES.split("\n") * 4)
                   + (DATA.parent.parent / "README.md").read_text())
    lines = [base64.b64encode(token).decode() + f" {rank}" for rank, token in enumerate(tokens)]
    (DATA / "small.tiktoken").write_text("\n".join(lines) + "\n")
    ranks = {token: rank for rank, token in enumerate(tokens)}
    tekken = {
        "config": {"pattern": TEKKEN, "num_vocab_tokens": len(tokens), "version": "v3",
                   "default_vocab_size": len(tokens) - 50 + 24, "default_num_special_tokens": 24},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
                  for rank, token in enumerate(tokens)],
    }
    (DATA / "tekken.json").write_text(json.dumps(tekken) + "\n")
    with tempfile.NamedTemporaryFile("w", suffix="tekken.json") as file:
        json.dump(tekken, file)
        file.flush()
        mistral = Tekkenizer.from_file(file.name)
    encodings = {name: tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks,
                                         special_tokens=SPECIAL)
                 for name, pattern in PATTERNS.items()}
    vectors = []
    for text in texts():
        vector = {"text": text, "tekken": mistral.encode(text, bos=True, eos=False)}
        for name, encoding in encodings.items():
            vector[name] = encoding.encode_ordinary(text)
        vector["special"] = encodings["cl100k_base"].encode(text, allowed_special="all")
        vectors.append(json.dumps(vector, ensure_ascii=False, separators=(",", ":")))
    (DATA / "ranks-vectors.json").write_text("[\n" + ",\n".join(vectors) + "\n]\n")


if __name__ == "__main__":
    main()
