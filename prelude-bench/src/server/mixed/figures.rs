//! The figures of one measurement, as clients of both classes saw it.

use super::DEADLINE;
use crate::load::{Latencies, Tally, quantile};

/// A measurement of both classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) chat: Chat,
    pub(super) decisions: Decisions,
    /// Requests of either class that were not answered with 200.
    pub(super) failures: f64,
}

/// The streams. P50 and P99 are in milliseconds, NaN if there were none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chat {
    pub(super) tokens_per_second: f64,
    /// Milliseconds from a request's arrival to its first text.
    pub(super) first_ms: [f64; 2],
    /// The time between two texts.
    pub(super) gap_ms: [f64; 2],
}

/// The decisions. P50 and P99 are in milliseconds from a request's arrival.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decisions {
    pub(super) per_second: f64,
    pub(super) ms: [f64; 2],
    /// The share of the requests that were answered within [`DEADLINE`].
    pub(super) in_time: f64,
}

impl Figures {
    #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
    pub(super) fn new(chat: &Tally, decisions: &Tally) -> Self {
        let failures = |tally: &Tally| tally.asked() - tally.count(200);
        let streams = chat.streams.as_ref();
        let good = decisions.count_within(200, DEADLINE);
        Self {
            chat: Chat {
                tokens_per_second: chat.window.tokens_per_second(),
                first_ms: streams.map_or([f64::NAN; 2], |streams| middle_and_tail(&streams.first)),
                gap_ms: streams.map_or([f64::NAN; 2], |streams| middle_and_tail(&streams.gaps)),
            },
            decisions: Decisions {
                per_second: decisions.window.answers_per_second(),
                ms: [0.5, 0.99].map(|fraction| decisions.quantile(200, fraction) * 1e3),
                in_time: good as f64 / decisions.asked() as f64,
            },
            failures: (failures(chat) + failures(decisions)) as f64,
        }
    }

    /// Returns the rates of chat and of decisions here, as parts of their rates alone.
    pub(super) fn parts_of(&self, alone: &Self) -> [f64; 2] {
        [
            self.chat.tokens_per_second / alone.chat.tokens_per_second,
            self.decisions.per_second / alone.decisions.per_second,
        ]
    }
}

fn middle_and_tail(latencies: &Latencies) -> [f64; 2] {
    [0.5, 0.99].map(|fraction| quantile(latencies, fraction) * 1e3)
}
