//! Fields of routes that generate text.

table! {
    /// The fields that completions and chat share.
    GENERATION "Generation";
    Obeyed ["n"] "OpenAI" "continuations of each prompt";
    Obeyed ["best_of"] "OpenAI" "the same number as `n`, or it is refused";
    Obeyed ["stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens"] "OpenAI, vLLM, SGLang" "where a text ends";
    Obeyed ["stream", "stream_options"] "OpenAI" "server-sent events";
    Obeyed ["prompt_logprobs", "prompt_logprobs_range"] "vLLM, Prelude" "log-probabilities of the prompt's tokens";
    Obeyed ["return_token_ids", "return_tokens_as_token_ids", "skip_special_tokens"] "vLLM" "how tokens are reported";
    Obeyed ["temperature", "top_p", "top_k", "min_p", "seed"] "OpenAI, vLLM, SGLang" "how a token is chosen";
    Obeyed ["repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids"] "OpenAI, vLLM, SGLang" "what changes logits before that";
    Obeyed ["response_format"] "OpenAI" "JSON, or JSON of a schema";
    Obeyed ["structured_outputs"] "vLLM" "a choice, a regular expression, JSON or a grammar";
    Refused() ["guided_choice", "guided_regex", "guided_json", "guided_grammar", "guided_whitespace_pattern"] "vLLM, older" "`structured_outputs` has taken its place";
    Refused("false") ["guided_json_object"] "vLLM, older" "`structured_outputs` has taken its place";
    NoEffect ["guided_decoding_backend"] "vLLM, older" "there is one implementation";
    Refused() ["regex", "ebnf", "json_schema", "grammar"] "SGLang, llama.cpp" "a language that answers belong to is asked for by `structured_outputs`";
    Refused("false") ["use_beam_search"] "vLLM" "there is no beam search";
    NoEffect ["length_penalty", "early_stopping"] "vLLM" "part of beam search, which is refused";
    Refused("[]") ["logprob_token_ids", "bad_words", "logits_processors"] "vLLM" "not here; `logit_bias` and `allowed_token_ids` keep tokens out";
    Refused() ["custom_logit_processor", "custom_params", "vllm_xargs"] "SGLang, vLLM" "there are no extensions that would read it";
    Refused() ["stop_regex", "repetition_detection"] "SGLang, vLLM" "a text ends by `stop` and `stop_token_ids`";
    Refused("false") ["no_stop_trim"] "SGLang" "`include_stop_str_in_output` is its name here";
    Refused("-1") ["thinking_token_budget"] "vLLM" "reasoning has no budget of its own";
    Refused("false") ["watermarking"] "vLLM" "there are no watermarks";
    Refused() ["prompt_embeds", "input_ids", "input_embeds"] "vLLM, SGLang" "prompts are text, or token ids at /v1/completions";
    Refused() ["kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"] "vLLM, SGLang" "one process computes a request";
    Refused() ["session_params", "extra_key"] "SGLang" "caches are kept apart by `cache_salt`";
    NoEffect ["rid", "session_id", "custom_labels"] "vLLM, SGLang" "names the request, which no answer depends on";
    NoEffect ["ngram_corpus_id", "prediction", "cache_prompt"] "SGLang, OpenAI, llama.cpp" "would make an answer faster, not another";
    NoEffect ["stream_interval"] "vLLM" "a chunk has what there is when it is sent";
    NoEffect ["spaces_between_special_tokens"] "vLLM" "text is decoded as by fast tokenizers, which pass over it";
    NoEffect ["return_token_offsets", "return_mm_kwargs", "routed_experts_prompt_start", "routed_experts_start_len"] "vLLM, SGLang" "for reports that routes which generate do not make";
    Refused("false") ["return_hidden_states", "return_routed_experts", "return_cached_tokens_details", "return_prompt_token_ids", "return_meta_info"] "SGLang" "such a report is not made; `usage` has cached tokens, `return_token_ids` gives the prompt's ids";
    NoEffect ["images_config", "max_dynamic_patch", "min_dynamic_patch", "use_audio_in_video"] "SGLang" "how media would be read, which are refused where they stand";
    Refused() ["repeat_penalty", "typical_p", "mirostat", "mirostat_tau", "mirostat_eta", "dynatemp_range", "xtc_probability", "dry_multiplier", "samplers", "n_predict"] "llama.cpp" "the fields of OpenAI and vLLM say how a token is chosen and how many";
}

table! {
    /// The fields of completions alone.
    COMPLETIONS "Completions";
    Obeyed ["prompt"] "OpenAI" "texts, or token ids";
    Obeyed ["max_tokens"] "OpenAI" "16 by default; 0 scores the prompt and generates nothing";
    Obeyed ["echo", "logprobs"] "OpenAI" "what is reported of prompt and continuation";
    Obeyed ["add_special_tokens"] "vLLM" "true by default";
    Refused("\"\"") ["suffix"] "OpenAI" "text is not put into a gap";
}

table! {
    /// The fields of chat alone.
    CHAT "Chat";
    Obeyed ["max_tokens", "max_completion_tokens"] "OpenAI" "the context that is left, by default";
    Obeyed ["logprobs", "top_logprobs"] "OpenAI" "log-probabilities of the answer's tokens";
    Obeyed ["include_reasoning", "return_prompt_text"] "vLLM" "what the answer shows";
    Obeyed ["add_special_tokens"] "vLLM" "false by default: a template has its own";
    Refused("[\"text\"]") ["modalities"] "OpenAI" "answers are text";
    Refused("\"medium\"") ["verbosity"] "OpenAI" "a template that reads such a variable is told it in `chat_template_kwargs`";
    Refused() ["web_search_options"] "OpenAI" "nothing is searched";
    Refused("false") ["echo"] "vLLM" "an answer is the model's own text";
    Refused() ["task"] "SGLang" "no template here has such tasks";
    Refused("true") ["separate_reasoning", "stream_reasoning"] "SGLang" "`include_reasoning` says what is shown";
}
