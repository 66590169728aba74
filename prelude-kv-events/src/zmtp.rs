//! ZMTP 3.0 with the mechanism NULL: greeting, handshake, frames.
//!
//! ```text
//! greeting   ff 00*8 7f | 03 00 | "NULL" 00*16 | 00 | 00*31              64 bytes, each way
//! command    flags 04 (or 06), length, length of name, name, data        READY has properties
//! frame      flags, length, data; flags: 01 more frames follow, 02 length in 8 bytes, 04 command
//! ```
//!
//! Peers of version 3.1 (RFC 37) talk 3.0 with those of 3.0; their commands `SUBSCRIBE`, `CANCEL` and
//! `PING` are understood all the same.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use crate::Error;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Bytes of a handshake's command, its limit.
const HANDSHAKE_BYTES: usize = 4 << 10;
/// Upper bound of the frames of a message.
const MAX_FRAMES: usize = 16;
/// Seconds that a handshake may take.
const HANDSHAKE_S: u64 = 10;

/// A message or command of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    /// A command.
    Command {
        /// The command's name.
        name: Vec<u8>,
        /// The bytes behind the name.
        data: Vec<u8>,
    },
}

/// A kind of socket, with the kinds that it talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// Sends to subscribers.
    Pub,
    /// Receives from publishers.
    Sub,
    /// Answers requests.
    Router,
    /// Sends requests.
    Dealer,
}

impl Socket {
    const fn name(self) -> &'static str {
        match self {
            Self::Pub => "PUB",
            Self::Sub => "SUB",
            Self::Router => "ROUTER",
            Self::Dealer => "DEALER",
        }
    }

    /// Returns the names of the kinds that it talks to.
    const fn peers(self) -> &'static str {
        match self {
            Self::Pub => "SUB or XSUB",
            Self::Sub => "PUB or XPUB",
            Self::Router => "REQ or DEALER",
            Self::Dealer => "ROUTER",
        }
    }
}

/// Exchanges greetings and `READY` commands.
///
/// # Errors
/// [`Error`], also if the peer takes longer than ten seconds.
pub async fn handshake<S>(stream: &mut S, own: Socket) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let done = timeout(Duration::from_secs(HANDSHAKE_S), shake_hands(stream, own)).await;
    done.unwrap_or(Err(Error::Timeout(HANDSHAKE_S)))
}

async fn shake_hands<S>(stream: &mut S, own: Socket) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await?;
    let mut peer = [0; 64];
    stream.read_exact(&mut peer).await?;
    if peer[0] != 0xff || peer[9] & 1 != 1 || peer[10] < 3 {
        return Err(Error::Protocol("its greeting is not that of version 3"));
    }
    if &peer[12..17] != b"NULL\0" {
        return Err(Error::Protocol("it asks for encryption or a password"));
    }
    let name = own.name().as_bytes();
    let mut ready = property("Socket-Type", name);
    if own == Socket::Dealer {
        ready.extend(property("Identity", b""));
    }
    stream.write_all(&command(b"READY", &ready)).await?;
    let Received::Command { name, data } = receive(stream, HANDSHAKE_BYTES).await? else {
        return Err(Error::Protocol("it sent a message before READY"));
    };
    if name != b"READY" {
        return Err(Error::Protocol("it sent another command than READY"));
    }
    let found = socket_type(&data).ok_or(Error::Protocol("its READY names no socket type"))?;
    match own.peers().split(" or ").any(|peer| peer == found) {
        true => Ok(()),
        false => Err(Error::SocketType {
            found,
            expected: own.peers(),
        }),
    }
}

fn property(name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = vec![name.len() as u8];
    out.extend(name.as_bytes());
    out.extend((value.len() as u32).to_be_bytes());
    out.extend(value);
    out
}

/// Returns the socket type among the properties of a `READY`.
fn socket_type(mut rest: &[u8]) -> Option<String> {
    loop {
        let (&len, behind) = rest.split_first()?;
        let (name, behind) = behind.split_at_checked(usize::from(len))?;
        let (len, behind) = behind.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
        let (value, behind) = behind.split_at_checked(len)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(String::from_utf8_lossy(value).into_owned());
        }
        rest = behind;
    }
}

/// Returns the bytes of a command.
#[must_use]
pub fn command(name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut body = vec![name.len() as u8];
    body.extend(name);
    body.extend(data);
    let mut out = Vec::with_capacity(body.len() + 9);
    frame(&mut out, COMMAND, &body);
    out
}

/// Returns the bytes of a message.
#[must_use]
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = frames.iter().map(|frame| frame.len() + 9).sum();
    let mut out = Vec::with_capacity(bytes);
    for (n, data) in frames.iter().enumerate() {
        let flags = if n + 1 < frames.len() { MORE } else { 0 };
        frame(&mut out, flags, data);
    }
    out
}

