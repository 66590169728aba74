//! `POST /v1/decisions`: typed decisions in OpenAI's dialect.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use prelude_text::decide::{Answer, ChoiceOption, Criteria, Level, Question};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    Call, Reply,
    decide::{self, Asked, Asking, Decided, LEVELS_MAX, OPTIONS_MAX, Options, QUESTIONS_MAX},
    escaping::Escaping,
    submit::Common,
};
use crate::{
    error::ApiError,
    json::{Fields, Unknown},
    openapi::StringOrBool,
    served_model::Task,
    wire::Text,
};

/// Answers `/v1/decisions`.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let mut fields = call.fields(&body)?;
    let common = Common::take(call, &mut fields)?;
    let model = call
        .app
        .model_for(common.model.as_deref(), Task::Decisions)?;
    fields.refuse("stream", &["false"])?;
    // An input is never cut.
    fields.refuse("truncate_prompt_tokens", &[])?;
    fields.string("safety_identifier")?;
    let raw = fields.raw("input");
    let raw = raw.ok_or_else(|| ApiError::missing_field("input"))?;
    let (questions, values) = questions(&mut fields)?;
    let asking = Asking {
        state_field: "input",
        state: input(raw, &mut fields.unknown)?,
        instructions: None,
        questions,
        options: Options::take(&mut fields)?,
        escapes: Escaping::take(&mut fields)?,
    };
    call.finish(&fields)?;
    let decided = decide::decide(call, model, &common, &asking, body.len()).await?;
    Ok(reply(&model.name, &asking, &values, &decided))
}

/// A string, or the texts of user messages with a blank line between messages.
fn input<'a>(raw: &'a str, unknown: &mut Unknown) -> Result<Cow<'a, str>, ApiError> {
    let wrong = || ApiError::invalid_type("input", "a string or a list of user messages");
    match raw.as_bytes().first() {
        Some(b'"') => {
            let text: Text<'_> = serde_json::from_str(raw).map_err(|_| wrong())?;
            Ok(text.0)
        }
        Some(b'[') => {
            let messages: Vec<&RawValue> = serde_json::from_str(raw).map_err(|_| wrong())?;
            if messages.is_empty() {
                return Err(ApiError::invalid_value("input", "not be an empty list"));
            }
            let texts = messages.into_iter().enumerate();
            let texts = texts.map(|(i, m)| message(i, m, unknown));
            Ok(Cow::Owned(
                texts.collect::<Result<Vec<_>, _>>()?.join("\n\n"),
            ))
        }
        _ => Err(wrong()),
    }
}

