//! Room in the queue, reserved before any heavy work and given back on every exit.
//!
//! A request reserves a row by its head, then bytes and a guess of its tokens as its body arrives
//! (there must be room for all that it declares), exactly once it is parsed and encoded, and lets
//! go when its first result arrives or when it ends in whatever way. The bytes of a long answer are
//! reserved before it is computed, and those of any answer are held until its client has taken it.
//! What does not fit is refused, never queued without bound.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use prelude_core::ExecutionClass;
use prelude_engine::EngineHandle;

use crate::{config::Limits, error::ApiError, process::GiveBack};

/// Bytes of body per token assumed before the body is read.
const BYTES_PER_TOKEN: u64 = 3;

/// Bytes that a value of a body may take, measured where values are dearest: as objects of one empty
/// name in `tools` of which one must be called, which become a grammar beside what is shown to a
/// template.
const VALUE_BYTES: u64 = 832;

/// Bytes of a body and its values, or of an answer, from which on the memory that a request frees is
/// given back to the system. What smaller ones free is used again.
const LARGE_BYTES: u64 = 1 << 20;

/// The counters of what waits.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    rows: AtomicU64,
    tokens: AtomicU64,
    body_bytes: AtomicU64,
    answer_bytes: AtomicU64,
    /// The part of `rows` and `tokens` that engines have, by [`CLASSES`].
    of_class: [OfClass; 2],
    /// Rows by [`CLASSES`] that count against their class's own bound.
    of_quota: [AtomicU64; 2],
    /// The way back to the system for what large requests have freed.
    give_back: GiveBack,
    /// The engines that empty the queue; none before there are models.
    engines: OnceLock<Vec<EngineHandle>>,
}

const CLASSES: [ExecutionClass; 2] = [ExecutionClass::OneShot, ExecutionClass::Decode];

#[derive(Debug, Default)]
struct OfClass {
    rows: AtomicU64,
    tokens: AtomicU64,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            rows: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            body_bytes: AtomicU64::new(0),
            answer_bytes: AtomicU64::new(0),
            of_class: Default::default(),
            of_quota: Default::default(),
            give_back: GiveBack::start(),
            engines: OnceLock::new(),
        })
    }

    /// Names the engines that empty the queue.
    pub(crate) fn serve(&self, engines: Vec<EngineHandle>) {
        let _ = self.engines.set(engines);
    }

    /// Reserves one row for a request whose head says that `bytes` will follow, for which there is
    /// room now. They are reserved as they arrive: a slow upload keeps no other request out.
    ///
    /// # Errors
    /// 429 `queue_full`.
    pub(crate) fn enter(self: &Arc<Self>, bytes: u64) -> Result<Reservation, ApiError> {
        drop(self.reserve(bytes)?);
        self.reserve(0)
    }

    /// Reserves the bytes of a body that will not reach the queue, as [`Self::enter`] does for one
    /// that will.
    ///
    /// # Errors
    /// 429 `queue_full`.
    pub(crate) fn enter_aside(self: &Arc<Self>, bytes: u64) -> Result<Reservation, ApiError> {
        drop(self.reserve_body(bytes)?);
        self.reserve_body(0)
    }

    /// Reserves one row and what a body of `bytes` may hold.
    ///
    /// # Errors
    /// 429 `queue_full`.
    fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, ApiError> {
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
    fn reserve_body(self: &Arc<Self>, bytes: u64) -> Result<Reservation, ApiError> {
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
            bytes: AtomicU64::new(0),
            answer_bytes: AtomicU64::new(0),
            is_large: AtomicBool::new(false),
            class: OnceLock::new(),
            of_class: OfClass::default(),
            quota: AtomicUsize::new(NO_CLASS),
            quota_rows: AtomicU64::new(0),
        }
    }

    /// Checks that there is room for another answer, however short: an answer stays in memory until
    /// its client has taken it.
    ///
    /// # Errors
    /// 429 `queue_full`.
    pub(crate) fn check_answers(&self) -> Result<(), ApiError> {
        let held = self.answer_bytes.load(Ordering::Relaxed);
        let max = self.limits.answers_in_flight_bytes;
        if held < max {
            return Ok(());
        }
        Err(answers_full(held, max))
    }

    /// Returns the rows and prompt tokens that wait, by class; those of requests that are being
    /// received, read and encoded have none yet and are `arriving`.
    pub(crate) fn waiting(&self) -> [(&'static str, u64, u64); 3] {
        let (rows, tokens, _) = self.reserved();
        let mut arriving = ("arriving", rows, tokens);
        let [oneshot, decode] = [0, 1].map(|at| {
            let of = &self.of_class[at];
            let rows = of.rows.load(Ordering::Relaxed);
            let tokens = of.tokens.load(Ordering::Relaxed);
            // Clamped to 0: the numbers are read one after the other, while requests come and go.
            arriving.1 = arriving.1.saturating_sub(rows);
            arriving.2 = arriving.2.saturating_sub(tokens);
            (CLASSES[at].as_str(), rows, tokens)
        });
        [arriving, oneshot, decode]
    }

    /// Returns the rows, prompt tokens and body bytes now reserved.
    pub(crate) fn reserved(&self) -> (u64, u64, u64) {
        (
            self.rows.load(Ordering::Relaxed),
            self.tokens.load(Ordering::Relaxed),
            self.body_bytes.load(Ordering::Relaxed),
        )
    }

    /// Returns the time after which to come back, from what has to leave the queue first and how
    /// fast it does.
    fn retry_after(&self, excess_tokens: u64) -> Duration {
        let engines = self.engines.get().into_iter().flatten();
        let rates = engines.filter_map(EngineHandle::prompt_tokens_per_second);
        let least = Self::soon();
        time_for(excess_tokens, rates.reduce(|a, b| a + b)).clamp(least, 60 * least)
    }

    /// Returns one second: the time after which to try again where a refusal does not depend on
    /// tokens.
    pub(crate) fn soon() -> Duration {
        Duration::from_secs(1)
    }
}

