//! Fields of routes that answer with vectors.

table! {
    /// The options of vectors.
    VECTORS "Vectors";
    Obeyed ["encoding_format"] "OpenAI, vLLM, Voyage" "`float` or `base64`";
    Obeyed ["embedding_type"] "Jina" "`encoding_format` under another name; bits are refused";
    Obeyed ["embed_dtype", "endianness"] "vLLM" "the bytes of a number in base64: `float32`, `float16` or `bfloat16`, least significant first by default";
    Obeyed ["dimensions", "output_dimension"] "OpenAI, vLLM, Jina, Voyage" "cut to this many components first, normalised after; one of the two names";
    Obeyed ["normalize", "normalized"] "vLLM, older; Jina" "`use_activation` under other names; at most one is given";
    Refused("\"float\"") ["output_dtype"] "Voyage" "numbers are floats; `embed_dtype` says which in base64";
    Obeyed ["instruction", "prompt_name"] "Prelude, TEI" "put before each text";
    Obeyed ["input_type"] "Voyage, Cohere" "chooses a prompt that the model brings";
    Refused("false") ["late_chunking", "return_multivector"] "Jina" "each text has one vector of its own; /pooling gives one for each token";
}

table! {
    /// The fields of `/v1/embeddings` alone.
    EMBEDDINGS "Embeddings";
    Refused() ["task"] "Jina" "`input_type` and `prompt_name` choose a prompt that the model brings";
}

table! {
    /// The fields of `/pooling` alone.
    POOLING "Pooling";
    Obeyed ["task"] "vLLM" "vectors or classes, of texts or of their tokens";
    Refused() ["top_k"] "pipelines" "the answer has all numbers";
}

table! {
    /// The fields of `/v2/embed`.
    COHERE_EMBED "Embeddings, in Cohere's dialect";
    Obeyed ["texts"] "Cohere" "texts to embed";
    Obeyed ["input_type"] "Cohere" "chooses a prompt that the model brings";
    Obeyed ["embedding_types"] "Cohere" "`float`, `base64`, `binary`, `ubinary`; others are refused";
    Obeyed ["output_dimension"] "Cohere" "cut to this many components first, normalised after";
    Cut ["truncate"] "Cohere" "`END` by default, `START`; `NONE` refuses a text that is too long";
    Cut ["max_tokens"] "Cohere" "tokens of a text that are read";
    Refused("[]") ["inputs"] "Cohere" "texts are `texts`; models read text alone";
}

table! {
    /// The fields of `/embed`.
    TEI_EMBED "Embeddings, in TEI's dialect";
    Obeyed ["inputs"] "TEI" "texts, or token ids";
    Obeyed ["normalize"] "TEI" "vectors of length 1, by default";
    Obeyed ["prompt_name"] "TEI" "a prompt that the model brings";
    Obeyed ["dimensions"] "TEI" "cut to this many components first, normalised after";
}

table! {
    /// The fields of `/embed_all`.
    TEI_EMBED_ALL "Embeddings of tokens, in TEI's dialect";
    Obeyed ["inputs"] "TEI" "texts, or token ids";
    Obeyed ["prompt_name"] "TEI" "a prompt that the model brings";
    Refused("false") ["normalize"] "TEI" "vectors of tokens are as the model computes them";
    Refused() ["dimensions"] "TEI" "vectors of tokens are as the model computes them";
}

table! {
    /// The fields of `/similarity`.
    TEI_SIMILARITY "Similarity, in TEI's dialect";
    Obeyed ["inputs"] "TEI" "`source_sentence` and `sentences`";
    Obeyed ["parameters"] "TEI" "`truncate` and `truncation_direction`; `prompt_name` is refused";
}
