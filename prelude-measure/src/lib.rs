#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod clock;
pub mod random;
pub mod record;
pub mod stats;
pub mod table;
