//! Encoders over HTTP: classes, scores of pairs and vectors, against those of the reference
//! implementation (`golden/README.md`).

use std::path::{Path, PathBuf};

use prelude_server::{
    ApiKeys,
    assets::Assets,
    executor::ExecutorDtype,
    load::{LoadOptions, Loaded, load},
};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::{TestServer, config, devices};

/// Difference of probabilities, and of components of vectors of length 1, in f32.
const TOLERANCE: f64 = 1e-4;

fn folder(name: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    workspace.join("golden").join(name)
}

/// Loads a golden model in f32 under its own name.
fn model(name: &str) -> Loaded {
    loaded(name, |_| ())
}

fn loaded(name: &str, change: impl FnOnce(&mut LoadOptions)) -> Loaded {
    let mut options = LoadOptions {
        name: Some(name.to_owned()),
        ..LoadOptions::default()
    };
    options.executor.dtype = Some(ExecutorDtype::F32);
    change(&mut options);
    let assets = Assets::open(&folder(name).join("model")).unwrap();
    let loaded = load(assets, &options, devices()).unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new(), "{name}");
    loaded
}

fn server(names: &[&str]) -> TestServer {
    let models = names.iter().map(|name| model(name)).collect();
    TestServer::with(config(), ApiKeys::default(), models)
}

/// Recorded prompts, and rows of an array by the prompts' indices.
fn recorded(name: &str, array: &str) -> (Vec<Value>, Vec<Vec<f64>>) {
    let read = |file| std::fs::read(folder(name).join(file)).unwrap();
    let document: Value = serde_json::from_slice(&read("golden.json")).unwrap();
    let bytes = read("golden.safetensors");
    let arrays = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = arrays.tensor(array).unwrap();
    let width = tensor.shape()[1];
    let values: Vec<f64> = { tensor.data().as_chunks::<4>().0.iter() }
        .map(|bytes| f64::from(f32::from_le_bytes(*bytes)))
        .collect();
    let rows = values.chunks_exact(width).map(<[f64]>::to_vec);
    (
        document["prompts"].as_array().unwrap().clone(),
        rows.collect(),
    )
}

fn post(server: &TestServer, path: &str, body: &Value) -> Value {
    let response = server.post(path, &body.to_string());
    assert_eq!(response.status, 200, "{path} {body}: {}", response.body);
    response.json()
}

fn assert_close(found: &Value, expected: &[f64], what: &str) {
    let found: Vec<f64> = serde_json::from_value(found.clone()).unwrap();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() < TOLERANCE,
            "{what}: {found}, recorded {expected}"
        );
    }
}

