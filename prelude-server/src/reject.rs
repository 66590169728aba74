//! The statuses of requests that the engine refuses or could not compute: decided in this file alone.

use prelude_core::InvalidRequest;
use prelude_engine::{Outcome, Reject, SubmitError};

use crate::{
    admission::{Admission, queue_full},
    endpoint::Call,
    error::ApiError,
};

/// Returns the error for a request that the engine could not even take in.
pub(crate) fn of_submit(error: &SubmitError) -> ApiError {
    match error {
        SubmitError::Busy => {
            ApiError::queue_full("queue is full: the engine is busy", Admission::soon())
        }
        _ => ApiError::engine_dead(),
    }
}

/// Returns the error for a request that the scheduler did not admit.
pub(crate) fn of_reject(reject: &Reject, call: &Call) -> ApiError {
    match reject {
        Reject::Invalid(invalid) => of_invalid(invalid),
        Reject::QueueFullRows { queued, limit, .. } => {
            queue_full("rows", *queued, *limit, Admission::soon())
        }
        Reject::QueueFullTokens { queued, limit, .. } => {
            queue_full("prompt tokens", *queued, *limit, Admission::soon())
        }
        Reject::LargerThanQueue {
            what,
            amount,
            limit,
        } => ApiError::larger_than_queue(what, *amount, *limit),
        Reject::NeverFits {
            needed, available, ..
        } => ApiError::larger_than_queue("KV blocks", *needed, *available),
        Reject::TooLongToPool { prompt, limit, .. } => ApiError::new(
            400,
            "too_long_to_pool",
            format!("a mean-pooled text of {prompt} tokens exceeds the limit of {limit}"),
        ),
        // The deadline passed before the scheduler could look: the request waited for a step to
        // end.
        Reject::DeadlineUnmeetable { .. } => call.late(),
        // Ids are ours, so a repeated one is a bug; so is a reject this file has not heard of.
        _ => ApiError::internal(&call.request_id),
    }
}

/// Returns the error for a request that the engine found malformed. The edge has checked all of this;
/// what it missed is still the caller's fault.
fn of_invalid(invalid: &InvalidRequest) -> ApiError {
    match invalid {
        InvalidRequest::TooLong {
            prompt,
            output,
            context,
        } => ApiError::context_length_exceeded(
            "prompt",
            *context,
            u64::from(*prompt),
            u64::from(*output),
        ),
        InvalidRequest::TokenOutOfRange { id, vocab_size } => {
            ApiError::token_out_of_range("prompt", u64::from(*id), *vocab_size)
        }
        InvalidRequest::Parameter { field, must_be, .. } => {
            ApiError::invalid_value(*field, format!("be {must_be}"))
        }
        InvalidRequest::Empty(what) => {
            ApiError::new(400, "invalid_value", format!("the request has no {what}"))
        }
        _ => ApiError::new(400, "invalid_value", "the request is malformed"),
    }
}

/// Returns the error for a request that ended without its answer. `None` for one that has it.
pub(crate) fn of_outcome(outcome: &Outcome, request_id: &str) -> Option<ApiError> {
    match outcome {
        Outcome::Done => None,
        Outcome::DeadlineExpired => Some(ApiError::deadline_expired()),
        Outcome::Failed(_) => Some(ApiError::step_failed(request_id)),
        // Nobody but the caller aborts, and the caller is waiting.
        Outcome::Aborted => Some(ApiError::internal(request_id)),
    }
}
