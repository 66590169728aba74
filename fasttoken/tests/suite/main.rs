//! All tests through the public interface but the gate (`tests/exact.rs`), in one binary:
//! linking the reference and compiling what they share takes longer than running them.

#[path = "../common/mod.rs"]
mod common;

mod category_table_gate;
mod char_bpe_gate;
mod compiled_files;
mod deepseek_splits;
mod encode_settings;
mod lookups;
mod merges;
mod properties;
mod rank_files;
mod refused_files;
mod segments;
mod spm_files;
mod traps;
mod unigram_gate;
mod vectors;
mod wordpiece_gate;
