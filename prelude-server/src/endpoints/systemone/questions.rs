//! System One's state and questions.

use std::{borrow::Cow, collections::BTreeMap};

use prelude_text::decide::{ChoiceOption, Criteria, Level, Question};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    error::ApiError,
    tasks::decide::{
        DecideFields, LEVELS_MAX, NamedQuestion, OPTIONS_MAX, Options, QUESTIONS_MAX, Questionnaire,
    },
    wire::{Entries, TextOrJson, Unknown, check_count, escaped, from_raw},
};

/// A state and questions about it, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct StateFields<'a> {
    /// The subject of the questions.
    state: TextOrJson,
    /// 1 to 256 questions by ids of the caller's.
    #[serde(borrow)]
    questions: Entries<'a, QuestionFields<'a>>,
    instructions: Option<TextOrJson>,
}

/// `noul`: criteria for true and false, if any. `choice`: 2 to 255 options and what they mean.
/// `score`: 2 to 10 levels in order.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Question")]
struct QuestionFields<'a> {
    r#type: Kind,
    instructions: Option<TextOrJson>,
    #[serde(borrow)]
    #[schemars(with = "Option<CriteriaFields>")]
    criteria: Option<&'a RawValue>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "QuestionType")]
enum Kind {
    Noul,
    Choice,
    Score,
}

/// The possible answers, as described.
#[derive(JsonSchema)]
#[schemars(untagged, rename = "Criteria")]
#[expect(dead_code, reason = "criteria are read by the question's type")]
enum CriteriaFields {
    Options(BTreeMap<String, Option<TextOrJson>>),
    Levels(Vec<TextOrJson>),
}

/// The criteria of a noul.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sides {
    r#true: Option<TextOrJson>,
    r#false: Option<TextOrJson>,
}

/// Checks the endpoint's own fields.
///
/// # Errors
/// 400 naming the field; the endpoint makes it 422.
pub(super) fn questionnaire<'a>(
    fields: StateFields<'a>,
    options: DecideFields<'_>,
) -> Result<Questionnaire<'a>, ApiError> {
    let questions = fields.questions.0.into_iter().map(|(id, question)| {
        if id.is_empty() {
            let must = "have no empty question id";
            return Err(ApiError::invalid_value("questions", must));
        }
        let pointer = format!("/questions/{}/criteria", escaped(&id));
        let (criteria, values) = criteria(question.r#type, question.criteria, &pointer)?;
        Ok(NamedQuestion {
            question: Question {
                instructions: question.instructions.map(|text| text.0),
                criteria,
            },
            pointer,
            name: Some(id),
            values,
        })
    });
    let questions = questions.collect::<Result<Vec<_>, _>>()?;
    check_count("questions", questions.len(), 1..=QUESTIONS_MAX, "questions")?;
    Ok(Questionnaire {
        state_field: "state",
        state: fields.state.0,
        instructions: fields.instructions.map(|text| text.0),
        questions,
        options: Options::new(options.x_prelude)?,
        escapes: options.escape_special_tokens,
    })
}

/// Reads the criteria of a question at `path`.
fn criteria<'a>(
    kind: Kind,
    raw: Option<&'a RawValue>,
    path: &str,
) -> Result<(Criteria, Vec<&'a RawValue>), ApiError> {
    // Unknown fields inside criteria are errors.
    let none = &mut Unknown::default();
    let required = || raw.ok_or_else(|| ApiError::missing_field(path.to_owned()));
    match kind {
        Kind::Noul => {
            let sides = raw.map(|raw| from_raw(raw.get(), path, none)).transpose()?;
            let Sides { r#true, r#false } = sides.unwrap_or_default();
            let [yes, no] = [r#true, r#false].map(|side| side.map(|text| text.0));
            Ok((Criteria::Noul { yes, no }, Vec::new()))
        }
        Kind::Choice => {
            type Options<'a> = Entries<'a, Option<TextOrJson>>;
            let options: Options<'_> = from_raw(required()?.get(), path, none)?;
            check_count(path.to_owned(), options.0.len(), 2..=OPTIONS_MAX, "options")?;
            let option = |(name, description): (Cow<'_, str>, Option<TextOrJson>)| ChoiceOption {
                name: name.into_owned(),
                description: description.map(|text| text.0),
            };
            let options = options.0.into_iter().map(option).collect();
            Ok((Criteria::Choice(options), Vec::new()))
        }
        Kind::Score => {
            let values: Vec<&RawValue> = from_raw(required()?.get(), path, none)?;
            check_count(path.to_owned(), values.len(), 2..=LEVELS_MAX, "levels")?;
            let level = |(index, raw): (usize, &RawValue)| {
                let path = format!("{path}/{index}");
                let TextOrJson(description) = from_raw(raw.get(), &path, &mut Unknown::default())?;
                Ok(Level { description })
            };
            let levels = values.iter().copied().enumerate().map(level);
            let levels = levels.collect::<Result<_, ApiError>>()?;
            Ok((Criteria::Score(levels), values))
        }
    }
}
