//! A row of the table of fields: see [`crate::fields`].

/// Declares a table of rows of one file: the effect of fields, their names, and the note.
macro_rules! rows {
    ($table:ident, $file:literal; $($effect:ident $(($($allowed:literal),*))? [$($name:literal),+ $(,)?] $note:literal;)*) => {
        pub(super) const $table: &[$crate::field::Field] = &[$($crate::field::Field {
            file: $file,
            names: &[$($name),+],
            effect: $crate::field::Effect::$effect $((&[$($allowed),*]))?,
            note: $note,
        }),*];
    };
}
pub(crate) use rows;

/// The effect of a field's value on loading and on answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// The field decides answers, as the note says.
    Obeyed,
    /// Loading refuses every value but null and these, given as JSON.
    Refused(&'static [&'static str]),
    /// Loading refuses every value for which the note does not hold.
    Checked,
    /// The field changes no answer, whatever its value.
    NoEffect,
    /// The field is ignored with a warning.
    Warned,
}

/// A row of the table: fields of one file that have the same effect for the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// The file's name, relative to the folder.
    pub file: &'static str,
    /// The fields' names.
    pub names: &'static [&'static str],
    /// The effect of the fields' values.
    pub effect: Effect,
    /// The meaning of the fields, or the reason for the effect.
    pub note: &'static str,
}

/// The name by which the table knows the `config.json` of an encoder.
pub(crate) const ENCODERS: &str = "config.json of an encoder";
