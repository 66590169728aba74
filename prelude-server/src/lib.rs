//! The HTTP edge of Prelude: requests to token ids, results to bytes.
//!
//! OpenAI-compatible routes and routes for decisions, on hyper, over any engine. It decides
//! nothing about scheduling and knows no executor beyond [`executor`].
//!
//! Read first: [`App`] (what all requests share), [`Server`] (a bound port), [`ServedModel`] (a
//! model as the edge sees it), and, inside, `routes.rs` for the whole surface.
//!
//! ```no_run
//! use prelude_server::{ApiKeys, App, Server, ServerConfig};
//! use prelude_server::{assets::Assets, demo, executor::Devices, load};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let app = App::new(ServerConfig::default(), ApiKeys::default());
//! // The port is bound first: until the model is loaded, requests are told so.
//! let server = Server::bind(&app).await?;
//! let running = tokio::spawn(server.run());
//! let assets = Assets::embedded(&demo::LM)?;
//! let loaded = load::load(assets, &load::LoadOptions::default(), &Devices::of_machine())?;
//! app.set_models(vec![loaded.model]);
//! running.await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod admission;
mod app;
pub mod assets;
mod config;
mod constrain;
mod decider;
pub mod demo;
mod dialects;
mod encode;
mod endpoint;
mod endpoints;
mod error;
pub mod executor;
mod host;
mod http;
mod identity;
mod in_process;
mod lifecycle;
pub mod load;
pub mod log;
pub mod memory;
mod metrics;
mod openapi;
mod own;
mod panics;
mod process;
pub mod profile;
mod reject;
mod routes;
mod served_model;
mod sse;
mod tasks;
#[cfg(test)]
mod testing;
mod traces;
mod wire;

pub use app::App;
pub use bytes::Bytes;
pub use config::{
    DecideConfig, Limits, ReasoningParser, ServerConfig, SettingError, ToolParser, Truncate,
};
pub use decider::Decider;
pub use endpoint::Asking;
pub use error::ApiError;
pub use host::resolve_host;
pub use http::{Ended, Server};
pub use identity::{ApiKeys, KeyLineError};
pub use in_process::Answered;
pub use own::{OwnCall, OwnEndpoint};
pub use prelude_text::decide::{AskWording, PROMPT_FORMAT, WordingFile};
pub use served_model::{
    Classes, Judge, Judging, ModelKind, OnHost, PromptForm, Purpose, SamplingDefaults, ServedModel,
    Task, Vectors, Words,
};
pub use traces::Traces;
