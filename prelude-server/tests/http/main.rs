//! The server as its clients see it: bytes in, bytes out, over loopback.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod adapters;
mod chat;
mod completions;
#[cfg(feature = "llguidance")]
mod constraints;
mod decisions;
mod encoders;
mod fields;
mod fuzz;
mod golden;
mod layouts;
mod load;
mod metrics;
mod overload;
mod rights;
#[cfg(feature = "llguidance")]
mod schemas;
mod service;
mod status;
mod streams;
mod support;
mod templates;
#[cfg(feature = "llguidance")]
mod tools;
mod transport;
#[path = "../../src/openapi/validate.rs"]
mod validate;
