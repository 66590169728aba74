//! System One's request and response.

use std::{borrow::Cow, collections::BTreeMap};

use prelude_text::decide::{
    Answer, ChoiceOption, Criteria, Level, PROMPT_FORMAT, Question, compact_json,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::value::RawValue;

use crate::{
    endpoints::{
        Reply,
        decide::{Asked, Asking, Decided, LEVELS_MAX, OPTIONS_MAX, Options, QUESTIONS_MAX},
        escaping::Escaping,
    },
    error::ApiError,
    json::{Fields, Unknown},
    wire::Text,
};

/// Takes the endpoint's own fields.
///
/// # Errors
/// 400 naming the field; the endpoint makes it 422.
pub(super) fn take<'a>(fields: &mut Fields<'a>) -> Result<Asking<'a>, ApiError> {
    let state = fields.raw("state");
    let state = state.ok_or_else(|| ApiError::missing_field("state"))?;
    let questions = fields.object("questions")?;
    let questions = questions.ok_or_else(|| ApiError::missing_field("questions"))?;
    let options = Options::take(fields)?;
    let questions = asked(questions, &mut fields.unknown)?;
    Ok(Asking {
        state_field: "state",
        state: text(state, "state")?.into(),
        instructions: take_text(fields, "instructions")?,
        questions,
        options,
        escapes: Escaping::take(fields)?,
    })
}

fn asked<'a>(questions: Fields<'a>, unknown: &mut Unknown) -> Result<Vec<Asked<'a>>, ApiError> {
    let path = questions.path("");
    let path = path.trim_end_matches('/').to_owned();
    let asked = questions
        .drain()
        .map(|(id, raw)| {
            if id.is_empty() {
                let must = "have no empty question id";
                return Err(ApiError::invalid_value("questions", must));
            }
            let pointer = format!("{path}/{}", segment(&id));
            Ok(Asked {
                question: question(Fields::at(pointer.clone(), raw)?, unknown)?,
                pointer: format!("{pointer}/criteria"),
                name: Some(id),
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    if !(1..=QUESTIONS_MAX).contains(&asked.len()) {
        let must = format!("have 1 to {QUESTIONS_MAX} questions");
        return Err(ApiError::invalid_value("questions", must));
    }
    Ok(asked)
}

/// A client's own key as one segment of a JSON pointer, short enough for a message.
fn segment(key: &str) -> String {
    let short: String = key.chars().take(64).collect();
    short.replace('~', "~0").replace('/', "~1")
}

fn question(mut fields: Fields<'_>, unknown: &mut Unknown) -> Result<Question, ApiError> {
    let kind = fields.string("type")?;
    let kind = kind.ok_or_else(|| ApiError::missing_field(fields.path("type")))?;
    let instructions = take_text(&mut fields, "instructions")?;
    let criteria = match &*kind {
        "noul" => noul(&mut fields)?,
        "choice" => choice(&mut fields)?,
        "score" => score(&mut fields)?,
        _ => {
            let must = "be \"noul\", \"choice\" or \"score\"";
            return Err(ApiError::invalid_value(fields.path("type"), must));
        }
    };
    unknown.add(&fields);
    Ok(Question {
        instructions,
        criteria,
    })
}

fn noul(fields: &mut Fields<'_>) -> Result<Criteria, ApiError> {
    let Some(mut sides) = fields.object("criteria")? else {
        return Ok(Criteria::Noul {
            yes: None,
            no: None,
        });
    };
    let criteria = Criteria::Noul {
        yes: take_text(&mut sides, "true")?,
        no: take_text(&mut sides, "false")?,
    };
    match sides.rest().next() {
        None => Ok(criteria),
        Some((name, _)) => {
            let must = "not be there: the criteria of a noul are `true` and `false`";
            Err(ApiError::invalid_value(sides.path(name), must))
        }
    }
}

fn choice(fields: &mut Fields<'_>) -> Result<Criteria, ApiError> {
    let path = fields.path("criteria");
    let options = fields.object("criteria")?;
    let options = options.ok_or_else(|| ApiError::missing_field(path.clone()))?;
    let option = |(name, raw): (Cow<'_, str>, &str)| {
        let description = match raw {
            "null" => None,
            raw => Some(text(raw, &format!("{path}/{}", segment(&name)))?),
        };
        Ok(ChoiceOption {
            name: name.into_owned(),
            description,
        })
    };
    let options = options.drain().map(option).collect::<Result<Vec<_>, _>>()?;
    if !(2..=OPTIONS_MAX).contains(&options.len()) {
        let must = format!("have 2 to {OPTIONS_MAX} options");
        return Err(ApiError::invalid_value(path, must));
    }
    Ok(Criteria::Choice(options))
}

fn score(fields: &mut Fields<'_>) -> Result<Criteria, ApiError> {
    let path = fields.path("criteria");
    let levels = fields.list("criteria")?;
    let levels = levels.ok_or_else(|| ApiError::missing_field(path.clone()))?;
    let level = |(index, raw): (usize, &RawValue)| {
        Ok(Level {
            description: text(raw.get(), &format!("{path}/{index}"))?,
            json: raw.get().to_owned(),
        })
    };
    let levels = levels.into_iter().enumerate().map(level);
    let levels = levels.collect::<Result<Vec<_>, ApiError>>()?;
    if !(2..=LEVELS_MAX).contains(&levels.len()) {
        let must = format!("have 2 to {LEVELS_MAX} levels");
        return Err(ApiError::invalid_value(path, must));
    }
    Ok(Criteria::Score(levels))
}

fn take_text(fields: &mut Fields<'_>, name: &str) -> Result<Option<String>, ApiError> {
    let path = fields.path(name);
    fields.raw(name).map(|raw| text(raw, &path)).transpose()
}

/// A string as it is; an object or a list as compact JSON.
fn text(raw: &str, path: &str) -> Result<String, ApiError> {
    let wrong = || ApiError::invalid_type(path.to_owned(), "a string, an object or a list");
    match raw.as_bytes().first() {
        Some(b'"') => {
            let text: Text<'_> = serde_json::from_str(raw).map_err(|_| wrong())?;
            Ok(text.0.into_owned())
        }
        Some(b'{' | b'[') => Ok(compact_json(raw)),
        _ => Err(wrong()),
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SystemOneDecision")]
pub(crate) struct Response<'a> {
    model: &'a str,
    answers: Entries<'a, AnswerBody<'a>>,
    usage: Usage,
    x_prelude: Extension<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SystemOneUsage")]
struct Usage {
    input_tokens: u64,
    output_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SystemOneExtension")]
struct Extension<'a> {
    prompt_format: &'static str,
    diagnostics: Entries<'a, DiagnosticsBody>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Diagnostics")]
struct DiagnosticsBody {
    label_mass: Option<f64>,
    margin: f64,
}

#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
#[schemars(rename = "SystemOneAnswer")]
enum AnswerBody<'a> {
    Noul {
        noul: f64,
    },
    Choice {
        choice: &'a str,
        probabilities: Entries<'a, f64>,
        confidence: f64,
    },
    Score {
        score: f64,
        #[schemars(with = "BTreeMap<String, serde_json::Value>")]
        legend: Entries<'a, &'a RawValue>,
        probabilities: Entries<'a, f64>,
        confidence: f64,
    },
}

/// An object whose keys keep their order.
struct Entries<'a, T>(Vec<(Cow<'a, str>, T)>);

impl<T: JsonSchema> JsonSchema for Entries<'_, T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        BTreeMap::<String, T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, T>::json_schema(generator)
    }
}

impl<T: Serialize> Serialize for Entries<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// The answers in the order of the questions.
pub(super) fn reply(model: &str, asking: &Asking<'_>, decided: &Decided) -> Reply {
    let answers = || asking.questions.iter().zip(&decided.answers);
    let id = |asked: &Asked<'_>| {
        let name = asked.name.as_deref();
        let name = name.expect("System One's questions are named");
        Cow::Owned(name.to_owned())
    };
    let bodies =
        answers().map(|(asked, (answer, _))| (id(asked), body(&asked.question.criteria, answer)));
    let diagnostics = answers().map(|(asked, (_, diagnostics))| {
        let body = DiagnosticsBody {
            label_mass: diagnostics.label_mass,
            margin: diagnostics.margin,
        };
        (id(asked), body)
    });
    Reply::json(&Response {
        model,
        answers: Entries(bodies.collect()),
        usage: Usage {
            input_tokens: decided.tokens,
            output_tokens: 0,
        },
        x_prelude: Extension {
            prompt_format: PROMPT_FORMAT,
            diagnostics: Entries(diagnostics.collect()),
        },
    })
}

