//! A picker that follows the KV events of an engine: evictions, and a restart.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use prelude_core::{KvEvent, StoredBlocks};
use prelude_epp::{
    Config, Picker,
    body::Body,
    kv_events::{KvEventPorts, follow_kv_events},
    picker::Asked,
};
use prelude_kv_events::{Address, Format, Publisher, PublisherConfig};
use tokio::time::{sleep, timeout};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_millis(5);
/// Tokens of a block, and of a granule of the router.
const BLOCK: u64 = 64;

/// Returns how many tokens of a prompt are thought to be cached. Asking counts as use, and the
/// engine is then thought to have the prompt.
fn cached(picker: &Picker, letter: &str) -> u32 {
    let body = serde_json::json!({ "prompt": letter.repeat(2048), "max_tokens": 1 }).to_string();
    let prefix = picker.prefix(&Body::new("/v1/completions", body.as_bytes()));
    let picked = picker.pick(&prefix, &Asked::default()).unwrap();
    picker.finish(picked.id, Default::default());
    picked.cached_tokens
}

/// Waits until the router has forgotten all but so many tokens of what the caches hold.
async fn until(picker: &Picker, resident: u64) {
    let reached = async {
        while picker.members()[0].cached_tokens > resident {
            sleep(OFTEN).await;
        }
    };
    let found = || picker.members()[0].cached_tokens;
    assert!(
        timeout(PATIENCE, reached).await.is_ok(),
        "{} tokens",
        found()
    );
    assert_eq!(found(), resident);
}

fn stored(hashes: std::ops::Range<u64>) -> KvEvent {
    let count = hashes.end - hashes.start;
    KvEvent::Stored(StoredBlocks {
        hashes: hashes.collect(),
        parent: None,
        tokens: vec![1; (count * BLOCK) as usize],
        salt: None,
    })
}

async fn publisher(endpoint: &str, replay: &str) -> Publisher {
    let config = PublisherConfig {
        endpoint: endpoint.parse::<Address>().unwrap(),
        replay_endpoint: Some(replay.parse().unwrap()),
        topic: "kv@engine@model".to_owned(),
        format: Format::Maps,
        buffer_steps: 100,
    };
    let bound = async {
        loop {
            // Connections of one that is gone may hold the port for a moment.
            match Publisher::bind(&config).await {
                Ok(publisher) => return publisher,
                Err(_) => sleep(OFTEN).await,
            }
        }
    };
    let publisher = timeout(PATIENCE, bound).await.unwrap();
    // As an engine starts.
    publisher.publish(vec![KvEvent::Cleared]);
    publisher
}

#[tokio::test]
async fn evictions_and_a_restart_are_followed() {
    let config = Config {
        probes: false,
        ..Config::default()
    };
    let picker = Arc::new(Picker::new(config, None).unwrap());
    let engine = SocketAddr::from(([127, 0, 0, 1], 1));
    picker.replace(0, vec![(engine, None)]).unwrap();
    let first = publisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0").await;
    let ports = KvEventPorts {
        events: first.address().port(),
        replay: first.replay_address().map(|address| address.port()),
    };
    assert_eq!(cached(&picker, "x"), 0);
    assert!(picker.members()[0].cached_tokens > 0);
    let following = tokio::spawn(follow_kv_events(Arc::clone(&picker), ports));
    // What was thought before the first event is forgotten.
    until(&picker, 0).await;
    // Two prompts of 512 tokens, of which the engine then drops as much as it likes.
    first.publish(vec![stored(0..16)]);
    assert_eq!((cached(&picker, "a"), cached(&picker, "b")), (0, 0));
    let all = picker.members()[0].cached_tokens;
    assert!((16 * BLOCK..=17 * BLOCK).contains(&all), "{all} tokens");
    first.publish(vec![KvEvent::Removed((0..6).collect())]);
    until(&picker, 10 * BLOCK).await;
    assert!(cached(&picker, "b") >= 500, "the newer one stays");
    drop(first);
    let second = publisher(
        &format!("tcp://127.0.0.1:{}", ports.events),
        &format!("tcp://127.0.0.1:{}", ports.replay.unwrap()),
    )
    .await;
    until(&picker, 0).await;
    assert_eq!(cached(&picker, "b"), 0);
    second.publish(vec![stored(0..1)]);
    following.abort();
}
