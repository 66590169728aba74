//! One request's line in the log and in the counters, written when it ends, however it ends.

use std::{sync::Arc, time::Instant};

use crate::{app::App, endpoint::Call, log};

/// The status of a client that left. Never sent.
const CLIENT_LEFT: u16 = 499;

/// Counts a request from its head to the last byte of its answer. Dropped before the answer is
/// whole, it says that the client left.
#[derive(Debug)]
pub(super) struct Ticket {
    app: Arc<App>,
    request_id: String,
    arrival: Instant,
    /// Known once routed.
    route: &'static str,
    /// Known once admitted.
    call: Option<Arc<Call>>,
    /// Known once there is an answer.
    status: Option<u16>,
    is_whole: bool,
}

impl Ticket {
    pub(super) fn new(app: &Arc<App>, request_id: String) -> Self {
        app.in_flight.add();
        Self {
            app: Arc::clone(app),
            request_id,
            arrival: Instant::now(),
            route: "other",
            call: None,
            status: None,
            is_whole: false,
        }
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

    pub(super) fn routed(&mut self, route: &'static str) {
        self.route = route;
    }

    pub(super) fn admitted(&mut self, call: &Arc<Call>) {
        self.call = Some(Arc::clone(call));
    }

    pub(super) fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// The last byte of the answer has been handed to the connection.
    pub(super) fn whole(&mut self) {
        self.is_whole = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.app.in_flight.remove();
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
                log::line(format_args!(
                    "request id={id} route={route} status={status} class={} prompt_tokens={} \
                     cached_tokens={} computed_tokens={} output_tokens={} queue_ms={:.3} \
                     exec_ms={:.3} total_ms={total_ms:.3}",
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
