//! `POST /v1/systemone`: typed decisions. One state, many questions, one engine request.

mod wire;

use std::sync::Arc;

use bytes::Bytes;
use prelude_core::{LabelScores, Normalise, TokenId};
use serde_json::json;

use self::wire::{Asked, Request};
use super::{
    Call, Reply,
    classify::{label_trie_within, normalised, prompt, user_turn},
    input::check_length,
    read,
    submit::Common,
};
use crate::{
    decide::{Answer, ChoiceLabels, Criteria, DecideLabels, Diagnostics},
    error::ApiError,
    label_trie::{LabelTrie, below_max, label_mass},
    served_model::{ServedModel, Task},
    shared_prefix::SharedPrompts,
};

/// Names of the default model, for clients that know no other.
const ALIASES: [&str; 1] = ["jev-latest"];

/// Answers `/v1/systemone`.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    decide(call, &body).await.map_err(as_system_one)
}

async fn decide(call: &Call, body: &[u8]) -> Result<Reply, ApiError> {
    let mut fields = call.fields(body)?;
    let common = Common::take(call, &mut fields)?;
    let name = common
        .model
        .as_deref()
        .filter(|name| !ALIASES.contains(name));
    let model = call.app.model_for(name, Task::SystemOne)?;
    fields.refuse("stream", &["false"])?;
    let request = Request::take(&mut fields)?;
    call.finish(&fields)?;

    let labels = model.labels.as_ref();
    let labels = labels.expect("a model that serves decisions has labels");
    let bytes = body.len() + request.asked.len() * request.permutations * 512;
    let encoded = call.app.encoder.run(bytes, || {
        let mut plans = Vec::with_capacity(request.asked.len());
        let mut rows = 0;
        let most = usize::try_from(call.app.config.limits.rows).unwrap_or(usize::MAX);
        for asked in &request.asked {
            // No trie is built larger than what the questions before it have left.
            let plan = Plan::new(asked, &request, model, labels, rows, most)?;
            rows += plan.num_rows();
            plans.push(plan);
        }
        call.reservation.set_rows(rows as u64)?;
        let prompts = encode(model, &request, &plans)?;
        Ok::<_, ApiError>((plans, prompts))
    });
    let (plans, prompts) = encoded.await??;
    let of_tree = |e| read::of_tree("state", &e);
    let (mut tree, ends) = prompts.into_tree().map_err(of_tree)?;
    let mut rows = Vec::new();
    let mut ends = ends.into_iter();
    for plan in &plans {
        for end in ends.by_ref().take(plan.rotations.len()) {
            let trie = &plan.trie;
            trie.graft(&mut tree, end, Normalise::OverVocab, &mut rows)
                .map_err(of_tree)?;
        }
    }
    // The state once, however many questions: what System One's clients are told they used.
    let tokens = tree.distinct_tokens() as u64;
    let (outputs, _) = read::read_rows(call, model, &common, tree, rows, tokens).await?;
    let mut scores = read::label_scores(call, outputs)?.into_iter();
    let answers: Vec<_> = request
        .asked
        .iter()
        .zip(&plans)
        .map(|(asked, plan)| {
            let scores: Vec<_> = scores.by_ref().take(plan.num_rows()).collect();
            let (answer, diagnostics) = plan.answer(asked, &scores);
            (asked, answer, diagnostics)
        })
        .collect();
    Ok(wire::reply(&model.name, &answers, tokens))
}

/// How one question is put to the model.
struct Plan {
    trie: LabelTrie,
    /// By how many places the list of options is turned, one prompt for each.
    rotations: Vec<usize>,
    temperature: f64,
    labels: ChoiceLabels,
}

