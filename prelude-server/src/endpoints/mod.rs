//! The endpoints of the server: one file per family of endpoints, with types and handler together.
//!
//! A handler is `async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError>`. It
//! knows no HTTP: the transport makes a [`Reply`](crate::endpoint::Reply) a response, one-shot
//! commands print its body.

pub(crate) mod chat;
pub(crate) mod classify;
pub(crate) mod cohere;
pub(crate) mod completions;
pub(crate) mod decisions;
pub(crate) mod embeddings;
pub(crate) mod health;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod moderations;
pub(crate) mod pooling;
pub(crate) mod rerank;
pub(crate) mod score;
pub(crate) mod status;
pub(crate) mod systemone;
pub(crate) mod tei;
pub(crate) mod tokenize;
pub(crate) mod ui;