/// Returns the error for a queue that has no room now: the same whether this server's bound or an
/// engine's is reached.
pub(crate) fn queue_full(what: &str, queued: u64, max: u64, retry: Duration) -> ApiError {
    ApiError::queue_full(format!("queue is full: {queued} of {max} {what}"), retry)
}

fn answers_full(held: u64, max: u64) -> ApiError {
    let message = format!("answers wait to be made and taken: {held} of {max} bytes");
    ApiError::queue_full(message, Admission::soon())
}

/// Returns the time that `tokens` take to compute at a measured rate; no time if none was measured.
pub(crate) fn time_for(tokens: u64, per_second: Option<f64>) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let seconds = per_second.map_or(0.0, |rate| tokens as f64 / rate.max(1.0));
    // A day: far beyond any deadline, and no float that a duration cannot hold.
    Duration::from_secs_f64(seconds.min(86_400.0))
}

/// A request's share of the queue. Dropping it gives everything back.
#[derive(Debug)]
pub(crate) struct Reservation {
    admission: Arc<Admission>,
    /// True if the request will wait in the queue. Its tokens are guessed by its bytes then.
    is_queued: bool,
    rows: AtomicU64,
    tokens: AtomicU64,
    bytes: AtomicU64,
    /// Kept until the answer has been handed over or given up, unlike the rest.
    answer_bytes: AtomicU64,
    /// True if the request has held [`LARGE_BYTES`].
    is_large: AtomicBool,
    /// Known once an engine has the request.
    class: OnceLock<usize>,
    /// The rows and tokens that are counted for that class.
    of_class: OfClass,
    /// The class against whose bound `quota_rows` count, by [`CLASSES`], or [`NO_CLASS`].
    quota: AtomicUsize,
    quota_rows: AtomicU64,
}

/// The place of the class of a request that may yet be of either class.
const NO_CLASS: usize = CLASSES.len();

impl Reservation {
    /// Makes the size and the class exact, for the engine is about to get the request.
    ///
    /// # Errors
    /// 400 `too_many_rows` or `larger_than_queue`, 429 `queue_full` or `class_quota`.
    pub(crate) fn admit(
        &self,
        rows: usize,
        tokens: usize,
        class: ExecutionClass,
    ) -> Result<(), ApiError> {
        self.set_rows(rows as u64)?;
        self.set_tokens(tokens as u64)?;
        self.set_class(class)
    }

