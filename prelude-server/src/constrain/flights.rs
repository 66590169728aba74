//! Values that are dear to make are made once for all requests that want them, by a bounded number
//! of threads, and kept. So are refusals. Work that takes too long is told to stop.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use llguidance::CancellationHandle;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout, timeout_at},
};

use super::{
    bounds::TooComplex,
    cache::Cache,
    mask_threads::STACK_BYTES,
    source::{Failure, Refusal},
};

/// Most values that are made at the same time.
const MAX_COMPILING: usize = 2;
/// Most different values that may wait to be made.
const MAX_WAITING: usize = 64;
/// Most values, and most refusals, that are kept; values are bounded by their bytes as well.
const MAX_KEPT: usize = 1_024;
/// Refusals are a key and a few words, with a place in a schema.
const REFUSAL_BYTES: usize = 1 << 10;

type Key = [u8; 32];
type Outcome<T> = Result<Arc<T>, Failure>;

/// Tells work to stop, once it has taken too long.
#[derive(Debug, Default)]
pub(super) struct Stop(Mutex<Stopping>);

#[derive(Debug, Default)]
struct Stopping {
    is_stopped: bool,
    handle: Option<CancellationHandle>,
}

impl Stop {
    /// Fails once the work is to stop. Work asks between any two of its parts.
    pub(super) fn check(&self) -> Result<(), TooComplex> {
        match self.state().is_stopped {
            true => Err(TooComplex),
            false => Ok(()),
        }
    }

    /// Has `handle` cancelled as well: it ends a part of the work that would not ask.
    pub(super) fn set(&self, handle: CancellationHandle) {
        let mut state = self.state();
        if state.is_stopped {
            handle.cancel();
        }
        state.handle = Some(handle);
    }

    fn stop(&self) {
        let mut state = self.state();
        state.is_stopped = true;
        if let Some(handle) = &state.handle {
            handle.cancel();
        }
    }

    fn state(&self) -> MutexGuard<'_, Stopping> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Values of type `T` by content hash: kept, or being made.
#[derive(Debug)]
pub(super) struct Flights<T> {
    shelf: Arc<Mutex<Shelf<T>>>,
    permits: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shelf<T> {
    made: Cache<Arc<T>>,
    refused: Cache<Refusal>,
    in_flight: HashMap<Key, Flight<T>>,
}

/// Work under way.
#[derive(Debug)]
struct Flight<T> {
    stages: Arc<watch::Sender<Stage<T>>>,
    stop: Arc<Stop>,
}

impl<T> Clone for Flight<T> {
    fn clone(&self) -> Self {
        Self {
            stages: Arc::clone(&self.stages),
            stop: Arc::clone(&self.stop),
        }
    }
}

#[derive(Debug)]
enum Stage<T> {
    Waiting,
    Begun(Instant),
    Over(Outcome<T>),
}

/// A compiled value, or the state of making it.
enum Found<T> {
    Kept(Result<Arc<T>, Refusal>),
    Flying(watch::Receiver<Stage<T>>, Arc<Stop>),
}

impl<T: Send + Sync + 'static> Flights<T> {
    /// Keeps values of at most `max_bytes` bytes together.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            shelf: Arc::new(Mutex::new(Shelf {
                made: Cache::new(MAX_KEPT, max_bytes),
                refused: Cache::new(MAX_KEPT, MAX_KEPT * REFUSAL_BYTES),
                in_flight: HashMap::new(),
            })),
            permits: Arc::new(Semaphore::new(MAX_COMPILING)),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
        }
    }

    /// Returns the bytes of the values that are kept.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.shelf).made.bytes()
    }

    /// Returns the values that are known already.
    pub(super) fn kept(&self, key: &Key) -> Option<Result<Arc<T>, Refusal>> {
        lock(&self.shelf).kept(key)
    }

    /// Makes what `key` stands for, or waits for who is making it: at most `limit` for a thread,
    /// and as long for the thread. Work that takes longer is stopped, which is not remembered: it
    /// may be quicker on a less busy machine. `work` tells how many bytes its value has.
    ///
    /// # Errors
    /// [`Failure::Busy`] if too many wait or a thread did not become free in time,
    /// [`Refusal::TooComplex`] if making it takes longer; and what `work` returns.
    pub(super) async fn make(
        &self,
        key: Key,
        limit: Duration,
        work: impl FnOnce(&Stop) -> Result<(T, usize), Refusal> + Send + 'static,
    ) -> Outcome<T> {
        let (flight, stop) = match self.join(key, work)? {
            Found::Kept(kept) => return kept.map_err(Failure::Refused),
            Found::Flying(flight, stop) => (flight, stop),
        };
        let outcome = land(flight, limit).await;
        if matches!(outcome, Err(Failure::Refused(_))) {
            // Nothing is left to stop if the work itself refused.
            stop.stop();
        }
        outcome
    }

    fn join(
        &self,
        key: Key,
        work: impl FnOnce(&Stop) -> Result<(T, usize), Refusal> + Send + 'static,
    ) -> Result<Found<T>, Failure> {
        let mut shelf = lock(&self.shelf);
        // It may have arrived since the caller looked.
        if let Some(kept) = shelf.kept(&key) {
            return Ok(Found::Kept(kept));
        }
        if let Some(flight) = shelf.in_flight.get(&key) {
            let stop = Arc::clone(&flight.stop);
            return Ok(Found::Flying(flight.stages.subscribe(), stop));
        }
        let place = Arc::clone(&self.waiting).try_acquire_owned();
        let place = place.map_err(|_| Failure::Busy)?;
        let flight = Flight {
            stages: Arc::new(watch::Sender::new(Stage::Waiting)),
            stop: Arc::default(),
        };
        let found = Found::Flying(flight.stages.subscribe(), Arc::clone(&flight.stop));
        shelf.in_flight.insert(key, flight.clone());
        drop(shelf);
        let arrival = Arrival {
            shelf: Arc::clone(&self.shelf),
            key,
            flight: flight.clone(),
        };
        let permits = Arc::clone(&self.permits);
        // A task of its own: the request that came first may leave before the others.
        tokio::spawn(async move {
            let mut permits = pin!(permits.acquire_owned());
            let permit = loop {
                tokio::select! {
                    permit = &mut permits => {
                        break permit.expect("the semaphore is never closed");
                    }
                    () = flight.stages.closed() => {
                        if arrival.is_unwanted() {
                            return;
                        }
                    }
                }
            };
            drop(place);
            flight.stages.send_replace(Stage::Begun(Instant::now()));
            let begin = move || {
                let outcome = arrival.keep(work(&flight.stop));
                drop(permit);
                flight.stages.send_replace(Stage::Over(outcome));
            };
            let builder = thread::Builder::new().name("prelude-grammar".to_owned());
            // If no thread starts, the closure is dropped, and with it the stages, which ends the
            // flight.
            let _ = builder.stack_size(STACK_BYTES).spawn(begin);
        });
        Ok(found)
    }
}

