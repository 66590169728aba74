//! Exact, inference-only tokenizer for Hugging Face `tokenizer.json` files.
//!
//! [`Tokenizer`] loads a file once and then turns text into ids and ids into text
//! from any number of threads. [`StreamDecoder`] turns ids into text as a model
//! makes them. [`SpecialTokens`] reads the files beside `tokenizer.json`.
//!
//! *Exact* means: the ids of the crate `tokenizers` 0.23, the reference, with its
//! Oniguruma regular expressions. A file that asks for something this crate does
//! not implement exactly is refused by [`Tokenizer::from_file`] with an
//! [`Error`] that names the component; ids are never silently different. Split patterns with unusual
//! syntax are not refused but named by [`Tokenizer::warnings`].
//!
//! [`Tokenizer::from_sentencepiece`] loads a `.model` file, with the ids of the library SentencePiece.
//!
//! [`Tokenizer::encode_with`] adds pairs, truncation, padding, masks and offsets, set by
//! [`EncodeOptions`].
//!
//! [`Tokenizer::compile`] writes a *compiled tokenizer*, a file that [`Tokenizer::from_compiled`]
//! maps and uses in place, without parsing anything big.
//!
//! Supported are byte-level BPE models, as of GPT-2, StarCoder, Llama 3, Qwen,
//! DeepSeek, GPT-4 (cl100k) and GPT-4o (o200k), SentencePiece-style BPE with bytes
//! for unknown characters, as of Llama 2, Mistral and Gemma, WordPiece, as of BERT, and
//! Unigram, as of XLM-R and T5. There is no training and no changing of a loaded tokenizer.
//!
//! ```
//! use fasttoken::Tokenizer;
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
//! let tokenizer = Tokenizer::from_file(path)?;
//! let ids = tokenizer.encode("Where is my card?<|im_end|>", false);
//! assert_eq!(tokenizer.decode(&ids, false), "Where is my card?<|im_end|>");
//! assert_eq!(tokenizer.decode(&ids, true), "Where is my card?");
//! # Ok::<(), fasttoken::Error>(())
//! ```
#![deny(unsafe_code)]

mod ablation;
mod added;
mod alphabet;
mod bpe;
mod byte_level;
mod cache;
mod char_bpe;
mod collect;
mod compare;
mod compiled;
mod convert;
#[cfg(target_arch = "x86_64")]
mod cpu;
mod decoding;
mod encode_error;
mod encoding;
mod error;
mod family;
mod file;
mod format;
mod heap_merge;
mod input;
mod json;
mod lattice;
mod load;
mod longest;
mod normalize;
mod offsets;
mod options;
mod padding;
mod pages;
mod pairs;
mod parallel;
mod pattern;
mod pieces;
mod postprocess;
mod prefetch;
mod premerge;
mod pretokenize;
mod scan;
mod scan_merge;
mod short_tokens;
mod special_tokens;
mod spm;
mod store;
mod string_table;
mod text_model;
mod text_walk;
mod tokenizer;
mod trie;
mod truncation;
mod unicode;
mod unigram;
mod vocab;
mod warning;
mod window;
mod wordpiece;

#[cfg(feature = "ablation")]
pub use ablation::FastPath;
pub use added::{AddedToken, Reassigned, Recognise};
pub use cache::word_cache_bytes;
pub use compiled::CacheUse;
pub use convert::{TiktokenEncoding, tekken_to_json, tiktoken_to_json};
pub use decoding::{Chunks, StreamDecoder, StreamState};
pub use encode_error::EncodeError;
pub use encoding::Encoding;
pub use error::Error;
pub use format::CompiledError;
pub use input::Input;
pub use offsets::Offsets;
pub use options::EncodeOptions;
pub use padding::{Padding, PaddingLength};
pub use special_tokens::SpecialTokens;
pub use tokenizer::Tokenizer;
pub use truncation::{Side, Truncation, TruncationStrategy};
pub use warning::Warning;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// The examples of the page for users of other crates are tests.
#[cfg(doctest)]
#[doc = include_str!("../COMING_FROM.md")]
mod coming_from {}
