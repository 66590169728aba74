//! What the text of an answer is made of: reasoning, content, calls of tools.
//!
//! Text comes piece by piece, and what is made of it does not depend on where the pieces end:
//! whatever may still turn out to be the beginning of a tag is held back. A call is told whole,
//! once it is known to be well-formed; what is not is content, word for word.

mod call;
mod pieces;

pub(crate) use call::ToolCall;
pub(crate) use pieces::{Piece, Pieces};

use serde::{Deserialize, Serialize};

/// How a model writes its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningParser {
    /// Between `<think>` and `</think>`, before anything else.
    Qwen3,
}

/// How a model calls tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolParser {
    /// `{"name": .., "arguments": {..}}` between `<tool_call>` and `</tool_call>`: Hermes and
    /// Qwen.
    Hermes,
}

/// Where reasoning begins and ends.
pub(crate) const THINK: &str = "<think>";
pub(crate) const THINK_END: &str = "</think>";
/// Where a call begins and ends.
pub(crate) const CALL: &str = "<tool_call>";
pub(crate) const CALL_END: &str = "</tool_call>";

/// What to look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Reasoning at the beginning; if `true`, the prompt has opened it already.
    pub(crate) reasoning: Option<bool>,
    /// Calls; if `false`, the first alone counts.
    pub(crate) calls: Option<bool>,
    /// Whether reasoning is left out.
    pub(crate) silent: bool,
}
