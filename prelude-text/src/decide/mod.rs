//! Typed decisions: questions about a state, answered with probabilities.
//!
//! Everything here is a plain function of its arguments. A request becomes prompts ([`Question::user_turn`]),
//! each prompt ends where a label would be said, the labels' tokens are scored there
//! ([`DecideLabels`], [`crate::label_trie::LabelTrie`]), and the scores become an [`Answer`].
//! All questions of a request are one forest: the state is run once.

mod answer;
mod calibration;
pub mod formats;
mod labels;
mod question;
mod text;
mod value;
mod wording;

pub use answer::{Answer, Diagnostics};
pub use calibration::Calibration;
pub use labels::{ChoiceLabels, DecideLabels, LabelKind, Unfit};
pub use question::{ChoiceOption, Criteria, Level, Question};
pub use text::compact_json;
pub use value::TextOrJson;
pub use wording::{AskWording, First, NoulLabels, ScoreLabels, ValueForm, WordingFile};

/// The version of the prompts that [`Question::user_turn`] writes. Another wording is another
/// version: probabilities of two versions do not compare.
pub const PROMPT_FORMAT: &str = "prelude-decide-1";