impl Plan {
    fn new(
        asked: &Asked<'_>,
        request: &Request<'_>,
        model: &ServedModel,
        labels: &DecideLabels,
        used_rows: usize,
        max_rows: usize,
    ) -> Result<Self, ApiError> {
        let kind = asked.question.criteria.labels();
        let count = kind.count();
        // Yes/no and the digits of a scale mean what they say; only a choice's list can be turned.
        let (rotations, labelled) = match &asked.question.criteria {
            Criteria::Choice(_) => (request.permutations.min(count), request.labels),
            _ => (1, ChoiceLabels::Code),
        };
        let trie = match (&asked.question.criteria, labelled) {
            (Criteria::Choice(options), ChoiceLabels::Text) => {
                let names: Vec<&str> = options.iter().map(|o| o.name.as_str()).collect();
                // What stands before the generation prompt does not change the names' tokens.
                let max_places = max_rows.saturating_sub(used_rows) / rotations;
                let trie = label_trie_within(model, user_turn(model, "")?, &names, max_places);
                let trie = trie.map_err(|e| {
                    let id = wire::segment(&asked.id);
                    e.with_param(format!("/questions/{id}/criteria"))
                })?;
                // One more than the limit is what is known; the rest was not counted.
                let most = max_rows as u64;
                trie.ok_or_else(|| ApiError::too_many_rows(most + 1, most))?
            }
            _ => labels.trie(kind),
        };
        Ok(Self {
            trie,
            rotations: (0..rotations).map(|r| r * count / rotations).collect(),
            temperature: request.temperature,
            labels: labelled,
        })
    }

    fn num_rows(&self) -> usize {
        self.rotations.len() * self.trie.num_rows()
    }

    fn answer(&self, asked: &Asked<'_>, scores: &[LabelScores]) -> (Answer, Diagnostics) {
        let count = asked.question.criteria.labels().count();
        let mut probabilities = vec![0.0; count];
        let mut mass = Some(0.0);
        let share = 1.0 / self.rotations.len() as f64;
        for (scores, rotation) in scores.chunks(self.trie.num_rows()).zip(&self.rotations) {
            match self.labels {
                ChoiceLabels::Code => {
                    let of_labels = self.trie.probabilities(scores, self.temperature);
                    for (label, p) in of_labels.into_iter().enumerate() {
                        probabilities[(label + rotation) % count] += p * share;
                    }
                    // The root's row: what the model would say first.
                    let first = label_mass(&scores[0]);
                    mass = mass.zip(first).map(|(sum, m)| sum + m * share);
                }
                ChoiceLabels::Text => {
                    // A name is the option's own, wherever the list is turned.
                    let log = self.trie.log_probabilities(scores);
                    let said: f64 = log.iter().map(|l| l.exp()).sum();
                    mass = mass.map(|sum| sum + said.min(1.0) * share);
                    let scaled = below_max(&log, self.temperature);
                    for (option, p) in normalised(&scaled).into_iter().enumerate() {
                        probabilities[option] += p * share;
                    }
                }
            }
        }
        let diagnostics = Diagnostics::new(&probabilities, mass);
        let answer = match asked.question.criteria {
            Criteria::Noul { .. } => Answer::noul(&probabilities),
            Criteria::Choice(_) => Answer::choice(probabilities),
            Criteria::Score(_) => Answer::score(probabilities),
        };
        (answer, diagnostics)
    }
}

/// The prompts of all questions in order, each with its rotations.
fn encode(
    model: &ServedModel,
    request: &Request<'_>,
    plans: &[Plan],
) -> Result<SharedPrompts, ApiError> {
    let turns = request.asked.iter().zip(plans).flat_map(|(asked, plan)| {
        let turn = |&rotation| {
            let user = asked
                .question
                .user_turn(&request.state, rotation, request.labels);
            let user = json!({"role": "user", "content": user});
            match &request.instructions {
                None => prompt(model, &[user]),
                Some(text) => prompt(model, &[json!({"role": "system", "content": text}), user]),
            }
        };
        plan.rotations.iter().map(turn)
    });
    let prompts = SharedPrompts::encode(turns, model.cuts, |text, out: &mut Vec<TokenId>| {
        model.tokenizer.encode_into(text, false, out);
        check_length("state", out.len(), 0, model)
    })?;
    let depths = plans
        .iter()
        .flat_map(|p| p.rotations.iter().map(|_| p.trie.depth()));
    for (len, depth) in prompts.lens().zip(depths) {
        check_length("state", len, depth as u64, model)?;
    }
    Ok(prompts)
}

/// What is 400 elsewhere and means that the request is malformed is 422 here, with a list of
/// details; a state that is too long is 413.
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
    use crate::testing::{answer, ask, ask_raw, demos};

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

    #[test]
    fn names_that_make_too_many_rows_are_refused() {
        let options: Map<String, Value> = (0..255)
            .map(|i| (format!("{i} is a name of many tokens"), Value::Null))
            .collect();
        let question = json!({"type": "choice", "criteria": options});
        let many: Map<String, Value> = (0..9)
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
