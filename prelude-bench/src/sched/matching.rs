//! The cost of finding a long cached prompt and of holding its blocks.

use anyhow::{Context as _, Result};
use prelude_core::TokenId;
use prelude_kv::{KvCache, Reclaim};
use prelude_measure::stats::median;

use super::{clock, micros};
use crate::random::Random;

const BLOCK_SIZE: u32 = 16;
/// Tokens of each prompt. The last is never matched, since it must be computed.
const PROMPT: usize = 4_096;

/// Returns the medians, in microseconds, of finding a prompt, of finding one and holding its 255
/// blocks, of the same of a prompt that was matched just before, and of releasing the blocks.
///
/// Fills a cache of `blocks` blocks, handed out in random order, with prompts that share nothing,
/// and matches `rounds` prompts in random order: what is matched is rarely in a processor cache.
pub(super) fn measure(blocks: u32, rounds: usize) -> Result<[f64; 4]> {
    let mut random = Random::far(u64::from(blocks));
    let mut cache = KvCache::new(blocks, BLOCK_SIZE);
    let mut all: Vec<_> = std::iter::from_fn(|| cache.allocate(Reclaim::Never)).collect();
    random.shuffle(&mut all);
    cache.release_all(all);
    let per_prompt = PROMPT / BLOCK_SIZE as usize;
    let mut prompts: Vec<Vec<TokenId>> = Vec::new();
    while cache.free_blocks() as usize >= per_prompt {
        #[expect(clippy::cast_possible_truncation, reason = "below 150,000")]
        let prompt: Vec<TokenId> = (0..PROMPT).map(|_| random.below(150_000) as u32).collect();
        let take = |_| cache.allocate(Reclaim::Never);
        let mut held: Vec<_> = (0..per_prompt).filter_map(take).collect();
        cache.publish(None, None, &prompt, &mut held);
        cache.release_all(held);
        prompts.push(prompt);
    }
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        let prompt = &prompts[random.below(prompts.len())];
        let (find, cached) = clock::time(|| cache.cached_prefix(None, prompt, PROMPT - 1));
        let prompt = &prompts[random.below(prompts.len())];
        let (hold, found) = clock::time(|| cache.match_prefix(None, prompt, PROMPT - 1));
        let whole = found.blocks().len() == per_prompt - 1 && cached > 0;
        whole.then_some(()).context("every prompt is cached")?;
        let held = found.into_blocks();
        let (release, ()) = clock::time(|| cache.release_all(held));
        let (again, found) = clock::time(|| cache.match_prefix(None, prompt, PROMPT - 1));
        cache.release_all(found.into_blocks());
        for (times, time) in times.iter_mut().zip([find, hold, again, release]) {
            times.push(micros(time));
        }
    }
    Ok(times.map(|times| median(&times)))
}
