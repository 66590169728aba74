//! `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json`, as transformers 5.23
//! reads them.

use crate::field::rows;

rows! {
    TOKENIZER, "tokenizer.json";
    Obeyed ["model", "normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens"]
        "read by fasttoken, which refuses what it cannot do exactly";
    NoEffect ["version", "truncation", "padding"]
        "transformers turns truncation and padding off before each call; a request says where a text is cut";
}

rows! {
    TOKENIZER_CONFIG, "tokenizer_config.json";
    Obeyed ["chat_template"]
        "prompt of a chat where there is no `chat_template.jinja`; of a list the one named `default`, and a list with a `tool_use` is refused";
    Obeyed ["eos_token"] "ends an assistant's turn; a name in chat templates";
    Obeyed ["bos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
        "a name in chat templates";
    Obeyed ["model_max_length", "max_len"]
        "longest text served, where it is less than the model's own";
    Obeyed ["tokenizer_class"] "shown by `/tokenizer_info`";
    Checked ["added_tokens_decoder"]
        "each token is an added token of `tokenizer.json` with the same id and flags";
    Refused("false") ["add_prefix_space", "split_special_tokens"]
        "changes how texts become tokens";
    Checked ["do_lower_case", "strip_accents", "tokenize_chinese_chars"]
        "the normalizer of `tokenizer.json` says the same; transformers would change it";
    NoEffect ["do_basic_tokenize", "never_split"] "read by tokenizers without a `tokenizer.json`";
    NoEffect ["add_bos_token", "add_eos_token"]
        "transformers drops them where there is a `tokenizer.json`, whose post-processor decides";
    NoEffect [
        "additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens",
    ] "`tokenizer.json` has the tokens and says which are special";
    NoEffect [
        "clean_up_tokenization_spaces",
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
        "spaces_between_special_tokens",
    ] "text is what the tokens spell, as by vLLM";
    NoEffect [
        "padding_side", "truncation_side", "pad_token_type_id", "model_input_names",
        "return_token_type_ids", "padding", "truncation", "max_length", "stride",
        "pad_to_multiple_of", "truncation_strategy",
    ] "nothing is padded, and a request says where a text is cut";
    NoEffect ["errors"] "what is not UTF-8 is shown as U+FFFD";
    NoEffect ["response_template", "response_schema", "chat_control_tokens"]
        "transformers' own parsing of answers";
    Warned ["auto_map"] "code of a checkpoint is never run";
    NoEffect [
        "vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file", "name_or_path",
        "init_inputs", "backend", "files_loaded", "processor_class", "use_fast", "verbose",
        "legacy", "from_slow", "is_local", "local_files_only", "device_map",
        "slow_tokenizer_class", "fix_mistral_regex", "image_token", "audio_token", "video_token",
    ] "transformers' loading";
}

rows! {
    SPECIAL_TOKENS_MAP, "special_tokens_map.json";
    Obeyed [
        "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
        "mask_token",
    ]
        "as in `tokenizer_config.json`; read where that has no `added_tokens_decoder`, as by transformers";
    NoEffect ["additional_special_tokens", "extra_special_tokens"]
        "`tokenizer.json` has the tokens and says which are special";
}
