//! A model whose tokenizer fasttoken refuses is served by the reference, with the same answers.
#![cfg(feature = "hf-fallback")]

use std::{fs, path::Path, sync::Arc};

use prelude_engine::ScheduledEngine;
use prelude_server::{
    ApiKeys, App, ServerConfig,
    assets::Assets,
    executor::Devices,
    load::{LoadOptions, load},
};
use serde_json::{Value, json};

fn serve(folder: &Path) -> (Arc<App>, ScheduledEngine, Vec<String>) {
    let assets = Assets::open(folder).expect("the folder holds a model");
    let options = LoadOptions {
        name: Some("demo-lm".to_owned()),
        ..LoadOptions::default()
    };
    let loaded = load(assets, &options, &Devices::of_machine()).expect("it can be served");
    let app = App::new(ServerConfig::default(), ApiKeys::default());
    app.set_models(vec![loaded.model]);
    (app, loaded.engine, loaded.warnings)
}

#[tokio::test]
async fn answers_do_not_depend_on_who_tokenises() {
    let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/demo/demo-lm"));
    let folder = std::env::temp_dir().join(format!("prelude-fallback-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for file in fs::read_dir(demo).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    // Cuts at a character that no text here has: the ids stay, and fasttoken does not know it.
    let path = folder.join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let steps = file["pre_tokenizer"]["pretokenizers"]
        .as_array_mut()
        .unwrap();
    steps.insert(
        0,
        json!({"type": "CharDelimiterSplit", "delimiter": "\u{e000}"}),
    );
    fs::write(&path, file.to_string()).unwrap();

    let (plain, _engine, warnings) = serve(demo);
    assert_eq!(warnings, [""; 0]);
    let (fallback, _engine, warnings) = serve(&folder);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in ["CharDelimiterSplit", "$.pre_tokenizer", "slower"] {
        assert!(warnings[0].contains(part), "{warnings:?}");
    }

    let question = json!([{"role": "user", "content": "Where is my card? 👍 Is it déjà vu?"}]);
    for (path, body) in [
        (
            "/tokenize",
            json!({"prompt": "my card 👍", "return_token_strs": true}),
        ),
        ("/detokenize", json!({"tokens": [660, 319, 281, 4066]})),
        (
            "/v1/completions",
            json!({"prompt": "my card", "temperature": 0, "max_tokens": 20, "logprobs": 3,
                "echo": true, "stop": ["card_linking"]}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": question, "temperature": 0, "logprobs": true, "top_logprobs": 2,
                "max_tokens": 30}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": question, "seed": 1, "max_tokens": 30,
                "structured_outputs": {"choice": ["yes", "no"]}}),
        ),
        (
            "/v1/systemone",
            json!({"state": "my card 👍", "questions": {
                "lost": {"type": "noul", "instructions": "Is a card missing?"},
                "topic": {"type": "choice", "instructions": "Which topic?",
                    "criteria": {"card": null, "transfer": null}}}}),
        ),
    ] {
        let mut answers = Vec::new();
        for app in [&plain, &fallback] {
            let answered = app.answer("POST", path, body.to_string()).await;
            let mut answer: Value = serde_json::from_slice(&answered.body).unwrap();
            for own in ["id", "created"] {
                answer.as_object_mut().unwrap().remove(own);
            }
            answers.push((answered.status, answer));
        }
        assert_eq!(answers[0], answers[1], "{path}");
        assert_eq!(answers[0].0, 200, "{path}: {}", answers[0].1);
    }
    fs::remove_dir_all(&folder).unwrap();
}
