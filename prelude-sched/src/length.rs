//! Lengths of collections as the `u32` that batches count in.

/// # Panics
/// Beyond `u32`: prompts, batches and queues are all bounded by it on the way in.
pub(crate) fn length_of(n: usize) -> u32 {
    u32::try_from(n).expect("prompts, batches and queues are bounded by u32")
}
