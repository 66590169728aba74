//! The cost of the scheduler's own work in a step, by the number of waiting requests.
//!
//! No model computes anything: a step's answers are made up. Times are processor time of one thread,
//! medians over many steps.

mod clock;
mod matching;
mod planning;
mod world;

use std::{fmt::Write as _, time::Duration};

use anyhow::Result;
use prelude_sched::PolicyConfig;

pub use matching::MatchCost;
use matching::micros;
pub use planning::PlanningCost;
use world::{PROMPT, RUNNING, SHARED, StepCost, World};

/// The measurements to make.
#[derive(Clone, Debug)]
pub struct Config {
    /// Numbers of waiting requests.
    pub waiting: Vec<usize>,
    /// Policies, with their names.
    pub policies: Vec<(&'static str, PolicyConfig)>,
    /// Steps of which the median counts.
    pub steps: usize,
    /// Sizes of the prefix cache in blocks for the cost of a match.
    pub blocks: Vec<u32>,
}

/// The cost of a step with so many requests waiting.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SchedCost {
    /// The policy.
    pub policy: &'static str,
    /// The number of waiting requests.
    pub waiting: usize,
    /// True if their prompts share a prefix.
    pub shared: bool,
    /// The median of `next_batch`, in microseconds.
    pub next_batch_us: f64,
    /// The median of `complete`.
    pub complete_us: f64,
    /// The median of both together.
    pub step_us: f64,
    /// The first `next_batch` after all those requests came at once.
    pub burst_us: f64,
    /// The slowest of the next eight, the first of which follows the publication of a shared
    /// prefix.
    pub after_us: f64,
    /// The median of a step's allocations; none if they are not counted.
    pub allocations: Option<u64>,
}

/// The results of a run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The measured costs of the scheduler's steps.
    pub steps: Vec<SchedCost>,
    /// The measured costs of matches in the prefix cache.
    pub matches: Vec<MatchCost>,
    /// The measured costs of planning requests whose rows share most of their prompts.
    pub planning: Vec<PlanningCost>,
}

/// Runs all measurements; `progress` is told what comes next. `allocations` counts those of the
/// process, if anything does.
///
/// # Errors
/// If the scheduler refuses what it is given.
pub fn run(
    config: &Config,
    allocations: Option<&dyn Fn() -> u64>,
    mut progress: impl FnMut(&str),
) -> Result<Report> {
    let mut matches = Vec::new();
    for &blocks in &config.blocks {
        progress(&format!("a match in {blocks} blocks"));
        matches.push(matching::measure(blocks, config.steps.max(8))?);
    }
    let mut planning = Vec::new();
    for (shared_tokens, rows) in planning::SHAPES {
        progress(&format!("{rows} rows over {shared_tokens} shared tokens"));
        planning.push(planning::measure(shared_tokens, rows, config.steps)?);
    }
    let mut steps = Vec::new();
    for shared in [false, true] {
        for &waiting in &config.waiting {
            for &(policy, kind) in &config.policies {
                let sharing = if shared {
                    "a shared prefix"
                } else {
                    "nothing shared"
                };
                progress(&format!("{policy}, {waiting} waiting, {sharing}"));
                let cost = measure(config, (policy, kind), waiting, shared, allocations)?;
                steps.push(cost);
            }
        }
    }
    Ok(Report {
        steps,
        matches,
        planning,
    })
}

/// Runs `steps` scheduling steps with so many requests waiting, and measures nothing.
pub(crate) fn steps(policy: PolicyConfig, waiting: usize, steps: usize) -> Result<()> {
    let mut world = World::new(policy, false, 1, &|| 0)?;
    world.fill(waiting)?;
    (0..steps).try_for_each(|_| world.step().map(|_| ()))
}

/// Plans `rounds` pairs of requests of `rows` rows over `shared_tokens` tokens.
pub(crate) fn plans(shared_tokens: usize, rows: u32, rounds: usize) -> Result<()> {
    planning::measure(shared_tokens, rows, rounds).map(|_| ())
}

