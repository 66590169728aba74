//! Moderations as OpenAI's clients read them.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{endpoint::Reply, wire::Entries};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Moderations")]
pub(crate) struct Response<'a> {
    id: String,
    model: &'a str,
    results: Vec<Moderation<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Moderation")]
pub(super) struct Moderation<'a> {
    /// True if a category is.
    flagged: bool,
    categories: Entries<'a, bool>,
    category_scores: Entries<'a, f64>,
    category_applied_input_types: Entries<'a, Vec<&'static str>>,
}

/// The scores of texts, and the categories that they are scores of.
pub(super) struct Found<'a> {
    /// `None` is a class that is no harmful category, which no answer shows.
    pub(super) names: Vec<Option<Cow<'a, str>>>,
    /// The scores of each text, in the order of the names.
    pub(super) scores: Vec<Vec<f64>>,
    pub(super) flags: Flags,
}

/// The rule by which a category is flagged.
#[derive(Clone, Copy)]
pub(super) enum Flags {
    /// Each category of at least one half.
    Half,
    /// The likeliest class.
    Likeliest,
    /// The first category at one half; and if it is flagged, the likeliest of the others.
    First,
}

impl Found<'_> {
    /// Writes the moderation of each text.
    pub(super) fn reply(&self, id: String, model: &str) -> Reply {
        Reply::json(&Response {
            id,
            model,
            results: { self.scores.iter() }.map(|of| self.result(of)).collect(),
        })
    }

    pub(super) fn result(&self, scores: &[f64]) -> Moderation<'_> {
        let others = usize::from(matches!(self.flags, Flags::First));
        let others = scores[others..].iter().copied();
        let best = others.fold(f64::NEG_INFINITY, f64::max);
        let is_flagged = |index: usize, score: f64| match self.flags {
            Flags::Half => score >= 0.5,
            Flags::Likeliest => score >= best,
            Flags::First => scores[0] >= 0.5 && (index == 0 || score >= best),
        };
        let harmful = self.names.iter().zip(scores).enumerate();
        let harmful = harmful.filter_map(|(index, (name, &score))| {
            Some((name.as_deref()?, score, is_flagged(index, score)))
        });
        let named = |(name, score, flag)| (Cow::Borrowed(name), (score, flag));
        let all: Vec<(Cow<'_, str>, (f64, bool))> = harmful.map(named).collect();
        Moderation {
            flagged: all.iter().any(|(_, (_, flag))| *flag),
            categories: each(&all, |(_, flag)| flag),
            category_scores: each(&all, |(score, _)| score),
            category_applied_input_types: each(&all, |_| vec!["text"]),
        }
    }
}

/// Returns one of two values of each category.
fn each<'a, T>(
    all: &[(Cow<'a, str>, (f64, bool))],
    of: impl Fn((f64, bool)) -> T,
) -> Entries<'a, T> {
    let entries = all.iter().map(|(name, values)| (name.clone(), of(*values)));
    Entries(entries.collect())
}

/// Names of classes that are no harmful category, in lower case, with `-` and `_` as spaces.
const HARMLESS: [&str; 12] = [
    "safe",
    "ok",
    "none",
    "neutral",
    "normal",
    "benign",
    "harmless",
    "clean",
    "non toxic",
    "not toxic",
    "nontoxic",
    "no hate",
];

/// Returns the name of a class that is a harmful category.
pub(super) fn harmful(name: Cow<'_, str>) -> Option<Cow<'_, str>> {
    let plain = name.trim().to_lowercase().replace(['-', '_'], " ");
    (!HARMLESS.contains(&&*plain)).then_some(name)
}