fn message(index: usize, raw: &RawValue, unknown: &mut Unknown) -> Result<String, ApiError> {
    let mut fields = Fields::at(format!("/input/{index}"), raw.get())?;
    if let Some(kind) = fields.string("type")?
        && kind != "message"
    {
        return Err(ApiError::unsupported_parameter(fields.path("type")));
    }
    let role = fields.string("role")?;
    let role = role.ok_or_else(|| ApiError::missing_field(fields.path("role")))?;
    if role != "user" {
        return Err(ApiError::invalid_value(fields.path("role"), "be `user`"));
    }
    let path = fields.path("content");
    let content = fields.raw("content");
    let content = content.ok_or_else(|| ApiError::missing_field(path.clone()))?;
    unknown.add(&fields);
    let wrong = || ApiError::invalid_type(path.clone(), "a string or a list of parts");
    if content.starts_with('"') {
        let text: Text<'_> = serde_json::from_str(content).map_err(|_| wrong())?;
        return Ok(text.0.into_owned());
    }
    let parts: Vec<&RawValue> = serde_json::from_str(content).map_err(|_| wrong())?;
    let parts = parts.into_iter().enumerate().map(|(i, part)| {
        let mut part = Fields::at(format!("{path}/{i}"), part.get())?;
        match part.string("type")?.as_deref() {
            Some("input_text") => {}
            // Images and files.
            Some(_) => return Err(ApiError::unsupported_parameter(part.path("type"))),
            None => return Err(ApiError::missing_field(part.path("type"))),
        }
        let text = part.string("text")?;
        unknown.add(&part);
        text.ok_or_else(|| ApiError::missing_field(part.path("text")))
    });
    Ok(parts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// The questions, and what each one's answers are called.
fn questions<'a>(fields: &mut Fields<'a>) -> Result<(Vec<Asked<'a>>, Vec<Values<'a>>), ApiError> {
    let list = fields.list("questions")?;
    let list = list.ok_or_else(|| ApiError::missing_field("questions"))?;
    if !(1..=QUESTIONS_MAX).contains(&list.len()) {
        let must = format!("have 1 to {QUESTIONS_MAX} questions");
        return Err(ApiError::invalid_value("questions", must));
    }
    let unknown = &mut fields.unknown;
    let read = list.into_iter().enumerate().map(|(i, raw)| {
        let mut part = Fields::at(format!("/questions/{i}"), raw.get())?;
        let read = question(&mut part)?;
        unknown.add(&part);
        Ok(read)
    });
    let read: Vec<_> = read.collect::<Result<_, ApiError>>()?;
    Ok(read.into_iter().unzip())
}

/// What answers are called: as the client spelled it.
enum Values<'a> {
    None,
    /// A string or a boolean each.
    Choices(Vec<&'a RawValue>),
    Labels(Vec<Cow<'a, str>>),
}

fn question<'a>(fields: &mut Fields<'a>) -> Result<(Asked<'a>, Values<'a>), ApiError> {
    // Another server's dialect of this route, which would otherwise be asked about nothing.
    for name in ["id", "question", "options"] {
        fields.refuse(name, &[])?;
    }
    let kind = fields.string("type")?;
    let kind = kind.ok_or_else(|| ApiError::missing_field(fields.path("type")))?;
    let name = fields.string("name")?;
    let instructions = fields.string("instructions")?;
    let instructions = instructions.ok_or_else(|| {
        let path = fields.path("instructions");
        ApiError::missing_field(path)
    })?;
    let (list, criteria, values) = match &*kind {
        "predicate" => {
            let criteria = Criteria::Noul {
                yes: None,
                no: None,
            };
            ("type", criteria, Values::None)
        }
        "choice" => {
            let (options, values) = choices(fields)?;
            let criteria = Criteria::Choice(options);
            ("choices", criteria, Values::Choices(values))
        }
        "score" => {
            let (levels, labels) = levels(fields)?;
            ("levels", Criteria::Score(levels), Values::Labels(labels))
        }
        _ => {
            let must = "be \"predicate\", \"choice\" or \"score\"";
            return Err(ApiError::invalid_value(fields.path("type"), must));
        }
    };
    let asked = Asked {
        name,
        pointer: fields.path(list),
        question: Question {
            instructions: Some(instructions.into_owned()),
            criteria,
        },
    };
    Ok((asked, values))
}

/// Takes a list of `range` objects.
fn objects<'a>(
    fields: &mut Fields<'a>,
    name: &str,
    max: usize,
) -> Result<Vec<Fields<'a>>, ApiError> {
    let path = fields.path(name);
    let list = fields.list(name)?;
    let list = list.ok_or_else(|| ApiError::missing_field(path.clone()))?;
    if !(2..=max).contains(&list.len()) {
        let must = format!("have 2 to {max} entries");
        return Err(ApiError::invalid_value(path, must));
    }
    let entry = |(i, raw): (usize, &'a RawValue)| Fields::at(format!("{path}/{i}"), raw.get());
    list.into_iter().enumerate().map(entry).collect()
}

fn choices<'a>(
    fields: &mut Fields<'a>,
) -> Result<(Vec<ChoiceOption>, Vec<&'a RawValue>), ApiError> {
    let path = fields.path("choices");
    let mut options = Vec::new();
    let mut values: Vec<&RawValue> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for mut entry in objects(fields, "choices", OPTIONS_MAX)? {
        let must_be = "a string, true or false";
        let value: Option<&RawValue> = entry.get("value", must_be)?;
        let value = value.ok_or_else(|| ApiError::missing_field(entry.path("value")))?;
        // `true` and `"true"` read alike to the model and are two values to the caller.
        let name = match value.get() {
            text @ ("true" | "false") => text.to_owned(),
            raw => serde_json::from_str::<String>(raw)
                .map_err(|_| ApiError::invalid_type(entry.path("value"), must_be))?,
        };
        if !seen.insert((value.get().starts_with('"'), name.clone())) {
            return Err(ApiError::invalid_value(path, "have distinct values"));
        }
        let description = entry.string("description")?.map(Cow::into_owned);
        fields.unknown.add(&entry);
        options.push(ChoiceOption { name, description });
        values.push(value);
    }
    Ok((options, values))
}

