//! The shared nouns of Prelude: ids, requests, batches, step outputs and the Executor trait.
#![forbid(unsafe_code)]
