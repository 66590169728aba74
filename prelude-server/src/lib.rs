//! HTTP server for Prelude: wire types, chat templates, streaming.
#![forbid(unsafe_code)]

mod admission;
mod app;
pub mod assets;
mod config;
pub mod decide;
pub mod demo;
mod encode;
mod endpoints;
mod error;
pub mod executor;
mod http;
mod identity;
mod in_process;
mod json;
pub mod label_trie;
mod lifecycle;
pub mod load;
mod log;
mod metrics;
mod reject;
mod routes;
mod served_model;
pub mod shared_prefix;
mod sse;
pub mod template;
#[cfg(test)]
mod testing;

pub use app::App;
pub use config::{Limits, ServerConfig};
pub use error::ApiError;
pub use http::{Ended, Server};
pub use identity::ApiKeys;
pub use in_process::Answered;
pub use served_model::{ModelKind, SamplingDefaults, ServedModel, Task};
