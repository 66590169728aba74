//! The way of spans to the collector: a queue with a bound, and a task that sends what is in it.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanExporter, SpanProcessor},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use crate::log;

/// Most spans that wait: those of about a thousand requests.
const QUEUED_SPANS: usize = 4096;
/// Most spans of one message to the collector.
const BATCH_SPANS: usize = 512;
/// The time that a span waits for others to be sent with.
const COMPANY_WAIT: Duration = Duration::from_secs(1);

/// The spans by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Spans that the collector took.
    pub(crate) exported: u64,
    /// Spans that the collector refused or did not answer.
    pub(crate) failed: u64,
    /// The queue was full.
    pub(crate) dropped: u64,
}

#[derive(Debug, Default)]
struct Counters {
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

/// The near end of the queue.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
    counters: Arc<Counters>,
}

impl Queue {
    /// Starts the task that sends spans by `exporter`, on the runtime of the caller.
    pub(super) fn start(exporter: impl SpanExporter + 'static) -> Self {
        let (sender, spans) = mpsc::channel(QUEUED_SPANS);
        let (flush, flushes) = mpsc::channel(1);
        let counters = Arc::new(Counters::default());
        let task = Task {
            spans,
            flushes,
            exporter,
            counters: Arc::clone(&counters),
            batch: Vec::new(),
            is_failing: false,
        };
        tokio::spawn(task.run());
        Self {
            spans: sender,
            flushes: flush,
            counters,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            exported: self.counters.exported.load(Ordering::Relaxed),
            failed: self.counters.failed.load(Ordering::Relaxed),
            dropped: self.counters.dropped.load(Ordering::Relaxed),
        }
    }

    /// Waits until the spans that are in the queue now have been sent, or could not be.
    pub(super) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.flushes.send(done).await.is_ok() {
            // An error says that the task has ended, and then nothing is left to be sent.
            let _ = is_done.await;
        }
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    // Only the provider of tracers calls these two functions, and it would block its caller; a
    // server awaits `flush` instead.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The far end of the queue.
struct Task<E> {
    spans: mpsc::Receiver<SpanData>,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    exporter: E,
    counters: Arc<Counters>,
    batch: Vec<SpanData>,
    is_failing: bool,
}

impl<E: SpanExporter> Task<E> {
    /// Sends spans until the near end is dropped.
    async fn run(mut self) {
        loop {
            tokio::select! {
                taken = self.spans.recv_many(&mut self.batch, BATCH_SPANS) => {
                    if taken == 0 {
                        return;
                    }
                }
                Some(done) = self.flushes.recv() => {
                    self.send_all(done).await;
                    continue;
                }
            }
            let mut asked = None;
            tokio::select! {
                () = sleep(COMPANY_WAIT) => {}
                () = fill(&mut self.spans, &mut self.batch) => {}
                Some(done) = self.flushes.recv() => asked = Some(done),
            }
            match asked {
                Some(done) => self.send_all(done).await,
                None => self.send().await,
            }
        }
    }

    /// Sends the spans that are in the queue, and then says so.
    async fn send_all(&mut self, done: oneshot::Sender<()>) {
        // Spans that come meanwhile are not waited for.
        for _ in 0..QUEUED_SPANS {
            if self.batch.len() >= BATCH_SPANS {
                self.send().await;
            }
            let Ok(span) = self.spans.try_recv() else {
                break;
            };
            self.batch.push(span);
        }
        self.send().await;
        // The caller of the flush may have timed out.
        let _ = done.send(());
    }

    /// Sends the batch. The log says when that begins to fail, and when it works again.
    async fn send(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let spans = self.batch.len() as u64;
        match self.exporter.export(mem::take(&mut self.batch)).await {
            Ok(()) => {
                self.counters.exported.fetch_add(spans, Ordering::Relaxed);
                if mem::take(&mut self.is_failing) {
                    log::line(format_args!("traces: the collector takes spans again"));
                }
            }
            Err(error) => {
                self.counters.failed.fetch_add(spans, Ordering::Relaxed);
                if !mem::replace(&mut self.is_failing, true) {
                    log::line(format_args!(
                        "traces: the collector takes no spans, and they are lost until it does: \
                         {error}"
                    ));
                }
            }
        }
    }
}

/// Waits until the batch is full.
async fn fill(spans: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>) {
    while batch.len() < BATCH_SPANS {
        let room = BATCH_SPANS - batch.len();
        if spans.recv_many(batch, room).await == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::SystemTime};

    use opentelemetry::{
        InstrumentationScope,
        trace::{SpanContext, SpanId, SpanKind, Status},
    };
    use opentelemetry_sdk::error::OTelSdkError;
    use tokio::sync::Semaphore;

    use super::*;

    /// A collector that takes a batch for each permit, and refuses those of a certain size.
    #[derive(Clone, Debug)]
    struct Collector {
        permits: Arc<Semaphore>,
        batches: Arc<Mutex<Vec<usize>>>,
        refused: usize,
    }

    impl Collector {
        fn new(permits: usize) -> Self {
            Self {
                permits: Arc::new(Semaphore::new(permits)),
                batches: Arc::default(),
                refused: usize::MAX,
            }
        }
    }

    impl SpanExporter for Collector {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.permits.acquire().await.unwrap().forget();
            self.batches.lock().unwrap().push(batch.len());
            match batch.len() == self.refused {
                true => Err(OTelSdkError::InternalFailure("refused".to_owned())),
                false => Ok(()),
            }
        }
    }

    fn span() -> SpanData {
        SpanData {
            span_context: SpanContext::NONE,
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Server,
            name: "a".into(),
            start_time: SystemTime::UNIX_EPOCH,
            end_time: SystemTime::UNIX_EPOCH,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::default(),
        }
    }

    #[tokio::test]
    async fn a_full_queue_drops_spans_and_counts_them() {
        let collector = Collector::new(0);
        let queue = Queue::start(collector.clone());
        // As many as fit, while the task has had no turn yet.
        for _ in 0..QUEUED_SPANS + 10 {
            queue.on_end(span());
        }
        assert_eq!(queue.counts().dropped, 10);
        collector.permits.add_permits(100);
        queue.flush().await;
        let expected = Counts {
            exported: QUEUED_SPANS as u64,
            failed: 0,
            dropped: 10,
        };
        assert_eq!(queue.counts(), expected);
        let batches = collector.batches.lock().unwrap().clone();
        assert_eq!(batches, [BATCH_SPANS; QUEUED_SPANS / BATCH_SPANS]);
    }

    #[tokio::test]
    async fn spans_are_sent_together_without_being_asked_for() {
        let collector = Collector::new(10);
        let queue = Queue::start(collector.clone());
        (0..3).for_each(|_| queue.on_end(span()));
        assert_eq!(queue.counts(), Counts::default());
        while queue.counts().exported == 0 {
            sleep(COMPANY_WAIT / 10).await;
        }
        assert_eq!(queue.counts().exported, 3);
        assert_eq!(*collector.batches.lock().unwrap(), [3]);
    }

    #[tokio::test]
    async fn refused_spans_are_counted_and_later_ones_are_sent() {
        let mut collector = Collector::new(10);
        collector.refused = 2;
        let queue = Queue::start(collector.clone());
        for count in [2, 1] {
            (0..count).for_each(|_| queue.on_end(span()));
            queue.flush().await;
        }
        let expected = Counts {
            exported: 1,
            failed: 2,
            dropped: 0,
        };
        assert_eq!(queue.counts(), expected);
    }
}
