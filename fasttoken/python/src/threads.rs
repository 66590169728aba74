//! Other Python threads, which may run while this one encodes.

use pyo3::prelude::*;

/// Bytes of text for which other Python threads are let in. Less is encoded in a few microseconds,
/// after which this thread could wait for the others for thousands.
const WORTH_LETTING_GO: usize = 4 << 10;

/// Runs `work` on `bytes` bytes of text, and lets other Python threads run meanwhile if it takes long.
pub(crate) fn let_go<T: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    match bytes >= WORTH_LETTING_GO {
        true => py.detach(work),
        false => work(),
    }
}
