#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod clock;
pub mod driver;
pub mod http;
pub mod process;
pub mod random;
pub mod record;
pub mod server;
pub mod stats;
pub mod table;
