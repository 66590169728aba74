//! Waiting without holding up Python: other threads run, and signals are handled.

use std::{future::Future, pin::pin, time::Duration};

use pyo3::prelude::*;
use tokio::runtime::Runtime;

/// The time after which a thread that waits lets Python handle signals, such as that of Ctrl-C.
pub(crate) const SIGNALS: Duration = Duration::from_millis(50);

/// Runs `work` to its end and lets other Python threads run meanwhile. If a handler of a signal raises
/// an exception, as that of Ctrl-C does, `work` is dropped where it is.
///
/// # Errors
/// The exception of a signal's handler.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    runtime: &Runtime,
    work: impl Future<Output = T> + Send,
) -> PyResult<T> {
    let mut work = pin!(work);
    loop {
        let step = async { tokio::time::timeout(SIGNALS, work.as_mut()).await };
        match py.detach(|| runtime.block_on(step)) {
            Ok(done) => return Ok(done),
            Err(_) => py.check_signals()?,
        }
    }
}
