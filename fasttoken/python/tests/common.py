"""Tokenizers and texts that the tests share."""

import functools
import hashlib
import json
import os
import random
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
SEED = int(os.environ.get("FASTTOKEN_SEED", "20261126"))

# Long and rare strings, among them what tokenizers treat in a special way.
PIECES = [
    "Where is my card?", "don't", "I'LL", " the", "  ", "   \n", "\t", "\r\n", "\u00a0", "\u3000",
    "1234567", "3.14", "x=y+z;", "café", "cafe\u0301", "\u0301", "\u0300\u0301\u0302", "Ångström",
    "ﬁ", "Straße", "İstanbul", "日本語のテキスト", "中文，句子。", "한국어", "가각", "\u1100\u1161\u11a8",
    "العربية", "עברית", "हिन्दी", "ไทย", "Привет, мир", "😀", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "\ufe0f", "\u200d",
    "\u200b", "\ufeff", "\x00", "\x7f", "\ufffd", "\U0010ffff", "\U00020000", "▁", "▁▁x", "##ing", "Ġ",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<mask>", " <mask> ", "[CLS]",
    "[SEP]", "[MASK]", "[PAD]", "<pad>", "<0x0A>", "a" * 130, " " * 40, "supercalifragilistic",
]


def texts(random_, count, pieces=12):
    """Return texts: the empty one, pieces joined, and any characters but surrogates."""

    def one():
        parts = []
        for _ in range(random_.randrange(pieces)):
            if random_.random() < 0.7:
                parts.append(random_.choice(PIECES))
            else:
                limit = random_.choice((0x80, 0x250, 0x3000, 0x110000))
                number = random_.randrange(limit)
                parts.append("" if 0xD800 <= number < 0xE000 else chr(number))
            if random_.random() < 0.4:
                parts.append(" ")
        return "".join(parts)

    return ["", " "] + [one() for _ in range(count - 2)]


def source(name):
    """Return a source of random numbers that is the same in each run."""
    return random.Random(f"{SEED} {name}")


@functools.lru_cache(maxsize=None)
def tokenizers():
    """Return the different tokenizer.json files of the repository, and real ones if there are any."""
    data = REPOSITORY / "fasttoken" / "tests" / "data"
    files = [data / f"{name}.json" for name in ("tokenizer", "wordpiece", "unigram")]
    files += sorted((data / "spm").glob("*.json"))
    files += sorted(REPOSITORY.glob("golden/*/model/tokenizer.json"))
    files += sorted(REPOSITORY.glob("prelude-server/demo/*/tokenizer.json"))
    files = [file for file in files if is_tokenizer(file)]
    shared = os.environ.get("PRELUDE_SHARED_TOKENIZERS", REPOSITORY / ".." / "shared" / "tokenizers")
    real = sorted(Path(shared).glob("*/tokenizer.json"))
    if not real:
        print(f"SKIP real vocabularies: none in {shared}", file=sys.stderr)
    seen, different = set(), []
    for file in files + real:
        digest = hashlib.sha256(file.read_bytes()).digest()
        if digest not in seen:
            seen.add(digest)
            different.append(file)
    return different


def is_tokenizer(file):
    return isinstance(json.loads(file.read_bytes()), dict) and b'"model"' in file.read_bytes()


def name(file):
    """Return a short name of a tokenizer's file."""
    parts = file.resolve().parts
    return "/".join(part for part in parts[-3:] if part not in ("model", "tests", "tokenizer.json"))
