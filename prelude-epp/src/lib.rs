//! An endpoint picker that understands decisions.
//!
//! Envoy, and gateways that implement the Kubernetes Gateway API Inference Extension, ask a picker
//! over gRPC which engine a request should go to. This one answers with the router of
//! [`prelude_router`], and makes the prefix of a prompt from the body of every endpoint that Prelude
//! serves: typed decisions, ranking, scoring, classes, vectors, completions and chat.
//!
//! Read first: [`Picker`], which decides; [`Exchange`](exchange::Exchange), the protocol without I/O;
//! [`body`], which makes keys of bodies; [`serve`](server::serve), the gRPC server.
#![forbid(unsafe_code)]

pub mod body;
pub mod config;
pub mod endpoints;
pub mod envoy;
pub mod exchange;
pub mod kv_events;
pub mod log;
pub mod picker;
pub mod probe;
pub mod proto;
pub mod refusal;
pub mod server;

pub use config::Config;
pub use picker::Picker;
