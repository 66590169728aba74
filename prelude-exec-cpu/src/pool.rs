//! Threads: a small fork-join pool, and safe ways to split a buffer among its workers.
//!
//! A layer of a decode step is a handful of joins of 0.1 ms each, so a join must cost little:
//! the caller takes part as worker 0, workers spin for a moment before they park, and a worker
//! that wakes late never delays a join (it may only enter a job while the job is open). Where
//! steps follow each other closely they spin from one step to the next: waking a thread takes
//! longer than a small model's layer.
//!
//! ```text
//! state: | epoch (32) | unused (15) | open (1) | workers inside (16) |
//!
//! caller   publish job, epoch + 1, open ── take tasks ── close ── wait until no thread is inside
//! worker        see open with a new epoch, enter (+1) ── take tasks ── leave (-1)
//! ```
//!
//! Several executors share one pool. [`ComputePool::take_turn`] hands it over step by step in
//! the order of asking, so that two models alternate under load.
#![expect(
    unsafe_code,
    reason = "a scoped closure is lent to persistent threads; disjoint parts of a slice are handed to tasks"
)]

use std::{
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The time that a worker spins for the next job before it parks: a few times the gap between two
/// operations of a step, far below what an idle server would notice.
const SPIN: Duration = Duration::from_micros(60);

/// The time that a worker spins if most of the latest pauses were no longer: what passes between
/// two short requests of a client that asks again at once.
const SPIN_FOR_STEP: Duration = Duration::from_micros(200);

/// A worker that has waited for so long is between two steps, and lets others have its core if
/// they want it: the client whose answer the step was, before all.
const BETWEEN_STEPS: Duration = Duration::from_micros(20);

/// Least number of short pauses among the last eight between steps.
const SHORT_PAUSES: u32 = 5;

/// Jobs estimated below this run on the caller alone: a join costs 1 to 3 µs when workers spin
/// and about 10 µs when one must be woken.
const SERIAL_NS: usize = 12_000;

const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const EPOCH_SHIFT: u32 = 32;

/// A job: tasks `0..tasks` of one closure. Each worker begins with its own part of them, the same in
/// every job over the same rows: what it reads lies in its own cache then, since it wrote it. Reading
/// what another core wrote takes about five times as long where the two share no cache. A worker whose
/// part is done takes tasks of the others' parts.
struct Job<'a> {
    run: &'a (dyn Fn(usize, usize) + Sync),
    tasks: usize,
    /// The next task of each worker's part.
    parts: &'a [Part],
    panicked: AtomicBool,
}

/// The next task of a part of a job, on cache lines of its own.
#[repr(align(128))]
struct Part(AtomicUsize);

impl<'a> Job<'a> {
    fn new(run: &'a (dyn Fn(usize, usize) + Sync), tasks: usize, parts: &'a [Part]) -> Self {
        let job = Self {
            run,
            tasks,
            parts,
            panicked: AtomicBool::new(false),
        };
        for (n, part) in parts.iter().enumerate() {
            part.0.store(job.begin(n), Ordering::Relaxed);
        }
        job
    }

    /// Returns the first task of part `n`, which is also the end of the part before.
    const fn begin(&self, n: usize) -> usize {
        self.tasks * n / self.parts.len()
    }

    fn work(&self, worker: usize) {
        let count = self.parts.len();
        for n in (worker..count).chain(0..worker) {
            let end = self.begin(n + 1);
            loop {
                let task = self.parts[n].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                (self.run)(task, worker);
            }
        }
    }

    /// Lets no thread take another task.
    fn stop(&self) {
        for part in self.parts {
            part.0.store(self.tasks, Ordering::Relaxed);
        }
    }
}

struct Shared {
    state: AtomicU64,
    job: AtomicPtr<Job<'static>>,
    sleepers: AtomicUsize,
    stop: AtomicBool,
    gate: Mutex<()>,
    wake: Condvar,
}

/// Worker threads for the executors of one process.
///
/// ```
/// let pool = prelude_exec_cpu::ComputePool::new(2);
/// assert_eq!(pool.threads(), 2);
/// ```
pub struct ComputePool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a job runs: one job at a time, which uses the parts, one for each worker.
    job: Mutex<Box<[Part]>>,
    turns: Mutex<Turns>,
    turn_over: Condvar,
}

#[derive(Default)]
struct Turns {
    next: u64,
    serving: u64,
}

/// The right to use the pool for one step. Dropping it serves the next in line.
#[must_use = "the turn ends when this is dropped"]
pub struct Turn<'a>(&'a ComputePool);

impl std::fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Turn")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = lock(&self.0.turns);
        turns.serving += 1;
        let is_awaited = turns.serving != turns.next;
        drop(turns);
        // Waking is a system call, even if no thread waits.
        if is_awaited {
            self.0.turn_over.notify_all();
        }
    }
}

