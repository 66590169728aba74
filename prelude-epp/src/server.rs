//! gRPC over HTTP/2: external processing and health.

mod codec;
mod conversation;
mod listener;
mod service;

pub use codec::{ProstCodec, ProstDecoder, ProstEncoder};
pub use conversation::Conversation;
pub use listener::{Limits, serve};
