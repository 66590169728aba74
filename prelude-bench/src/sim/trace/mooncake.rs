//! Mooncake's traces (Qin et al., FAST 2025): lengths, and an id for each block of 512 tokens.
//!
//! Ids are chained from the start of the prompt, so equal ids mean equal prefixes. Block `h` is
//! tokens `512 h..512 (h + 1)` of one stream for the whole file: consecutive ids, which most are,
//! become one run. The last block of a prompt may be a part of one.

use anyhow::{Context as _, ensure};
use prelude_core::Timestamp;
use serde::Deserialize;
use std::collections::HashSet;

use super::{Arrivals, Lines};
use crate::sim::{Arrival, Prompt, Run};

/// Tokens of a block.
const BLOCK: u32 = 512;

#[derive(Deserialize)]
struct Row {
    /// Milliseconds.
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u32>,
}

pub(super) fn arrivals(lines: &mut Lines<'_>) -> Arrivals {
    let mut arrivals: Vec<Arrival> = Vec::new();
    let mut seen = HashSet::new();
    while let Some(line) = lines.next()? {
        let user = arrivals.len() as u32;
        arrivals.push(lines.parse(&line, |line| {
            let row: Row = serde_json::from_str(line)?;
            arrival(&row, user, &mut seen)
        })?);
    }
    Ok(arrivals)
}

fn arrival(row: &Row, user: u32, seen: &mut HashSet<u32>) -> anyhow::Result<Arrival> {
    let blocks = row.input_length.div_ceil(BLOCK) as usize;
    let ids = &row.hash_ids;
    ensure!(blocks > 0, "input_length must be at least 1");
    ensure!(row.output_length > 0, "output_length must be at least 1");
    ensure!(
        ids.len() == blocks,
        "a prompt of {} tokens has {blocks} blocks, not {}",
        row.input_length,
        ids.len()
    );
    let mut prompt = Prompt::default();
    let mut left = row.input_length;
    for &id in ids {
        let end = id.checked_add(1).and_then(|next| next.checked_mul(BLOCK));
        let end = end.with_context(|| format!("hash id {id} is too large"))?;
        let len = left.min(BLOCK);
        prompt.push(Run {
            stream: 0,
            start: end - BLOCK,
            len,
        });
        left -= len;
    }
    // What an earlier request had too, as far as it goes: the trace has no better key.
    let known = ids.iter().take_while(|id| seen.contains(id)).last();
    let key = known.copied().unwrap_or(ids[0]);
    seen.extend(ids);
    Ok(Arrival {
        at: Timestamp::from_nanos(row.timestamp.saturating_mul(1_000_000)),
        prompt,
        output_tokens: row.output_length,
        key,
        user,
        root: ids[0],
    })
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};
    use prelude_sched::PolicyConfig;

    use crate::{
        random::Random,
        sim::{EngineConfig, Preset, Routed, Workload, hit_ceiling, run},
    };

    const TRACE: &str = r#"
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
        {"timestamp": 30, "input_length": 1300, "output_length": 7, "hash_ids": [0, 1, 3]}
        {"timestamp": 30, "input_length": 1536, "output_length": 1, "hash_ids": [0, 4, 5]}
        {"timestamp": 90, "input_length": 12, "output_length": 1, "hash_ids": [6]}
    "#;

    #[test]
    fn equal_ids_are_equal_prefixes() {
        let arrivals = from("m.jsonl", TRACE, arrivals).unwrap();
        let shared = |a: usize, b: usize| arrivals[a].prompt.shared_with(&arrivals[b].prompt);
        // Runs of consecutive ids are one, so a common id may end within a run.
        assert_eq!(arrivals[0].prompt.runs().len(), 1);
        assert_eq!((shared(0, 1), shared(0, 2), shared(0, 3)), (1024, 512, 0));
        let seen: Vec<_> = arrivals
            .iter()
            .map(|a| (a.at.as_nanos() / 1_000_000, a.prompt.len(), a.key, a.root))
            .collect();
        let expected = [
            (0, 1100, 0, 0),
            (30, 1300, 1, 0),
            (30, 1536, 0, 0),
            (90, 12, 6, 6),
        ];
        assert_eq!(seen, expected);
        let workload = Workload::new("m", arrivals);
        let ceiling = hit_ceiling(&workload, 512);
        assert!((ceiling - 1536.0 / 3948.0).abs() < 1e-12, "{ceiling}");
    }

    /// Returns conversations: each line goes on where an earlier one ended, or begins anew.
    fn conversations(seed: u64) -> String {
        let mut random = Random::far(seed);
        let mut known: Vec<Vec<u32>> = vec![vec![]];
        let (mut text, mut next) = (String::new(), 0);
        for i in 0..150 {
            let mut ids = known[random.below(known.len())].clone();
            for _ in 0..=random.below(3) {
                ids.push(next);
                next += 1;
            }
            let tokens = ids.len() * 512 - random.below(512);
            let output = 1 + random.below(40);
            text += &format!(
                "{{\"timestamp\": {}, \"input_length\": {tokens}, \"output_length\": {output}, \
                 \"hash_ids\": {ids:?}}}\n",
                i * 700
            );
            // A block that was not whole has another id once it is.
            ids.truncate(tokens / 512);
            known.push(ids);
        }
        text
    }

    #[test]
    fn engines_have_no_more_of_a_trace_than_its_ceiling() {
        for seed in 1..=3 {
            let arrivals = from("m.jsonl", &conversations(seed), arrivals).unwrap();
            let workload = Workload::new("m", arrivals);
            let ceiling = hit_ceiling(&workload, 16);
            assert!(ceiling > 0.2, "{ceiling}");
            let check = |engines, policy, least: f64| {
                let config = EngineConfig::new(Preset::Mistral7bA6000, policy);
                let turns = prelude_router::PolicyConfig::RoundRobin;
                let mut route = Routed::new(turns, engines, &config, 0, 0.0).unwrap();
                let served = run(&workload, engines, &config, &mut route, || ()).unwrap();
                let cached: u64 = served.records.iter().map(|r| r.cached_tokens).sum();
                let share = cached as f64 / workload.prompt_tokens() as f64;
                let allowed = least * ceiling..=ceiling;
                assert!(allowed.contains(&share), "{share}, of at most {ceiling}");
            };
            check(1, PolicyConfig::Fcfs, 0.9);
            check(1, PolicyConfig::Groups, 0.9);
            check(4, PolicyConfig::Fcfs, 0.0);
        }
    }

    #[test]
    fn errors_name_file_and_line() {
        let check = |row: &str, expected: &str| {
            let error = error("m.jsonl", &format!("{TRACE}{row}"), arrivals);
            assert!(error.starts_with(expected), "{error}");
        };
        check("{", "m.jsonl, line 6: EOF");
        check(
            r#"{"timestamp": 0, "input_length": 1}"#,
            "m.jsonl, line 6: missing field",
        );
        check(
            r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [7]}"#,
            "m.jsonl, line 6: a prompt of 600 tokens has 2 blocks, not 1",
        );
        check(
            r#"{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [4294967295]}"#,
            "m.jsonl, line 6: hash id 4294967295 is too large",
        );
        check(
            r#"{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}"#,
            "m.jsonl, line 6: input_length must be at least 1",
        );
    }
}
