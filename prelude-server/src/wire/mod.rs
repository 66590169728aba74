//! Request bodies as types.
//!
//! A request is made of *groups*: structs that derive `Deserialize` and `JsonSchema`, such as the
//! fields of every inference request or those of a conversation. [`request!`] joins groups,
//! [`Request::read`] reads them from a body, and `/openapi.json` describes the same types.
//!
//! Groups are not joined by serde's `flatten`: that keeps every value as a tree in memory, up to
//! thirty times the bytes of a body, and borrows nothing. Here each field's value stays raw text
//! until its own type reads it, once.

mod fault;
mod fields;
mod group;
mod shape;
mod value;

pub(crate) use fault::{NO_TEXT, unsupported, wrong_type, wrong_value};
pub(crate) use fields::{Fields, Room, Unknown, check_text, parse_text};
pub(crate) use group::{escaped, from_raw};
pub(crate) use shape::{Shapes, all, by_shape, described};
pub(crate) use value::{
    Count, CountOrAll, Entries, Int, Json, Members, OneOrMany, Refused, Text, TextOrJson,
};

use std::{borrow::Cow, ops::RangeInclusive};

use serde::Deserialize;

use crate::{dialects::Table, error::ApiError};

/// A request body, or a part of one, that can be read from the fields of a JSON object.
pub(crate) trait Request<'a>: Sized {
    /// All fields of the request, and of its like on other servers: those that it does not take are
    /// refused by name, or have no effect.
    const TABLES: &'static [Table] = &[];

    /// Takes the fields of this request; those that remain are unknown.
    ///
    /// # Errors
    /// 400 `missing_field`, `invalid_type`, `invalid_value`, `duplicate_field` or
    /// `unsupported_parameter`, naming the field.
    fn read(fields: &mut Fields<'a>) -> Result<Self, ApiError>;
}

/// A group of fields is the smallest part of a request.
impl<'a, T: Deserialize<'a>> Request<'a> for T {
    fn read(fields: &mut Fields<'a>) -> Result<Self, ApiError> {
        fields.group()
    }
}

/// Returns the one of several names of an option that a request gives, with its value.
///
/// # Errors
/// 400 `invalid_value` if it gives two.
pub(crate) fn one_of<T: Copy, const N: usize>(
    names: [(&'static str, Option<T>); N],
) -> Result<Option<(&'static str, T)>, ApiError> {
    let mut given = names
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let first = given.next();
    match (first, given.next()) {
        (Some((first, _)), Some((second, _))) => {
            let must = format!("not be combined with `{first}`, which means the same");
            Err(ApiError::invalid_value(second, must))
        }
        _ => Ok(first),
    }
}

/// Checks how many of what a list has: `of` is the word for its entries.
///
/// # Errors
/// 400 `invalid_value` naming the list's field or pointer.
pub(crate) fn check_count(
    path: impl Into<Cow<'static, str>>,
    count: usize,
    allowed: RangeInclusive<usize>,
    of: &str,
) -> Result<(), ApiError> {
    let (least, most) = (allowed.start(), allowed.end());
    match allowed.contains(&count) {
        true => Ok(()),
        false => Err(ApiError::invalid_value(
            path,
            format!("have {least} to {most} {of}"),
        )),
    }
}

/// Checks that a list is not empty.
///
/// # Errors
/// 400 `invalid_value` naming the list's field.
pub(crate) fn check_some<T>(field: &'static str, list: &[T]) -> Result<(), ApiError> {
    match list.is_empty() {
        true => Err(ApiError::invalid_value(field, "not be an empty list")),
        false => Ok(()),
    }
}

/// Joins parts to a request.
macro_rules! request {
    (
        $(#[$meta:meta])*
        struct $name:ident<$a:lifetime> {
            $($field:ident: $part:ty),* $(,)?
        }
        $(fields [$($table:expr),* $(,)?];)?
    ) => {
        $(#[$meta])*
        #[derive(schemars::JsonSchema)]
        pub(crate) struct $name<$a> {
            $(#[schemars(flatten)] pub(crate) $field: $part,)*
            #[schemars(skip)]
            borrowed: std::marker::PhantomData<&$a ()>,
        }

        impl<$a> $crate::wire::Request<$a> for $name<$a> {
            $(const TABLES: &'static [$crate::dialects::Table] = &[$($table),*];)?

            fn read(
                fields: &mut $crate::wire::Fields<$a>,
            ) -> Result<Self, $crate::error::ApiError> {
                Ok(Self {
                    $($field: $crate::wire::Request::read(fields)?,)*
                    borrowed: std::marker::PhantomData,
                })
            }
        }
    };
}
pub(crate) use request;

#[cfg(test)]
mod tests;
