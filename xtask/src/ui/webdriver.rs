//! The part of W3C WebDriver that the checks of the page need.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::files;

/// Longest wait for something that the page is about to show.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running chromedriver; stopped when dropped.
pub(super) struct Driver {
    child: Child,
    address: String,
    chromium: PathBuf,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Nothing is left to do if the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A browser with one page; closed when dropped.
pub(super) struct Browser<'d> {
    driver: &'d Driver,
    session: String,
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        // The driver ends it too.
        let _ = self.call("DELETE", "", &Value::Null);
    }
}

impl Driver {
    /// Starts chromedriver on a free port; `None` if it or Chromium is missing.
    pub(super) fn start() -> Result<Option<Self>> {
        let names = [
            "chromium",
            "chromium-browser",
            "google-chrome",
            "google-chrome-stable",
        ];
        let Some(chromium) = names.into_iter().find_map(on_path) else {
            return Ok(None);
        };
        let Some(driver) = on_path("chromedriver") else {
            return Ok(None);
        };
        let mut child = Command::new(driver)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start chromedriver")?;
        let mut said = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut this = Self {
            child,
            address: String::new(),
            chromium,
        };
        let mut line = String::new();
        while said.read_line(&mut line)? > 0 {
            if let Some((_, port)) = line.trim().trim_end_matches('.').rsplit_once(" on port ") {
                // "Starting .. on port 0" comes first.
                if port != "0" {
                    this.address = format!("127.0.0.1:{port}");
                    // Keep the pipe drained.
                    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
                    return Ok(Some(this));
                }
            }
            line.clear();
        }
        bail!("chromedriver ended before it said its port")
    }

    /// Opens a browser whose profile is a new folder.
    pub(super) fn open(&self, profile: &Path) -> Result<Browser<'_>> {
        files::remove(profile)?;
        let flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1280,950",
            "--force-device-scale-factor=1",
        ];
        let mut args: Vec<String> = flags.map(str::to_owned).into();
        args.push(format!("--user-data-dir={}", profile.display()));
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "binary": self.chromium, "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let opened = self.ask("POST", "/session", &wanted)?;
        let session = opened["sessionId"].as_str().context("no session")?;
        Ok(Browser {
            driver: self,
            session: session.to_owned(),
        })
    }

    /// Sends a command and returns its value.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut stream = TcpStream::connect(&self.address).context("chromedriver is gone")?;
        stream.set_read_timeout(Some(3 * PATIENCE))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        let (status, body) = read_answer(stream).with_context(|| format!("{method} {path}"))?;
        let mut value: Value = serde_json::from_slice(&body).context("chromedriver's answer")?;
        let value = value["value"].take();
        ensure!(
            status.starts_with("HTTP/1.1 200"),
            "{path}: {}: {}",
            value["error"],
            value["message"]
        );
        Ok(value)
    }
}

/// Reads an answer: its first line, and its body. chromedriver says how long the body is, and leaves
/// the connection open.
fn read_answer(stream: TcpStream) -> Result<(String, Vec<u8>)> {
    let mut stream = BufReader::new(stream);
    let mut status = String::new();
    stream.read_line(&mut status)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((status, body))
}

/// Returns the path of a program that can be started by its name.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

impl Browser<'_> {
    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let path = format!("/session/{}{path}", self.session);
        self.driver.ask(method, &path, body)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.call("POST", path, body)
    }

    /// Opens an address.
    pub(super) fn go(&self, url: &str) -> Result<()> {
        self.post("/url", &json!({ "url": url })).map(drop)
    }

    /// Runs a script in the page and returns what it returns.
    pub(super) fn run(&self, script: &str) -> Result<Value> {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs a script that calls its last argument with the result.
    pub(super) fn run_async(&self, script: &str) -> Result<Value> {
        self.post("/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true in the page.
    pub(super) fn until(&self, what: &str, expression: &str) -> Result<()> {
        let began = Instant::now();
        let script = format!("return Boolean({expression})");
        while self.run(&script)? != true {
            if began.elapsed() > PATIENCE {
                let shown = self.run("return document.body.innerText")?;
                let complaints = self.complaints()?;
                bail!(
                    "not so within {PATIENCE:?}: {what}\nconsole: {complaints:?}\npage:\n{}",
                    shown.as_str().unwrap_or_default()
                );
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Presses and releases keys one after the other, in whatever has the focus.
    pub(super) fn type_text(&self, text: &str) -> Result<()> {
        let keys: Vec<Value> = { text.chars() }
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })))
            .collect();
        self.keys(&keys)
    }

    /// Presses a key while another is held.
    pub(super) fn chord(&self, held: char, key: char) -> Result<()> {
        let press = |kind: &str, key: char| json!({ "type": kind, "value": key });
        self.keys(&[
            press("keyDown", held),
            press("keyDown", key),
            press("keyUp", key),
            press("keyUp", held),
        ])
    }

    fn keys(&self, actions: &[Value]) -> Result<()> {
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.post("/actions", &json!({ "actions": [keyboard] }))
            .map(drop)
    }

    /// Sets the colour scheme that the user prefers.
    pub(super) fn prefer(&self, scheme: &str) -> Result<()> {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let command = json!({
            "cmd": "Emulation.setEmulatedMedia", "params": { "features": features },
        });
        self.post("/goog/cdp/execute", &command).map(drop)
    }

    /// Writes a picture of the page.
    pub(super) fn shot(&self, file: &Path) -> Result<()> {
        let picture = self.call("GET", "/screenshot", &Value::Null)?;
        let picture = STANDARD.decode(picture.as_str().context("no picture")?)?;
        fs::write(file, picture).with_context(|| file.display().to_string())
    }

    /// Returns what the console was told since the last look.
    fn complaints(&self) -> Result<Vec<String>> {
        let log = self.post("/se/log", &json!({ "type": "browser" }))?;
        let entries = log.as_array().context("no log")?;
        let line = |entry: &Value| format!("{} {}", entry["level"], entry["message"]);
        Ok(entries.iter().map(line).collect())
    }

    /// Checks that the console was told nothing.
    pub(super) fn no_complaints(&self) -> Result<()> {
        let complaints = self.complaints()?;
        ensure!(
            complaints.is_empty(),
            "the console has: {}",
            complaints.join("\n")
        );
        Ok(())
    }
}
