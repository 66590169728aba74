//! A simulator of several engines: real schedulers, modelled devices, virtual time.
//!
//! A [`Workload`] is a list of arrivals, made by a seed ([`Kind`]) or read from a trace
//! ([`trace`]).
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "numbers of tokens and requests, of milliseconds and shares"
)]

mod ceiling;
mod prompt;
pub mod trace;
pub mod workload;

pub use ceiling::{hit_ceiling, shared_tokens};
pub use prompt::{Prompt, Run, VOCABULARY};
pub use workload::{Arrival, Gaps, Kind, Moments, Order, Setting, Workload};
