//! `POST /v1/systemone/permute`: one choice asked with its options in several orders, as Kev's server
//! does it.

use std::{collections::BTreeSet, iter, sync::Arc};

use bytes::Bytes;
use prelude_text::decide::{Answer, ChoiceOption, Criteria};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{SystemOneRequest, answers::Usage, as_system_one, read};
use crate::{
    admission::Growth,
    dialects,
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::{ApiError, Dialect},
    tasks::decide::{self, NamedQuestion},
    wire::{Entries, Int, Text, request},
};

/// Orders that a request asks for if it does not say how many.
const ORDERS: u32 = 6;

/// `POST /v1/systemone/permute`.
pub(crate) const PERMUTE: Endpoint = Endpoint {
    group: "decisions",
    summary: "Ask one choice with its options in several orders",
    requests: &[asked::<PermuteRequest<'static>>()],
    responses: json::<Response<'static>>,
    dialect: Dialect::SystemOne,
    ..Endpoint::post(&["/v1/systemone/permute"], |call, body| {
        Box::pin(handle(call, body))
    })
};

request! {
    /// `POST /v1/systemone/permute`.
    struct PermuteRequest<'a> {
        of: PermuteFields<'a>,
    }
    fields [dialects::PERMUTE];
}

/// A request, a choice in it, and how many orders of its options are asked for.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct PermuteFields<'a> {
    /// A request of `/v1/systemone`.
    #[serde(borrow)]
    #[schemars(with = "SystemOneRequest<'static>")]
    request: &'a RawValue,
    /// The id of a choice among its questions.
    question: Text<'a>,
    /// The first order is the request's own; the others are shuffled, 6 in all by default.
    n_perm: Option<Int<1, 64>>,
    /// Other seeds shuffle otherwise.
    seed: Option<i64>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Permuted")]
struct Response<'a> {
    model: &'a str,
    runs: Vec<Run<'a>>,
    /// True if every order has the same choice.
    argmax_stable: bool,
    /// The largest less the smallest probability of each option.
    spread: Entries<'a, f64>,
    usage: Usage,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PermutedRun")]
struct Run<'a> {
    order: Vec<&'a str>,
    probabilities: Entries<'a, f64>,
    choice: &'a str,
}

async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    answer(call, &body).await.map_err(as_system_one)
}

async fn answer(call: &Arc<Call>, body: &[u8]) -> Result<Reply, ApiError> {
    let PermuteRequest { of, .. } = call.read(body).await?;
    let inside = |error: ApiError| match error.param().map(|at| at.trim_matches('/').to_owned()) {
        Some(at) => error.with_param(format!("/request/{at}")),
        None => error,
    };
    let request = of.request.get().as_bytes();
    let (ask, mut questionnaire) = read(call, request).await.map_err(inside)?;
    let asked = questionnaire.questions.iter();
    let mut asked = asked.filter(|named| named.name.as_deref() == Some(&*of.question.0));
    let named = asked.next();
    let named = named.and_then(|named| match &named.question.criteria {
        Criteria::Choice(options) => Some((named.pointer.clone(), &named.question, options)),
        _ => None,
    });
    let Some((pointer, question, options)) = named else {
        let must = "name a choice of the request";
        return Err(ApiError::invalid_value("question", must));
    };
    let (question, options) = (question.clone(), options.clone());
    let count = of.n_perm.map_or(ORDERS, Int::count);
    let orders: Vec<Vec<usize>> = orders(options.len(), of.seed.unwrap_or(0))
        .take(count as usize)
        .collect();
    // Each order holds the question's texts once more.
    let values = (options.len() + request.len() / 512 + 1) * orders.len();
    call.reservation.grow(Growth::Values(values as u64))?;
    let turned = |order: &Vec<usize>| {
        let mut question = question.clone();
        let options = order.iter().map(|&option| options[option].clone());
        question.criteria = Criteria::Choice(options.collect());
        NamedQuestion {
            name: None,
            pointer: pointer.clone(),
            question,
            values: Vec::new(),
        }
    };
    questionnaire.questions = orders.iter().map(turned).collect();
    let decided = decide::decide(&ask, &questionnaire, body.len() * orders.len());
    let decided = decided.await.map_err(inside)?;
    let answers = decided.answers.iter().map(|(answer, _)| answer);
    let (runs, spread) = compared(&options, &orders, answers);
    let choices: BTreeSet<&str> = runs.iter().map(|run| run.choice).collect();
    Ok(Reply::json(&Response {
        model: &ask.model.name,
        argmax_stable: choices.len() == 1,
        runs,
        spread,
        usage: Usage::of(&decided),
    }))
}

