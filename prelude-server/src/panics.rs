//! Panics as responses: a defect that one request meets must not end others.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::Poll,
};

use crate::{error::ApiError, log};

/// Runs `work` to its end. A panic becomes a line in the log, and 500 for this request alone.
///
/// # Errors
/// Those of `work`, and 500.
pub(crate) async fn catch_panic<T>(
    request_id: &str,
    mut work: Pin<Box<impl Future<Output = Result<T, ApiError>> + ?Sized>>,
) -> Result<T, ApiError> {
    let result: Result<_, Box<dyn Any + Send>> = poll_fn(|cx| {
        // After a panic the future is dropped and never polled again; what it shares is behind
        // locks that ignore poisoning and valid between statements.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(payload)),
        }
    })
    .await;
    result.unwrap_or_else(|payload| {
        let message = log::panic_message(&*payload);
        log::line(format_args!("panic id={request_id} {message}"));
        Err(ApiError::internal(request_id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_failure_of_its_request() {
        let fine = catch_panic("r", Box::pin(async { Ok(7) })).await;
        assert_eq!(fine.unwrap(), 7);
        let panics = async {
            tokio::task::yield_now().await;
            panic!("planted")
        };
        let failed = catch_panic::<()>("r", Box::pin(panics));
        let failed = failed.await.unwrap_err();
        assert_eq!(failed.status(), 500);
    }
}
