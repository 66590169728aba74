"""Golden data of GGUF files: random models as llama.cpp's converter stores them.

Writes NAME/model/NAME.gguf with a tokenizer.json, and widened/NAME with the same weights in bfloat16
as safetensors, for make_golden.py. Needs the package gguf (0.19.0).

    python tools/make_gguf.py --tokenizer ../prelude-server/demo/demo-lm --out .
"""

import argparse
import json
import os
import shutil

import gguf
import numpy as np
import torch

import make_random_models as models

VARIANTS = [
    {
        "name": "rand-gguf-llama",
        "seed": 119,
        "arch": "LlamaForCausalLM",
        "tokenizer": "bytes",
        "gguf": "llama",
        "eos_list": [257],
        "config": {
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": 2048, "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
            "tie_word_embeddings": False, "rms_norm_eps": 1e-05,
            "bos_token_id": 256, "eos_token_id": 257,
        },
    },
    {
        "name": "rand-gguf-qwen2",
        "seed": 120,
        "arch": "Qwen2ForCausalLM",
        "tokenizer": "bytes",
        "gguf": "qwen2",
        "eos_list": [257],
        "config": {
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": 2048, "rope_theta": 1000000.0,
            "tie_word_embeddings": True, "rms_norm_eps": 1e-06,
            "bos_token_id": 256, "eos_token_id": 257,
        },
    },
]

LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def renamed(name):
    part, kind = name.rsplit(".", 1)
    if part == "model.embed_tokens":
        return "token_embd." + kind
    if part == "model.norm":
        return "output_norm." + kind
    if part == "lm_head":
        return "output." + kind
    _, _, layer, part = part.split(".", 3)
    return f"blk.{layer}.{LAYER[part]}.{kind}"


def paired(w, heads):
    """Rows of each head in the order of llama.cpp's rotation: pairs of its halves."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def rope_factors(c):
    """Divisors of the rotary frequencies, as Llama 3's scaling has them."""
    s, dim = c["rope_scaling"], c["head_dim"]
    frequencies = 1.0 / c["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    low = s["original_max_position_embeddings"] / s["low_freq_factor"]
    high = s["original_max_position_embeddings"] / s["high_freq_factor"]
    factors = []
    for f in frequencies:
        wavelength = 2 * np.pi / f
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(s["factor"])
        else:
            smooth = (s["original_max_position_embeddings"] / wavelength - s["low_freq_factor"]) \
                / (s["high_freq_factor"] - s["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def write(entry, tokenizer, out):
    models.build(entry, tokenizer, out)
    folder = os.path.join(out, entry["name"], "model")
    c = models.full_config(entry)
    t = models.tensors(entry, c)
    w = gguf.GGUFWriter(os.path.join(folder, entry["name"] + ".gguf"), entry["gguf"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_file_type(7)
    w.add_tokenizer_model("gpt2")
    w.add_token_list([f"[{i}]" for i in range(c["vocab_size"])])
    w.add_eos_token_id(c["eos_token_id"])
    w.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    widened = {}
    for n, (name, x) in enumerate(t.items()):
        values = x.float().numpy()
        own = values
        if entry["gguf"] == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = c["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            own = paired(values, heads)
        if values.ndim == 1:
            w.add_tensor(renamed(name), own)
            widened[name] = x
            continue
        # Every type that is read.
        kind = gguf.GGMLQuantizationType
        kind = {3: kind.BF16, 5: kind.F16}.get(n, kind.Q8_0)
        packed = gguf.quants.quantize(own, kind)
        w.add_tensor(renamed(name), packed, raw_dtype=kind)
        again = gguf.quants.dequantize(packed, kind).reshape(own.shape)
        if own is not values:
            heads_, half = heads, own.shape[0] // heads // 2
            again = again.reshape(heads_, half, 2, -1).swapaxes(1, 2).reshape(own.shape)
        widened[name] = torch.from_numpy(np.ascontiguousarray(again)).to(torch.bfloat16)
    if entry["gguf"] == "llama":
        w.add_tensor("rope_freqs.weight", rope_factors(c))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    beside = os.path.join(out, "widened", entry["name"])
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(folder, beside, ignore=shutil.ignore_patterns("*.gguf", "*.safetensors"))
    models.write_weights(widened, beside, 1)
    for name in ["config.json", "generation_config.json", "model.safetensors"]:
        os.remove(os.path.join(folder, name))


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    for entry in VARIANTS:
        write(entry, a.tokenizer, a.out)
