//! What encoding one request's texts may come to, watched while it is done: a small body whose
//! parts are put together again and again may ask for far more than it holds.

use std::cell::Cell;

use crate::{endpoint::Call, error::ApiError};

/// Bytes of text that stand for a token where they are read but not kept: what English has. Only
/// text that is read more than once is counted so, never what a body brings once.
const BYTES_PER_TOKEN: u64 = 4;

/// Counts what is encoded for one request. Shared by whatever takes part in that, on one thread.
pub(crate) struct Meter {
    tokens: Cell<u64>,
    repeated_bytes: Cell<u64>,
    max_tokens: u64,
}

impl Meter {
    /// Of a request that may fill the queue of this server, and no more.
    pub(crate) fn new(call: &Call) -> Self {
        Self::up_to(call.app.config.limits.queued_tokens)
    }

    pub(crate) fn up_to(max_tokens: u64) -> Self {
        Self {
            tokens: Cell::new(0),
            repeated_bytes: Cell::new(0),
            max_tokens,
        }
    }

    /// Adds tokens that are kept.
    ///
    /// # Errors
    /// 400 `larger_than_queue`.
    pub(crate) fn add(&self, tokens: usize) -> Result<(), ApiError> {
        let tokens = self.tokens.get().saturating_add(tokens as u64);
        self.tokens.set(tokens);
        if tokens > self.max_tokens {
            let (what, max) = ("prompt tokens", self.max_tokens);
            return Err(ApiError::larger_than_queue(what, tokens, max));
        }
        Ok(())
    }

    /// Adds text that is about to be read `times` times more, to learn where a prompt is cut:
    /// its tokens are not kept, so [`Self::add`] never sees them.
    ///
    /// # Errors
    /// 400 `larger_than_queue`, before any of it is read.
    pub(crate) fn read_again(&self, bytes: usize, times: usize) -> Result<(), ApiError> {
        let more = (bytes as u64).saturating_mul(times as u64);
        let bytes = self.repeated_bytes.get().saturating_add(more);
        self.repeated_bytes.set(bytes);
        let max = self.max_tokens.saturating_mul(BYTES_PER_TOKEN);
        if bytes > max {
            let what = "bytes of text read again to be cut (about four a token)";
            return Err(ApiError::larger_than_queue(what, bytes, max));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_bounded() {
        let meter = Meter::up_to(10);
        meter.add(4).unwrap();
        meter.add(6).unwrap();
        assert_eq!(meter.add(1).unwrap_err().reason(), "larger_than_queue");
        meter.read_again(10, 3).unwrap();
        meter.read_again(10, 1).unwrap();
        let refused = meter.read_again(1, 1).unwrap_err();
        assert_eq!(refused.reason(), "larger_than_queue");
        let refused = Meter::up_to(10).read_again(usize::MAX, usize::MAX);
        assert_eq!(refused.unwrap_err().status(), 400);
    }
}
