//! Memory: the GPU's, the host's that the GPU may read, and how steps divide them.
//!
//! | file | |
//! | --- | --- |
//! | `context` | one GPU: its context, its stream, its errors |
//! | `libs` | finding and opening NVIDIA's libraries, the driver among them |
//! | `space` | where memory comes from: a GPU, the host (emulation), nowhere (recording) |
//! | `view` | typed rows of a buffer: the only form in which kernels get addresses |
//! | `arena` | a step's activations, handed out from the front of one buffer |
//! | `metadata` | a step's ids, tables and tiles: packed on the host, sent by one copy |
//! | `pinned` | host memory that copies run from and to without waiting |
//! | `kv_pool` | pages of keys and values, and the trash page |
//! | `event` | points in a stream, to be waited for or to be noted the time of |
//!
//! `unsafe` is here and in `kernels`, and nowhere else in this crate.
#![expect(
    unsafe_code,
    reason = "the driver's memory calls, and the host memory that stands in for a GPU's"
)]

pub(crate) mod arena;
pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod host_kv;
pub(crate) mod kv_pool;
pub(crate) mod libs;
pub(crate) mod metadata;
pub(crate) mod pinned;
pub(crate) mod space;
pub(crate) mod view;
