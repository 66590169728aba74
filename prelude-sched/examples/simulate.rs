//! Runs worlds of the simulator: `simulate [SEED[..END]] [STEPS]`.
//!
//! One seed prints all that is known of it: the way to reproduce a failed one. A range prints what
//! its worlds had in all: the longest waits from arrival to start, the most steps that an overdue
//! request waited in all, and those of them in which it was passed over, beside their bound.
#![expect(clippy::print_stdout, reason = "an example")]

use std::{collections::BTreeMap, ops::Range, time::Duration};

use prelude_sched::sim::{Summary, simulate};

fn main() {
    let mut args = std::env::args().skip(1);
    let seeds = args.next().unwrap_or_else(|| "0".to_owned());
    let steps = args.next().map_or(2000, |arg| number(&arg));
    match seeds.split_once("..") {
        None => println!("{:#?}", simulate(number(&seeds), steps)),
        Some((from, to)) => range(number(from)..number(to), steps),
    }
}

fn number(arg: &str) -> u64 {
    let usage = "simulate [SEED[..END]] [STEPS], all of them numbers";
    arg.parse().expect(usage)
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
    /// In percent of what is allowed.
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

fn range(seeds: Range<u64>, steps: u64) {
    let mut totals: BTreeMap<(&str, u32), Total> = BTreeMap::new();
    for seed in seeds.clone() {
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
