//! The tasks that run requests, which end early if a client does not read.

use std::{future::Future, sync::Arc};

use hyper::rt::Executor;
use tokio::sync::Notify;

tokio::task_local! {
    /// Ends the current task when it is notified.
    static ABORT: Arc<Notify>;
}

/// Runs `future` until it ends, or until the handle that [`abort_handle`] returns inside is
/// notified.
pub(super) async fn abortable(future: impl Future) {
    let abort = Arc::new(Notify::new());
    let run = async {
        tokio::select! {
            biased;
            _ = future => {}
            () = abort.notified() => {}
        }
    };
    ABORT.scope(Arc::clone(&abort), run).await;
}

/// Returns the handle that ends the current task: over HTTP/1.1 that of the connection, over HTTP/2
/// that of the stream.
pub(super) fn abort_handle() -> Option<Arc<Notify>> {
    ABORT.try_with(Arc::clone).ok()
}

/// Runs each stream of an HTTP/2 connection as a task that can be aborted, which resets the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamExecutor;

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(abortable(stream));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_ends_when_its_handle_is_notified() {
        assert!(abort_handle().is_none());
        abortable(async {
            let abort = abort_handle().unwrap();
            tokio::spawn(async move { abort.notify_one() });
            std::future::pending::<()>().await;
        })
        .await;
    }
}
