//! What is dear to make is made once for all who want it, by a bounded number of threads, within
//! a time, and kept. So are refusals: what was too dear once is not tried again by everybody.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout, timeout_at},
};

use super::{
    cache::Cache,
    mask_threads::STACK_BYTES,
    source::{Failure, Refusal},
};

/// Made at the same time.
const THREADS: usize = 2;
/// Different ones that may wait for one of the threads.
const WAITING: usize = 64;
/// Kept of each kind; values by their bytes as well.
const KEPT: usize = 1_024;
/// Refusals are a key and a few words.
const REFUSAL_BYTES: usize = 256;

type Key = [u8; 32];
type Outcome<T> = Result<Arc<T>, Failure>;

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
    in_flight: HashMap<Key, Arc<watch::Sender<Stage<T>>>>,
}

#[derive(Debug)]
enum Stage<T> {
    Waiting,
    Begun(Instant),
    Over(Outcome<T>),
}

/// What is found on the shelf, or the way there.
enum Found<T> {
    Kept(Result<Arc<T>, Refusal>),
    Flying(watch::Receiver<Stage<T>>),
}

impl<T: Send + Sync + 'static> Flights<T> {
    /// Keeps values of at most `max_bytes` bytes together.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            shelf: Arc::new(Mutex::new(Shelf {
                made: Cache::new(KEPT, max_bytes),
                refused: Cache::new(KEPT, KEPT * REFUSAL_BYTES),
                in_flight: HashMap::new(),
            })),
            permits: Arc::new(Semaphore::new(THREADS)),
            waiting: Arc::new(Semaphore::new(WAITING)),
        }
    }

    /// What is known already.
    pub(super) fn kept(&self, key: &Key) -> Option<Result<Arc<T>, Refusal>> {
        lock(&self.shelf).kept(key)
    }

    /// Makes what `key` stands for, or waits for who is making it: at most `limit` for a thread,
    /// and as long for the thread. One that takes longer goes on, and what it makes is kept.
    /// `work` tells how many bytes its value has.
    ///
    /// # Errors
    /// [`Failure::Busy`] if too many wait or a thread did not become free in time,
    /// [`Refusal::TooComplex`] if making it takes longer; and what `work` returns.
    pub(super) async fn make(
        &self,
        key: Key,
        limit: Duration,
        work: impl FnOnce() -> Result<(T, usize), Refusal> + Send + 'static,
    ) -> Outcome<T> {
        let flight = match self.join(key, work)? {
            Found::Kept(kept) => return kept.map_err(Failure::Refused),
            Found::Flying(flight) => flight,
        };
        let outcome = land(flight, limit).await;
        if let Err(Failure::Refused(refusal)) = &outcome {
            let mut shelf = lock(&self.shelf);
            // Else it is over by now, and kept as it ended.
            if shelf.in_flight.contains_key(&key) {
                shelf.refuse(key, refusal.clone());
            }
        }
        outcome
    }

    fn join(
        &self,
        key: Key,
        work: impl FnOnce() -> Result<(T, usize), Refusal> + Send + 'static,
    ) -> Result<Found<T>, Failure> {
        let mut shelf = lock(&self.shelf);
        // It may have arrived since the caller looked.
        if let Some(kept) = shelf.kept(&key) {
            return Ok(Found::Kept(kept));
        }
        if let Some(flight) = shelf.in_flight.get(&key) {
            return Ok(Found::Flying(flight.subscribe()));
        }
        let place = Arc::clone(&self.waiting).try_acquire_owned();
        let place = place.map_err(|_| Failure::Busy)?;
        let stages = Arc::new(watch::Sender::new(Stage::Waiting));
        let flight = stages.subscribe();
        shelf.in_flight.insert(key, Arc::clone(&stages));
        drop(shelf);
        let arrival = Arrival {
            shelf: Arc::clone(&self.shelf),
            key,
            stages: Arc::clone(&stages),
        };
        let permits = Arc::clone(&self.permits);
        // A task of its own: whoever wanted it first may leave before the others.
        tokio::spawn(async move {
            let mut permits = pin!(permits.acquire_owned());
            let permit = loop {
                tokio::select! {
                    permit = &mut permits => {
                        break permit.expect("the semaphore is never closed");
                    }
                    () = stages.closed() => {
                        if arrival.is_unwanted() {
                            return;
                        }
                    }
                }
            };
            drop(place);
            stages.send_replace(Stage::Begun(Instant::now()));
            let begin = move || {
                let outcome = arrival.keep(work());
                drop(permit);
                stages.send_replace(Stage::Over(outcome));
            };
            let builder = thread::Builder::new().name("prelude-grammar".to_owned());
            // Without a thread the closure is dropped, and with it the stages.
            let _ = builder.stack_size(STACK_BYTES).spawn(begin);
        });
        Ok(Found::Flying(flight))
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
        // A value first: what took too long may have been made after all.
        let made = self.made.get(key).map(Ok);
        made.or_else(|| self.refused.get(key).map(Err))
    }

    fn refuse(&mut self, key: Key, refusal: Refusal) {
        self.refused.put(key, refusal, REFUSAL_BYTES);
    }
}

