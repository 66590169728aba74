//! `config.json` of encoders, as transformers 5.24 reads it and older releases wrote it.

use crate::field::rows;

rows! {
    CONFIG, "config.json of an encoder";
    Obeyed ["architectures"]
        "the first is the model's class: a body, a classifier of texts or of tokens, or a body with a head that predicts words, which is left unread; without it, the body of `model_type`";
    Refused(
        r#""bert""#, r#""roberta""#, r#""xlm-roberta""#, r#""distilbert""#, r#""mpnet""#,
        r#""modernbert""#
    ) ["model_type"]
        "transformers takes the class from it, which must be that of `architectures`";
    Obeyed [
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "vocab_size", "dim", "hidden_dim", "n_layers", "n_heads",
    ] "shape of the model; the tensors must fit it";
    Obeyed ["max_position_embeddings"]
        "rows of the position table: as many tokens are served, in RoBERTa and XLM-R less `pad_token_id` + 1, in MPNet less 2; in ModernBERT, which has no table, the longest text served";
    Obeyed ["pad_token_id"]
        "in RoBERTa and XLM-R, the row before that of the first position; a padding token in a text counts as any other";
    Obeyed ["type_vocab_size"] "token types: the second text of a pair has type 1 if there are two";
    Obeyed ["layer_norm_eps"]
        "part of every norm, 1e-12 if the file does not say; fixed in DistilBERT, `norm_eps` in ModernBERT";
    Obeyed ["norm_eps"] "part of every norm of ModernBERT, 1e-5 if the file does not say";
    Obeyed ["attention_bias", "mlp_bias", "norm_bias", "classifier_bias"]
        "biases in ModernBERT; the others have all";
    Obeyed ["local_attention"]
        "tokens that a token of ModernBERT sees in layers with a window, half of them on either side";
    Obeyed ["layer_types", "global_attn_every_n_layers"]
        "layers of ModernBERT that see whole texts: by name, or the first of every three if the file does not say";
    Obeyed ["global_rope_theta", "local_rope_theta", "rope_parameters"]
        "rotary frequencies in ModernBERT, of layers that see whole texts and of those with a window; `rope_parameters` wins";
    Obeyed ["classifier_pooling"]
        "classes of texts in ModernBERT are read at the first token (`cls`) or from the mean of all";
    Checked ["hidden_act", "activation", "hidden_activation", "classifier_activation"]
        "`gelu`, `gelu_new`, `gelu_pytorch_tanh` or `relu`, between the products of a layer's second half, and of ModernBERT's head";
    Refused(r#""absolute""#) ["position_embedding_type"] "positions are rows of a table";
    NoEffect [
        "relative_attention_num_buckets", "rope_scaling", "rope_theta", "sliding_window",
        "mask_token_id",
    ] "read by other classes";
    Refused("false") ["is_decoder", "add_cross_attention", "is_encoder_decoder"]
        "an encoder alone is computed, whose attention sees the whole text";
    Refused("{}") ["pruned_heads"] "all layers have one shape";
    Refused() ["quantization_config", "compression_config"] "a quantised checkpoint";
    Refused() ["text_config", "vision_config", "audio_config"] "a model of several parts";
    Checked ["dtype", "torch_dtype"]
        "bfloat16, float16, float32 or auto; the tensors say their type themselves";
    Obeyed ["problem_type"]
        "activation of classes: `multi_label_classification` is a sigmoid of each logit, `regression` the logits; else a softmax, or the sigmoid of a single logit";
    Obeyed ["sentence_transformers", "sbert_ce_default_activation_function"]
        "activation of a cross-encoder's score: sigmoid or identity, others are refused";
    Obeyed ["id2label", "num_labels"] "names and number of classes; `id2label` wins";
    Obeyed ["matryoshka_dimensions"] "sizes to which vectors may be cut";
    Warned ["auto_map"] "code of a checkpoint is never run";
    NoEffect ["label2id"] "`id2label` is read";
    NoEffect [
        "attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout",
        "initializer_range", "dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout",
        "gradient_checkpointing", "embedding_dropout", "mlp_dropout", "initializer_cutoff_factor",
        "sparse_prediction", "sparse_pred_ignore_index", "repad_logits_with_grad",
    ] "used in training";
    NoEffect ["sinusoidal_pos_embds"] "the position table is stored";
    NoEffect [
        "use_cache", "return_dict", "output_attentions", "output_hidden_states",
        "attn_implementation", "torchscript", "use_bfloat16", "chunk_size_feed_forward",
        "tie_word_embeddings", "tie_weights_", "tie_encoder_decoder", "output_past",
        "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
        "position_biased_input", "directionality", "pooler_fc_size", "pooler_num_attention_heads",
        "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "decoder_bias",
        "deterministic_flash_attn", "reference_compile",
    ] "chooses among ways to the same numbers, or parts that transformers does not read";
    NoEffect ["bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"]
        "the tokenizer puts tokens around a text";
    NoEffect ["tokenizer_class", "prefix", "task_specific_params", "finetuning_task"]
        "not read by the classes of encoders";
    NoEffect [
        "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
        "transformers.js_config",
    ] "notes of tools";
}
