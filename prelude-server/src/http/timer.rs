//! A timer for waits that seldom last: made when first needed, moved only when it has fired.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep};

/// Fires at deadlines that move; most waits end long before.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// One that is set already.
    pub(super) fn at(deadline: Instant) -> Self {
        Self(Some(Box::pin(tokio::time::sleep_until(deadline))))
    }

    /// Whether `deadline` has passed; if not, the task is woken by then.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        if Instant::now() >= deadline {
            return true;
        }
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        // One that would fire too late, or has fired, is moved; one that fires too early only
        // brings us back here.
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

    /// Waits for the deadline set last.
    pub(super) fn poll_set(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}
