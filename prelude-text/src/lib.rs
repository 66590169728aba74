//! Text work of a server for decisions, without HTTP and without an engine.
//!
//! A request's text becomes prompts of token ids, and what a model computed becomes text and
//! probabilities again:
//!
//! - [`Tokenizer`]: text to token ids and back, by `fasttoken` or by the reference crate.
//! - [`template`], [`rerank_template`]: chat messages, or a query and a document, to prompt text.
//! - [`shared_prefix`]: many prompts to one tree in which each common prefix is stored once.
//! - [`label_trie`]: labels to rows behind a prompt, and the rows' scores to probabilities.
//! - [`decide`]: typed questions to prompts and labels, and label scores to answers.
//! - [`output`]: generated text to reasoning, content and calls of tools.
//!
//! Nothing here opens a socket, starts a thread or knows a model's weights.
//! Read first: [`shared_prefix`], then [`label_trie`].
#![forbid(unsafe_code)]

pub mod decide;
pub mod label_trie;
pub mod output;
pub mod rerank_template;
pub mod shared_prefix;
pub mod template;
#[cfg(test)]
mod testing;
pub mod tokenizer;

pub use tokenizer::Tokenizer;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
