//! The transport: bytes to calls, replies to bytes. Everything HTTP is in here.
//!
//! `listener` accepts and drains, `wire` times one connection's reads and writes, `service` takes
//! a request through admission to its handler, `cors` lets browsers ask, `body` reads, `respond` writes, `output` watches
//! that the client takes what is written, `ticket` counts and logs.

mod body;
mod cors;
mod listener;
mod output;
mod respond;
mod service;
mod ticket;
mod timer;
mod wire;

pub use listener::{Ended, Server};
