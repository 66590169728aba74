//! What the server answers: one file per family of endpoints, wire types and handler together.
//!
//! A handler is `async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError>`. It
//! knows no HTTP: the transport makes a [`Reply`] a response, one-shot commands print its body.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use prelude_core::ExecutionClass;
use prelude_engine::Usage;
use serde::Serialize;

use crate::{
    admission::Reservation,
    app::App,
    error::ApiError,
    identity, openapi,
    routes::{Endpoint, Needs},
    sse::EventStream,
    wire::{self, Request},
};

mod call_schema;
pub(crate) mod chat;
pub(crate) mod classify;
pub(crate) mod completions;
pub(crate) mod conversation;
pub(crate) mod decide;
pub(crate) mod decisions;
pub(crate) mod embeddings;
pub(crate) mod escaping;
pub(crate) mod generate;
pub(crate) mod health;
pub(crate) mod input;
pub(crate) mod messages;
pub(crate) mod meter;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod pairs;
pub(crate) mod pooling;
pub(crate) mod read;
pub(crate) mod rerank;
pub(crate) mod score;
pub(crate) mod submit;
pub(crate) mod systemone;
pub(crate) mod tokenize;
pub(crate) mod tools;
pub(crate) mod truncate;

/// One request on its way: who it is, what it reserved, and what may be written to the log.
#[derive(Debug)]
pub(crate) struct Call {
    /// What all requests share.
    pub(crate) app: Arc<App>,
    /// The endpoint asked.
    pub(crate) endpoint: Endpoint,
    /// What a route's `*` matched, for `/v1/models/{id}`.
    pub(crate) tail: Option<String>,
    /// The client's id, or ours.
    pub(crate) request_id: String,
    /// `request_id` of the body, which names the request unless a header does.
    pub(crate) named: OnceLock<String>,
    /// `x-prelude-strict: 1`: unknown fields are refused.
    pub(crate) strict: bool,
    /// `x-slo-ttft-ms`.
    pub(crate) slo: Option<Duration>,
    /// When the headers had arrived: deadlines count from here.
    pub(crate) arrival: Instant,
    /// Room in the queue.
    pub(crate) reservation: Reservation,
    /// What response headers, access log and metrics say about the request, filled as it becomes
    /// known.
    pub(crate) seen: Mutex<Inference>,
}

/// What is known of an inference request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inference {
    /// The class, once the request was built.
    pub(crate) class: Option<ExecutionClass>,
    /// Prompt tokens, each prompt once.
    pub(crate) prompt_tokens: u64,
    /// What the engine counted, once it finished.
    pub(crate) usage: Option<Usage>,
}

impl Call {
    /// A call that did not come over a connection: one-shot commands and tests.
    ///
    /// # Errors
    /// 429 if the queue is full.
    pub(crate) fn in_process(
        app: &Arc<App>,
        endpoint: Endpoint,
        tail: Option<&str>,
        request_id: String,
    ) -> Result<Arc<Self>, ApiError> {
        let reservation = enter(app, endpoint, 0)?;
        Ok(Arc::new(Self {
            endpoint,
            tail: tail.map(str::to_owned),
            request_id,
            named: OnceLock::new(),
            strict: false,
            slo: None,
            arrival: Instant::now(),
            reservation,
            seen: Mutex::default(),
            app: Arc::clone(app),
        }))
    }

