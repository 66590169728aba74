//! What the server answers: one file per family of endpoints, with types and handler together.
//!
//! A handler is `async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError>`. It
//! knows no HTTP: the transport makes a [`Reply`](crate::endpoint::Reply) a response, one-shot
//! commands print its body.

pub(crate) mod budget;
mod call_schema;
pub(crate) mod chat;
pub(crate) mod classify;
pub(crate) mod completions;
pub(crate) mod conversation;
pub(crate) mod decide;
pub(crate) mod decisions;
pub(crate) mod embeddings;
pub(crate) mod escaping;
pub(crate) mod generate;
pub(crate) mod health;
pub(crate) mod input;
pub(crate) mod labels;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod moderations;
pub(crate) mod pairs;
pub(crate) mod pooling;
pub(crate) mod prepared;
pub(crate) mod rerank;
pub(crate) mod score;
pub(crate) mod submit;
pub(crate) mod systemone;
pub(crate) mod tokenize;
pub(crate) mod tools;
pub(crate) mod truncate;
