//! Flat arrays that own their elements or lie in the file of a compiled tokenizer.
//!
//! Reading costs the same either way: a pointer and a length. The array keeps the memory behind it
//! alive, so clones and ranges can be passed around freely. The bytes of a file are read as plain
//! numbers, whose every bit pattern is valid; users of an array check the meaning of the numbers.

mod buffer;
mod file_bytes;
mod flat;
mod relocate;

pub(crate) use buffer::{ZeroedBuffer, read};
pub(crate) use file_bytes::{FileBytes, LINE};
pub(crate) use flat::Flat;
pub(crate) use relocate::{Relocatable, move_to_huge_pages};

#[cfg(test)]
mod store_tests;
