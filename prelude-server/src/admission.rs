//! Room in the queue, reserved before any heavy work and given back on every exit.
//!
//! A request reserves a row by its head, then bytes and a guess of its tokens as its body arrives
//! (there must be room for all that it declares), exactly once it is parsed and encoded, and lets
//! go when its first result arrives or when it ends in whatever way. The bytes of a long answer are
//! reserved before it is computed, and those of any answer are held until its client has taken it.
//! What does not fit is refused, never queued without bound.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
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

    /// Reserves room for a request whose head says that `bytes` will follow, for which there is room
    /// now: one row, if it will wait in the queue. The bytes are reserved as they arrive: a slow upload
    /// keeps no other request out.
    ///
    /// # Errors
    /// 429 `queue_full`.
    pub(crate) fn enter(
        self: &Arc<Self>,
        bytes: u64,
        is_queued: bool,
    ) -> Result<Reservation, ApiError> {
        let reservation = Reservation {
            admission: Arc::clone(self),
            is_queued,
            held: Mutex::default(),
        };
        let mut held = reservation.held();
        // What was taken before a refusal is given back as the reservation drops.
        if is_queued {
            held.set_rows(self, 1)?;
        }
        held.grow_body(self, bytes, is_queued)?;
        give_back(&self.body_bytes, &mut held.bytes);
        give_back(&self.tokens, &mut held.tokens);
        drop(held);
        Ok(reservation)
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

/// The known size of a request in the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Rows of the engine.
    pub(crate) rows: Option<u64>,
    /// Prompt tokens, those of shared prefixes once.
    pub(crate) tokens: Option<u64>,
    /// The class, against whose bound the rows count.
    pub(crate) class: Option<ExecutionClass>,
}

impl Cost {
    /// Returns the cost of so many rows.
    pub(crate) fn of_rows(rows: u64) -> Self {
        Self {
            rows: Some(rows),
            ..Self::default()
        }
    }

    /// Returns the cost of `prompts` before it is known how many rows they come to: `rows`, but no
    /// more than a request may have.
    pub(crate) fn of_prompts(prompts: u64, rows: u64, limits: &Limits) -> Self {
        Self::of_rows(prompts.max(rows.min(limits.rows).min(limits.queued_rows)))
    }
}

/// What a request is about to hold more of. A small body whose parts are put together again and again
/// may ask for far more than the body holds, so its prompts may fill the queue, and no more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Growth {
    /// Bytes of body, and the tokens they may be.
    Body(u64),
    /// Values that are about to be made of the body.
    Values(u64),
    /// Tokens of its prompts that are kept, or are about to be copied.
    Tokens(usize),
    /// So many bytes of text that are read so many times more, to learn where a prompt is cut.
    Reread(usize, usize),
    /// Bytes of answer, before they are computed.
    Answer(u64),
    /// Numbers of the answer: the one place that bounds them, for all endpoints.
    Numbers(u64, Printed),
}

/// The form in which an answer prints a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Printed {
    /// A decimal number.
    Decimal,
    /// Four bytes in base64, which count as a third of a number.
    Base64,
    /// A log-probability with its token and its rank, which count as two numbers.
    Logprob,
    /// A number of a hidden state that the answer is made of, which counts as a third of a number.
    State,
}

/// Most bytes of a number: `-1.1754944e-38,`.
const NUMBER_BYTES: u64 = 15;
/// Bytes of a number in base64.
const BASE64_BYTES: u64 = 6;
/// About how many bytes a log-probability has: token, log-probability, rank, offset.
pub(crate) const LOGPROB_BYTES: u64 = 128;
/// Bytes of text that stand for a token where text is read but not kept: what English has. Only
/// text that is read more than once is counted so, never what a body brings once.
const REREAD_BYTES_PER_TOKEN: u64 = 4;

/// The points that a request passes, at which it lets go of what it held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// The body has been turned into ids: its bytes are given back.
    Encoded,
    /// An engine has the request, of this class.
    Submitted(ExecutionClass),
    /// The first result is there: everything but the answer is given back.
    Started,
    /// The answer has this length. Too late to refuse it: whatever the length, it counts for those
    /// that come.
    Answered(usize),
}

