//! `POST /v1/systemone`: typed decisions in System One's dialect.

mod answers;
#[cfg(test)]
mod golden;
mod permute;
mod questions;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

pub(crate) use self::permute::PERMUTE;
use self::{answers::Response, questions::StateFields};
use crate::{
    dialects::{self, COMMON, DECIDE, MEDIA, ONE_PIECE, SERVICE},
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::{ApiError, Dialect},
    served_model::Task,
    tasks::{
        decide::{self, DecideFields, Questionnaire},
        messages::has_media,
        submit::{Ask, CommonFields},
    },
    wire::request,
};

/// `POST /v1/systemone`. Kev's `separate` computes each question by itself, for comparison with what it
/// computes together: the same bits here, so together it is.
pub(crate) const SYSTEM_ONE: Endpoint = Endpoint {
    group: "decisions",
    summary: "Answer typed questions about a state",
    requests: &[asked::<SystemOneRequest<'static>>()],
    responses: json::<Response<'static>>,
    dialect: Dialect::SystemOne,
    ..Endpoint::post(
        &["/v1/systemone", "/v1/decide", "/v1/systemone/separate"],
        |call, body| Box::pin(handle(call, body)),
    )
};

request! {
    /// `POST /v1/systemone`.
    struct SystemOneRequest<'a> {
        state: StateFields<'a>,
        options: DecideFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, SERVICE, DECIDE, dialects::SYSTEM_ONE];
}

/// Answers `/v1/systemone`.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    answer(call, &body).await.map_err(as_system_one)
}

async fn answer(call: &Arc<Call>, body: &[u8]) -> Result<Reply, ApiError> {
    let (ask, questionnaire) = read(call, body).await?;
    let decided = decide::decide(&ask, &questionnaire, body.len()).await?;
    Ok(answers::reply(&ask.model.name, &questionnaire, &decided))
}

/// Reads a request: the model that is asked, and the state with its questions.
async fn read<'a>(
    call: &'a Arc<Call>,
    body: &'a [u8],
) -> Result<(Ask<'a>, Questionnaire<'a>), ApiError> {
    let fields = call.fields(body).await?;
    if fields.raw("state").is_some_and(has_media) {
        let reason = "it has a content part that is not text, and models read text alone";
        return Err(ApiError::refused_field("state".to_owned(), reason));
    }
    let request: SystemOneRequest<'_> = call.read_fields(fields).await?;
    let aliases = &call.app.config.decide.systemone_aliases;
    let ask = Ask::of(call, request.common, |name| {
        let name = name.filter(|name| !aliases.iter().any(|alias| alias == name));
        call.app.model_for(name, Task::SystemOne)
    })?;
    let questionnaire = questions::questionnaire(request.state, request.options)?;
    Ok((ask, questionnaire))
}

