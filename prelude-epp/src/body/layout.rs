//! The order in which a server lays out the prompts of an endpoint.

use serde_json::value::RawValue;

use super::{
    KeySink,
    fields::{Fields, Message},
    text::{decoded, write_escaped, write_texts, write_value},
};

/// The layout of an endpoint's prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    SystemOne,
    Decisions,
    Rerank,
    Score,
    /// Classes and vectors of texts or of a conversation.
    Inputs,
    Completions,
    Chat,
    /// The endpoint has no prompts that are known: the body's bytes stand for them.
    Bytes,
}

impl Layout {
    /// Returns the layout of a path by its last part, since gateways put others before it.
    pub(super) fn of(path: &str) -> Self {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let mut parts = path.trim_end_matches('/').rsplit('/');
        match (parts.next(), parts.next()) {
            (Some("systemone" | "decide"), _) => Self::SystemOne,
            (Some("decisions"), _) => Self::Decisions,
            (Some("rerank"), _) => Self::Rerank,
            (Some("score"), _) => Self::Score,
            (Some("classify" | "embeddings" | "pooling" | "moderations"), _) => Self::Inputs,
            (Some("completions"), Some("chat")) => Self::Chat,
            (Some("completions"), _) => Self::Completions,
            _ => Self::Bytes,
        }
    }

    /// Writes the key of a body.
    pub(super) fn write(self, fields: &Fields<'_>, sink: &mut impl KeySink) {
        match self {
            Self::SystemOne => {
                write_all([fields.instructions, fields.state, fields.questions], sink);
            }
            Self::Decisions => {
                write_input(fields, sink);
                write_all([fields.questions], sink);
            }
            Self::Rerank => {
                let instruction = fields.instruction.or(fields.instruct);
                write_all([instruction, fields.query], sink);
                write_lists([fields.documents, fields.texts], sink);
            }
            Self::Score => write_score(fields, sink),
            Self::Inputs => write_inputs(fields, sink),
            Self::Completions => write_lists([fields.prompt], sink),
            Self::Chat => write_chat(fields, sink),
            Self::Bytes => {}
        }
    }
}

/// Writes the values that are there, each with a line break behind it.
fn write_all<const N: usize>(values: [Option<&RawValue>; N], sink: &mut impl KeySink) {
    for value in values.into_iter().flatten() {
        write_value(value, sink);
        sink.push(b"\n");
    }
}

/// Writes the texts of the lists that are there.
fn write_lists<const N: usize>(lists: [Option<&RawValue>; N], sink: &mut impl KeySink) {
    for list in lists.into_iter().flatten() {
        write_texts(list, sink);
    }
}

/// Writes the query and its items in their order, or the two sides of pairs.
fn write_score(fields: &Fields<'_>, sink: &mut impl KeySink) {
    let is_item_first = fields.item_first.is_some_and(|raw| raw.get() == "true");
    match is_item_first {
        true => write_lists([fields.items, fields.query], sink),
        false => {
            write_all([fields.instruction.or(fields.instruct)], sink);
            write_lists([fields.query, fields.items], sink);
        }
    }
    write_lists([fields.queries.or(fields.text_1)], sink);
    write_lists([fields.documents.or(fields.text_2)], sink);
}

/// Writes the template up to the place of the text, then the texts or the conversation.
fn write_inputs(fields: &Fields<'_>, sink: &mut impl KeySink) {
    let template = fields.template.map(RawValue::get);
    let template = template.and_then(|json| json.strip_prefix('"')?.strip_suffix('"'));
    if let Some(head) = template.and_then(|text| text.split("{{").next()) {
        write_escaped(head, sink);
    }
    match fields.input {
        Some(input) => write_texts(input, sink),
        None => write_chat(fields, sink),
    }
}

/// Writes the input of decisions: a text, or the texts of messages.
fn write_input(fields: &Fields<'_>, sink: &mut impl KeySink) {
    let Some(input) = fields.input else {
        return;
    };
    match messages(input) {
        Some(messages) => {
            for content in messages.iter().filter_map(|message| message.content) {
                write_texts(content, sink);
            }
        }
        None => write_all([Some(input)], sink),
    }
}

/// Writes a conversation as templates print it: a system message, the tools, the other messages.
fn write_chat(fields: &Fields<'_>, sink: &mut impl KeySink) {
    write_all([fields.chat_template], sink);
    let Some(raw) = fields.messages else {
        return write_all([fields.tools], sink);
    };
    let Some(messages) = messages(raw) else {
        return write_all([fields.tools, Some(raw)], sink);
    };
    let is_system = |message: &&Message<'_>| {
        let role = message.role.and_then(decoded);
        role.is_some_and(|role| ["system", "developer"].contains(&&*role))
    };
    let first = messages.first().filter(is_system);
    first
        .into_iter()
        .for_each(|message| write_message(message, sink));
    write_all([fields.tools], sink);
    let others = messages.iter().skip(usize::from(first.is_some()));
    others.for_each(|message| write_message(message, sink));
}

fn write_message(message: &Message<'_>, sink: &mut impl KeySink) {
    write_all([message.role], sink);
    write_lists([message.content], sink);
    write_all([message.tool_calls], sink);
}

/// Reads a list of messages; nothing for other values.
fn messages(raw: &RawValue) -> Option<Vec<Message<'_>>> {
    let first = raw.get().strip_prefix('[')?.trim_start();
    match first.starts_with('{') {
        true => serde_json::from_str(raw.get()).ok(),
        false => None,
    }
}