impl std::fmt::Debug for ComputePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComputePool")
            .field("threads", &self.threads())
            .finish()
    }
}

/// Locks a mutex whose data stays valid when a holder panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ComputePool {
    /// Returns a pool of `threads` workers, the caller of each job being one of them; at least 1.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            gate: Mutex::new(()),
            wake: Condvar::new(),
        });
        let workers = (1..threads.clamp(1, INSIDE as usize))
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                // A system short of threads leaves the pool smaller, which is slower and right.
                thread::Builder::new()
                    .name(format!("prelude-cpu-{index}"))
                    .spawn(move || shared.serve(index))
                    .ok()
            })
            .collect::<Vec<_>>();
        let parts = (0..=workers.len()).map(|_| Part(AtomicUsize::new(0)));
        Self {
            shared,
            job: Mutex::new(parts.collect()),
            workers,
            turns: Mutex::default(),
            turn_over: Condvar::new(),
        }
    }

    /// Returns a pool as large as the machine allows this process: affinity and cgroup quota count.
    #[must_use]
    pub fn for_machine() -> Self {
        Self::new(thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }

    /// Returns the number of workers, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Waits for this caller's turn, first come first served.
    pub fn take_turn(&self) -> Turn<'_> {
        let mut turns = lock(&self.turns);
        let mine = turns.next;
        turns.next += 1;
        while turns.serving != mine {
            turns = self
                .turn_over
                .wait(turns)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(turns);
        Turn(self)
    }

    /// Returns true if some thread has a turn now, so that the next one would have to wait.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        let turns = lock(&self.turns);
        turns.serving != turns.next
    }

    /// Runs `f(task, worker)` for every task in `0..tasks`, on all workers if the whole is
    /// estimated to take long enough (`cost_ns`, on one core). `worker < self.threads()`; two
    /// tasks that run at the same time have different workers.
    ///
    /// # Panics
    /// If a task panics, after all workers have left the job.
    pub(crate) fn run(&self, tasks: usize, cost_ns: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        if tasks <= 1 || cost_ns < SERIAL_NS || self.workers.is_empty() {
            for task in 0..tasks {
                f(task, 0);
            }
            return;
        }
        let parts = lock(&self.job);
        let job = Job::new(f, tasks, &parts);
        self.shared.open(&job);
        let result = catch_unwind(AssertUnwindSafe(|| job.work(0)));
        if result.is_err() {
            job.stop();
        }
        self.shared.close();
        if let Err(payload) = result {
            resume_unwind(payload);
        }
        assert!(
            !job.panicked.load(Ordering::Relaxed),
            "a task panicked on a worker thread"
        );
    }

    /// Runs `f(worker, first_row, rows)` over `data` in blocks of `block` rows of `width`.
    pub(crate) fn rows<T: Send>(
        &self,
        data: &mut [T],
        width: usize,
        block: usize,
        cost_ns: usize,
        f: impl Fn(usize, usize, &mut [T]) + Sync,
    ) {
        let rows = data.len() / width;
        let parts = Disjoint::new(data);
        self.run(rows.div_ceil(block), cost_ns, &|task, worker| {
            let first = task * block;
            let last = (first + block).min(rows);
            // SAFETY: tasks are distinct and each takes rows of its own block only.
            let part = unsafe { parts.slice(first * width, (last - first) * width) };
            f(worker, first, part);
        });
    }

    /// Runs [`Self::rows`] over two buffers with the same number of rows at once.
    pub(crate) fn rows2<T: Send, U: Send>(
        &self,
        (a, a_width): (&mut [T], usize),
        (b, b_width): (&mut [U], usize),
        block: usize,
        cost_ns: usize,
        f: impl Fn(usize, usize, &mut [T], &mut [U]) + Sync,
    ) {
        let rows = a.len() / a_width;
        assert_eq!(rows, b.len() / b_width, "buffers of different row counts");
        let (a, b) = (Disjoint::new(a), Disjoint::new(b));
        self.run(rows.div_ceil(block), cost_ns, &|task, worker| {
            let first = task * block;
            let n = block.min(rows - first);
            // SAFETY: tasks are distinct and each takes rows of its own block only.
            let a = unsafe { a.slice(first * a_width, n * a_width) };
            // SAFETY: as above.
            let b = unsafe { b.slice(first * b_width, n * b_width) };
            f(worker, first, a, b);
        });
    }

    /// Runs `f(worker, tile)` over `data`, rows of `width`, in tiles of `row_block` by
    /// `col_block`; tiles of one block of rows follow each other.
    pub(crate) fn tiles<T: Send>(
        &self,
        data: &mut [T],
        width: usize,
        (row_block, col_block): (usize, usize),
        cost_ns: usize,
        f: impl Fn(usize, TileMut<'_, T>) + Sync,
    ) {
        let rows = data.len() / width;
        let across = width.div_ceil(col_block);
        let down = rows.div_ceil(row_block);
        let parts = Disjoint::new(data);
        self.run(across * down, cost_ns, &|task, worker| {
            let (first_row, first_col) = (task / across * row_block, task % across * col_block);
            let tile = TileMut {
                parts: &parts,
                width,
                first_row,
                rows: row_block.min(rows - first_row),
                first_col,
                cols: col_block.min(width - first_col),
            };
            f(worker, tile);
        });
    }
}

