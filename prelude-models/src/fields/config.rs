//! `config.json`, as transformers 5.23 reads it and older releases wrote it.

use crate::field::rows;

rows! {
    CONFIG, "config.json";
    Obeyed ["architectures"]
        "the first is the model's class: a language model, a classifier or a bare body; without it, the body of `model_type`";
    Refused(r#""llama""#, r#""mistral""#, r#""qwen2""#, r#""qwen3""#, r#""qwen3_moe""#, r#""granite""#) ["model_type"]
        "transformers takes the class from it, which must be that of `architectures`";
    Obeyed [
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size",
    ] "shape of the model; the tensors must fit it";
    Obeyed ["attention_bias"]
        "biases of attention in Qwen3, Llama and Granite; Qwen2 has some always, Mistral never";
    Obeyed ["mlp_bias"] "biases of the MLP in Llama and Granite";
    Obeyed ["num_experts", "num_experts_per_tok", "moe_intermediate_size"]
        "experts of Qwen3-MoE: how many, how many for each token, and their width; all must be there";
    Obeyed ["norm_topk_prob"]
        "true: the shares of a token's experts are divided by their sum, in Qwen3-MoE";
    Obeyed ["decoder_sparse_step", "mlp_only_layers"]
        "layers of Qwen3-MoE with experts: every n-th, but for those in the list";
    Obeyed ["embedding_multiplier", "attention_multiplier", "residual_multiplier"]
        "factors of Granite on embeddings, on scores of attention and on what each half of a layer adds; 1 if the file does not say";
    Obeyed ["logits_scaling"] "divisor of Granite's logits, a power of two; other numbers are refused";
    NoEffect ["output_router_logits", "router_aux_loss_coef"] "used in training";
    Refused("true") ["token_classification_bias"] "the logits of a classifier of tokens have biases";
    Obeyed ["tie_word_embeddings"] "the output head is the embedding matrix";
    Obeyed ["max_position_embeddings"] "longest text served";
    Obeyed ["rms_norm_eps"] "part of every norm";
    Obeyed ["rope_theta"] "base of the rotary frequencies";
    Obeyed ["rope_scaling", "rope_parameters"]
        "rotary embeddings of type `default`, `linear`, `yarn` or `llama3`; other types, sets per layer type and `mscale` are refused";
    Refused("1") ["partial_rotary_factor"] "whole heads are rotated";
    Checked ["dtype", "torch_dtype"]
        "bfloat16, float16, float32 or auto; the tensors say their type themselves";
    Obeyed ["problem_type"]
        "activation of classes: `multi_label_classification` is a sigmoid of each logit, `regression` the logits; else a softmax, or the sigmoid of a single logit";
    Obeyed ["sentence_transformers", "sbert_ce_default_activation_function"]
        "activation of a cross-encoder's score: sigmoid or identity, others are refused";
    Obeyed ["id2label", "num_labels"] "names and number of classes; `id2label` wins";
    Obeyed ["eos_token_id"] "tokens that end a text where `generation_config.json` names none";
    Obeyed ["matryoshka_dimensions"] "sizes to which vectors may be cut";
    Refused(r#""silu""#) ["hidden_act"] "activation of the MLP";
    Obeyed ["is_causal", "use_bidirectional_attention"]
        "false and true: every token sees the whole text, which is served of embedders and refused of others";
    Refused("false") ["use_sliding_window"] "attention looks back over the whole text";
    Checked ["layer_types"] "every layer is `full_attention`";
    Obeyed ["sliding_window"]
        "longest text served of a Mistral, 4096 if the file does not say: within its window attention sees the whole text; elsewhere read with `use_sliding_window`, which is refused";
    NoEffect ["max_window_layers"] "read with `use_sliding_window`, which is refused";
    Refused("false") ["use_mrope"] "a position is one number";
    Checked ["quantization_config"]
        "weights in fp8 (e4m3) as `fp8` or `compressed-tensors` with format `float-quantized` store them, with scales of matrices, rows or blocks, which are widened when they are loaded, or with `--quantization fp8` multiplied as they are if blocks are of 128 × 128; `kv_cache_scheme` and its scales are passed over with a warning; any other method, format or field of it is refused";
    Refused() ["compression_config"] "a quantised checkpoint";
    Refused("false") ["is_encoder_decoder", "add_cross_attention"] "a decoder alone is computed";
    Refused("{}") ["pruned_heads", "per_layer_config"] "all layers have one shape";
    Refused() ["text_config", "vision_config", "audio_config"] "a model of several parts";
    Warned ["auto_map"] "code of a checkpoint is never run";
    NoEffect ["label2id"] "`id2label` is read";
    NoEffect ["attention_dropout", "initializer_range", "classifier_dropout"] "used in training";
    NoEffect [
        "use_cache", "return_dict", "output_attentions", "output_hidden_states",
        "attn_implementation", "torchscript", "use_bfloat16", "tf_legacy_loss",
        "chunk_size_feed_forward", "is_decoder", "tie_encoder_decoder", "tie_last_hidden_states",
        "pretraining_tp", "_attn_implementation", "_attn_implementation_autoset",
        "_attn_implementation_internal", "_experts_implementation",
        "_experts_implementation_internal", "experts_implementation",
    ] "chooses among ways to the same numbers, or what transformers returns beside them";
    NoEffect ["bos_token_id"] "the tokenizer puts tokens before a text";
    NoEffect ["pad_token_id"]
        "nothing is padded; a classifier is read at the last token, as by vLLM, where transformers skips padding tokens at the end of a text";
    NoEffect ["tokenizer_class", "prefix", "task_specific_params", "finetuning_task"]
        "not read by the classes of decoders";
    NoEffect [
        "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
        "unsloth_version", "unsloth_fixed", "transformers.js_config", "base_model_tp_plan",
        "base_model_pp_plan", "base_model_fsdp_plan", "base_model_ep_plan",
    ] "notes of tools";
}
