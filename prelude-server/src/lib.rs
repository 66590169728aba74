//! HTTP server for Prelude: wire types, chat templates, streaming.
#![forbid(unsafe_code)]
// `app`, `endpoints`, `routes` and `served_model` are declared as soon as `fasttoken` lands.
#![allow(dead_code)]

mod admission;
mod config;
pub mod decide;
mod encode;
mod error;
mod identity;
mod json;
pub mod label_trie;
mod lifecycle;
mod metrics;
mod reject;
pub mod shared_prefix;
mod sse;
pub mod template;

pub use config::{Limits, ServerConfig};
pub use error::ApiError;
pub use identity::ApiKeys;
