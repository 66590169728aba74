//! The bounds of one request while its texts become prompts: tokens, rows and numbers of the
//! answer. A small body whose parts are put together again and again may ask for far more than the
//! body holds.

use std::cell::Cell;

use crate::{
    admission::Cost,
    endpoint::{Call, Printed},
    error::ApiError,
};

/// Bytes of text that stand for a token where text is read but not kept: what English has. Only
/// text that is read more than once is counted so, never what a body brings once.
const BYTES_PER_TOKEN: u64 = 4;

/// The bounds of one request while it is prepared, on one thread.
pub(crate) struct Budget<'c> {
    pub(crate) call: &'c Call,
    tokens: Cell<u64>,
    repeated_bytes: Cell<u64>,
}

impl<'c> Budget<'c> {
    /// Returns the budget of a request that may fill the queue of its server, and no more.
    pub(crate) const fn new(call: &'c Call) -> Self {
        Self {
            call,
            tokens: Cell::new(0),
            repeated_bytes: Cell::new(0),
        }
    }

    fn max_tokens(&self) -> u64 {
        self.call.app.config.limits.queued_tokens
    }

    /// Adds tokens that are kept.
    ///
    /// # Errors
    /// 400 `larger_than_queue`.
    pub(crate) fn add_tokens(&self, tokens: usize) -> Result<(), ApiError> {
        let tokens = self.tokens.get().saturating_add(tokens as u64);
        self.tokens.set(tokens);
        self.check_tokens(tokens)
    }

    /// Checks that a request of so many tokens fits the queue, before any of them is copied.
    ///
    /// # Errors
    /// 400 `larger_than_queue`.
    pub(crate) fn check_tokens(&self, tokens: u64) -> Result<(), ApiError> {
        let max = self.max_tokens();
        match tokens > max {
            true => Err(ApiError::larger_than_queue("prompt tokens", tokens, max)),
            false => Ok(()),
        }
    }

    /// Adds text that is about to be read `times` times more, to learn where a prompt is cut:
    /// its tokens are not kept, so [`Self::add_tokens`] never sees them.
    ///
    /// # Errors
    /// 400 `larger_than_queue`, before any of the text is read.
    pub(crate) fn read_again(&self, bytes: usize, times: usize) -> Result<(), ApiError> {
        let more = (bytes as u64).saturating_mul(times as u64);
        let bytes = self.repeated_bytes.get().saturating_add(more);
        self.repeated_bytes.set(bytes);
        let max = self.max_tokens().saturating_mul(BYTES_PER_TOKEN);
        if bytes > max {
            let what = "bytes of text read again to be cut (about four a token)";
            return Err(ApiError::larger_than_queue(what, bytes, max));
        }
        Ok(())
    }

    /// Makes the number of rows exact as soon as it is known.
    ///
    /// # Errors
    /// 400 `too_many_rows` or `larger_than_queue`, 429 `queue_full` or `class_quota`.
    pub(crate) fn rows(&self, rows: usize) -> Result<(), ApiError> {
        let cost = Cost::of_rows(rows as u64);
        self.call.reservation.admit(cost)
    }

    /// Takes room for an answer of so many decimal numbers.
    ///
    /// # Errors
    /// 400 `too_many_numbers` or `larger_than_queue`, 429 `queue_full`.
    pub(crate) fn numbers(&self, numbers: usize) -> Result<(), ApiError> {
        self.call.expect(numbers as u64, Printed::Decimal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Limits, ServerConfig},
        demo,
        testing::{app_with, call, embedded, options},
    };

    #[test]
    fn added_tokens_are_bounded() {
        let limits = Limits {
            queued_tokens: 10,
            ..Limits::default()
        };
        let config = ServerConfig {
            limits,
            ..ServerConfig::default()
        };
        let app = app_with(config, vec![embedded(&demo::CLASSIFIER, &options())]);
        let call = call(&app, "/tokenize");
        let budget = Budget::new(&call);
        budget.add_tokens(4).unwrap();
        budget.add_tokens(6).unwrap();
        let refused = budget.add_tokens(1).unwrap_err();
        assert_eq!(refused.reason(), "larger_than_queue");
        budget.read_again(10, 3).unwrap();
        budget.read_again(10, 1).unwrap();
        let refused = budget.read_again(1, 1).unwrap_err();
        assert_eq!(refused.reason(), "larger_than_queue");
        let refused = Budget::new(&call).read_again(usize::MAX, usize::MAX);
        assert_eq!(refused.unwrap_err().status(), 400);
    }
}
