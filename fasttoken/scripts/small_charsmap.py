"""Writes `tests/data/charsmap.txt`: a small map of replacements for `Precompiled`, in Base64.

SentencePiece builds the map, from a part of the rules that its own `nmt_nfkc` has:

    pip install sentencepiece==0.2.3 protobuf
    python3 fasttoken/scripts/small_charsmap.py > fasttoken/tests/data/charsmap.txt
"""

import base64
import os
import sys
import tempfile
import unicodedata

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

# Code points whose compatibility forms are in the map.
RANGES = [(0xA0, 0x24F), (0x1E00, 0x1E9F), (0x2010, 0x2149), (0x3300, 0x3357), (0xFB00, 0xFB06),
          (0xFF01, 0xFF9F), (0x1100, 0x1112), (0xF900, 0xF907), (0xFDFA, 0xFDFA)]
BLANKS = [0x9, 0xA, 0xC, 0xD, 0xA0, 0x1680, *range(0x2000, 0x2010), 0x2028, 0x2029, 0x202F, 0x205F,
          0x3000, 0xFEFF, 0xFFFD]
GONE = [*range(1, 9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F, 0x200B]


def rules() -> dict[str, str]:
    """Strings and what replaces them."""
    found = {}
    for low, high in RANGES:
        for code in range(low, high + 1):
            char = chr(code)
            form = unicodedata.normalize("NFKC", char)
            if form != char:
                found[char] = form
            # A letter with its marks becomes one character.
            parts = unicodedata.normalize("NFKD", char)
            if len(parts) in (2, 3) and unicodedata.normalize("NFKC", parts) != parts:
                found[parts] = unicodedata.normalize("NFKC", parts)
    for code in range(0xFF71, 0xFF8F):
        for mark in "\uFF9E\uFF9F":
            found[chr(code) + mark] = unicodedata.normalize("NFKC", chr(code) + mark)
    for code in BLANKS:
        found[chr(code)] = " "
    for code in GONE:
        found[chr(code)] = ""
    # A pair of which only a part is replaced, and one that is longer than what replaces it.
    found["\r\n"] = " "
    found["\u1112\u1161\u11ab"] = "\ud55c"
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        text, tsv, model = (os.path.join(folder, name) for name in ("text", "tsv", "model"))
        with open(text, "w", encoding="utf-8") as file:
            file.write("some words for a model that is thrown away\n" * 10)
        with open(tsv, "w", encoding="utf-8") as file:
            for key, value in sorted(rules().items()):
                codes = (" ".join(f"{ord(char):X}" for char in part) for part in (key, value))
                file.write("\t".join(codes) + "\n")
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=model, vocab_size=30, hard_vocab_limit=False,
            normalization_rule_tsv=tsv, minloglevel=2,
        )
        proto = sentencepiece_model_pb2.ModelProto()
        with open(model + ".model", "rb") as file:
            proto.ParseFromString(file.read())
    sys.stdout.write(base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode() + "\n")


if __name__ == "__main__":
    main()
