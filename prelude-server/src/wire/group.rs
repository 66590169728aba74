//! Reading a group of fields: a struct of some of the fields that a body has.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor},
    forward_to_deserialize_any,
};
use serde_path_to_error::{Segment, Track};

use super::{Fields, Unknown, fault};
use crate::error::ApiError;

impl<'a> Fields<'a> {
    /// Takes the fields that `T` names. `null` is an absent field.
    ///
    /// # Errors
    /// 400 `missing_field`, `invalid_type`, `invalid_value` or `duplicate_field`, naming the field.
    pub(crate) fn group<T: Deserialize<'a>>(&mut self) -> Result<T, ApiError> {
        T::deserialize(Group(self)).map_err(|e| e.0)
    }
}

/// A deserializer of the fields that a struct names.
struct Group<'f, 'a>(&'f mut Fields<'a>);

/// An API error on its way through serde.
#[derive(Debug)]
struct Fault(ApiError);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(fault::of_serde(&message.to_string(), String::new()))
    }

    fn missing_field(field: &'static str) -> Self {
        Self(ApiError::missing_field(field))
    }
}

impl<'de> Deserializer<'de> for Group<'_, 'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Fault> {
        unreachable!("a group is a struct with named fields")
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_map(Entries {
            fields: self.0,
            names: names.iter(),
            taken: None,
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The fields of a group, in the struct's order.
struct Entries<'f, 'a> {
    fields: &'f mut Fields<'a>,
    names: std::slice::Iter<'static, &'static str>,
    /// The field whose name has been given out.
    taken: Option<(&'static str, &'a str)>,
}

impl<'a> MapAccess<'a> for Entries<'_, 'a> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'a>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        for name in self.names.by_ref() {
            if let Some(raw) = self.fields.take(name) {
                self.taken = Some((name, raw));
                return seed.deserialize((*name).into_deserializer()).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (name, raw) = self.taken.take().expect("a key was given out before");
        let unknown = &mut self.fields.unknown;
        seeded(seed, raw, name, unknown).map_err(Fault)
    }
}

/// Reads the raw JSON of the value at `path`: a field's name, or a JSON pointer. Unknown fields
/// inside the value are counted.
///
/// # Errors
/// The errors of [`Fields::group`].
pub(crate) fn from_raw<'a, T: Deserialize<'a>>(
    raw: &'a str,
    path: &str,
    unknown: &mut Unknown,
) -> Result<T, ApiError> {
    seeded(PhantomData, raw, path, unknown)
}

fn seeded<'a, S: DeserializeSeed<'a>>(
    seed: S,
    raw: &'a str,
    path: &str,
    unknown: &mut Unknown,
) -> Result<S::Value, ApiError> {
    let mut json = serde_json::Deserializer::from_str(raw);
    let mut track = Track::new();
    let (mut ignored, mut first) = (0, None);
    let mut ignore = |path: serde_ignored::Path<'_>| {
        ignored += 1;
        first.get_or_insert_with(|| path.to_string());
    };
    let located = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let read = seed.deserialize(serde_ignored::Deserializer::new(located, &mut ignore));
    let value = read.map_err(|error| {
        let path = place(path, &track.path());
        fault::of_serde(&error.to_string(), path)
    })?;
    let first = first.map(|inside| {
        // An `Option` on the way is a question mark.
        let inside = inside.replace("?.", "").replace('.', "/");
        format!("{}/{inside}", fault::pointer(path))
    });
    unknown.note(ignored, first);
    Ok(value)
}

/// Returns `start`, or a JSON pointer to a place inside its value.
fn place(start: &str, inside: &serde_path_to_error::Path) -> String {
    let mut place = String::new();
    for segment in inside {
        match segment {
            Segment::Seq { index } => place.push_str(&format!("/{index}")),
            Segment::Map { key } => place.push_str(&format!("/{}", escaped(key))),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    match place.is_empty() {
        true => start.to_owned(),
        false => fault::pointer(start) + &place,
    }
}

/// Returns a client's own key as one segment of a JSON pointer, short enough for a message.
pub(crate) fn escaped(key: &str) -> String {
    let short: String = key.chars().take(64).collect();
    short.replace('~', "~0").replace('/', "~1")
}