/// Waits for the end of a flight, within bounds.
async fn land<T>(mut flight: watch::Receiver<Stage<T>>, limit: Duration) -> Outcome<T> {
    let has_begun = |stage: &Stage<T>| !matches!(stage, Stage::Waiting);
    let begun = match timeout(limit, flight.wait_for(has_begun)).await {
        Err(_) => return Err(Failure::Busy),
        Ok(Err(_)) => return Err(Failure::NoThread),
        Ok(Ok(stage)) => match &*stage {
            Stage::Over(outcome) => return outcome.clone(),
            Stage::Begun(at) => *at,
            Stage::Waiting => unreachable!("it was waited for"),
        },
    };
    let is_over = |stage: &Stage<T>| matches!(stage, Stage::Over(_));
    match timeout_at(begun + limit, flight.wait_for(is_over)).await {
        Err(_) => Err(Failure::Refused(Refusal::TooComplex)),
        Ok(Err(_)) => Err(Failure::NoThread),
        Ok(Ok(stage)) => match &*stage {
            Stage::Over(outcome) => outcome.clone(),
            _ => unreachable!("it was waited for"),
        },
    }
}

impl<T> Shelf<T> {
    fn kept(&mut self, key: &Key) -> Option<Result<Arc<T>, Refusal>> {
        let made = self.made.get(key).map(Ok);
        made.or_else(|| self.refused.get(key).map(Err))
    }

    fn refuse(&mut self, key: Key, refusal: Refusal) {
        self.refused.put(key, refusal, REFUSAL_BYTES);
    }
}

/// A flight's place on the shelf, which the flight leaves in any case.
struct Arrival<T> {
    shelf: Arc<Mutex<Shelf<T>>>,
    key: Key,
    flight: Flight<T>,
}

impl<T> Arrival<T> {
    /// Returns true if all requests that waited for the value have left; the value is no longer
    /// stored then.
    fn is_unwanted(&self) -> bool {
        let mut shelf = lock(&self.shelf);
        let unwanted = self.flight.stages.receiver_count() == 0;
        if unwanted {
            self.leave(&mut shelf);
        }
        unwanted
    }

    /// Takes this flight off the shelf, and not one that began after it had left.
    fn leave(&self, shelf: &mut Shelf<T>) {
        let flight = shelf.in_flight.get(&self.key);
        if flight.is_some_and(|flight| Arc::ptr_eq(&flight.stop, &self.flight.stop)) {
            shelf.in_flight.remove(&self.key);
        }
    }

    fn keep(self, outcome: Result<(T, usize), Refusal>) -> Outcome<T> {
        let mut shelf = lock(&self.shelf);
        self.leave(&mut shelf);
        match outcome {
            Ok((value, bytes)) => {
                let value = Arc::new(value);
                shelf.made.put(self.key, Arc::clone(&value), bytes);
                Ok(value)
            }
            Err(refusal) => {
                if self.flight.stop.check().is_ok() {
                    shelf.refuse(self.key, refusal.clone());
                }
                Err(Failure::Refused(refusal))
            }
        }
    }
}

