//! Request bodies as types, for the document alone.
//!
//! Handlers read bodies field by field (`json.rs`), which no derive can see. So that these types
//! cannot drift from what is read, a debug build checks with every request that each field that
//! was asked for is here, and a test sends each field that is here and wants it noticed.
#![expect(dead_code, reason = "they are described, never built")]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

use crate::endpoints::{
    conversation::ConversationFields,
    input::Prompts,
    messages::{Content, Message, Part},
    submit::CommonFields,
    truncate::TruncationFields,
};

/// A string or a list of strings.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

/// Fields that completions and chat share.
#[derive(JsonSchema)]
struct Generation {
    /// Continuations of each prompt.
    #[schemars(range(min = 1, max = 128))]
    n: Option<u32>,
    /// Only equal to `n`.
    #[schemars(range(min = 1, max = 128))]
    best_of: Option<u32>,
    /// 0 always takes the likeliest token; by default what the model's own configuration says.
    #[schemars(range(min = 0))]
    temperature: Option<f64>,
    /// Above 0 and at most 1.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    top_p: Option<f64>,
    /// -1 and 0 are off.
    #[schemars(range(min = -1))]
    top_k: Option<i64>,
    #[schemars(range(min = 0, max = 1))]
    min_p: Option<f64>,
    #[schemars(range(max = 100), extend("exclusiveMinimum" = 0))]
    repetition_penalty: Option<f64>,
    #[schemars(range(min = -2, max = 2))]
    presence_penalty: Option<f64>,
    #[schemars(range(min = -2, max = 2))]
    frequency_penalty: Option<f64>,
    /// Repeats the same draws in any batch.
    seed: Option<i64>,
    /// At most 16 strings of 1 to 256 bytes.
    stop: Option<Texts>,
    /// At most 128 ids.
    stop_token_ids: Option<Vec<u32>>,
    include_stop_str_in_output: Option<bool>,
    /// Tokens before which nothing ends the text.
    min_tokens: Option<u32>,
    ignore_eos: Option<bool>,
    /// Token id to what is added to its logit, -100 to 100; at most 1,024.
    logit_bias: Option<BTreeMap<String, f64>>,
    /// The only ids that may be chosen.
    allowed_token_ids: Option<Vec<u32>>,
    /// Likeliest tokens beside each prompt token; -1 is the whole vocabulary, where the server
    /// allows it.
    #[schemars(range(min = -1))]
    prompt_logprobs: Option<i64>,
    /// Positions `[a, b)` that `prompt_logprobs` are wanted for.
    prompt_logprobs_range: Option<[u32; 2]>,
    return_token_ids: Option<bool>,
    /// Tokens print as `token_id:N`.
    return_tokens_as_token_ids: Option<bool>,
    skip_special_tokens: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// At most 256 strings of 1 to 256 bytes that no answer has, as the tokenizer spells them.
    bad_words: Option<Vec<String>>,
    /// Text is the default. Not together with other constraints.
    response_format: Option<ResponseFormat>,
    /// The language that every answer belongs to.
    structured_outputs: Option<StructuredOutputs>,
    /// Older name of `structured_outputs.choice`.
    guided_choice: Option<Vec<String>>,
    /// Older name of `structured_outputs.regex`.
    guided_regex: Option<String>,
    /// Older name of `structured_outputs.json`.
    guided_json: Option<Value>,
    /// Older name of `structured_outputs.json_object`.
    guided_json_object: Option<bool>,
    /// Older name of `structured_outputs.grammar`.
    guided_grammar: Option<String>,
    /// Older name of `structured_outputs.whitespace_pattern`.
    guided_whitespace_pattern: Option<String>,
}

/// One of these.
#[derive(JsonSchema)]
struct StructuredOutputs {
    /// 2 to 1,024 distinct texts.
    choice: Option<Vec<String>>,
    /// What the whole answer matches.
    regex: Option<String>,
    /// A JSON schema, or its text.
    json: Option<Value>,
    /// Any JSON object.
    json_object: Option<bool>,
    /// A grammar in Lark's syntax.
    grammar: Option<String>,
    /// JSON without white space between its parts.
    disable_any_whitespace: Option<bool>,
    /// A regular expression of what may stand between parts of JSON, besides nothing; by default
    /// a blank, or a line's end with up to 16 blanks of indentation.
    whitespace_pattern: Option<String>,
}

#[derive(JsonSchema)]
struct StreamOptions {
    /// One last chunk with the usage.
    include_usage: Option<bool>,
    /// The running usage on each chunk.
    continuous_usage_stats: Option<bool>,
}

#[derive(JsonSchema)]
struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    r#type: String,
    json_schema: Option<NamedSchema>,
}

