//! Events of KV caches on the wire, as vLLM sends them.
//!
//! An engine publishes which blocks its KV cache stores and drops, so that routers know what is
//! cached where. The format is that of vLLM's `kv_events.py`: a ZeroMQ PUB socket whose messages
//! have three frames (topic, sequence number, MessagePack), and a ROUTER socket that replays
//! messages from a number on.
//!
//! The ZeroMQ protocol is implemented here as far as these sockets need it ([`zmtp`]): ZMTP 3.0 over
//! TCP, without encryption. That is some 200 lines and no dependency.
//!
//! Read first: [`Publisher`] (the engine's side), [`Follower`] (which messages a reader may apply),
//! [`Subscriber`] (the reader's side), [`Batch`] (a message's contents).
#![forbid(unsafe_code)]

mod address;
mod batch;
mod error;
mod follower;
mod msgpack;
mod publisher;
mod replay;
mod ring;
mod sent;
mod subscriber;
mod update;
pub mod zmtp;

pub use address::{Address, BadAddress};
pub use batch::{Batch, DecodeError, Format};
pub use error::Error;
pub use follower::{Follower, Step};
pub use msgpack::MsgpackError;
pub use publisher::{Publisher, PublisherConfig};
pub use subscriber::{Subscriber, SubscriberConfig};
pub use update::Update;
