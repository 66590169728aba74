//! Work that a call lends to threads that outlive the call.
#![expect(
    unsafe_code,
    reason = "no scope of threads ends before all of them have come"
)]

use super::lock;
use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex};

type Run = *const (dyn Fn() + Sync);

/// A function of a call, which other threads may join until the call ends. The call waits for the
/// threads that have joined, and not for threads that have yet to wake.
pub(super) struct Job {
    /// A pointer to the function, which is valid only for threads that have joined.
    run: Run,
    state: Mutex<State>,
    all_left: Condvar,
}

// SAFETY: all that several threads do with `run` is to call it by a shared reference, and what
// it points to is `Sync`.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

#[derive(Default)]
struct State {
    /// True if no thread can join any more.
    over: bool,
    joined: usize,
    /// The panic of a thread that has joined.
    panic: Option<Box<dyn Any + Send>>,
}

impl Job {
    /// Calls `run` after `offer`, which may hand the job to other threads. None of them is in
    /// `run` when this returns, or panics as one of them did.
    pub(super) fn share(run: &(impl Fn() + Sync), offer: impl FnOnce(&Arc<Self>)) {
        let run: *const (dyn Fn() + Sync + '_) = run;
        // SAFETY: only the lifetime differs. Who joins calls it before `End` is dropped, which
        // is in this call, and afterwards no thread can join.
        let run = unsafe { mem::transmute::<*const (dyn Fn() + Sync + '_), Run>(run) };
        let job = Arc::new(Self {
            run,
            state: Mutex::default(),
            all_left: Condvar::new(),
        });
        let end = End(&job);
        offer(&job);
        // SAFETY: it points to this function's argument.
        unsafe { (*job.run)() };
        drop(end);
        let panic = lock(&job.state).panic.take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls the function as well, unless the job is over.
    pub(super) fn join(&self) {
        {
            let mut state = lock(&self.state);
            if state.over {
                return;
            }
            state.joined += 1;
        }
        // SAFETY: the job is not over until this thread has left it.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*self.run)() }));
        let mut state = lock(&self.state);
        state.joined -= 1;
        if let Err(panic) = result {
            state.panic.get_or_insert(panic);
        }
        if state.joined == 0 {
            self.all_left.notify_all();
        }
    }
}

/// Ends a job when it is dropped, in a panic as well.
struct End<'a>(&'a Job);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.over = true;
        while state.joined > 0 {
            let left = self.0.all_left.wait(state);
            state = left.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn who_comes_late_finds_it_over() {
        let calls = AtomicUsize::new(0);
        let mut kept = None;
        let count = || {
            calls.fetch_add(1, Ordering::Relaxed);
        };
        Job::share(&count, |job| kept = Some(Arc::clone(job)));
        kept.expect("it was offered").join();
        assert_eq!(calls.into_inner(), 1);
    }

    #[test]
    fn who_has_joined_is_waited_for() {
        for _ in 0..50 {
            let (inside, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let work = || {
                inside.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
                left.fetch_add(1, Ordering::Relaxed);
            };
            let mut others = Vec::new();
            Job::share(&work, |job| {
                for _ in 0..3 {
                    let job = Arc::clone(job);
                    others.push(thread::spawn(move || job.join()));
                }
            });
            // The job ends before the other threads have ended.
            let (inside, left) = (inside.into_inner(), left.into_inner());
            assert_eq!(inside, left);
            assert!((1..=4).contains(&left));
            for other in others {
                other.join().expect("it only joins");
            }
        }
    }

    #[test]
    fn a_panic_of_who_joined_is_the_callers() {
        let first = AtomicUsize::new(0);
        let work = || {
            // The joining thread, which the call waits for before it has begun.
            assert!(first.fetch_add(1, Ordering::Relaxed) > 0, "the first");
        };
        let shared = || {
            Job::share(&work, |job| {
                let job = Arc::clone(job);
                thread::spawn(move || job.join()).join().expect("caught");
            });
        };
        assert!(catch_unwind(shared).is_err());
        assert_eq!(first.into_inner(), 2);
    }
}
