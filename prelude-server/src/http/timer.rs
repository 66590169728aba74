//! A timer for waits that seldom reach their deadline.

use std::{future::Future, pin::Pin, task::Context};

use tokio::time::{Instant, Sleep};

/// A timer whose deadline moves. It is made when it is first needed and set anew only when it has
/// fired, so that moving the deadline costs nothing.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Returns whether `deadline` has passed; if not, the task is woken by then.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        if Instant::now() >= deadline {
            return true;
        }
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        // A timer that fires too early only brings the task back here.
        if sleep.deadline() > deadline || sleep.is_elapsed() {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }
}
