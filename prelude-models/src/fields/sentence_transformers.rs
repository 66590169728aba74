//! The files of sentence-transformers 6.2 and older releases.

use super::{Effect, Field};

pub(super) const MODULES: &[Field] = &[
    Field {
        file: "modules.json",
        names: &["type"],
        effect: Effect::Checked,
        note: "Transformer, Pooling or Normalize; Normalize makes vectors of length 1 the default",
    },
    Field {
        file: "modules.json",
        names: &["path"],
        effect: Effect::Checked,
        note: "Pooling is at `1_Pooling`, Normalize at `2_Normalize`",
    },
    Field {
        file: "modules.json",
        names: &["idx", "name", "kwargs"],
        effect: Effect::NoEffect,
        note: "the modules' order is the list's",
    },
];

pub(super) const POOLING: &[Field] = &[
    Field {
        file: "1_Pooling/config.json",
        names: &[
            "pooling_mode",
            "pooling_mode_mean_tokens",
            "pooling_mode_lasttoken",
        ],
        effect: Effect::Obeyed,
        note: "hidden states that make a vector: their mean or the last token's",
    },
    Field {
        file: "1_Pooling/config.json",
        names: &[
            "pooling_mode_cls_token",
            "pooling_mode_max_tokens",
            "pooling_mode_mean_sqrt_len_tokens",
            "pooling_mode_weightedmean_tokens",
        ],
        effect: Effect::Refused(&["false"]),
        note: "a pooling that is not computed",
    },
    Field {
        file: "1_Pooling/config.json",
        names: &["include_prompt"],
        effect: Effect::Refused(&["true"]),
        note: "a prompt is part of what is pooled",
    },
    Field {
        file: "1_Pooling/config.json",
        names: &["word_embedding_dimension", "embedding_dimension"],
        effect: Effect::NoEffect,
        note: "the tensors say it",
    },
];

pub(super) const NORMALIZE: &[Field] = &[Field {
    file: "2_Normalize/config.json",
    names: &["module_input_name", "module_output_name"],
    effect: Effect::Refused(&[r#""sentence_embedding""#]),
    note: "vectors of whole texts are scaled",
}];

pub(super) const PIPELINE: &[Field] = &[
    Field {
        file: "config_sentence_transformers.json",
        names: &["prompts"],
        effect: Effect::Obeyed,
        note: "texts that a request puts before its own by `prompt_name` or `input_type`",
    },
    Field {
        file: "config_sentence_transformers.json",
        names: &["similarity_fn_name"],
        effect: Effect::Obeyed,
        note: "documents are ranked by the cosine; a model with another similarity does not rank",
    },
    Field {
        file: "config_sentence_transformers.json",
        names: &["activation_fn"],
        effect: Effect::Obeyed,
        note: "activation of a cross-encoder's score: sigmoid or identity, others are refused; wins over `config.json`",
    },
    Field {
        file: "config_sentence_transformers.json",
        names: &["default_prompt_name"],
        effect: Effect::Refused(&[]),
        note: "a prompt stands before a text where a request says so",
    },
    Field {
        file: "config_sentence_transformers.json",
        names: &["truncate_dim"],
        effect: Effect::Refused(&[]),
        note: "a request cuts vectors (`dimensions`)",
    },
    Field {
        file: "config_sentence_transformers.json",
        names: &["model_type"],
        effect: Effect::Refused(&[r#""SentenceTransformer""#, r#""CrossEncoder""#]),
        note: "other pipelines are not computed",
    },
    Field {
        file: "config_sentence_transformers.json",
        names: &["keep_in_fp32_modules", "__version__"],
        effect: Effect::NoEffect,
        note: "notes of tools",
    },
];

pub(super) const TRANSFORMER: &[Field] = &[
    Field {
        file: "sentence_bert_config.json",
        names: &["max_seq_length"],
        effect: Effect::Obeyed,
        note: "longest text served, where it is less than the model's own",
    },
    Field {
        file: "sentence_bert_config.json",
        names: &["do_lower_case"],
        effect: Effect::Refused(&["false"]),
        note: "changes how texts become tokens",
    },
    Field {
        file: "sentence_bert_config.json",
        names: &["tokenizer_name_or_path"],
        effect: Effect::Refused(&[]),
        note: "the tokenizer is the folder's",
    },
    Field {
        file: "sentence_bert_config.json",
        names: &["transformer_task"],
        effect: Effect::Refused(&[r#""feature-extraction""#, r#""sequence-classification""#]),
        note: "a body or a classifier",
    },
    Field {
        file: "sentence_bert_config.json",
        names: &["module_output_name"],
        effect: Effect::Refused(&[r#""token_embeddings""#, r#""scores""#]),
        note: "what a body or a classifier puts out",
    },
    Field {
        file: "sentence_bert_config.json",
        names: &[
            "processing_kwargs",
            "model_args",
            "tokenizer_args",
            "config_args",
            "model_kwargs",
            "processor_kwargs",
            "config_kwargs",
        ],
        effect: Effect::Refused(&["{}"]),
        note: "changes how texts are read or the model is loaded",
    },
    Field {
        file: "sentence_bert_config.json",
        names: &["query_length", "document_length", "query_expansion"],
        effect: Effect::Refused(&[]),
        note: "for models with a vector for each token",
    },
    Field {
        file: "sentence_bert_config.json",
        names: &["modality_config", "unpad_inputs"],
        effect: Effect::NoEffect,
        note: "the ways of sentence-transformers to the same numbers",
    },
];
