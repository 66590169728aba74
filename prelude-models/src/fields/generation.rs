//! `generation_config.json`, as transformers 5.23 reads it.

use crate::field::rows;

rows! {
    GENERATION_CONFIG, "generation_config.json";
    Obeyed ["eos_token_id"] "tokens that end a text";
    Obeyed ["do_sample"] "false makes greedy the default";
    Obeyed ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"]
        "default of requests that do not name it";
    Refused("1") ["typical_p", "encoder_repetition_penalty", "guidance_scale"]
        "changes which tokens are likely";
    Refused("0") [
        "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
        "penalty_alpha", "diversity_penalty",
    ] "changes which tokens are likely";
    Refused() [
        "top_h", "force_words_ids", "constraints", "sequence_bias", "watermarking_config",
        "exponential_decay_length_penalty", "dola_layers",
    ] "changes which tokens are likely";
    Refused("[]") ["suppress_tokens", "begin_suppress_tokens", "bad_words_ids"] "forbids tokens";
    Refused("false") ["token_healing"] "changes which tokens are likely";
    Refused() ["forced_bos_token_id", "forced_eos_token_id"] "forces a token";
    Refused("0") ["min_length", "min_new_tokens"] "keeps a text from ending";
    Refused("[]") ["stop_strings"] "ends a text";
    Refused("1") ["num_beams", "num_beam_groups"] "beams are not searched";
    NoEffect ["max_length", "max_new_tokens", "num_return_sequences"]
        "a request says it (`max_tokens`, `n`)";
    NoEffect ["early_stopping", "length_penalty", "low_memory"]
        "read with beams, which are refused";
    NoEffect ["renormalize_logits", "remove_invalid_values"]
        "probabilities are always normalised and finite";
    NoEffect [
        "max_time", "use_cache", "cache_implementation", "cache_config", "max_cache_len",
        "output_attentions", "output_hidden_states", "output_scores", "output_logits",
        "return_dict_in_generate", "compile_config", "disable_compile",
        "continuous_batching_config", "prefill_chunk_size",
    ] "chooses among ways to the same tokens, or what transformers returns beside them";
    NoEffect [
        "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size",
        "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
        "assistant_ensemble_weight", "speculation_type", "use_mtp",
    ] "speculative decoding";
    NoEffect ["bos_token_id", "pad_token_id", "decoder_start_token_id"]
        "prompts are given, and nothing is padded";
    NoEffect ["transformers_version", "_from_model_config", "_commit_hash", "trust_remote_code"]
        "notes of tools";
}
