//! The transport: bytes to calls, replies to bytes. Everything HTTP is in here.
//!
//! `listener` accepts and drains, `wire` times one connection's reads and writes, `service` takes
//! a request through admission to its handler, `body` reads, `respond` writes, `ticket` counts
//! and logs.

mod body;
mod listener;
mod respond;
mod service;
mod ticket;
mod wire;

pub use listener::{Ended, Server};
