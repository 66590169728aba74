"""Writes small WordPiece and Unigram tokenizers, and what the reference makes of some texts.

They are trained on this folder's README and on lines in other scripts, in the shapes of
bert-base-uncased and of XLM-R. Run `small_charsmap.py` first.

    pip install tokenizers==0.23.1
    python3 fasttoken/scripts/small_models.py
"""

import json
import pathlib
import random

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

FOLDER = pathlib.Path(__file__).parent.parent
DATA = FOLDER / "tests" / "data"
LINES = """
日本語の文章はここにあります。カードはまだ届いていません。カードはどこですか。
我还没有收到我的新卡。我的卡在哪里?中文分词很有趣,中文没有空格。
Моя карта ещё не пришла. Где моя карта? Это предложение на русском языке.
لم تصل بطاقتي الجديدة بعد. أين بطاقتي؟
제 카드가 아직 도착하지 않았습니다. 카드가 어디에 있습니까?
यह हिन्दी में एक वाक्य है। मेरा कार्ड कहाँ है?
บัตรของฉันยังไม่มาถึง บัตรของฉันอยู่ที่ไหน
naïve café, straße, Ångström, été, el niño, garçon
I am still waiting on my card, it's been 2 weeks! Don't you have it?
"""
PARTS = [
    "", " ", "   ", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff", "\u0085", "\0",
    "\ufffd", "\u0007", "\u0301", "e\u0301", "E\u0323\u0301", "\u0301\u0323", "\u0345", "\u302e",
    "é", "Å", "İ", "ß", "ſ", "ﬁ", "™", "½", "Ⅷ", "ﷺ", "ｶﾞ", "各", "漢字", "中文分词", "カード",
    "각", "\u1100\u1161\u11a8", "\u1112\u1161\u11ab", "ภาษาไทย", "ที่", "हिन्दी", "مرحبا", "שלום",
    "🙂", "👩\u200d👩\u200d👧\u200d👦", "🇩🇪", "❤\ufe0f", "\U000e0100", "\U00010d69", "𝒜", "𐐀",
    "[CLS]", "[MASK]", "[mask", "<s>", "<mask>", "</s", "▁", "##card", "tokenizer", "Tokenizers",
    "card", "Where is my card?", "don't", "a" * 120, "wait" * 30, "3.14", "snake_case", "...", "?!",
    "``quoted''", "Привет", "ЙЁ", "Ελλάδα", "naïve café", "x\u0338", "£100.50", "(€5)",
]


def texts() -> list[str]:
    """Each part alone, and some hundred mixtures."""
    rng = random.Random(26)
    mixed = []
    for _ in range(250):
        count = rng.randrange(2, 7)
        mixed.append("".join(rng.choice(PARTS) + rng.choice(["", "", " "]) for _ in range(count)))
    return PARTS + LINES.split("\n") + mixed


def wordpiece(corpus: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus, trainers.WordPieceTrainer(
        vocab_size=2000, min_frequency=1, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def unigram(corpus: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    charsmap = (DATA / "charsmap.txt").read_text().strip()
    precompiled = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    shape = json.loads(tokenizer.to_str())
    shape["normalizer"] = precompiled
    tokenizer = Tokenizer.from_str(json.dumps(shape))
    tokenizer.normalizer = normalizers.Sequence([
        tokenizer.normalizer, normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(corpus, trainers.UnigramTrainer(
        vocab_size=1500, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>",
        show_progress=False))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)])
    return tokenizer


def main() -> None:
    corpus = (FOLDER / "README.md").read_text().split("\n") + LINES.split("\n") * 4
    for name, tokenizer in [("wordpiece", wordpiece(corpus)), ("unigram", unigram(corpus))]:
        shape = json.loads(tokenizer.to_str())
        (DATA / f"{name}.json").write_text(json.dumps(shape, ensure_ascii=False) + "\n")
        lines = []
        for text in texts():
            encoding = tokenizer.encode(text)
            vector = {"text": text, "ids": encoding.ids, "offsets": encoding.offsets,
                      "decoded": tokenizer.decode(encoding.ids, skip_special_tokens=False)}
            lines.append(json.dumps(vector, ensure_ascii=False, separators=(",", ":")))
        vectors = "[\n" + ",\n".join(lines) + "\n]\n"
        (DATA / f"{name}-vectors.json").write_text(vectors)


if __name__ == "__main__":
    main()
