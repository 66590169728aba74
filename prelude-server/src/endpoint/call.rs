//! A call of an endpoint, and its answer.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use prelude_core::ExecutionClass;
use prelude_engine::Usage;
use serde::Serialize;

use super::{Endpoint, Needs};
use crate::{
    admission::{Cost, Growth, Reservation},
    app::App,
    config::JSON_DEPTH_MAX,
    error::ApiError,
    identity::Client,
    log,
    sse::EventStream,
    wire::{self, Request},
};

/// The ways in which a request without a connection may differ from others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asking {
    /// True if unknown fields are refused, as the header `x-prelude-strict: 1` asks a server to.
    pub strict: bool,
    /// Longest step that the asking thread may compute itself, if the engine is idle: then no other
    /// thread has to wake up. By default, it computes none. For a thread that has nothing else to do
    /// until the answer is there.
    pub inline: Option<Duration>,
}

/// A request on its way: its id, its reservation, and the facts that may be written to the log.
#[derive(Debug)]
pub(crate) struct Call {
    /// The state that all requests share.
    pub(crate) app: Arc<App>,
    /// The endpoint asked.
    pub(crate) endpoint: &'static Endpoint,
    /// The text that a route's `*` matched, for `/v1/models/{id}`.
    pub(crate) tail: Option<String>,
    /// The client's id, or ours.
    pub(crate) request_id: String,
    /// `request_id` of the body, which names the request unless a header does.
    pub(crate) named: OnceLock<String>,
    /// The rights of the client.
    pub(crate) client: Client,
    /// `x-prelude-strict: 1`: unknown fields are refused.
    pub(crate) strict: bool,
    /// Longest step that the thread of a call without a connection may compute itself.
    pub(crate) inline: Option<Duration>,
    /// `x-slo-ttft-ms`.
    pub(crate) slo: Option<Duration>,
    /// The time at which the headers had arrived: deadlines count from here.
    pub(crate) arrival: Instant,
    /// Room in the queue.
    pub(crate) reservation: Reservation,
    /// The facts that response headers, access log and metrics tell, filled in as they become
    /// known.
    pub(crate) seen: Mutex<Inference>,
}

/// The facts of an inference request that are known by now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inference {
    /// The place of the model among those served, once the request was built.
    pub(crate) model: Option<usize>,
    /// The class, once the request was built.
    pub(crate) class: Option<ExecutionClass>,
    /// Prompt tokens, each prompt once.
    pub(crate) prompt_tokens: u64,
    /// Prompts of the request without tokens that were cut off.
    pub(crate) truncated: u64,
    /// The time at which the engine got the request, if there are traces.
    pub(crate) submitted: Option<Instant>,
    /// The engine's counts, once it has finished.
    pub(crate) usage: Option<Usage>,
}

impl Call {
    /// Returns a call that did not come over a connection: one-shot commands, programs that hold the
    /// server in their process, and tests.
    ///
    /// # Errors
    /// 429 if the queue is full, 500 `weights_damaged`.
    pub(crate) fn new(
        app: &Arc<App>,
        endpoint: &'static Endpoint,
        tail: Option<&str>,
        request_id: String,
        asking: Asking,
    ) -> Result<Self, ApiError> {
        if endpoint.needs == Needs::Queue
            && let Some(error) = app.damaged()
        {
            return Err(error);
        }
        let reservation = enter(app, endpoint, 0)?;
        Ok(Self {
            endpoint,
            tail: tail.map(str::to_owned),
            request_id,
            named: OnceLock::new(),
            client: Client::own(),
            strict: asking.strict,
            inline: asking.inline,
            slo: None,
            arrival: Instant::now(),
            reservation,
            seen: Mutex::default(),
            app: Arc::clone(app),
        })
    }

