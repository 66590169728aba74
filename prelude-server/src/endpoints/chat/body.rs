//! The bodies of a chat's answers: whole ones, and chunks.

use std::borrow::Cow;

use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::Serialize;

use crate::tasks::{
    generate::{ChatLogprobs, PromptLogprobs, PromptLogprobsSchema, StopReason},
    submit::UsageBody,
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Chat{C}")]
pub(crate) struct Body<'a, C> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Option<UsageBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PromptLogprobsSchema")]
    pub(super) prompt_logprobs: Option<Option<PromptLogprobs<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_text: Option<&'a str>,
    pub(super) system_fingerprint: &'a str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Completion")]
pub(crate) struct ChoiceBody<'a> {
    pub(super) index: usize,
    pub(super) message: Message<'a>,
    #[serde(flatten)]
    pub(super) state: State<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Chunk")]
pub(crate) struct ChunkBody<'a> {
    pub(super) index: usize,
    pub(super) delta: Message<'a>,
    #[serde(flatten)]
    pub(super) state: State<'a>,
}

/// The message of an answer, or a part of it.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
pub(super) struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<Option<Cow<'a, str>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning: Option<&'a str>,
    /// The same text as `reasoning`, for clients that know the older name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<CallBody<'a>>,
}

/// A call of a tool. A chunk has whole ones too.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ToolCall")]
pub(super) struct CallBody<'a> {
    /// The index among the choice's calls, in a chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<usize>,
    pub(super) id: String,
    pub(super) r#type: &'static str,
    pub(super) function: FunctionBody<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CalledFunction")]
pub(super) struct FunctionBody<'a> {
    pub(super) name: &'a str,
    /// The text of a JSON object.
    pub(super) arguments: &'a str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatState")]
pub(super) struct State<'a> {
    pub(super) logprobs: Option<ChatLogprobs<'a>>,
    pub(super) finish_reason: Option<&'static str>,
    pub(super) stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<&'a [TokenId]>,
}
