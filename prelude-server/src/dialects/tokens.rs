//! Fields of routes that ask a tokenizer alone.

table! {
    /// The fields of `/tokenize`.
    TOKENIZE "Tokens of texts";
    Obeyed ["model"] "vLLM" "a served name or alias; without it the first model";
    Obeyed ["prompt"] "vLLM, SGLang" "a text, or texts";
    Obeyed ["add_special_tokens", "return_token_strs"] "vLLM" "what the answer has beside the text's ids";
    NoEffect ["mm_processor_kwargs", "media_io_kwargs"] "vLLM" "how media would be read, which are refused where they stand";
    Refused() ["inputs", "content"] "TEI, llama.cpp" "the text is `prompt` here";
    Refused("false") ["echo", "return_prompt_text"] "vLLM" "the answer has tokens alone";
    Refused() ["truncate_prompt_tokens", "truncation_side"] "vLLM" "all tokens are answered";
}

table! {
    /// The fields of `/detokenize`.
    DETOKENIZE "Text of tokens";
    Obeyed ["model"] "vLLM" "a served name or alias; without it the first model";
    Obeyed ["tokens"] "vLLM" "token ids";
    Obeyed ["skip_special_tokens"] "SGLang" "false by default, as in vLLM";
    Refused() ["ids"] "TEI" "ids are `tokens` here";
}