impl<T> Drop for Arrival<T> {
    fn drop(&mut self) {
        self.leave(&mut lock(&self.shelf));
    }
}

fn lock<T>(shelf: &Mutex<Shelf<T>>) -> MutexGuard<'_, Shelf<T>> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn key(n: usize) -> Key {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        key
    }

    fn flights() -> Arc<Flights<usize>> {
        Arc::new(Flights::new(1_000))
    }

    type Made = Result<(usize, usize), Refusal>;

    /// Returns work that waits for a word, and the sender of the word.
    fn gated(value: usize) -> (mpsc::Sender<()>, impl FnOnce(&Stop) -> Made) {
        let (go, gate) = mpsc::channel();
        let work = move |_: &Stop| {
            let _ = gate.recv();
            Ok((value, 1))
        };
        (go, work)
    }

    #[tokio::test]
    async fn many_who_want_it_have_it_made_once() {
        let flights = flights();
        let made = Arc::new(AtomicUsize::new(0));
        let (go, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let wanted: Vec<_> = (0..20)
            .map(|_| {
                let (flights, made) = (Arc::clone(&flights), Arc::clone(&made));
                let gate = Arc::clone(&gate);
                tokio::spawn(async move {
                    let work = move |_: &Stop| {
                        let _ = gate.lock().unwrap().recv();
                        made.fetch_add(1, Ordering::Relaxed);
                        Ok((7, 1))
                    };
                    flights.make(key(1), LONG, work).await
                })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(go);
        for one in wanted {
            assert_eq!(*one.await.unwrap().unwrap(), 7);
        }
        assert_eq!(made.load(Ordering::Relaxed), 1);
        assert_eq!(flights.kept(&key(1)).unwrap().as_deref(), Ok(&7));
        assert!(lock(&flights.shelf).in_flight.is_empty());
    }

    #[tokio::test]
    async fn a_thread_that_does_not_come_free_is_not_waited_for() {
        let flights = flights();
        let mut held = Vec::new();
        for n in 0..MAX_COMPILING {
            let (go, work) = gated(n);
            held.push(go);
            let flights = Arc::clone(&flights);
            tokio::spawn(async move { flights.make(key(n), LONG, work).await });
        }
        while flights.permits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let limit = Duration::from_millis(1);
        let made = flights.make(key(9), limit, |_| Ok((9, 1))).await;
        assert!(matches!(made, Err(Failure::Busy)), "{made:?}");
        // That says nothing about what was wanted.
        assert!(flights.kept(&key(9)).is_none());
        drop(held);
        assert_eq!(
            *flights.make(key(9), LONG, |_| Ok((9, 1))).await.unwrap(),
            9
        );
    }

    #[tokio::test]
    async fn work_that_takes_too_long_is_stopped() {
        let flights = flights();
        let work = |stop: &Stop| {
            while stop.check().is_ok() {
                thread::yield_now();
            }
            stop.check()?;
            Ok((5, 1))
        };
        let made = flights.make(key(5), Duration::from_millis(1), work).await;
        assert!(matches!(made, Err(Failure::Refused(Refusal::TooComplex))));
        while !lock(&flights.shelf).in_flight.is_empty() {
            tokio::task::yield_now().await;
        }
        // That says nothing about the next time.
        assert_eq!(flights.kept(&key(5)), None);
        let made = flights.make(key(5), LONG, |_| Ok((5, 1))).await;
        assert_eq!(*made.unwrap(), 5);
        // A refusal of the work's own is remembered.
        let refuse = |_: &Stop| Err(Refusal::TooComplex);
        assert!(flights.make(key(6), LONG, refuse).await.is_err());
        assert_eq!(flights.kept(&key(6)), Some(Err(Refusal::TooComplex)));
    }

    #[tokio::test]
    async fn values_that_no_request_waits_for_are_not_made() {
        let flights = flights();
        let permits = Arc::clone(&flights.permits);
        let all = permits
            .acquire_many_owned(MAX_COMPILING as u32)
            .await
            .unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let wanted = tokio::spawn({
            let flights = Arc::clone(&flights);
            let work = move |_: &Stop| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok((1, 1))
            };
            async move { flights.make(key(1), LONG, work).await }
        });
        while lock(&flights.shelf).in_flight.is_empty() {
            tokio::task::yield_now().await;
        }
        wanted.abort();
        assert!(wanted.await.unwrap_err().is_cancelled());
        // That needs no free thread.
        while !lock(&flights.shelf).in_flight.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(made.load(Ordering::Relaxed), 0);
        drop(all);
        assert_eq!(flights.waiting.available_permits(), MAX_WAITING);
    }

    #[tokio::test]
    async fn a_panic_ends_the_flight() {
        let flights = flights();
        let made = flights.make(key(1), LONG, |_| panic!("on purpose")).await;
        assert!(matches!(made, Err(Failure::NoThread)), "{made:?}");
        assert_eq!(
            *flights.make(key(1), LONG, |_| Ok((1, 1))).await.unwrap(),
            1
        );
    }
}
