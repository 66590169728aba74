//! A panic as an answer: a bug in one request must not take others with it.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::Poll,
};

use crate::{error::ApiError, log};

/// What `work` comes to; if it panics, a line in the log and 500 for this request alone.
///
/// # Errors
/// Those of `work`, and 500.
pub(crate) async fn caught<T>(
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
        let what = log::panic_message(&*payload);
        log::line(format_args!("panic id={request_id} {what}"));
        Err(ApiError::internal(request_id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_failure_of_its_request() {
        let fine = caught("r", Box::pin(async { Ok(7) })).await;
        assert_eq!(fine.unwrap(), 7);
        let panics = async {
            tokio::task::yield_now().await;
            panic!("planted")
        };
        let failed = caught::<()>("r", Box::pin(panics));
        let failed = failed.await.unwrap_err();
        assert_eq!(failed.status(), 500);
    }
}
