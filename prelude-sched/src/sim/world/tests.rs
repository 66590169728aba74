#![expect(
    clippy::print_stdout,
    reason = "a summary is the result of the named worlds"
)]

use std::{collections::BTreeMap, ops::Range};

use super::*;

/// Seeds `from..from + 50`, 2,000 steps each. Four of these run side by side.
fn check(from: u64) {
    let mut total = SchedulerStats::default();
    let (mut done, mut long_steps, mut later_chunks, mut run_ahead_rows) = (0, 0, 0, 0);
    let (mut idle_waits, mut gatherings) = (0, 0);
    for seed in from..from + 50 {
        let summary = simulate(seed, 2000);
        done += summary.done;
        long_steps += summary.long_steps;
        later_chunks += summary.later_chunks;
        run_ahead_rows += summary.run_ahead_rows;
        idle_waits += summary.idle_waits;
        gatherings += summary.gatherings;
        total.passes += summary.stats.passes;
        total.slices += summary.stats.slices;
        total.passes_without_blocks += summary.stats.passes_without_blocks;
        total.preemptions += summary.stats.preemptions;
        total.prefix_hit_tokens += summary.stats.prefix_hit_tokens;
        total.shared_tokens += summary.stats.shared_tokens;
        total.deferrals += summary.stats.deferrals;
        total.srjf_recalibrations += summary.stats.srjf_recalibrations;
        total.evicted_blocks += summary.stats.evicted_blocks;
        total.stored_blocks += summary.stats.stored_blocks;
        total.loaded_blocks += summary.stats.loaded_blocks;
        total.deadline_expirations += summary.stats.deadline_expirations;
    }
    // The worlds are of use only if these things happen in them.
    assert!(done > 10_000, "{done} requests");
    assert!(long_steps > 100, "{long_steps} long steps");
    assert!(later_chunks > 1000, "{later_chunks} later chunks");
    assert!(run_ahead_rows > 1000, "{run_ahead_rows} rows ahead");
    assert!(idle_waits > 50, "{idle_waits} waits");
    assert!(gatherings > 50, "{gatherings} gatherings");
    assert!(total.passes > 400, "{total:?}");
    assert!(total.slices > 2 * total.passes, "{total:?}");
    assert!(total.passes_without_blocks > 3, "{total:?}");
    assert!(total.preemptions > 100, "{total:?}");
    assert!(total.prefix_hit_tokens > 10_000, "{total:?}");
    assert!(total.shared_tokens > 10_000, "{total:?}");
    assert!(total.deferrals > 1000, "{total:?}");
    assert!(total.srjf_recalibrations > 100, "{total:?}");
    assert!(total.evicted_blocks > 1000, "{total:?}");
    assert!(total.stored_blocks > 1000, "{total:?}");
    assert!(total.loaded_blocks > 1000, "{total:?}");
    assert!(total.deadline_expirations > 10, "{total:?}");
}

#[test]
fn seeds_0_to_49() {
    check(0);
}

#[test]
fn seeds_50_to_99() {
    check(50);
}

#[test]
fn seeds_100_to_149() {
    check(100);
}

#[test]
fn seeds_150_to_199() {
    check(150);
}

#[test]
fn worlds_that_broke_the_bound_on_waiting_keep_it() {
    for seed in [1_003_532, 1_006_619] {
        assert_eq!(simulate(seed, 2000).policy, "auto");
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..8 {
        assert_eq!(simulate(seed, 500), simulate(seed, 500));
    }
    assert_ne!(simulate(1, 500).digest, simulate(2, 500).digest);
}

/// The sums and maxima over the worlds of one policy and depth.
#[derive(Default)]
struct Total {
    worlds: u64,
    steps: u64,
    requests: u64,
    longest_wait: Duration,
    overdue_steps: u64,
    turn_steps: u64,
    /// The largest share of the allowed `turn_steps` that a world used, in percent.
    turn_percent: u64,
    drain_turns: u64,
}

impl Total {
    fn add(&mut self, world: &Summary) {
        let waits = world.waits;
        self.worlds += 1;
        self.steps += world.steps;
        self.requests += world.accepted;
        self.longest_wait = self.longest_wait.max(waits.wait);
        self.overdue_steps = self.overdue_steps.max(waits.overdue_steps);
        self.turn_steps = self.turn_steps.max(waits.turn_steps);
        let percent = waits.turn_steps * 100 / waits.turn_steps_max.max(1);
        self.turn_percent = self.turn_percent.max(percent);
        self.drain_turns = self.drain_turns.max(world.drain_turns);
    }
}

/// Runs the worlds that `PRELUDE_SEEDS` names, `SEED` or `FROM..TO`, for `PRELUDE_STEPS` steps each
/// (2,000), of a range only those of the policy `PRELUDE_POLICY` if it names one. Prints what is known
/// of one world, or what the worlds of a range had in all: the longest waits from arrival to start,
/// the most steps that an overdue request waited in all, and those of them in which it was passed
/// over, beside their bound.
#[test]
#[ignore = "runs the worlds that PRELUDE_SEEDS names"]
fn named_worlds() {
    let seeds = std::env::var("PRELUDE_SEEDS").unwrap_or_else(|_| "0..300".to_owned());
    let steps = std::env::var("PRELUDE_STEPS").unwrap_or_else(|_| "2000".to_owned());
    let number = |text: &str| -> u64 { text.parse().expect("seeds and steps are numbers") };
    match seeds.split_once("..") {
        None => println!("{:#?}", simulate(number(&seeds), number(&steps))),
        Some((from, to)) => range(number(from)..number(to), number(&steps)),
    }
}

fn range(seeds: Range<u64>, steps: u64) {
    let policy = std::env::var("PRELUDE_POLICY").ok();
    let is_of = |name: &String, seed| World::new(seed).summary.policy == name;
    let is_named = |seed: &u64| policy.as_ref().is_none_or(|name| is_of(name, *seed));
    let mut totals: BTreeMap<(&str, u32), Total> = BTreeMap::new();
    for seed in seeds.clone().filter(is_named) {
        let world = simulate(seed, steps);
        let key = (world.policy, world.pipeline_depth);
        totals.entry(key).or_default().add(&world);
        // So that a log tells where a world that never ends is.
        if (seed + 1).is_multiple_of(10) {
            println!("seeds {}..{} passed", seeds.start, seed + 1);
        }
    }
    println!("seeds {}..{}, {steps} steps each", seeds.start, seeds.end);
    println!(
        "policy depth worlds steps requests | wait ms | overdue steps | turn steps (% of bound) | drain turns"
    );
    for ((policy, depth), total) in totals {
        println!(
            "{policy} {depth} | {} {} {} | {:.1} | {} | {} ({} %) | {}",
            total.worlds,
            total.steps,
            total.requests,
            total.longest_wait.as_secs_f64() * 1000.0,
            total.overdue_steps,
            total.turn_steps,
            total.turn_percent,
            total.drain_turns,
        );
    }
}
