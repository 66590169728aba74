//! The data of studies: which servers are asked for what, and what is to come of it.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    report::{Row, Unit, Verdict, number},
    value::compute,
};

/// Servers that are asked for the same in turns, and the rows that come of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Case {
    /// The model that rivals serve: `lm`, `embedder`, `classifier`, `embed`, `rank` or a format of
    /// decision models.
    pub(super) rivals: Option<String>,
    /// True to leave the case out where no rival is measured.
    pub(super) only_beside_rivals: bool,
    /// True for one round, however many are asked for.
    pub(super) once: bool,
    /// True for new servers in each round.
    pub(super) fresh: bool,
    /// True to read the metrics while loads run: `.grew` in their counted time, and `.most`.
    pub(super) watch: bool,
    /// Ours; one with both demo models if none is named.
    pub(super) servers: Vec<Ours>,
    /// Lines of `/metrics`, read after each phase, by the names that values have for them.
    pub(super) metrics: BTreeMap<String, String>,
    pub(super) phases: Vec<Phase>,
    pub(super) rows: Vec<Figure>,
}

/// A server of ours.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Ours {
    /// The name in rows, where there are several.
    pub(super) label: String,
    /// A folder by its name in `models.toml`, a demo model, `idle` and a demo model for one that
    /// computes nothing, or nothing for both demo models.
    pub(super) model: String,
    pub(super) args: Vec<String>,
    /// Settings, each of which is computed.
    pub(super) env: BTreeMap<String, String>,
    /// True for cores of its own, apart from those of the generator.
    pub(super) pinned: bool,
    /// True for a log of every request that stands still.
    pub(super) unread: bool,
}

/// The times at which a load's requests are sent, unless it has a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Loop {
    /// Each connection sends its next request when it has the last answer.
    #[default]
    Closed,
    /// A request on each connection at once, then the next ones.
    Together,
    /// Requests that are new each time, as many as there are connections or `count` says.
    Once,
}

/// A load, and those that run beside it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Phase {
    pub(super) id: String,
    /// The requests, as `bodies.rs` calls them; nothing to wait and look.
    pub(super) body: String,
    /// Connections.
    pub(super) over: usize,
    pub(super) r#loop: Loop,
    pub(super) count: Option<usize>,
    /// Requests per second of an open loop.
    pub(super) rate: Option<String>,
    pub(super) seconds: Option<String>,
    /// Seconds before counting begins; a fifth of the others if nothing is said.
    pub(super) warm: Option<String>,
    /// Seconds after which it begins.
    pub(super) after: f64,
    /// The time within which an answer is in time, in milliseconds.
    pub(super) limit: Option<String>,
    /// Tokens that each stream is to have.
    pub(super) tokens: u64,
    pub(super) seed: u64,
    /// True if all must be answered; so it is unless the loop is open.
    pub(super) strict: Option<bool>,
    /// True to forget the peak of memory before it.
    pub(super) forget: bool,
    /// Seconds to wait after it, before what is held is read.
    pub(super) rest: u64,
    /// More arguments and settings: the server is a new one then.
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) and: Vec<Self>,
}

/// A row of the report.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: Unit,
    pub(super) value: String,
    #[serde(default)]
    pub(super) at_most: String,
    #[serde(default)]
    pub(super) at_least: String,
    /// The factor by which Prelude is to be better than a rival.
    #[serde(default)]
    pub(super) aim: String,
    /// A note, with values between `<` and `>`.
    #[serde(default)]
    pub(super) note: String,
    /// True to leave out rivals.
    #[serde(default)]
    pub(super) ours: bool,
}

/// The values that one server's loads found, round by round.
#[derive(Debug, Default)]
pub(super) struct Values {
    numbers: HashMap<String, Vec<f64>>,
    pub(super) texts: HashMap<String, String>,
}

impl Values {
    /// Adds the value of a round.
    pub(super) fn push(&mut self, name: &str, value: f64) {
        let rounds = self.numbers.entry(name.to_owned()).or_default();
        rounds.push(value);
    }

    /// Sets a value that is the same in all rounds.
    pub(super) fn set(&mut self, name: &str, value: f64) {
        self.numbers.insert(name.to_owned(), vec![value]);
    }

    /// Forgets all values of a load.
    pub(super) fn forget(&mut self, id: &str) {
        let is_other = |name: &String| !name.strip_prefix(id).is_some_and(|of| of.starts_with('.'));
        self.numbers.retain(|name, _| is_other(name));
    }

    /// Computes `text` for a round.
    pub(super) fn compute(&self, text: &str, round: usize) -> Result<f64> {
        let value = |name: &str| {
            let rounds = self.numbers.get(name)?;
            rounds.get(round).or_else(|| rounds.first()).copied()
        };
        compute(text, &value)
    }

