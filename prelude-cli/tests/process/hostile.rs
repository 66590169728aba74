//! Hostile and broken clients: memory stays bounded, and other clients are served as before.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;

use crate::support::{Answer, Served, wait_for};

/// Sends an honest client's request; returns the status and the text of its answer.
fn honest(server: &Served) -> (u16, String) {
    let body = json!({"prompt": [3, 4, 5], "max_tokens": 3, "temperature": 0, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body.to_string());
    (
        answer.status,
        answer.json()["choices"][0]["text"].to_string(),
    )
}

/// Runs `attack` and checks that an honest client never notices, and that memory stays below
/// `grows_at_most` bytes more than before.
fn unharmed(server: &Served, grows_at_most: u64, attack: impl FnOnce() -> Vec<TcpStream>) {
    let expected = honest(server);
    assert_eq!(expected.0, 200);
    let before = server.resident();
    let held = attack();
    assert_eq!(honest(server), expected);
    let grown = server.resident().saturating_sub(before);
    assert!(grown < grows_at_most, "{} KiB more", grown >> 10);
    drop(held);
    server.settle();
    assert_eq!(honest(server), expected);
}

const MIB: u64 = 1 << 20;

/// The process may hold 64 files open, unless it asks for more.
#[test]
fn a_thousand_idle_connections() {
    let mut files = getrlimit(Resource::Nofile);
    let most = files.maximum.map_or(2_048, |most| most.min(2_048));
    if most < 1_100 {
        eprintln!("SKIPPED: this process may hold {most} files open");
        return;
    }
    files.current = files.current.map(|now| now.max(most));
    setrlimit(Resource::Nofile, files).unwrap();
    let server = Served::start_with_files(64);
    // Each has a task, timers and buffers: 32 KiB would be too many.
    unharmed(&server, 32 * MIB, || {
        (0..1000)
            .map(|i| {
                let mut connection = server.connect();
                if i % 2 == 0 {
                    // Idle between two requests rather than before the first.
                    let head = "GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n";
                    connection.write_all(head.as_bytes()).unwrap();
                    assert_ne!(connection.read(&mut [0; 512]).unwrap(), 0);
                }
                connection
            })
            .collect()
    });
}

#[test]
fn heads_and_bodies_that_trickle() {
    let server = Served::start(&[
        ("LIMITS__HEADER_READ_MS", "600"),
        ("LIMITS__BODY_READ_MS", "600"),
    ]);
    let parts: [&[u8]; 4] = [
        b"POST /v1/comp",
        b"POST /v1/completions HTTP/1.1\r\nx-a: ",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n\r\n{\"pro",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n40\r\n{\"",
    ];
    unharmed(&server, 32 * MIB, || {
        let mut slow: Vec<TcpStream> = (0..200)
            .map(|i| {
                let mut connection = server.connect();
                connection.write_all(parts[i % parts.len()]).unwrap();
                connection
            })
            .collect();
        // A byte now and then gives no more time.
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(100));
            for connection in &mut slow {
                // The server may have closed already.
                let _ = connection.write_all(b"x");
            }
        }
        for connection in &mut slow {
            let mut answer = Vec::new();
            // A reset after the answer is as good as an end.
            let _ = connection.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 408"), "{answer:?}");
        }
        slow
    });
}

#[test]
fn half_closed_connections() {
    let server = Served::start(&[]);
    let body = json!({"prompt": [1], "max_tokens": 400, "ignore_eos": true}).to_string();
    let length = body.len();
    unharmed(&server, 32 * MIB, || {
        let stages = [
            String::new(),
            "POST /v1/completions HT".to_owned(),
            format!(
                "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{{"
            ),
            format!(
                "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
            ),
        ];
        (0..100)
            .map(|i| {
                let mut connection = server.connect();
                connection
                    .write_all(stages[i % stages.len()].as_bytes())
                    .unwrap();
                connection.shutdown(Shutdown::Write).unwrap();
                connection
            })
            .collect()
    });
    // Only the honest client was answered.
    let name = "prelude:requests_total{route=\"/v1/completions\",code=\"200\",";
    assert_eq!(server.metric(name), 3.0);
}

#[test]
fn random_bytes() {
    let server = Served::start(&[("LIMITS__HEADER_READ_MS", "300")]);
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    unharmed(&server, 64 * MIB, || {
        (0..200)
            .map(|i| {
                let mut connection = server.connect();
                let mut bytes: Vec<u8> = match i % 4 {
                    // Something that begins well.
                    0 => b"POST /v1/completions HTTP/1.1\r\n".to_vec(),
                    1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
                    _ => Vec::new(),
                };
                let more = random() % 100_000;
                bytes.extend((0..more / 8).flat_map(|_| random().to_le_bytes()));
                // It may be refused before it is sent.
                let _ = connection.write_all(&bytes);
                connection
            })
            .collect()
    });
}

#[test]
fn heads_and_bodies_that_are_too_large() {
    let server = Served::start(&[
        ("LIMITS__BODY_BYTES", &MIB.to_string()),
        ("LIMITS__BODIES_IN_FLIGHT_BYTES", &(8 * MIB).to_string()),
    ]);
    unharmed(&server, 96 * MIB, || {
        let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n";
        for i in 0..60 {
            let bytes = match i % 3 {
                0 => format!("{head}x-a: {}\r\n\r\n", "a".repeat(4 << 20)),
                1 => format!(
                    "{head}content-length: 4194304\r\n\r\n{}",
                    "a".repeat(4 << 20)
                ),
                _ => {
                    let chunk = format!("10000\r\n{}\r\n", "a".repeat(1 << 16));
                    format!(
                        "{head}transfer-encoding: chunked\r\n\r\n{}",
                        chunk.repeat(64)
                    )
                }
            };
            let response: Answer = server.exchange(bytes.as_bytes());
            let expected = if i % 3 == 0 { 431 } else { 413 };
            assert_eq!(response.status, expected);
        }
        let holding = |sent: usize, all: u64| {
            let text = format!("{head}content-length: {MIB}\r\n\r\n{}", "{".repeat(sent));
            let held: Vec<TcpStream> = (0..8)
                .map(|_| {
                    let mut connection = server.connect();
                    connection.write_all(text.as_bytes()).unwrap();
                    connection
                })
                .collect();
            wait_for(|| {
                let bytes = server.metric("prelude:body_bytes_in_flight");
                (bytes == all as f64)
                    .then_some(())
                    .ok_or_else(|| format!("{bytes} bytes"))
            });
            held
        };
        let body = r#"{"prompt": "a", "max_tokens": 1}"#;
        // Bodies that are declared and not sent refuse no other request.
        let held = holding(1, 8);
        assert_eq!(server.post("/v1/completions", body).status, 200);
        drop(held);
        // As many bodies as may be in flight, none of which ends: the next is refused.
        let held = holding(MIB as usize - 1, 8 * (MIB - 1));
        let refused = server.post("/v1/completions", body);
        assert_eq!((refused.status, &*refused.reason()), (429, "queue_full"));
        drop(held);
        wait_for(|| {
            let bytes = server.metric("prelude:body_bytes_in_flight");
            (bytes == 0.0)
                .then_some(())
                .ok_or_else(|| format!("{bytes} bytes"))
        });
        Vec::new()
    });
}
