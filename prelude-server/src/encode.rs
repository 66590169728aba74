//! Text to ids, and answers to text, without holding up other requests: what is short in passing,
//! what is long on a bounded number of threads, and no more waiting for those than the
//! configuration allows. (Of answers no more wait than requests were admitted.)

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
};

use crate::{admission::Admission, config::ServerConfig, error::ApiError};

/// The threads that encode texts.
#[derive(Debug)]
pub(crate) struct EncodePool {
    threads: Semaphore,
    waiting: AtomicUsize,
    max_waiting: usize,
    inline_bytes: usize,
}

impl EncodePool {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        Self {
            threads: Semaphore::new(config.encode_threads.max(1)),
            waiting: AtomicUsize::new(0),
            max_waiting: config.encode_queue,
            inline_bytes: config.encode_inline_bytes,
        }
    }

    /// Returns the number of requests waiting for a thread.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Runs `work`, which encodes about `bytes` of text.
    ///
    /// # Errors
    /// 429 `queue_full` if too many wait already; `work` has not run then.
    pub(crate) async fn run<T>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T,
    ) -> Result<T, ApiError> {
        if bytes <= self.inline_bytes {
            return Ok(work());
        }
        let _permit = match self.threads.try_acquire() {
            Ok(permit) => permit,
            Err(_) => self.wait().await?,
        };
        Ok(aside(work))
    }

    /// Runs `work`, which writes about `bytes` of an answer. It waits for a thread as long as need
    /// be: the answer has been computed.
    pub(crate) async fn write<T>(&self, bytes: u64, work: impl FnOnce() -> T) -> T {
        if bytes <= self.inline_bytes as u64 {
            return work();
        }
        let permit = self.threads.acquire().await;
        let _permit = permit.expect("the semaphore is never closed");
        aside(work)
    }

    async fn wait(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ApiError> {
        let place = Place::take(&self.waiting, self.max_waiting).ok_or_else(|| {
            let message = "queue is full: too many texts wait to be encoded";
            ApiError::queue_full(message, Admission::soon())
        })?;
        let permit = self.threads.acquire().await;
        drop(place);
        Ok(permit.expect("the semaphore is never closed"))
    }
}

/// Runs what takes long beside the tasks of this thread.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        // The runtime moves this thread's other tasks to another one; `work` may borrow.
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        // One-shot commands have nothing else to run.
        _ => work(),
    }
}

/// A place to wait in, which is given back when it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize, max: usize) -> Option<Self> {
        let taken = waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |w| {
            (w < max).then_some(w + 1)
        });
        // `then`, not `then_some`: a place that was made but not taken would give back what it
        // never took.
        taken.is_ok().then(|| Self(waiting))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn long_texts_wait_within_bounds() {
        let pool = Arc::new(EncodePool::new(&ServerConfig {
            encode_threads: 1,
            encode_queue: 1,
            encode_inline_bytes: 10,
            ..ServerConfig::default()
        }));
        let held = pool.threads.acquire().await.unwrap();
        // Short texts do not wait.
        assert_eq!(pool.run(10, || 1).await.unwrap(), 1);
        let waiter = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.run(11, || 2).await.unwrap() }
        });
        while pool.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        let refused = pool.run(11, || 3).await.unwrap_err();
        assert_eq!(refused.reason(), "queue_full");
        drop(held);
        assert_eq!(waiter.await.unwrap(), 2);
        assert_eq!(pool.waiting(), 0);
    }

    /// With one thread for all connections, others are served while a long answer is written.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_answers_are_written_beside_other_work() {
        let pool = Arc::new(EncodePool::new(&ServerConfig {
            encode_inline_bytes: 10,
            ..ServerConfig::default()
        }));
        assert_eq!(pool.write(10, || 1).await, 1);
        let (done, written) = std::sync::mpsc::channel();
        let writer = tokio::spawn({
            let pool = Arc::clone(&pool);
            // Written only once another task of the same thread has run.
            async move { pool.write(11, move || written.recv().unwrap()).await }
        });
        tokio::spawn(async move { done.send(2).unwrap() });
        assert_eq!(writer.await.unwrap(), 2);
    }
}
