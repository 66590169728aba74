//! All tests through the public interface but the gate (`tests/exact.rs`), in one binary:
//! linking the reference and compiling what they share takes longer than running them.

#[path = "../common/mod.rs"]
mod common;

mod compiled;
mod convert;
mod deepseek;
mod load;
mod lookups;
mod merges;
mod properties;
mod segments;
mod sentencepiece;
mod settings;
mod spm;
mod traps;
mod unicode_table;
mod unigram;
mod vectors;
mod wordpiece;
