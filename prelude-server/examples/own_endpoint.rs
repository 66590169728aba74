//! A server of one's own around Prelude's handlers: `POST /triage` takes a customer's message as
//! plain text and says which desk it goes to; every other path is Prelude's as it is.
//!
//! ```sh
//! cargo run -p prelude-server --example own_endpoint            # asks itself once and ends
//! cargo run -p prelude-server --example own_endpoint -- 8080    # stays
//! ```
#![expect(clippy::print_stdout, reason = "an example")]

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prelude_server::{
    ApiKeys, App, ServerConfig,
    assets::Assets,
    demo,
    executor::Devices,
    load::{LoadOptions, load},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// Longest message.
const MESSAGE_BYTES: usize = 64 << 10;

/// The lowest probability with which the model's answer stands without a person's look at it.
const SURE: f64 = 0.5;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let loaded = load(
        Assets::embedded(&demo::LM)?,
        &LoadOptions::default(),
        &Devices::of_machine(),
    )?;
    let _engine = loaded.engine;
    let app = App::new(ServerConfig::default(), ApiKeys::default());
    app.set_models(vec![loaded.model]);

    let port = std::env::args().nth(1);
    let port: u16 = port.as_deref().map_or(Ok(0), str::parse)?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    let serving = tokio::spawn(serve(listener, app));
    if port != 0 {
        serving.await??;
        return Ok(());
    }
    let mut connection = TcpStream::connect(address).await?;
    let message = "Where is my card? I ordered it two weeks ago.";
    let request = format!(
        "POST /triage HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{message}",
        message.len()
    );
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let body = answer.rsplit("\r\n\r\n").next().unwrap_or_default();
    println!("{body}");
    let found: Value = serde_json::from_str(body)?;
    assert_eq!(found["desk"], "cards");
    Ok(())
}

async fn serve(listener: TcpListener, app: Arc<App>) -> std::io::Result<()> {
    loop {
        let (connection, _) = listener.accept().await?;
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&app), request));
            let mut server = http1::Builder::new();
            // Bounds of one's own: those of `prelude_server::Server` are not in this way.
            server.timer(TokioTimer::new()).max_headers(64);
            let connection = server.serve_connection(TokioIo::new(connection), service);
            // A client that breaks its connection is not our failure.
            let _ = connection.await;
        });
    }
}

async fn answer(
    app: Arc<App>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let limit = match &*path {
        "/triage" => MESSAGE_BYTES,
        _ => 10 << 20,
    };
    let Ok(body) = Limited::new(request.into_body(), limit).collect().await else {
        return Ok(respond(413, json!({"error": "too long"}).to_string()));
    };
    let body = body.to_bytes();
    if path != "/triage" {
        let answered = app.answer(method.as_str(), &path, body).await;
        return Ok(respond(answered.status, answered.body));
    }
    if method != Method::POST {
        return Ok(respond(405, json!({"error": "post a message"}).to_string()));
    }
    let (status, body) = triage(&app, &body).await;
    Ok(respond(status, body.to_string()))
}

/// Asks the model which topic a message has, and names the desk.
async fn triage(app: &Arc<App>, message: &[u8]) -> (u16, Value) {
    let Ok(message) = std::str::from_utf8(message) else {
        return (400, json!({"error": "a message is UTF-8"}));
    };
    let asked = json!({
        "input": message,
        "labels": ["card", "transfer", "exchange", "identity"],
        "template": "{{ text }}\nWhich topic?",
    });
    let answered = app.answer("POST", "/classify", asked.to_string()).await;
    let found: Value = serde_json::from_slice(&answered.body).unwrap_or_default();
    if answered.status != 200 {
        return (answered.status, found);
    }
    let class = &found["data"][0];
    let probabilities = class["probs"].as_array().into_iter().flatten();
    let sure = probabilities.filter_map(Value::as_f64).fold(0.0, f64::max);
    let desk = match class["label"].as_str() {
        _ if sure < SURE => "a person",
        Some("card") => "cards",
        Some("transfer" | "exchange") => "payments",
        _ => "a person",
    };
    (200, json!({"desk": desk, "probability": sure}))
}

fn respond(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
