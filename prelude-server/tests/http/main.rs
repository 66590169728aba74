//! The server as its clients see it: bytes in, bytes out, over loopback.

mod chat;
mod completions;
mod overload;
mod service;
mod support;
mod transport;
