//! Engines that come and go: files that change, names, probes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use prelude_core::Timestamp;
use prelude_epp::{
    Config, Picker,
    body::Body,
    endpoints::{DnsName, FileWatch},
    picker::{Asked, Change, Engine, Health},
    probe::{ProbeConfig, watch_health},
};
use prelude_router::{LapsConfig, PolicyConfig, Pool, RouterConfig};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
    time::timeout,
};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_millis(5);

fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 8000))
}

fn picker(probes: bool) -> Arc<Picker> {
    let config = Config {
        probes,
        ..Config::default()
    };
    Arc::new(Picker::new(config, None).unwrap())
}

/// Returns the endpoint picked for a prompt, and the tokens of it that are thought to be cached
/// there. The request ends at once.
fn pick(picker: &Picker, prompt: &str) -> Option<(String, u32)> {
    let body = serde_json::json!({ "prompt": prompt, "max_tokens": 1 }).to_string();
    let prefix = picker.prefix(&Body::new("/v1/completions", body.as_bytes()));
    let picked = picker.pick(&prefix, &Asked::default()).ok()?;
    picker.finish(picked.id, Default::default());
    Some((picked.addresses, picked.cached_tokens))
}

#[test]
fn sources_join() {
    let picker = picker(false);
    let replace = |source, list: &[(u8, Option<u64>)]| {
        let list = list.iter().map(|(n, tokens)| (address(*n), *tokens));
        let Change { joined, left } = picker.replace(source, list).unwrap();
        let last = |set: std::collections::BTreeSet<SocketAddr>| -> Vec<String> {
            set.into_iter()
                .map(|a| a.to_string()[7..8].to_owned())
                .collect()
        };
        (last(joined).concat(), last(left).concat())
    };
    let change = |joined: &str, left: &str| (joined.to_owned(), left.to_owned());
    assert_eq!(replace(0, &[(1, None), (2, None)]), change("12", ""));
    assert_eq!(replace(1, &[(2, None), (3, None)]), change("3", ""));
    // It is in the other source still.
    assert_eq!(replace(0, &[(1, None)]), change("", ""));
    assert_eq!(replace(1, &[]), change("", "23"));
    // Another capacity is another engine.
    assert_eq!(replace(0, &[(1, Some(5))]), change("1", "1"));
    assert_eq!(replace(0, &[(1, Some(5))]), change("", ""));
    assert_eq!(picker.members().len(), 1);
}

/// Under the policy `laps`, prompts with little to compute and all others go to engines of their
/// own, as the engines' labels say.
#[test]
fn labels_bind_engines_to_pools() {
    let mut config = Config {
        probes: false,
        ..Config::default()
    };
    config.router.policy = PolicyConfig::Laps(LapsConfig::default());
    let picker = Picker::new(config, None).unwrap();
    let engine = |n, pool| Engine {
        address: address(n),
        kv_tokens: None,
        pool,
    };
    let (short, long) = (Some(Pool::Short), Some(Pool::Long));
    let engines = [engine(1, long), engine(2, long), engine(3, short)];
    picker.replace(0, engines).unwrap();
    let members = picker.members();
    let pools: Vec<_> = members.iter().map(|member| member.pool).collect();
    assert_eq!(pools, [long, long, short]);
    for n in 0..20 {
        let (picked, _) = pick(&picker, &format!("{n} is short")).unwrap();
        assert!(picked.starts_with("10.0.0.3"), "{picked}");
        let (picked, _) = pick(&picker, &format!("{n} is long").repeat(200)).unwrap();
        assert!(!picked.starts_with("10.0.0.3"), "{picked}");
    }
    // Another label is another engine.
    let change = picker.replace(0, [engine(1, long), engine(2, short), engine(3, short)]);
    assert_eq!(change.unwrap().joined, [address(2)].into());
}