fn measure(
    config: &Config,
    (policy, kind): (&'static str, PolicyConfig),
    waiting: usize,
    shared: bool,
    allocations: Option<&dyn Fn() -> u64>,
) -> Result<SchedCost> {
    let uncounted = || 0;
    let counter = allocations.unwrap_or(&uncounted);
    // What happens once in a world is measured in several, unless that takes long.
    let worlds = if waiting > 10_000 { 1 } else { 3 };
    let (mut bursts, mut afters) = (Vec::new(), Vec::new());
    let mut costs: Vec<StepCost> = Vec::new();
    for seed in 0..worlds {
        let mut world = World::new(kind, shared, seed, counter)?;
        world.fill(waiting)?;
        bursts.push(world.step()?.next_batch);
        let mut slowest = Duration::ZERO;
        for _ in 0..8 {
            slowest = slowest.max(world.step()?.next_batch);
        }
        afters.push(slowest);
        // Until the policy has heard of all that wait.
        for _ in 0..waiting / 200 + 8 {
            world.step()?;
        }
        for _ in 0..config.steps {
            costs.push(world.step()?);
        }
    }
    let median = |of: fn(&StepCost) -> Duration| {
        let mut times: Vec<Duration> = costs.iter().map(of).collect();
        micros(clock::median(&mut times))
    };
    let mut counts: Vec<u64> = costs.iter().map(|cost| cost.allocations).collect();
    counts.sort_unstable();
    Ok(SchedCost {
        policy,
        waiting,
        shared,
        next_batch_us: median(|cost| cost.next_batch),
        complete_us: median(|cost| cost.complete),
        step_us: median(|cost| cost.next_batch + cost.complete),
        burst_us: micros(clock::median(&mut bursts)),
        after_us: micros(clock::median(&mut afters)),
        allocations: allocations.and_then(|_| counts.get(counts.len() / 2).copied()),
    })
}

impl Report {
    /// Returns the report as tables in Markdown.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let (prefix, own) = SHARED;
        for shared in [false, true] {
            let prompts = if shared {
                format!("prompts of {prefix} shared and {own} own tokens")
            } else {
                format!("prompts of {PROMPT} tokens that share nothing")
            };
            let _ = writeln!(
                text,
                "{RUNNING} generations run; {prompts}; µs of processor time, medians\n\n\
                 | waiting | policy | next_batch | complete | both | allocations | first after a \
                 burst | slowest of the next 8 |\n\
                 | --- | --- | --- | --- | --- | --- | --- | --- |"
            );
            for cost in self.steps.iter().filter(|cost| cost.shared == shared) {
                let allocations = cost
                    .allocations
                    .map_or_else(|| "-".to_owned(), |n| n.to_string());
                let _ = writeln!(
                    text,
                    "| {} | {} | {:.0} | {:.0} | {:.0} | {allocations} | {:.0} | {:.0} |",
                    cost.waiting,
                    cost.policy,
                    cost.next_batch_us,
                    cost.complete_us,
                    cost.step_us,
                    cost.burst_us,
                    cost.after_us,
                );
            }
            text.push('\n');
        }
        text.push_str(
            "A prompt of 4,096 tokens in the prefix cache, 255 blocks; µs of processor time, medians\n\n\
             | blocks | find | find and hold | at once again | release |\n| --- | --- | --- | --- | --- |\n",
        );
        for cost in &self.matches {
            let MatchCost {
                blocks,
                find_us,
                hold_us,
                again_us,
                release_us,
            } = cost;
            let _ = writeln!(
                text,
                "| {blocks} | {find_us:.1} | {hold_us:.1} | {again_us:.1} | {release_us:.1} |"
            );
        }
        let _ = writeln!(
            text,
            "\nOne request whose rows share tokens and have {} of their own each; µs of processor \
             time for next_batch, medians\n\n\
             | shared tokens | rows | nothing cached | shared tokens cached |\n\
             | --- | --- | --- | --- |",
            planning::OWN,
        );
        for cost in &self.planning {
            let PlanningCost {
                shared_tokens,
                rows,
                first_us,
                again_us,
            } = cost;
            let _ = writeln!(
                text,
                "| {shared_tokens} | {rows} | {first_us:.0} | {again_us:.0} |"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_a_row_for_each_size_and_policy() {
        let config = Config {
            waiting: vec![3, 40],
            policies: vec![
                ("fcfs", PolicyConfig::Fcfs),
                ("srjf", PolicyConfig::Srjf),
                ("groups", PolicyConfig::Groups),
                ("laps", PolicyConfig::Laps),
            ],
            steps: 2,
            blocks: vec![1_000],
        };
        let mut parts = 0;
        let report = run(&config, Some(&|| 5), |_| parts += 1).unwrap();
        assert_eq!((report.steps.len(), parts), (16, 21));
        assert!(report.steps.iter().all(|cost| cost.allocations == Some(0)));
        assert!(report.steps.iter().all(|cost| cost.step_us > 0.0));
        let text = report.render();
        assert_eq!(text.matches("\n| 40 | ").count(), 8, "{text}");
        assert!(text.contains("\n| 1000 | "), "{text}");
        assert!(text.contains("\n| 30000 | 256 | "), "{text}");
    }
}