/// Turns the status of a malformed request, 400 elsewhere, into 422 with a list of details, and that
/// of a state that is too long into 413.
fn as_system_one(error: ApiError) -> ApiError {
    if error.status() != 400 {
        return error;
    }
    match error.reason() {
        "context_length_exceeded" => error.with_status(413),
        "unsupported_task"
        | "template_error"
        | "too_many_rows"
        | "larger_than_queue"
        | "deadline_infeasible" => error,
        reason => {
            let kind = match reason {
                "invalid_json" | "too_deep" => "json_invalid",
                "missing_field" => "missing",
                "invalid_type" => "type_error",
                _ => "value_error",
            };
            let fields = error.param().into_iter().flat_map(|p| p.split('/'));
            let fields = fields.filter(|f| !f.is_empty());
            let loc: Vec<String> = ["body"]
                .into_iter()
                .chain(fields)
                .map(|f| f.replace("~1", "/").replace("~0", "~"))
                .collect();
            let detail = json!([{"loc": loc, "msg": error.message(), "type": kind}]);
            error.with_status(422).with_detail(detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;
    use prelude_text::decide::{AskWording, WordingFile};

    use crate::{
        demo,
        load::LoadOptions,
        testing::{answer, app, ask, ask_raw, demos, embedded, options},
    };

    const PATH: &str = "/v1/systemone";

    fn questions() -> Value {
        json!({
            "urgent": {"type": "noul", "instructions": "Is it urgent?", "criteria": {"true": "needs an answer today"}},
            "team": {"type": "choice", "instructions": {"task": "Who should answer?"}, "criteria": {"billing": "money", "sales": null, "cards & more": ["cards", 1.50]}},
            "anger": {"type": "score", "instructions": "How angry?", "criteria": ["Calm", {"level": 2.0}, "Very angry"]},
            "bare": {"type": "noul"},
        })
    }

    fn ask_for(questions: &Value, salt: &str) -> Value {
        let body = json!({
            "model": "jev-latest",
            "state": {"message": "Where is my card?\nI am waiting.", "tries": 2.50},
            "instructions": "You judge messages of a bank's customers.",
            "questions": questions,
            "cache_salt": salt,
        });
        answer(demos(), PATH, &body)
    }

    #[test]
    fn answers_follow_the_contract() {
        let found = ask_for(&questions(), "contract");
        assert_eq!(found["model"], "demo-lm");
        assert_eq!(found["usage"]["output_tokens"], 0);
        assert!(found["usage"]["input_tokens"].is_u64());
        assert_eq!(found["x_prelude"]["prompt_format"], "prelude-decide-1");
        let answers = found["answers"].as_object().unwrap();
        let ids: Vec<_> = answers.keys().collect();
        assert_eq!(ids, ["urgent", "team", "anger", "bare"]);
        let noul = answers["urgent"]["noul"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&noul));
        assert_eq!(answers["urgent"].as_object().unwrap().len(), 2);
        let sum = |name: &str| -> f64 {
            let p = answers[name]["probabilities"].as_object().unwrap();
            p.values().map(|p| p.as_f64().unwrap()).sum()
        };
        assert!((sum("team") - 1.0).abs() < 1e-12 && (sum("anger") - 1.0).abs() < 1e-12);
        let team = &answers["team"];
        let options: Vec<_> = team["probabilities"].as_object().unwrap().keys().collect();
        assert_eq!(options, ["billing", "sales", "cards & more"]);
        assert!(
            team["probabilities"][team["choice"].as_str().unwrap()]
                .as_f64()
                .unwrap()
                >= 1.0 / 3.0
        );
        assert_eq!(
            answers["anger"]["legend"],
            json!({"0": "Calm", "1": {"level": 2.0}, "2": "Very angry"})
        );
        let mean: f64 = (0..3)
            .map(|i| {
                f64::from(i)
                    * answers["anger"]["probabilities"][i.to_string()]
                        .as_f64()
                        .unwrap()
            })
            .sum();
        assert!((answers["anger"]["score"].as_f64().unwrap() - mean).abs() < 1e-12);
        let mass = found["x_prelude"]["diagnostics"]["urgent"]["label_mass"]
            .as_f64()
            .unwrap();
        assert!((0.0..=1.0).contains(&mass));
    }

    #[test]
    fn numbers_in_legends_are_spelled_as_they_came() {
        let body =
            r#"{"state":"s","questions":{"q":{"type":"score","criteria":[{"a": 1.50},"b"]}}}"#;
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let found = runtime.block_on(demos().answer("POST", PATH, body));
        let found = std::str::from_utf8(&found.body).unwrap();
        assert!(
            found.contains(r#""legend":{"0":{"a": 1.50},"1":"b"}"#),
            "{found}"
        );
    }

    /// Bit for bit, and whether its prefix comes from the cache or not.
    #[test]
    fn an_answer_does_not_depend_on_other_questions_order_or_names() {
        let all = questions();
        let together = ask_for(&all, "independence");
        let cached = ask_for(&all, "independence");
        assert_eq!(cached["answers"], together["answers"]);
        let names: Vec<&String> = all.as_object().unwrap().keys().collect();
        let reordered: Map<String, Value> = names
            .iter()
            .rev()
            .map(|name| (format!("renamed {name}"), all[name.as_str()].clone()))
            .collect();
        let reordered = ask_for(&reordered.into(), "independence-2");
        for name in names {
            let one = ask_for(
                &json!({name.as_str(): all[name.as_str()]}),
                "independence-3",
            );
            let expected = &together["answers"][name.as_str()];
            assert_eq!(&one["answers"][name.as_str()], expected, "{name} alone");
            assert_eq!(
                &reordered["answers"][format!("renamed {name}")],
                expected,
                "{name} renamed"
            );
        }
    }

    /// The forest's nodes are the tokens that are computed, and the path to a question's end is the
    /// prompt of that question alone.
    #[test]
    fn the_forest_is_what_is_computed() {
        let ask_forest = |questions: &Value, labels: &str| {
            let body = json!({
                "state": "Where is my card?", "questions": questions, "cache_salt": labels,
                "x_prelude": {"forest": true, "labels": labels},
            });
            let (status, found, seen) = ask(demos(), PATH, &body);
            assert_eq!(status, 200, "{found}");
            (found, seen)
        };
        for labels in ["code", "text"] {
            let (found, seen) = ask_forest(&questions(), labels);
            let forest = &found["x_prelude"]["forest"];
            let nodes = forest["nodes"].as_array().unwrap();
            let tokens = |node: &Value| node["tokens"].as_u64().unwrap();
            let all: u64 = nodes.iter().map(tokens).sum();
            assert_eq!(found["usage"]["input_tokens"], all);
            assert_eq!(seen.prompt_tokens, all);
            assert!(nodes.len() > questions().as_object().unwrap().len());
            // The nodes on the ways to the ends, each once.
            let of = |ends: &Value| {
                let mut on_way = std::collections::BTreeSet::new();
                for end in ends.as_array().unwrap() {
                    let mut at = end.as_u64();
                    while let Some(node) = at {
                        on_way.insert(node);
                        at = nodes[usize::try_from(node).unwrap()]["parent"].as_u64();
                    }
                }
                let on_way = on_way.into_iter();
                on_way
                    .map(|node| tokens(&nodes[usize::try_from(node).unwrap()]))
                    .sum::<u64>()
            };
            for (name, question) in questions().as_object().unwrap() {
                let (alone, _) = ask_forest(&json!({name.as_str(): question}), labels);
                let ends = &forest["questions"][name.as_str()];
                assert_eq!(alone["usage"]["input_tokens"], of(ends), "{labels} {name}");
            }
        }
        let plain = ask_for(&questions(), "no forest");
        assert_eq!(plain["x_prelude"].get("forest"), None);
    }

    #[test]
    fn the_state_is_computed_once() {
        let state = "The customer writes that the card has not come. ".repeat(20);
        let question =
            |i: usize| json!({"type": "noul", "instructions": format!("Is it about number {i}?")});
        let many: Map<String, Value> = (0..50).map(|i| (format!("q{i}"), question(i))).collect();
        let body = |questions: Value| json!({"state": state, "questions": questions, "cache_salt": "once"});
        let (status, found, seen) = ask(demos(), PATH, &body(many.into()));
        assert_eq!(status, 200, "{found}");
        let computed = seen.usage.unwrap().computed_tokens;
        assert_eq!(found["usage"]["input_tokens"], computed);
        let model = demos().model(None).unwrap();
        let state_tokens = model.tokenizer.count(&state, false) as u64;
        assert!(
            computed < state_tokens + 50 * 60,
            "{computed}, of which the state {state_tokens}"
        );
    }

    #[test]
    fn choices_of_every_size() {
        for count in [2, 26, 27, 100, 101, 255] {
            let options: Map<String, Value> = (0..count)
                .map(|i| (format!("option {i}"), Value::Null))
                .collect();
            let body =
                json!({"state": "s", "questions": {"q": {"type": "choice", "criteria": options}}});
            let found = answer(demos(), PATH, &body);
            let p = found["answers"]["q"]["probabilities"].as_object().unwrap();
            let sum: f64 = p.values().map(|p| p.as_f64().unwrap()).sum();
            assert_eq!(p.len(), count);
            assert!((sum - 1.0).abs() < 1e-9, "{count}: {sum}");
        }
    }

    /// The mean over rotations, against each rotation asked by hand.
    #[test]
    fn permutations_average_over_label_assignments() {
        let ask = |options: [&str; 3], more: Value| {
            let options: Map<String, Value> = options
                .iter()
                .map(|o| ((*o).to_owned(), Value::Null))
                .collect();
            let mut body =
                json!({"state": "s", "questions": {"q": {"type": "choice", "criteria": options}}});
            body["x_prelude"] = more;
            answer(demos(), PATH, &body)["answers"]["q"]["probabilities"].clone()
        };
        let turns = [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]];
        let found = ask(turns[0], json!({"permutations": 3}));
        for option in turns[0] {
            let each = turns.map(|turn| ask(turn, json!(null))[option].as_f64().unwrap());
            let mean = each.iter().sum::<f64>() / 3.0;
            assert!((found[option].as_f64().unwrap() - mean).abs() < 1e-12);
        }
        // More than there are options means each once.
        assert_eq!(ask(turns[0], json!({"permutations": 8})), found);
        // A high temperature evens out.
        let flat = ask(turns[0], json!({"temperature": 1e6}));
        assert!((flat["a"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-4);
        // The least one decides, and overflows nowhere.
        for labels in ["code", "text"] {
            let sharp = ask(turns[0], json!({"temperature": 1e-308, "labels": labels}));
            let p = turns[0].map(|option| sharp[option].as_f64().unwrap());
            assert_eq!(p.iter().sum::<f64>(), 1.0, "{labels}: {p:?}");
            assert!(p.contains(&1.0), "{labels}: {p:?}");
        }
    }

    /// Topics are what the demo model was trained to say.
    #[test]
    fn choices_answered_by_name() {
        let topics = [
            "card", "payment", "transfer", "topup", "cash", "exchange", "identity", "account",
        ];
        let options: Map<String, Value> = topics
            .iter()
            .map(|t| ((*t).to_owned(), Value::Null))
            .collect();
        let ask = |permutations: u32| {
            let question =
                json!({"type": "choice", "instructions": "Which topic?", "criteria": options});
            let found = answer(
                demos(),
                PATH,
                &json!({
                    "state": "What is the exchange rate?", "questions": {"topic": question},
                    "x_prelude": {"labels": "text", "permutations": permutations},
                }),
            );
            let mass = found["x_prelude"]["diagnostics"]["topic"]["label_mass"]
                .as_f64()
                .unwrap();
            assert!((0.0..=1.0).contains(&mass), "{found}");
            found["answers"]["topic"].clone()
        };
        let found = ask(1);
        assert_eq!(found["choice"], "exchange", "{found}");
        let p = found["probabilities"].as_object().unwrap();
        assert_eq!(p.keys().collect::<Vec<_>>(), topics);
        let sum: f64 = p.values().map(|p| p.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-9);
        assert_ne!(ask(2), found);
    }

    /// A model calibrated to be less sure, and a request that asks for its own probabilities.
    #[test]
    fn calibration_is_a_default_temperature_and_aliases_are_configured() {
        let mut config = crate::ServerConfig::default();
        config.decide.calibration.noul = 1e9;
        config.decide.systemone_aliases = vec!["judge".to_owned()];
        let app = crate::App::new(config, crate::ApiKeys::default());
        let loaded = embedded(&demo::LM, &options());
        app.set_models(vec![loaded.model]);
        let body = |model: &str, more: Value| {
            json!({"model": model, "state": "Where is my card?",
            "questions": {"q": {"type": "noul"}}, "x_prelude": more})
        };
        let noul = |found: Value| found["answers"]["q"]["noul"].as_f64().unwrap();
        let even = noul(answer(&app, PATH, &body("judge", json!(null))));
        assert!((even - 0.5).abs() < 1e-6, "{even}");
        let own = noul(answer(
            &app,
            PATH,
            &body("judge", json!({"temperature": 1.0})),
        ));
        let plain = noul(answer(demos(), PATH, &body("jev-latest", json!(null))));
        assert_eq!(own, plain);
        let (status, _, _) = ask(&app, PATH, &body("jev-latest", json!(null)));
        assert_eq!(status, 404);
        drop(loaded.engine);
    }

    #[test]
    fn names_that_make_too_many_rows_are_refused() {
        let options: Map<String, Value> = (0..255)
            .map(|i| (format!("{i} is a name of many tokens"), Value::Null))
            .collect();
        let question = json!({"type": "choice", "criteria": options});
        let many: Map<String, Value> = (0..24)
            .map(|i| (format!("q{i}"), question.clone()))
            .collect();
        let body = |questions: Value| json!({"state": "s", "questions": questions, "x_prelude": {"labels": "text"}});
        let one = answer(demos(), PATH, &body(json!({"q": question})));
        assert_eq!(
            one["answers"]["q"]["probabilities"]
                .as_object()
                .unwrap()
                .len(),
            255
        );
        let (status, refusal, _) = ask(demos(), PATH, &body(many.into()));
        assert_eq!(
            (status, &refusal["error"]["reason"]),
            (400, &json!("too_many_rows"))
        );
    }

    /// Names of several tokens, against the classification endpoint's way of scoring labels.
    #[test]
    fn names_are_scored_as_labels_are() {
        let names = ["card_arrival", "card_linking", "exchange_rate"];
        let options: Map<String, Value> = names
            .iter()
            .map(|n| ((*n).to_owned(), Value::Null))
            .collect();
        let body = json!({
            "state": "Where is my card?", "questions": {"q": {"type": "choice", "criteria": options}},
            "x_prelude": {"labels": "text"},
        });
        let found = answer(demos(), PATH, &body);
        let text = "Where is my card?\n\nQuestion: Which option fits best?\ncard_arrival\ncard_linking\nexchange_rate\nAnswer with the name of one option.";
        let classes = answer(
            demos(),
            "/classify",
            &json!({"input": text, "labels": names}),
        );
        for (i, name) in names.iter().enumerate() {
            let (a, b) = (
                &found["answers"]["q"]["probabilities"][name],
                &classes["data"][0]["probs"][i],
            );
            assert!(
                (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-6,
                "{a} {b}"
            );
        }
    }

    fn refused(body: &Value, loc: &[&str], kind: &str) {
        let (status, found, _) = ask(demos(), PATH, body);
        assert_eq!(status, 422, "{body}: {found}");
        let detail = &found["detail"][0];
        assert_eq!(detail["loc"], json!(loc), "{body}: {found}");
        assert_eq!(detail["type"], kind, "{body}: {found}");
        assert_eq!(detail["msg"], found["error"]["message"]);
        assert_eq!(found["error"]["code"], 422);
    }

    /// A wording that says what `prelude-decide-1` says gives its bits; tev1 has its own labels and bounds.
    #[test]
    fn questions_are_asked_in_the_operator_s_words() {
        let asked_in = |wording: WordingFile| {
            let options = LoadOptions {
                decide_format: Some(wording),
                ..options()
            };
            app(vec![embedded(&demo::LM, &options)])
        };
        let user = "{{ state }}\n\nQuestion: {{ question }}\n{% for option in options %}{{ option.label }}: \
            {{ option.key }}\n{% endfor %}Answer with one letter.";
        let same = json!({"name": "own", "user": user});
        let same = asked_in(serde_json::from_value(same).unwrap());
        let body = json!({"state": "Where is my card?", "questions": {"q": {"type": "choice",
            "instructions": "Which topic?", "criteria": {"card": null, "transfer": null, "cash": null}}}});
        let found = answer(&same, PATH, &body);
        assert_eq!(found["x_prelude"]["prompt_format"], "own");
        assert_eq!(found["answers"], answer(demos(), PATH, &body)["answers"]);
        let tev1 = asked_in(AskWording::named("tev1").unwrap());
        let noul =
            json!({"state": "s", "questions": {"q": {"type": "noul", "instructions": "Is it?"}}});
        let found = answer(&tev1, PATH, &noul);
        assert_eq!(found["x_prelude"]["prompt_format"], "tev1");
        // No comes first: the sides change places with the labels.
        let turned = json!({"state": "s", "questions": {"q": {"type": "choice", "instructions": "Is it?",
            "criteria": {"false": "No", "true": "Yes"}}}});
        let turned = answer(&tev1, PATH, &turned);
        let yes = &turned["answers"]["q"]["probabilities"]["true"];
        assert_eq!(&found["answers"]["q"]["noul"], yes);
        let many: Value = (0..25).map(|i| (format!("o{i}"), Value::Null)).collect();
        let many = json!({"state": "s", "questions": {"q": {"type": "choice", "criteria": many}}});
        crate::testing::refused(
            &tev1,
            PATH,
            &many,
            (422, "invalid_value", Some("/questions/q/criteria")),
        );
        let mut system = noul.clone();
        system["instructions"] = json!("You judge.");
        crate::testing::refused(
            &tev1,
            PATH,
            &system,
            (422, "unsupported_parameter", Some("instructions")),
        );
    }

    #[test]
    fn malformed_requests_are_422_with_details() {
        let q = |question: Value| json!({"state": "s", "questions": {"q": question}});
        refused(
            &json!({"questions": {"q": {"type": "noul"}}}),
            &["body", "state"],
            "missing",
        );
        refused(&json!({"state": "s"}), &["body", "questions"], "missing");
        refused(
            &json!({"state": 3, "questions": {"q": {"type": "noul"}}}),
            &["body", "state"],
            "type_error",
        );
        refused(
            &json!({"state": "s", "questions": {}}),
            &["body", "questions"],
            "value_error",
        );
        refused(
            &json!({"state": "s", "questions": {"": {"type": "noul"}}}),
            &["body", "questions"],
            "value_error",
        );
        refused(
            &q(json!({})),
            &["body", "questions", "q", "type"],
            "missing",
        );
        refused(
            &q(json!({"type": "boolean"})),
            &["body", "questions", "q", "type"],
            "value_error",
        );
        refused(
            &q(json!({"type": "noul", "instructions": 3})),
            &["body", "questions", "q", "instructions"],
            "type_error",
        );
        refused(
            &q(json!({"type": "noul", "criteria": {"maybe": "x"}})),
            &["body", "questions", "q", "criteria", "maybe"],
            "value_error",
        );
        refused(
            &q(json!({"type": "choice"})),
            &["body", "questions", "q", "criteria"],
            "missing",
        );
        refused(
            &q(json!({"type": "choice", "criteria": {"a": null}})),
            &["body", "questions", "q", "criteria"],
            "value_error",
        );
        refused(
            &q(json!({"type": "choice", "criteria": {"a": null, "b/c": 3}})),
            &["body", "questions", "q", "criteria", "b/c"],
            "type_error",
        );
        refused(
            &q(json!({"type": "score", "criteria": {"0": "a", "1": "b"}})),
            &["body", "questions", "q", "criteria"],
            "type_error",
        );
        refused(
            &q(json!({"type": "score", "criteria": ["a"]})),
            &["body", "questions", "q", "criteria"],
            "value_error",
        );
        refused(
            &q(json!({"type": "score", "criteria": ["a", null]})),
            &["body", "questions", "q", "criteria", "1"],
            "type_error",
        );
        let mut format = q(json!({"type": "noul"}));
        format["x_prelude"] = json!({"prompt_format": "prelude-decide-9"});
        refused(
            &format,
            &["body", "x_prelude", "prompt_format"],
            "value_error",
        );
        let mut twins =
            q(json!({"type": "choice", "criteria": {"\u{e9}": null, "e\u{301}": null}}));
        twins["x_prelude"] = json!({"labels": "text"});
        refused(
            &twins,
            &["body", "questions", "q", "criteria"],
            "value_error",
        );
        let (status, found, _) = ask_raw(demos(), PATH, "{".to_owned());
        assert_eq!(
            (status, &found["detail"][0]["type"]),
            (422, &json!("json_invalid"))
        );
    }

    #[test]
    fn other_refusals_keep_their_status() {
        let check = |body: Value, expected: (u16, &str)| {
            let (status, found, _) = ask(demos(), PATH, &body);
            let kind = found["detail"]["error_type"].as_str().unwrap();
            assert_eq!((status, kind), expected, "{found}");
        };
        let questions = json!({"q": {"type": "noul"}});
        check(
            json!({"state": "x ".repeat(5000), "questions": questions}),
            (413, "max_tokens_exceeded"),
        );
        check(
            json!({"model": "nobody", "state": "s", "questions": questions}),
            (404, "not_found"),
        );
        check(
            json!({"model": "demo-classifier", "state": "s", "questions": questions}),
            (400, "invalid_request"),
        );
    }
}
