//! Room in the queue, reserved before any heavy work and given back on every exit.
//!
//! A request reserves by its headers first (one row, a guess of its tokens, its bytes), exactly
//! once it is parsed and encoded, and lets go when its first result arrives or when it ends in
//! whatever way. What does not fit is refused, never queued without bound.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{config::Limits, error::ApiError};

/// Bytes of body per token assumed before the body is read.
const BYTES_PER_TOKEN: u64 = 3;

/// The counters of what waits.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    rows: AtomicU64,
    tokens: AtomicU64,
    /// Of `tokens`, those of requests that an engine has: what is still being received keeps
    /// nobody waiting.
    submitted: AtomicU64,
    body_bytes: AtomicU64,
    rate: Mutex<Rate>,
}

/// Tokens per second that engines computed for requests they answered, measured over windows of a second or more
/// in which they always had some: what nobody asked for says nothing about how fast it would have
/// been, and nothing is learned from what was refused or given up.
#[derive(Debug)]
struct Rate {
    window_start: Instant,
    window_tokens: u64,
    /// `None` until there was a window.
    per_second: Option<f64>,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            rows: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            body_bytes: AtomicU64::new(0),
            rate: Mutex::new(Rate {
                window_start: Instant::now(),
                window_tokens: 0,
                per_second: None,
            }),
        })
    }

    /// Reserves one row and what a body of `bytes` may hold.
    ///
    /// # Errors
    /// 429 `queue_full`.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, ApiError> {
        let reservation = self.empty();
        // What was taken before a refusal is given back as the reservation drops.
        reservation.set_rows(1)?;
        reservation.grow_body(bytes)?;
        Ok(reservation)
    }

    /// Reserves the bytes of a body that will not reach the queue.
    ///
    /// # Errors
    /// 429 `queue_full`.
    pub(crate) fn reserve_body(self: &Arc<Self>, bytes: u64) -> Result<Reservation, ApiError> {
        let mut reservation = self.empty();
        reservation.is_queued = false;
        reservation.grow_body(bytes)?;
        Ok(reservation)
    }

    fn empty(self: &Arc<Self>) -> Reservation {
        Reservation {
            admission: Arc::clone(self),
            is_queued: true,
            rows: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Rows, prompt tokens and body bytes now reserved.
    pub(crate) fn reserved(&self) -> (u64, u64, u64) {
        (
            self.rows.load(Ordering::Relaxed),
            self.tokens.load(Ordering::Relaxed),
            self.body_bytes.load(Ordering::Relaxed),
        )
    }

    /// When to come back, from what has to leave the queue first and how fast it does.
    fn retry_after(&self, excess_tokens: u64) -> Duration {
        let Some(per_second) = self.rate().per_second else {
            return Self::soon();
        };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let seconds = (excess_tokens as f64 / per_second.max(1.0)).ceil();
        Duration::from_secs_f64(seconds.clamp(1.0, 60.0))
    }

    /// A second, for refusals that do not depend on tokens.
    pub(crate) fn soon() -> Duration {
        Duration::from_secs(1)
    }

    fn rate(&self) -> std::sync::MutexGuard<'_, Rate> {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Engines had nothing to do and now have.
    fn note_busy(&self) {
        let mut rate = self.rate();
        rate.window_tokens = 0;
        rate.window_start = Instant::now();
    }

    fn note_left(&self, tokens: u64) {
        let mut rate = self.rate();
        rate.window_tokens += tokens;
        let elapsed = rate.window_start.elapsed().as_secs_f64();
        if elapsed >= 1.0 {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let measured = rate.window_tokens as f64 / elapsed;
            rate.per_second = Some(measured);
            rate.window_tokens = 0;
            rate.window_start = Instant::now();
        }
    }
}

/// A request's share of the queue. Dropping it gives everything back.
#[derive(Debug)]
pub(crate) struct Reservation {
    admission: Arc<Admission>,
    /// Whether the request will wait in the queue, so that its tokens are guessed by its bytes.
    is_queued: bool,
    rows: AtomicU64,
    tokens: AtomicU64,
    submitted: AtomicU64,
    bytes: AtomicU64,
}

impl Reservation {
    /// Makes the number of rows exact.
    ///
    /// # Errors
    /// 400 `too_many_rows`, 400 `larger_than_queue`, 429 `queue_full`.
    pub(crate) fn set_rows(&self, rows: u64) -> Result<(), ApiError> {
        let limits = &self.admission.limits;
        if rows > limits.rows {
            return Err(ApiError::too_many_rows(rows, limits.rows));
        }
        if rows > limits.queued_rows {
            let max = limits.queued_rows;
            return Err(ApiError::larger_than_queue("rows", rows, max));
        }
        set(&self.admission.rows, &self.rows, rows, limits.queued_rows).map_err(|queued| {
            let message = format!("queue is full: {queued} of {} rows", limits.queued_rows);
            let mine = self.tokens.load(Ordering::Relaxed);
            ApiError::queue_full(message, self.admission.retry_after(mine))
        })
    }

    /// Makes the number of prompt tokens exact.
    ///
    /// # Errors
    /// 400 `larger_than_queue`, 429 `queue_full`.
    pub(crate) fn set_tokens(&self, tokens: u64) -> Result<(), ApiError> {
        let max = self.admission.limits.queued_tokens;
        if tokens > max {
            return Err(ApiError::larger_than_queue("prompt tokens", tokens, max));
        }
        set(&self.admission.tokens, &self.tokens, tokens, max).map_err(|queued| {
            let message = format!("queue is full: {queued} of {max} prompt tokens");
            let excess = (queued + tokens).saturating_sub(max);
            ApiError::queue_full(message, self.admission.retry_after(excess))
        })
    }

    /// Takes room for `more` bytes of body, and for the tokens they may be.
    ///
    /// # Errors
    /// 429 `queue_full`.
    pub(crate) fn grow_body(&self, more: u64) -> Result<(), ApiError> {
        let bytes = self.bytes.load(Ordering::Relaxed) + more;
        let max = self.admission.limits.bodies_in_flight_bytes;
        set(&self.admission.body_bytes, &self.bytes, bytes, max).map_err(|held| {
            let message = format!("too much is being received: {held} of {max} bytes");
            ApiError::queue_full(message, Admission::soon())
        })?;
        if !self.is_queued {
            return Ok(());
        }
        // A guess: that a body's worth of tokens would overfill an empty queue is for the
        // parsed request to say.
        let max = self.admission.limits.queued_tokens;
        self.set_tokens(bytes.div_ceil(BYTES_PER_TOKEN).min(max))
    }

    /// An engine has the request: its tokens are ahead of whoever comes next.
    pub(crate) fn submitted(&self) {
        let tokens = self.tokens.load(Ordering::Relaxed);
        let before = self.submitted.swap(tokens, Ordering::Relaxed);
        let all = &self.admission.submitted;
        all.fetch_sub(before, Ordering::Relaxed);
        if all.fetch_add(tokens, Ordering::Relaxed) == 0 {
            self.admission.note_busy();
        }
    }

    /// How long `ahead` tokens will take to compute, at the rate measured last; no time if none
    /// was.
    pub(crate) fn predicted_wait(&self, ahead: u64) -> Duration {
        let Some(per_second) = self.admission.rate().per_second else {
            return Duration::ZERO;
        };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let seconds = ahead as f64 / per_second.max(1.0);
        // A day: far beyond any deadline, and no float that a duration cannot hold.
        Duration::from_secs_f64(seconds.min(86_400.0))
    }

    /// Gives the body's bytes back: it has been turned into ids.
    pub(crate) fn release_body(&self) {
        give_back(&self.admission.body_bytes, &self.bytes);
    }

    /// Gives everything back: the request waits no longer.
    pub(crate) fn release(&self) {
        self.release_body();
        give_back(&self.admission.rows, &self.rows);
        give_back(&self.admission.tokens, &self.tokens);
        give_back(&self.admission.submitted, &self.submitted);
    }

    /// As [`Self::release`], because the engine has answered: the tokens that it computed count
    /// for the rate, all of the prompts if it has not said yet how many it found in the cache.
    pub(crate) fn answered(&self, computed_tokens: Option<u64>) {
        let submitted = self.submitted.load(Ordering::Relaxed);
        if submitted > 0 {
            let tokens = computed_tokens.unwrap_or(submitted);
            self.admission.note_left(tokens);
        }
        self.release();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

/// Changes `mine`, a part of `total`, to `amount`; if `total` would exceed `max`, changes nothing
/// and returns `total`.
fn set(total: &AtomicU64, mine: &AtomicU64, amount: u64, max: u64) -> Result<(), u64> {
    // `mine` has one writer at a time: the request's own task.
    let before = mine.load(Ordering::Relaxed);
    if amount <= before {
        total.fetch_sub(before - amount, Ordering::Relaxed);
    } else {
        let more = amount - before;
        total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |t| {
            t.checked_add(more).filter(|&t| t <= max)
        })?;
    }
    mine.store(amount, Ordering::Relaxed);
    Ok(())
}

fn give_back(total: &AtomicU64, mine: &AtomicU64) {
    let amount = mine.swap(0, Ordering::Relaxed);
    total.fetch_sub(amount, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Arc<Admission> {
        Admission::new(Limits {
            bodies_in_flight_bytes: 90,
            rows: 3,
            queued_rows: 4,
            queued_tokens: 30,
            ..Limits::default()
        })
    }

    fn reason(result: Result<(), ApiError>) -> &'static str {
        result.map_or_else(|e| e.reason(), |()| "ok")
    }

    #[test]
    fn takes_what_fits_and_gives_all_back() {
        let queue = admission();
        let a = queue.reserve(30).unwrap();
        assert_eq!(queue.reserved(), (1, 10, 30));
        assert_eq!(reason(a.set_rows(3)), "ok");
        assert_eq!(reason(a.set_rows(4)), "too_many_rows");
        assert_eq!(reason(a.set_tokens(31)), "larger_than_queue");
        assert_eq!(reason(a.set_tokens(25)), "ok");
        assert_eq!(queue.reserved(), (3, 25, 30));

        let b = queue.reserve(0).unwrap();
        assert_eq!(reason(b.set_rows(2)), "queue_full");
        assert_eq!(reason(b.set_tokens(6)), "queue_full");
        assert_eq!(reason(b.set_tokens(5)), "ok");
        assert_eq!(queue.reserve(0).unwrap_err().reason(), "queue_full");
        assert_eq!(queue.reserved(), (4, 30, 30));

        a.release();
        assert_eq!(queue.reserved(), (1, 5, 0));
        drop((a, b));
        assert_eq!(queue.reserved(), (0, 0, 0));
    }

    #[test]
    fn idle_time_does_not_slow_the_measured_rate() {
        let queue = admission();
        let excess = |queue: &Arc<Admission>| queue.retry_after(20_000).as_secs();
        // Nothing measured yet: no reason to send anybody away for long.
        assert_eq!(excess(&queue), 1);
        let leave = |tokens: u64, after: Duration| {
            let one = queue.reserve(0).unwrap();
            one.set_tokens(tokens).unwrap();
            one.submitted();
            queue.rate().window_start -= after;
            one.answered(None);
        };
        leave(20, Duration::from_secs(2));
        let busy = queue.rate().per_second.unwrap();
        assert!((9.0..=10.0).contains(&busy), "{busy}");
        // An hour in which nobody asked.
        queue.rate().window_start -= Duration::from_secs(3_600);
        leave(20, Duration::from_secs(2));
        let again = queue.rate().per_second.unwrap();
        assert!((9.0..=10.0).contains(&again), "{again}");
    }

    #[test]
    fn waits_follow_from_what_was_computed_and_not_from_what_was_cached() {
        let queue = admission();
        let me = queue.reserve(0).unwrap();
        assert_eq!(me.predicted_wait(1_000), Duration::ZERO);
        let one = queue.reserve(0).unwrap();
        one.set_tokens(28).unwrap();
        one.submitted();
        queue.rate().window_start -= Duration::from_secs(2);
        // Most of its prompt was cached.
        one.answered(Some(8));
        let wait = me.predicted_wait(40).as_secs_f64();
        assert!((10.0..=10.2).contains(&wait), "{wait}");
        assert_eq!(me.predicted_wait(u64::MAX).as_secs(), 86_400);
    }

    #[test]
    fn what_was_not_answered_does_not_count_for_the_rate() {
        let queue = admission();
        let leave = |is_submitted: bool| {
            let one = queue.reserve(60).unwrap();
            if is_submitted {
                one.submitted();
            }
            queue.rate().window_start -= Duration::from_secs(2);
            one.release();
        };
        leave(false);
        leave(true);
        assert_eq!(queue.rate().per_second, None);
    }

    #[test]
    fn a_refused_body_leaves_nothing_behind() {
        let queue = admission();
        assert_eq!(queue.reserve(91).unwrap_err().reason(), "queue_full");
        assert_eq!(queue.reserved(), (0, 0, 0));
        let a = queue.reserve(60).unwrap();
        let refused = queue.reserve(33).unwrap_err();
        assert_eq!((refused.status(), refused.reason()), (429, "queue_full"));
        assert!(refused.retry_after().is_some());
        assert_eq!(queue.reserved(), (1, 20, 60));
        assert_eq!(reason(a.grow_body(30)), "ok");
        assert_eq!(reason(a.grow_body(1)), "queue_full");
    }
}
