//! LAPS's conversations, with the lengths of LMSYS-Chat-1M that the paper gives.
//!
//! A prompt is a history, which only later turns have, and a new turn. Lengths are the paper's:
//! a new turn is short (at most 256 tokens) in 63 % of first and 81 % of later turns; a history is
//! exponential with a mean of 1,500 tokens. That half of the turns are first ones, as in
//! LMSYS-Chat-1M, is ours; so is that later turns continue one of a given number of histories,
//! which the first requests bring in: an engine keeps what it has generated, so a history is
//! cached but for its newest turn. One token is generated, since LAPS looks at the first alone.

use prelude_core::Timestamp;

use super::{
    Arrival, Builder, Workload,
    draw::{LogNormal, poisson},
};
use crate::sim::{Prompt, Run};

/// Tokens of the longest short turn.
const SHORT: u32 = 256;
/// Longest new turn.
const LONGEST: u32 = 8192;
const HISTORY: f64 = 1500.0;
/// Histories beyond this are cut: one in 40,000.
const LONGEST_HISTORY: f64 = 16_384.0;
/// The number of times that each history is brought in: engines keep what they have seen to return.
const BRINGS: u32 = 2;

/// Returns a workload of `requests` arrivals, with those that bring in the histories: at most half
/// of all. Those, and a tenth of the others, are warm-up.
pub(super) fn workload(histories: u32, requests: u32, rate: f64, build: &mut Builder) -> Workload {
    let histories = histories.min(requests / (2 * BRINGS));
    let runs: Vec<Run> = (0..histories).map(|_| history(build)).collect();
    let mut arrivals = Vec::new();
    for _ in 0..BRINGS {
        for (user, &history) in (0..).zip(&runs) {
            let own = run(build.stream(), 1);
            arrivals.push(request([history, own], user));
        }
    }
    let others = requests - histories * BRINGS;
    for _ in 0..others {
        arrivals.push(turn(&runs, build));
    }
    let warm_up = (histories * BRINGS + others / 10) as usize;
    poisson(&mut arrivals, rate, &mut build.random);
    Workload {
        warm_up,
        ..Workload::new("conversation", arrivals)
    }
}

fn history(build: &mut Builder) -> Run {
    build.key();
    let len = build.random.exponential(HISTORY).min(LONGEST_HISTORY);
    run(build.stream(), (len as u32).max(1))
}

/// Returns the first turn of a conversation, or one that continues a history.
fn turn(histories: &[Run], build: &mut Builder) -> Arrival {
    let is_first = histories.is_empty() || build.random.below(2) == 0;
    let stream = build.stream();
    if is_first {
        let own = run(stream, new_tokens(0.63, build));
        return request([own], build.key());
    }
    let user = build.random.below(histories.len());
    let own = run(stream, new_tokens(0.81, build));
    request([histories[user], own], user as u32)
}

fn request(runs: impl IntoIterator<Item = Run>, user: u32) -> Arrival {
    Arrival {
        at: Timestamp::ZERO,
        prompt: Prompt::new(runs),
        output_tokens: 1,
        key: user,
        user,
        root: user,
    }
}

const fn run(stream: u64, len: u32) -> Run {
    Run {
        stream,
        start: 0,
        len,
    }
}

/// Returns the number of tokens of a new turn, which is short this often.
fn new_tokens(short: f64, build: &mut Builder) -> u32 {
    let random = &mut build.random;
    if random.uniform() <= short {
        LogNormal::of_median(60.0, 0.9).tokens(random, 1..=SHORT)
    } else {
        SHORT + LogNormal::of_median(700.0, 1.0).tokens(random, 1..=LONGEST - SHORT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::known_tokens;

    #[test]
    fn turns_and_histories_are_as_long_as_the_paper_s() {
        let workload = workload(1000, 22_000, 10.0, &mut Builder::new(1));
        assert_eq!((workload.arrivals.len(), workload.warm_up), (22_000, 4000));
        let (brings, turns) = workload.arrivals.split_at(2000);
        let share = |lens: &[u32]| {
            let short = lens.iter().filter(|n| **n <= SHORT).count();
            short as f64 / lens.len() as f64
        };
        let of = |runs: usize| -> Vec<u32> {
            let some = turns.iter().filter(|a| a.prompt.runs().len() == runs);
            some.map(|a| a.prompt.runs()[runs - 1].len).collect()
        };
        let (firsts, later) = (of(1), of(2));
        assert!(firsts.len().abs_diff(later.len()) < 600);
        assert!((share(&firsts) - 0.63).abs() < 0.015);
        assert!((share(&later) - 0.81).abs() < 0.015);
        assert!(firsts.iter().chain(&later).all(|n| *n <= LONGEST));
        let histories = brings[..1000]
            .iter()
            .map(|a| f64::from(a.prompt.runs()[0].len));
        let mean = histories.sum::<f64>() / 1000.0;
        assert!((mean / HISTORY - 1.0).abs() < 0.1, "{mean}");
    }

    #[test]
    fn later_turns_continue_what_was_brought_in() {
        let workload = workload(8, 400, 10.0, &mut Builder::new(2));
        let known = known_tokens(&workload, 16);
        for (arrival, known) in workload.arrivals.iter().zip(known).skip(16) {
            let runs = arrival.prompt.runs();
            let history = if runs.len() == 2 { runs[0].len } else { 0 };
            assert_eq!(known, history / 16 * 16);
        }
        // Few requests bring in few histories.
        let small = super::workload(100, 9, 10.0, &mut Builder::new(2));
        assert_eq!((small.arrivals.len(), small.warm_up), (9, 4));
    }
}
