//! OpenAI-compatible server for decisions made by language models.
#![forbid(unsafe_code)]