#[derive(JsonSchema)]
struct NamedSchema {
    name: Option<String>,
    description: Option<String>,
    /// Schemas are enforced in either case.
    strict: Option<bool>,
    schema: BTreeMap<String, Value>,
}

/// `POST /v1/completions`.
#[derive(JsonSchema)]
pub(super) struct CompletionRequest {
    prompt: Prompts<'static>,
    /// 16 by default; 0 scores the prompt and generates nothing.
    max_tokens: Option<u32>,
    /// The prompt's text precedes the continuation.
    echo: Option<bool>,
    /// Likeliest tokens beside each token.
    #[schemars(range(min = -1))]
    logprobs: Option<i64>,
    add_special_tokens: Option<bool>,
    #[schemars(flatten)]
    generation: Generation,
    #[schemars(flatten)]
    truncation: TruncationFields,
    #[schemars(flatten)]
    common: CommonFields<'static>,
}

/// `POST /v1/chat/completions`.
#[derive(JsonSchema)]
pub(super) struct ChatRequest {
    #[schemars(flatten)]
    conversation: ConversationFields<'static>,
    /// The context left if absent. `max_completion_tokens` wins.
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    /// What the last message says is said again before the answer, if an assistant said it.
    echo: Option<bool>,
    /// The rendered prompt is shown as `prompt_text`.
    return_prompt_text: Option<bool>,
    /// Whether reasoning that the server tells from the content is sent.
    include_reasoning: Option<bool>,
    logprobs: Option<bool>,
    /// Only with `logprobs`.
    #[schemars(range(min = -1))]
    top_logprobs: Option<i64>,
    add_special_tokens: Option<bool>,
    #[schemars(flatten)]
    generation: Generation,
    #[schemars(flatten)]
    truncation: TruncationFields,
    #[schemars(flatten)]
    common: CommonFields<'static>,
}

/// A text, texts, or parts of one.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum PairSide {
    Text(String),
    Texts(Vec<String>),
    Parts { content: Vec<Part> },
}

/// Items as texts or as token ids.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Items {
    Text(String),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
    Parts { content: Vec<Part> },
}

/// A text or token ids.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Query {
    Text(String),
    Ids(Vec<u32>),
}

/// Tokens whose scores are wanted behind each item.
#[derive(JsonSchema)]
struct Labels {
    query: Option<Query>,
    items: Option<Items>,
    /// 1 to 1,024 ids. A model that has classes passes over them.
    label_token_ids: Option<Vec<u32>>,
    /// Strings of one token each, in place of ids; of a model that has classes some of their names,
    /// all if absent.
    labels: Option<Vec<String>>,
    /// Probabilities over the labels, not over the vocabulary.
    apply_softmax: Option<bool>,
    /// Items precede the query.
    item_first: Option<bool>,
}

/// `POST /score`: `query` with `items` scores labels; two sides of pairs are judged.
#[derive(JsonSchema)]
pub(super) struct ScoreRequest {
    #[schemars(flatten)]
    labels: Labels,
    queries: Option<PairSide>,
    documents: Option<PairSide>,
    text_1: Option<PairSide>,
    text_2: Option<PairSide>,
    data_1: Option<PairSide>,
    data_2: Option<PairSide>,
    /// What relevance means (pairs).
    instruction: Option<String>,
    /// 0 is no limit (pairs).
    max_tokens_per_query: Option<u32>,
    /// 0 is no limit (pairs).
    max_tokens_per_doc: Option<u32>,
    /// False: raw differences (pairs).
    use_activation: Option<bool>,
    /// Special tokens in texts are plain text (pairs judged behind a prompt).
    escape_special_tokens: Option<bool>,
    #[schemars(flatten)]
    truncation: TruncationFields,
    #[schemars(flatten)]
    common: CommonFields<'static>,
}

/// `POST /generative_scoring`.
#[derive(JsonSchema)]
pub(super) struct GenerativeScoringRequest {
    #[schemars(flatten)]
    labels: Labels,
    #[schemars(flatten)]
    truncation: TruncationFields,
    #[schemars(flatten)]
    common: CommonFields<'static>,
}

/// A string, or an object that holds it.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Document {
    Text(String),
    Object { text: String },
}

