//! Where the process is in its life, and how everyone hears of it.

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
