//! Staying awake for a moment after the last answer, for the client that asks again at once.
//!
//! A thread that sleeps in the system, on a core that sleeps too, takes tens of microseconds to
//! wake: more than reading, parsing and answering a short request. So while requests follow each
//! other closely, the thread that runs connections goes on looking at its sockets for a moment
//! before it sleeps. It does so only while nothing is in flight, so it takes no time from work;
//! only while most of the last pauses ended within that moment, so it is not for nothing; and
//! only after an answer, so an idle server sleeps.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// Of the last eight pauses, how many must have been short.
const SHORT_PAUSES: u32 = 5;

/// Pauses between answers and requests, and what they suggest.
#[derive(Debug)]
pub(crate) struct Vigil {
    /// Longest time to stay awake; zero is never.
    limit: Duration,
    /// Since when times are counted.
    start: Instant,
    /// When the last request in flight was answered, in nanoseconds from `start`.
    quiet_since_ns: AtomicU64,
    /// One bit for each of the last pauses: whether it ended within `limit`.
    pauses: AtomicU8,
    begins: Notify,
}

impl Vigil {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            start: Instant::now(),
            quiet_since_ns: AtomicU64::new(0),
            pauses: AtomicU8::new(0),
            begins: Notify::new(),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A request came while none was in flight.
    pub(crate) fn request_came(&self) {
        if self.limit.is_zero() {
            return;
        }
        // Requests that come and go at the same time on several threads may count a pause twice
        // or not at all: it is a guess in any case.
        let since = self.quiet_since_ns.load(Ordering::Relaxed);
        let pause = Duration::from_nanos(self.now_ns().saturating_sub(since));
        self.note(pause <= self.limit);
    }

    fn note(&self, is_short: bool) {
        let pauses = self.pauses.load(Ordering::Relaxed);
        let pauses = (pauses << 1) | u8::from(is_short);
        self.pauses.store(pauses, Ordering::Relaxed);
    }

    fn is_worthwhile(&self) -> bool {
        self.pauses.load(Ordering::Relaxed).count_ones() >= SHORT_PAUSES
    }

    /// The last request in flight was answered.
    pub(crate) fn all_answered(&self) {
        if self.limit.is_zero() {
            return;
        }
        self.quiet_since_ns.store(self.now_ns(), Ordering::Relaxed);
        if self.is_worthwhile() {
            self.begins.notify_one();
        }
    }

    /// Keeps the runtime's thread awake when that is worthwhile, while no request is in flight.
    /// Never ends.
    pub(crate) async fn keep(&self, in_flight: impl Fn() -> usize) {
        loop {
            self.begins.notified().await;
            let begin = Instant::now();
            while in_flight() == 0 && begin.elapsed() < self.limit {
                // Comes back once the runtime has polled its sockets, without waiting for them.
                tokio::task::yield_now().await;
                // The client may have been woken on this core.
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{Arc, atomic::AtomicUsize},
        task::{Context, Wake, Waker},
    };

    use super::*;
    use crate::lifecycle::InFlight;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn only_a_majority_of_short_pauses_keeps_awake() {
        let vigil = Vigil::new(HOUR);
        assert!(!vigil.is_worthwhile());
        for short in 1..=8 {
            vigil.note(true);
            assert_eq!(vigil.is_worthwhile(), short >= SHORT_PAUSES);
        }
        for long in 1..=8 {
            vigil.note(false);
            assert_eq!(vigil.is_worthwhile(), 8 - long >= SHORT_PAUSES);
        }
    }

    /// Counts how often a task asked to be polled again.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn it_is_awake_after_an_answer_until_the_next_request() {
        let in_flight = InFlight::new(Vigil::new(HOUR));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut keep = pin!(in_flight.vigil.keep(|| in_flight.count()));
        // Polls the task as often as it asks for, at most three times: how often that was.
        let mut polls = || {
            for polls in 0..3 {
                let before = wakes.0.load(Ordering::SeqCst);
                assert!(
                    keep.as_mut()
                        .poll(&mut Context::from_waker(&waker))
                        .is_pending()
                );
                if wakes.0.load(Ordering::SeqCst) == before {
                    return polls;
                }
            }
            3
        };
        for _ in 1..SHORT_PAUSES {
            assert_eq!(polls(), 0, "asleep before there was reason to be awake");
            in_flight.add();
            in_flight.add();
            in_flight.remove();
            assert_eq!(polls(), 0, "asleep while requests are in flight");
            in_flight.remove();
        }
        assert_eq!(polls(), 0);
        in_flight.add();
        in_flight.remove();
        assert_eq!(polls(), 3, "awake");
        assert_eq!(polls(), 3, "as long as nothing comes");
        in_flight.add();
        assert_eq!(polls(), 0, "asleep again");
    }

    #[test]
    fn it_sleeps_when_its_time_is_over_and_always_without_one() {
        for limit in [Duration::from_millis(1), Duration::ZERO] {
            let in_flight = InFlight::new(Vigil::new(limit));
            for _ in 0..8 {
                in_flight.vigil.note(true);
            }
            let wakes = Arc::new(Wakes::default());
            let waker = Waker::from(Arc::clone(&wakes));
            let mut keep = pin!(in_flight.vigil.keep(|| in_flight.count()));
            in_flight.vigil.all_answered();
            let mut polls = 0;
            loop {
                let before = wakes.0.load(Ordering::SeqCst);
                assert!(
                    keep.as_mut()
                        .poll(&mut Context::from_waker(&waker))
                        .is_pending()
                );
                if wakes.0.load(Ordering::SeqCst) == before {
                    break;
                }
                polls += 1;
            }
            // It ended, which is what counts; without a limit it never began.
            assert_eq!(polls > 0, !limit.is_zero());
        }
    }
}
