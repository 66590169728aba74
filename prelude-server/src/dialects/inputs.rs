//! Fields that the requests of several routes have.

table! {
    /// The fields of every inference request.
    COMMON "Every request";
    Obeyed ["model"] "all" "a served name or alias; without it the first model that serves the route";
    Obeyed ["priority"] "vLLM, SGLang, Cohere" "lower runs first";
    Obeyed ["cache_salt"] "vLLM, SGLang" "requests with different salts share no cache";
    Obeyed ["request_id"] "vLLM" "names the request in its answer's headers and in the log";
    Obeyed ["slo_ttft_ms", "on_deadline"] "Prelude" "deadline of the request, and what becomes of it when that passes";
    NoEffect ["user"] "OpenAI" "no answer depends on who asks";
    NoEffect ["mm_processor_kwargs", "media_io_kwargs"] "vLLM" "how media would be read, which are refused where they stand";
    NoEffect ["routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"] "SGLang" "a model runs on one device";
    Refused() ["lora", "lora_path"] "SGLang" "an adapter is a model of its own, merged when it is loaded: `model` names it";
    Refused("\"do_not_pad\"") ["padding"] "vLLM" "no text is padded";
}

table! {
    /// Fields that carry what is not text.
    MEDIA "Media";
    Refused("[]") ["image", "images", "image_url", "image_urls"] "Ollama, Cohere, SGLang, llama.cpp" "models read text alone";
    Refused("[]") ["audio", "audios", "input_audio"] "OpenAI, SGLang" "models read text alone";
    Refused("[]") ["video", "videos", "video_url"] "SGLang" "models read text alone";
    Refused("[]") ["assets", "media", "files", "multi_modal_data"] "System One, SGLang, vLLM" "models read text alone";
}

table! {
    /// The fields of requests that are answered in one piece.
    ONE_PIECE "Answers in one piece";
    Refused("false") ["stream"] "OpenAI" "the answer is one piece";
}

table! {
    /// Fields of OpenAI's service that concern no answer.
    SERVICE "Beside the answer";
    NoEffect ["safety_identifier", "prompt_cache_key", "prompt_cache_retention"] "OpenAI" "no answer depends on who asks; caches are kept apart by `cache_salt`";
    NoEffect ["metadata", "store"] "OpenAI" "nothing is stored";
    NoEffect ["service_tier"] "OpenAI" "there is one tier; `priority` orders requests";
}

table! {
    /// Texts to read.
    INPUTS "Texts to read";
    Obeyed ["input"] "OpenAI, vLLM, SGLang" "texts, token ids, or pairs of texts";
    Obeyed ["text_pair"] "pipelines" "a second text for each of `input`, which a classifier reads together with the first";
    Obeyed ["add_special_tokens"] "vLLM" "true by default for texts";
    Obeyed ["use_activation"] "vLLM" "vectors of length 1, classes as probabilities; false gives the numbers before that";
    NoEffect ["rid"] "SGLang" "names the request, which no answer depends on";
    Refused() ["embed_overrides", "embed_override_token_id"] "SGLang" "texts are read through the model's own embeddings";
    Refused() ["data"] "vLLM" "there are no plugins; texts are `input`";
}

table! {
    /// A conversation, and what its template is told.
    CONVERSATION "Conversations";
    Obeyed ["messages"] "OpenAI" "rendered by the model's chat template; parts that are not text are refused where they stand";
    Obeyed ["tools", "tool_choice", "parallel_tool_calls"] "OpenAI" "functions that the model may call, must call, or is not shown";
    Obeyed ["add_generation_prompt", "continue_final_message"] "vLLM" "how the rendered conversation ends";
    Obeyed ["chat_template_kwargs", "documents"] "vLLM" "variables of the template";
    Refused() ["chat_template"] "vLLM" "a template is a program, which requests do not bring; the server's `--chat-template` names one";
    Obeyed ["enable_thinking"] "Prelude" "short for the template's variable";
    Obeyed ["escape_special_tokens"] "Prelude" "special tokens in people's texts are plain text";
    Refused("[]") ["functions"] "OpenAI" "`tools` has taken its place";
    Refused("\"none\"", "\"auto\"") ["function_call"] "OpenAI" "`tool_choice` has taken its place";
    Refused() ["reasoning_effort", "reasoning", "thinking"] "OpenAI, vLLM, SGLang" "a template that reads such a variable is told it in `chat_template_kwargs`";
}

table! {
    /// The cut of texts that are too long.
    TRUNCATION "Long texts";
    Cut ["truncate_prompt_tokens"] "vLLM" "tokens that are kept; -1 is what the context holds; without it the switch decides, or `auto_truncate`";
    Cut ["truncation_side"] "vLLM" "the side that is cut";
}

table! {
    /// The cut of texts that are too long, in TEI's dialect.
    TEI_TRUNCATION "Long texts, in TEI's dialect";
    Cut ["truncate"] "TEI" "true cuts what is beyond the context, false refuses the text; without it the model's `auto_truncate` decides";
    Cut ["truncation_direction"] "TEI" "the side that is cut, the right one by default";
}

table! {
    /// The switch by which hosted services cut texts that are too long.
    SWITCH "Long texts, by a switch";
    Cut ["truncate", "truncation"] "Jina, Voyage" "true cuts what is beyond the context, false refuses the text; without it the model's `auto_truncate` decides";
}

table! {
    /// The parameters of a pipeline behind an inference endpoint.
    PIPELINE "Pipelines";
    Refused("{}") ["parameters"] "Hugging Face" "parameters stand beside `inputs` here";
    NoEffect ["options"] "Hugging Face" "whether to wait for a model, or for a cached answer";
}