    /// Checks UTF-8, nesting and the number of values, takes room for the values, and splits the body
    /// into fields; beside other requests if it is long.
    ///
    /// # Errors
    /// 400, 429 `queue_full`.
    pub(crate) async fn fields<'a>(&self, body: &'a [u8]) -> Result<wire::Fields<'a>, ApiError> {
        let work = || self.split(body);
        self.app.encoder.run(body.len(), work).await?
    }

    fn split<'a>(&self, body: &'a [u8]) -> Result<wire::Fields<'a>, ApiError> {
        let text = wire::check_text(body, JSON_DEPTH_MAX, &|values| {
            self.reservation.grow(Growth::Values(values))
        })?;
        wire::Fields::from_body(text)
    }

    /// Reads a body as a request, beside other requests if it is long. Unknown fields are counted, or
    /// refused if the client wants that.
    ///
    /// # Errors
    /// 400 naming the field, 429 `queue_full`.
    pub(crate) async fn read<'a, R: Request<'a>>(&self, body: &'a [u8]) -> Result<R, ApiError> {
        let work = || self.take(self.split(body)?);
        self.app.encoder.run(body.len(), work).await?
    }

    /// Reads fields as a request, as [`Call::read`].
    ///
    /// # Errors
    /// 400 naming the field, 429 `queue_full`.
    pub(crate) async fn read_fields<'a, R: Request<'a>>(
        &self,
        fields: wire::Fields<'a>,
    ) -> Result<R, ApiError> {
        let bytes = fields.bytes();
        self.app.encoder.run(bytes, || self.take(fields)).await?
    }

    fn take<'a, R: Request<'a>>(&self, mut fields: wire::Fields<'a>) -> Result<R, ApiError> {
        let request = R::read(&mut fields);
        // A field of another server tells more than what is missing because of it.
        fields.settle(R::TABLES)?;
        let request = request?;
        self.finish(&fields)?;
        Ok(request)
    }

    /// Counts the unknown fields, or refuses them if the client wants that. To be called
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
            // Ignoring the field would let through what the caller wants kept out.
            if name == "escape_special_tokens" && raw.trim() == "true" {
                return Err(ApiError::special_tokens_not_kept_apart());
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

    /// Writes the answer for which room was taken, and `more` bytes; on a thread of its own if that
    /// takes long: the thread that runs connections has others to serve.
    pub(crate) async fn write<T>(&self, more: u64, work: impl FnOnce() -> T) -> T {
        let bytes = self.reservation.answer_bytes().saturating_add(more);
        self.app.encoder.write(bytes, work).await
    }

    /// Counts a missed deadline, and returns its error.
    pub(crate) fn late(&self) -> ApiError {
        self.app.metrics.deadline_missed();
        ApiError::deadline_expired()
    }

    /// Writes the cause of a failed step to the log, and returns the error.
    pub(crate) fn failed(&self, cause: &str) -> ApiError {
        log::line(format_args!("error id={} {cause}", self.request_id));
        ApiError::step_failed(&self.request_id)
    }

    /// Counts a prompt if tokens of its texts were cut off, which the answer's header tells.
    pub(crate) fn note_cut(&self, is_cut: bool) {
        if is_cut {
            self.note(|seen| seen.truncated += 1);
        }
    }

    /// Adds facts of the request.
    pub(crate) fn note(&self, note: impl FnOnce(&mut Inference)) {
        note(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the facts of the request.
    pub(crate) fn inference(&self) -> Inference {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes room for a request that announces so many bytes, before any of them is read.
///
/// # Errors
/// 400 `larger_than_queue`, 429 `queue_full` or `class_quota`.
pub(crate) fn enter(
    app: &App,
    endpoint: &Endpoint,
    declared: u64,
) -> Result<Reservation, ApiError> {
    let is_queued = endpoint.needs == Needs::Queue;
    let reservation = app.admission.enter(declared, is_queued)?;
    // The class of a request that may generate is known only once the request was read.
    if is_queued && !endpoint.generates {
        reservation.admit(Cost {
            class: Some(ExecutionClass::OneShot),
            ..Cost::default()
        })?;
    }
    Ok(reservation)
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
    /// A page for browsers, or a part of one.
    Page {
        /// `Content-Type`.
        content_type: &'static str,
        /// The file.
        body: Bytes,
    },
    /// The status alone, without a body.
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
