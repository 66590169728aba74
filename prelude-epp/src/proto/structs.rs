//! `google.protobuf.Struct`: JSON as metadata has it.

use std::collections::BTreeMap;

/// An object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    /// The fields.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

/// A value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    /// The value by its kind; none for kinds that a picker does not need.
    #[prost(oneof = "Kind", tags = "3, 5, 6")]
    pub kind: Option<Kind>,
}

/// The kinds of values that a picker needs.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// A string.
    #[prost(string, tag = "3")]
    String(String),
    /// An object.
    #[prost(message, tag = "5")]
    Struct(Struct),
    /// A list.
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// A list.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListValue {
    /// The values.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

impl Struct {
    /// Returns an object with one field.
    pub fn of(name: &str, value: Kind) -> Self {
        let value = Value { kind: Some(value) };
        Self {
            fields: BTreeMap::from([(name.to_owned(), value)]),
        }
    }

    /// Returns the value of a field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Kind> {
        self.fields.get(name)?.kind.as_ref()
    }
}

impl Kind {
    /// Returns the strings of a list, or of a string with commas between them.
    pub fn strings(&self) -> impl Iterator<Item = &str> {
        let (text, list) = match self {
            Self::String(text) => (text.as_str(), &[][..]),
            Self::List(list) => ("", &list.values[..]),
            Self::Struct(_) => ("", &[][..]),
        };
        let of_list = list.iter().filter_map(|value| match &value.kind {
            Some(Self::String(text)) => Some(text.as_str()),
            _ => None,
        });
        let parts = of_list.chain([text]).flat_map(|text| text.split(','));
        parts.map(str::trim).filter(|part| !part.is_empty())
    }
}
