//! Workloads and measurement for Prelude.
#![forbid(unsafe_code)]

pub mod accuracy;
mod batches;
pub mod cluster;
pub mod cpu;
pub mod gate;
pub mod load;
pub mod papers;
pub mod process;
pub mod replay;
pub mod sched;
pub mod server;
pub mod sim;
pub mod table;

pub(crate) use prelude_measure::random;