#[test]
fn an_engine_that_was_lost_has_an_empty_cache() {
    let picker = picker(false);
    picker.replace(0, vec![(address(1), None)]).unwrap();
    let prompt = "a prompt ".repeat(200);
    let cached = || pick(&picker, &prompt).map(|(_, cached)| cached);
    assert_eq!(cached(), Some(0));
    let all = cached().unwrap();
    assert!(all > 400, "{all}");
    // One that only refuses keeps its cache.
    assert!(picker.set_health(address(1), Health::Refusing));
    assert!(!picker.set_health(address(1), Health::Refusing));
    assert_eq!(cached(), None);
    assert!(picker.set_health(address(1), Health::Up));
    assert_eq!(cached(), Some(all));
    // One that could not be reached was started anew, whatever it says when it comes back.
    assert!(picker.set_health(address(1), Health::Lost));
    assert!(!picker.set_health(address(1), Health::Refusing));
    assert!(picker.set_health(address(1), Health::Up));
    assert_eq!(cached(), Some(0));
    assert!(!picker.set_health(address(2), Health::Up), "it is unknown");
}

#[test]
fn tokens_make_keys_as_well() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fasttoken/tests/data/tokenizer.json"
    );
    let tokenizer = fasttoken::Tokenizer::from_file(path).unwrap();
    let router = RouterConfig {
        granule_tokens: 16,
        ..RouterConfig::default()
    };
    let config = Config {
        router,
        ..Config::default()
    };
    let state = "Where is my card? I have been waiting for it. ".repeat(20);
    let ids = tokenizer.encode(&format!("{state}\n"), false);
    let picker = Picker::new(config, Some(tokenizer)).unwrap();
    let prefix = |model: &str, question: &str| {
        let body = serde_json::json!({"model": model, "state": state, "questions": [question]});
        picker.prefix(&Body::new("/v1/systemone", body.to_string().as_bytes()))
    };
    let [a, b, other] = [("m", "a"), ("m", "b"), ("n", "a")].map(|(m, q)| prefix(m, q));
    assert!(a.tokens() > ids.len() as u32);
    let shared = { a.hashes().iter().zip(b.hashes()) }.take_while(|(a, b)| a == b);
    assert!(shared.count() >= (ids.len() - 1) / 16);
    assert_ne!(a.hashes()[0], other.hashes()[0], "models share nothing");
}

/// A folder for one test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("prelude-epp-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("engines")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes a file with a time of change of its own, since clocks of file systems are coarse.
fn write(path: &Path, text: &str, second: u64) {
    fs::write(path, text).unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000 + second);
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(time).unwrap();
}

#[tokio::test]
async fn a_file_is_read_when_it_changes() {
    let folder = Folder::new("watch");
    let path = folder.file();
    write(&path, "10.0.0.1:8000\n", 1);
    let mut watch = FileWatch::new(path.clone(), OFTEN);
    let names = |lines: Vec<prelude_epp::endpoints::EndpointLine>| -> Vec<String> {
        lines.into_iter().map(|line| line.address).collect()
    };
    assert_eq!(names(watch.next().await.unwrap()), ["10.0.0.1:8000"]);
    // Nothing has changed.
    assert!(timeout(OFTEN * 10, watch.next()).await.is_err());
    write(&path, "10.0.0.2:8000\n", 2);
    assert_eq!(names(watch.next().await.unwrap()), ["10.0.0.2:8000"]);
    write(&path, "10.0.0.2\n", 3);
    let error = watch.next().await.unwrap_err().to_string();
    assert!(
        error.contains("engines:1: `10.0.0.2` is no HOST:PORT"),
        "{error}"
    );
    assert!(timeout(OFTEN * 10, watch.next()).await.is_err(), "once");
    fs::remove_file(&path).unwrap();
    assert!(
        watch
            .next()
            .await
            .unwrap_err()
            .to_string()
            .contains("cannot read")
    );
    write(
        &path,
        "{\"address\":\"10.0.0.3:8000\",\"kv_tokens\":9}\n",
        3,
    );
    assert_eq!(names(watch.next().await.unwrap()), ["10.0.0.3:8000"]);
}

