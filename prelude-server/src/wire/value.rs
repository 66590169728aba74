//! Types of single values in requests.

use std::{borrow::Cow, marker::PhantomData};

use prelude_text::decide;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use super::{
    fault::{DUPLICATE, NO_TEXT, unsupported, wrong_type, wrong_value},
    shape::{Shapes, all, by_shape, described},
};

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
            (min, max) => wrong_value(format_args!("be from {min} to {max}")),
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

/// A count.
pub(crate) type Count = Int<0, { u32::MAX as i64 }>;
/// A count, or -1 for all.
pub(crate) type CountOrAll = Int<-1, { i64::MAX }>;

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
        by_shape::<OneOrMany<Text<'de>>, D>(deserializer)
    }
}

impl<'de> Shapes<'de> for OneOrMany<Text<'de>> {
    const WORDS: &'static str = "a string or a list of strings";

    fn text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self::One(Text(text)))
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        all(list).map(Self::Many)
    }
}

/// A string as it is, or an object or a list as compact JSON with its numbers as they are spelled.
#[derive(Clone, Debug)]
pub(crate) struct TextOrJson(pub(crate) decide::TextOrJson);

impl<'de> Deserialize<'de> for TextOrJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        match raw.as_bytes().first() {
            Some(b'"') => match serde_json::from_str::<String>(raw) {
                Ok(text) => Ok(Self(text.into())),
                Err(_) => Err(wrong_value(NO_TEXT)),
            },
            Some(b'{' | b'[') => Ok(Self(decide::TextOrJson::json(raw))),
            _ => Err(wrong_type("a string, an object or a list")),
        }
    }
}

described!(TextOrJson, "TextOrJson", |_| json_schema!({
    "description": "Text, or JSON that is shown as it came.",
    "anyOf": [{ "type": "string" }, { "type": "object" }, { "type": "array" }],
}));

/// The members of an object in their order, also those whose names come twice.
#[derive(Clone, Debug)]
pub(crate) struct Members<'a, T>(pub(crate) Vec<(Cow<'a, str>, T)>);

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Members<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
            type Value = Vec<(Cow<'de, str>, T)>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<Text<'de>, T>()? {
                    members.push((name.0, value));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Object(PhantomData)).map(Self)
    }
}

/// An object whose keys are the client's own, in order and each once.
#[derive(Clone, Debug)]
pub(crate) struct Entries<'a, T>(pub(crate) Vec<(Cow<'a, str>, T)>);

impl<T: Serialize> Serialize for Entries<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Entries<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Members(entries) = Members::deserialize(deserializer)?;
        let mut names: Vec<&str> = entries.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        match names.windows(2).any(|two| two[0] == two[1]) {
            true => Err(Error::custom(DUPLICATE)),
            false => Ok(Self(entries)),
        }
    }
}

impl<T: JsonSchema> JsonSchema for Entries<'_, T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("ObjectOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let each = generator.subschema_for::<T>();
        json_schema!({ "type": "object", "additionalProperties": each })
    }
}

/// A field that another server's dialect has and this one does not: any value is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused;

impl<'de> Deserialize<'de> for Refused {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(unsupported())
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
                return Err(Error::custom(DUPLICATE));
            }
        }
        Ok(Value::Object(object))
    }
}
