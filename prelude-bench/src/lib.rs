//! Workloads and measurement for Prelude.
#![forbid(unsafe_code)]

pub mod accuracy;
pub mod client;
pub mod table;
