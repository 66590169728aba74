//! The shared prefixes of a workload: an upper bound of the hits of any cache.

use std::collections::{HashMap, HashSet};

use super::Workload;
use crate::random::mix;

/// Returns the share of a workload's prompt tokens that one cache without bounds would have when each
/// request comes after all earlier ones are done, in whole blocks of `block_size` tokens.
///
/// It is a ceiling for whatever number of engines, in whatever order they work: of each block that
/// differs from all others (with all that is before it), somebody has to compute the first.
///
/// # Panics
/// If blocks are of no tokens.
#[must_use]
pub fn hit_ceiling(workload: &Workload, block_size: usize) -> f64 {
    let known = known_tokens(workload, block_size);
    let hits: u64 = known.into_iter().map(u64::from).sum();
    hits as f64 / workload.prompt_tokens().max(1) as f64
}

/// Returns how many tokens each request's prompt begins with, in whole blocks, that an earlier
/// request's prompt began with too.
///
/// # Panics
/// If blocks are of no tokens.
#[must_use]
pub fn known_tokens(workload: &Workload, block_size: usize) -> Vec<u32> {
    let mut seen: HashSet<u64> = HashSet::new();
    let mut known = Vec::new();
    each_prompt(workload, block_size, |blocks| {
        // Prefixes of what was seen were seen, so the first new block ends the hits.
        let hits = { blocks.iter() }.filter(|&&block| !seen.insert(block));
        known.push((hits.count() * block_size) as u32);
    });
    known
}

/// Returns the tokens, in whole blocks and each block once, that more than one prompt begins with:
/// what a cache has to hold to have every hit.
///
/// # Panics
/// If blocks are of no tokens.
#[must_use]
pub fn recurring_tokens(workload: &Workload, block_size: usize) -> usize {
    let mut prompts: HashMap<u64, usize> = HashMap::new();
    each_prompt(workload, block_size, |blocks| {
        for &block in blocks {
            *prompts.entry(block).or_default() += 1;
        }
    });
    prompts.values().filter(|&&count| count > 1).count() * block_size
}

/// Calls `with` for each request's prompt: a hash for each whole block, of the block and all that is
/// before it.
fn each_prompt(workload: &Workload, block_size: usize, mut with: impl FnMut(&[u64])) {
    assert!(block_size > 0, "blocks have tokens");
    let (mut tokens, mut blocks) = (Vec::new(), Vec::new());
    for arrival in &workload.arrivals {
        tokens.clear();
        blocks.clear();
        arrival.prompt.tokens(&mut tokens);
        let mut prefix = 0;
        for block in tokens.chunks_exact(block_size) {
            let hash = |hash, &token| mix(hash ^ u64::from(token));
            prefix = block.iter().fold(prefix, hash);
            blocks.push(prefix);
        }
        with(&blocks);
    }
}

/// Returns, for each request, the number of first tokens of its prompt that some other prompt
/// begins with, be it earlier or later. This is the shared part of table 1 of the Preble paper.
#[must_use]
pub fn shared_tokens(workload: &Workload) -> Vec<u32> {
    let prompt = |i: usize| &workload.arrivals[i].prompt;
    let mut order: Vec<usize> = (0..workload.arrivals.len()).collect();
    // Prompts that share n tokens are neighbours, since they are sorted by runs and a run's
    // length comes last: so a prompt shares most with a neighbour.
    order.sort_by(|&a, &b| prompt(a).cmp(prompt(b)));
    let mut shared = vec![0; order.len()];
    for pair in order.windows(2) {
        let common = prompt(pair[0]).shared_with(prompt(pair[1]));
        for &i in pair {
            shared[i] = common.max(shared[i]);
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use prelude_core::Timestamp;

    use super::*;
    use crate::{
        random::Random,
        sim::{Arrival, Prompt, Run},
    };

    fn workload(prompts: Vec<Vec<(u64, u32, u32)>>) -> Workload {
        let run = |(stream, start, len)| Run { stream, start, len };
        let arrivals = prompts.into_iter().map(|runs| Arrival {
            at: Timestamp::ZERO,
            prompt: Prompt::new(runs.into_iter().map(run)),
            output_tokens: 1,
            key: 0,
            user: 0,
            root: 0,
        });
        Workload::new("test", arrivals.collect())
    }

    #[test]
    fn whole_blocks_of_earlier_requests_are_hits() {
        let check = |prompts, block_size, expected: f64| {
            let got = hit_ceiling(&workload(prompts), block_size);
            assert!((got - expected).abs() < 1e-12, "{got}, not {expected}");
        };
        check(vec![vec![(1, 0, 100)]; 2], 10, 0.5);
        // The last block is not whole.
        check(vec![vec![(1, 0, 109)]; 2], 10, 100.0 / 218.0);
        // 50 tokens in common: three blocks of 16.
        check(
            vec![vec![(1, 0, 50), (2, 0, 50)], vec![(1, 0, 50), (3, 0, 50)]],
            16,
            48.0 / 200.0,
        );
        // Equal tokens after different ones are no hit.
        check(
            vec![vec![(1, 0, 50), (2, 0, 50)], vec![(3, 0, 50), (2, 0, 50)]],
            10,
            0.0,
        );
        check(vec![], 16, 0.0);
    }

    #[test]
    fn a_common_prefix_recurs_once() {
        let check = |prompts, expected: usize| {
            assert_eq!(recurring_tokens(&workload(prompts), 16), expected);
        };
        check(vec![vec![(1, 0, 100)]; 3], 96);
        // 50 tokens in common: three blocks of 16.
        check(
            vec![vec![(1, 0, 50), (2, 0, 50)], vec![(1, 0, 50), (3, 0, 50)]],
            48,
        );
        check(vec![vec![(1, 0, 100)], vec![(2, 0, 100)]], 0);
        check(vec![], 0);
    }

    #[test]
    fn shared_tokens_are_those_of_the_closest_other() {
        let mut random = Random::far(1);
        let mut prompts = Vec::new();
        for _ in 0..200 {
            let mut runs = Vec::new();
            for _ in 0..random.below(4) {
                let stream = random.below(3) as u64;
                let (start, len) = (random.below(2) as u32 * 5, 1 + random.below(8) as u32);
                runs.push((stream, start, len));
            }
            prompts.push(runs);
        }
        let workload = workload(prompts);
        let got = shared_tokens(&workload);
        let prompts = || workload.arrivals.iter().map(|a| &a.prompt).enumerate();
        for (i, prompt) in prompts() {
            let others = prompts().filter(|(j, _)| *j != i);
            let most = others.map(|(_, other)| prompt.shared_with(other)).max();
            assert_eq!(got[i], most.unwrap());
        }
        assert!(got.iter().any(|n| *n > 0) && got.contains(&0));
    }
}
