//! `POST /v1/decisions`: typed decisions in OpenAI's dialect.

use std::{borrow::Cow, collections::HashSet, marker::PhantomData, sync::Arc};

use bytes::Bytes;
use prelude_text::decide::{Answer, ChoiceOption, Criteria, Level, Question};
use schemars::{JsonSchema, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, SeqAccess},
};
use serde_json::{json, value::RawValue};

use crate::{
    dialects::{self, COMMON, DECIDE, MEDIA, ONE_PIECE, SERVICE},
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::ApiError,
    served_model::Task,
    tasks::{
        decide::{
            self, DecideFields, Decided, LEVELS_MAX, NamedQuestion, OPTIONS_MAX, Options,
            QUESTIONS_MAX, Questionnaire,
        },
        messages::Content,
        submit::{Common, CommonFields},
    },
    wire::{Refused, Shapes, Text, all, by_shape, described, request, unsupported, wrong_value},
};

/// `POST /v1/decisions`.
pub(crate) const DECISIONS: Endpoint = Endpoint {
    group: "decisions",
    summary: "Answer typed questions, in OpenAI's shape",
    requests: &[asked::<DecisionRequest<'static>>()],
    responses: json::<Response<'static>>,
    ..Endpoint::post(&["/v1/decisions"], |call, body| {
        Box::pin(handle(call, body))
    })
};

/// An input and questions about it, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct DecisionFields<'a> {
    #[serde(borrow)]
    input: Input<'a>,
    /// 1 to 256.
    #[schemars(length(min = 1, max = 256))]
    questions: Vec<QuestionFields<'a>>,
}

request! {
    /// `POST /v1/decisions`.
    struct DecisionRequest<'a> {
        decision: DecisionFields<'a>,
        options: DecideFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, SERVICE, DECIDE, dialects::DECISIONS];
}

/// A string, or the texts of user messages with a blank line between messages.
#[derive(Debug)]
struct Input<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Input<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_shape::<Input<'de>, D>(deserializer)
    }
}

impl<'de> Shapes<'de> for Input<'de> {
    const WORDS: &'static str = "a string or a list of user messages";

    fn text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self(text))
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        let messages: Vec<MessageFields> = all(list)?;
        if messages.is_empty() {
            return Err(wrong_value("not be an empty list"));
        }
        let texts: Vec<String> = messages.into_iter().map(|m| m.content.0).collect();
        Ok(Self(Cow::Owned(texts.join("\n\n"))))
    }
}

described!(Input<'_>, "DecisionInput", |generator| {
    let message = generator.subschema_for::<MessageFields>();
    let messages = json!({ "type": "array", "minItems": 1, "items": message });
    json_schema!({ "anyOf": [{ "type": "string" }, messages] })
});

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "DecisionMessage")]
#[expect(
    dead_code,
    reason = "messages of other types and roles do not deserialize"
)]
struct MessageFields {
    /// `message`.
    #[schemars(with = "Option<String>")]
    r#type: Option<Only<MessageType>>,
    role: Role,
    #[schemars(with = "Content")]
    content: JoinedParts,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "DecisionRole")]
enum Role {
    User,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum MessageType {
    Message,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartType {
    InputText,
}

/// The one value that is served: any other is refused as such.
struct Only<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Only<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match T::deserialize(deserializer) {
            Ok(_) => Ok(Self(PhantomData)),
            Err(_) => Err(unsupported()),
        }
    }
}

/// A string, or the texts of parts with a line break between them.
struct JoinedParts(String);

#[derive(Deserialize)]
#[expect(dead_code, reason = "parts of other types do not deserialize")]
struct PartFields {
    /// Images and files are not served.
    r#type: Only<PartType>,
    text: String,
}

impl<'de> Deserialize<'de> for JoinedParts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_shape(deserializer)
    }
}

impl<'de> Shapes<'de> for JoinedParts {
    const WORDS: &'static str = "a string or a list of parts";

    fn text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self(text.into_owned()))
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        let parts: Vec<PartFields> = all(list)?;
        let texts: Vec<String> = parts.into_iter().map(|part| part.text).collect();
        Ok(Self(texts.join("\n")))
    }
}

/// A question. `choices` are a choice's, `levels` a score's.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "DecisionQuestion")]
struct QuestionFields<'a> {
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
enum StringOrBool {
    String(String),
    Bool(bool),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "DecisionLevel")]
struct LevelFields<'a> {
    #[serde(borrow)]
    label: Text<'a>,
    description: Option<Text<'a>>,
}

/// Answers `/v1/decisions`.
///
/// # Errors
/// 400 for whatever is wrong with the request, 422 for what is not served, 429, 503, 500.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    // What is well-formed and not served, media above all, is 422 on the routes of decisions.
    answer(call, body)
        .await
        .map_err(|error| match error.reason() {
            "unsupported_parameter" => error.with_status(422),
            _ => error,
        })
}

