//! Faults of connections.

use std::io;

use thiserror::Error as ThisError;

/// A fault that ends a connection, or keeps a socket from being bound.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The operating system failed to bind, connect, read or write.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer sent what the protocol does not allow, or more than a limit allows.
    #[error("the peer does not speak ZMTP 3 as expected: {0}")]
    Protocol(&'static str),
    /// The peer is a socket of a type that cannot talk to this one.
    #[error("the peer is a {found} socket; this socket talks to {expected}")]
    SocketType {
        /// The peer's type.
        found: String,
        /// The types that may connect.
        expected: &'static str,
    },
    /// The peer sent or took nothing for too long.
    #[error("the peer took longer than {0} s")]
    Timeout(u64),
}
