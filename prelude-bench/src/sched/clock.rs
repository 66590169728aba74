//! The time that this thread has computed.

use std::time::Duration;

/// Returns the processor time of this thread so far. Time in which other programs had the core does
/// not count, so a busy machine measures what a quiet one does, but for what others push out of its
/// caches.
#[cfg(target_os = "linux")]
pub(super) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the time since the first call: this system has no clock of a thread's processor time
/// that we read.
#[cfg(not(target_os = "linux"))]
pub(super) fn now() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// Runs `work` and returns the processor time that it took, and its result.
pub(super) fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = now();
    let result = work();
    (now().saturating_sub(start), result)
}
