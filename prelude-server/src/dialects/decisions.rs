//! Fields of typed decisions and of moderation.

table! {
    /// The options of typed decisions.
    DECIDE "Typed decisions";
    Obeyed ["x_prelude"] "Prelude" "labels, permutations, temperature, the tree of the prompts";
    Obeyed ["escape_special_tokens"] "Prelude" "special tokens in people's texts are plain text";
    Refused() ["truncate_prompt_tokens", "truncation_side"] "vLLM" "what is decided about is never cut";
}

table! {
    /// The fields of `/v1/systemone`.
    SYSTEM_ONE "System One";
    Obeyed ["state", "questions", "instructions"] "System One" "what is asked about, the questions, and what the judge is told";
}

table! {
    /// The fields of `/v1/systemone/permute`.
    PERMUTE "Orders of options";
    Obeyed ["request", "question"] "Kev" "a request of `/v1/systemone`, and the id of a choice in it";
    Obeyed ["n_perm", "seed"] "Kev" "how many orders, and another shuffle; orders differ from those of Kev's own server";
}

table! {
    /// The fields of `/v1/decisions`.
    DECISIONS "Decisions";
    Obeyed ["input", "questions"] "OpenAI" "what is asked about, and the questions";
    Refused() ["state", "instructions"] "System One" "what is asked about is `input`; a question has instructions of its own";
}

table! {
    /// The fields of `/v1/moderations`.
    MODERATIONS "Moderation";
    Obeyed ["input"] "OpenAI" "texts, or parts of one text; parts that are not text are refused where they stand";
    Obeyed ["guidelines"] "Prelude" "what a guard is asked about that knows one guideline at a time";
}