    /// Returns a note with the values of the first round.
    fn note(&self, note: &str) -> Result<String> {
        let mut parts = note.split(['<', '>']);
        let mut text = parts.next().unwrap_or_default().to_owned();
        while let (Some(value), Some(rest)) = (parts.next(), parts.next()) {
            text += &match self.texts.get(value) {
                Some(said) => said.clone(),
                None => {
                    let value = self.compute(value, 0)?;
                    // Counts and settings are whole.
                    match value.fract() == 0.0 {
                        true => value.to_string(),
                        false => number(value),
                    }
                }
            };
            text += rest;
        }
        Ok(text)
    }
}

impl Figure {
    /// Makes the row of a server of ours, by its name where there are several, from so many rounds.
    pub(super) fn row(&self, label: &str, values: &Values, rounds: usize) -> Result<Row> {
        let name = match label {
            "" => self.name.clone(),
            label => format!("{}, {label}", self.name),
        };
        let mut row = Row::new(name, self.unit, self.values(values, rounds)?);
        // Of what is counted, no round may have too many.
        let (low, high) = match self.unit {
            Unit::Count => row.spread,
            _ => (row.value, row.value),
        };
        if !self.at_most.is_empty() {
            let bound = values.compute(&self.at_most, 0)?;
            row = row.with(Verdict::at_most(high, bound));
        }
        if !self.at_least.is_empty() {
            let bound = values.compute(&self.at_least, 0)?;
            row = row.with(Verdict::at_least(low, bound));
        }
        match &*self.note {
            "" => Ok(row),
            note => Ok(row.noting(values.note(note)?)),
        }
    }

    /// Returns the value of each round.
    pub(super) fn values(&self, values: &Values, rounds: usize) -> Result<Vec<f64>> {
        let rounds = (0..rounds).map(|round| values.compute(&self.value, round));
        let rounds: Result<Vec<f64>> = rounds.collect();
        rounds.with_context(|| self.name.clone())
    }
}

/// Returns the cases of a part; none if it is no study of data. `questions` replaces that word.
///
/// # Errors
/// If the data is not of the form of this module.
pub(super) fn cases(part: &str, questions: usize) -> Result<Vec<Case>> {
    let studies =
        include_str!("studies.toml").replace("500 questions", &format!("500 {questions}"));
    let mut studies: Map<String, Value> = toml::from_str(&studies)?;
    let cases = studies
        .remove(part)
        .unwrap_or_else(|| Value::Array(Vec::new()));
    let cases = expand(cases, &Map::new()).with_context(|| part.to_owned())?;
    let mut cases: Vec<Case> = serde_json::from_value(cases).with_context(|| part.to_owned())?;
    for case in &mut cases {
        if case.servers.is_empty() {
            case.servers.push(Ours::default());
        }
    }
    Ok(cases)
}

/// Replaces each element of an array that has `with` by one for each entry of the lists that this
/// names.
fn expand(value: Value, lists: &Map<String, Value>) -> Result<Value> {
    match value {
        Value::Array(elements) => {
            let mut all = Vec::new();
            for mut element in elements {
                let with = element
                    .as_object_mut()
                    .and_then(|fields| fields.remove("with"));
                let Some(with) = with else {
                    all.push(expand(element, lists)?);
                    continue;
                };
                let lists = element["lists"].as_object().unwrap_or(lists);
                for name in with.as_str().unwrap_or_default().split(' ') {
                    let entries = lists.get(name).and_then(Value::as_array);
                    for entry in entries.with_context(|| format!("there is no list {name}"))? {
                        let entry = entry.as_object().context("an entry is a table")?;
                        all.push(expand(filled(&element, entry), lists)?);
                    }
                }
            }
            Ok(Value::Array(all))
        }
        Value::Object(mut fields) => {
            let own = fields.remove("lists");
            let lists = own.as_ref().and_then(Value::as_object).unwrap_or(lists);
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| Ok((name, expand(value, lists)?)));
            fields.collect::<Result<Map<_, _>>>().map(Value::Object)
        }
        other => Ok(other),
    }
}

/// Returns `value` with the fields of `entry` in place of their names in braces.
fn filled(value: &Value, entry: &Map<String, Value>) -> Value {
    match value {
        Value::String(text) => {
            let is_all = |(name, _): &(&String, &Value)| *text == format!("{{{name}}}");
            if let Some((_, whole)) = entry.iter().find(is_all) {
                return whole.clone();
            }
            let put = |text: String, (name, value): (&String, &Value)| {
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                text.replace(&format!("{{{name}}}"), &value)
            };
            Value::String(entry.iter().fold(text.clone(), put))
        }
        Value::Array(elements) => elements.iter().map(|value| filled(value, entry)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(name, value)| (name.clone(), filled(value, entry)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}