impl Drop for ComputePool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.gate));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches panics of tasks, so it has none of its own to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Lets workers into `job`. The caller must [`Self::close`] before `job` ends.
    fn open(&self, job: &Job<'_>) {
        self.job
            .store(ptr::from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        let epoch = (self.state.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1);
        // SeqCst pairs with `park`: either the worker sees the job or we see the sleeper.
        self.state
            .store((epoch << EPOCH_SHIFT) | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.gate));
            self.wake.notify_all();
        }
    }

    /// Admits no more threads and waits until all are out.
    fn close(&self) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel) & !OPEN;
        let mut spins = 0u32;
        while state & INSIDE != 0 {
            spins += 1;
            if spins.is_multiple_of(1024) {
                // The worker may have lost its core; do not keep it from another.
                thread::yield_now();
            }
            std::hint::spin_loop();
            state = self.state.load(Ordering::Acquire);
        }
    }

    /// Runs a worker until the pool ends.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        let mut pauses = Pauses::default();
        while let Some(state) = self.next_open(seen, &mut pauses) {
            if self
                .state
                .compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            seen = state >> EPOCH_SHIFT;
            // SAFETY: the job was published before it was opened (the exchange above acquired
            // that) and lives until `close` returns, which waits for us to leave.
            let job = unsafe { &*self.job.load(Ordering::Relaxed) };
            if catch_unwind(AssertUnwindSafe(|| job.work(worker))).is_err() {
                job.panicked.store(true, Ordering::Relaxed);
                job.stop();
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open job other than `seen`; `None` when the pool ends.
    fn next_open(&self, seen: u64, pauses: &mut Pauses) -> Option<u64> {
        let since = Instant::now();
        let found = self
            .spin(seen, since, pauses.spin())
            .or_else(|| self.park(seen));
        pauses.note(since.elapsed());
        found
    }

    /// Looks for an open job until `limit` from `since`.
    fn spin(&self, seen: u64, since: Instant, limit: Duration) -> Option<u64> {
        loop {
            for _ in 0..32 {
                let state = self.state.load(Ordering::Acquire);
                if is_new(state, seen) {
                    return Some(state);
                }
                std::hint::spin_loop();
            }
            let waited = since.elapsed();
            if waited >= limit {
                return None;
            }
            if waited >= BETWEEN_STEPS {
                thread::yield_now();
            }
        }
    }

    /// Sleeps until there is an open job, or the pool ends.
    fn park(&self, seen: u64) -> Option<u64> {
        let mut gate = lock(&self.gate);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if self.stop.load(Ordering::SeqCst) {
                break None;
            }
            let state = self.state.load(Ordering::SeqCst);
            if is_new(state, seen) {
                break Some(state);
            }
            gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

/// Returns true if there is an open job other than `seen`.
const fn is_new(state: u64, seen: u64) -> bool {
    state & OPEN != 0 && state >> EPOCH_SHIFT != seen
}

/// A worker's record of the latest pauses between steps: one bit for each, set if it was short.
#[derive(Clone, Copy, Debug, Default)]
struct Pauses(u8);

impl Pauses {
    /// Notes that there was no job for `pause`.
    fn note(&mut self, pause: Duration) {
        if pause >= BETWEEN_STEPS {
            self.0 = (self.0 << 1) | u8::from(pause <= SPIN_FOR_STEP);
        }
    }

    /// Returns the time to spin before parking.
    fn spin(self) -> Duration {
        if self.0.count_ones() >= SHORT_PAUSES {
            SPIN_FOR_STEP
        } else {
            SPIN
        }
    }
}

/// A slice whose parts are handed out by index.
struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]`, of which each thread gets a part of its own.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    fn new(data: &'a mut [T]) -> Self {
        Self {
            start: data.as_mut_ptr(),
            len: data.len(),
            slice: PhantomData,
        }
    }

    /// # Safety
    /// No two live results may overlap.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller vouches that parts are disjoint"
    )]
    unsafe fn slice(&self, first: usize, len: usize) -> &mut [T] {
        assert!(
            first <= self.len && len <= self.len - first,
            "part out of bounds"
        );
        // SAFETY: within the slice, which is borrowed for 'a, and disjoint by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), len) }
    }
}

/// A rectangle of a row-major buffer, owned by one task.
pub(crate) struct TileMut<'a, T> {
    parts: &'a Disjoint<'a, T>,
    width: usize,
    /// Row of the buffer in which the tile starts.
    pub(crate) first_row: usize,
    /// Number of rows.
    pub(crate) rows: usize,
    /// Column of the buffer in which the tile starts.
    pub(crate) first_col: usize,
    /// Number of columns.
    pub(crate) cols: usize,
}

impl<T> TileMut<'_, T> {
    /// Returns row `i` of the tile.
    pub(crate) fn row(&mut self, i: usize) -> &mut [T] {
        assert!(i < self.rows, "row outside the tile");
        let first = (self.first_row + i) * self.width + self.first_col;
        // SAFETY: tiles do not overlap (`ComputePool::tiles` cuts them from a grid), and within
        // a tile `&mut self` allows one row at a time.
        unsafe { self.parts.slice(first, self.cols) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 5] {
            let pool = ComputePool::new(threads);
            for round in 0..300 {
                let counts: Vec<AtomicU32> = (0..round % 37).map(|_| AtomicU32::new(0)).collect();
                pool.run(counts.len(), usize::MAX, &|task, worker| {
                    assert!(worker < threads);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn parked_workers_wake() {
        let pool = ComputePool::new(3);
        for _ in 0..5 {
            thread::sleep(SPIN_FOR_STEP * 5);
            let sum = AtomicUsize::new(0);
            pool.run(100, usize::MAX, &|task, _| {
                sum.fetch_add(task, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 4950);
        }
    }

    #[test]
    fn only_a_majority_of_short_pauses_makes_workers_spin_on() {
        let mut pauses = Pauses::default();
        let short = [BETWEEN_STEPS, SPIN_FOR_STEP];
        for n in 1..=8 {
            pauses.note(short[n as usize % 2]);
            // Within a step: says nothing.
            pauses.note(BETWEEN_STEPS / 2);
            assert_eq!(pauses.spin() > SPIN, n >= SHORT_PAUSES, "{n} short");
        }
        for n in 1..=8 {
            pauses.note(SPIN_FOR_STEP * 2);
            assert_eq!(pauses.spin() > SPIN, 8 - n >= SHORT_PAUSES, "{n} long");
        }
    }

    #[test]
    fn tiles_cover_a_buffer() {
        let pool = ComputePool::new(2);
        let mut data = vec![0u32; 7 * 10];
        pool.tiles(&mut data, 10, (3, 4), usize::MAX, |_, mut tile| {
            for r in 0..tile.rows {
                let (row, col) = (tile.first_row + r, tile.first_col);
                for (c, x) in tile.row(r).iter_mut().enumerate() {
                    *x += u32::try_from(row * 10 + col + c).unwrap();
                }
            }
        });
        assert!(data.iter().enumerate().all(|(i, &x)| x as usize == i));
    }

    #[test]
    fn a_worker_takes_its_own_part_first_and_what_others_left() {
        for (tasks, workers) in [(10, 3), (2, 5), (7, 1)] {
            let parts: Vec<_> = (0..workers).map(|_| Part(AtomicUsize::new(0))).collect();
            let taken = Mutex::new(Vec::new());
            let take = |task: usize, _: usize| lock(&taken).push(task);
            let job = Job::new(&take, tasks, &parts);
            job.work(workers - 1);
            job.work(0);
            let mut taken = lock(&taken).clone();
            let own = tasks * (workers - 1) / workers;
            assert_eq!(
                taken.first(),
                Some(&own),
                "{tasks} tasks, {workers} workers"
            );
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..tasks));
        }
    }

    #[test]
    fn a_panicking_task_reaches_the_caller_and_the_pool_survives() {
        let pool = ComputePool::new(3);
        for bad in [0, 50, 99] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(100, usize::MAX, &|task, _| assert!(task != bad, "as asked"));
            }));
            assert!(result.is_err());
        }
        pool.run(10, usize::MAX, &|_, _| ());
    }

    #[test]
    fn turns_are_served_in_order() {
        let pool = ComputePool::new(1);
        let order = Mutex::new(Vec::new());
        let first = pool.take_turn();
        thread::scope(|scope| {
            for i in 0..4 {
                while lock(&pool.turns).next != i + 1 {
                    thread::yield_now();
                }
                let (pool, order) = (&pool, &order);
                scope.spawn(move || {
                    let _turn = pool.take_turn();
                    lock(order).push(i);
                });
            }
            while lock(&pool.turns).next != 5 {
                thread::yield_now();
            }
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
    }
}
