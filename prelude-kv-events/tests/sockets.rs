//! Publisher and subscriber over TCP.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use prelude_core::KvEvent;
use prelude_kv_events::{
    Address, Batch, Format, Publisher, PublisherConfig, Subscriber, SubscriberConfig, Update,
    zmtp::{self, Received, Socket},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};

const LIMIT: Duration = Duration::from_secs(30);

fn config(buffer_steps: usize) -> PublisherConfig {
    let any: Address = "tcp://127.0.0.1:0".parse().unwrap();
    PublisherConfig {
        endpoint: any.clone(),
        replay_endpoint: Some(any),
        topic: "kv@engine@model".to_owned(),
        format: Format::Maps,
        buffer_steps,
    }
}

fn address(of: SocketAddr) -> Address {
    Address::new(of.ip().to_string(), of.port())
}

fn removed(hash: u64) -> Vec<KvEvent> {
    vec![KvEvent::Removed(vec![hash])]
}

async fn connect(address: SocketAddr, own: Socket) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    zmtp::handshake(&mut stream, own).await.unwrap();
    stream
}

async fn receive(stream: &mut TcpStream) -> Vec<Vec<u8>> {
    let received = timeout(LIMIT, zmtp::receive(stream, 1 << 20)).await;
    match received.unwrap().unwrap() {
        Received::Message(frames) => frames,
        Received::Command { name, .. } => panic!("a command {name:?}"),
    }
}

/// The hashes of a message of one removal.
fn hash_of(payload: &[u8]) -> u64 {
    match &Batch::decode(payload).unwrap().events[..] {
        [KvEvent::Removed(hashes)] => hashes[0],
        other => panic!("{other:?}"),
    }
}

/// Waits until the publisher has seen what was sent before on the connection: it answers a ping
/// behind it.
async fn ping(stream: &mut TcpStream) {
    { stream.write_all(&zmtp::command(b"PING", &[0, 0, 7])).await }.unwrap();
    let received = timeout(LIMIT, zmtp::receive(stream, 1 << 20)).await;
    let Received::Command { name, data } = received.unwrap().unwrap() else {
        panic!("a message before the answer to the ping");
    };
    assert_eq!((&name[..], &data[..]), (&b"PONG"[..], &[7][..]));
}

#[tokio::test]
async fn subscribers_get_three_frames_of_their_topics() {
    let publisher = Publisher::bind(&config(100)).await.unwrap();
    publisher.publish(removed(1));
    let mut all = connect(publisher.address(), Socket::Sub).await;
    let mut other = connect(publisher.address(), Socket::Sub).await;
    let mut newer = connect(publisher.address(), Socket::Sub).await;
    all.write_all(&zmtp::message(&[&[1]])).await.unwrap();
    other
        .write_all(&zmtp::message(&[b"\x01kv@else"]))
        .await
        .unwrap();
    // As peers of version 3.1 do it.
    let subscribe = zmtp::command(b"SUBSCRIBE", b"kv@engine");
    newer.write_all(&subscribe).await.unwrap();
    for stream in [&mut all, &mut other, &mut newer] {
        ping(stream).await;
    }
    publisher.publish(removed(2));
    for stream in [&mut all, &mut newer] {
        let frames = receive(stream).await;
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[0], b"kv@engine@model");
        assert_eq!(frames[1], 1u64.to_be_bytes(), "one was sent before");
        assert_eq!(hash_of(&frames[2]), 2);
    }
    // Nothing but the answer comes.
    ping(&mut other).await;
    newer
        .write_all(&zmtp::command(b"CANCEL", b"kv@engine"))
        .await
        .unwrap();
    ping(&mut newer).await;
    publisher.publish(removed(3));
    ping(&mut newer).await;
}

