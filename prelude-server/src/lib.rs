//! HTTP server for Prelude: wire types, chat templates, streaming.
#![forbid(unsafe_code)]

pub mod decide;
pub mod label_trie;
pub mod shared_prefix;
pub mod template;