/// A flight's place on the shelf, which it leaves in any case.
struct Arrival<T> {
    shelf: Arc<Mutex<Shelf<T>>>,
    key: Key,
    stages: Arc<watch::Sender<Stage<T>>>,
}

impl<T> Arrival<T> {
    /// Whether everybody who wanted it has left; it is off the shelf then.
    fn is_unwanted(&self) -> bool {
        let mut shelf = lock(&self.shelf);
        let unwanted = self.stages.receiver_count() == 0;
        if unwanted {
            self.leave(&mut shelf);
        }
        unwanted
    }

    /// Takes this flight off the shelf, and not one that began after it had left.
    fn leave(&self, shelf: &mut Shelf<T>) {
        let flight = shelf.in_flight.get(&self.key);
        if flight.is_some_and(|flight| Arc::ptr_eq(flight, &self.stages)) {
            shelf.in_flight.remove(&self.key);
        }
    }

    fn keep(self, outcome: Result<(T, usize), Refusal>) -> Outcome<T> {
        let mut shelf = lock(&self.shelf);
        self.leave(&mut shelf);
        match outcome {
            Ok((value, bytes)) => {
                let value = Arc::new(value);
                shelf.refused.remove(&self.key);
                shelf.made.put(self.key, Arc::clone(&value), bytes);
                Ok(value)
            }
            Err(refusal) => {
                shelf.refuse(self.key, refusal.clone());
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

    /// Work that waits for a word, and the word.
    fn gated(
        value: usize,
    ) -> (
        mpsc::Sender<()>,
        impl FnOnce() -> Result<(usize, usize), Refusal>,
    ) {
        let (go, gate) = mpsc::channel();
        let work = move || {
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
                    let work = move || {
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
        for n in 0..THREADS {
            let (go, work) = gated(n);
            held.push(go);
            let flights = Arc::clone(&flights);
            tokio::spawn(async move { flights.make(key(n), LONG, work).await });
        }
        while flights.permits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let limit = Duration::from_millis(1);
        let made = flights.make(key(9), limit, || Ok((9, 1))).await;
        assert!(matches!(made, Err(Failure::Busy)), "{made:?}");
        // That says nothing about what was wanted.
        assert!(flights.kept(&key(9)).is_none());
        drop(held);
        assert_eq!(*flights.make(key(9), LONG, || Ok((9, 1))).await.unwrap(), 9);
    }

    #[tokio::test]
    async fn what_takes_too_long_is_remembered_until_it_is_there() {
        let flights = flights();
        let (go, work) = gated(5);
        let made = flights.make(key(5), Duration::from_millis(1), work).await;
        let too_complex = Err(Refusal::TooComplex);
        assert!(matches!(made, Err(Failure::Refused(Refusal::TooComplex))));
        assert_eq!(flights.kept(&key(5)), Some(too_complex));
        let nobody = || unreachable!("it is known to take too long");
        let again = flights.make(key(5), LONG, nobody).await;
        assert!(matches!(again, Err(Failure::Refused(Refusal::TooComplex))));
        go.send(()).unwrap();
        while flights.kept(&key(5)) != Some(Ok(Arc::new(5))) {
            tokio::task::yield_now().await;
        }
        // A refusal of the work's own is remembered too.
        let refuse = || Err(Refusal::TooComplex);
        assert!(flights.make(key(6), LONG, refuse).await.is_err());
        assert_eq!(flights.kept(&key(6)), Some(Err(Refusal::TooComplex)));
    }

    #[tokio::test]
    async fn what_nobody_wants_any_more_is_not_made() {
        let flights = flights();
        let permits = Arc::clone(&flights.permits);
        let all = permits.acquire_many_owned(THREADS as u32).await.unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let wanted = tokio::spawn({
            let flights = Arc::clone(&flights);
            let work = move || {
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
        // Nobody has to come free for that.
        while !lock(&flights.shelf).in_flight.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(made.load(Ordering::Relaxed), 0);
        drop(all);
        assert_eq!(flights.waiting.available_permits(), WAITING);
    }

    #[tokio::test]
    async fn a_panic_ends_the_flight() {
        let flights = flights();
        let made = flights.make(key(1), LONG, || panic!("on purpose")).await;
        assert!(matches!(made, Err(Failure::NoThread)), "{made:?}");
        assert_eq!(*flights.make(key(1), LONG, || Ok((1, 1))).await.unwrap(), 1);
    }
}