async fn answer(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: DecisionRequest<'_> = call.read(&body).await?;
    let (common, model) = Common::with_model(call, request.common, Task::Decisions)?;
    let (questions, values) = questions(request.decision.questions)?;
    let options = Options::new(request.options.x_prelude)?;
    if options.forest {
        let must = "be false or absent here; `/v1/systemone` answers with the tree of the prompts";
        return Err(ApiError::invalid_value("/x_prelude/forest", must));
    }
    let questionnaire = Questionnaire {
        state_field: "input",
        state: request.decision.input.0,
        instructions: None,
        questions,
        options,
        escapes: request.options.escape_special_tokens,
    };
    let decided = decide::decide(call, model, &common, &questionnaire, body.len()).await?;
    Ok(reply(&model.name, &questionnaire, &values, &decided))
}

/// Returns the questions, and what each one's answers are called.
fn questions(
    list: Vec<QuestionFields<'_>>,
) -> Result<(Vec<NamedQuestion<'_>>, Vec<Values<'_>>), ApiError> {
    if !(1..=QUESTIONS_MAX).contains(&list.len()) {
        let must = format!("have 1 to {QUESTIONS_MAX} questions");
        return Err(ApiError::invalid_value("questions", must));
    }
    let read = list.into_iter().enumerate();
    let read = read.map(|(i, fields)| question(&format!("/questions/{i}"), fields));
    let read: Vec<_> = read.collect::<Result<_, ApiError>>()?;
    Ok(read.into_iter().unzip())
}

/// The names of answers, as the client spelled them.
enum Values<'a> {
    None,
    /// A string or a boolean each.
    Choices(Vec<&'a RawValue>),
    Labels(Vec<Cow<'a, str>>),
}

fn question<'a>(
    path: &str,
    fields: QuestionFields<'a>,
) -> Result<(NamedQuestion<'a>, Values<'a>), ApiError> {
    let (list, criteria, values) = match fields.r#type {
        Kind::Predicate => {
            let criteria = Criteria::Noul {
                yes: None,
                no: None,
            };
            ("type", criteria, Values::None)
        }
        Kind::Choice => {
            let list = listed(fields.choices, format!("{path}/choices"), OPTIONS_MAX)?;
            let (options, values) = choices(&format!("{path}/choices"), list)?;
            let criteria = Criteria::Choice(options);
            ("choices", criteria, Values::Choices(values))
        }
        Kind::Score => {
            let list = listed(fields.levels, format!("{path}/levels"), LEVELS_MAX)?;
            let (levels, labels) = levels(list);
            ("levels", Criteria::Score(levels), Values::Labels(labels))
        }
    };
    let named = NamedQuestion {
        name: fields.name.map(|name| name.0),
        pointer: format!("{path}/{list}"),
        question: Question {
            instructions: Some(fields.instructions.0.into_owned()),
            criteria,
        },
    };
    Ok((named, values))
}

/// Checks that a list has 2 to `max` entries, and returns it.
fn listed<T>(list: Option<Vec<T>>, path: String, max: usize) -> Result<Vec<T>, ApiError> {
    match list {
        None => Err(ApiError::missing_field(path)),
        Some(list) if (2..=max).contains(&list.len()) => Ok(list),
        Some(_) => {
            let must = format!("have 2 to {max} entries");
            Err(ApiError::invalid_value(path, must))
        }
    }
}

fn choices<'a>(
    path: &str,
    list: Vec<ChoiceFields<'a>>,
) -> Result<(Vec<ChoiceOption>, Vec<&'a RawValue>), ApiError> {
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
        let description = description.map(|text| text.0.into_owned());
        options.push(ChoiceOption { name, description });
        values.push(value);
    }
    Ok((options, values))
}

fn levels(list: Vec<LevelFields<'_>>) -> (Vec<Level>, Vec<Cow<'_, str>>) {
    let level = |LevelFields { label, description }| {
        let Text(label) = label;
        let description = match description {
            Some(Text(description)) => format!("{label} - {description}"),
            None => label.clone().into_owned(),
        };
        let level = Level {
            description,
            json: String::new(),
        };
        (level, label)
    };
    list.into_iter().map(level).unzip()
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
    label: &'a str,
    probability: f64,
}

fn reply(
    model: &str,
    questionnaire: &Questionnaire<'_>,
    values: &[Values<'_>],
    decided: &Decided,
) -> Reply {
    let named = questionnaire.questions.iter().zip(values);
    let answers = named
        .zip(&decided.answers)
        .map(|((named, values), (answer, _))| answer_body(named, values, answer));
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
    named: &'a NamedQuestion<'_>,
    values: &'a Values<'_>,
    answer: &Answer,
) -> AnswerBody<'a> {
    let name = named.name.as_deref();
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

    /// Questions have the same answers, bit for bit, in System One's dialect.
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
            let status = if reason == "unsupported_parameter" {
                422
            } else {
                400
            };
            refused(demos(), PATH, &body, (status, reason, Some(param)));
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
            q(json!({"type": "predicate"})),
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
