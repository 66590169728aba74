//! Values that clients write in several shapes: a string, a list or an object.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserializer,
    de::{Error, MapAccess, SeqAccess, Unexpected, Visitor},
};

/// A value that is read by its shape. A shape without a function of its own is an error.
pub(crate) trait Shapes<'de>: Sized {
    /// The words for such a value, which complete "field `x` must be ..".
    const WORDS: &'static str;

    /// Reads a string.
    fn text<E: Error>(text: Cow<'de, str>) -> Result<Self, E>;

    /// Reads a list.
    fn list<A: SeqAccess<'de>>(_: A) -> Result<Self, A::Error> {
        Err(A::Error::invalid_type(Unexpected::Seq, &Self::WORDS))
    }

    /// Reads an object.
    fn object<A: MapAccess<'de>>(_: A) -> Result<Self, A::Error> {
        Err(A::Error::invalid_type(Unexpected::Map, &Self::WORDS))
    }
}

/// Reads a value by its shape. A string without escapes is borrowed.
///
/// # Errors
/// A value of another shape; the errors of the shapes' functions.
pub(crate) fn by_shape<'de, T: Shapes<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    struct ByShape<T>(PhantomData<T>);
    impl<'de, T: Shapes<'de>> Visitor<'de> for ByShape<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(T::WORDS)
        }

        fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<T, E> {
            T::text(Cow::Borrowed(text))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            T::text(Cow::Owned(text.to_owned()))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
            T::list(list)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::object(map)
        }
    }
    deserializer.deserialize_any(ByShape(PhantomData))
}

/// Reads all entries of a list.
///
/// # Errors
/// The first entry that is none.
pub(crate) fn all<'de, T: serde::Deserialize<'de>, A: SeqAccess<'de>>(
    mut list: A,
) -> Result<Vec<T>, A::Error> {
    let mut entries = Vec::new();
    while let Some(entry) = list.next_element()? {
        entries.push(entry);
    }
    Ok(entries)
}

/// Describes a type that is read by hand: its name in `/openapi.json`, and its schema.
macro_rules! described {
    ($of:ty, $name:literal, |$generator:pat_param| $schema:expr) => {
        impl schemars::JsonSchema for $of {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}
pub(crate) use described;
