//! Prompts under ever-new salts: they share nothing, so each fills blocks of its own.

use serde_json::json;

use crate::support::Served;

const MIB: u64 = 1 << 20;
/// Blocks of the pool: as many as the longest sequence of the demo model needs.
const BLOCKS: u64 = 256;

/// Asks under new salts, one for each number.
fn ask(server: &Served, salts: std::ops::Range<u64>) {
    let prompt: Vec<u32> = (0..70).collect();
    for salt in salts {
        let body = json!({"prompt": prompt, "max_tokens": 1, "cache_salt": format!("salt-{salt}")});
        let answer = server.post("/v1/completions", &body.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// Memory grows until the pool is full of what others cannot read, and no further.
#[test]
fn memory_levels_off_at_the_pool() {
    let server = Served::start(&[("KV__NUM_BLOCKS", &BLOCKS.to_string())]);
    // Four blocks each: the pool is full after 64 of them.
    ask(&server, 0..150);
    let cached = server.metric("prelude:kv_blocks_cached{model_name=\"demo-lm\"");
    assert!(cached as u64 > BLOCKS / 2, "{cached} blocks are cached");
    let full = server.resident();
    ask(&server, 150..750);
    let cached = server.metric("prelude:kv_blocks_cached{model_name=\"demo-lm\"");
    assert!(cached as u64 <= BLOCKS, "{cached} blocks are cached");
    let grown = server.resident().saturating_sub(full);
    assert!(grown < 4 * MIB, "{} KiB more after 600 salts", grown >> 10);
    server.settle();
}

/// The size that memory levels off at is said before the server is ready.
#[test]
fn the_planned_memory_is_said_at_start() {
    let server = Served::start(&[("KV__NUM_BLOCKS", &BLOCKS.to_string())]);
    let line = server
        .before_ready
        .iter()
        .find(|line| line.starts_with("memory: demo-lm: "));
    let line = line.expect("a line about memory");
    assert!(line.contains("256 KV blocks of 16 tokens"), "{line}");
}
