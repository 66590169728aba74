//! The memory that an executor takes on a GPU.

/// Bytes of GPU memory that an executor takes at start. Captured graphs come beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, rotations included.
    pub weights_bytes: u64,
    /// KV blocks: room for [`prelude_core::Capacity::num_blocks`], and one for padding.
    pub kv_bytes: u64,
    /// Activations of the largest step, and its keys and values of one layer.
    pub arena_bytes: u64,
    /// Bytes that passes in slices keep: hidden states, and keys and values of one layer.
    pub pass_bytes: u64,
    /// Metadata, results, logits, and buffers of kernels and libraries.
    pub buffers_bytes: u64,
    /// Bytes of locked host memory for evicted KV blocks: room for
    /// [`prelude_core::Capacity::host_blocks`]. Not of the GPU, and not in the total.
    pub host_bytes: u64,
}

impl MemoryPlan {
    /// Returns the sum of what is on the GPU.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.arena_bytes + self.pass_bytes + self.buffers_bytes
    }
}
