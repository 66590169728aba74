//! One side of pairs of texts.

use std::borrow::Cow;

use schemars::{JsonSchema, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, value::MapAccessDeserializer},
};

use crate::wire::{Shapes, Text, all, by_shape, described, unsupported, wrong_value};

/// A string, a list of strings, or `{"content": [{"type": "text", "text": ..}]}`: at least one.
#[derive(Debug)]
pub(crate) struct PairSide<'a>(pub(super) Vec<Cow<'a, str>>);

/// Texts as parts of one message.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "PairParts")]
struct Parts<'a> {
    #[serde(borrow)]
    content: Vec<Part<'a>>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "PairPart")]
#[expect(dead_code, reason = "a part of another type does not deserialize")]
struct Part<'a> {
    /// `text`.
    #[schemars(with = "String")]
    r#type: TextType,
    #[serde(borrow)]
    text: Text<'a>,
}

/// The only type of part that is served.
struct TextType;

impl<'de> Deserialize<'de> for TextType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match &*Text::deserialize(deserializer)?.0 {
            "text" => Ok(Self),
            _ => Err(unsupported()),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for PairSide<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_shape::<PairSide<'de>, D>(deserializer)
    }
}

impl<'de> Shapes<'de> for PairSide<'de> {
    const WORDS: &'static str = "a string, a list of strings or an object with `content`";

    fn text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self(vec![text]))
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        Self::some(all(list)?.into_iter().map(|text: Text<'de>| text.0))
    }

    fn object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        let parts = Parts::deserialize(MapAccessDeserializer::new(map))?;
        Self::some(parts.content.into_iter().map(|part| part.text.0))
    }
}

impl<'a> PairSide<'a> {
    fn some<E: Error>(texts: impl ExactSizeIterator<Item = Cow<'a, str>>) -> Result<Self, E> {
        match texts.len() {
            0 => Err(wrong_value("not be an empty list")),
            _ => Ok(Self(texts.collect())),
        }
    }
}

described!(PairSide<'_>, "PairSide", |generator| {
    let parts = generator.subschema_for::<Parts<'_>>();
    json_schema!({
        "description": "A text, texts, or parts of one.",
        "anyOf": [
            { "type": "string" },
            { "type": "array", "items": { "type": "string" } },
            parts,
        ],
    })
});
