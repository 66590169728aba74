//! The simulator: the real scheduler against a virtual clock, a model of an executor, random
//! traffic, and checks after every step.
//!
//! - [`SimExecutor`] runs batches on a model of KV memory: each slot remembers which prefix its
//!   keys and values stand for, and every row's context is verified slot by slot, so a stale,
//!   foreign or overwritten block is caught when it is read. Answers are functions of the prefix.
//! - [`Twin`] answers the same request alone and naively. Whatever was batched, shared, cached,
//!   chunked, preempted or run ahead, the answers must be equal.
//! - [`world::simulate`] makes a world from a seed (capacity, config, traffic, faults), runs it, and
//!   panics at the first broken promise, naming the seed and how to run it again.
//!
//! Wrong salts are the one thing that this memory model cannot see (equal tokens have equal keys
//! and values whatever the salt); unit tests of `prelude-kv` and of the forest cover them.

mod auto_twin;
mod chaos;
mod executor;
mod groups_twin;
mod hops;
mod laps_twin;
mod ledger;
mod random;
mod round_robin_twin;
mod srjf_twin;
mod twin;
mod waits;
mod workload;
mod world;

pub(crate) use executor::{CostModel, SimExecutor};
pub(crate) use random::Random;
pub(crate) use twin::{Answer, Twin};
pub(crate) use waits::LongestWaits;
pub(crate) use workload::{Arrivals, Workload};
