//! The server's handlers without a server: load a model, ask, print.
//!
//! ```sh
//! cargo run -p prelude-server --example in_process
//! ```

use prelude_server::{
    ApiKeys, App, ServerConfig,
    assets::Assets,
    demo,
    executor::Devices,
    load::{LoadOptions, load},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let assets = Assets::embedded(&demo::LM)?;
    // The engine computes on a thread of its own for as long as `engine` lives.
    let loaded = load(assets, &LoadOptions::default(), &Devices::of_machine())?;
    let _engine = loaded.engine;
    let app = App::new(ServerConfig::default(), ApiKeys::default());
    app.set_models(vec![loaded.model]);

    let body = r#"{
        "messages": [{"role": "user", "content": "Where is my card?"}],
        "temperature": 0,
        "enable_thinking": false
    }"#;
    let answered = app.answer("POST", "/v1/chat/completions", body).await;
    let answer: serde_json::Value = serde_json::from_slice(&answered.body)?;
    assert_eq!(answered.status, 200, "{answer}");
    let out = std::io::stdout();
    serde_json::to_writer_pretty(out, &answer["choices"][0]["message"])?;
    Ok(())
}
