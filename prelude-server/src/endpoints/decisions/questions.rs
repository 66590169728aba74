//! Typed questions as OpenAI's clients write them.

use std::collections::HashSet;

use prelude_text::decide::{ChoiceOption, Criteria, Level, Question};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    error::ApiError,
    tasks::decide::{LEVELS_MAX, NamedQuestion, OPTIONS_MAX, QUESTIONS_MAX},
    wire::{Refused, Text, Unknown, check_count, from_raw},
};

/// A question. `choices` are a choice's, `levels` a score's.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "DecisionQuestion")]
pub(super) struct QuestionFields<'a> {
    r#type: Kind,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    instructions: Text<'a>,
    #[schemars(length(min = 2, max = 255))]
    choices: Option<Vec<ChoiceFields<'a>>>,
    #[schemars(length(min = 2, max = 10))]
    levels: Option<Vec<LevelFields<'a>>>,
    // Another server's dialect of this route, which would otherwise be asked about nothing.
    #[schemars(skip)]
    #[expect(dead_code, reason = "any value is refused")]
    id: Option<Refused>,
    #[schemars(skip)]
    #[expect(dead_code, reason = "any value is refused")]
    question: Option<Refused>,
    #[schemars(skip)]
    #[expect(dead_code, reason = "any value is refused")]
    options: Option<Refused>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "DecisionType")]
enum Kind {
    Predicate,
    Choice,
    Score,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "DecisionChoice")]
struct ChoiceFields<'a> {
    #[serde(borrow)]
    #[schemars(with = "StringOrBool")]
    value: &'a RawValue,
    description: Option<Text<'a>>,
}

/// A value that a caller gives its own meaning, as described.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(
    dead_code,
    reason = "values stay JSON, so that they are answered as they are spelled"
)]
pub(super) enum StringOrBool {
    String(String),
    Bool(bool),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "DecisionLevel")]
struct LevelFields<'a> {
    #[serde(borrow)]
    #[schemars(with = "String")]
    label: &'a RawValue,
    description: Option<Text<'a>>,
}

/// Reads the questions of a request.
///
/// # Errors
/// 400 naming the question's field.
pub(super) fn questions(list: Vec<QuestionFields<'_>>) -> Result<Vec<NamedQuestion<'_>>, ApiError> {
    check_count("questions", list.len(), 1..=QUESTIONS_MAX, "questions")?;
    let read = list.into_iter().enumerate();
    let read = read.map(|(i, fields)| question(&format!("/questions/{i}"), fields));
    read.collect()
}

fn question<'a>(path: &str, fields: QuestionFields<'a>) -> Result<NamedQuestion<'a>, ApiError> {
    let list = match fields.r#type {
        Kind::Predicate => "type",
        Kind::Choice => "choices",
        Kind::Score => "levels",
    };
    let pointer = format!("{path}/{list}");
    let (criteria, values) = match fields.r#type {
        Kind::Predicate => {
            let (yes, no) = (None, None);
            (Criteria::Noul { yes, no }, Vec::new())
        }
        Kind::Choice => choices(&pointer, listed(fields.choices, &pointer, OPTIONS_MAX)?)?,
        Kind::Score => levels(&pointer, listed(fields.levels, &pointer, LEVELS_MAX)?)?,
    };
    Ok(NamedQuestion {
        name: fields.name.map(|name| name.0),
        pointer,
        question: Question {
            instructions: Some(fields.instructions.0.into()),
            criteria,
        },
        values,
    })
}

/// Checks that a list has 2 to `max` entries, and returns it.
fn listed<T>(list: Option<Vec<T>>, path: &str, max: usize) -> Result<Vec<T>, ApiError> {
    let list = list.ok_or_else(|| ApiError::missing_field(path.to_owned()))?;
    check_count(path.to_owned(), list.len(), 2..=max, "entries")?;
    Ok(list)
}

fn choices<'a>(
    path: &str,
    list: Vec<ChoiceFields<'a>>,
) -> Result<(Criteria, Vec<&'a RawValue>), ApiError> {
    let mut options = Vec::with_capacity(list.len());
    let mut values = Vec::with_capacity(list.len());
    let mut seen = HashSet::new();
    for (index, ChoiceFields { value, description }) in list.into_iter().enumerate() {
        // `true` and `"true"` read alike to the model and are two values to the caller.
        let name = match value.get() {
            text @ ("true" | "false") => text.to_owned(),
            raw => serde_json::from_str(raw).map_err(|_| {
                let path = format!("{path}/{index}/value");
                ApiError::invalid_type(path, "a string, true or false")
            })?,
        };
        if !seen.insert((value.get().starts_with('"'), name.clone())) {
            let must = "have distinct values";
            return Err(ApiError::invalid_value(path.to_owned(), must));
        }
        let description = description.map(|text| text.0.into());
        options.push(ChoiceOption { name, description });
        values.push(value);
    }
    Ok((Criteria::Choice(options), values))
}

fn levels<'a>(
    path: &str,
    list: Vec<LevelFields<'a>>,
) -> Result<(Criteria, Vec<&'a RawValue>), ApiError> {
    let values = list.iter().map(|level| level.label).collect();
    let level = |(index, fields): (usize, LevelFields<'_>)| {
        let path = format!("{path}/{index}/label");
        let Text(label) = from_raw(fields.label.get(), &path, &mut Unknown::default())?;
        let description = match fields.description {
            Some(Text(description)) => format!("{label} - {description}").into(),
            None => label.into(),
        };
        Ok(Level { description })
    };
    let levels = list.into_iter().enumerate().map(level);
    Ok((
        Criteria::Score(levels.collect::<Result<_, ApiError>>()?),
        values,
    ))
}
