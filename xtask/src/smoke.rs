//! The README's first command, as a stranger would run it.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use anyhow::{Context as _, Result, ensure};

use crate::demo_server::{DemoServer, READY_WITHIN, start};

pub(crate) fn run() -> Result<()> {
    let first = ask(&start()?)?;
    println!("first answer after {:.0} ms", first * 1e3);
    Ok(())
}

/// Asks a server three questions; seconds from its start to the first answer.
pub(crate) fn ask(server: &DemoServer) -> Result<f64> {
    let ask = |path: &str, body: &str, must_contain: &str| -> Result<()> {
        let answer = post(&server.address, path, body)?;
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
    let first = server.started.elapsed().as_secs_f64();
    ask(
        "/v1/systemone",
        r#"{"state":"Where is my card? I ordered it two weeks ago.","questions":{"topic":{"type":"choice","instructions":"Which topic?","criteria":{"card":null,"transfer":null,"exchange":null}}}}"#,
        r#""choice":"card""#,
    )?;
    ask(
        "/v1/chat/completions",
        r#"{"model":"demo-lm","messages":[{"role":"user","content":"Where is my card?\nWhich topic?"}],"max_tokens":1,"temperature":0,"enable_thinking":false}"#,
        r#""content":"card""#,
    )?;
    Ok(first)
}

/// Asks a server with this key, or with none, to classify a message.
pub(crate) fn classify(address: &str, key: &str) -> Result<()> {
    let body = r#"{"model":"demo-classifier","input":"Where is my card?"}"#;
    let answer = post_with_key(address, "/classify", body, key)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(())
}

/// Posts a body, and returns the whole answer.
pub(crate) fn post(address: &str, path: &str, body: &str) -> Result<String> {
    post_with_key(address, path, body, "none")
}

fn post_with_key(address: &str, path: &str, body: &str, key: &str) -> Result<String> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("no server at {address}"))?;
    stream.set_read_timeout(Some(READY_WITHIN))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         X-Api-Key: {key}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
