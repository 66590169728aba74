//! Model definitions over a small vocabulary of fused operations, and checkpoint loading.
