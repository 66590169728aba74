//! Where the process is in its life, and how everyone hears of it.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::sync::watch;

use crate::vigil::Vigil;

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
#[derive(Debug)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    pub(crate) vigil: Vigil,
}

impl InFlight {
    pub(crate) fn new(vigil: Vigil) -> Self {
        Self {
            count: AtomicUsize::new(0),
            vigil,
        }
    }

    pub(crate) fn add(&self) {
        if self.count.fetch_add(1, Ordering::AcqRel) == 0 {
            self.vigil.request_came();
        }
    }

    pub(crate) fn remove(&self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.vigil.all_answered();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// For a request in flight: whether it is the only one, also when everything that has reached
    /// the sockets by now has been looked at.
    pub(crate) async fn is_only_one(&self) -> bool {
        // A task that yields is the first to run after the sockets were polled, and only when it
        // yields once more do the tasks run that this made ready.
        for _ in 0..2 {
            if self.count() != 1 {
                return false;
            }
            tokio::task::yield_now().await;
        }
        self.count() == 1
    }

    /// Waits until there are none. Polls: it is waited for once in a process's life.
    pub(crate) async fn none(&self) {
        while self.count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
