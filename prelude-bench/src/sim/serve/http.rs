//! The HTTP of a modelled engine.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::{
    answer::{self, Events},
    clock::{ClockedEngine, Progress, Refusal},
    question::{Form, Question},
};
use crate::sim::Record;

/// Connections of an engine; more wait.
const MAX_CONNECTIONS: usize = 4_096;
/// Bytes of a request's body.
const MAX_BODY_BYTES: usize = 10 << 20;
/// Time for the head of a request, and for its body.
const MAX_READ: Duration = Duration::from_secs(30);
/// Pause after the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Answer = Response<Either<Full<Bytes>, Events>>;

/// Answers for an engine for as long as the future is polled.
pub(super) async fn serve(listener: TcpListener, engine: Arc<ClockedEngine>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let permit = Arc::clone(&room).acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => {
                let engine = Arc::clone(&engine);
                tokio::spawn(async move {
                    connection(stream, engine).await;
                    drop(permit);
                });
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn connection(stream: TcpStream, engine: Arc<ClockedEngine>) {
    // Answers are small, and a delayed one would count as the engine's time.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let engine = Arc::clone(&engine);
        async move { Ok::<_, Infallible>(respond(&engine, request).await) }
    });
    // A connection that breaks ends its requests' answers; the engine computes them nevertheless.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_READ)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond(engine: &Arc<ClockedEngine>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    if request.method() == Method::GET || request.method() == Method::HEAD {
        return match &*path {
            "/health" | "/ping" | "/ready" | "/live" => json_answer(StatusCode::OK, &json!({})),
            "/metrics" => text_answer("text/plain; version=0.0.4", answer::metrics(engine)),
            "/v1/models" => {
                let model = json!({"id": engine.model(), "object": "model"});
                json_answer(StatusCode::OK, &json!({"object": "list", "data": [model]}))
            }
            _ => error(StatusCode::NOT_FOUND, &format!("there is no {path}")),
        };
    }
    let Some(form) = Form::of(&path) else {
        return error(StatusCode::NOT_FOUND, &format!("there is no {path}"));
    };
    if request.method() != Method::POST {
        let what = format!("{path} takes POST alone");
        return error(StatusCode::METHOD_NOT_ALLOWED, &what);
    }
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
    let body = match timeout(MAX_READ, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => {
            let what = format!("the body broke off or has more than {MAX_BODY_BYTES} bytes");
            return error(StatusCode::PAYLOAD_TOO_LARGE, &what);
        }
        Err(_) => {
            let what = format!("the body did not come within {MAX_READ:?}");
            return error(StatusCode::REQUEST_TIMEOUT, &what);
        }
    };
    match Question::read(form, &body) {
        Ok(question) => ask(engine, form, question).await,
        Err(wrong) => error(StatusCode::BAD_REQUEST, &format!("{wrong:#}")),
    }
}

/// Sends a request to the engine, and answers when it has ended or, for a stream, at its first
/// token.
async fn ask(engine: &Arc<ClockedEngine>, form: Form, question: Question) -> Answer {
    let streams = question.streams;
    let mut progress = match engine.submit(question) {
        Ok(progress) => progress,
        Err(Refusal::Full) => {
            let what = "the engine holds as many requests as it may; try again later";
            return error(StatusCode::TOO_MANY_REQUESTS, what);
        }
        Err(Refusal::TooLarge) => {
            let what = "prompt and output do not fit into the engine's memory";
            return error(StatusCode::BAD_REQUEST, what);
        }
    };
    if streams {
        let Some(first) = progress.recv().await else {
            return error(StatusCode::INTERNAL_SERVER_ERROR, "the engine has failed");
        };
        let events = Events {
            form,
            engine: Arc::clone(engine),
            first: Some(first),
            progress: Some(progress),
        };
        let mut answer = Response::new(Either::Right(events));
        let kind = HeaderValue::from_static("text/event-stream");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        return answer;
    }
    let record = loop {
        match progress.recv().await {
            Some(Progress::Token) => {}
            Some(Progress::Done(record)) => break record,
            None => return error(StatusCode::INTERNAL_SERVER_ERROR, "the engine has failed"),
        }
    };
    let body = answer::whole(form, engine.model(), &record);
    let mut answer = json_answer(StatusCode::OK, &body);
    for (name, value) in headers(&record) {
        if let Ok(value) = HeaderValue::from_str(&value) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

/// Returns the headers that tell routers how a request went.
fn headers(record: &Record) -> [(&'static str, String); 5] {
    let class = match record.output_tokens {
        0 | 1 => "oneshot",
        _ => "decode",
    };
    let ms = |time: Duration| format!("{:.3}", time.as_secs_f64() * 1e3);
    [
        ("x-prelude-class", class.to_owned()),
        ("x-prelude-prompt-tokens", record.prompt_tokens.to_string()),
        ("x-prelude-cached-tokens", record.cached_tokens.to_string()),
        ("x-prelude-queue-ms", ms(record.queue)),
        (
            "x-prelude-exec-ms",
            ms(record.latency.saturating_sub(record.queue)),
        ),
    ]
}

fn error(status: StatusCode, what: &str) -> Answer {
    json_answer(
        status,
        &json!({"error": {"message": what, "code": status.as_u16()}}),
    )
}

fn json_answer(status: StatusCode, body: &Value) -> Answer {
    let mut answer = text_answer("application/json", body.to_string());
    *answer.status_mut() = status;
    answer
}

fn text_answer(kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(Bytes::from(text))));
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