/// A request's share of the queue. Dropping it gives everything back.
#[derive(Debug)]
pub(crate) struct Reservation {
    admission: Arc<Admission>,
    /// True if the request will wait in the queue. Its tokens are guessed by its bytes then.
    is_queued: bool,
    held: Mutex<Held>,
}

/// The parts of [`Admission`]'s totals that are one request's.
#[derive(Debug, Default)]
struct Held {
    rows: u64,
    tokens: u64,
    bytes: u64,
    /// Tokens of prompts so far; those that the queue counts are `tokens`.
    prompt_tokens: u64,
    reread_bytes: u64,
    /// Kept until the answer has been handed over or given up, unlike the rest.
    answer_bytes: u64,
    /// True if the request has held [`LARGE_BYTES`].
    is_large: bool,
    /// The class against whose bound `quota_rows` count, by [`CLASSES`], once it is known.
    quota: Option<usize>,
    quota_rows: u64,
    /// The class, rows and tokens that an engine has.
    engine: Option<(usize, u64, u64)>,
}

impl Reservation {
    /// Makes exact what is known of the request's size. What is held already is kept if there is no
    /// room.
    ///
    /// # Errors
    /// 400 `too_many_rows` or `larger_than_queue`, 429 `queue_full` or `class_quota`.
    pub(crate) fn admit(&self, cost: Cost) -> Result<(), ApiError> {
        let mut held = self.held();
        if let Some(rows) = cost.rows {
            held.set_rows(&self.admission, rows)?;
        }
        if let Some(tokens) = cost.tokens {
            held.set_tokens(&self.admission, tokens)?;
        }
        match cost.class {
            Some(class) => held.set_class(&self.admission, place_of(class)),
            None => Ok(()),
        }
    }

    /// Takes room for more.
    ///
    /// # Errors
    /// 400 `larger_than_queue` or `too_many_numbers` for what never fits, 429 `queue_full`.
    pub(crate) fn grow(&self, more: Growth) -> Result<(), ApiError> {
        let mut held = self.held();
        match more {
            Growth::Body(bytes) => held.grow_body(&self.admission, bytes, self.is_queued),
            Growth::Values(values) => {
                held.grow_bytes(&self.admission, values.saturating_mul(VALUE_BYTES))
            }
            Growth::Tokens(tokens) => {
                let max = self.admission.limits.queued_tokens;
                add(&mut held.prompt_tokens, tokens as u64, "prompt tokens", max)
            }
            Growth::Reread(bytes, times) => {
                let max = self.admission.limits.queued_tokens;
                let max = max.saturating_mul(REREAD_BYTES_PER_TOKEN);
                let more = (bytes as u64).saturating_mul(times as u64);
                let what = "bytes of text read again to be cut (about four a token)";
                add(&mut held.reread_bytes, more, what, max)
            }
            Growth::Answer(bytes) => held.grow_answer(&self.admission, bytes),
            Growth::Numbers(count, printed) => {
                let (numbers, bytes) = match printed {
                    Printed::Decimal => (count, NUMBER_BYTES),
                    Printed::Base64 => (count.div_ceil(3), BASE64_BYTES),
                    Printed::Logprob => (count.saturating_mul(2), LOGPROB_BYTES),
                    Printed::State => (count.div_ceil(3), size_of::<f32>() as u64),
                };
                let max = self.admission.limits.answer_numbers;
                if numbers > max {
                    return Err(ApiError::too_many_numbers(numbers, max));
                }
                held.grow_answer(&self.admission, count.saturating_mul(bytes))
            }
        }
    }