fn frame(out: &mut Vec<u8>, flags: u8, data: &[u8]) {
    match u8::try_from(data.len()) {
        Ok(len) => out.extend([flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((data.len() as u64).to_be_bytes());
        }
    }
    out.extend(data);
}

/// Reads a message or command of at most `max_bytes`.
///
/// # Errors
/// [`Error::Io`] if the connection ends, [`Error::Protocol`] for what is too long or no frame.
pub async fn receive<R: AsyncRead + Unpin>(
    reader: &mut R,
    max_bytes: usize,
) -> Result<Received, Error> {
    let mut frames = Vec::new();
    let mut left = max_bytes;
    loop {
        let flags = reader.read_u8().await?;
        if flags > MORE | LONG | COMMAND || flags & COMMAND != 0 && flags & MORE != 0 {
            return Err(Error::Protocol("a frame has unknown flags"));
        }
        let len = match flags & LONG {
            0 => u64::from(reader.read_u8().await?),
            _ => reader.read_u64().await?,
        };
        let fits = usize::try_from(len)
            .ok()
            .and_then(|len| left.checked_sub(len));
        left = fits.ok_or(Error::Protocol("a message is too long"))?;
        // The buffer grows as bytes come, so that a length alone takes no memory.
        let mut data = Vec::new();
        (&mut *reader).take(len).read_to_end(&mut data).await?;
        if data.len() as u64 != len {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        if flags & COMMAND != 0 {
            return split_command(&data);
        }
        frames.push(data);
        if flags & MORE == 0 {
            return Ok(Received::Message(frames));
        }
        if frames.len() == MAX_FRAMES {
            return Err(Error::Protocol("a message has too many frames"));
        }
    }
}

fn split_command(data: &[u8]) -> Result<Received, Error> {
    let split = |(&len, rest): (&u8, &[u8])| {
        let (name, data) = rest.split_at_checked(usize::from(len))?;
        Some((name.to_vec(), data.to_vec()))
    };
    let parts = data.split_first().and_then(split);
    let (name, data) = parts.ok_or(Error::Protocol("a command has no name"))?;
    Ok(Received::Command { name, data })
}

/// Returns the answer to a `PING`, whose data is a time to live and a context.
#[must_use]
pub fn pong(ping: &[u8]) -> Vec<u8> {
    command(b"PONG", ping.get(2..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let long = vec![7; 300];
        let mut bytes = message(&[b"topic", &[0; 8], &long]);
        assert_eq!(bytes[..7], [MORE, 5, b't', b'o', b'p', b'i', b'c']);
        bytes.extend(command(b"PING", &[0, 1, 2, 3]));
        block_on(async {
            let mut reader = &bytes[..];
            let found = receive(&mut reader, 1 << 10).await.unwrap();
            let frames = vec![b"topic".to_vec(), vec![0; 8], long];
            assert_eq!(found, Received::Message(frames));
            let Received::Command { name, data } = receive(&mut reader, 99).await.unwrap() else {
                panic!("a command was written");
            };
            assert_eq!((&name[..], &data[..]), (&b"PING"[..], &[0, 1, 2, 3][..]));
            assert_eq!(pong(&data), command(b"PONG", &[2, 3]));
        });
    }

    /// Bytes that are no message end with an error, before they take memory.
    #[test]
    fn wrong_bytes_are_refused() {
        let fault = |bytes: &[u8]| {
            let found = block_on(receive(&mut &bytes[..], 100));
            found.unwrap_err().to_string()
        };
        assert!(fault(&[2, 255, 255, 255, 255, 255, 255, 255, 255]).contains("too long"));
        assert!(fault(&[0, 101]).contains("too long"));
        assert!(fault(&[8, 1, 1]).contains("unknown flags"));
        assert!(fault(&[4, 0]).contains("no name"));
        assert!(fault(&[4, 2, 9, 1]).contains("no name"));
        assert!(fault(&[0, 9, 1]).contains("end of file") || !fault(&[0, 9, 1]).is_empty());
        assert!(fault(&[MORE, 0].repeat(20)).contains("too many frames"));
    }

    #[test]
    fn sockets_shake_hands_with_those_that_they_talk_to() {
        let meet = |a, b| {
            block_on(async {
                let (mut left, mut right) = tokio::io::duplex(1 << 10);
                tokio::join!(handshake(&mut left, a), handshake(&mut right, b))
            })
        };
        for (a, b) in [(Socket::Pub, Socket::Sub), (Socket::Router, Socket::Dealer)] {
            let (a, b) = meet(a, b);
            assert!(a.is_ok() && b.is_ok(), "{a:?} {b:?}");
        }
        let (a, b) = meet(Socket::Pub, Socket::Dealer);
        assert!(a.unwrap_err().to_string().contains("DEALER"));
        assert!(
            b.unwrap_err()
                .to_string()
                .contains("this socket talks to ROUTER")
        );
    }

    #[test]
    fn other_protocols_are_refused() {
        let fault = |sent: &'static [u8]| {
            block_on(async {
                let (mut left, mut right) = tokio::io::duplex(1 << 10);
                right.write_all(sent).await.unwrap();
                drop(right);
                handshake(&mut left, Socket::Pub).await.unwrap_err()
            })
        };
        let http: &[u8; 64] =
            b"GET / HTTP/1.1\r\nhost: localhost\r\nuser-agent: a-browser/1.0\r\n\r\n\r\n";
        // The peer may be gone before the greeting is written.
        assert!(matches!(fault(http), Error::Protocol(_) | Error::Io(_)));
    }
}
