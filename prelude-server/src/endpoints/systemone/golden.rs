//! Decision models against golden answers: prompts token for token, then probabilities.

use std::fs;

use serde_json::{Value, json};

use super::questions::{StateFields, questionnaire};
use crate::{
    app::App,
    assets::Assets,
    config::{Limits, ServerConfig, Truncate},
    executor::Devices,
    load::load,
    tasks::{
        decide::{self, DecideFields},
        prompts::Escaping,
    },
    testing::{answer, app, app_with, call, golden, options, refused},
};

const PATH: &str = "/v1/systemone";

/// Largest difference from the golden probabilities, which are computed in float32.
const WITHIN: f64 = 1e-4;

const MODELS: [&str; 5] = [
    "laya",
    "laya-mm",
    "kev-qwen3",
    "decision2-qwen3",
    "d3-qwen3",
];

/// Serves a decision model, and returns its golden cases.
fn served(name: &str) -> Option<(std::sync::Arc<App>, Vec<Value>)> {
    let folder = golden(&format!("decision/{name}"))?;
    let assets = Assets::open(&folder.join("model")).unwrap();
    let mut loaded = load(assets, &options(), &Devices::of_machine()).unwrap();
    loaded.warnings.clear();
    let text = fs::read_to_string(folder.join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    Some((
        app(vec![loaded]),
        golden["cases"].as_array().unwrap().clone(),
    ))
}

fn check_prompts(name: &str, app: &std::sync::Arc<App>, case: &Value) {
    let body = case["body"].to_string();
    let fields: StateFields<'_> = serde_json::from_str(&body).unwrap();
    let none = DecideFields {
        x_prelude: None,
        escape_special_tokens: None,
    };
    let asked = questionnaire(fields, none).unwrap();
    let call = call(app, PATH);
    let models = app.models();
    let model = &models[0];
    let decider = model.decider().unwrap();
    let escaping = Escaping::none(model, &call.reservation);
    let rows = decide::rows(&escaping, &asked, decider).unwrap();
    for (named, row) in asked.questions.iter().zip(rows) {
        let id = named.name.as_deref().unwrap();
        let expected = &case["prompts"][id];
        let ids = row.tokens.iter().map(|id| id % model.vocab_size);
        let what = format!("{name}, {:?}, {id}", case["tags"]);
        assert_eq!(json!(ids.collect::<Vec<_>>()), expected["tokens"], "{what}");
        let mut reads: Vec<Value> = expected["options"].as_array().unwrap().clone();
        reads.extend(
            [&expected["query"]]
                .into_iter()
                .filter(|at| !at.is_null())
                .cloned(),
        );
        assert_eq!(json!(row.reads), Value::Array(reads), "{what}");
    }
}

fn check_answer(what: &str, found: &Value, expected: &Value) {
    let close = |found: &Value, expected: &Value, what: &str| {
        let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
        assert!(
            (found - expected).abs() < WITHIN,
            "{what}: {found}, not {expected}"
        );
    };
    match expected["type"].as_str().unwrap() {
        "noul" => close(&found["noul"], &expected["noul"], what),
        kind => {
            for (option, p) in expected["probabilities"].as_object().unwrap() {
                close(
                    &found["probabilities"][option],
                    p,
                    &format!("{what}, {option}"),
                );
            }
            close(&found["confidence"], &expected["confidence"], what);
            match kind {
                "score" => close(&found["score"], &expected["score"], what),
                _ if expected["margin"].as_f64().unwrap() < 2.0 * WITHIN => {}
                _ => assert_eq!(found["choice"], expected["choice"], "{what}"),
            }
        }
    }
}

#[test]
fn answers_are_those_of_the_authors() {
    for name in MODELS {
        let Some((app, cases)) = served(name) else {
            return;
        };
        for case in &cases {
            check_prompts(name, &app, case);
        }
        for (i, case) in cases.iter().enumerate() {
            let found = answer(&app, PATH, &case["body"]);
            for (id, expected) in case["answers"].as_object().unwrap() {
                let what = format!("{name}, case {i} {:?}, {id}", case["tags"]);
                check_answer(&what, &found["answers"][id], expected);
            }
        }
    }
}

/// The answers of a request, bit for bit: alone, in company, in another order, and warm.
#[test]
fn company_changes_no_bit() {
    for name in MODELS {
        let Some((app, cases)) = served(name) else {
            return;
        };
        for case in &cases {
            let body = &case["body"];
            let together = answer(&app, PATH, body);
            assert_eq!(
                answer(&app, PATH, body)["answers"],
                together["answers"],
                "{name}: warm"
            );
            let mut turned = body.clone();
            let questions = body["questions"].as_object().unwrap();
            turned["questions"] = questions
                .iter()
                .rev()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            turned["cache_salt"] = json!("turned");
            let found = answer(&app, PATH, &turned);
            for (id, question) in questions {
                assert_eq!(
                    found["answers"][id], together["answers"][id],
                    "{name}: turned"
                );
                let mut alone = body.clone();
                alone["questions"] = json!({id: question});
                alone["cache_salt"] = json!("alone");
                let found = answer(&app, PATH, &alone);
                assert_eq!(
                    found["answers"][id], together["answers"][id],
                    "{name}: alone"
                );
            }
        }
    }
}

#[test]
fn the_prompt_is_the_format_s() {
    for (name, format) in [("laya", "laya"), ("kev-qwen3", "kev"), ("d3-qwen3", "d3")] {
        let Some((app, _)) = served(name) else {
            return;
        };
        let asked = |more: Value| {
            let mut body = json!({"state": "s", "questions": {"q": {"type": "noul",
                "instructions": "Is it?"}}});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            body
        };
        let found = answer(
            &app,
            PATH,
            &asked(json!({"x_prelude": {"prompt_format": format}})),
        );
        assert_eq!(found["x_prelude"]["prompt_format"], format);
        assert_eq!(
            found["x_prelude"]["diagnostics"]["q"].get("label_mass"),
            None
        );
        let check = |more: Value, reason: &str, field: &str| {
            refused(&app, PATH, &asked(more), (422, reason, Some(field)));
        };
        let unsupported = "unsupported_parameter";
        check(
            json!({"instructions": "You judge."}),
            unsupported,
            "instructions",
        );
        check(
            json!({"x_prelude": {"labels": "text"}}),
            unsupported,
            "/x_prelude/labels",
        );
        let other = json!({"x_prelude": {"prompt_format": "prelude-decide-1"}});
        check(other, "invalid_value", "/x_prelude/prompt_format");
        let even = answer(
            &app,
            PATH,
            &asked(json!({"x_prelude": {"temperature": 1e6}})),
        );
        let noul = even["answers"]["q"]["noul"].as_f64().unwrap();
        assert!((noul - 0.5).abs() < 1e-3, "{noul}");
    }
}

/// Questions of 255 options read 256 states of 64 numbers each, far more than their answers have.
#[test]
fn states_are_bounded_before_they_are_computed() {
    let Some(folder) = golden("decision/kev-qwen3") else {
        return;
    };
    let assets = Assets::open(&folder.join("model")).unwrap();
    let loaded = load(assets, &options(), &Devices::of_machine()).unwrap();
    let limits = Limits {
        answer_numbers: 20_000,
        ..Limits::default()
    };
    let config = ServerConfig {
        limits,
        ..ServerConfig::default()
    };
    let app = app_with(config, vec![loaded]);
    let criteria: Value = (0..255).map(|i| (format!("o{i}"), Value::Null)).collect();
    let question = json!({"type": "choice", "criteria": criteria});
    let ask = |questions: usize| {
        let questions = (0..questions).map(|i| (format!("q{i}"), question.clone()));
        json!({"state": "s", "questions": questions.collect::<Value>()})
    };
    answer(&app, PATH, &ask(1));
    refused(&app, PATH, &ask(4), (422, "too_many_numbers", None));
}

#[test]
fn the_plain_model_is_served_if_that_is_said() {
    let Some(folder) = golden("decision/d3-qwen3") else {
        return;
    };
    let assets = Assets::open_plain(&folder.join("model"), None).unwrap();
    assert!(assets.checkpoint.decision().is_none());
    let mut loaded = load(assets, &options(), &Devices::of_machine()).unwrap();
    loaded.warnings.clear();
    let vectors = answer(&app(vec![loaded]), "/v1/embeddings", &json!({"input": "a"}));
    assert_eq!(
        vectors["data"][0]["embedding"].as_array().unwrap().len(),
        64
    );
}

/// Instructions and a state that are longer than the model's row: the format cuts both.
#[test]
fn long_texts_of_a_laya_are_cut() {
    let Some((app, _)) = served("laya") else {
        return;
    };
    let long = "where is my card ".repeat(2_000);
    let question = json!({"type": "noul", "instructions": long});
    let body = json!({"state": long, "questions": {"a": question, "b": {"type": "noul"}},
        "x_prelude": {"temperature": 5e-324}});
    let found = answer(&app, PATH, &body);
    assert!(found["answers"]["a"]["noul"].is_number(), "{found}");
    assert!(
        found["x_prelude"]["truncated"]["b"]["state_tokens"]
            .as_u64()
            .unwrap()
            > 2_000
    );
}

#[test]
fn permutations_are_the_mean_over_orders_of_options() {
    for name in ["laya", "d3-qwen3"] {
        let Some((app, _)) = served(name) else {
            return;
        };
        let ask = |names: [&str; 3], permutations: u32| {
            let criteria: Value = names
                .iter()
                .map(|name| ((*name).to_owned(), Value::Null))
                .collect();
            let body = json!({"state": "Where is my card?", "x_prelude": {"permutations": permutations},
                "questions": {"q": {"type": "choice", "instructions": "Which?", "criteria": criteria}}});
            let found = answer(&app, PATH, &body)["answers"]["q"]["probabilities"].clone();
            ["card", "bank", "none"].map(|name| found[name].as_f64().unwrap())
        };
        let orders = [
            ask(["card", "bank", "none"], 1),
            ask(["bank", "none", "card"], 1),
            ask(["none", "card", "bank"], 1),
        ];
        let mean = ask(["card", "bank", "none"], 3);
        for (i, mean) in mean.into_iter().enumerate() {
            let expected = orders.iter().map(|of| of[i]).sum::<f64>() / 3.0;
            assert!((mean - expected).abs() < 1e-9, "{name}: {mean} {expected}");
        }
    }
}

#[test]
fn a_laya_says_what_it_leaves_out() {
    let Some((app, cases)) = served("laya") else {
        return;
    };
    let long = cases
        .iter()
        .find(|case| case["tags"] == json!(["long"]))
        .unwrap();
    let found = answer(&app, PATH, &long["body"]);
    let (id, prompt) = long["prompts"].as_object().unwrap().iter().next().unwrap();
    let cut = &found["x_prelude"]["truncated"][id];
    assert_eq!(prompt["tokens"].as_array().unwrap().len(), 512);
    let [all, used] = ["state_tokens", "used"].map(|name| cut[name].as_u64().unwrap());
    assert!(used < all && used < 512, "{cut}");
    assert_eq!(found["usage"]["input_tokens"], json!(prompts_tokens(long)));
    let found = answer(&app, PATH, &cases[0]["body"]);
    assert_eq!(found["x_prelude"].get("truncated"), None);
}

fn prompts_tokens(case: &Value) -> usize {
    let prompts = case["prompts"].as_object().unwrap().values();
    prompts
        .map(|prompt| prompt["tokens"].as_array().unwrap().len())
        .sum()
}

#[test]
fn the_two_dialects_agree_and_no_other_route_answers() {
    let Some((app, _)) = served("decision2-qwen3") else {
        return;
    };
    let one = answer(
        &app,
        PATH,
        &json!({"state": "s", "questions": {
        "a": {"type": "noul", "instructions": "Is it?"},
        "b": {"type": "score", "instructions": "How?", "criteria": ["low", "high - in capitals"]}}}),
    );
    let other = answer(
        &app,
        "/v1/decisions",
        &json!({"input": "s", "questions": [
        {"type": "predicate", "instructions": "Is it?"},
        {"type": "score", "instructions": "How?", "levels": [
            {"label": "low"}, {"label": "high", "description": "in capitals"}]}]}),
    );
    assert_eq!(
        other["answers"][0]["probability"],
        one["answers"]["a"]["noul"]
    );
    assert_eq!(other["answers"][1]["score"], one["answers"]["b"]["score"]);
    for (path, body) in [
        ("/v1/embeddings", json!({"input": "a"})),
        ("/v1/completions", json!({"prompt": "a"})),
        ("/classify", json!({"input": "a"})),
        ("/pooling", json!({"input": "a"})),
        ("/rerank", json!({"query": "a", "documents": ["b"]})),
    ] {
        let (status, found, _) = crate::testing::ask(&app, path, &body);
        assert!([400, 404].contains(&status), "{path}: {status} {found}");
    }
}

#[test]
fn a_state_that_would_be_cut_is_refused_where_that_is_set() {
    let Some(folder) = golden("decision/laya") else {
        return;
    };
    let assets = Assets::open(&folder.join("model")).unwrap();
    let loaded = load(assets, &options(), &Devices::of_machine()).unwrap();
    let mut config = ServerConfig::default();
    config.decide.truncate = Truncate::Refuse;
    let app = app_with(config, vec![loaded]);
    let ask = |state: &str| json!({"state": state, "questions": {"q": {"type": "noul"}}});
    answer(&app, PATH, &ask("Where is my card?"));
    let long = ask(&"where is my card ".repeat(2_000));
    refused(
        &app,
        PATH,
        &long,
        (413, "context_length_exceeded", Some("state")),
    );
}
