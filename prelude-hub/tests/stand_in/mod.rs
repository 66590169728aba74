//! A server on this machine that answers as the Hub does, or fails as it is told, and logs what it
//! was asked. It stops a test that cannot go on by a panic.
//!
//! The tests of programs that pull have this file too, by a link.
#![allow(dead_code, reason = "no test has a use for all of it")]

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io::{BufRead as _, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// A failure of one answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The connection ends after this many bytes of the body.
    Cut(usize),
    /// The answer is this status with these header lines, each with its line end.
    Status(u16, String),
    /// The answer leads to this address.
    Redirect(String),
    /// The answer announces this size and sends the file.
    Announce(u64),
    /// The body has another last byte.
    Damage,
    /// The body has no announced size and a byte too many.
    Longer,
    /// Ranges are ignored: the answer is the whole file.
    Whole,
    /// The server sends nothing, ever.
    Silence,
    /// The body stops after this many bytes until [`StandIn::release`].
    Hold(usize),
}

/// A request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The method and the path with its query: `GET /a/b`.
    pub(crate) what: String,
    /// The header `Range`.
    pub(crate) range: Option<String>,
    /// The header `Authorization`.
    pub(crate) authorization: Option<String>,
}

/// A model as the stand-in serves it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// The name: `owner/model`.
    pub(crate) name: String,
    /// The commit that `main` points to.
    pub(crate) commit: String,
    /// Contents by path.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The token that a gated model asks for.
    pub(crate) token: Option<String>,
}

/// The running server. Its threads end with the process.
#[derive(Clone, Debug)]
pub(crate) struct StandIn {
    address: SocketAddr,
    is_encrypted: bool,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    released: Condvar,
    connections: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    models: Vec<Model>,
    /// Contents by path, outside of models.
    others: HashMap<String, Vec<u8>>,
    /// The failures of a path's next answers.
    faults: HashMap<String, VecDeque<Fault>>,
    log: Vec<Asked>,
    is_released: bool,
}

impl Default for StandIn {
    fn default() -> Self {
        Self::start()
    }
}

impl StandIn {
    /// Starts a server on a free port.
    pub(crate) fn start() -> Self {
        Self::start_by(false, |stream| stream)
    }

    /// Starts a server for `localhost` whose connections are those that `encrypt` makes of the
    /// plain ones.
    pub(crate) fn start_encrypted<S: Read + Write>(
        encrypt: impl Fn(TcpStream) -> S + Send + Sync + 'static,
    ) -> Self {
        Self::start_by(true, encrypt)
    }

