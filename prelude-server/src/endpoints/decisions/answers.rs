//! Typed answers as OpenAI's clients read them.

use prelude_text::decide::Answer;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::questions::StringOrBool;
use crate::{
    endpoint::Reply,
    tasks::decide::{Decided, NamedQuestion, Questionnaire},
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Decision")]
pub(crate) struct Response<'a> {
    model: &'a str,
    answers: Vec<AnswerBody<'a>>,
    usage: Usage,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DecisionUsage")]
struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DecisionInputDetails")]
struct InputDetails {
    cached_tokens: u64,
    /// The tokens that later requests find in the cache because of this one.
    cache_write_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DecisionOutputDetails")]
struct OutputDetails {
    reasoning_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
#[schemars(rename = "DecisionAnswer")]
enum AnswerBody<'a> {
    Predicate {
        name: Option<&'a str>,
        probability: f64,
    },
    Choice {
        name: Option<&'a str>,
        #[schemars(with = "StringOrBool")]
        choice: &'a RawValue,
        confidence: f64,
        probabilities: Vec<OfValue<'a>>,
    },
    Score {
        name: Option<&'a str>,
        score: f64,
        confidence: f64,
        probabilities: Vec<OfLevel<'a>>,
    },
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DecisionChoiceProbability")]
struct OfValue<'a> {
    #[schemars(with = "StringOrBool")]
    value: &'a RawValue,
    probability: f64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DecisionLevelProbability")]
struct OfLevel<'a> {
    value: usize,
    #[schemars(with = "String")]
    label: &'a RawValue,
    probability: f64,
}

/// Writes the answers in the order of the questions.
pub(super) fn reply(model: &str, questionnaire: &Questionnaire<'_>, decided: &Decided) -> Reply {
    let answers = questionnaire.questions.iter().zip(&decided.answers);
    let answers = answers.map(|(named, (answer, _))| answer_body(named, answer));
    let input_tokens = decided.tokens;
    Reply::json(&Response {
        model,
        answers: answers.collect(),
        usage: Usage {
            input_tokens,
            input_tokens_details: InputDetails {
                // What two rows read is counted by the engine twice.
                cached_tokens: decided.usage.cached_tokens.min(input_tokens),
                cache_write_tokens: decided.usage.cache_write_tokens.min(input_tokens),
            },
            output_tokens: 0,
            output_tokens_details: OutputDetails {
                reasoning_tokens: 0,
            },
            total_tokens: input_tokens,
        },
    })
}

fn answer_body<'a>(named: &'a NamedQuestion<'_>, answer: &Answer) -> AnswerBody<'a> {
    let name = named.name.as_deref();
    let values = named.values.iter().copied();
    match answer {
        Answer::Noul { noul } => AnswerBody::Predicate {
            name,
            probability: *noul,
        },
        Answer::Choice {
            choice,
            probabilities,
            confidence,
        } => AnswerBody::Choice {
            name,
            choice: named.values[*choice],
            confidence: *confidence,
            probabilities: { values.zip(probabilities) }
                .map(|(value, &probability)| OfValue { value, probability })
                .collect(),
        },
        Answer::Score {
            score,
            probabilities,
            confidence,
        } => AnswerBody::Score {
            name,
            score: *score,
            confidence: *confidence,
            probabilities: { values.zip(probabilities).enumerate() }
                .map(|(value, (label, &probability))| OfLevel {
                    value,
                    label,
                    probability,
                })
                .collect(),
        },
    }
}
