//! Any bytes on a connection: HTTP/1.1 or HTTP/2 with whatever is wrong in it is answered as the
//! client's fault or not at all, and others are served as before.
#![no_main]

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::LazyLock,
    time::Duration,
};

use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use prelude_server::{Limits, Server, ServerConfig};
use prelude_server_fuzz::{LIMITS, World};

/// A connection that says nothing for so long is over.
const PAUSE_MS: u64 = 5;

static SERVER: LazyLock<(World, SocketAddr)> = LazyLock::new(|| {
    let limits = Limits {
        header_read_ms: PAUSE_MS,
        body_read_ms: PAUSE_MS,
        keep_alive_ms: PAUSE_MS,
        write_stall_ms: 1_000,
        ..LIMITS()
    };
    let world = World::new(ServerConfig {
        port: 0,
        access_log: false,
        limits,
        cors_origins: vec!["https://a.example".to_owned()],
        ..ServerConfig::default()
    });
    let server = world.runtime.block_on(Server::bind(&world.app));
    let server = server.expect("a port is free");
    let address = server.local_addr().expect("it is bound");
    world.runtime.spawn(server.run());
    (world, address)
});

/// Pieces of HTTP/1.1.
const PIECES: &[&[u8]] = &[
    b"POST /v1/completions HTTP/1.1\r\n",
    b"GET /health HTTP/1.1\r\n",
    b"HEAD /v1/models HTTP/1.0\r\n",
    b"OPTIONS * HTTP/1.1\r\n",
    b"host: localhost\r\n",
    b"content-length: 32\r\n",
    b"content-length: 0\r\n",
    b"transfer-encoding: chunked\r\n",
    b"content-type: application/json\r\n",
    b"expect: 100-continue\r\n",
    b"connection: close\r\n",
    b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n",
    b"x-request-id: a\r\n",
    b"origin: https://a.example\r\n",
    b"x-slo-ttft-ms: 1000\r\n",
    b"authorization: Bearer a\r\n",
    b"content-encoding: gzip\r\n",
    b"accept: text/event-stream\r\n",
    b"access-control-request-method: POST\r\n",
    b"\r\n",
    b"{\"prompt\":\"a\",\"max_tokens\":1    }",
    b"20\r\n{\"prompt\":\"a\",\"max_tokens\":1    }\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"{\"prompt\":\"a\",\"stream\":true}     ",
    b"GET /%00/../?a#b HTTP/1.1\r\n",
    b" folded: a\r\n",
    b"POST http://a/v1/systemone HTTP/1.1\r\n",
    b"GET /metrics HTTP/1.1\r\n",
];

/// One frame of HTTP/2: kind, flags, stream, payload.
type Frame<'a> = (u8, u8, u8, Payload<'a>);

#[derive(Arbitrary, Debug)]
enum Payload<'a> {
    Bytes(&'a [u8]),
    /// A head of `POST /v1/completions`, as HPACK.
    Head,
    Body,
}

#[derive(Arbitrary, Debug)]
enum Sent<'a> {
    One(Vec<(u8, &'a [u8])>),
    Two(Vec<Frame<'a>>),
}

impl Sent<'_> {
    /// Returns the bytes that are written, a piece at a time.
    fn pieces(&self) -> Vec<Vec<u8>> {
        match self {
            Self::One(pieces) => pieces
                .iter()
                .map(|(at, bytes)| match PIECES.get(usize::from(*at)) {
                    Some(piece) => [piece, *bytes].concat(),
                    None => bytes.to_vec(),
                })
                .collect(),
            Self::Two(frames) => {
                let opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
                let frames = frames.iter().map(|(kind, flags, stream, payload)| {
                    let payload: &[u8] = match payload {
                        Payload::Bytes(bytes) => bytes,
                        // POST, http, a path and an authority, as literals.
                        Payload::Head => b"\x83\x86\x04\x0f/v1/completions\x01\x01a",
                        Payload::Body => b"{\"prompt\":\"a\",\"max_tokens\":1    }",
                    };
                    let len = (payload.len() as u32).to_be_bytes();
                    let head = [len[1], len[2], len[3], *kind, *flags, 0, 0, 0, *stream];
                    [&head, payload].concat()
                });
                std::iter::once(opening).chain(frames).collect()
            }
        }
    }
}

fuzz_target!(|input: (Sent<'_>, u8)| {
    let (sent, leave) = input;
    let (world, address) = &*SERVER;
    let mut stream = TcpStream::connect(address).expect("the server takes connections");
    let patience = Duration::from_secs(10);
    stream
        .set_read_timeout(Some(patience))
        .expect("a timeout is set");
    stream.set_nodelay(true).expect("an option is set");
    for (at, piece) in sent.pieces().iter().enumerate() {
        // A server that refuses early may close before it has read everything.
        if at == usize::from(leave) || stream.write_all(piece).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    if leave % 4 != 0 {
        // A reset behind the answer is as good as an end; silence without end is not.
        if let Err(e) = stream.read_to_end(&mut answer) {
            assert_ne!(
                e.kind(),
                std::io::ErrorKind::WouldBlock,
                "the connection stays open"
            );
        }
    }
    drop(stream);
    for at in 0..answer.len() {
        if let Some(rest) = answer[at..].strip_prefix(b"HTTP/1.1 ") {
            let is_fault = rest.first().is_none_or(|digit| !b"1234".contains(digit));
            assert!(!is_fault, "{}", String::from_utf8_lossy(&answer));
        }
    }
    world.settle();
});
