//! Bodies that are small on the wire and large in memory.

use crate::support::{Served, wait_for};

const MIB: u64 = 1 << 20;

/// A list of `count` small objects, of two values each.
fn list(count: usize) -> String {
    format!("[{}]", vec![r#"{"":0}"#; count].join(","))
}

/// The bodies that become trees, with `list` in each.
fn bodies(list: &str) -> Vec<(&'static str, String)> {
    let chat = "/v1/chat/completions";
    let messages = r#""max_tokens": 1, "messages": [{"role": "user", "content": "a"}]"#;
    let of = |path, more: String| (path, format!("{{{messages}, {more}}}"));
    let function = format!(r#"{{"name": "f", "parameters": {{"x": {list}}}}}"#);
    let tools = format!(r#""tools": [{{"type": "function", "function": {function}}}]"#);
    let schema = format!(r#"{{"enum": {list}}}"#);
    let named = format!(r#"{{"name": "n", "schema": {schema}}}"#);
    let format = format!(r#"{{"type": "json_schema", "json_schema": {named}}}"#);
    let text = serde_json::to_string(&schema).unwrap();
    vec![
        of(chat, tools.clone()),
        of("/tokenize", tools.clone()),
        of(chat, format!(r#"{tools}, "tool_choice": "required""#)),
        of(chat, format!(r#""response_format": {format}"#)),
        of(chat, format!(r#""structured_outputs": {{"json": {text}}}"#)),
        of(chat, format!(r#""documents": [{{"x": {list}}}]"#)),
        of(chat, format!(r#""chat_template_kwargs": {{"x": {list}}}"#)),
        (
            chat,
            format!(r#"{{"messages": [{{"role": "user", "content": "a", "x": {list}}}]}}"#),
        ),
        (chat, format!(r#"{{"messages": {list}}}"#)),
    ]
}

/// What has too many values is refused before they are made.
#[test]
fn values_are_bounded_before_they_are_made() {
    let server = Served::start(&[]);
    for (path, body) in bodies(&list(900_000)) {
        server.forget_peak();
        let idle = server.resident();
        let refused = server.post(path, &body);
        let shown = &body[..100];
        assert_eq!(refused.status, 400, "{shown}: {}", refused.body);
        // A schema that is text has a bound of its own in bytes.
        let expected = match body.contains("structured_outputs") {
            true => "grammar_too_complex",
            false => "too_many_values",
        };
        assert_eq!(refused.reason(), expected, "{shown}");
        // The body, and its copies as text.
        let growth = server.peak().saturating_sub(idle);
        assert!(growth < 48 * MIB, "{} MiB for {shown}", growth / MIB);
    }
    // Token ids are no such values.
    let ids = format!(r#"{{"prompt": [{}0]}}"#, "0,".repeat(1_000_000));
    assert_eq!(
        server.post("/v1/completions", &ids).reason(),
        "context_length_exceeded"
    );
}

/// What may be made takes no more than was reserved for it, and goes back.
#[test]
fn memory_of_values_is_reserved_and_goes_back() {
    let server = Served::start(&[]);
    for (path, body) in bodies("[]") {
        // What is made once, for the first of its kind.
        server.post(path, &body);
    }
    let idle = server.resident();
    for (path, body) in bodies(&list(120_000)) {
        server.forget_peak();
        let before = server.resident();
        let answer = server.post(path, &body);
        let shown = &body[..100];
        assert!(
            matches!(answer.status, 200 | 400),
            "{shown}: {}",
            answer.body
        );
        let growth = server.peak().saturating_sub(before);
        // 240,000 values of 832 bytes, and the body.
        assert!(growth < 200 * MIB, "{} MiB for {shown}", growth / MIB);
    }
    server.settle();
    wait_for(|| {
        let held = server.resident().saturating_sub(idle);
        match held < 64 * MIB {
            true => Ok(()),
            false => Err(format!("{} MiB above idle", held / MIB)),
        }
    });
    let said = server.metric("process_resident_memory_bytes");
    let is_near = |(a, b): (f64, f64)| (a - b).abs() < (16 * MIB) as f64;
    assert!(is_near((said, server.resident() as f64)), "{said}");
}

#[test]
fn values_that_never_have_room_are_refused_for_good() {
    let server = Served::start(&[("LIMITS__BODIES_IN_FLIGHT_BYTES", &(16 * MIB).to_string())]);
    for (path, body) in bodies(&list(30_000)) {
        if body.contains("structured_outputs") {
            continue; // Refused by its bytes.
        }
        let refused = server.post(path, &body);
        let found = (refused.status, &*refused.reason());
        let expected = (400, "larger_than_queue");
        assert_eq!(found, expected, "{}", &body[..100]);
    }
    server.settle();
    let body = r#"{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}"#;
    assert_eq!(server.post("/v1/chat/completions", body).status, 200);
}