    /// Checks UTF-8 and nesting and splits the body into fields.
    ///
    /// # Errors
    /// 400.
    pub(crate) fn fields<'a>(&self, body: &'a [u8]) -> Result<wire::Fields<'a>, ApiError> {
        let text = wire::check_text(body, self.app.config.limits.json_depth)?;
        wire::Fields::from_body(text)
    }

    /// Reads a body as a request. Unknown fields are counted, or refused if the client wants that.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn read<'a, R: Request<'a>>(&self, body: &'a [u8]) -> Result<R, ApiError> {
        self.read_fields(self.fields(body)?)
    }

    /// Reads fields as a request, as [`Call::read`].
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn read_fields<'a, R: Request<'a>>(
        &self,
        mut fields: wire::Fields<'a>,
    ) -> Result<R, ApiError> {
        let request = R::read(&mut fields)?;
        self.finish(&fields)?;
        Ok(request)
    }

    /// Counts the fields nobody asked for, or refuses them if the client wants that. To be called
    /// when all known fields have been taken.
    ///
    /// # Errors
    /// 400 `unknown_field`.
    pub(crate) fn finish(&self, fields: &wire::Fields<'_>) -> Result<(), ApiError> {
        if self.strict
            && let Some(path) = &fields.unknown.first
        {
            return Err(ApiError::unknown_field(path.clone()));
        }
        let mut unknown = fields.unknown.count;
        for (name, raw) in fields.rest() {
            // To go on would let through what the caller wants kept out.
            if name == "escape_special_tokens" && raw.trim() == "true" {
                return Err(escaping::not_kept_apart());
            }
            if self.strict {
                return Err(ApiError::unknown_field(name.to_owned()));
            }
            unknown += 1;
        }
        if unknown > 0 {
            let route = self.endpoint.route();
            self.app.metrics.unknown_fields(route, unknown);
        }
        Ok(())
    }

    /// Takes the body's `request_id`, if it is fit to be echoed.
    pub(crate) fn name(&self, id: &str) {
        if identity::is_request_id(id) {
            // The field is read once, so nobody has named the request before.
            let _ = self.named.set(id.to_owned());
        }
    }

    /// Runs `work`, which turns about `bytes` of text into ids, and tells the metrics how long
    /// that took: whatever has been tokenised is counted, refused or not.
    ///
    /// # Errors
    /// 429 `queue_full` if too many texts wait to be encoded; `work` has not run then.
    pub(crate) async fn encode<T>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T,
    ) -> Result<T, ApiError> {
        let start = Instant::now();
        let encoded = self.app.encoder.run(bytes, work).await?;
        if bytes > 0 {
            self.app.metrics.encoded(start.elapsed().as_secs_f64());
        }
        Ok(encoded)
    }

    /// Takes room for an answer of so many decimal `numbers`, before they are computed. To be called
    /// once it is known how many they are.
    ///
    /// # Errors
    /// 400 `too_many_numbers` or `larger_than_queue`, 429 `queue_full`.
    pub(crate) fn expect_numbers(&self, numbers: u64) -> Result<(), ApiError> {
        self.expect(numbers, Printed::Decimal)
    }

    /// Takes room for an answer of `count` such numbers: the one place that bounds them, for all
    /// endpoints.
    ///
    /// # Errors
    /// As [`Call::expect_numbers`].
    pub(crate) fn expect(&self, count: u64, printed: Printed) -> Result<(), ApiError> {
        let (numbers, bytes) = match printed {
            Printed::Decimal => (count, NUMBER_BYTES),
            Printed::Base64 => (count.div_ceil(3), BASE64_BYTES),
            Printed::Logprob => (count.saturating_mul(2), LOGPROB_BYTES),
        };
        let max = self.app.config.limits.answer_numbers;
        if numbers > max {
            return Err(ApiError::too_many_numbers(numbers, max));
        }
        self.reservation.grow_answer(count.saturating_mul(bytes))
    }

    /// Writes an answer of about `bytes`, on a thread of its own if that takes long: the one that
    /// runs connections has others to serve.
    pub(crate) async fn write<T>(&self, bytes: u64, work: impl FnOnce() -> T) -> T {
        self.app.encoder.write(bytes, work).await
    }

    /// Notes what is known of the request by now.
    pub(crate) fn note(&self, note: impl FnOnce(&mut Inference)) {
        note(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What is known of the request by now.
    pub(crate) fn inference(&self) -> Inference {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes room for a request that announces so many bytes, before any of them is read.
///
/// # Errors
/// 400 `larger_than_queue`, 429 `queue_full` or `class_quota`.
pub(crate) fn enter(app: &App, endpoint: Endpoint, declared: u64) -> Result<Reservation, ApiError> {
    match endpoint.needs() {
        Needs::Queue => {
            let reservation = app.admission.enter(declared)?;
            // What may generate has to be read first.
            if !endpoint.generates() {
                reservation.set_class(ExecutionClass::OneShot)?;
            }
            Ok(reservation)
        }
        Needs::Nothing | Needs::Models => app.admission.enter_aside(declared),
    }
}

/// Most bytes of a number: `-1.1754944e-38,`.
const NUMBER_BYTES: u64 = 15;
/// Bytes of a number in base64.
const BASE64_BYTES: u64 = 6;
/// About how many bytes a log-probability has: token, log-probability, rank, offset.
pub(crate) const LOGPROB_BYTES: u64 = 128;

/// How an answer prints a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Printed {
    /// As a decimal number.
    Decimal,
    /// As four bytes in base64, which count as a third of a number.
    Base64,
    /// With its token and its rank, as two numbers.
    Logprob,
}

/// A successful answer. Failures are [`ApiError`]s.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A JSON document.
    Json(Bytes),
    /// Text of another type.
    Text {
        /// `Content-Type`.
        content_type: &'static str,
        /// The text.
        body: Bytes,
    },
    /// Nothing to say.
    Empty,
    /// Server-sent events.
    Stream(EventStream),
}

impl Reply {
    /// Writes `value` as the JSON document.
    pub(crate) fn json(value: &impl Serialize) -> Self {
        // Enough for most answers without growing.
        let mut body = Vec::with_capacity(512);
        serde_json::to_writer(&mut body, value).expect("wire types have string keys");
        Self::Json(body.into())
    }
}

/// A call being answered, in a box of its endpoint's size: a future as large as the largest
/// endpoint's would be moved and kept for the smallest too.
pub(crate) type Answering<'a> = Pin<Box<dyn Future<Output = Result<Reply, ApiError>> + Send + 'a>>;

/// Answers a call: the one place where an endpoint meets its handler. It comes to whatever the
/// handler refuses or fails with.
pub(crate) fn dispatch(call: &Arc<Call>, body: Bytes) -> Answering<'_> {
    match call.endpoint {
        Endpoint::Completions => Box::pin(completions::handle(call, body)),
        Endpoint::Chat => Box::pin(chat::handle(call, body)),
        Endpoint::Embeddings => Box::pin(embeddings::handle(call, body)),
        Endpoint::Classify => Box::pin(classify::handle(call, body)),
        Endpoint::Score => Box::pin(score::handle(call, body)),
        Endpoint::GenerativeScoring => Box::pin(score::generative(call, body)),
        Endpoint::Rerank | Endpoint::RerankV2 => Box::pin(rerank::handle(call, body)),
        Endpoint::Pooling => Box::pin(pooling::handle(call, body)),
        Endpoint::SystemOne => Box::pin(systemone::handle(call, body)),
        Endpoint::Decisions => Box::pin(decisions::handle(call, body)),
        Endpoint::Tokenize => Box::pin(tokenize::tokenize(call, body)),
        Endpoint::Detokenize => Box::pin(tokenize::detokenize(call, body)),
        Endpoint::TokenizerInfo => Box::pin(async { tokenize::info(call) }),
        Endpoint::Models => Box::pin(async { models::list(call) }),
        Endpoint::Model => Box::pin(async { models::one(call) }),
        Endpoint::Health => Box::pin(async { health::health(call) }),
        Endpoint::Ready => Box::pin(async { health::ready(call) }),
        Endpoint::Live => Box::pin(async { health::live(call) }),
        Endpoint::Version => Box::pin(async { Ok(health::version()) }),
        Endpoint::Metrics => Box::pin(async { Ok(metrics::metrics(call)) }),
        Endpoint::OpenApi => Box::pin(async { Ok(Reply::json(&openapi::document())) }),
    }
}

/// Seconds since 1970, for `created`.
pub(crate) fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    // A clock before 1970 is wrong by more than we can mend.
    since.map_or(0, |d| d.as_secs())
}