    fn start_by<S: Read + Write>(
        is_encrypted: bool,
        open: impl Fn(TcpStream) -> S + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let stand_in = Self {
            address: listener.local_addr().expect("a bound port"),
            is_encrypted,
            shared: Arc::default(),
        };
        let (shared, open) = (Arc::clone(&stand_in.shared), Arc::new(open));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let (shared, open) = (Arc::clone(&shared), Arc::clone(&open));
                // A client that is gone is none of the test's faults.
                thread::spawn(move || drop(shared.talk(open(stream))));
            }
        });
        stand_in
    }

    /// Returns the address, as `HF_ENDPOINT` takes it.
    pub(crate) fn endpoint(&self) -> String {
        match self.is_encrypted {
            true => format!("https://localhost:{}", self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    /// Serves a model, in place of one of the same name.
    pub(crate) fn serve(&self, model: Model) {
        let mut state = self.shared.state();
        state.models.retain(|other| other.name != model.name);
        state.models.push(model);
    }

    /// Serves bytes at a path that belongs to no model.
    pub(crate) fn put(&self, path: &str, bytes: &[u8]) {
        let others = &mut self.shared.state().others;
        others.insert(path.to_owned(), bytes.to_vec());
    }

    /// Makes the next answers to `GET path` fail, one after the other.
    pub(crate) fn fail(&self, path: &str, faults: impl IntoIterator<Item = Fault>) {
        let mut state = self.shared.state();
        state
            .faults
            .entry(path.to_owned())
            .or_default()
            .extend(faults);
    }

    /// Lets bodies go on that a [`Fault::Hold`] stopped.
    pub(crate) fn release(&self) {
        self.shared.state().is_released = true;
        self.shared.released.notify_all();
    }

    /// Returns the requests so far.
    pub(crate) fn log(&self) -> Vec<Asked> {
        self.shared.state().log.clone()
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

/// An answer before failures.
struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Answer {
    fn empty(status: u16, headers: String) -> Self {
        Self {
            status,
            headers,
            body: Vec::new(),
        }
    }

    fn refusal(status: u16, code: &str) -> Self {
        Self::empty(status, format!("X-Error-Code: {code}\r\n"))
    }

    /// Returns the part of a file that a request asks for by its range.
    fn part(mut self, range: Option<&str>) -> Self {
        let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let from: Option<usize> = from.and_then(|from| from.parse().ok());
        let Some(from) = from.filter(|_| self.status == 200) else {
            return self;
        };
        let total = self.body.len();
        if from >= total {
            return Self::empty(416, String::new());
        }
        let last = total - 1;
        let range = format!("Content-Range: bytes {from}-{last}/{total}\r\n");
        self.headers.push_str(&range);
        self.body.drain(..from);
        self.status = 206;
        self
    }

    fn with_byte(mut self) -> Self {
        self.body.push(0);
        self
    }

    fn damaged(mut self) -> Self {
        if let Some(last) = self.body.last_mut() {
            *last ^= 1;
        }
        self
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the requests of one connection.
    fn talk(&self, stream: impl Read + Write) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream);
        loop {
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                if lines.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                match line.trim_end() {
                    "" => break,
                    line => head.push(line.to_owned()),
                }
            }
            let header = |name: &str| {
                let mut pairs = head.iter().filter_map(|line| line.split_once(": "));
                let found = pairs.find(|(n, _)| n.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_owned())
            };
            let what = head[0].trim_end_matches(" HTTP/1.1").to_owned();
            let asked = Asked {
                what: what.clone(),
                range: header("range"),
                authorization: header("authorization"),
            };
            let (method, path) = what.split_once(' ').unwrap_or_default();
            let (answer, fault) = {
                let mut state = self.state();
                state.log.push(asked.clone());
                let faults = state.faults.get_mut(path).filter(|_| method == "GET");
                let fault = faults.and_then(VecDeque::pop_front);
                (state.answer(path, &asked), fault)
            };
            let stream = lines.get_mut();
            self.send(stream, method, answer, fault, asked.range.as_deref())?;
        }
    }

    /// Sends an answer, or what the fault makes of it.
    fn send(
        &self,
        stream: &mut impl Write,
        method: &str,
        mut answer: Answer,
        fault: Option<Fault>,
        range: Option<&str>,
    ) -> std::io::Result<()> {
        if !matches!(fault, Some(Fault::Whole)) {
            answer = answer.part(range);
        }
        let size = answer.body.len() as u64;
        let (answer, announced) = match &fault {
            Some(Fault::Silence) => loop {
                thread::park();
            },
            Some(Fault::Announce(size)) => (answer, Some(*size)),
            // Without a size, the end of the connection is that of the body.
            Some(Fault::Longer) => (answer.with_byte(), None),
            Some(Fault::Damage) => (answer.damaged(), Some(size)),
            Some(Fault::Status(status, headers)) => {
                (Answer::empty(*status, headers.clone()), Some(0))
            }
            Some(Fault::Redirect(to)) => {
                (Answer::empty(302, format!("Location: {to}\r\n")), Some(0))
            }
            Some(Fault::Cut(_) | Fault::Hold(_) | Fault::Whole) | None => (answer, Some(size)),
        };
        let length = match announced {
            Some(size) => format!("Content-Length: {size}\r\n"),
            None => "Connection: close\r\n".to_owned(),
        };
        let Answer {
            status,
            headers,
            body,
        } = answer;
        write!(stream, "HTTP/1.1 {status} X\r\n{length}{headers}\r\n")?;
        if method == "HEAD" {
            return Ok(());
        }
        let at = match fault {
            Some(Fault::Cut(at) | Fault::Hold(at)) => at.min(body.len()),
            _ => body.len(),
        };
        stream.write_all(&body[..at])?;
        stream.flush()?;
        if matches!(fault, Some(Fault::Cut(_))) || announced.is_none() {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        if at < body.len() {
            let wait = |state: &mut State| !state.is_released;
            let released = self.released.wait_while(self.state(), wait);
            drop(released.unwrap_or_else(PoisonError::into_inner));
            stream.write_all(&body[at..])?;
        }
        stream.flush()
    }
}

impl State {
    fn answer(&self, path: &str, asked: &Asked) -> Answer {
        if let Some(bytes) = self.others.get(path) {
            return Answer {
                status: 200,
                headers: String::new(),
                body: bytes.clone(),
            };
        }
        let rest = path
            .trim_start_matches("/api/models")
            .trim_start_matches('/');
        let is_named = |model: &&Model| rest.starts_with(&format!("{}/", model.name));
        let Some(model) = self.models.iter().find(is_named) else {
            // The Hub does not tell strangers which private models exist.
            let status = if asked.authorization.is_some() {
                404
            } else {
                401
            };
            return Answer::refusal(status, "RepoNotFound");
        };
        if let Some(token) = &model.token
            && asked.authorization.as_deref() != Some(&format!("Bearer {token}"))
        {
            let status = if asked.authorization.is_some() {
                403
            } else {
                401
            };
            return Answer::refusal(status, "GatedRepo");
        }
        let rest = &rest[model.name.len() + 1..];
        let is_known = |revision: &str| revision == "main" || revision == model.commit;
        if let Some(revision) = rest.strip_prefix("revision/") {
            let revision = revision.split('?').next().unwrap_or_default();
            if !is_known(revision) {
                return Answer::refusal(404, "RevisionNotFound");
            }
            return Answer {
                status: 200,
                headers: String::new(),
                body: model.description().into_bytes(),
            };
        }
        let file = rest
            .strip_prefix("resolve/")
            .and_then(|rest| rest.split_once('/'));
        let Some((_, file)) = file.filter(|(revision, _)| is_known(revision)) else {
            return Answer::refusal(404, "RevisionNotFound");
        };
        match model.files.get(file) {
            None => Answer::refusal(404, "EntryNotFound"),
            Some(bytes) => Answer {
                status: 200,
                headers: format!(
                    "ETag: \"{}\"\r\nX-Repo-Commit: {}\r\n",
                    checksum(file, bytes),
                    model.commit
                ),
                body: bytes.clone(),
            },
        }
    }
}

impl Model {
    /// Returns the description of the model as the Hub's API gives it with `blobs=true`.
    fn description(&self) -> String {
        let sibling = |(path, bytes): (&String, &Vec<u8>)| {
            let git = git_hash(bytes);
            let size = bytes.len();
            let lfs = match path.ends_with(".safetensors") {
                true => format!(
                    r#","lfs":{{"sha256":"{}","size":{size},"pointerSize":130}}"#,
                    checksum(path, bytes)
                ),
                false => String::new(),
            };
            format!(r#"{{"rfilename":"{path}","size":{size},"blobId":"{git}"{lfs}}}"#)
        };
        let siblings: Vec<String> = self.files.iter().map(sibling).collect();
        let (name, commit) = (&self.name, &self.commit);
        format!(
            r#"{{"id":"{name}","sha":"{commit}","siblings":[{}]}}"#,
            siblings.join(",")
        )
    }
}

/// Returns the published hash of a file: SHA-256 of weights, git's hash of others.
pub(crate) fn checksum(path: &str, bytes: &[u8]) -> String {
    match path.ends_with(".safetensors") {
        true => hex(&Sha256::digest(bytes)),
        false => git_hash(bytes),
    }
}

/// Returns the hash of `blob SIZE\0` and the content.
fn git_hash(bytes: &[u8]) -> String {
    let mut hash = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
