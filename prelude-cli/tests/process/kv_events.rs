//! KV events of a running server, read over its sockets.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use prelude_core::KvEvent;
use prelude_kv_events::{Address, Subscriber, SubscriberConfig, Update};
use serde_json::json;

use crate::support::{Served, wait_for};

/// Blocks of the pool: as many as the longest sequence of the demo model needs.
const BLOCKS: &str = "256";

/// Returns the first of four ports in a row that are free. They lie below those that systems give to
/// connections, of which another test's could take one while a server is down.
fn free_ports() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let candidate = || {
        let number = std::process::id().wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        10_000 + (number % 5_000) as u16 * 4
    };
    let mut starts = std::iter::repeat_with(candidate).take(5_000);
    let start = starts.find(|&port| (port..port + 4).all(is_free));
    start.unwrap()
}

/// The sockets of a model that the server said before it was ready.
fn sockets(server: &Served, model: &str) -> (Address, Address) {
    let start = format!("kv events: {model}: on ");
    let mut lines = server.before_ready.iter();
    let line = lines.find_map(|line| line.strip_prefix(&start));
    let (endpoint, replay) = line.unwrap().split_once(", replay on ").unwrap();
    (endpoint.parse().unwrap(), replay.parse().unwrap())
}

/// Starts a server whose two models publish on `port` and the next one, and replay on the two
/// behind.
fn start(port: u16) -> Served {
    start_with(&[], port)
}

/// Does what [`start`] does, with two models named in arguments.
fn start_with(models: &[&str], port: u16) -> Served {
    let settings = [
        ("KV__NUM_BLOCKS", BLOCKS),
        ("KV_EVENTS__ENDPOINT", &format!("tcp://127.0.0.1:{port}")),
        (
            "KV_EVENTS__REPLAY_ENDPOINT",
            &format!("tcp://127.0.0.1:{}", port + 2),
        ),
        ("KV_EVENTS__TOPIC", "kv@here@{model}"),
    ];
    Served::start_with(models, &settings)
}

/// Generates under new salts, one for each number: generations take blocks that others have cached,
/// which one-shot work would not.
fn ask(server: &Served, salts: std::ops::Range<u64>) {
    let prompt: Vec<u32> = (0..70).collect();
    for salt in salts {
        let body = json!({"prompt": prompt, "max_tokens": 3, "cache_salt": format!("salt-{salt}")});
        let answer = server.post("/v1/completions", &body.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[derive(Default)]
struct Known {
    blocks: BTreeSet<u64>,
    salts: usize,
    removed: usize,
}

impl Known {
    fn apply(&mut self, update: Update) {
        match update {
            Update::Reset => self.blocks.clear(),
            Update::Events(events) => events.into_iter().for_each(|event| match event {
                KvEvent::Stored(stored) => {
                    self.salts += usize::from(stored.salt.is_some());
                    self.blocks.extend(stored.hashes);
                }
                KvEvent::Removed(hashes) => {
                    self.removed += hashes.len();
                    hashes.iter().for_each(|hash| _ = self.blocks.remove(hash));
                }
                KvEvent::Cleared => self.blocks.clear(),
            }),
            Update::Disconnected(_) => {}
        }
    }
}

/// Reads the events of a model, by its sockets and the beginning of its topic, in a thread.
fn follow((endpoint, replay): (Address, Address), topic: &str) -> Arc<Mutex<Known>> {
    let known = Arc::new(Mutex::new(Known::default()));
    let subscriber = Subscriber::new(SubscriberConfig {
        endpoint,
        replay_endpoint: Some(replay),
        topic: topic.to_owned(),
        check_every: Duration::from_millis(100),
    });
    std::thread::spawn({
        let known = Arc::clone(&known);
        move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            let apply = |update| known.lock().unwrap().apply(update);
            runtime.block_on(subscriber.run(apply))
        }
    });
    known
}

/// Waits until the reader knows as many blocks as the server says that the model has cached.
fn agree(server: &Served, model: &str, known: &Mutex<Known>) {
    let name = format!("prelude:kv_blocks_cached{{model_name=\"{model}\"");
    wait_for(|| {
        let cached = server.metric(&name) as usize;
        let found = known.lock().unwrap().blocks.len();
        let same = (cached == found).then_some(());
        same.ok_or_else(|| format!("{found} blocks are known, {cached} are cached"))
    });
}

#[test]
fn a_reader_follows_evictions_and_a_restart() {
    let port = free_ports();
    let server = start(port);
    let (endpoint, replay) = sockets(&server, "demo-lm");
    assert_eq!((endpoint.port(), replay.port()), (port, port + 2));
    let (endpoint_2, replay_2) = sockets(&server, "demo-classifier");
    assert_eq!((endpoint_2.port(), replay_2.port()), (port + 1, port + 3));
    let known = follow((endpoint, replay), "kv@");
    ask(&server, 0..3);
    agree(&server, "demo-lm", &known);
    assert_eq!(known.lock().unwrap().salts, 3);
    // More than the pool holds.
    ask(&server, 3..150);
    wait_for(|| {
        // While the pool is full, the number of blocks is right before all have been replaced.
        let removed = known.lock().unwrap().removed;
        { (removed > 100).then_some(()) }.ok_or_else(|| format!("{removed} blocks were removed"))
    });
    agree(&server, "demo-lm", &known);
    drop(server);
    let server = start(port);
    ask(&server, 200..202);
    agree(&server, "demo-lm", &known);
    let few = known.lock().unwrap().blocks.len();
    assert!((1..50).contains(&few), "{few} blocks after a restart");
}

/// Models of the same files have caches of their own, and events under their own names.
#[test]
fn models_of_one_server_publish_apart() {
    let server = start_with(&["judge=demo-lm", "other=demo-lm"], free_ports());
    let judge = follow(sockets(&server, "judge"), "kv@here@judge");
    let other = follow(sockets(&server, "other"), "kv@here@other");
    // The first model answers what names none.
    ask(&server, 0..3);
    agree(&server, "judge", &judge);
    assert!(!judge.lock().unwrap().blocks.is_empty());
    agree(&server, "other", &other);
    assert!(other.lock().unwrap().blocks.is_empty());
}

/// Without settings nothing is said and nothing listens.
#[test]
fn events_are_off_by_default() {
    let server = Served::start(&[]);
    let mut lines = server.before_ready.iter();
    assert!(!lines.any(|line| line.starts_with("kv events")));
}
