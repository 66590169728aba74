//! Where the process is in its life, and how everyone hears of it.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::sync::watch;

/// Phases, in the only order in which they are passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The port is bound, models are being loaded.
    Loading,
    /// In service.
    Ready,
    /// Told to stop: health is red so that balancers look elsewhere, work is still taken.
    Leaving,
    /// New work is refused, running work may finish.
    Draining,
    /// Running work is ended.
    Ending,
}

/// The phase, watched by connections.
#[derive(Debug)]
pub(crate) struct Lifecycle(watch::Sender<Phase>);

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Phase::Loading))
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Moves on to `phase`; never back.
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

/// Requests between their head and the last byte of their answer.
#[derive(Debug, Default)]
pub(crate) struct InFlight(AtomicUsize);

impl InFlight {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Waits until there are none. Polls: it is waited for once in a process's life.
    pub(crate) async fn none(&self) {
        while self.count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
