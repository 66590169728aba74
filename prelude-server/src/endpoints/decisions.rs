//! `POST /v1/decisions`: typed decisions in OpenAI's dialect.

mod answers;
mod input;
mod questions;

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;

use self::{answers::Response, input::Input, questions::QuestionFields};
use crate::{
    dialects::{self, COMMON, DECIDE, MEDIA, ONE_PIECE, SERVICE},
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::ApiError,
    served_model::Task,
    tasks::{
        decide::{self, DecideFields, Options, Questionnaire},
        submit::{Ask, CommonFields},
    },
    wire::request,
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
    let ask = Ask::new(call, request.common, Task::Decisions)?;
    let model = ask.model;
    let questions = questions::questions(request.decision.questions)?;
    let options = Options::new(request.options.x_prelude)?;
    if options.forest {
        let must = "be false or absent here; `/v1/systemone` answers with the tree of the prompts";
        return Err(ApiError::invalid_value("/x_prelude/forest", must));
    }
    let questionnaire = Questionnaire {
        state_field: "input",
        state: request.decision.input.0.into(),
        instructions: None,
        questions,
        options,
        escapes: request.options.escape_special_tokens,
    };
    let decided = decide::decide(&ask, &questionnaire, body.len()).await?;
    Ok(answers::reply(&model.name, &questionnaire, &decided))
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
