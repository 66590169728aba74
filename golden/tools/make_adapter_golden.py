#!/usr/bin/env python3
"""Make LoRA adapters with random weights, and what `merge_and_unload` of peft makes of their bases.

  make_adapter_golden.py --golden golden --out golden/adapters

Writes for each case a folder with `adapter_config.json` and `adapter_model.safetensors`, as peft saves
them, and `merged.safetensors`: the tensors of the merged model that differ from the base's, in float32.

  decoder      rand-qwen2, q, v and down projections
  rslora       rand-llama, all products of attention, `use_rslora`
  encoder      rand-bert-embed, queries and the dense products
  classifier   rand-qwen2 as a classifier of three classes: `modules_to_save` is its head

Needs torch, transformers and peft (written with 5.x and 0.19).
"""
import argparse
import os
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification)

CASES = {
    "decoder": ("rand-qwen2", AutoModelForCausalLM, dict(
        r=4, lora_alpha=10, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")),
    "rslora": ("rand-llama", AutoModelForCausalLM, dict(
        r=3, lora_alpha=6, use_rslora=True, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])),
    "encoder": ("rand-bert-embed", AutoModel, dict(
        r=2, lora_alpha=3, target_modules=["query", "dense"], task_type="FEATURE_EXTRACTION")),
    "classifier": ("rand-qwen2", AutoModelForSequenceClassification, dict(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="SEQ_CLS",
        modules_to_save=["score"])),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--golden", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    for name, (base, cls, settings) in CASES.items():
        torch.manual_seed(20770)
        folder = os.path.join(args.golden, base, "model")
        more = {"num_labels": 3} if settings["task_type"] == "SEQ_CLS" else {}
        model = cls.from_pretrained(folder, dtype=torch.float32, **more)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        tuned = get_peft_model(model, LoraConfig(lora_dropout=0.0, **settings))
        with torch.no_grad():
            for key, value in tuned.named_parameters():
                if "lora_" in key or "modules_to_save" in key:
                    value.normal_(0.0, 0.2)
        out = os.path.join(args.out, name)
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        tuned.peft_config["default"].base_model_name_or_path = base
        tuned.save_pretrained(out)
        if os.path.exists(os.path.join(out, "README.md")):
            os.remove(os.path.join(out, "README.md"))
        merged = tuned.merge_and_unload().state_dict()
        changed = {k: v.contiguous() for k, v in merged.items()
                   if k not in before or not torch.equal(v, before[k])}
        assert changed, name
        save_file(changed, os.path.join(out, "merged.safetensors"))
        print(name, sorted(changed)[:3], len(changed), list(load_file(os.path.join(out, "adapter_model.safetensors")))[:3])


if __name__ == "__main__":
    main()
