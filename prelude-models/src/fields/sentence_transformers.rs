//! The files of sentence-transformers 6.2 and older releases.

use crate::field::rows;

rows! {
    MODULES, "modules.json";
    Checked ["type"]
        "of the package `sentence_transformers`: Transformer, Pooling, Dense, or Normalize, which makes vectors of length 1 the default, in this order; of a language model LogitScore, which makes it a reranker";
    Checked ["path"]
        "Pooling is at `1_Pooling`, LogitScore at `1_LogitScore`, Dense and Normalize in any folder of the checkpoint's; that of Transformer (`0_Transformer`, in old files) has the model's own files";
    NoEffect ["idx", "name", "kwargs"] "the modules' order is the list's";
}

rows! {
    POOLING, "1_Pooling/config.json";
    Obeyed [
        "pooling_mode", "pooling_mode_cls_token", "pooling_mode_mean_tokens",
        "pooling_mode_lasttoken",
    ] "hidden states that make a vector: the first token's, the last token's or their mean";
    Refused("false") [
        "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens",
    ] "a pooling that is not computed";
    Refused("true") ["include_prompt"] "a prompt is part of what is pooled";
    NoEffect ["word_embedding_dimension", "embedding_dimension"] "the tensors say it";
}

rows! {
    NORMALIZE, "2_Normalize/config.json";
    Refused(r#""sentence_embedding""#) ["module_input_name", "module_output_name"]
        "vectors of whole texts are scaled";
}

rows! {
    DENSE, "2_Dense/config.json";
    Obeyed ["in_features", "out_features", "bias"]
        "shape of the product, with a bias if the file does not say; the tensors must fit it";
    Obeyed ["activation_function"] "`Identity`, `Tanh`, `ReLU` or `GELU` of PyTorch";
    Refused(r#""sentence_embedding""#) ["module_input_name", "module_output_name"]
        "vectors of whole texts are multiplied";
}

rows! {
    LOGIT_SCORE, "1_LogitScore/config.json";
    Obeyed ["true_token_id", "false_token_id"]
        "a document's score is the logit of one token less that of the other; both must be there";
    Refused(r#""causal_logits""#) ["module_input_name"] "the logits of the vocabulary are read";
}

rows! {
    PIPELINE, "config_sentence_transformers.json";
    Obeyed ["prompts"]
        "texts that a request puts before its own by `prompt_name` or `input_type`";
    Obeyed ["similarity_fn_name"]
        "documents are ranked by the cosine; a model with another similarity does not rank";
    Obeyed ["activation_fn"]
        "activation of a cross-encoder's score: sigmoid or identity, others are refused; wins over `config.json`";
    Obeyed ["default_prompt_name"]
        "the prompt of requests that name none: before a text to embed, the instruction of a cross-encoder";
    Obeyed ["truncate_dim"] "components of vectors of requests that do not say (`dimensions`)";
    Refused(r#""SentenceTransformer""#, r#""CrossEncoder""#) ["model_type"]
        "other pipelines are not computed";
    NoEffect ["keep_in_fp32_modules", "__version__"] "notes of tools";
}

rows! {
    TRANSFORMER, "sentence_bert_config.json";
    Obeyed ["max_seq_length"] "longest text served, where it is less than the model's own";
    Refused("false") ["do_lower_case"] "changes how texts become tokens";
    Refused() ["tokenizer_name_or_path"] "the tokenizer is the folder's";
    Refused(r#""feature-extraction""#, r#""sequence-classification""#, r#""text-generation""#)
        ["transformer_task"] "a body, a classifier or a language model";
    Refused(r#""token_embeddings""#, r#""scores""#, r#""causal_logits""#) ["module_output_name"]
        "what a body, a classifier or a language model puts out";
    Refused("{}") [
        "processing_kwargs", "model_args", "tokenizer_args", "config_args", "model_kwargs",
        "processor_kwargs", "config_kwargs",
    ] "changes how texts are read or the model is loaded";
    Refused() ["query_length", "document_length", "query_expansion"]
        "for models with a vector for each token";
    NoEffect ["modality_config", "unpad_inputs"]
        "the ways of sentence-transformers to the same numbers";
}
