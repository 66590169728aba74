//! The README's first command, as a stranger would run it.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::run::{cargo, root};

/// Longest that the demo server may take from its start to its first answer. The promise is one
/// second; a busy machine gets slack, since this is a check of function.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Stops the server whatever happens.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is left to do if the process is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run() -> Result<()> {
    // Exactly what the README says; that it prints its version shows that it found the program.
    cargo(["run", "--release", "--", "--version"]).run()?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let start = Instant::now();
    let child = Command::new(target.join("release/prelude"))
        .args(["serve", "--port", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start target/release/prelude")?;
    let mut server = Server(child);
    let address = bound_address(&mut server.0)?;
    let ask = |path: &str, body: &str, must_contain: &str| -> Result<()> {
        let answer = post(&address, path, body)?;
        ensure!(
            answer.starts_with("HTTP/1.1 200"),
            "{path} answered: {answer}"
        );
        ensure!(
            answer.contains(must_contain),
            "{path}: no {must_contain} in: {answer}"
        );
        println!("{path}: {}", answer.lines().last().unwrap_or_default());
        Ok(())
    };
    ask(
        "/classify",
        r#"{"model":"demo-classifier","input":"Where is my card?"}"#,
        "card_arrival",
    )?;
    println!(
        "first answer after {:.0} ms",
        start.elapsed().as_secs_f64() * 1e3
    );
    ask(
        "/v1/systemone",
        r#"{"model":"demo-lm","state":"Where is my card?","questions":{"card":{"type":"noul","instructions":"Is the intent card_arrival?"}}}"#,
        r#""noul""#,
    )?;
    ask(
        "/v1/chat/completions",
        r#"{"model":"demo-lm","messages":[{"role":"user","content":"Where is my card?\nWhich topic?"}],"max_tokens":1,"temperature":0,"enable_thinking":false}"#,
        r#""content":"card""#,
    )?;
    Ok(())
}

/// Reads the address from the server's own announcement.
fn bound_address(child: &mut Child) -> Result<String> {
    let stderr = child
        .stderr
        .take()
        .context("the server's stderr is not piped")?;
    let mut reader = BufReader::new(stderr);
    let deadline = Instant::now() + READY_WITHIN;
    let mut seen = String::new();
    while Instant::now() < deadline {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            bail!("the server ended before it was ready; it said:\n{seen}");
        }
        seen.push_str(&line);
        if let Some(rest) = line
            .split("http://")
            .nth(1)
            .filter(|_| line.contains("ready"))
        {
            let address: String = rest
                .chars()
                .take_while(|c| c.is_ascii_digit() || ".:".contains(*c))
                .collect();
            // Keep the pipe drained, or the server's log would block it one day.
            std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
            return Ok(address);
        }
    }
    bail!("the server was not ready within {READY_WITHIN:?}; it said:\n{seen}")
}

fn post(address: &str, path: &str, body: &str) -> Result<String> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("no server at {address}"))?;
    stream.set_read_timeout(Some(READY_WITHIN))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
