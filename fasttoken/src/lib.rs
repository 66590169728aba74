//! Exact, fast, inference-only tokenizer for Hugging Face tokenizer.json files.
#![forbid(unsafe_code)]
