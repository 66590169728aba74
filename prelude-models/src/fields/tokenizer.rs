//! `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json`, as transformers 5.23
//! reads them.

use super::{Effect, Field};

pub(super) const TOKENIZER: &[Field] = &[
    Field {
        file: "tokenizer.json",
        names: &[
            "model",
            "normalizer",
            "pre_tokenizer",
            "post_processor",
            "decoder",
            "added_tokens",
        ],
        effect: Effect::Obeyed,
        note: "read by fasttoken, which refuses what it cannot do exactly",
    },
    Field {
        file: "tokenizer.json",
        names: &["version", "truncation", "padding"],
        effect: Effect::NoEffect,
        note: "transformers turns truncation and padding off before each call; a request says where a text is cut",
    },
];

pub(super) const TOKENIZER_CONFIG: &[Field] = &[
    Field {
        file: "tokenizer_config.json",
        names: &["chat_template"],
        effect: Effect::Obeyed,
        note: "prompt of a chat where there is no `chat_template.jinja`; of a list the one named `default`, and a list with a `tool_use` is refused",
    },
    Field {
        file: "tokenizer_config.json",
        names: &["eos_token"],
        effect: Effect::Obeyed,
        note: "ends an assistant's turn; a name in chat templates",
    },
    Field {
        file: "tokenizer_config.json",
        names: &[
            "bos_token",
            "unk_token",
            "sep_token",
            "pad_token",
            "cls_token",
            "mask_token",
        ],
        effect: Effect::Obeyed,
        note: "a name in chat templates",
    },
    Field {
        file: "tokenizer_config.json",
        names: &["model_max_length", "max_len"],
        effect: Effect::Obeyed,
        note: "longest text served, where it is less than the model's own",
    },
    Field {
        file: "tokenizer_config.json",
        names: &["tokenizer_class"],
        effect: Effect::Obeyed,
        note: "shown by `/tokenizer_info`",
    },
    Field {
        file: "tokenizer_config.json",
        names: &["added_tokens_decoder"],
        effect: Effect::Checked,
        note: "each token is an added token of `tokenizer.json` with the same id and flags",
    },
    Field {
        file: "tokenizer_config.json",
        names: &["add_prefix_space", "split_special_tokens", "do_lower_case"],
        effect: Effect::Refused(&["false"]),
        note: "changes how texts become tokens",
    },
    Field {
        file: "tokenizer_config.json",
        names: &["add_bos_token", "add_eos_token"],
        effect: Effect::NoEffect,
        note: "transformers drops them where there is a `tokenizer.json`, whose post-processor decides",
    },
    Field {
        file: "tokenizer_config.json",
        names: &[
            "additional_special_tokens",
            "extra_special_tokens",
            "model_specific_special_tokens",
        ],
        effect: Effect::NoEffect,
        note: "`tokenizer.json` has the tokens and says which are special",
    },
    Field {
        file: "tokenizer_config.json",
        names: &[
            "clean_up_tokenization_spaces",
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
            "spaces_between_special_tokens",
        ],
        effect: Effect::NoEffect,
        note: "text is what the tokens spell, as by vLLM",
    },
    Field {
        file: "tokenizer_config.json",
        names: &[
            "padding_side",
            "truncation_side",
            "pad_token_type_id",
            "model_input_names",
            "return_token_type_ids",
            "padding",
            "truncation",
            "max_length",
            "stride",
            "pad_to_multiple_of",
            "truncation_strategy",
        ],
        effect: Effect::NoEffect,
        note: "nothing is padded, and a request says where a text is cut",
    },
    Field {
        file: "tokenizer_config.json",
        names: &["errors"],
        effect: Effect::NoEffect,
        note: "what is not UTF-8 is shown as U+FFFD",
    },
    Field {
        file: "tokenizer_config.json",
        names: &[
            "response_template",
            "response_schema",
            "chat_control_tokens",
        ],
        effect: Effect::NoEffect,
        note: "transformers' own parsing of answers",
    },
    Field {
        file: "tokenizer_config.json",
        names: &["auto_map"],
        effect: Effect::Warned,
        note: "code of a checkpoint is never run",
    },
    Field {
        file: "tokenizer_config.json",
        names: &[
            "vocab_file",
            "merges_file",
            "tokenizer_file",
            "special_tokens_map_file",
            "name_or_path",
            "init_inputs",
            "backend",
            "files_loaded",
            "processor_class",
            "use_fast",
            "verbose",
            "legacy",
            "from_slow",
            "is_local",
            "local_files_only",
            "device_map",
            "slow_tokenizer_class",
            "fix_mistral_regex",
            "image_token",
            "audio_token",
            "video_token",
        ],
        effect: Effect::NoEffect,
        note: "transformers' loading",
    },
];

pub(super) const SPECIAL_TOKENS_MAP: &[Field] = &[
    Field {
        file: "special_tokens_map.json",
        names: &[
            "bos_token",
            "eos_token",
            "unk_token",
            "sep_token",
            "pad_token",
            "cls_token",
            "mask_token",
        ],
        effect: Effect::Obeyed,
        note: "as in `tokenizer_config.json`; read where that has no `added_tokens_decoder`, as by transformers",
    },
    Field {
        file: "special_tokens_map.json",
        names: &["additional_special_tokens", "extra_special_tokens"],
        effect: Effect::NoEffect,
        note: "`tokenizer.json` has the tokens and says which are special",
    },
];