/// `POST /rerank`: `documents` (Jina's, vLLM's and Cohere's dialect), or `texts` (TEI's).
#[derive(JsonSchema)]
pub(super) struct RerankRequest {
    query: String,
    #[schemars(length(min = 1))]
    documents: Option<Vec<Document>>,
    /// Results to return; 0 and null are all.
    #[schemars(range(min = 0))]
    top_n: Option<i64>,
    return_documents: Option<bool>,
    /// What relevance means.
    instruction: Option<String>,
    /// The same.
    instruct: Option<String>,
    /// 0 is no limit.
    max_tokens_per_doc: Option<u32>,
    /// False: raw differences.
    use_activation: Option<bool>,
    /// Special tokens in texts are plain text (models that judge behind a prompt).
    escape_special_tokens: Option<bool>,
    #[schemars(length(min = 1))]
    texts: Option<Vec<String>>,
    /// Cut texts that are too long (with `texts`).
    truncate: Option<bool>,
    /// `left` or `right` (with `texts`).
    truncation_direction: Option<String>,
    /// Raw differences (with `texts`).
    raw_scores: Option<bool>,
    /// Results carry their text (with `texts`).
    return_text: Option<bool>,
    #[schemars(flatten)]
    truncation: TruncationFields,
    #[schemars(flatten)]
    common: CommonFields<'static>,
}

/// How decisions are made.
#[derive(JsonSchema)]
struct DecideOptions {
    /// `prelude-decide-1`.
    prompt_format: Option<String>,
    /// `code`: options by letters and numbers; `text`: by their names.
    labels: Option<String>,
    /// Rotations of the label assignment that a choice is averaged over.
    #[schemars(range(min = 1, max = 8))]
    permutations: Option<u32>,
    /// Divides the labels' logits.
    temperature: Option<f64>,
}

/// Text, or JSON that is shown as it came.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum TextOrJson {
    Text(String),
    Object(BTreeMap<String, Value>),
    List(Vec<Value>),
}

/// `POST /v1/systemone`.
#[derive(JsonSchema)]
pub(super) struct SystemOneRequest {
    /// What the questions are about.
    state: TextOrJson,
    /// 1 to 256 questions by ids of the caller's.
    questions: BTreeMap<String, Question>,
    instructions: Option<TextOrJson>,
    x_prelude: Option<DecideOptions>,
    /// Special tokens in what people wrote are plain text.
    escape_special_tokens: Option<bool>,
    #[schemars(flatten)]
    common: CommonFields<'static>,
}

/// `noul`: criteria for true and false, if any. `choice`: 2 to 255 options and what they mean.
/// `score`: 2 to 10 levels in order.
#[derive(JsonSchema)]
struct Question {
    /// `noul`, `choice` or `score`.
    r#type: String,
    instructions: Option<TextOrJson>,
    criteria: Option<Criteria>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Criteria {
    Options(BTreeMap<String, Option<TextOrJson>>),
    Levels(Vec<TextOrJson>),
}

/// `POST /v1/decisions`.
#[derive(JsonSchema)]
pub(super) struct DecisionRequest {
    input: DecisionInput,
    /// 1 to 256.
    #[schemars(length(min = 1, max = 256))]
    questions: Vec<DecisionQuestion>,
    safety_identifier: Option<String>,
    x_prelude: Option<DecideOptions>,
    /// Special tokens in what people wrote are plain text.
    escape_special_tokens: Option<bool>,
    #[schemars(flatten)]
    common: CommonFields<'static>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum DecisionInput {
    Text(String),
    Messages(#[schemars(length(min = 1))] Vec<DecisionMessage>),
}

#[derive(JsonSchema)]
struct DecisionMessage {
    /// `user`.
    role: String,
    content: Content,
}

#[derive(JsonSchema)]
#[schemars(tag = "type", rename_all = "lowercase")]
enum DecisionQuestion {
    Predicate {
        name: Option<String>,
        instructions: String,
    },
    Choice {
        name: Option<String>,
        instructions: String,
        #[schemars(length(min = 2, max = 255))]
        choices: Vec<Choice>,
    },
    Score {
        name: Option<String>,
        instructions: String,
        #[schemars(length(min = 2, max = 10))]
        levels: Vec<Level>,
    },
}

#[derive(JsonSchema)]
struct Choice {
    value: StringOrBool,
    description: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(crate) enum StringOrBool {
    String(String),
    Bool(bool),
}

#[derive(JsonSchema)]
struct Level {
    label: String,
    description: Option<String>,
}

/// `POST /tokenize`: a text, texts, or messages.
#[derive(JsonSchema)]
pub(super) struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<Texts>,
    #[schemars(length(min = 1))]
    messages: Option<Vec<Message>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<BTreeMap<String, Value>>,
    enable_thinking: Option<bool>,
    tools: Option<Vec<BTreeMap<String, Value>>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    documents: Option<Vec<BTreeMap<String, Value>>>,
    /// A template in place of the model's own, where the server takes any.
    chat_template: Option<String>,
    /// Special tokens in what people wrote are plain text.
    escape_special_tokens: Option<bool>,
    add_special_tokens: Option<bool>,
    /// Each token's text beside its id.
    return_token_strs: Option<bool>,
}

/// `POST /detokenize`.
#[derive(JsonSchema)]
pub(super) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
    skip_special_tokens: Option<bool>,
}
