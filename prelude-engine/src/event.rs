//! The events of a request that callers receive.

use prelude_sched::{Event, Reject};

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AnswerEvent {
    /// An event of the scheduler about the request. [`Event::Finished`] is the last.
    Event(Event),
    /// The scheduler did not accept the request. The only event then.
    Rejected(Reject),
    /// The engine stopped before the request ended. The last event.
    EngineStopped,
}

impl AnswerEvent {
    pub(crate) const fn is_last(&self) -> bool {
        matches!(
            self,
            Self::Event(Event::Finished { .. }) | Self::Rejected(_) | Self::EngineStopped
        )
    }
}
