//! The cost of the scheduler's own work in a step, by the number of waiting requests.
//!
//! No model computes anything: a step's answers are made up. Times are processor time of one thread,
//! medians over many steps.

mod clock;
mod matching;
mod planning;
mod policy;
mod world;

use std::{hint::black_box, time::Duration};

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use prelude_measure::{
    record::{Better, Row},
    stats::{Spread, median},
    table::Table,
};
use prelude_sched::PolicyConfig;
use serde_json::{Map, Value};

pub use policy::Policy;
use world::{PROMPT, RUNNING, SHARED, StepCost, World};

/// Measures the processor time of the scheduler's own work in a step. No model runs; outputs are
/// made up.
///
/// While 256 generations run, the given numbers of requests wait under each policy, once with
/// prompts that share nothing and once with prompts that share their first 1,000 tokens. Times are
/// processor time of one thread, so other programs hardly change them.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// Numbers of waiting requests. A million requests take about 8 GB if their prompts share a
    /// prefix.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10,100,1000,10000,100000,1000000"
    )]
    pub waiting: Vec<usize>,
    /// Scheduling policies to measure.
    #[arg(long, value_delimiter = ',', default_value = "fcfs,srjf,groups,laps")]
    pub policy: Vec<Policy>,
    /// Number of measured steps; the median is printed.
    #[arg(long, default_value_t = 200, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub steps: usize,
    /// Blocks of the prefix cache in which a prompt of 4,096 tokens is matched, 256 or more.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000",
          value_parser = RangedU64ValueParser::<u32>::new().range(256..))]
    pub blocks: Vec<u32>,
}

/// A part of the results: a sentence, and a table of medians.
pub type Part = (String, Table);

/// Runs all measurements; `progress` is told what comes next. `allocations` counts those of the
/// process, if anything does.
///
/// # Errors
/// If the scheduler refuses what it is given.
pub fn run(
    config: &Config,
    allocations: Option<&dyn Fn() -> u64>,
    mut progress: impl FnMut(&str),
) -> Result<Vec<Part>> {
    let mut matches = Table::new([
        "blocks",
        "find",
        "find and hold",
        "at once again",
        "release",
    ]);
    for &blocks in &config.blocks {
        progress(&format!("a match in {blocks} blocks"));
        let costs = matching::measure(blocks, config.steps.max(8))?;
        let costs = costs.map(|us| format!("{us:.1}"));
        matches.row([blocks.to_string()].into_iter().chain(costs));
    }
    let mut planned = Table::new([
        "shared tokens",
        "rows",
        "nothing cached",
        "shared tokens cached",
    ]);
    for (shared_tokens, rows) in planning::SHAPES {
        progress(&format!("{rows} rows over {shared_tokens} shared tokens"));
        let costs = planning::measure(shared_tokens, rows, config.steps)?;
        let costs = costs.map(|times| format!("{:.0}", median(&times)));
        let shape = [shared_tokens.to_string(), rows.to_string()];
        planned.row(shape.into_iter().chain(costs));
    }
    let mut parts = Vec::new();
    for shared in [false, true] {
        let mut steps = Table::new([
            "waiting",
            "policy",
            "next_batch",
            "complete",
            "both",
            "allocations",
            "first after a burst",
            "slowest of the next 8",
        ]);
        let (prefix, own) = SHARED;
        let prompts = match shared {
            true => format!("prompts of {prefix} shared and {own} own tokens"),
            false => format!("prompts of {PROMPT} tokens that share nothing"),
        };
        for &waiting in &config.waiting {
            for (policy, kind) in config.policy.iter().map(|policy| policy.config()) {
                progress(&format!("{policy}, {waiting} waiting, {prompts}"));
                let costs = measure(config.steps, kind, waiting, shared, allocations)?;
                steps.row(
                    [waiting.to_string(), policy.to_owned()]
                        .into_iter()
                        .chain(costs),
                );
            }
        }
        let title = format!("{RUNNING} generations run; {prompts}; µs of processor time, medians");
        parts.push((title, steps));
    }
    let title = "A prompt of 4,096 tokens in the prefix cache, 255 blocks; µs of processor time, \
                 medians";
    parts.push((title.to_owned(), matches));
    let title = format!(
        "One request whose rows share tokens and have {} of their own each; µs of processor time \
         for next_batch, medians",
        planning::OWN
    );
    parts.push((title, planned));
    Ok(parts)
}

/// Returns the parts as Markdown, or as JSON.
///
/// # Errors
/// None of tables.
pub fn render(parts: &[Part], as_json: bool) -> Result<String> {
    if as_json {
        let fields = parts
            .iter()
            .map(|(title, table)| (title.clone(), table.json()));
        let object: Map<String, Value> = fields.collect();
        return Ok(serde_json::to_string_pretty(&object)? + "\n");
    }
    let texts = parts
        .iter()
        .map(|(title, table)| format!("{title}\n\n{}", table.markdown()));
    Ok(texts.collect::<Vec<_>>().join("\n"))
}

