//! Probes of engines: whether they take requests.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    log,
    picker::{Health, Picker},
};

/// Probes without an answer, one after the other, that take an engine out of service.
const FAILURES_TO_REMOVE: u32 = 2;
/// Most probes at once.
const MAX_AT_ONCE: usize = 256;

/// The times and bounds of probing engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeConfig {
    /// The path that answers 200 if requests are taken (default `/health`).
    pub path: String,
    /// The time between probes of an engine (default 1 s).
    pub every: Duration,
    /// The time for an answer (default 1 s).
    pub timeout: Duration,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            path: "/health".to_owned(),
            every: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
        }
    }
}

/// Probes all engines of a picker for as long as it is polled, and those that join at once.
pub async fn watch_health(picker: Arc<Picker>, config: ProbeConfig) {
    let config = Arc::new(config);
    let mut failures: BTreeMap<SocketAddr, u32> = BTreeMap::new();
    loop {
        let members = picker.members();
        failures.retain(|address, _| members.iter().any(|member| member.address == *address));
        for members in members.chunks(MAX_AT_ONCE) {
            let mut probes = JoinSet::new();
            for member in members {
                let (address, config) = (member.address, Arc::clone(&config));
                probes.spawn(async move { (address, probe(address, &config).await) });
            }
            while let Some(done) = probes.join_next().await {
                if let Ok((address, answer)) = done {
                    note(&picker, &mut failures, address, answer);
                }
            }
        }
        tokio::select! {
            () = sleep(config.every) => {}
            () = picker.joined.notified() => {}
        }
    }
}

/// Notes the answer of a probe. One that is missing may be by chance, the second is none.
fn note(
    picker: &Picker,
    failures: &mut BTreeMap<SocketAddr, u32>,
    address: SocketAddr,
    answer: io::Result<u16>,
) {
    let count = failures.entry(address).or_default();
    let health = match &answer {
        Ok(200..=299) => Health::Up,
        Ok(_) => Health::Refusing,
        Err(_) => Health::Lost,
    };
    *count = match health {
        Health::Lost => count.saturating_add(1),
        Health::Up | Health::Refusing => 0,
    };
    if health == Health::Lost && *count < FAILURES_TO_REMOVE {
        return;
    }
    if picker.set_health(address, health) {
        match answer {
            Ok(status) => log::line(format_args!("endpoint {address} health={status}")),
            Err(error) => log::line(format_args!("endpoint {address} lost: {error}")),
        }
    }
}

/// Asks an engine for its health, and returns the status of its answer.
async fn probe(address: SocketAddr, config: &ProbeConfig) -> io::Result<u16> {
    match timeout(config.timeout, ask(address, &config.path)).await {
        Ok(answer) => answer,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {:?}", config.timeout),
        )),
    }
}

/// Sends one request over a connection of its own, so that a server that no longer accepts any is
/// seen, and reads the line with the status.
async fn ask(address: SocketAddr, path: &str) -> io::Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nuser-agent: prelude-epp\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut line = [0; 12];
    stream.read_exact(&mut line).await?;
    let status = line
        .strip_prefix(b"HTTP/1.")
        .and_then(|rest| rest.get(2..5));
    let status = status.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP/1.1");
    status.ok_or_else(wrong)
}
