//! System One's request and response.

use std::{borrow::Cow, collections::BTreeMap};

use prelude_text::decide::{Answer, ChoiceOption, Criteria, Level, PROMPT_FORMAT, Question};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    endpoint::Reply,
    error::ApiError,
    tasks::decide::{
        DecideFields, Decided, LEVELS_MAX, NamedQuestion, OPTIONS_MAX, Options, QUESTIONS_MAX,
        Questionnaire,
    },
    wire::{Entries, TextOrJson, Unknown, escaped, from_raw},
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
        Ok(NamedQuestion {
            question: Question {
                instructions: question.instructions.map(|text| text.0),
                criteria: criteria(question.r#type, question.criteria, &pointer)?,
            },
            pointer,
            name: Some(id),
        })
    });
    let questions = questions.collect::<Result<Vec<_>, _>>()?;
    if !(1..=QUESTIONS_MAX).contains(&questions.len()) {
        let must = format!("have 1 to {QUESTIONS_MAX} questions");
        return Err(ApiError::invalid_value("questions", must));
    }
    Ok(Questionnaire {
        state_field: "state",
        state: fields.state.0.into(),
        instructions: fields.instructions.map(|text| text.0),
        questions,
        options: Options::new(options.x_prelude)?,
        escapes: options.escape_special_tokens,
    })
}

/// Reads the criteria of a question at `path`.
fn criteria(kind: Kind, raw: Option<&RawValue>, path: &str) -> Result<Criteria, ApiError> {
    // Unknown fields inside criteria are errors.
    let none = &mut Unknown::default();
    let required = || raw.ok_or_else(|| ApiError::missing_field(path.to_owned()));
    match kind {
        Kind::Noul => {
            let sides = raw.map(|raw| from_raw(raw.get(), path, none)).transpose()?;
            let Sides { r#true, r#false } = sides.unwrap_or_default();
            Ok(Criteria::Noul {
                yes: r#true.map(|text| text.0),
                no: r#false.map(|text| text.0),
            })
        }
        Kind::Choice => {
            type Options<'a> = Entries<'a, Option<TextOrJson>>;
            let options: Options<'_> = from_raw(required()?.get(), path, none)?;
            if !(2..=OPTIONS_MAX).contains(&options.0.len()) {
                let must = format!("have 2 to {OPTIONS_MAX} options");
                return Err(ApiError::invalid_value(path.to_owned(), must));
            }
            let option = |(name, description): (Cow<'_, str>, Option<TextOrJson>)| ChoiceOption {
                name: name.into_owned(),
                description: description.map(|text| text.0),
            };
            Ok(Criteria::Choice(
                options.0.into_iter().map(option).collect(),
            ))
        }
        Kind::Score => {
            let levels: Vec<&RawValue> = from_raw(required()?.get(), path, none)?;
            if !(2..=LEVELS_MAX).contains(&levels.len()) {
                let must = format!("have 2 to {LEVELS_MAX} levels");
                return Err(ApiError::invalid_value(path.to_owned(), must));
            }
            let level = |(index, raw): (usize, &RawValue)| {
                let path = format!("{path}/{index}");
                let TextOrJson(description) = from_raw(raw.get(), &path, &mut Unknown::default())?;
                Ok(Level {
                    description,
                    json: raw.get().to_owned(),
                })
            };
            let levels = levels.into_iter().enumerate().map(level);
            Ok(Criteria::Score(levels.collect::<Result<_, ApiError>>()?))
        }
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
    /// The tree of the prompts, if the request's `x_prelude.forest` asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    forest: Option<ForestBody<'a>>,
}

/// The prompts of all questions as they are computed: each run of tokens once.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Forest")]
struct ForestBody<'a> {
    /// A parent comes before its children. All `tokens` together are `usage.input_tokens`.
    nodes: Vec<NodeBody>,
    /// The nodes of each question behind which its labels are scored.
    questions: Entries<'a, &'a [u32]>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ForestNode")]
struct NodeBody {
    /// The node whose tokens come before; null if this one begins the prompt.
    parent: Option<u32>,
    /// The node's own tokens.
    tokens: u64,
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

/// Returns the answers in the order of the questions.
pub(super) fn reply(model: &str, questionnaire: &Questionnaire<'_>, decided: &Decided) -> Reply {
    let answers = || questionnaire.questions.iter().zip(&decided.answers);
    let id = |named: &NamedQuestion<'_>| {
        let name = named.name.as_deref();
        let name = name.expect("System One's questions are named");
        Cow::Owned(name.to_owned())
    };
    let bodies =
        answers().map(|(named, (answer, _))| (id(named), body(&named.question.criteria, answer)));
    let diagnostics = answers().map(|(named, (_, diagnostics))| {
        let body = DiagnosticsBody {
            label_mass: diagnostics.label_mass,
            margin: diagnostics.margin,
        };
        (id(named), body)
    });
    let forest = decided.forest.as_ref().map(|forest| ForestBody {
        nodes: { forest.nodes.iter() }
            .map(|&(parent, tokens)| NodeBody { parent, tokens })
            .collect(),
        questions: {
            let ends = forest.ends.iter().map(|nodes| &**nodes);
            let ids = questionnaire.questions.iter().map(id);
            Entries(ids.zip(ends).collect())
        },
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
            forest,
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
