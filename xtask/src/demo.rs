//! The demo server as the README starts it, and questions to it.

use std::{ffi::OsStr, process::Command, time::Duration};

use anyhow::{Result, ensure};
use prelude_measure::{http::Client, process::Output, server::Server};

use crate::{files, run::cargo};

/// Longest that the demo server may take to be ready. The promise is one second from start to
/// first answer; a busy machine gets slack, since this is a check of function.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// A path, a body, and a part of the answer.
const QUESTIONS: [(&str, &str, &str); 3] = [
    (
        "/classify",
        r#"{"model":"demo-classifier","input":"Where is my card?"}"#,
        "card_arrival",
    ),
    (
        "/v1/systemone",
        r#"{"state":"Where is my card? I ordered it two weeks ago.","questions":{"topic":{"type":"choice","instructions":"Which topic?","criteria":{"card":null,"transfer":null,"exchange":null}}}}"#,
        r#""choice":"card""#,
    ),
    (
        "/v1/chat/completions",
        r#"{"model":"demo-lm","messages":[{"role":"user","content":"Where is my card?\nWhich topic?"}],"max_tokens":1,"temperature":0,"enable_thinking":false}"#,
        r#""content":"card""#,
    ),
];

/// Starts the README's first command and asks, as a stranger would.
pub(crate) fn smoke() -> Result<()> {
    build()?;
    let first = ask(&start(&[])?)?;
    println!("first answer after {:.0} ms", first * 1e3);
    Ok(())
}

/// Builds the program as the README says.
pub(crate) fn build() -> Result<()> {
    // That it prints its version shows that cargo found the program to run.
    cargo(["run", "--release", "--", "--version"]).run()
}

/// Starts the program that [`build`] built, on a free port, with more arguments.
pub(crate) fn start(args: &[&OsStr]) -> Result<Server> {
    let mut program = Command::new(files::target().join("release/prelude"));
    start_program(program.args(["serve", "--port", "0"]).args(args))
}

/// Starts a command of a program that says its address.
pub(crate) fn start_program(command: &mut Command) -> Result<Server> {
    Server::announced(command, Output::Lines(None), READY_WITHIN)
}

/// Asks a server three questions; seconds from its start to the first answer.
pub(crate) fn ask(server: &Server) -> Result<f64> {
    let mut first = None;
    for (path, body, must_contain) in QUESTIONS {
        let answer = Client::connect(&server.address)?.post(path, body)?;
        let text = answer.ok()?.text();
        first = first.or_else(|| Some(server.started().elapsed().as_secs_f64()));
        ensure!(
            text.contains(must_contain),
            "{path}: no {must_contain} in: {text}"
        );
        println!("{path}: {text}");
    }
    Ok(first.unwrap_or_default())
}
