//! A running `prelude`, raw bytes in, raw bytes out.

use std::{
    io::{BufRead, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde_json::Value;

/// A server of the demo models. Killed when dropped.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) address: String,
    /// Lines that it said on stderr before it was ready.
    pub(crate) before_ready: Vec<String>,
    /// Lines that it says on stderr after that, until it ends.
    pub(crate) log: mpsc::Receiver<String>,
}

impl Drop for Served {
    fn drop(&mut self) {
        // Nothing is left to do if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    /// Starts it with these settings (`LIMITS__ROWS` and the like) and waits until it is ready.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        Self::start_with(&[], settings)
    }

    /// Does what [`Self::start`] does, with further arguments, such as models in place of the demo's.
    pub(crate) fn start_with(arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_prelude"));
        Self::start_by(command, arguments, settings)
    }

    /// Does what [`Self::start`] does, allowed to hold so many files open until it asks for more.
    pub(crate) fn start_with_files(files: u64) -> Self {
        let mut shell = Command::new("sh");
        let exec = format!("ulimit -Sn {files} && exec \"$0\" \"$@\"");
        shell.args(["-c", &exec, env!("CARGO_BIN_EXE_prelude")]);
        Self::start_by(shell, &[], &[])
    }

    /// Does what [`Self::start`] does, as a service manager that listens at `socket` does, and that
    /// wants a sign of life within each `watchdog`.
    pub(crate) fn start_as_service(socket: &std::path::Path, watchdog: Duration) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_prelude"));
        command.env("NOTIFY_SOCKET", socket);
        command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        Self::start_by(command, &[], &[])
    }

    /// Does what [`Self::start`] does, with variables of the environment that are no settings.
    #[cfg(feature = "otlp")]
    pub(crate) fn start_with_variables(variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_prelude"));
        command.envs(variables.iter().copied());
        Self::start_by(command, &[], &[])
    }

    /// Does what [`Self::start`] does, and returns its log, which nobody reads.
    pub(crate) fn start_unread(settings: &[(&str, &str)]) -> (Self, impl BufRead) {
        let command = Command::new(env!("CARGO_BIN_EXE_prelude"));
        Self::launch(command, &[], settings)
    }

    fn start_by(command: Command, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let (mut server, rest) = Self::launch(command, arguments, settings);
        let (sender, log) = mpsc::channel();
        server.log = log;
        std::thread::spawn(move || {
            for line in rest.lines().map_while(Result::ok) {
                // A test that does not read the log has dropped its end of it.
                let _ = sender.send(line);
            }
        });
        server
    }

    /// Starts it, and returns what it says from the moment on in which it is ready.
    fn launch(
        mut command: Command,
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> (Self, impl BufRead + Send + 'static) {
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PRELUDE_")) {
            command.env_remove(name);
        }
        // Naming the functions of a backtrace takes tens of megabytes.
        command.env("RUST_BACKTRACE", "0");
        for (name, value) in settings {
            command.env(format!("PRELUDE_{name}"), value);
        }
        command.arg("serve").args(arguments).args(["--port", "0"]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut before_ready = Vec::new();
        let ready = loop {
            let line = said.by_ref().lines().next().unwrap().unwrap();
            match line.strip_prefix("ready: ") {
                Some(ready) => break ready.to_owned(),
                None => before_ready.push(line),
            }
        };
        let address = ready.split("http://").nth(1).unwrap();
        let address = address.split(' ').next().unwrap().to_owned();
        let server = Self {
            child,
            address,
            before_ready,
            log: mpsc::channel().1,
        };
        (server, said)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(&self.address).unwrap()
    }

    /// Sends bytes and reads until the server closes.
    pub(crate) fn exchange(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that refuses early may close before it has read everything.
        let _ = stream.write_all(bytes);
        Answer::read(&mut stream).expect("an answer")
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        self.exchange(request.as_bytes())
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.exchange(request(path, body).as_bytes())
    }

    /// The sum over the lines of `/metrics` that begin with `name`; 0 if there is none.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page =
            self.exchange(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let lines = page.body.lines().filter(|l| l.starts_with(name));
        let values = lines.map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        values.sum()
    }

    /// Returns the bytes of memory that it holds.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Most bytes of memory that it held since [`Self::forget_peak`].
    pub(crate) fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    pub(crate) fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    fn memory(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        let kib = line.unwrap().trim().split(' ').next().unwrap();
        kib.parse::<u64>().unwrap() << 10
    }

    /// Waits until nothing is reserved, queued, running or referenced any more.
    pub(crate) fn settle(&self) {
        let names = [
            "prelude:queue_rows",
            "prelude:queue_tokens",
            "prelude:body_bytes_in_flight",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "prelude:kv_blocks_used",
        ];
        wait_for(|| {
            let left: Vec<_> = names.iter().filter(|n| self.metric(n) != 0.0).collect();
            left.is_empty()
                .then_some(())
                .ok_or_else(|| format!("{left:?}"))
        });
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let told = Command::new("kill").args([name, &pid]).status();
        assert!(told.unwrap().success());
    }
}

pub(crate) fn connect(address: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

pub(crate) fn request(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: \
         application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Polls until `check` is content, for at most half a minute.
pub(crate) fn wait_for(mut check: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    loop {
        match check() {
            Ok(()) => return,
            Err(what) if start.elapsed() > Duration::from_secs(30) => panic!("still {what}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// A response of a connection that then closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Reads to the end; `None` if nothing came.
    pub(crate) fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut bytes = Vec::new();
        // A reset after the response is as good as an end.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().unwrap();
        Some(Self {
            status,
            head: head.to_lowercase(),
            body: body.to_owned(),
        })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {:?}", self.body))
    }

    /// The `reason` of an error.
    pub(crate) fn reason(&self) -> String {
        self.json()["error"]["reason"].as_str().unwrap().to_owned()
    }
}