fn levels<'a>(fields: &mut Fields<'a>) -> Result<(Vec<Level>, Vec<Cow<'a, str>>), ApiError> {
    let mut levels = Vec::new();
    let mut labels = Vec::new();
    for mut entry in objects(fields, "levels", LEVELS_MAX)? {
        let label = entry.string("label")?;
        let label = label.ok_or_else(|| ApiError::missing_field(entry.path("label")))?;
        let description = match entry.string("description")? {
            Some(description) => format!("{label} - {description}"),
            None => label.clone().into_owned(),
        };
        fields.unknown.add(&entry);
        levels.push(Level {
            description,
            json: String::new(),
        });
        labels.push(label);
    }
    Ok((levels, labels))
}

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
    /// What a later request will find in the cache because of this one.
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
    label: &'a str,
    probability: f64,
}

fn reply(model: &str, asking: &Asking<'_>, values: &[Values<'_>], decided: &Decided) -> Reply {
    let asked = asking.questions.iter().zip(values);
    let answers = asked
        .zip(&decided.answers)
        .map(|((asked, values), (answer, _))| answer_body(asked, values, answer));
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

fn answer_body<'a>(
    asked: &'a Asked<'_>,
    values: &'a Values<'_>,
    answer: &Answer,
) -> AnswerBody<'a> {
    let name = asked.name.as_deref();
    match (values, answer) {
        (Values::None, Answer::Noul { noul }) => AnswerBody::Predicate {
            name,
            probability: *noul,
        },
        (
            Values::Choices(values),
            Answer::Choice {
                choice,
                probabilities,
                confidence,
            },
        ) => AnswerBody::Choice {
            name,
            choice: values[*choice],
            confidence: *confidence,
            probabilities: values
                .iter()
                .zip(probabilities)
                .map(|(&value, &probability)| OfValue { value, probability })
                .collect(),
        },
        (
            Values::Labels(labels),
            Answer::Score {
                score,
                probabilities,
                confidence,
            },
        ) => AnswerBody::Score {
            name,
            score: *score,
            confidence: *confidence,
            probabilities: labels
                .iter()
                .zip(probabilities)
                .enumerate()
                .map(|(value, (label, &probability))| OfLevel {
                    value,
                    label,
                    probability,
                })
                .collect(),
        },
        _ => unreachable!("the answer was made from these criteria"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{answer, ask, demos, refused};

    const PATH: &str = "/v1/decisions";
    const STATE: &str = "Where is my card?\nI am waiting.";

    fn questions() -> Value {
        json!([
            {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
            {"type": "choice", "instructions": "Who should answer?", "choices": [
                {"value": "billing", "description": "money"}, {"value": true}, {"value": "true"}]},
            {"type": "score", "name": "anger", "instructions": "How angry?", "levels": [
                {"label": "calm"}, {"label": "angry", "description": "in capitals"}]},
        ])
    }

    /// The same questions as System One asks them give the same numbers, bit for bit.
    #[test]
    fn answers_are_those_of_the_other_dialect() {
        let body = json!({"model": "demo-lm", "input": STATE, "questions": questions(),
            "safety_identifier": "u1", "cache_salt": "decisions"});
        let (status, found, seen) = ask(demos(), PATH, &body);
        assert_eq!(status, 200, "{found}");
        let other = json!({"state": STATE, "cache_salt": "decisions-2", "questions": {
            "a": {"type": "noul", "instructions": "Is it urgent?"},
            "b": {"type": "choice", "instructions": "Who should answer?",
                "criteria": {"billing": "money", "true": null, "false": null}},
            "c": {"type": "score", "instructions": "How angry?",
                "criteria": ["calm", "angry - in capitals"]}}});
        let other = answer(demos(), "/v1/systemone", &other)["answers"].clone();
        let answers = found["answers"].as_array().unwrap();
        assert_eq!(
            answers[0],
            json!({"type": "predicate", "name": "urgent",
            "probability": other["a"]["noul"]})
        );
        let choice = &answers[1];
        assert_eq!(choice["name"], Value::Null);
        let values: Vec<&Value> = choice["probabilities"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| &p["value"])
            .collect();
        assert_eq!(values, [&json!("billing"), &json!(true), &json!("true")]);
        assert!(values.contains(&&choice["choice"]));
        assert_eq!(answers[2]["score"], other["c"]["score"]);
        assert_eq!(answers[2]["confidence"], other["c"]["confidence"]);
        assert_eq!(
            answers[2]["probabilities"][1],
            json!({"value": 1, "label": "angry",
            "probability": other["c"]["probabilities"]["1"]})
        );
        let usage = &found["usage"];
        assert_eq!(usage["input_tokens"], seen.usage.unwrap().computed_tokens);
        assert_eq!(usage["total_tokens"], usage["input_tokens"]);
        assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
        let again = answer(demos(), PATH, &body);
        assert_eq!(again["answers"], found["answers"]);
        assert!(
            again["usage"]["input_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap()
                > 0
        );
    }

    #[test]
    fn messages_are_their_texts() {
        let ask = |input: Value| {
            let question = json!([{"type": "predicate", "instructions": "Is it urgent?"}]);
            answer(
                demos(),
                PATH,
                &json!({"input": input, "questions": question}),
            )["answers"]
                .clone()
        };
        let parts = json!([
            {"role": "user", "content": [
                {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "message", "role": "user", "content": "c"},
        ]);
        assert_eq!(ask(parts), ask(json!("a\nb\n\nc")));
    }

    #[test]
    fn malformed_requests_are_400() {
        let check = |body: Value, reason: &str, param: &str| {
            refused(demos(), PATH, &body, (400, reason, Some(param)));
        };
        let q = |question: Value| json!({"input": "s", "questions": [question]});
        let choice =
            |choices: Value| q(json!({"type": "choice", "instructions": "i", "choices": choices}));
        let input = |input: Value| {
            json!({"input": input,
            "questions": [{"type": "predicate", "instructions": "i"}]})
        };
        check(json!({"questions": []}), "missing_field", "input");
        check(
            json!({"input": "s", "questions": []}),
            "invalid_value",
            "questions",
        );
        check(
            q(json!({"type": "noul"})),
            "missing_field",
            "/questions/0/instructions",
        );
        check(
            q(json!({"type": "noul", "instructions": "i"})),
            "invalid_value",
            "/questions/0/type",
        );
        check(
            q(json!({"id": "q", "type": "choice", "question": "?", "options": ["a", "b"]})),
            "unsupported_parameter",
            "/questions/0/id",
        );
        check(
            choice(json!([{"value": "a"}])),
            "invalid_value",
            "/questions/0/choices",
        );
        check(
            choice(json!([{"value": "a"}, {"value": "a"}])),
            "invalid_value",
            "/questions/0/choices",
        );
        check(
            choice(json!([{"value": 1}, {"value": "a"}])),
            "invalid_type",
            "/questions/0/choices/0/value",
        );
        check(input(json!(3)), "invalid_type", "input");
        check(input(json!([])), "invalid_value", "input");
        check(
            input(json!([{"role": "system", "content": "x"}])),
            "invalid_value",
            "/input/0/role",
        );
        check(
            input(json!([{"role": "user", "content": [{"type": "input_image"}]}])),
            "unsupported_parameter",
            "/input/0/content/0/type",
        );
        let long = json!("word ".repeat(9_000));
        let (status, found, _) = ask(demos(), PATH, &input(long));
        assert_eq!(
            (status, &found["error"]["reason"]),
            (400, &json!("context_length_exceeded"))
        );
        assert!(found.get("detail").is_none());
    }
}
