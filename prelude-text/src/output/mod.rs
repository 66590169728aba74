//! Parsers of generated text: reasoning, content, tool calls.
//!
//! Text arrives in pieces, and the result does not depend on where the pieces end: text that may
//! still become the beginning of a tag is held back. A call is reported whole, once it is known to
//! be well-formed; a malformed call is content, word for word.

mod call;
mod parser;

pub use call::ToolCall;
pub use parser::{OutputParser, OutputPart};

use serde::{Deserialize, Serialize};

/// The form in which a model writes its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningParser {
    /// Reasoning between `<think>` and `</think>`, before anything else.
    Qwen3,
}

/// The form in which a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolParser {
    /// `{"name": .., "arguments": {..}}` between `<tool_call>` and `</tool_call>`: Hermes and
    /// Qwen.
    Hermes,
}

/// The tag that opens reasoning.
pub const THINK: &str = "<think>";
/// The tag that closes reasoning.
pub const THINK_END: &str = "</think>";
/// The tag that opens a call of a tool.
pub const CALL: &str = "<tool_call>";
/// The tag that closes a call of a tool.
pub const CALL_END: &str = "</tool_call>";

/// The parts that an [`OutputParser`] looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Reasoning at the beginning of the text; `true` if the prompt has opened it already.
    pub reasoning: Option<bool>,
    /// Tool calls; with `false`, only the first counts.
    pub calls: Option<bool>,
    /// True if reasoning is left out of the result.
    pub silent: bool,
}