#[tokio::test]
async fn replay_sends_what_is_kept_and_an_end() {
    let publisher = Publisher::bind(&config(3)).await.unwrap();
    for hash in 0..5 {
        publisher.publish(removed(hash));
    }
    let mut stream = connect(publisher.replay_address().unwrap(), Socket::Dealer).await;
    for (from, expected) in [
        (0u64, &[2u64, 3, 4][..]),
        (4, &[4]),
        (5, &[]),
        (u64::MAX, &[]),
    ] {
        let request = zmtp::message(&[&[], &from.to_be_bytes()]);
        stream.write_all(&request).await.unwrap();
        for &seq in expected {
            let frames = receive(&mut stream).await;
            assert_eq!(
                (&frames[0][..], &frames[1][..]),
                (&[][..], &seq.to_be_bytes()[..])
            );
            assert_eq!(hash_of(&frames[2]), seq);
        }
        let end = receive(&mut stream).await;
        assert_eq!(end, [vec![], vec![0xff; 8], vec![]]);
    }
}

#[tokio::test]
async fn malformed_messages_end_the_connection() {
    let publisher = Publisher::bind(&config(3)).await.unwrap();
    let sockets = [
        (publisher.address(), Socket::Sub),
        (publisher.replay_address().unwrap(), Socket::Dealer),
    ];
    for (address, own) in sockets {
        for wrong in [
            zmtp::message(&[b"?"]),
            zmtp::message(&[&[7; 9000]]),
            vec![0x77; 99],
        ] {
            let mut stream = connect(address, own).await;
            // The peer may close while this is written.
            let _ = stream.write_all(&wrong).await;
            let ended = timeout(LIMIT, zmtp::receive(&mut stream, 99))
                .await
                .unwrap();
            assert!(ended.is_err(), "{ended:?}");
        }
        // A browser, and others that speak first.
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(&[b'G'; 64]).await;
        let ended = timeout(LIMIT, zmtp::handshake(&mut stream, own))
            .await
            .unwrap();
        assert!(ended.is_err());
    }
    // It still serves.
    publisher.publish(removed(1));
    let mut stream = connect(publisher.replay_address().unwrap(), Socket::Dealer).await;
    let request = zmtp::message(&[&[], &[0; 8]]);
    stream.write_all(&request).await.unwrap();
    assert_eq!(hash_of(&receive(&mut stream).await[2]), 1);
}

/// The removals that a reader has seen since its last reset, and resets.
#[derive(Debug, Default)]
struct Seen {
    hashes: Vec<u64>,
    resets: usize,
}

/// Waits until the reader has seen this.
async fn until(seen: &Mutex<Seen>, expected: &[u64]) {
    let same = async {
        while seen.lock().unwrap().hashes != expected {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let same = timeout(LIMIT, same).await;
    assert!(same.is_ok(), "{seen:?} is not {expected:?}");
}

#[tokio::test]
async fn a_subscriber_follows_restarts() {
    let mut config = config(100);
    let publisher = Publisher::bind(&config).await.unwrap();
    let (endpoint, replay) = (publisher.address(), publisher.replay_address().unwrap());
    publisher.publish(removed(1));
    let seen = Arc::new(Mutex::new(Seen::default()));
    let subscriber = Subscriber::new(SubscriberConfig {
        endpoint: address(endpoint),
        replay_endpoint: Some(address(replay)),
        topic: "kv@".to_owned(),
        check_every: Duration::from_millis(20),
    });
    let following = tokio::spawn({
        let seen = Arc::clone(&seen);
        subscriber.run(move |update| {
            let mut seen = seen.lock().unwrap();
            match update {
                Update::Reset => {
                    seen.hashes.clear();
                    seen.resets += 1;
                }
                Update::Events(events) => {
                    let hashes = events.iter().flat_map(|event| match event {
                        KvEvent::Removed(hashes) => hashes.clone(),
                        _ => Vec::new(),
                    });
                    seen.hashes.extend(hashes);
                }
                Update::Disconnected(_) => {}
            }
        })
    });
    // The message before the connection is replayed.
    until(&seen, &[1]).await;
    publisher.publish(removed(2));
    until(&seen, &[1, 2]).await;
    assert_eq!(seen.lock().unwrap().resets, 1, "none but the first");
    drop(publisher);
    config.endpoint = address(endpoint);
    config.replay_endpoint = Some(address(replay));
    let publisher = loop {
        // Connections of the old one may hold the port for a moment.
        match Publisher::bind(&config).await {
            Ok(publisher) => break publisher,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    for hash in 11..15 {
        publisher.publish(removed(hash));
    }
    until(&seen, &[11, 12, 13, 14]).await;
    following.abort();
}
