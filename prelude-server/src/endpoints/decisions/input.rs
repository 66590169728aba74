//! The subject of decisions: a text, or the texts of user messages.

use std::{borrow::Cow, marker::PhantomData};

use schemars::{JsonSchema, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess},
};
use serde_json::json;

use crate::{
    tasks::messages::Content,
    wire::{Shapes, all, by_shape, described, unsupported, wrong_value},
};

/// A string, or the texts of user messages with a blank line between messages.
#[derive(Debug)]
pub(super) struct Input<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Input<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_shape::<Input<'de>, D>(deserializer)
    }
}

impl<'de> Shapes<'de> for Input<'de> {
    const WORDS: &'static str = "a string or a list of user messages";

    fn text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self(text))
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        let messages: Vec<MessageFields> = all(list)?;
        if messages.is_empty() {
            return Err(wrong_value("not be an empty list"));
        }
        let texts: Vec<String> = messages.into_iter().map(|m| m.content.0).collect();
        Ok(Self(Cow::Owned(texts.join("\n\n"))))
    }
}

described!(Input<'_>, "DecisionInput", |generator| {
    let message = generator.subschema_for::<MessageFields>();
    let messages = json!({ "type": "array", "minItems": 1, "items": message });
    json_schema!({ "anyOf": [{ "type": "string" }, messages] })
});

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "DecisionMessage")]
#[expect(
    dead_code,
    reason = "messages of other types and roles do not deserialize"
)]
struct MessageFields {
    /// `message`.
    #[schemars(with = "Option<String>")]
    r#type: Option<Only<MessageType>>,
    role: Role,
    #[schemars(with = "Content")]
    content: JoinedParts,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "DecisionRole")]
enum Role {
    User,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum MessageType {
    Message,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartType {
    InputText,
}

/// The one value that is served: any other is refused as such.
struct Only<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Only<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match T::deserialize(deserializer) {
            Ok(_) => Ok(Self(PhantomData)),
            Err(_) => Err(unsupported()),
        }
    }
}

/// A string, or the texts of parts with a line break between them.
struct JoinedParts(String);

#[derive(Deserialize)]
#[expect(dead_code, reason = "parts of other types do not deserialize")]
struct PartFields {
    /// Images and files are not served.
    r#type: Only<PartType>,
    text: String,
}

impl<'de> Deserialize<'de> for JoinedParts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_shape(deserializer)
    }
}

impl<'de> Shapes<'de> for JoinedParts {
    const WORDS: &'static str = "a string or a list of parts";

    fn text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self(text.into_owned()))
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        let parts: Vec<PartFields> = all(list)?;
        let texts: Vec<String> = parts.into_iter().map(|part| part.text).collect();
        Ok(Self(texts.join("\n")))
    }
}
