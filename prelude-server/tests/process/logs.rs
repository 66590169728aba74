//! The lines that are written to stderr, and those that are not.

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
