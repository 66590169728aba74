"""Writes a Qwen3 model of one safetensors file in GGUF: python -c … MODEL_DIR FILE.gguf"""
import json, pathlib, struct, sys
import gguf
import numpy as np

folder, target = pathlib.Path(sys.argv[1]), sys.argv[2]
config = json.loads((folder / "config.json").read_text())

writer = gguf.GGUFWriter(target, "qwen3")
writer.add_name(folder.name)
writer.add_block_count(config["num_hidden_layers"])
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_head_count(config["num_attention_heads"])
writer.add_head_count_kv(config["num_key_value_heads"])
writer.add_key_length(config["head_dim"])
writer.add_value_length(config["head_dim"])
writer.add_rope_freq_base(float(config["rope_theta"]))
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def add_tokenizer():
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    about = json.loads((folder / "tokenizer_config.json").read_text())
    # Ids that the tokenizer does not use are there, and are never written or read.
    size = config["vocab_size"]
    tokens = [f"[PAD{i}]" for i in range(size)]
    kinds = [gguf.TokenType.UNUSED] * size
    for text, token in tokenizer["model"]["vocab"].items():
        tokens[token], kinds[token] = text, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]], kinds[added["id"]] = added["content"], kind
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    # The demo models split texts as Qwen2's tokenizer does.
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    if template := about.get("chat_template"):
        writer.add_chat_template(template)


if (folder / "tokenizer.json").exists():
    add_tokenizer()
else:
    # Prompts are ids.
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def name_of(name):
    name = name.removesuffix(".weight")
    if name in OTHERS:
        return OTHERS[name] + ".weight"
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.weight"


data = (folder / "model.safetensors").read_bytes()
(length,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8 : 8 + length])
for name, about in header.items():
    if name == "__metadata__":
        continue
    assert about["dtype"] == "BF16", (name, about["dtype"])
    start, end = (8 + length + at for at in about["data_offsets"])
    bits = np.frombuffer(data[start:end], np.uint16)
    shape = about["shape"]
    if len(shape) == 1:
        # Norms are added in f32.
        writer.add_tensor(name_of(name), (bits.astype(np.uint32) << 16).view(np.float32))
    else:
        rows = bits.reshape(shape).view(np.uint8)
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name_of(name), rows, raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
