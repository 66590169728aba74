//! The tasks behind the endpoints: generation, classification, label scores, embeddings, ranking and
//! typed decisions. An endpoint maps its dialect to a task's request, and the task's result back.

mod call_schema;
pub(crate) mod classify;
pub(crate) mod conversation;
pub(crate) mod decide;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod guards;
pub(crate) mod guidelines;
pub(crate) mod input;
pub(crate) mod judged;
pub(crate) mod messages;
pub(crate) mod pair;
pub(crate) mod place;
pub(crate) mod prepared;
pub(crate) mod prompts;
pub(crate) mod rank;
pub(crate) mod submit;
pub(crate) mod tools;
pub(crate) mod truncate;
