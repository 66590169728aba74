//! The fields of bodies that a key needs, as raw JSON that is borrowed from the body.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A field that may be absent or null.
type Field<'a> = Option<&'a RawValue>;

/// The fields of all endpoints. A value of any type is accepted, since servers check types.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Fields<'a> {
    #[serde(borrow)]
    pub(super) model: Field<'a>,
    pub(super) cache_salt: Field<'a>,
    pub(super) user: Field<'a>,
    pub(super) max_tokens: Field<'a>,
    pub(super) max_completion_tokens: Field<'a>,
    // Typed decisions.
    pub(super) instructions: Field<'a>,
    pub(super) state: Field<'a>,
    pub(super) questions: Field<'a>,
    // Inputs of classes, vectors, decisions.
    pub(super) input: Field<'a>,
    pub(super) template: Field<'a>,
    // Pairs.
    pub(super) instruction: Field<'a>,
    pub(super) instruct: Field<'a>,
    pub(super) query: Field<'a>,
    pub(super) documents: Field<'a>,
    pub(super) texts: Field<'a>,
    pub(super) items: Field<'a>,
    pub(super) item_first: Field<'a>,
    pub(super) queries: Field<'a>,
    pub(super) text_1: Field<'a>,
    pub(super) text_2: Field<'a>,
    // Generation.
    pub(super) prompt: Field<'a>,
    pub(super) messages: Field<'a>,
    pub(super) tools: Field<'a>,
    pub(super) chat_template: Field<'a>,
}

/// The fields of a message that templates print.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) role: Field<'a>,
    pub(super) content: Field<'a>,
    pub(super) tool_calls: Field<'a>,
}

/// The field of a part of a message, or of a document, that templates print.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Part<'a> {
    #[serde(borrow)]
    pub(super) text: Field<'a>,
}
