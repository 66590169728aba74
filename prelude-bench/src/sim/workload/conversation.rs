//! LAPS's conversations, with the lengths of LMSYS-Chat-1M that the paper gives.
//!
//! A prompt is a history, which only later turns have, and a new turn. Lengths are the paper's:
//! a new turn is short (below 256 tokens) in 63 % of first and 81 % of later turns; a history is
//! exponential with a mean of 1,500 tokens. That a conversation has two turns on average, as in
//! LMSYS-Chat-1M, and that histories of a conversation grow, is ours; so is that what a history
//! gained since the last turn is new: an engine has not seen it as a prompt. One token is
//! generated, since LAPS looks at the first alone.

use super::{Arrival, Builder, draw::LogNormal};
use crate::sim::{Prompt, Run};
use prelude_core::Timestamp;

/// A turn below it is short.
const SHORT: u32 = 256;
/// Longest new turn.
const LONGEST: u32 = 8192;
const HISTORY: f64 = 1500.0;
/// Histories beyond this are cut: one in 40,000.
const LONGEST_HISTORY: f64 = 16_384.0;

/// `requests` in conversations, each a group; `conversations` of them.
pub(super) fn groups(conversations: u32, requests: u32, build: &mut Builder) -> Vec<Vec<Arrival>> {
    let conversations = conversations.clamp(1, requests.max(1));
    // Each has a turn; the others go to any of them.
    let mut turns = vec![1; conversations as usize];
    for _ in conversations..requests {
        turns[build.random.below(conversations as usize)] += 1;
    }
    turns
        .into_iter()
        .map(|turns| conversation(turns, build))
        .collect()
}

fn conversation(turns: usize, build: &mut Builder) -> Vec<Arrival> {
    let mut histories: Vec<u32> = (1..turns)
        .map(|_| build.random.exponential(HISTORY).min(LONGEST_HISTORY) as u32)
        .collect();
    histories.sort_unstable();
    let (stream, key, root) = (build.stream(), build.key(), build.root());
    let whole = |len| Run {
        stream,
        start: 0,
        len,
    };
    let request = |prompt| Arrival {
        at: Timestamp::ZERO,
        prompt,
        output_tokens: 1,
        key,
        user: key,
        root,
    };
    // Histories begin with what was asked first.
    let first = turn(0.63, build);
    let mut requests = vec![request(Prompt::new([whole(first)]))];
    for history in histories {
        let own = Run {
            stream: build.stream(),
            start: 0,
            len: turn(0.81, build),
        };
        requests.push(request(Prompt::new([whole(history), own])));
    }
    requests
}

/// Tokens of a new turn, which is short this often.
fn turn(short: f64, build: &mut Builder) -> u32 {
    let random = &mut build.random;
    if random.uniform() <= short {
        LogNormal::of_median(60.0, 0.9).tokens(random, 1..=SHORT - 1)
    } else {
        SHORT + LogNormal::of_median(700.0, 1.0).tokens(random, 0..=LONGEST - SHORT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_and_histories_are_as_long_as_the_paper_s() {
        let mut build = Builder::new(1);
        let groups = groups(10_000, 20_000, &mut build);
        assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), 20_000);
        let share = |lens: &[u32]| {
            let short = lens.iter().filter(|n| **n < SHORT).count();
            short as f64 / lens.len() as f64
        };
        let firsts: Vec<u32> = groups.iter().map(|g| g[0].prompt.len()).collect();
        assert!((share(&firsts) - 0.63).abs() < 0.015);
        let later = groups.iter().flat_map(|g| &g[1..]);
        let (mut turns, mut histories) = (Vec::new(), Vec::new());
        for request in later {
            let turn = request.prompt.runs().last().unwrap().len;
            turns.push(turn);
            histories.push(f64::from(request.prompt.len() - turn));
        }
        assert!((share(&turns) - 0.81).abs() < 0.015);
        let mean = histories.iter().sum::<f64>() / histories.len() as f64;
        assert!((mean / HISTORY - 1.0).abs() < 0.04, "{mean}");
        assert!(turns.iter().chain(&firsts).all(|n| *n <= LONGEST));
    }

    #[test]
    fn histories_of_a_conversation_grow() {
        let requests = conversation(6, &mut Builder::new(2));
        for pair in requests[1..].windows(2) {
            let history = pair[0].prompt.runs()[0].len;
            assert_eq!(pair[1].prompt.shared_with(&pair[0].prompt), history);
        }
    }
}
