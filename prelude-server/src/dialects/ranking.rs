//! Fields of routes that classify, score and rank.

table! {
    /// Labels that a language model chooses from.
    LABELS "Labels";
    Obeyed ["labels", "template"] "Prelude" "labels for a language model to choose from, and the text around each input";
}

table! {
    /// Other names of `use_activation` where classes are asked for.
    ACTIVATION "Activations of classes";
    Obeyed ["activation", "softmax"] "vLLM, older" "`use_activation` under its older names; at most one is given";
    Obeyed ["function_to_apply"] "pipelines" "`none` gives logits; `sigmoid` or `softmax` must be the model's own";
}

table! {
    /// The fields of `/predict`.
    TEI_PREDICT "Classes, in TEI's dialect";
    Obeyed ["inputs"] "TEI" "texts to classify";
    Obeyed ["raw_scores"] "TEI" "logits in place of probabilities";
    Obeyed ["function_to_apply"] "pipelines" "`none` gives logits; `sigmoid` or `softmax` must be the model's own";
    Cut ["top_k"] "pipelines" "the likeliest classes alone";
    Refused("true") ["return_all_scores"] "pipelines" "`top_k` says how many";
    Refused() ["input", "messages", "labels", "template", "text"] "vLLM" "texts are `inputs` in this dialect";
    Refused("true") ["use_activation"] "vLLM" "`raw_scores` is its name in this dialect";
}

table! {
    /// The fields of `/score`: labels behind items, or pairs.
    SCORE "Scores";
    Obeyed ["query", "items", "label_token_ids", "apply_softmax", "item_first"] "SGLang, vLLM" "labels scored behind a query and each item";
    Obeyed ["labels"] "Prelude" "strings in place of ids";
    Obeyed ["queries", "documents", "text_1", "text_2"] "vLLM" "pairs, in one of two spellings";
    Obeyed ["instruction"] "Prelude" "the meaning of relevance";
    Obeyed ["use_activation", "activation"] "vLLM" "false gives raw differences";
    Obeyed ["escape_special_tokens"] "Prelude" "special tokens in people's texts are plain text";
    Cut ["max_tokens_per_query", "max_tokens_per_doc"] "vLLM" "tokens of each side of a pair that are read";
    NoEffect ["rid"] "SGLang" "names the request, which no answer depends on";
    Refused() ["data_1", "data_2"] "vLLM" "pairs are `queries` and `documents`, or `text_1` and `text_2`";
    Refused() ["embed_override_token_id", "query_embed_overrides", "item_embed_overrides"] "SGLang" "texts are read through the model's own embeddings";
    Refused("false") ["return_pooled_hidden_states"] "SGLang" "such a report is not made";
}

table! {
    /// The fields of the rerank routes, in every dialect.
    RERANK "Ranking";
    Obeyed ["query"] "vLLM, Cohere, Jina, Voyage, SGLang, TEI" "the query that documents are ranked for";
    Obeyed ["escape_special_tokens"] "Prelude" "special tokens in people's texts are plain text";
    Refused("[]") ["rank_fields"] "Cohere, older" "a document is a string, or an object with `text`";
    Refused() ["max_chunks_per_doc"] "Cohere, older" "`max_tokens_per_doc` has taken its place";
    Refused("false") ["return_embeddings"] "Jina" "ranking answers with scores alone";
}

table! {
    /// The fields of requests that rank `documents`.
    RERANK_DOCUMENTS "Ranking documents";
    Obeyed ["documents"] "vLLM, Cohere, Jina, Voyage, SGLang" "what is ranked";
    Obeyed ["top_n", "return_documents"] "vLLM, Cohere, Jina" "how much is answered";
    Obeyed ["top_k", "rid"] "SGLang" "`top_n`, and what chooses SGLang's form of the answer; `top_k` without it is refused";
    Obeyed ["instruction", "instruct"] "Prelude, SGLang" "the meaning of relevance";
    Obeyed ["use_activation", "activation"] "vLLM" "false gives raw differences";
    Cut ["max_tokens_per_query", "max_tokens_per_doc"] "vLLM, Cohere" "tokens of the query and of a document that are read";
    Foreign("false") ["raw_scores", "return_text"] "TEI" "fields of the dialect that `texts` chooses";
    Foreign() ["truncation_direction"] "TEI" "a field of the dialect that `texts` chooses";
}

table! {
    /// The fields of requests that rank `texts`.
    RERANK_TEXTS "Ranking texts, in TEI's dialect";
    Obeyed ["texts"] "TEI" "what is ranked; chooses this dialect";
    Obeyed ["raw_scores", "return_text"] "TEI" "false gives probabilities; true repeats each text";
    NoEffect ["top_k", "rid"] "SGLang" "all texts are answered, in TEI's form";
    Foreign("0") ["top_n", "max_tokens_per_query", "max_tokens_per_doc"] "Cohere" "fields of the dialects that `documents` chooses";
    Foreign("false") ["return_documents"] "Jina" "`return_text` is its name in this dialect";
    Foreign("true") ["use_activation", "activation"] "vLLM" "`raw_scores` is its name in this dialect";
    Foreign() ["instruction", "instruct"] "Prelude, SGLang" "a field of the dialects that `documents` chooses";
    Foreign() ["truncation", "truncate_prompt_tokens", "truncation_side"] "Voyage, vLLM" "`truncate` and `truncation_direction` cut in this dialect";
}

table! {
    /// The fields of `/classify` alone.
    CLASSIFY "Classes";
    Obeyed ["top_k"] "pipelines" "no smaller than the number of classes: the answer has them all; with `inputs` any number";
    Refused("true") ["return_all_scores"] "pipelines" "the answer has the numbers of all classes";
    Refused("false") ["raw_scores"] "TEI" "a field of the dialect that `inputs` chooses";
    Refused() ["truncation_direction"] "TEI" "a field of the dialect that `inputs` chooses";
}
