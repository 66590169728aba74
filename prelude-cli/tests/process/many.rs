//! Several models in one process: a judge and an embedder, of the demo language model's files.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{Served, wait_for};

const MODELS: [&str; 2] = ["judge=demo-lm", "embed=demo-lm"];

/// Settings that make the second model an embedder with a small KV pool.
const SETTINGS: [(&str, &str); 3] = [
    ("MODELS__EMBED__KIND", "embedding"),
    ("MODELS__EMBED__KV__NUM_BLOCKS", "300"),
    ("MODELS__EMBED__ALIASES", "[\"vectors\"]"),
];

/// Runs the program to its end with these settings.
fn run(arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prelude"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PRELUDE_")) {
        command.env_remove(name);
    }
    for (name, value) in settings {
        command.env(format!("PRELUDE_{name}"), value);
    }
    command.args(arguments).output().unwrap()
}

/// The model that answers, and the status.
fn asked(server: &Served, path: &str, body: &Value) -> (u16, String) {
    let answer = server.post(path, &body.to_string());
    let model = answer.json()["model"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    (answer.status, model)
}

fn get(server: &Served, path: &str) -> Value {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    server.exchange(head.as_bytes()).json()
}

#[test]
fn requests_choose_among_models_by_name() {
    let server = Served::start_with(&MODELS, &SETTINGS);
    let embed = |model: Value| json!({"input": "Where is my card?", "model": model});
    let complete = |model: Value| json!({"prompt": "Where is my", "max_tokens": 3, "model": model});
    let check = |path, body: Value, expected: (u16, &str)| {
        let found = asked(&server, path, &body);
        assert_eq!((found.0, &*found.1), expected, "{path} {body}");
    };
    // By name, and without one where one model alone serves what is asked for.
    for name in ["embed", "vectors", "default", "unknown"] {
        check("/v1/embeddings", embed(name.into()), (200, "embed"));
    }
    check("/v1/embeddings", embed(Value::Null), (200, "embed"));
    check("/v1/completions", complete("judge".into()), (200, "judge"));
    check("/v1/completions", complete(Value::Null), (200, "judge"));
    check("/v1/completions", complete("embed".into()), (400, ""));
    check("/v1/embeddings", embed("judge".into()), (400, ""));

    let unknown = server.post("/v1/completions", &complete("guard".into()).to_string());
    assert_eq!(
        (unknown.status, &*unknown.reason()),
        (404, "model_not_found")
    );
    assert!(
        unknown.body.contains("served are judge, embed, vectors"),
        "{unknown:?}"
    );

    let listed = get(&server, "/v1/models");
    let ids = listed["data"].as_array().unwrap().iter();
    let ids: Vec<_> = ids
        .map(|m| (m["id"].as_str().unwrap(), m["kind"].as_str().unwrap()))
        .collect();
    let expected = [
        ("judge", "lm"),
        ("embed", "embedding"),
        ("vectors", "embedding"),
    ];
    assert_eq!(ids, expected);
    let ready = get(&server, "/ready");
    assert_eq!(ready["models"], json!([{"id": "judge"}, {"id": "embed"}]));

    // The log says which model answered.
    let mut lines = server.log.iter();
    let line = lines
        .find(|line| line.contains("route=/v1/completions"))
        .unwrap();
    assert!(line.contains(" model=judge status=200 class="), "{line}");

    // Each has a KV pool and counts of its own.
    server.settle();
    let blocks = server.metric("vllm:cache_config_info{engine=\"0\",model_name=\"embed\",");
    assert_eq!(blocks, 1.0);
    let page =
        server.exchange(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let pool = |model: &str| {
        let start = format!("vllm:cache_config_info{{engine=\"0\",model_name=\"{model}\",");
        let line = page.body.lines().find(|line| line.starts_with(&start));
        line.unwrap().contains("num_gpu_blocks=\"300\"")
    };
    assert_eq!((pool("judge"), pool("embed")), (false, true));
    let answered = |model: &str| {
        let labels = format!("engine=\"0\",model_name=\"{model}\",finished_reason=\"done\"");
        server.metric(&format!("vllm:request_success_total{{{labels}"))
    };
    assert_eq!((answered("judge"), answered("embed")), (2.0, 5.0));
}

/// If several models could answer, a request without a name goes to the one that is made for it.
#[test]
fn requests_without_a_name_go_to_the_model_that_is_made_for_them() {
    let settings = [
        ("MODELS__RANK__KIND", "reranker"),
        ("MODELS__EMBED__KIND", "embedding"),
    ];
    // The embedder ranks too, and the reranker writes and decides too.
    let models = [
        "embed=demo-lm",
        "rank=demo-lm",
        "judge=demo-lm",
        "guard=demo-classifier",
    ];
    let server = Served::start_with(&models, &settings);
    let labelled = json!({"input": "My card is lost.", "labels": ["yes", "no"]});
    let cases = [
        (
            "/v1/completions",
            json!({"prompt": "Where", "max_tokens": 1}),
            "judge",
        ),
        ("/v1/embeddings", json!({"input": "Where"}), "embed"),
        (
            "/rerank",
            json!({"query": "a", "documents": ["b", "c"]}),
            "rank",
        ),
        ("/classify", json!({"input": "My card is lost."}), "guard"),
        ("/classify", labelled, "judge"),
    ];
    for (path, mut body, model) in cases {
        for name in [Value::Null, "unknown".into(), "default".into()] {
            body["model"] = name;
            let found = asked(&server, path, &body);
            assert_eq!((found.0, &*found.1), (200, model), "{path} {body}");
        }
    }
    // Two models of one kind are no choice for a router that has not read their names.
    let twins = Served::start_with(&["a=demo-lm", "b=demo-lm"], &[]);
    let mut body = json!({"prompt": "Where", "max_tokens": 1});
    assert_eq!(
        asked(&twins, "/v1/completions", &body),
        (200, "a".to_owned())
    );
    body["model"] = "unknown".into();
    assert_eq!(asked(&twins, "/v1/completions", &body).0, 404);
}

/// A model's answers do not depend on the models beside it.
#[test]
fn answers_are_those_of_each_model_alone() {
    let server = Served::start_with(&MODELS, &SETTINGS);
    let alone = Served::start_with(&["demo-lm"], &[]);
    let texts = ["Where is my card?", "My transfer failed.", "a"];
    for text in texts {
        let body = json!({"prompt": text, "max_tokens": 8, "temperature": 0, "logprobs": 2});
        let choices = |server: &Served| {
            let answer = server.post("/v1/completions", &body.to_string());
            answer.json()["choices"].clone()
        };
        assert_eq!(choices(&server), choices(&alone), "{text}");
    }
    let lone = run(
        &[
            "embed",
            "--model",
            "demo-lm",
            "--kind",
            "embedding",
            "--format",
            "json",
            texts[0],
        ],
        &[],
    );
    let lone: Value = serde_json::from_slice(&lone.stdout).unwrap();
    let beside = server.post("/v1/embeddings", &json!({"input": texts[0]}).to_string());
    let beside = &beside.json()["data"][0]["embedding"];
    assert!(beside.as_array().is_some_and(|vector| !vector.is_empty()));
    assert_eq!(beside, &lone["data"][0]["embedding"]);
}

/// Settings of one model leave the model beside it as it is.
#[test]
fn settings_of_a_model_are_its_own() {
    let settings = [
        ("MODELS__FLAT__CALIBRATION__NOUL", "1e9"),
        ("MODELS__FLAT__MAX_MODEL_LEN", "256"),
        ("MODELS__SHARP__SCHEDULER__ENABLE_PREFIX_CACHING", "false"),
    ];
    let server = Served::start_with(&["flat=demo-lm", "sharp=demo-lm"], &settings);
    let probability = |model: &str| {
        let question = json!({"type": "noul", "instructions": "Is a card lost?"});
        let body =
            json!({"model": model, "state": "My card is lost.", "questions": {"q": question}});
        let answer = server.post("/v1/systemone", &body.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["answers"]["q"]["noul"].as_f64().unwrap()
    };
    // A high temperature leaves a half of each.
    assert!((probability("flat") - 0.5).abs() < 1e-6);
    assert!((probability("sharp") - 0.5).abs() > 0.1);
    let longest =
        |model: &str| get(&server, &format!("/v1/models/{model}"))["max_model_len"].clone();
    assert_eq!(
        (longest("flat"), longest("sharp")),
        (json!(256), json!(4096))
    );
    let cached = |model: &str| {
        let body =
            json!({"model": model, "prompt": "Where is my card? ".repeat(12), "max_tokens": 2});
        for _ in 0..2 {
            assert_eq!(
                server.post("/v1/completions", &body.to_string()).status,
                200
            );
        }
        let labels = format!("engine=\"0\",model_name=\"{model}\"");
        server.metric(&format!("vllm:prefix_cache_hits_total{{{labels}"))
    };
    assert!(cached("flat") > 0.0);
    assert_eq!(cached("sharp"), 0.0);
}

/// Both engines end as one does: with what they have accepted.
#[test]
fn a_server_of_several_models_stops_in_good_order() {
    let mut server = Served::start_with(&MODELS, &SETTINGS);
    let address = server.address.clone();
    let asking = std::thread::spawn(move || {
        let body =
            json!({"prompt": "Where", "max_tokens": 400, "ignore_eos": true, "temperature": 0});
        let mut stream = crate::support::connect(&address).unwrap();
        let request = crate::support::request("/v1/completions", &body.to_string());
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        crate::support::Answer::read(&mut stream).unwrap()
    });
    let running = "vllm:num_requests_running{engine=\"0\",model_name=\"judge\"}";
    wait_for(
        || match asking.is_finished() || server.metric(running) > 0.0 {
            true => Ok(()),
            false => Err("not running".to_owned()),
        },
    );
    server.signal("-TERM");
    let answer = asking.join().unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 400);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

/// The memory of all models is planned before one of them is loaded.
#[test]
fn models_that_do_not_fit_together_are_refused_before_loading() {
    let server = Served::start_with(&MODELS, &SETTINGS);
    let planned = |model: &str| {
        let start = format!("memory: {model}: ");
        let mut lines = server.before_ready.iter();
        let line = lines.find_map(|line| line.strip_prefix(&start)).unwrap();
        line.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let (judge, embed) = (planned("judge"), planned("embed"));
    // Each of them would fit alone.
    let limit = judge.max(embed) + judge.min(embed) / 2;
    let limit = (limit << 20).to_string();
    let mut settings = SETTINGS.to_vec();
    settings.push(("EXECUTOR__MEMORY_LIMIT_BYTES", &limit));
    let refused = run(&["serve", MODELS[0], MODELS[1], "--port", "0"], &settings);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{text}");
    for part in [
        "MiB of memory together, more than the".to_owned(),
        format!("judge: {judge} MiB (weights "),
        format!("embed: {embed} MiB (weights "),
    ] {
        assert!(text.contains(&part), "{part:?} in {text}");
    }
    assert!(!text.contains("memory: judge: "), "{text}");
}

#[test]
fn models_that_cannot_be_served_together_stop_the_start() {
    let folder = std::env::temp_dir().join(format!("prelude-many-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let empty = format!("broken={}", folder.display());
    let check = |arguments: &[&str], code: i32, part: &str| {
        let mut all = vec!["serve", "--port", "0"];
        all.extend(arguments);
        let refused = run(&all, &[]);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(part), "{part:?} in {text}");
        assert!(!text.contains("memory: judge"), "{text}");
    };
    check(
        &["judge=demo-lm", &empty],
        3,
        "broken: the model cannot be loaded: ",
    );
    check(
        &["judge=demo-lm", "embed=./no-such"],
        3,
        "embed: the model cannot be loaded: ",
    );
    check(
        &["judge=demo-lm", "demo-classifier"],
        2,
        "NAME=demo-classifier",
    );
    let named = ["judge=demo-lm", "b=demo-lm", "--served-model-name", "x"];
    check(
        &named,
        2,
        "--served-model-name is for a model without a name",
    );
    std::fs::remove_dir(&folder).unwrap();
}
