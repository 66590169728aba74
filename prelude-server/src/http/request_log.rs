//! The line of a request in the log, its count in the metrics, and its trace.

use std::{sync::Arc, time::Instant};

use hyper::{Request, Version};

use super::socket::Connection;
use crate::{
    app::App,
    endpoint::{Call, Endpoint, Needs},
    log,
    traces::{Ended, Trace},
};

/// The status in the log and the metrics of a request whose client left. It is never sent.
const CLIENT_LEFT: u16 = 499;

/// The path in the log and the metrics of a request for which there is no endpoint.
const NO_ROUTE: &str = "other";

/// Counts a request as in flight from its head to the last byte of its answer, and then writes its
/// line. If it is dropped before the answer is whole, the line says that the client left.
#[derive(Debug)]
pub(super) struct RequestLog {
    app: Arc<App>,
    connection: Arc<Connection>,
    version: Version,
    request_id: String,
    arrival: Instant,
    /// The endpoint, once it is found.
    endpoint: Option<&'static Endpoint>,
    trace: Trace,
    /// The call, once it is admitted.
    call: Option<Arc<Call>>,
    /// The status of the answer, once there is one.
    status: Option<u16>,
    is_whole: bool,
    /// True as long as the request counts as in flight.
    is_counted: bool,
}

impl RequestLog {
    pub(super) fn new<B>(
        app: &Arc<App>,
        connection: &Arc<Connection>,
        request: &Request<B>,
        request_id: String,
    ) -> Self {
        connection.begin();
        app.in_flight.begin(connection.number);
        Self {
            app: Arc::clone(app),
            connection: Arc::clone(connection),
            version: request.version(),
            request_id,
            arrival: Instant::now(),
            endpoint: None,
            trace: app.traces.begin(request),
            call: None,
            status: None,
            is_whole: false,
            is_counted: true,
        }
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    pub(super) fn request_id(&self) -> &str {
        let named = self.call.as_ref().and_then(|call| call.named.get());
        named.map_or(&self.request_id, |named| named)
    }

    pub(super) fn arrival(&self) -> Instant {
        self.arrival
    }

    pub(super) fn call(&self) -> Option<&Arc<Call>> {
        self.call.as_ref()
    }

    /// Notes the request's endpoint.
    pub(super) fn routed(&mut self, endpoint: &'static Endpoint) {
        self.endpoint = Some(endpoint);
    }

    /// Counts the request as in flight no longer, since it only watches others: with it they would
    /// never be alone, and the process would wait for its end.
    pub(super) fn stand_aside(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.app.in_flight.end();
        }
    }

    /// Notes the request's call.
    pub(super) fn admitted(&mut self, call: &Arc<Call>) {
        self.call = Some(Arc::clone(call));
    }

    /// Notes the status of the answer.
    pub(super) fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// Notes that hyper has the last byte of the answer.
    pub(super) fn whole(&mut self) {
        self.is_whole = true;
    }

    /// Makes the request's spans, unless it asks for nothing but the state of the process, as probes
    /// do every few seconds.
    fn end_trace(&self, route: Option<&'static str>, status: u16) {
        let is_probe = self.endpoint.is_some_and(|e| e.needs == Needs::Nothing);
        if is_probe || !self.trace.is_on() {
            return;
        }
        let seen = self.call.as_ref().map(|call| call.inference());
        let seen = seen.unwrap_or_default();
        let model = seen.model.and_then(|place| self.app.models().get(place));
        let ended = Ended {
            arrival: self.arrival,
            route,
            status,
            id: self.request_id(),
            model: model.map(|model| &*model.name),
            class: seen.class,
            prompt_tokens: seen.prompt_tokens,
            submitted: seen.submitted,
            usage: seen.usage,
        };
        self.app.traces.end(&self.trace, &ended);
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        self.stand_aside();
        self.connection.end();
        let status = match self.status {
            Some(status) if self.is_whole => status,
            _ => CLIENT_LEFT,
        };
        let route = self.endpoint.map(Endpoint::route);
        self.app.metrics.request(route.unwrap_or(NO_ROUTE), status);
        self.end_trace(route, status);
        if !self.app.config.access_log {
            return;
        }
        let total_ms = self.arrival.elapsed().as_secs_f64() * 1e3;
        let (id, route) = (self.request_id(), route.unwrap_or(NO_ROUTE));
        let seen = self.call.as_ref().map(|call| call.inference());
        match seen.and_then(|seen| Some((seen.class?, seen))) {
            None => log::line(format_args!(
                "request id={id} route={route} status={status} total_ms={total_ms:.3}"
            )),
            Some((class, seen)) => {
                let usage = seen.usage.unwrap_or_default();
                let model = seen.model.and_then(|place| self.app.models().get(place));
                log::line(format_args!(
                    "request id={id} route={route} model={} status={status} class={} \
                     prompt_tokens={} \
                     cached_tokens={} computed_tokens={} output_tokens={} queue_ms={:.3} \
                     exec_ms={:.3} total_ms={total_ms:.3}",
                    model.map_or("", |model| &*model.name),
                    class.as_str(),
                    seen.prompt_tokens,
                    usage.cached_tokens,
                    usage.computed_tokens,
                    usage.output_tokens,
                    usage.queue_time.as_secs_f64() * 1e3,
                    usage.exec_time.as_secs_f64() * 1e3,
                ));
            }
        }
    }
}