    /// Notes that the request has come to this point.
    pub(crate) fn reach(&self, stage: Stage) {
        let (queue, mut held) = (&*self.admission, self.held());
        match stage {
            Stage::Encoded => give_back(&queue.body_bytes, &mut held.bytes),
            Stage::Submitted(class) => held.submitted(queue, place_of(class)),
            Stage::Started => held.release(queue),
            Stage::Answered(bytes) => {
                held.release(queue);
                held.answered(queue, bytes as u64);
            }
        }
    }

    /// Returns about how long the answer will be, as far as room was taken for it.
    pub(crate) fn answer_bytes(&self) -> u64 {
        self.held().answer_bytes
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn set_rows(&mut self, queue: &Admission, rows: u64) -> Result<(), ApiError> {
        let limits = &queue.limits;
        if rows > limits.rows {
            return Err(ApiError::too_many_rows(rows, limits.rows));
        }
        let max = limits.queued_rows;
        if rows > max {
            return Err(ApiError::larger_than_queue("rows", rows, max));
        }
        set(&queue.rows, &mut self.rows, rows, max)
            .map_err(|queued| queue_full("rows", queued, max, queue.retry_after(self.tokens)))?;
        self.charge_class(queue)
    }

    fn set_tokens(&mut self, queue: &Admission, tokens: u64) -> Result<(), ApiError> {
        let max = queue.limits.queued_tokens;
        if tokens > max {
            return Err(ApiError::larger_than_queue("prompt tokens", tokens, max));
        }
        set(&queue.tokens, &mut self.tokens, tokens, max).map_err(|queued| {
            let retry = queue.retry_after((queued + tokens).saturating_sub(max));
            queue_full("prompt tokens", queued, max, retry)
        })
    }

    /// Counts the rows against the bound of this class.
    fn set_class(&mut self, queue: &Admission, class: usize) -> Result<(), ApiError> {
        match self.quota.replace(class) {
            Some(before) if before != class => {
                give_back(&queue.of_quota[before], &mut self.quota_rows);
            }
            _ => (),
        }
        self.charge_class(queue)
    }

    /// Counts the rows against the bound of their class, if the class is known.
    fn charge_class(&mut self, queue: &Admission) -> Result<(), ApiError> {
        let Some(at) = self.quota else {
            return Ok(());
        };
        let limits = &queue.limits;
        let max = [limits.queued_oneshot_rows, limits.queued_decode_rows][at];
        let max = max.unwrap_or(limits.queued_rows);
        let class = CLASSES[at].as_str();
        if self.rows > max {
            let what = format!("{class} rows");
            return Err(ApiError::larger_than_queue(&what, self.rows, max));
        }
        set(&queue.of_quota[at], &mut self.quota_rows, self.rows, max).map_err(|queued| {
            let message = format!(
                "the queue has no room for more of this class: {queued} of {max} {class} rows"
            );
            ApiError::class_quota(message, queue.retry_after(self.tokens))
        })
    }

    /// Takes room for bytes of a body and of what is made of it.
    fn grow_bytes(&mut self, queue: &Admission, more: u64) -> Result<(), ApiError> {
        let bytes = self.bytes.saturating_add(more);
        let max = queue.limits.bodies_in_flight_bytes;
        if bytes > max {
            let what = "bytes of a request and of what it becomes";
            return Err(ApiError::larger_than_queue(what, bytes, max));
        }
        set(&queue.body_bytes, &mut self.bytes, bytes, max).map_err(|held| {
            let message = format!("too much is being received: {held} of {max} bytes");
            ApiError::queue_full(message, Admission::soon())
        })?;
        self.is_large |= bytes >= LARGE_BYTES;
        Ok(())
    }

    fn grow_body(&mut self, queue: &Admission, more: u64, is_queued: bool) -> Result<(), ApiError> {
        self.grow_bytes(queue, more)?;
        if !is_queued {
            return Ok(());
        }
        // A guess: that a body's worth of tokens would overfill an empty queue is for the
        // parsed request to say.
        let max = queue.limits.queued_tokens;
        self.set_tokens(queue, self.bytes.div_ceil(BYTES_PER_TOKEN).min(max))
    }

    fn grow_answer(&mut self, queue: &Admission, more: u64) -> Result<(), ApiError> {
        let bytes = self.answer_bytes.saturating_add(more);
        let max = queue.limits.answers_in_flight_bytes;
        if bytes > max {
            return Err(ApiError::larger_than_queue("bytes of answer", bytes, max));
        }
        self.is_large |= bytes >= LARGE_BYTES;
        set(&queue.answer_bytes, &mut self.answer_bytes, bytes, max)
            .map_err(|held| answers_full(held, max))
    }

    /// Makes the length of the answer exact.
    fn answered(&mut self, queue: &Admission, bytes: u64) {
        self.is_large |= bytes >= LARGE_BYTES;
        give_back(&queue.answer_bytes, &mut self.answer_bytes);
        queue.answer_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.answer_bytes = bytes;
    }

    /// Counts the request as one that an engine has.
    fn submitted(&mut self, queue: &Admission, class: usize) {
        if self.engine.is_none() {
            self.engine = Some((class, self.rows, self.tokens));
            let all = &queue.of_class[class];
            all.rows.fetch_add(self.rows, Ordering::Relaxed);
            all.tokens.fetch_add(self.tokens, Ordering::Relaxed);
        }
    }

    /// Gives everything but the answer back: the request waits no longer.
    fn release(&mut self, queue: &Admission) {
        give_back(&queue.body_bytes, &mut self.bytes);
        give_back(&queue.rows, &mut self.rows);
        give_back(&queue.tokens, &mut self.tokens);
        if let Some(at) = self.quota {
            give_back(&queue.of_quota[at], &mut self.quota_rows);
        }
        if let Some((class, rows, tokens)) = &mut self.engine {
            give_back(&queue.of_class[*class].rows, rows);
            give_back(&queue.of_class[*class].tokens, tokens);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        held.release(&self.admission);
        give_back(&self.admission.answer_bytes, &mut held.answer_bytes);
        if held.is_large {
            self.admission.give_back.ask();
        }
    }
}

/// Returns the place of a class in [`CLASSES`].
fn place_of(class: ExecutionClass) -> usize {
    let at = CLASSES.iter().position(|&c| c == class);
    at.expect("every class is listed")
}

/// Changes `mine`, a part of `total`, to `amount`; if `total` would exceed `max`, changes nothing
/// and returns `total`.
fn set(total: &AtomicU64, mine: &mut u64, amount: u64, max: u64) -> Result<(), u64> {
    if amount <= *mine {
        total.fetch_sub(*mine - amount, Ordering::Relaxed);
    } else {
        let more = amount - *mine;
        total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |t| {
            t.checked_add(more).filter(|&t| t <= max)
        })?;
    }
    *mine = amount;
    Ok(())
}

fn give_back(total: &AtomicU64, mine: &mut u64) {
    total.fetch_sub(std::mem::take(mine), Ordering::Relaxed);
}

/// Adds to a sum of one request alone.
///
/// # Errors
/// 400 `larger_than_queue`.
fn add(sum: &mut u64, more: u64, what: &str, max: u64) -> Result<(), ApiError> {
    *sum = sum.saturating_add(more);
    match *sum > max {
        true => Err(ApiError::larger_than_queue(what, *sum, max)),
        false => Ok(()),
    }
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

    /// One question at a time.
    impl Reservation {
        fn set_rows(&self, rows: u64) -> Result<(), ApiError> {
            self.admit(Cost::of_rows(rows))
        }

        fn set_tokens(&self, tokens: u64) -> Result<(), ApiError> {
            self.admit(Cost {
                tokens: Some(tokens),
                ..Cost::default()
            })
        }

        fn set_class(&self, class: ExecutionClass) -> Result<(), ApiError> {
            self.admit(Cost {
                class: Some(class),
                ..Cost::default()
            })
        }

        fn expect_rows(&self, prompts: u64, rows: u64) -> Result<(), ApiError> {
            self.admit(Cost::of_prompts(prompts, rows, &self.admission.limits))
        }
    }

    impl Admission {
        /// Reserves one row and what a body of `bytes` may hold.
        fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, ApiError> {
            let reservation = self.enter(0, true)?;
            reservation.grow(Growth::Body(bytes))?;
            Ok(reservation)
        }
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

        a.reach(Stage::Started);
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
        a.reach(Stage::Started);
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
        assert_eq!(reason(a.grow(Growth::Answer(50))), "ok");
        assert_eq!(reason(a.grow(Growth::Answer(51))), "larger_than_queue");
        assert_eq!(reason(b.grow(Growth::Answer(51))), "queue_full");
        assert_eq!(reason(b.grow(Growth::Answer(40))), "ok");
        a.reach(Stage::Started);
        assert_eq!(held(), 90);
        // Shorter than expected, and longer, which nobody can refuse any more.
        a.reach(Stage::Answered(30));
        assert_eq!(reason(queue.check_answers()), "ok");
        b.reach(Stage::Answered(70));
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
    fn prompts_are_no_larger_than_the_queue() {
        let queue = admission();
        let a = queue.reserve(0).unwrap();
        assert_eq!(reason(a.grow(Growth::Tokens(14))), "ok");
        assert_eq!(reason(a.grow(Growth::Tokens(16))), "ok");
        assert_eq!(reason(a.grow(Growth::Tokens(1))), "larger_than_queue");
        assert_eq!(reason(a.grow(Growth::Reread(30, 3))), "ok");
        assert_eq!(reason(a.grow(Growth::Reread(30, 1))), "ok");
        assert_eq!(reason(a.grow(Growth::Reread(1, 1))), "larger_than_queue");
        let most = Growth::Reread(usize::MAX, usize::MAX);
        let refused = queue.reserve(0).unwrap().grow(most).unwrap_err();
        assert_eq!(refused.status(), 400);
        // The queue counts them once all are known.
        assert_eq!(queue.reserved(), (1, 0, 0));
    }

    #[test]
    fn a_slow_upload_reserves_only_arrived_bytes() {
        let queue = admission();
        // As much as the queue holds, announced and not sent.
        let slow: Vec<_> = (0..3).map(|_| queue.enter(90, true).unwrap()).collect();
        assert_eq!(queue.reserved(), (3, 0, 0));
        let quick = queue.enter(60, true).unwrap();
        assert_eq!(reason(quick.grow(Growth::Body(60))), "ok");
        assert_eq!(queue.reserved(), (4, 20, 60));
        // What is sent takes room, and no more than there is.
        assert_eq!(reason(slow[0].grow(Growth::Body(30))), "ok");
        assert_eq!(reason(slow[1].grow(Growth::Body(1))), "queue_full");
        drop(slow);
        // What has no room now is refused before it is sent.
        assert_eq!(queue.enter(31, true).unwrap_err().reason(), "queue_full");
        assert_eq!(queue.enter(31, false).unwrap_err().reason(), "queue_full");
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
        a.reach(Stage::Submitted(ExecutionClass::OneShot));
        b.reach(Stage::Submitted(ExecutionClass::Decode));
        let expected = [("arriving", 1, 9), ("oneshot", 2, 5), ("decode", 1, 7)];
        assert_eq!(queue.waiting(), expected);
        a.reach(Stage::Started);
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
        // More than the queue ever holds: no reason to come again.
        let refused = queue.reserve(91).unwrap_err();
        assert_eq!(
            (refused.status(), refused.reason()),
            (400, "larger_than_queue")
        );
        assert_eq!(queue.reserved(), (0, 0, 0));
        let a = queue.reserve(60).unwrap();
        let refused = queue.reserve(33).unwrap_err();
        assert_eq!((refused.status(), refused.reason()), (429, "queue_full"));
        assert!(refused.retry_after().is_some());
        assert_eq!(queue.reserved(), (1, 20, 60));
        assert_eq!(reason(a.grow(Growth::Body(30))), "ok");
        assert_eq!(reason(a.grow(Growth::Body(1))), "larger_than_queue");
    }
}