    /// Counts the rows against the bound of this class, as far as the class is known.
    ///
    /// # Errors
    /// 400 `larger_than_queue`, 429 `class_quota`.
    pub(crate) fn set_class(&self, class: ExecutionClass) -> Result<(), ApiError> {
        let at = CLASSES.iter().position(|&c| c == class);
        let at = at.expect("every class is listed");
        let before = self.quota.swap(at, Ordering::Relaxed);
        if before != at && before != NO_CLASS {
            give_back(&self.admission.of_quota[before], &self.quota_rows);
        }
        self.charge_class()
    }

    /// Counts the rows against the bound of their class, if the class is known.
    fn charge_class(&self) -> Result<(), ApiError> {
        let at = self.quota.load(Ordering::Relaxed);
        let Some(total) = self.admission.of_quota.get(at) else {
            return Ok(());
        };
        let limits = &self.admission.limits;
        let max = [limits.queued_oneshot_rows, limits.queued_decode_rows][at];
        let max = max.unwrap_or(limits.queued_rows);
        let rows = self.rows.load(Ordering::Relaxed);
        let class = CLASSES[at].as_str();
        if rows > max {
            let what = format!("{class} rows");
            return Err(ApiError::larger_than_queue(&what, rows, max));
        }
        set(total, &self.quota_rows, rows, max).map_err(|queued| {
            let message = format!(
                "the queue has no room for more of this class: {queued} of {max} {class} rows"
            );
            let mine = self.tokens.load(Ordering::Relaxed);
            ApiError::class_quota(message, self.admission.retry_after(mine))
        })
    }

