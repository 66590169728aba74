//! A simulator of several engines: real schedulers, modelled devices, virtual time.
//!
//! A [`Workload`] is a list of arrivals, made by a seed ([`Kind`]) or read from a trace
//! ([`trace`]). [`run`] sends them through a [`Route`] to [`Engine`]s, each of which is a
//! `prelude_sched::Scheduler` whose steps take as long as an [`EngineModel`] says. An [`Experiment`]
//! does that for several seeds and makes a [`Report`].
//!
//! No clock is read and nothing is random but by a seed: the same experiment has the same report.
//!
//! [`Routed`] is a policy of `prelude-router`; a router of one's own is a type with [`Route`] and
//! a variant of [`Router`].
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "numbers of tokens and requests, of milliseconds and shares"
)]

mod baseline;
mod ceiling;
mod cluster;
mod compare;
mod engine;
mod experiment;
mod figures;
mod prompt;
mod report;
mod routed;
pub mod serve;
mod serves;
mod service;
mod sustain;
pub mod trace;
pub mod workload;

pub use baseline::{Baseline, Batching, run_baseline};
pub use ceiling::{hit_ceiling, known_tokens, recurring_tokens, shared_tokens};
pub use cluster::{Route, Served, run};
pub use compare::compare;
pub use engine::{Engine, EngineConfig, Record};
pub use experiment::{Experiment, Progress, Router, Source};
pub use figures::{Figures, Requests, SHORT_TOKENS, TARGET, Times};
pub use prompt::{Prompt, Run, VOCABULARY};
pub use report::{Report, Spread};
pub use routed::Routed;
pub use service::{EngineModel, Piece, Preset, pieces};
pub use sustain::{SUSTAINED, Sustained, compare_sustained, sustained};
pub use workload::{Arrival, Gaps, Kind, Moments, Order, Setting, Workload};