#[test]
fn cross_encoders_rank_pairs() {
    let names = ["rand-bert-rank", "rand-xlmr-rank", "rand-modernbert-rank"];
    let server = server(&names);
    for name in names {
        let (prompts, probs) = recorded(name, "f32.cls_probs");
        let mut compared = 0;
        for (prompt, probs) in prompts.iter().zip(&probs) {
            let Some([query, document]) =
                prompt["pair"].as_array().map(|pair| [&pair[0], &pair[1]])
            else {
                continue;
            };
            let rank = |documents: Value| {
                let body = json!({"model": name, "query": query, "documents": documents});
                post(&server, "/v1/rerank", &body)
            };
            let alone = rank(json!([document]));
            let score = json!([alone["results"][0]["relevance_score"]]);
            assert_close(&score, probs, name);
            assert_eq!(alone["usage"]["prompt_tokens"], prompt["len"]);
            // The same bits beside others, which begin with the same query.
            let together = rank(json!(["another", document, "and one more"]));
            let results = together["results"].as_array().unwrap();
            let same = results.iter().find(|r| r["index"] == 1).unwrap();
            assert_eq!(same["relevance_score"], score[0]);
            let pair = json!({"model": name, "text_1": query, "text_2": document});
            let pair = post(&server, "/score", &pair);
            assert_eq!(pair["data"][0]["score"], score[0]);
            compared += 1;
        }
        assert_eq!(compared, 5, "{name}");
    }
    let cut = json!({"model": "rand-bert-rank", "query": "a card", "documents": ["word ".repeat(500)],
        "truncate_prompt_tokens": 40});
    let cut = post(&server, "/v1/rerank", &cut);
    let tokens = cut["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!((35..=40).contains(&tokens), "{tokens}");
}

#[test]
fn classes_and_vectors_are_the_references() {
    let classifiers = [
        "rand-bert-cls3",
        "rand-roberta-cls2",
        "rand-distilbert-cls2",
        "rand-modernbert-cls3",
        "rand-mpnet-cls2",
    ];
    let embedders = [
        "rand-bert-embed",
        "rand-mpnet-embed",
        "rand-modernbert-embed",
    ];
    let names = [&classifiers[..], &embedders].concat();
    let server = server(&names);
    for name in names {
        let is_embedder = embedders.contains(&name);
        let array = match name {
            "rand-bert-embed" => "f32.embed_first",
            _ if is_embedder => "f32.embed_mean",
            // Of several labels each by itself.
            "rand-roberta-cls2" => "f32.cls_logits",
            _ => "f32.cls_probs",
        };
        let (prompts, rows) = recorded(name, array);
        let texts: Vec<(&Value, &Vec<f64>)> = { prompts.iter().zip(&rows) }
            .filter(|(prompt, _)| prompt["text"].is_string())
            .collect();
        let count = if name.contains("modernbert") { 7 } else { 5 };
        assert_eq!(texts.len(), count, "{name}");
        let input: Vec<&Value> = texts.iter().map(|(prompt, _)| &prompt["text"]).collect();
        let (path, field) = match is_embedder {
            true => ("/v1/embeddings", "embedding"),
            false => ("/classify", "probs"),
        };
        let answer = post(&server, path, &json!({"model": name, "input": input}));
        for (i, (prompt, row)) in texts.iter().enumerate() {
            let expected: Vec<f64> = match name {
                _ if is_embedder => {
                    let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
                    row.iter().map(|x| x / length).collect()
                }
                "rand-roberta-cls2" => row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
                _ => (*row).clone(),
            };
            let found = &answer["data"][i][field];
            assert_close(found, &expected, &format!("{name} {}", prompt["text"]));
            // And alone.
            let body = json!({"model": name, "input": prompt["text"]});
            assert_eq!(&post(&server, path, &body)["data"][0][field], found);
        }
    }
}

/// The classes of pairs, with the types of their tokens, on every route and in every spelling.
#[test]
fn classes_of_pairs_are_the_references() {
    let names = [
        "rand-bert-cls3",
        "rand-roberta-cls2",
        "rand-distilbert-cls2",
        "rand-modernbert-cls3",
        "rand-mpnet-cls2",
    ];
    let server = server(&names);
    for name in names {
        let (prompts, rows) = recorded(name, "f32.cls_logits");
        let mut pairs = Vec::new();
        for (prompt, logits) in prompts.iter().zip(&rows) {
            let Some([a, b]) = prompt["pair"].as_array().map(|pair| [&pair[0], &pair[1]]) else {
                continue;
            };
            let body = json!({"model": name, "input": a, "text_pair": b, "use_activation": false});
            let classes = post(&server, "/classify", &body);
            let found = &classes["data"][0]["probs"];
            assert_close(found, logits, &format!("{name} {a} {b}"));
            assert_eq!(classes["usage"]["prompt_tokens"], prompt["len"]);
            pairs.push((a, b, found.clone()));
        }
        assert_eq!(pairs.len(), 5, "{name}");
        let of = |n: usize| { pairs.iter() }.map(move |pair| [pair.0, pair.1][n].clone());
        let (first, second): (Vec<Value>, Vec<Value>) = (of(0).collect(), of(1).collect());
        // The same bits beside others, on other routes and as pipelines write pairs.
        let objects: Vec<Value> = { pairs.iter() }
            .map(|(a, b, _)| json!({"text": a, "text_pair": b}))
            .collect();
        for (path, field) in [("/classify", "probs"), ("/pooling", "data")] {
            for input in [
                json!({"input": first, "text_pair": second}),
                json!({"input": objects}),
            ] {
                let mut body = input;
                body["model"] = json!(name);
                body["use_activation"] = json!(false);
                let answer = post(&server, path, &body);
                for (i, (.., logits)) in pairs.iter().enumerate() {
                    assert_eq!(&answer["data"][i][field], logits, "{name} {path}");
                }
            }
        }
        let (a, b, logits) = &pairs[0];
        let alone = json!({"model": name, "inputs": [a, b], "raw_scores": true});
        let alone = post(&server, "/predict", &alone);
        let batch = json!({"model": name, "inputs": [[a, b], [a]], "raw_scores": true});
        let batch = post(&server, "/predict", &batch);
        assert_eq!(batch[0], alone);
        assert_ne!(batch[1], alone, "{name}");
        let mut scores: Vec<f64> = serde_json::from_value(logits.clone()).unwrap();
        scores.sort_by(|a, b| b.total_cmp(a));
        let found: Vec<f64> = { alone.as_array().unwrap().iter() }
            .map(|class| class["score"].as_f64().unwrap())
            .collect();
        assert_eq!(found, scores, "{name}");
    }
}

/// As transformers cuts pairs: the longer text, and where that is not enough both.
#[test]
fn pairs_are_cut_on_either_side() {
    let server = server(&["rand-bert-cls3", "rand-bert-rank", "rand-bert-embed"]);
    let classes = |pair: [&str; 2], more: Value| {
        let mut body = json!({"model": "rand-bert-cls3", "input": pair[0], "text_pair": pair[1]});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let answer = post(&server, "/classify", &body);
        (answer["data"][0]["probs"].clone(), answer["usage"].clone())
    };
    let (many, marks) = (|n| "? ".repeat(n), |n| "! ".repeat(n));
    let keep = |tokens: usize| json!({"truncate_prompt_tokens": tokens});
    // [CLS], two times [SEP], and a token for each sign.
    let check = |long: [&str; 2], how: Value, short: [&str; 2]| {
        assert_eq!(
            classes(long, how.clone()),
            classes(short, json!({})),
            "{how}"
        );
    };
    check([&many(5), &marks(100)], keep(40), [&many(5), &marks(32)]);
    check([&many(100), &marks(5)], keep(40), [&many(32), &marks(5)]);
    check([&many(100), &marks(90)], keep(41), [&many(19), &marks(19)]);
    check([&many(5), &marks(5)], keep(13), [&many(5), &marks(5)]);
    let left = json!({"truncate_prompt_tokens": 20, "truncation_side": "left"});
    let long = format!("{}??", marks(90));
    check(["? !", &long], left, ["? !", &format!("{}??", marks(13))]);
    // A reranker's pair is the same prompt.
    let rank = |query: &str, document: &str, more: Value| {
        let mut body = json!({"model": "rand-bert-rank", "query": query, "documents": [document]});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        post(&server, "/v1/rerank", &body)["results"][0]["relevance_score"].clone()
    };
    let cut = rank(&many(300), &marks(300), keep(43));
    assert_eq!(cut, rank(&many(20), &marks(20), json!({})));
    let refused = |path: &str, body: Value, (reason, param): (&str, &str)| {
        let response = server.post(path, &body.to_string());
        assert_eq!(response.status, 400, "{path} {body}: {}", response.body);
        assert_eq!(response.reason(), reason, "{path} {body}");
        assert_eq!(response.json()["error"]["param"], param, "{path} {body}");
    };
    let pair = |more: Value| {
        let mut body = json!({"model": "rand-bert-cls3", "input": "?", "text_pair": "!"});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        body
    };
    let value = "invalid_value";
    let over = pair(json!({"input": many(100), "text_pair": marks(100)}));
    refused("/classify", over, ("context_length_exceeded", "input"));
    let nothing = pair(json!({"truncate_prompt_tokens": 3}));
    refused("/classify", nothing, (value, "truncate_prompt_tokens"));
    let more = pair(json!({"text_pair": ["!", "!"]}));
    refused("/classify", more, (value, "text_pair"));
    let ids = pair(json!({"input": [5, 6]}));
    refused("/pooling", ids, (value, "text_pair"));
    let bare = pair(json!({"add_special_tokens": false}));
    refused("/classify", bare, (value, "add_special_tokens"));
    let other = pair(json!({"input": [{"text": "?", "pair": "!"}], "text_pair": null}));
    refused("/classify", other, ("invalid_type", "input"));
    let vectors = pair(json!({"model": "rand-bert-embed"}));
    refused("/v1/embeddings", vectors, ("invalid_type", "input"));
}

/// Texts over the context on every route of encoders: refused as they are, and cut where the
/// dialect, the request or the model's setting says so.
#[test]
fn texts_over_the_context_are_cut_or_refused() {
    let models = ["rand-bert-embed", "rand-bert-cls3", "rand-bert-rank"];
    let [embed, classes, rank] = models;
    let refusing = server(&models);
    let cutting = { models.iter() }.map(|name| loaded(name, |o| o.auto_truncate = true));
    let cutting = TestServer::with(config(), ApiKeys::default(), cutting.collect());
    let long = "? ".repeat(400);
    let many = json!(["?", long]);
    let ranked = json!({"query": "?", "documents": many});
    // The route, the body, whether its dialect cuts, and the name of a switch, if it has one.
    let routes = [
        (
            "/v1/embeddings",
            embed,
            json!({"input": many}),
            false,
            "truncate",
        ),
        ("/embed", embed, json!({"inputs": many}), false, "truncate"),
        ("/v2/embed", embed, json!({"texts": many}), true, ""),
        (
            "/classify",
            classes,
            json!({"input": many}),
            false,
            "truncation",
        ),
        (
            "/predict",
            classes,
            json!({"inputs": [["?"], ["?", long]]}),
            false,
            "truncate",
        ),
        (
            "/pooling",
            classes,
            json!({"input": many}),
            false,
            "truncate",
        ),
        (
            "/v1/moderations",
            classes,
            json!({"input": many}),
            false,
            "",
        ),
        ("/v1/rerank", rank, ranked.clone(), false, "truncation"),
        ("/v2/rerank", rank, ranked, true, "truncate"),
        (
            "/rerank",
            rank,
            json!({"query": "?", "texts": many}),
            false,
            "truncate",
        ),
        (
            "/score",
            rank,
            json!({"text_1": "?", "text_2": many}),
            false,
            "",
        ),
    ];
    for (path, model, body, cuts, switch) in routes {
        let ask = |server: &TestServer, how: Option<bool>| {
            let mut body = body.clone();
            body["model"] = json!(model);
            if let Some(how) = how {
                body[switch] = json!(how);
            }
            server.post(path, &body.to_string())
        };
        let is_cut = |server: &TestServer, how: Option<bool>| {
            let response = ask(server, how);
            assert_eq!(response.status, 200, "{path} {how:?}: {}", response.body);
            let cut = response.header("x-prelude-truncated");
            assert_eq!(cut, Some("1"), "{path}");
        };
        let is_refused = |server: &TestServer, how: Option<bool>| {
            let response = ask(server, how);
            assert_eq!(response.status, 400, "{path} {how:?}: {}", response.body);
            let names_it = ["context length", "/1`", "--auto-truncate"];
            for part in names_it {
                assert!(response.body.contains(part), "{}", response.body);
            }
        };
        is_cut(&cutting, None);
        match cuts {
            true => is_cut(&refusing, None),
            false => is_refused(&refusing, None),
        }
        if !switch.is_empty() {
            is_cut(&refusing, Some(true));
            is_refused(&cutting, Some(false));
        }
    }
    let limit = json!({"model": rank, "query": "?", "documents": many, "max_tokens_per_doc": 4096});
    post(&refusing, "/v2/rerank", &limit);
    let info = cutting.get("/info").json();
    assert_eq!(info["auto_truncate"], true);
    let short = post(
        &refusing,
        "/classify",
        &json!({"model": classes, "input": "?"}),
    );
    let response = refusing.post(
        "/classify",
        &json!({"model": classes, "input": "?"}).to_string(),
    );
    assert_eq!(response.header("x-prelude-truncated"), None, "{short}");
    let both = json!({"model": rank, "query": "?", "documents": many, "truncate": false,
        "truncate_prompt_tokens": 9});
    let response = refusing.post("/v1/rerank", &both.to_string());
    assert_eq!(
        (response.status, &*response.reason()),
        (400, "invalid_value")
    );
}

/// Each token's classes, text by text, as a list of rows.
#[test]
fn classes_of_tokens_are_the_references() {
    let names = [
        "rand-bert-token5",
        "rand-xlmr-token3",
        "rand-distilbert-token3",
        "rand-modernbert-token5",
    ];
    let server = server(&names);
    for name in names {
        let (prompts, rows) = recorded(name, "f32.tok_logits");
        let mut first = 0;
        let mut compared = 0;
        for prompt in &prompts {
            let len = prompt["len"].as_u64().unwrap() as usize;
            let rows = &rows[first..first + len];
            first += len;
            if let Some(pair) = prompt["pair"].as_array() {
                let body = json!({"model": name, "input": pair[0], "text_pair": pair[1],
                    "use_activation": false});
                let found = post(&server, "/pooling", &body);
                let found = found["data"][0]["data"].as_array().unwrap();
                assert_eq!(found.len(), len, "{name}");
                for (found, logits) in found.iter().zip(rows) {
                    assert_close(found, logits, name);
                }
            }
            if !prompt["text"].is_string() {
                continue;
            }
            let pool = |input: Value, more: Value| {
                let mut body = json!({"model": name, "input": input});
                let more = more.as_object().unwrap().clone();
                body.as_object_mut().unwrap().extend(more);
                post(&server, "/pooling", &body)
            };
            let text = &prompt["text"];
            let alone = pool(text.clone(), json!({}));
            let found = alone["data"][0]["data"].as_array().unwrap();
            assert_eq!(found.len(), len, "{name} {text}");
            for (found, logits) in found.iter().zip(rows) {
                let sum: f64 = logits.iter().map(|z| z.exp()).sum();
                let expected: Vec<f64> = logits.iter().map(|z| z.exp() / sum).collect();
                assert_close(found, &expected, &format!("{name} {text}"));
            }
            assert_eq!(alone["usage"]["prompt_tokens"], len);
            // The same bits beside others, and under the task's name.
            let both = pool(json!(["another", text]), json!({"task": "token_classify"}));
            assert_eq!(both["data"][1]["data"], alone["data"][0]["data"]);
            let logits = pool(text.clone(), json!({"use_activation": false}));
            assert_close(&logits["data"][0]["data"][0], &rows[0], name);
            compared += 1;
        }
        assert!(compared >= 5, "{name}");
    }
    let models = server.get("/v1/models").json();
    let model = &models["data"][1];
    assert_eq!(model["kind"], "token-classifier");
    assert_eq!(model["labels"], json!(["O", "B", "I"]));
    assert_eq!(model["tasks"], json!(["pooling"]));
    let refused = |path: &str, body: Value| {
        let response = server.post(path, &body.to_string());
        assert_eq!(response.status, 400, "{path}: {}", response.body);
        assert_eq!(response.reason(), "unsupported_task", "{path}");
    };
    let input = |task: &str| json!({"model": names[0], "input": "a", "task": task});
    for task in ["classify", "embed", "token_embed"] {
        refused("/pooling", input(task));
    }
    refused("/classify", json!({"model": names[0], "input": "a"}));
}

/// The classes of a mean are of no single token.
#[test]
fn tokens_have_no_classes_of_means() {
    let mut options = LoadOptions {
        kind: Some(prelude_server::ModelKind::Reward),
        ..LoadOptions::default()
    };
    options.executor.dtype = Some(ExecutorDtype::F32);
    let assets = Assets::open(&folder("rand-modernbert-rank").join("model")).unwrap();
    let loaded = load(assets, &options, devices()).unwrap();
    let server = TestServer::with(config(), ApiKeys::default(), vec![loaded]);
    post(&server, "/pooling", &json!({"input": "a card"}));
    let body = json!({"input": "a card", "task": "token_classify"});
    let response = server.post("/pooling", &body.to_string());
    assert_eq!(response.status, 400, "{}", response.body);
    assert_eq!(response.reason(), "unsupported_task");
}

#[test]
fn tasks_that_an_encoder_cannot_do_are_refused() {
    let server = server(&["rand-bert-rank", "rand-bert-cls3"]);
    let check = |path: &str, body: Value, (status, reason): (u16, &str)| {
        let response = server.post(path, &body.to_string());
        assert_eq!(
            (response.status, &*response.reason()),
            (status, reason),
            "{path} {body}"
        );
    };
    let rank = |more: Value| {
        let mut body = json!({"model": "rand-bert-rank", "query": "q", "documents": ["d"]});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        body
    };
    let unsupported = (400, "unsupported_parameter");
    check("/v1/rerank", rank(json!({"instruction": "i"})), unsupported);
    check(
        "/v1/rerank",
        rank(json!({"escape_special_tokens": true})),
        unsupported,
    );
    let long = json!({"documents": ["word ".repeat(500)]});
    check("/v1/rerank", rank(long), (400, "context_length_exceeded"));
    let prompt = json!({"model": "rand-bert-rank", "prompt": "a"});
    check("/v1/completions", prompt, (400, "unsupported_task"));
    let labels = json!({"model": "rand-bert-cls3", "query": "q", "items": ["i"]});
    check("/score", labels, (400, "unsupported_task"));
    // Ids that say a type are the server's own.
    let ids = json!({"model": "rand-bert-cls3", "input": [[5, 310]]});
    check("/classify", ids, (400, "token_out_of_range"));
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let refused = |name: &str, change: fn(&mut LoadOptions)| {
        let mut options = LoadOptions::default();
        change(&mut options);
        let assets = Assets::open(&folder(name).join("model")).unwrap();
        load(assets, &options, devices()).unwrap_err().to_string()
    };
    let template = refused("rand-bert-rank", |o| {
        o.rerank_template = Some("qwen3".into())
    });
    assert!(
        template.contains("leave --rerank-template out"),
        "{template}"
    );
    let pooling = refused("rand-bert-cls3", |o| {
        o.pooling = Some(prelude_core::Pooling::Mean)
    });
    assert!(pooling.contains("no pooling to choose"), "{pooling}");
}
