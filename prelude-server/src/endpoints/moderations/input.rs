//! The subject of a moderation: texts, parts of one text, or a conversation.

use std::borrow::Cow;

use schemars::json_schema;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, SeqAccess},
};
use serde_json::{Value, json, value::RawValue};

use crate::{
    tasks::messages::Message,
    wire::{Json, Shapes, Text, by_shape, described, unsupported, wrong_type, wrong_value},
};

/// A string, a list of strings, a list of parts that are one text together, or the messages of a
/// conversation; at least one.
#[derive(Debug)]
pub(super) enum Input<'a> {
    Texts(Vec<Cow<'a, str>>),
    Messages(Vec<Value>),
}

/// An item of a list is a message if it has a role, which no part has.
#[derive(Deserialize)]
struct Speaker {
    role: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Part<'a> {
    r#type: Kind,
    #[serde(borrow)]
    text: Option<Text<'a>>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Text,
    ImageUrl,
}

impl<'de: 'a, 'a> Deserialize<'de> for Input<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_shape::<Input<'de>, D>(deserializer)
    }
}

impl<'de> Shapes<'de> for Input<'de> {
    const WORDS: &'static str =
        "a string, a list of strings, a list of text parts or a list of messages";

    fn text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self::Texts(vec![text]))
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let (mut texts, mut parts, mut messages) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(item) = list.next_element::<&RawValue>()? {
            let raw = item.get();
            let wrong = || wrong_type("a list of strings, of text parts or of messages");
            let has_role = |of: &Speaker| of.role.is_some();
            if raw.starts_with('"') {
                let Text(text) = serde_json::from_str(raw).map_err(|_| wrong())?;
                texts.push(text);
            } else if serde_json::from_str(raw).is_ok_and(|of| has_role(&of)) {
                let Json(message) = serde_json::from_str(raw).map_err(|_| wrong())?;
                messages.push(message);
            } else {
                parts.push(part(raw)?);
            }
        }
        match (texts.is_empty(), parts.is_empty(), messages.is_empty()) {
            (true, true, true) => Err(wrong_value("not be an empty list")),
            (false, true, true) => Ok(Input::Texts(texts)),
            (true, false, true) => Ok(Input::Texts(vec![Cow::Owned(parts.join("\n"))])),
            (true, true, false) => Ok(Input::Messages(messages)),
            _ => Err(wrong_value("not mix strings, parts and messages")),
        }
    }
}

/// Returns the text of a part.
fn part<E: Error>(raw: &str) -> Result<Cow<'_, str>, E> {
    let wrong = || wrong_type("a list of strings, of text parts or of messages");
    match serde_json::from_str(raw).map_err(|_| wrong())? {
        Part {
            r#type: Kind::Text,
            text: Some(Text(text)),
        } => Ok(text),
        Part {
            r#type: Kind::ImageUrl,
            ..
        } => Err(unsupported()),
        Part { .. } => Err(wrong()),
    }
}

described!(Input<'_>, "ModerationInput", |generator| {
    let part = json!({
        "type": "object",
        "properties": { "type": { "const": "text" }, "text": { "type": "string" } },
        "required": ["type", "text"],
    });
    let message = generator.subschema_for::<Message>();
    json_schema!({
        "description": "A text, texts, parts of one text, or a conversation whose last turn a guard \
            judges.",
        "anyOf": [
            { "type": "string" },
            { "type": "array", "minItems": 1, "items": { "type": "string" } },
            { "type": "array", "minItems": 1, "items": part },
            { "type": "array", "minItems": 1, "items": message },
        ],
    })
});
