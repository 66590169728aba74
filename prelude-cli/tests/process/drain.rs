//! SIGTERM under load.

use std::{
    io::Write as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use serde_json::json;

use crate::support::{Answer, Served, connect, request};

/// Clients of the test, each with one connection at a time.
const CLIENTS: usize = 24;

/// Clients ask as fast as they are answered while the server is told to stop. It answers each
/// accepted request whole, and refuses the others by name or closes the port.
#[test]
fn a_server_told_to_stop_under_load_loses_nothing_it_accepted() {
    let mut server = Served::start(&[("SERVER__DRAIN_DELAY_MS", "200")]);
    let bodies = [
        (
            "/v1/completions",
            json!({"prompt": "Where is my card?", "max_tokens": 60, "ignore_eos": true,
                "temperature": 0}),
        ),
        ("/classify", json!({"input": "I lost my phone."})),
        (
            "/v1/systemone",
            json!({"state": "My card is lost. ".repeat(40), "questions": {
                "q": {"type": "noul", "instructions": "Is it lost?"}}}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "Where is my card?"}],
                "max_tokens": 60, "ignore_eos": true, "temperature": 0, "stream": true,
                "stream_options": {"include_usage": true}}),
        ),
    ];
    let requests = bodies.map(|(path, body)| request(path, &body.to_string()));
    let (whole, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let (refused_connections, lost) = (AtomicU64::new(0), AtomicU64::new(0));
    let streamed = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (requests, address) = (&requests, &server.address);
            let (whole, refused, over) = (&whole, &refused, &over);
            let (refused_connections, lost) = (&refused_connections, &lost);
            let streamed = &streamed;
            scope.spawn(move || {
                for n in client.. {
                    let Ok(mut stream) = connect(address) else {
                        // The port is closed.
                        assert!(over.load(Ordering::Acquire), "no connection");
                        refused_connections.fetch_add(1, Ordering::Relaxed);
                        return;
                    };
                    let sent = stream.write_all(requests[n % requests.len()].as_bytes());
                    let answer = sent.ok().and_then(|()| Answer::read(&mut stream));
                    let Some(answer) = answer else {
                        // It came between the last look at the port and its closing.
                        assert!(over.load(Ordering::Acquire), "an unanswered request");
                        let later = connect(address);
                        assert!(later.is_err(), "a request is lost while the server listens");
                        lost.fetch_add(1, Ordering::Relaxed);
                        return;
                    };
                    match answer.status {
                        200 => {
                            if answer.head.contains("text/event-stream") {
                                // Whole: its last word, and the end of its last chunk unless all
                                // was there before its head went out.
                                let end = match answer.head.contains("transfer-encoding") {
                                    true => "data: [DONE]\n\n\r\n0\r\n\r\n",
                                    false => "data: [DONE]\n\n",
                                };
                                assert!(answer.body.ends_with(end), "{answer:?}");
                                assert!(answer.body.contains("\"completion_tokens\":60"));
                                assert!(!answer.body.contains("\"error\""), "{answer:?}");
                                streamed.fetch_add(1, Ordering::Relaxed);
                            } else {
                                // Whole: it parses.
                                assert!(answer.json()["usage"].is_object(), "{answer:?}");
                            }
                            whole.fetch_add(1, Ordering::Relaxed);
                        }
                        _ => {
                            assert_eq!(
                                (answer.status, &*answer.reason()),
                                (503, "draining"),
                                "{answer:?}"
                            );
                            refused.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(5));
                        }
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(700));
        over.store(true, Ordering::Release);
        server.signal("-TERM");
    });
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let (whole, refused) = (whole.into_inner(), refused.into_inner());
    assert!(whole > 0, "nothing was under way");
    assert!(streamed.into_inner() > 0, "no stream was under way");
    // Each client's last request. Not one in ten falls into the moment of closing.
    let (refused_connections, lost) = (refused_connections.into_inner(), lost.into_inner());
    assert_eq!(refused_connections + lost, CLIENTS as u64);
    assert!(lost * 10 < CLIENTS as u64, "{lost} connections were reset");
    // The server's own lines about all requests.
    let (mut said_whole, mut said_refused) = (0, 0);
    while let Ok(line) = server.log.recv() {
        if line.contains("route=/") && line.contains(" status=200 ") {
            said_whole += 1;
        } else if line.contains(" status=503 ") {
            said_refused += 1;
        } else {
            assert!(!line.starts_with("request "), "{line}");
        }
    }
    assert_eq!((said_whole, said_refused), (whole, refused));
}