/// Returns the answers in each order, and how far those to each option are apart.
fn compared<'a, 'b>(
    options: &'a [ChoiceOption],
    orders: &[Vec<usize>],
    answers: impl Iterator<Item = &'b Answer>,
) -> (Vec<Run<'a>>, Entries<'a, f64>) {
    let mut least = vec![f64::INFINITY; options.len()];
    let mut most = vec![0.0_f64; options.len()];
    let name = |option: usize| &*options[option].name;
    let run = |(order, answer): (&Vec<usize>, &Answer)| {
        let Answer::Choice {
            choice,
            probabilities,
            ..
        } = answer
        else {
            unreachable!("a choice was asked");
        };
        for (&option, &p) in order.iter().zip(probabilities) {
            least[option] = least[option].min(p);
            most[option] = most[option].max(p);
        }
        let of_options = order.iter().zip(probabilities);
        Run {
            order: order.iter().map(|&option| name(option)).collect(),
            probabilities: Entries(of_options.map(|(&o, p)| (name(o).into(), *p)).collect()),
            choice: name(order[*choice]),
        }
    };
    let runs = orders.iter().zip(answers).map(run).collect();
    let apart = least.iter().zip(&most).map(|(least, most)| most - least);
    let spread = apart.enumerate().map(|(o, apart)| (name(o).into(), apart));
    (runs, Entries(spread.collect()))
}

/// Returns orders of `n` options without end: as they are, then shuffled by the seed, the same on
/// every machine.
fn orders(n: usize, seed: i64) -> impl Iterator<Item = Vec<usize>> {
    let mut state = seed.cast_unsigned();
    // SplitMix64 (Steele et al., OOPSLA 2014).
    let mut below = move |bound: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    };
    let shuffled = move || {
        let mut order: Vec<usize> = (0..n).collect();
        for end in (1..n).rev() {
            order.swap(end, below(end + 1));
        }
        order
    };
    iter::once((0..n).collect()).chain(iter::repeat_with(shuffled))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{answer, ask, demos, refused};

    const PATH: &str = "/v1/systemone/permute";

    fn request(criteria: &Value) -> Value {
        json!({
            "state": "Where is my card?",
            "questions": {
                "topic": {"type": "choice", "instructions": "Which topic?", "criteria": criteria},
                "urgent": {"type": "noul"},
            },
        })
    }

    #[test]
    fn each_order_is_answered_as_when_it_is_asked_alone() {
        let criteria = json!({"card": "a card", "transfer": null, "cash": null, "exchange": null});
        let body =
            json!({"request": request(&criteria), "question": "topic", "n_perm": 5, "seed": 7});
        let found = answer(demos(), PATH, &body);
        assert_eq!(answer(demos(), PATH, &body), found);
        let runs = found["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 5);
        assert_eq!(
            runs[0]["order"],
            json!(["card", "transfer", "cash", "exchange"])
        );
        assert!(runs.iter().any(|run| run["order"] != runs[0]["order"]));
        for run in runs {
            let order = run["order"].as_array().unwrap();
            let turned = { order.iter() }.map(|name| {
                (
                    name.as_str().unwrap().to_owned(),
                    criteria[name.as_str().unwrap()].clone(),
                )
            });
            let alone = answer(demos(), "/v1/systemone", &request(&turned.collect()));
            let alone = &alone["answers"]["topic"];
            assert_eq!(run["probabilities"], alone["probabilities"]);
            assert_eq!(run["choice"], alone["choice"]);
        }
        for (name, spread) in found["spread"].as_object().unwrap() {
            let of_runs = runs
                .iter()
                .map(|run| run["probabilities"][name].as_f64().unwrap());
            let (least, most) = of_runs.fold((1.0_f64, 0.0_f64), |(a, b), p| (a.min(p), b.max(p)));
            assert!((spread.as_f64().unwrap() - (most - least)).abs() < 1e-12);
        }
        let is_stable = runs.iter().all(|run| run["choice"] == runs[0]["choice"]);
        assert_eq!(found["argmax_stable"], is_stable);
    }

    /// Each order would hold the texts of ten megabytes of options.
    #[test]
    fn orders_of_long_texts_are_bounded() {
        let long = "a".repeat(9 << 20);
        let request = request(&json!({"card": long, "transfer": null}));
        let body = json!({"request": request, "question": "topic", "n_perm": 64});
        refused(demos(), PATH, &body, (400, "larger_than_queue", None));
    }

    #[test]
    fn six_orders_by_default_of_a_choice_and_no_other_question() {
        let request = request(&json!({"a": null, "b": null}));
        let body = |more: Value| {
            let mut body = json!({"request": request, "question": "topic"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            body
        };
        let found = answer(demos(), PATH, &body(json!({})));
        assert_eq!(found["runs"].as_array().unwrap().len(), 6);
        for (more, at) in [
            (json!({"question": "urgent"}), json!(["body", "question"])),
            (json!({"question": "none"}), json!(["body", "question"])),
            (json!({"n_perm": 0}), json!(["body", "n_perm"])),
            (json!({"n_perm": 65}), json!(["body", "n_perm"])),
            (
                json!({"request": {"questions": {}}}),
                json!(["body", "request", "state"]),
            ),
            (
                json!({"request": {"state": "", "questions": {"topic": {"type": "choice"}}}}),
                json!(["body", "request", "questions", "topic", "criteria"]),
            ),
        ] {
            let (status, found, _) = ask(demos(), PATH, &body(more.clone()));
            assert_eq!((status, &found["detail"][0]["loc"]), (422, &at), "{more}");
        }
    }
}
