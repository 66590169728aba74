//! Workloads and measurement for Prelude.
#![forbid(unsafe_code)]

pub mod table;
