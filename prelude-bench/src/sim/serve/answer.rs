//! Answers: their JSON, the events of a stream, and the page of metrics.

use std::{
    convert::Infallible,
    fmt::Write as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    clock::{ClockedEngine, Progress},
    question::Form,
};
use crate::sim::Record;

/// The text of each generated token.
const TEXT: &str = " a";

fn usage(record: &Record) -> Value {
    json!({
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.output_tokens,
        "total_tokens": record.prompt_tokens + record.output_tokens,
        "prompt_tokens_details": {"cached_tokens": record.cached_tokens}
    })
}

/// Returns the whole answer to a request.
pub(super) fn whole(form: Form, model: &str, record: &Record) -> Value {
    let text = TEXT.repeat(record.output_tokens as usize);
    let usage = usage(record);
    match form {
        Form::Completion => json!({
            "id": "cmpl-simulated", "object": "text_completion", "created": 0, "model": model,
            "choices": [{"index": 0, "text": text, "finish_reason": "length", "logprobs": null}],
            "usage": usage
        }),
        Form::Chat => json!({
            "id": "chatcmpl-simulated", "object": "chat.completion", "created": 0, "model": model,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "length"
            }],
            "usage": usage
        }),
        Form::OnePass => json!({"object": "simulated", "model": model, "usage": usage}),
    }
}

/// Returns an event of a stream.
fn event(form: Form, model: &str, text: &str, end: Option<&Record>) -> String {
    let finish = end.map(|_| "length");
    let mut event = match form {
        Form::Chat => json!({
            "id": "chatcmpl-simulated", "object": "chat.completion.chunk", "created": 0,
            "model": model,
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
        }),
        Form::Completion | Form::OnePass => json!({
            "id": "cmpl-simulated", "object": "text_completion", "created": 0, "model": model,
            "choices": [{"index": 0, "text": text, "finish_reason": finish}]
        }),
    };
    if let Some(record) = end {
        event["usage"] = usage(record);
    }
    format!("data: {event}\n\n")
}

/// The body of a streamed answer: an event for each token, and one for the end.
pub(super) struct Events {
    pub(super) form: Form,
    pub(super) engine: Arc<ClockedEngine>,
    /// The progress that came before the stream began.
    pub(super) first: Option<Progress>,
    /// The answer's progress; `None` once the stream has ended.
    pub(super) progress: Option<UnboundedReceiver<Progress>>,
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let events = &mut *self;
        let Some(progress) = &mut events.progress else {
            return Poll::Ready(None);
        };
        let (form, model) = (events.form, events.engine.model());
        let next = match events.first.take() {
            Some(first) => Some(first),
            None => ready!(progress.poll_recv(context)),
        };
        let text = match next {
            Some(Progress::Token) => event(form, model, TEXT, None),
            Some(Progress::Done(record)) => {
                event(form, model, "", Some(&record)) + "data: [DONE]\n\n"
            }
            None => {
                events.progress = None;
                return Poll::Ready(None);
            }
        };
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}

/// Returns the page of an engine's metrics, with the names that routers read.
pub(super) fn metrics(engine: &ClockedEngine) -> String {
    let (stats, open) = engine.stats();
    let waiting = stats.waiting_oneshot_rows + stats.waiting_decode_seqs;
    let blocks = stats.used_blocks + stats.cached_blocks + stats.free_blocks;
    let usage = match blocks {
        0 => 0.0,
        all => stats.used_blocks as f64 / all as f64,
    };
    let running = (open as u64).saturating_sub(waiting);
    let mut page = String::new();
    let lines = [
        ("vllm:num_requests_running", "gauge", running as f64),
        ("vllm:num_requests_waiting", "gauge", waiting as f64),
        ("vllm:kv_cache_usage_perc", "gauge", usage),
        (
            "vllm:prefix_cache_queries_total",
            "counter",
            stats.prefix_query_tokens as f64,
        ),
        (
            "vllm:prefix_cache_hits_total",
            "counter",
            stats.prefix_hit_tokens as f64,
        ),
        (
            "prelude:shared_tokens_total",
            "counter",
            stats.shared_tokens as f64,
        ),
    ];
    for (name, kind, value) in lines {
        let model = engine.model();
        // Writing to a string does not fail.
        let _ = write!(
            page,
            "# TYPE {name} {kind}\n{name}{{model_name=\"{model}\"}} {value}\n"
        );
    }
    page
}
