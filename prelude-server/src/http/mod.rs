//! HTTP: connections become calls, and replies become responses.
//!
//! `listener` accepts connections and drains them. `socket` limits the times of a connection's reads
//! and writes. `service` takes a request through its checks to its endpoint, `cors` answers
//! browsers, `foreign` refuses pages of others, `body` reads bodies. `respond` makes responses, `reply_body` sends their bodies to
//! clients that may not read, and `task` ends the requests of those. `request_log` counts and logs requests.

mod body;
mod cors;
mod foreign;
mod listener;
mod reply_body;
mod request_log;
mod respond;
mod service;
mod socket;
mod task;
mod timer;

pub use listener::{Ended, Server};
