//! Batch files: each line has exactly one line in the output, an answer or the reason why there is
//! none.
#![no_main]

use std::{collections::HashMap, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use prelude_server_fuzz::{Asked, World};
use serde_json::{Value, json};

#[allow(
    dead_code,
    unused_imports,
    reason = "the program's, of which this is a part"
)]
#[path = "../../../prelude-cli/src/args.rs"]
mod args;
#[allow(
    dead_code,
    unused_imports,
    unfulfilled_lint_expectations,
    reason = "the program's, of which this is a part"
)]
#[path = "../../../prelude-cli/src/commands/mod.rs"]
mod commands;

static WORLD: LazyLock<World> = LazyLock::new(World::open);

/// Parts of a right line, of which lines are made.
const PIECES: &[&str] = &[
    "{\"custom_id\":\"a\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\",\"max_tokens\":1}}",
    "{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/classify\",\"body\":{\"input\":\"a\"}}",
    "{\"custom_id\":",
    "\"\\u0061\"",
    "\"\"",
    ",\"url\":",
    "\"/v1/embeddings\"",
    "\"/metrics\"",
    "\"/tokenize\"",
    ",\"body\":",
    "{\"stream\":true}",
    "null",
    "}",
    "\n",
    "\r\n",
    " ",
    "\u{feff}",
    ",\"method\":\"GET\"",
    "[]",
    "{\"input\":[\"a\",\"b\"]}",
];

fuzz_target!(|input: (bool, u8, Vec<(u8, &[u8])>, Vec<Asked<'_>>)| {
    let (is_ordered, window, pieces, asked) = input;
    let mut text: Vec<u8> = Vec::new();
    for (at, bytes) in &pieces {
        text.extend(
            PIECES
                .get(usize::from(*at))
                .map_or(*bytes, |p| p.as_bytes()),
        );
    }
    for (at, asked) in asked.iter().enumerate().take(8) {
        let (url, body) = asked.request(&["a".to_owned()]);
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let line = json!({"custom_id": format!("asked {at}"), "url": url, "body": body});
        text.extend(format!("\n{line}").bytes());
    }
    let lines = text
        .split(|&b| b == b'\n')
        .filter(|line| !line.trim_ascii().is_empty());
    let expected = lines.count();
    let batch = commands::run_batch::Batch {
        app: WORLD.app.clone(),
        window: usize::from(window).max(1),
        is_ordered,
    };
    let mut output = Vec::new();
    let run = batch.run(&text[..], HashMap::new(), &mut output);
    let counts = WORLD
        .runtime
        .block_on(run)
        .expect("memory is read and written");
    let mut found = 0_u64;
    let output = output.strip_suffix(b"\n").unwrap_or(&output);
    for line in output.split(|&b| b == b'\n').filter(|_| !output.is_empty()) {
        let line: Value = serde_json::from_slice(line).expect("a line is JSON");
        let status = &line["response"]["status_code"];
        match line["error"].is_null() {
            true => assert!(
                line["custom_id"].is_string() && status.as_u64().is_some_and(|s| s < 500),
                "{line}"
            ),
            false => assert!(
                line["response"].is_null() && line["error"]["code"].is_string(),
                "{line}"
            ),
        }
        found += 1;
    }
    assert_eq!(found, expected as u64, "{}", String::from_utf8_lossy(&text));
    assert_eq!(counts.answered + counts.refused + counts.never_ran, found);
    WORLD.settle();
});
