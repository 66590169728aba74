//! Types of single values in requests.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::fault::{DUPLICATE, wrong_type, wrong_value};

/// A string, borrowed from the body where it has no escapes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// An integer from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Int<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> Int<MIN, MAX> {
    /// Returns the integer.
    pub(crate) const fn get(self) -> i64 {
        self.0
    }

    /// Returns the integer as a count.
    ///
    /// # Panics
    /// If the range is not one of `u32`s.
    pub(crate) fn count(self) -> u32 {
        u32::try_from(self.0).expect("the range lies within u32")
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Int<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = i64::deserialize(deserializer)?;
        if (MIN..=MAX).contains(&value) {
            return Ok(Self(value));
        }
        Err(match (MIN, MAX) {
            (i64::MIN, max) => wrong_value(format_args!("be at most {max}")),
            (min, i64::MAX) => wrong_value(format_args!("be at least {min}")),
            (min, max) => wrong_value(format_args!("be in {min}..={max}")),
        })
    }
}

impl<const MIN: i64, const MAX: i64> JsonSchema for Int<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Int{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({ "type": "integer" });
        if MIN != i64::MIN {
            schema.insert("minimum".to_owned(), MIN.into());
        }
        if MAX != i64::MAX {
            schema.insert("maximum".to_owned(), MAX.into());
        }
        schema
    }
}

/// One value, or a list of values.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged, inline)]
pub(crate) enum OneOrMany<T> {
    /// The value alone.
    One(T),
    /// The list.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Returns the values, of one value a list of one.
    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for OneOrMany<Text<'a>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = OneOrMany<Text<'de>>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(OneOrMany::One(Text(Cow::Borrowed(text))))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(OneOrMany::One(Text(Cow::Owned(text.to_owned()))))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(OneOrMany::Many(texts))
            }
        }
        // Any other kind of value is an error of serde's, with other words.
        let read = deserializer.deserialize_any(Texts);
        read.map_err(|_| wrong_type("a string or a list of strings"))
    }
}

/// Any JSON value. Objects in it have no two keys of one name.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(transparent, inline)]
pub(crate) struct Json(pub(crate) Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Json>()? {
            items.push(item.0);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, value)) = map.next_entry::<String, Json>()? {
            if object.insert(name, value.0).is_some() {
                return Err(serde::de::Error::custom(DUPLICATE));
            }
        }
        Ok(Value::Object(object))
    }
}