/// Returns the rows of the first table: a step, and the planning of one request.
pub(crate) fn rows(rounds: usize) -> Result<Vec<Row>> {
    let mut world = World::new(PolicyConfig::Srjf, false, 1, &|| 0)?;
    world.fill(1_000)?;
    let steps = (0..20 * rounds).map(|_| {
        let cost = world.step()?;
        Ok(micros(cost.next_batch + cost.complete))
    });
    let steps = steps.collect::<Result<Vec<f64>>>()?;
    let [planned, _] = planning::measure(30_000, 256, rounds)?;
    let row = |name, times: &[f64], bound, note| {
        Row::measured(name, "µs", Spread::of(times), Better::Lower)
            .bound(bound)
            .note(note)
    };
    // A step cannot do with less than a look at each request that generates, and a plan writes its
    // tokens.
    let requests: Vec<[u64; 8]> = (0..256).map(|id| [id; 8]).collect();
    let look = fastest(|| {
        black_box(black_box(&requests).iter().map(|line| line[0]).sum::<u64>());
    });
    let tokens = vec![1u32; 30_000 + 256 * planning::OWN];
    let copy = fastest(|| drop(black_box(black_box(&tokens).clone())));
    Ok(vec![
        row(
            "scheduler step, 1,000 wait and 256 generate",
            &steps,
            look,
            "limit: a cache line of each that generates",
        ),
        row(
            "planning 256 rows over 30,000 shared tokens",
            &planned,
            copy,
            "limit: a copy of the tokens",
        ),
    ])
}

/// Returns the microseconds of the fastest of a hundred calls.
fn fastest(mut work: impl FnMut()) -> f64 {
    let mut call = |_| {
        let (elapsed, ()) = clock::time(&mut work);
        micros(elapsed)
    };
    (0..100).map(&mut call).fold(f64::INFINITY, f64::min)
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

/// Measures steps with so many requests waiting, and returns the cells of their row.
fn measure(
    steps: usize,
    policy: PolicyConfig,
    waiting: usize,
    shared: bool,
    allocations: Option<&dyn Fn() -> u64>,
) -> Result<[String; 6]> {
    let uncounted = || 0;
    let counter = allocations.unwrap_or(&uncounted);
    // What happens once in a world is measured in several, unless that takes long.
    let worlds = if waiting > 10_000 { 1 } else { 3 };
    let (mut bursts, mut afters) = (Vec::new(), Vec::new());
    let mut costs: Vec<StepCost> = Vec::new();
    for seed in 0..worlds {
        let mut world = World::new(policy, shared, seed, counter)?;
        world.fill(waiting)?;
        bursts.push(micros(world.step()?.next_batch));
        let mut slowest = Duration::ZERO;
        for _ in 0..8 {
            slowest = slowest.max(world.step()?.next_batch);
        }
        afters.push(micros(slowest));
        // Until the policy has heard of all that wait.
        for _ in 0..waiting / 200 + 8 {
            world.step()?;
        }
        for _ in 0..steps {
            costs.push(world.step()?);
        }
    }
    let middle = |of: fn(&StepCost) -> f64| {
        let values: Vec<f64> = costs.iter().map(of).collect();
        format!("{:.0}", median(&values))
    };
    Ok([
        middle(|cost| micros(cost.next_batch)),
        middle(|cost| micros(cost.complete)),
        middle(|cost| micros(cost.next_batch + cost.complete)),
        match allocations {
            #[expect(clippy::cast_precision_loss, reason = "a count")]
            Some(_) => middle(|cost| cost.allocations as f64),
            None => "-".to_owned(),
        },
        format!("{:.0}", median(&bursts)),
        format!("{:.0}", median(&afters)),
    ])
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_a_row_for_each_size_and_policy() {
        let config = Config {
            waiting: vec![3, 40],
            policy: vec![Policy::Fcfs, Policy::Srjf, Policy::Groups, Policy::Laps],
            steps: 2,
            blocks: vec![1_000],
        };
        let mut parts = 0;
        let report = run(&config, Some(&|| 5), |_| parts += 1).unwrap();
        assert_eq!(parts, 21);
        let json: Value = serde_json::from_str(&render(&report, true).unwrap()).unwrap();
        let steps = json.as_object().unwrap().values().take(2);
        let steps: Vec<&Value> = steps.flat_map(|part| part.as_array().unwrap()).collect();
        assert_eq!(steps.len(), 16);
        assert!(steps.iter().all(|cost| cost["allocations"] == 0.0));
        assert!(
            steps.iter().all(|cost| cost["both"].as_f64() > Some(0.0)),
            "{steps:?}"
        );
        let text = render(&report, false).unwrap();
        assert_eq!(text.matches("\n| 40 ").count(), 8, "{text}");
        assert!(text.contains("\n| 1000 "), "{text}");
        assert!(text.contains("\n| 30000         | 256 "), "{text}");
    }

    #[test]
    fn the_first_table_has_a_step_and_a_plan() {
        let rows = rows(1).unwrap();
        assert!(rows.iter().all(|row| row.value > Some(0.0)), "{rows:?}");
    }
}
