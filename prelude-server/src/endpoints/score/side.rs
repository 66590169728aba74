//! One side of pairs of texts.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

use crate::wire::{Text, unsupported, wrong_value};

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
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Vec<Cow<'de, str>>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of strings or an object with `content`")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(vec![Cow::Borrowed(text)])
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(vec![Cow::Owned(text.to_owned())])
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while let Some(Text(text)) = list.next_element()? {
                    texts.push(text);
                }
                Ok(texts)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let parts = Parts::deserialize(MapAccessDeserializer::new(map))?;
                Ok(parts.content.into_iter().map(|part| part.text.0).collect())
            }
        }
        let texts = deserializer.deserialize_any(Texts)?;
        match texts.is_empty() {
            true => Err(wrong_value("not be an empty list")),
            false => Ok(Self(texts)),
        }
    }
}

impl JsonSchema for PairSide<'_> {
    fn schema_name() -> Cow<'static, str> {
        "PairSide".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let parts = generator.subschema_for::<Parts<'_>>();
        json_schema!({
            "description": "A text, texts, or parts of one.",
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": "string" } },
                parts,
            ],
        })
    }
}
