//! The phase of the process, and the requests in flight.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

/// The phases of the process, in the order in which it passes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The port is bound, models are being loaded.
    Loading,
    /// The server is in service.
    Ready,
    /// Told to stop: health is red so that balancers send no more work, which is still accepted.
    Leaving,
    /// New work is refused, running work may finish.
    Draining,
    /// Running work is ended.
    Ending,
}

impl Phase {
    /// Returns the phase's name in `/v1/status`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Leaving => "leaving",
            Self::Draining => "draining",
            Self::Ending => "ending",
        }
    }
}

/// The phase of the process, which tasks can wait for.
#[derive(Debug)]
pub(crate) struct Lifecycle(watch::Sender<Phase>);

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Phase::Loading))
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Moves on to `phase`; does nothing if the process is past it.
    pub(crate) fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let later = phase > *now;
            if later {
                *now = phase;
            }
            later
        });
    }

    /// Waits until `phase` is reached.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut phases = self.0.subscribe();
        // The sender lives as long as `self`, so the channel is open.
        let _ = phases.wait_for(|now| *now >= phase).await;
    }
}

/// The number of requests after which a client counts as alone.
const LONE_REQUESTS: u32 = 16;

/// The requests between their head and the last byte of their answer.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    count: usize,
    /// The number of connections so far.
    connections: u64,
    /// The connection of the latest request.
    connection: u64,
    /// The number of latest requests that each came over the same connection as the one before,
    /// while no request was in flight.
    in_turn: u32,
}

impl InFlight {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid between statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a new connection.
    pub(crate) fn connect(&self) -> u64 {
        let mut state = self.state();
        state.connections += 1;
        state.connections
    }

    /// Counts a request of a connection.
    pub(crate) fn begin(&self, connection: u64) {
        let mut state = self.state();
        let is_in_turn = state.count == 0 && state.connection == connection;
        state.in_turn = match is_in_turn {
            true => state.in_turn.saturating_add(1),
            false => 0,
        };
        state.connection = connection;
        state.count += 1;
    }

    /// Counts a request as answered.
    pub(crate) fn end(&self) {
        self.state().count -= 1;
    }

    pub(crate) fn count(&self) -> usize {
        self.state().count
    }

    /// Returns whether the latest request is the only one in flight and of a client that is alone.
    ///
    /// A step on a connection's thread delays all requests that arrive meanwhile, and nothing tells
    /// whether one is about to arrive; but a client that sent its last requests over one connection,
    /// each after the answer to the one before, has probably no other beside it. Connections that
    /// are served at the same time never come to such a series, so that their requests share steps.
    pub(crate) fn is_lone_client(&self) -> bool {
        self.state().in_turn >= LONE_REQUESTS
    }

    /// Waits until no request is in flight. Polls, since a process waits for that once in its life.
    pub(crate) async fn none(&self) {
        while self.count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_alone_after_a_series_of_requests_in_turn() {
        let in_flight = InFlight::default();
        let (first, second) = (in_flight.connect(), in_flight.connect());
        // Requests of a connection in turn, until the client counts as alone.
        let until_alone = |connection| {
            (1..100).find(|_| {
                in_flight.begin(connection);
                let is_alone = in_flight.is_lone_client();
                in_flight.end();
                is_alone
            })
        };
        assert_eq!(until_alone(first), Some(17));
        assert_eq!(until_alone(first), Some(1));
        // A request of another connection.
        assert_eq!(until_alone(second), Some(17));
        assert_eq!(until_alone(first), Some(17));
        // A request before the answer to the one before it, on the same connection.
        in_flight.begin(first);
        in_flight.begin(first);
        assert!(!in_flight.is_lone_client());
        in_flight.end();
        in_flight.end();
        assert_eq!(until_alone(first), Some(16));
        // Connections that take turns.
        for _ in 0..100 {
            for connection in [second, first] {
                in_flight.begin(connection);
                assert!(!in_flight.is_lone_client());
                in_flight.end();
            }
        }
    }
}
