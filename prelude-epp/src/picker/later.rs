//! Requests whose end is not seen, because the proxy does not show the response's body.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use prelude_core::{RequestId, Timestamp};
use prelude_router::{Finish, Router};

/// Tokens of an answer of unknown length.
const OUTPUT_TOKENS: u32 = 45;
/// Upper bound of the time that an answer is taken to go on after its headers.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(60);
/// Upper bound of the requests that wait here; beyond it, the one that ends first has ended.
const MAX_WAITING: usize = 1 << 20;

/// Requests by when they count as ended.
#[derive(Debug, Default)]
pub(super) struct Later(BinaryHeap<Reverse<(Timestamp, RequestId)>>);

impl Later {
    /// Adds a request whose answer has begun.
    pub(super) fn push(
        &mut self,
        now: Timestamp,
        id: RequestId,
        max_output_tokens: Option<u32>,
        decode_ms: f64,
    ) {
        let tokens = max_output_tokens.unwrap_or(OUTPUT_TOKENS);
        let ms = decode_ms * f64::from(tokens.saturating_sub(1));
        let time = Duration::try_from_secs_f64(ms / 1e3).unwrap_or(MAX_ANSWER_TIME);
        let due = now.saturating_add(time.min(MAX_ANSWER_TIME));
        self.0.push(Reverse((due, id)));
    }

    /// Ends the requests that count as ended now.
    pub(super) fn finish_due(&mut self, now: Timestamp, router: &mut Router) {
        while let Some(&Reverse((due, id))) = self.0.peek() {
            if due > now && self.0.len() < MAX_WAITING {
                return;
            }
            self.0.pop();
            router.finished(now, id, Finish::default());
        }
    }
}
