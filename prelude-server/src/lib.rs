//! HTTP server for Prelude: wire types, chat templates, streaming.
#![forbid(unsafe_code)]

pub mod template;