fn body<'a>(criteria: &'a Criteria, answer: &Answer) -> AnswerBody<'a> {
    match (criteria, answer) {
        (
            Criteria::Choice(options),
            Answer::Choice {
                choice,
                probabilities,
                confidence,
            },
        ) => AnswerBody::Choice {
            choice: &options[*choice].name,
            probabilities: Entries(
                options
                    .iter()
                    .zip(probabilities)
                    .map(|(o, p)| (Cow::Borrowed(&*o.name), *p))
                    .collect(),
            ),
            confidence: *confidence,
        },
        (
            Criteria::Score(levels),
            Answer::Score {
                score,
                probabilities,
                confidence,
            },
        ) => AnswerBody::Score {
            score: *score,
            legend: Entries(
                levels
                    .iter()
                    .enumerate()
                    .map(|(i, level)| {
                        let json = serde_json::from_str(&level.json);
                        (
                            Cow::Owned(i.to_string()),
                            json.expect("it was JSON when read"),
                        )
                    })
                    .collect(),
            ),
            probabilities: Entries(
                probabilities
                    .iter()
                    .enumerate()
                    .map(|(i, p)| (Cow::Owned(i.to_string()), *p))
                    .collect(),
            ),
            confidence: *confidence,
        },
        (Criteria::Noul { .. }, Answer::Noul { noul }) => AnswerBody::Noul { noul: *noul },
        _ => unreachable!("the answer was made from these criteria"),
    }
}
