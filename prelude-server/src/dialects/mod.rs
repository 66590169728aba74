//! The fields of the servers whose routes are spoken here, and the effect of each: tables that
//! requests are read by, that the guide is made of, and that are tested row by row.
//!
//! A field that would change an answer is obeyed or refused by name. A field that has no row is
//! unknown: it is counted, or refused where the client asks for that.

/// Declares a table: the effect of fields, their names, the schemas that have them, and the note.
macro_rules! table {
    (
        $(#[$meta:meta])*
        $name:ident $title:literal;
        $($effect:ident $(($($neutral:literal),*))? [$($field:literal),+ $(,)?] $of:literal $note:literal;)*
    ) => {
        $(#[$meta])*
        pub(crate) const $name: $crate::dialects::Table = $crate::dialects::Table {
            title: $title,
            fields: &[$($crate::dialects::Field {
                names: &[$($field),+],
                effect: $crate::dialects::Effect::$effect $((&[$($neutral),*]))?,
                of: $of,
                note: $note,
            }),*],
        };
    };
}
#[cfg(test)]
pub(crate) use table;

mod decisions;
mod inputs;
mod ranking;
mod text;
mod tokens;
mod vectors;

pub(crate) use decisions::*;
pub(crate) use inputs::*;
pub(crate) use ranking::*;
pub(crate) use text::*;
pub(crate) use tokens::*;
pub(crate) use vectors::*;

/// The effect of a field on an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::enum_variant_names,
    reason = "the word that fields of checkpoints have too, in `prelude_models::fields::Effect`"
)]
pub(crate) enum Effect {
    /// The field decides answers: the request's type has it.
    Obeyed,
    /// The field shortens texts or lists to what it says: the request's type has it.
    Cut,
    /// The field changes no answer, whatever its value.
    NoEffect,
    /// A request is refused by this field, unless its value is null or one of these, given as
    /// compact JSON.
    Refused(&'static [&'static str]),
    /// A request is refused like this by a field of another dialect of the route, which clients of
    /// that dialect know.
    Foreign(&'static [&'static str]),
}

/// Fields that have the same effect for the same reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) names: &'static [&'static str],
    pub(crate) effect: Effect,
    /// The servers whose schemas have the fields.
    #[cfg_attr(not(test), expect(dead_code, reason = "the guide tells it"))]
    pub(crate) of: &'static str,
    /// The meaning of the fields, or the reason for the effect, which a refusal repeats.
    pub(crate) note: &'static str,
}

/// A part of the fields of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    /// The heading in the guide.
    #[cfg_attr(not(test), expect(dead_code, reason = "the guide tells it"))]
    pub(crate) title: &'static str,
    pub(crate) fields: &'static [Field],
}

/// Returns the row of a field in one of these tables.
pub(crate) fn row(tables: &[Table], name: &str) -> Option<&'static Field> {
    let mut all = tables.iter().flat_map(|table| table.fields);
    all.find(|field| field.names.contains(&name))
}

#[cfg(test)]
mod tests;
