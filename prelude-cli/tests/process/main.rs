//! The server as a process of its own: what it does to hostile clients, and how it leaves.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bombs;
mod drain;
mod hostile;
mod hub;
mod kv_events;
mod logs;
mod many;
mod salts;
mod service_manager;
mod stand_in;
mod support;
mod swollen;
#[cfg(feature = "otlp")]
mod traces;
