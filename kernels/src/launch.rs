//! Shapes of launches.

/// A kernel and how many threads run it. Follows from the bucketed shape of a step alone, so
/// that a captured launch serves every batch that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel's `extern "C"` name.
    pub kernel: &'static str,
    /// Blocks, x first.
    pub grid: [u32; 3],
    /// Threads of a block, x first.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block. Above 48 KB the device has to be asked for it.
    pub shared_bytes: u32,
}

impl Launch {
    /// Returns a one-dimensional launch without dynamic shared memory.
    #[must_use]
    pub const fn linear(kernel: &'static str, blocks: u32, threads: u32) -> Self {
        Self {
            kernel,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
        }
    }
}
