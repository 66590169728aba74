//! Replay of messages: a request names the first number, and each message from it on is a reply.
//!
//! ```text
//! request   [empty frame, number]                     as REQ sends it, and DEALER has to
//! replies   [empty frame, number, message] ...
//! end       [empty frame, ff*8, empty frame]
//! ```

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};

use crate::{
    Address, Error,
    sent::{Sent, write},
    zmtp::{self, Received, Socket},
};

/// The number of the reply that ends a replay: -1.
const END: [u8; 8] = [0xff; 8];
/// Upper bound of the bytes of a request.
const REQUEST_BYTES: usize = 1 << 10;
/// Upper bound of the bytes of a message; a replay has at most twice as many, more than a ring keeps.
pub(crate) const MESSAGE_BYTES: usize = 64 << 20;
/// Seconds for a connection, and between replies.
const REPLY_S: u64 = 5;

/// Answers the requests of a connection.
pub(crate) async fn serve(mut stream: TcpStream, sent: Arc<Sent>) -> Result<(), Error> {
    zmtp::handshake(&mut stream, Socket::Router).await?;
    loop {
        let frames = match zmtp::receive(&mut stream, REQUEST_BYTES).await? {
            Received::Message(frames) => frames,
            Received::Command { name, data } if name == b"PING" => {
                write(&mut stream, &zmtp::pong(&data)).await?;
                continue;
            }
            Received::Command { .. } => continue,
        };
        let number = frames
            .last()
            .and_then(|frame| frame.as_slice().try_into().ok());
        let [envelope @ .., _] = &frames[..] else {
            return Err(Error::Protocol("a request has no frame"));
        };
        let number = number.ok_or(Error::Protocol("a request's last frame is no number"))?;
        let mut first = u64::from_be_bytes(number);
        let end = sent.next();
        let reply = |frames: [&[u8]; 2]| {
            let envelope = envelope.iter().map(Vec::as_slice);
            zmtp::message(&envelope.chain(frames).collect::<Vec<_>>())
        };
        // Messages are sent one by one: those that a slow reader has not taken hold no memory but
        // the ring's.
        while first < end {
            let next = sent.first_from(first);
            let Some((seq, payload)) = next.filter(|&(seq, _)| seq < end) else {
                break;
            };
            write(&mut stream, &reply([&seq.to_be_bytes(), &payload])).await?;
            first = seq + 1;
        }
        write(&mut stream, &reply([&END, &[]])).await?;
    }
}

/// Asks for the messages from a number on.
pub(crate) async fn ask(address: &Address, from: u64) -> Result<Vec<(u64, Bytes)>, Error> {
    let late = || Error::Timeout(REPLY_S);
    let limit = Duration::from_secs(REPLY_S);
    let connecting = timeout(limit, TcpStream::connect(address.to_bind()));
    let mut stream = connecting.await.map_err(|_| late())??;
    zmtp::handshake(&mut stream, Socket::Dealer).await?;
    stream
        .write_all(&zmtp::message(&[&[], &from.to_be_bytes()]))
        .await?;
    let mut found = Vec::new();
    let mut left = 2 * MESSAGE_BYTES;
    loop {
        let receiving = timeout(limit, zmtp::receive(&mut stream, left));
        let Received::Message(frames) = receiving.await.map_err(|_| late())?? else {
            continue;
        };
        let [_, seq, payload] = &frames[..] else {
            return Err(Error::Protocol("a replay's reply has not three frames"));
        };
        if seq == &END {
            return Ok(found);
        }
        let seq = <[u8; 8]>::try_from(seq.as_slice());
        let seq = seq.map_err(|_| Error::Protocol("a replay's reply has no number"))?;
        left = left.saturating_sub(payload.len());
        found.push((u64::from_be_bytes(seq), payload.clone().into()));
    }
}
