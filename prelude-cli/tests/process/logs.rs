//! The lines that are written to stderr, and those that are not.

use std::io::{BufRead as _, Read as _, Write as _};

use serde_json::json;

use crate::support::Served;

/// Returns the lines logged since the last request, this request's own line last.
fn logged(server: &Served, prompt: &str) -> Vec<String> {
    let body = json!({"prompt": prompt, "max_tokens": 1}).to_string();
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    let mut lines = Vec::new();
    loop {
        let line = server.log.recv().unwrap();
        let is_last = line.starts_with("request ");
        lines.push(line);
        if is_last {
            return lines;
        }
    }
}

#[test]
fn prompts_are_logged_only_if_that_is_asked_for() {
    let prompt = "My secret\nis: \u{e9}t\u{e9}";
    let server = Served::start(&[]);
    let lines = logged(&server, prompt);
    assert!(
        !lines.iter().any(|line| line.contains("secret")),
        "{lines:?}"
    );

    let server = Served::start(&[("SERVER__LOG_PROMPTS", "true")]);
    // With what the start says.
    logged(&server, "first");
    let lines = logged(&server, prompt);
    let [prompts, request] = &*lines else {
        panic!("{lines:?}");
    };
    assert!(prompts.starts_with("prompt id=req-"), "{prompts}");
    assert!(prompts.ends_with(&format!(" text={prompt:?}")), "{prompts}");
    let id = prompts.split(' ').nth(1).unwrap();
    assert!(request.contains(id), "{request}");
    // Its beginning alone.
    let long = "ab ".repeat(200);
    let lines = logged(&server, &long);
    assert!(
        lines[0].ends_with(&format!(" text={:?}", &long[..256])),
        "{lines:?}"
    );
}

/// Asks for more lines than a pipe and the queue before it hold together.
fn fill_log(server: &Served) {
    const LINES: usize = 8_000;
    let mut stream = server.connect();
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let live = "GET /live HTTP/1.1\r\nhost: localhost\r\n";
        let many = format!("{live}\r\n").repeat(LINES - 1);
        let last = format!("{live}connection: close\r\n\r\n");
        writer.write_all((many + &last).as_bytes()).unwrap();
    });
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    writing.join().unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), LINES);
    assert!(server.metric("prelude:log_lines_dropped_total") > 0.0);
}

/// A log without a reader delays neither requests nor the end of the process.
#[test]
fn requests_and_the_end_do_not_wait_for_the_reader_of_the_log() {
    let (mut server, rest) = Served::start_unread(&[("SERVER__DRAIN_DELAY_MS", "0")]);
    fill_log(&server);
    let body = json!({"prompt": "Where is my card?", "max_tokens": 1}).to_string();
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    server.signal("-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    drop(rest);
}

#[test]
fn a_reader_that_comes_back_is_told_what_it_missed() {
    let (mut server, rest) = Served::start_unread(&[("SERVER__DRAIN_DELAY_MS", "0")]);
    fill_log(&server);
    let reading = std::thread::spawn(move || rest.lines().map_while(Result::ok).collect());
    // The log has caught up when a request's line is there at once.
    crate::support::wait_for(|| {
        let before = server.metric("prelude:log_lines_dropped_total");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let after = server.metric("prelude:log_lines_dropped_total");
        (before == after)
            .then_some(())
            .ok_or_else(|| "dropping lines".to_owned())
    });
    let dropped = server.metric("prelude:log_lines_dropped_total");
    server.signal("-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let lines: Vec<String> = reading.join().unwrap();
    let told = |line: &String| {
        let count = line.strip_prefix("log: ")?.split(' ').next()?;
        count.parse::<f64>().ok()
    };
    let told: f64 = lines.iter().filter_map(told).sum();
    assert_eq!(told, dropped, "{:?}", lines.last());
    assert!(lines.last().unwrap().starts_with("draining"), "{lines:?}");
}

#[test]
fn signals_of_users_are_outlived_and_the_second_to_stop_ends_at_once() {
    // The log has no reader, and the test does not wait for this drain.
    let (mut server, rest) = Served::start_unread(&[("SERVER__DRAIN_DELAY_MS", "86400000")]);
    fill_log(&server);
    for user in ["-USR1", "-USR2"] {
        server.signal(user);
        assert_eq!(server.get("/live").status, 200);
    }
    server.signal("-TERM");
    crate::support::wait_for(|| match server.get("/health").status {
        503 => Ok(()),
        status => Err(format!("{status}")),
    });
    server.signal("-INT");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    drop(rest);
}