    /// Notes that an engine has the request, of this class.
    pub(crate) fn submitted(&self, class: ExecutionClass) {
        let at = CLASSES.iter().position(|&c| c == class);
        let at = at.expect("every class is listed");
        if self.class.set(at).is_err() {
            return;
        }
        let all = &self.admission.of_class[at];
        for (all, mine, amount) in [
            (&all.rows, &self.of_class.rows, &self.rows),
            (&all.tokens, &self.of_class.tokens, &self.tokens),
        ] {
            let amount = amount.load(Ordering::Relaxed);
            mine.store(amount, Ordering::Relaxed);
            all.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Makes the number of rows exact.
    ///
    /// # Errors
    /// 400 `too_many_rows`, 400 `larger_than_queue`, 429 `queue_full` or `class_quota`.
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
            let mine = self.tokens.load(Ordering::Relaxed);
            let retry = self.admission.retry_after(mine);
            queue_full("rows", queued, limits.queued_rows, retry)
        })?;
        self.charge_class()
    }

    /// Takes room for a request before it is known how many rows its `prompts` come to: for `rows`,
    /// but for no more than a request may have.
    ///
    /// # Errors
    /// 400 `too_many_rows` or `larger_than_queue` for as many rows as prompts, 429 `queue_full` or
    /// `class_quota`.
    pub(crate) fn expect_rows(&self, prompts: u64, rows: u64) -> Result<(), ApiError> {
        let limits = &self.admission.limits;
        self.set_rows(prompts.max(rows.min(limits.rows).min(limits.queued_rows)))
    }

    fn set_tokens(&self, tokens: u64) -> Result<(), ApiError> {
        let max = self.admission.limits.queued_tokens;
        if tokens > max {
            return Err(ApiError::larger_than_queue("prompt tokens", tokens, max));
        }
        set(&self.admission.tokens, &self.tokens, tokens, max).map_err(|queued| {
            let excess = (queued + tokens).saturating_sub(max);
            let retry = self.admission.retry_after(excess);
            queue_full("prompt tokens", queued, max, retry)
        })
    }

    /// Takes room for so many more values that are about to be made of the body.
    ///
    /// # Errors
    /// 429 `queue_full`.
    pub(crate) fn grow_values(&self, more: u64) -> Result<(), ApiError> {
        self.grow_bytes(more.saturating_mul(VALUE_BYTES))?;
        Ok(())
    }

    /// Takes room for `more` bytes, and returns how many it holds then.
    fn grow_bytes(&self, more: u64) -> Result<u64, ApiError> {
        let bytes = self.bytes.load(Ordering::Relaxed).saturating_add(more);
        let max = self.admission.limits.bodies_in_flight_bytes;
        set(&self.admission.body_bytes, &self.bytes, bytes, max).map_err(|held| {
            let message = format!("too much is being received: {held} of {max} bytes");
            ApiError::queue_full(message, Admission::soon())
        })?;
        self.holds(bytes);
        Ok(bytes)
    }

    /// Notes that the request holds so many bytes.
    fn holds(&self, bytes: u64) {
        if bytes >= LARGE_BYTES {
            self.is_large.store(true, Ordering::Relaxed);
        }
    }

    /// Takes room for `more` bytes of body, and for the tokens they may be.
    ///
    /// # Errors
    /// 429 `queue_full`.
    pub(crate) fn grow_body(&self, more: u64) -> Result<(), ApiError> {
        let bytes = self.grow_bytes(more)?;
        if !self.is_queued {
            return Ok(());
        }
        // A guess: that a body's worth of tokens would overfill an empty queue is for the
        // parsed request to say.
        let max = self.admission.limits.queued_tokens;
        self.set_tokens(bytes.div_ceil(BYTES_PER_TOKEN).min(max))
    }

    /// Takes room for `more` bytes of answer, before they are computed.
    ///
    /// # Errors
    /// 400 `larger_than_queue`, 429 `queue_full`.
    pub(crate) fn grow_answer(&self, more: u64) -> Result<(), ApiError> {
        let bytes = self.answer_bytes().saturating_add(more);
        let max = self.admission.limits.answers_in_flight_bytes;
        if bytes > max {
            return Err(ApiError::larger_than_queue("bytes of answer", bytes, max));
        }
        self.holds(bytes);
        set(&self.admission.answer_bytes, &self.answer_bytes, bytes, max)
            .map_err(|held| answers_full(held, max))
    }

    /// Returns about how long the answer will be, as far as room was taken for it.
    pub(crate) fn answer_bytes(&self) -> u64 {
        self.answer_bytes.load(Ordering::Relaxed)
    }

    /// Makes the length of the answer exact. Too late to refuse it: whatever it is, it counts for
    /// those that come.
    pub(crate) fn answered(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.holds(bytes);
        let total = &self.admission.answer_bytes;
        let before = self.answer_bytes.swap(bytes, Ordering::Relaxed);
        if bytes >= before {
            total.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            total.fetch_sub(before - bytes, Ordering::Relaxed);
        }
    }

    /// Gives the body's bytes back: it has been turned into ids.
    pub(crate) fn release_body(&self) {
        give_back(&self.admission.body_bytes, &self.bytes);
    }

    /// Gives everything but its answer back: the request waits no longer.
    pub(crate) fn release(&self) {
        self.release_body();
        give_back(&self.admission.rows, &self.rows);
        give_back(&self.admission.tokens, &self.tokens);
        let quota = self.quota.load(Ordering::Relaxed);
        if let Some(total) = self.admission.of_quota.get(quota) {
            give_back(total, &self.quota_rows);
        }
        if let Some(&at) = self.class.get() {
            let all = &self.admission.of_class[at];
            give_back(&all.rows, &self.of_class.rows);
            give_back(&all.tokens, &self.of_class.tokens);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
        give_back(&self.admission.answer_bytes, &self.answer_bytes);
        if *self.is_large.get_mut() {
            self.admission.give_back.ask();
        }
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
            answers_in_flight_bytes: 100,
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
    fn a_class_has_a_bound_of_its_own() {
        use ExecutionClass::{Decode, OneShot};
        let queue = Admission::new(Limits {
            queued_rows: 8,
            rows: 8,
            queued_decode_rows: Some(3),
            ..Limits::default()
        });
        let a = queue.reserve(0).unwrap();
        // Rows count whether they or the class are known first.
        assert_eq!(reason(a.set_rows(2)), "ok");
        assert_eq!(reason(a.set_class(Decode)), "ok");
        let b = queue.reserve(0).unwrap();
        assert_eq!(reason(b.set_class(Decode)), "ok");
        assert_eq!(reason(b.set_rows(2)), "class_quota");
        assert_eq!(reason(b.set_rows(4)), "larger_than_queue");
        let refused = queue.reserve(0).unwrap().set_class(Decode).unwrap_err();
        assert_eq!((refused.status(), refused.reason()), (429, "class_quota"));
        assert!(refused.retry_after().is_some());
        // The other class has all the room there is, and so has who turns out to be of it.
        assert_eq!(reason(b.set_class(OneShot)), "ok");
        assert_eq!(reason(b.set_rows(6)), "ok");
        a.release();
        let c = queue.reserve(0).unwrap();
        assert_eq!(reason(c.set_class(Decode)), "ok");
        assert_eq!(reason(c.set_rows(2)), "ok");
        drop((a, b, c));
        let left: Vec<u64> = queue
            .of_quota
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .collect();
        assert_eq!((queue.reserved(), left), ((0, 0, 0), vec![0, 0]));
    }

    #[test]
    fn answers_are_held_until_the_request_is_gone() {
        let queue = admission();
        let held = || queue.answer_bytes.load(Ordering::Relaxed);
        let (a, b) = (queue.reserve(0).unwrap(), queue.reserve(0).unwrap());
        assert_eq!(reason(a.grow_answer(50)), "ok");
        assert_eq!(reason(a.grow_answer(51)), "larger_than_queue");
        assert_eq!(reason(b.grow_answer(51)), "queue_full");
        assert_eq!(reason(b.grow_answer(40)), "ok");
        a.release();
        assert_eq!(held(), 90);
        // Shorter than expected, and longer, which nobody can refuse any more.
        a.answered(30);
        assert_eq!(reason(queue.check_answers()), "ok");
        b.answered(70);
        assert_eq!(held(), 100);
        assert_eq!(reason(queue.check_answers()), "queue_full");
        drop(b);
        assert_eq!(reason(queue.check_answers()), "ok");
        drop(a);
        assert_eq!(held(), 0);
    }

    #[test]
    fn rows_are_guessed_within_what_a_request_may_have() {
        let queue = admission();
        let a = queue.reserve(0).unwrap();
        assert_eq!(reason(a.expect_rows(1, 3)), "ok");
        assert_eq!(queue.reserved().0, 3);
        assert_eq!(reason(a.expect_rows(1, u64::MAX)), "ok");
        assert_eq!(queue.reserved().0, 3);
        let b = queue.reserve(0).unwrap();
        assert_eq!(reason(b.expect_rows(1, 2)), "queue_full");
        assert_eq!(reason(b.expect_rows(1, 1)), "ok");
    }

    #[test]
    fn a_slow_upload_reserves_only_arrived_bytes() {
        let queue = admission();
        // As much as the queue holds, announced and not sent.
        let slow: Vec<_> = (0..3).map(|_| queue.enter(90).unwrap()).collect();
        assert_eq!(queue.reserved(), (3, 0, 0));
        let quick = queue.enter(60).unwrap();
        assert_eq!(reason(quick.grow_body(60)), "ok");
        assert_eq!(queue.reserved(), (4, 20, 60));
        // What is sent takes room, and no more than there is.
        assert_eq!(reason(slow[0].grow_body(30)), "ok");
        assert_eq!(reason(slow[1].grow_body(1)), "queue_full");
        drop(slow);
        // What has no room now is refused before it is sent.
        assert_eq!(queue.enter(31).unwrap_err().reason(), "queue_full");
        assert_eq!(queue.enter_aside(31).unwrap_err().reason(), "queue_full");
        assert_eq!(queue.reserved(), (1, 20, 60));
    }

    #[test]
    fn waiting_requests_are_counted_by_class() {
        let queue = admission();
        let reserved = |rows, tokens| {
            let one = queue.reserve(0).unwrap();
            one.set_rows(rows).unwrap();
            one.set_tokens(tokens).unwrap();
            one
        };
        let (a, b, c) = (reserved(2, 5), reserved(1, 7), reserved(1, 9));
        a.submitted(ExecutionClass::OneShot);
        b.submitted(ExecutionClass::Decode);
        let expected = [("arriving", 1, 9), ("oneshot", 2, 5), ("decode", 1, 7)];
        assert_eq!(queue.waiting(), expected);
        a.release();
        drop(b);
        let expected = [("arriving", 1, 9), ("oneshot", 0, 0), ("decode", 0, 0)];
        assert_eq!(queue.waiting(), expected);
        drop((a, c));
        assert_eq!(queue.reserved(), (0, 0, 0));
    }

    #[test]
    fn times_follow_from_rates() {
        assert_eq!(time_for(1_000, None), Duration::ZERO);
        assert_eq!(time_for(1_000, Some(500.0)).as_secs(), 2);
        assert_eq!(time_for(u64::MAX, Some(0.0)).as_secs(), 86_400);
        // Nothing measured yet: no reason to send anybody away for long.
        assert_eq!(admission().retry_after(1 << 40).as_secs(), 1);
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