#[tokio::test]
async fn names_are_resolved() {
    let name: DnsName = "localhost:8000".parse().unwrap();
    let found = name.resolve().await.unwrap();
    assert!(
        found
            .iter()
            .all(|a| a.ip().is_loopback() && a.port() == 8000)
    );
    assert!(!found.is_empty());
    let none: DnsName = "no-such-name.invalid:1".parse().unwrap();
    assert!(none.resolve().await.is_err());
    assert!("localhost".parse::<DnsName>().is_err());
}

/// Answers every request over HTTP/1.1 with the status that is set.
fn engine(listener: TcpListener, status: Arc<AtomicU16>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let status = status.load(Ordering::Relaxed);
            let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
}

#[tokio::test]
async fn probes_find_what_engines_can_do() {
    let picker = picker(true);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let status = Arc::new(AtomicU16::new(503));
    let server = engine(listener, Arc::clone(&status));
    picker.replace(0, vec![(address, None)]).unwrap();
    assert_eq!(pick(&picker, "a"), None, "it was not probed yet");
    let config = ProbeConfig {
        every: OFTEN,
        ..ProbeConfig::default()
    };
    let probes = tokio::spawn(watch_health(Arc::clone(&picker), config));
    let becomes = async |healthy: bool| {
        let wait = async {
            while picker.members()[0].is_healthy != healthy {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, wait).await.expect("no probe has noticed");
    };
    tokio::time::sleep(OFTEN * 4).await;
    assert_eq!(pick(&picker, "a"), None, "it refuses");
    status.store(200, Ordering::Relaxed);
    becomes(true).await;
    assert!(pick(&picker, "a").is_some());
    status.store(503, Ordering::Relaxed);
    becomes(false).await;
    status.store(200, Ordering::Relaxed);
    becomes(true).await;
    server.abort();
    becomes(false).await;
    let again = TcpListener::bind(address).await.unwrap();
    let _server = engine(again, status);
    becomes(true).await;
    probes.abort();
}

/// A router of the same knobs agrees with what the picker says, so that the picker adds nothing.
#[test]
fn picks_are_the_router_s() {
    let picker = picker(false);
    let mut router = prelude_router::Router::new(RouterConfig::default()).unwrap();
    let list = (1..=3).map(|n| (address(n), None));
    picker.replace(0, list).unwrap();
    let spec = prelude_router::EndpointSpec {
        kv_capacity_tokens: Config::default().kv_tokens,
        service: Config::default().service,
        pool: None,
    };
    let ids = [(); 3].map(|()| router.join(Timestamp::ZERO, spec).unwrap());
    for n in 0..60u64 {
        let prompt = format!(
            "{}{n}",
            "a state that is asked about ".repeat(20 + n as usize % 7)
        );
        let body = serde_json::json!({"prompt": prompt, "max_tokens": 1}).to_string();
        let prefix = picker.prefix(&Body::new("/v1/completions", body.as_bytes()));
        let request = prelude_router::RouteRequest {
            id: prelude_core::RequestId(n),
            prefix: &prefix,
            max_output_tokens: Some(1),
            user: None,
            sheddable: false,
            subset: None,
            deadline: None,
        };
        let expected = router.route(Timestamp::ZERO, &request).unwrap();
        let asked = Asked {
            max_output_tokens: Some(1),
            ..Asked::default()
        };
        let picked = picker.pick(&prefix, &asked).unwrap();
        let at = ids.iter().position(|id| *id == expected.endpoint).unwrap();
        let first = picked.addresses.split(',').next().unwrap();
        assert_eq!(first, address(at as u8 + 1).to_string(), "{n}");
        assert_eq!(picked.cached_tokens, expected.cached_tokens);
    }
}
