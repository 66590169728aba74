//! Traces of a server that has a collector.

use std::time::{Duration, Instant, SystemTime};

use hyper::{Method, Request};
use opentelemetry::{
    Context, KeyValue,
    propagation::TextMapPropagator as _,
    trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};

use super::{Counts, Ended, queue::Queue};

/// The longest time that the process waits at its end for the collector to take the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The beginning of the name that OpenTelemetry gives a service whose environment names none.
const UNNAMED: &str = "unknown_service";

/// The traces of a server. None are made by default.
#[derive(Debug, Default)]
pub struct Traces(Option<Collected>);

#[derive(Debug)]
struct Collected {
    tracer: SdkTracer,
    queue: Queue,
}

/// The trace that a request belongs to, if there are traces.
#[derive(Debug)]
pub(crate) struct Trace(Option<Box<Head>>);

#[derive(Debug)]
struct Head {
    method: Method,
    /// The caller's span, if the request names one.
    parent: Context,
}

impl Trace {
    /// Returns whether spans are made of the request.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }
}

impl Traces {
    /// Starts to send spans to the collector that the standard variables of the environment name
    /// (`OTEL_EXPORTER_OTLP_ENDPOINT` and others), as OTLP over HTTP. To be called on the runtime
    /// of the server.
    ///
    /// # Errors
    /// If a variable has a value that the exporter cannot use.
    pub fn start() -> Result<Self, ExporterBuildError> {
        let mut resource = Resource::builder().build();
        let service = opentelemetry::Key::from_static_str("service.name");
        let name = resource.get(&service);
        if name.is_none_or(|name| name.as_str().starts_with(UNNAMED)) {
            resource = Resource::builder().with_service_name("prelude").build();
        }
        let mut exporter = SpanExporter::builder().with_http().build()?;
        opentelemetry_sdk::trace::SpanExporter::set_resource(&mut exporter, &resource);
        let queue = Queue::start(exporter);
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_span_processor(queue.clone())
            .build();
        let scope = opentelemetry::InstrumentationScope::builder("prelude")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let tracer = provider.tracer_with_scope(scope);
        Ok(Self(Some(Collected { tracer, queue })))
    }

    /// Returns the trace that a request belongs to, as its header `traceparent` says.
    pub(crate) fn begin<B>(&self, request: &Request<B>) -> Trace {
        Trace(self.0.as_ref().map(|_| {
            let headers = HeaderExtractor(request.headers());
            let parent =
                TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
            Box::new(Head {
                method: request.method().clone(),
                parent,
            })
        }))
    }

    /// Returns the time, if there are traces that it is noted for.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.0.as_ref().map(|_| Instant::now())
    }

    /// Makes the spans of a request that has ended, unless its trace is not recorded.
    pub(crate) fn end(&self, trace: &Trace, ended: &Ended<'_>) {
        let (Some(collected), Some(head)) = (&self.0, &trace.0) else {
            return;
        };
        let times = Times::until_now(ended);
        let mut span = collected
            .tracer
            .span_builder(name(head, ended))
            .with_kind(SpanKind::Server)
            .with_start_time(times.start)
            .with_attributes(attributes(head, ended))
            .start_with_context(&collected.tracer, &head.parent);
        if !span.is_recording() {
            return;
        }
        if ended.status >= 500 {
            span.set_status(Status::error(""));
        }
        let inside = Context::new().with_remote_span_context(span.span_context().clone());
        for (name, start, end) in times.parts() {
            let mut part = collected
                .tracer
                .span_builder(name)
                .with_start_time(start)
                .start_with_context(&collected.tracer, &inside);
            part.end_with_timestamp(end);
        }
        span.end_with_timestamp(times.end);
    }

    /// Returns the number of spans by what became of them, if there are traces.
    pub(crate) fn counts(&self) -> Option<Counts> {
        self.0.as_ref().map(|collected| collected.queue.counts())
    }

    /// Waits until the collector has the spans of all requests that have ended, for a few seconds
    /// at most.
    pub async fn flush(&self) {
        if let Some(collected) = &self.0 {
            // Spans that the collector has not taken by then are lost.
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, collected.queue.flush()).await;
        }
    }
}

/// Returns the name of a request's span: the method and the path of the endpoint, never one that a
/// client chose.
fn name(head: &Head, ended: &Ended<'_>) -> String {
    match ended.route {
        Some(route) => format!("{} {route}", head.method),
        None => head.method.to_string(),
    }
}

/// Returns the attributes of a request's span, by OpenTelemetry's names where it has one.
fn attributes(head: &Head, ended: &Ended<'_>) -> Vec<KeyValue> {
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let mut all = vec![
        KeyValue::new("http.request.method", head.method.to_string()),
        KeyValue::new("http.response.status_code", i64::from(ended.status)),
        KeyValue::new("prelude.request_id", ended.id.to_owned()),
    ];
    if ended.status >= 500 {
        all.push(KeyValue::new("error.type", ended.status.to_string()));
    }
    if let Some(route) = ended.route {
        all.push(KeyValue::new("http.route", route));
    }
    if let Some(model) = ended.model {
        all.push(KeyValue::new("gen_ai.request.model", model.to_owned()));
    }
    let Some(class) = ended.class else {
        return all;
    };
    all.push(KeyValue::new("prelude.class", class.as_str()));
    let prompt = count(ended.prompt_tokens);
    all.push(KeyValue::new("gen_ai.usage.input_tokens", prompt));
    if let Some(usage) = ended.usage {
        for (name, tokens) in [
            ("gen_ai.usage.output_tokens", usage.output_tokens),
            ("prelude.cached_tokens", usage.cached_tokens),
            ("prelude.computed_tokens", usage.computed_tokens),
        ] {
            all.push(KeyValue::new(name, count(tokens)));
        }
    }
    all
}

/// The times at which the parts of a request begin, by the clock of the wall.
struct Times {
    start: SystemTime,
    /// The time at which the engine got the request, if it did.
    submitted: Option<SystemTime>,
    /// The times of the first step's begin and of the last result, if the request was finished.
    steps: Option<(SystemTime, SystemTime)>,
    end: SystemTime,
}

impl Times {
    /// Returns the times of a request that ends now.
    fn until_now(ended: &Ended<'_>) -> Self {
        let end = SystemTime::now();
        let took = ended.arrival.elapsed();
        let start = end - took;
        // No part reaches beyond its request, whatever different clocks say.
        let after = |time: Duration| start + time.min(took);
        let submitted = ended.submitted;
        let submitted = submitted.map(|at| at.saturating_duration_since(ended.arrival));
        let steps = submitted.zip(ended.usage).map(|(at, usage)| {
            let first = at + usage.queue_time;
            (after(first), after(first + usage.exec_time))
        });
        Self {
            start,
            submitted: submitted.map(after),
            steps,
            end,
        }
    }

    /// Returns the name, the start and the end of each part.
    fn parts(&self) -> impl Iterator<Item = (&'static str, SystemTime, SystemTime)> {
        let prepare = self.submitted.map(|at| ("prepare", self.start, at));
        let rest = self.submitted.zip(self.steps).map(|(at, (first, last))| {
            [
                ("queue", at, first),
                ("steps", first, last),
                ("answer", last, self.end),
            ]
        });
        prepare.into_iter().chain(rest.into_iter().flatten())
    }
}
