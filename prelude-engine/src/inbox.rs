//! The queue of commands from callers to the engine's thread.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prelude_core::{Request, RequestId};
use tokio::sync::mpsc::UnboundedSender;

use crate::{AnswerEvent, SubmitError};

/// A request and where its events go.
///
/// The channel needs no bound of its own: a request yields a number of events limited by its
/// rows and output budget, which admission has bounded.
pub(crate) struct Submission {
    pub(crate) request: Request,
    pub(crate) events: UnboundedSender<Vec<AnswerEvent>>,
}

/// A bounded queue of submissions, and the aborts that must never be lost.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
    bound: usize,
}

#[derive(Default)]
struct State {
    submissions: VecDeque<Submission>,
    /// The requests to abort: each live request is in it at most once, which bounds it.
    aborts: Vec<RequestId>,
    /// True if a caller left work in the engine.
    is_work_left: bool,
    stop: bool,
    /// True if the engine's thread is gone: commands are refused.
    closed: bool,
}

/// The commands that arrived since the last call of [`Inbox::drain`].
#[derive(Default)]
pub(crate) struct Commands {
    pub(crate) submissions: VecDeque<Submission>,
    pub(crate) aborts: Vec<RequestId>,
    pub(crate) stop: bool,
}

impl Inbox {
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            bound: bound.max(1),
            ..Self::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while holding the lock, and the state is valid between statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn submit(&self, submission: Submission) -> Result<(), SubmitError> {
        let mut state = self.lock();
        if state.closed || state.stop {
            return Err(SubmitError::Stopped);
        }
        if state.submissions.len() >= self.bound {
            return Err(SubmitError::Busy);
        }
        state.submissions.push_back(submission);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    pub(crate) fn abort(&self, id: RequestId) {
        let mut state = self.lock();
        if !state.closed {
            state.aborts.push(id);
        }
        drop(state);
        self.arrived.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.arrived.notify_one();
    }

    /// Wakes the engine's thread for work that a caller left in the engine.
    pub(crate) fn wake(&self) {
        self.lock().is_work_left = true;
        self.arrived.notify_one();
    }

    /// Returns whether nothing has arrived that the engine thread has not seen.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = self.lock();
        !state.has_something() && !state.closed
    }

    /// Marks the engine as gone and returns the commands that it did not handle.
    pub(crate) fn close(&self) -> Commands {
        let mut state = self.lock();
        state.closed = true;
        take(&mut state)
    }

    /// Takes the commands that have arrived, without waiting.
    pub(crate) fn drain(&self) -> Commands {
        take(&mut self.lock())
    }

    /// Waits until something arrives, at most `timeout` if one is given.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        let state = self.lock();
        let idle = |s: &mut State| !s.has_something();
        match timeout {
            None => drop(self.arrived.wait_while(state, idle)),
            Some(t) => drop(self.arrived.wait_timeout_while(state, t, idle)),
        }
    }
}

impl State {
    fn has_something(&self) -> bool {
        self.is_work_left || self.stop || !self.submissions.is_empty() || !self.aborts.is_empty()
    }
}

fn take(state: &mut State) -> Commands {
    state.is_work_left = false;
    Commands {
        submissions: std::mem::take(&mut state.submissions),
        aborts: std::mem::take(&mut state.aborts),
        stop: state.stop,
    }
}

#[cfg(test)]
mod tests {
    use prelude_core::{Head, PromptTree, RowSpec, Timestamp};
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn requests_are_taken_in_the_order_in_which_they_came() {
        let inbox = Inbox::new(3);
        let submit = |id| {
            let tree = PromptTree::single(vec![1]);
            let rows = vec![RowSpec {
                node: tree.last_node(),
                head: Head::Classify,
            }];
            let request = Request::new(RequestId(id), tree, rows, Timestamp::ZERO);
            let (events, _) = mpsc::unbounded_channel();
            inbox.submit(Submission { request, events })
        };
        let taken = [0, 1, 2, 3].map(submit);
        assert_eq!(taken, [Ok(()), Ok(()), Ok(()), Err(SubmitError::Busy)]);
        let submissions = inbox.drain().submissions;
        let ids: Vec<u64> = submissions.iter().map(|s| s.request.id.0).collect();
        assert_eq!(ids, [0, 1, 2]);
    }
}
