//! Two requests share a prefix; a third, unrelated one pushes it out again.
#![expect(clippy::print_stdout, reason = "an example")]

use prelude_kv::{KvCache, Reclaim};

const BLOCK: usize = 4;

fn main() {
    let mut cache = KvCache::new(6, 4);
    let rubric: Vec<u32> = (0..8).collect();
    let with = |suffix: &[u32]| [&rubric[..], suffix].concat();
    run(&mut cache, "first answer", &with(&[50, 51, 52, 53, 54]));
    run(&mut cache, "second answer", &with(&[60, 61, 62, 63, 64]));
    run(
        &mut cache,
        "something long",
        &(100..124).collect::<Vec<_>>(),
    );
    run(&mut cache, "third answer", &with(&[70, 71]));
}

fn run(cache: &mut KvCache, name: &str, prompt: &[u32]) {
    // Never all of the prompt: the last token must be computed to get an answer.
    let mut blocks = cache
        .match_prefix(None, prompt, prompt.len() - 1)
        .into_blocks();
    let cached = blocks.len();
    while (blocks.len() + 1) * BLOCK <= prompt.len() {
        blocks.push(
            cache
                .allocate(Reclaim::Evict)
                .expect("no prompt here is larger than the pool"),
        );
    }
    let span = cached * BLOCK..blocks.len() * BLOCK;
    let parent = cached.checked_sub(1).map(|last| blocks[last]);
    cache.publish(None, parent, &prompt[span], &mut blocks[cached..]);
    cache.release_all(blocks);
    println!(
        "{name}: {} of {} tokens from the cache; {} blocks cached, {} free",
        cached * BLOCK,
        prompt.len(),
        cache.cached_blocks(),
        cache.free_blocks(),
    );
}
