//! A server with an endpoint and a dialect of its own: `POST /triage` says which desk a customer's
//! message goes to. Every other path is Prelude's.
#![expect(clippy::print_stdout, reason = "an example")]

use prelude_server::{
    ApiError, ApiKeys, App, Bytes, OwnCall, OwnEndpoint, Server, ServerConfig,
    assets::Assets,
    demo,
    executor::Devices,
    load::{LoadOptions, load},
};
use serde::Deserialize;
use serde_json::{Value, json};

/// The lowest probability with which the model's answer stands without a person's look at it.
const SURE: f64 = 0.5;

struct Triage;

/// A body of the endpoint's dialect.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    message: String,
    desks: Vec<String>,
}

impl OwnEndpoint for Triage {
    const PATH: &'static str = "/triage";
    const SUMMARY: &'static str = "Names the desk that a message goes to";

    async fn answer(call: OwnCall, body: Bytes) -> Result<Value, ApiError> {
        let read: Result<Message, _> = serde_json::from_slice(&body);
        let read = read.map_err(|error| ApiError::invalid_json(error.to_string()))?;
        let asked = json!({
            "input": read.message,
            "labels": read.desks,
            "template": "{{ text }}\nWhich topic?",
        });
        let found = call.ask("/classify", &asked).await?;
        let class = &found["data"][0];
        let probabilities = class["probs"].as_array().into_iter().flatten();
        let sure = probabilities.filter_map(Value::as_f64).fold(0.0, f64::max);
        let desk = match sure < SURE {
            true => json!("a person"),
            false => class["label"].clone(),
        };
        Ok(json!({ "desk": desk, "probability": sure }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: Option<u16> = std::env::args().nth(1).map(|p| p.parse()).transpose()?;
    let mut config = ServerConfig::default();
    config.port = port.unwrap_or(config.port);
    let app = App::new(config, ApiKeys::default());
    app.add_endpoint::<Triage>();
    let assets = Assets::embedded(&demo::LM)?;
    let loaded = load(assets, &LoadOptions::default(), &Devices::of_machine())?;
    let _engine = loaded.engine;
    app.set_models(vec![loaded.model]);
    if port.is_some() {
        let server = Server::bind(&app).await?;
        println!("listening on http://{}", server.local_addr()?);
        server.run().await;
        return Ok(());
    }
    let message = json!({ "message": "Where is my card?", "desks": ["card", "exchange"] });
    let answered = app.answer("POST", "/triage", message.to_string()).await;
    let answer: Value = serde_json::from_slice(&answered.body)?;
    println!("{answer}");
    assert_eq!(answer["desk"], "card");
    Ok(())
}
