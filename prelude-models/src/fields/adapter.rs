//! `adapter_config.json` of PEFT 0.20 and older releases.

use crate::field::rows;

rows! {
    ADAPTER, "adapter_config.json";
    Refused(r#""LORA""#) ["peft_type"] "a matrix changes by a product of two; it must be there";
    Obeyed ["r", "lora_alpha", "use_rslora"]
        "the product is multiplied by `lora_alpha` / `r`, or with `use_rslora` by `lora_alpha` / √`r`; both are 8 if the file does not say";
    Obeyed ["modules_to_save"]
        "modules that are replaced whole: the file of weights must have their tensors";
    Checked ["task_type"]
        "SEQ_CLS or TOKEN_CLS, which make the base a classifier with as many classes as the saved head has rows; CAUSAL_LM or FEATURE_EXTRACTION, which leave it what it is";
    Obeyed ["auto_mapping"]
        "without `task_type`, the class in it, if it is a classifier's, makes the base one";
    Obeyed ["base_model_name_or_path"] "the folder of the base, unless another is named";
    NoEffect ["revision"] "shown where the base has to be named";
    Refused(r#""none""#) ["bias"] "biases of the base change";
    Refused("false") [
        "use_dora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out",
        "ensure_weight_tying",
    ]
        "the product alone is added to a matrix, as it is";
    Refused("{}") ["rank_pattern", "alpha_pattern"] "all products have one rank and one factor";
    Refused() ["layer_replication"] "layers are the base's";
    Refused("[]") ["trainable_token_indices", "target_parameters"] "whole matrices of modules change";
    Refused() ["megatron_config"] "matrices are stored otherwise";
    Refused() [
        "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config",
        "velora_config",
    ] "a variant that is no sum of the base and one product";
    Refused("true", "false", r#""gaussian""#, r#""eva""#, r#""orthogonal""#, r#""mica""#)
        ["init_lora_weights"]
        "others change the base too; PEFT's `path_initial_model_for_weight_conversion` makes a plain adapter of them";
    NoEffect ["loftq_config", "eva_config", "corda_config", "lora_ga_config"]
        "read with the values of `init_lora_weights` of these names, when an adapter is made";
    NoEffect ["target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"]
        "the tensors say which modules change";
    NoEffect ["lora_dropout", "inference_mode", "qalora_group_size"] "used in training";
    NoEffect ["megatron_core", "runtime_config", "peft_version"] "notes of tools";
}
