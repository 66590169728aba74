//! Preble's embodied agent: an instruction, then each step extends the last.
//!
//! A task is one stream, of which each step's prompt is a longer piece: what was seen and done is
//! appended and nothing else changes. The instruction is the key portion, 76 % of a prompt on
//! average; the history has the other 24 %, so it grows by as much a step as gives that mean.
//! As in `shared_prefix.rs`, the number of steps follows from the authors' numbers of tasks and
//! requests, and of the table's 48 ± 8 requests per key portion the deviation in terms of the mean
//! is kept. A task's last step shares all but its last piece, so nearly everything is shared; of
//! the table's 97 ± 14 %, what is missing are requests that share nothing.

use super::{
    Arrival, Builder, Moments,
    draw::{LogNormal, apportion},
};
use crate::sim::{Prompt, Run};
use prelude_core::Timestamp;

const PROMPT: Moments = Moments::new(2285.0, 471.0);
const OUTPUT: Moments = Moments::new(16.0, 13.0);
const CONTEXT: u32 = 8192;
/// Mean tokens of history.
const HISTORY: f64 = 0.24 * 2285.0;
/// The share of requests that are a task of one step: it lowers the shared share to 97 %, with a
/// deviation of sqrt(0.02 * 0.98) = 14 %.
const LONE: f64 = 0.02;

/// Returns `requests` arrivals in `tasks` tasks, each a group.
pub(super) fn groups(tasks: u32, requests: u32, build: &mut Builder) -> Vec<Vec<Arrival>> {
    let lone = (f64::from(requests) * LONE).round() as u32;
    let steps = LogNormal::new(Moments::new(48.0, 8.0));
    let weights: Vec<f64> = (0..tasks).map(|_| steps.draw(&mut build.random)).collect();
    let counts = apportion(requests - lone, &weights);
    let lone = std::iter::repeat_n(1, lone as usize);
    counts
        .into_iter()
        .chain(lone)
        .map(|steps| task(steps, build))
        .collect()
}

fn task(steps: u32, build: &mut Builder) -> Vec<Arrival> {
    // Over the steps of a task, history is spread evenly over 0..2 * HISTORY.
    let history = Moments::new(HISTORY, HISTORY / 3_f64.sqrt());
    let instruction = LogNormal::new(PROMPT.less(history));
    let most = CONTEXT / 2;
    let instruction = instruction.tokens(&mut build.random, 1..=most);
    let growth = 2.0 * HISTORY / f64::from(steps.max(2) - 1);
    let (stream, key, root) = (build.stream(), build.key(), build.root());
    let step = |i: u32| {
        // A lone step has the mean history.
        let at = if steps == 1 { 0.5 } else { f64::from(i) };
        let len = instruction + (growth * at).round() as u32;
        let output = LogNormal::new(OUTPUT);
        Arrival {
            at: Timestamp::ZERO,
            prompt: Prompt::new([Run {
                stream,
                start: 0,
                len,
            }]),
            output_tokens: output.tokens(&mut build.random, 1..=CONTEXT - len),
            key,
            user: 0,
            root,
        }
    };
    (0..steps).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Order, Workload, shared_tokens};

    #[test]
    fn prompts_outputs_and_shares_are_those_of_the_table() {
        for seed in 1..=3 {
            let mut build = Builder::new(seed);
            let groups = groups(800, 10_000, &mut build);
            let arrivals = Order::Shuffled.line_up(groups, &mut build.random);
            let workload = Workload::new("agent", arrivals);
            let prompts: Vec<f64> = workload
                .arrivals
                .iter()
                .map(|a| f64::from(a.prompt.len()))
                .collect();
            let got = Moments::of(&prompts);
            assert!((got.mean / PROMPT.mean - 1.0).abs() < 0.03, "{got:?}");
            assert!((got.sd / PROMPT.sd - 1.0).abs() < 0.1, "{got:?}");
            let shares: Vec<f64> = shared_tokens(&workload)
                .iter()
                .zip(&prompts)
                .map(|(shared, len)| f64::from(*shared) / len)
                .collect();
            let got = Moments::of(&shares);
            assert!((got.mean - 0.97).abs() < 0.015, "{got:?}");
            assert!((got.sd - 0.14).abs() < 0.03, "{got:?}");
        }
    }

    #[test]
    fn each_step_extends_the_last() {
        let mut build = Builder::new(1);
        let steps = task(12, &mut build);
        for pair in steps.windows(2) {
            let (before, after) = (&pair[0].prompt, &pair[1].prompt);
            assert_eq!(after.shared_with(before), before.len());
            assert!(after.len() > before.len());
        }
    }
}
