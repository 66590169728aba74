//! The line of a request in the log, and its count in the metrics.

use std::{sync::Arc, time::Instant};

use hyper::Version;

use super::socket::Connection;
use crate::{app::App, endpoint::Call, log};

/// The status in the log and the metrics of a request whose client left. It is never sent.
const CLIENT_LEFT: u16 = 499;

/// Counts a request as in flight from its head to the last byte of its answer, and then writes its
/// line. If it is dropped before the answer is whole, the line says that the client left.
#[derive(Debug)]
pub(super) struct RequestLog {
    app: Arc<App>,
    connection: Arc<Connection>,
    version: Version,
    request_id: String,
    arrival: Instant,
    /// The path of the endpoint, once it is found.
    route: &'static str,
    /// The call, once it is admitted.
    call: Option<Arc<Call>>,
    /// The status of the answer, once there is one.
    status: Option<u16>,
    is_whole: bool,
    /// True as long as the request counts as in flight.
    is_counted: bool,
}

impl RequestLog {
    pub(super) fn new(
        app: &Arc<App>,
        connection: &Arc<Connection>,
        version: Version,
        request_id: String,
    ) -> Self {
        connection.begin();
        app.in_flight.begin(connection.number);
        Self {
            app: Arc::clone(app),
            connection: Arc::clone(connection),
            version,
            request_id,
            arrival: Instant::now(),
            route: "other",
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

    /// Notes the path of the request's endpoint.
    pub(super) fn routed(&mut self, route: &'static str) {
        self.route = route;
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
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        self.stand_aside();
        self.connection.end();
        let status = match self.status {
            Some(status) if self.is_whole => status,
            _ => CLIENT_LEFT,
        };
        self.app.metrics.request(self.route, status);
        if !self.app.config.access_log {
            return;
        }
        let total_ms = self.arrival.elapsed().as_secs_f64() * 1e3;
        let (id, route) = (self.request_id(), self.route);
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
