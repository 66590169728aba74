//! Matches, evictions and block counts against a list of prefixes.

use proptest::prelude::*;

use super::*;

const BLOCK: usize = 2;

fn salt(name: &str) -> Option<Arc<str>> {
    (!name.is_empty()).then(|| Arc::from(name))
}

/// Publishes whole blocks of `tokens` as a request that computed them alone, and lets go.
fn compute(cache: &mut KvCache, salt: Option<&Arc<str>>, tokens: &[TokenId]) -> Vec<BlockId> {
    let mut blocks = cache.match_prefix(salt, tokens, tokens.len()).into_blocks();
    let known = blocks.len();
    while (blocks.len() + 1) * BLOCK <= tokens.len() {
        let Some(block) = cache.allocate(Reclaim::Evict) else {
            break;
        };
        blocks.push(block);
    }
    let parent = known.checked_sub(1).map(|p| blocks[p]);
    let span = &tokens[known * BLOCK..blocks.len() * BLOCK];
    cache.publish(salt, parent, span, &mut blocks[known..]);
    cache.release_all(blocks.clone());
    cache.check();
    blocks
}

fn found(cache: &mut KvCache, salt: Option<&Arc<str>>, tokens: &[TokenId], max: usize) -> usize {
    let peeked = cache.cached_prefix(salt, tokens, max);
    let found = cache.match_prefix(salt, tokens, max);
    let len = found.blocks().len();
    assert_eq!(peeked, len * BLOCK);
    let hashes: Vec<_> = cache.root(salt).blocks(tokens, BLOCK).collect();
    let whole = max.min(tokens.len()) / BLOCK;
    // In two pieces, as a caller does whose prompts are trees.
    for cut in 0..=whole.min(len) {
        let mut again = found.blocks()[..cut].to_vec();
        let (parent, rest) = (again.last().copied(), &tokens[cut * BLOCK..]);
        cache.find_after(salt, parent, rest, &hashes[cut..whole], &mut again);
        assert_eq!(again, found.blocks(), "cut at {cut}");
    }
    let last = len.checked_sub(1);
    let expected = last.map_or_else(|| cache.root(salt), |i| hashes[i]);
    assert_eq!(found.hash(), expected);
    cache.release_all(found.into_blocks());
    len
}

#[test]
fn matches_whole_blocks_up_to_the_limit() {
    let mut cache = KvCache::new(8, 2);
    compute(&mut cache, None, &[1, 2, 3, 4, 5]);
    let mut check = |tokens: &[TokenId], max, expected| {
        assert_eq!(
            found(&mut cache, None, tokens, max),
            expected,
            "{tokens:?} to {max}"
        );
    };
    check(&[1, 2, 3, 4, 5], 5, 2);
    check(&[1, 2, 3, 4], 3, 1);
    check(&[1, 2, 9, 9], 4, 1);
    check(&[3, 4], 2, 0);
    check(&[1], 1, 0);
    check(&[], 9, 0);
}

#[test]
fn finds_prompts_longer_than_what_it_looks_up_together() {
    let mut cache = KvCache::new(1_000, 2);
    let prompt: Vec<TokenId> = (0..1_000).collect();
    compute(&mut cache, None, &prompt);
    for max in [
        0, 1, 2, 3, 4, 11, 12, 13, 127, 251, 252, 253, 254, 999, 1_000,
    ] {
        assert_eq!(found(&mut cache, None, &prompt, max), max / 2);
        let mut other = prompt[..max].to_vec();
        other.extend([9, 9, 9]);
        assert_eq!(found(&mut cache, None, &other, max + 3), max / 2, "{max}");
    }
}

#[test]
fn salts_share_nothing() {
    let mut cache = KvCache::new(8, 2);
    let (a, b) = (salt("a"), salt("b"));
    compute(&mut cache, a.as_ref(), &[1, 2, 3, 4]);
    assert_eq!(found(&mut cache, a.as_ref(), &[1, 2, 3, 4], 4), 2);
    assert_eq!(found(&mut cache, b.as_ref(), &[1, 2, 3, 4], 4), 0);
    assert_eq!(found(&mut cache, None, &[1, 2, 3, 4], 4), 0);
}

#[test]
fn colliding_hashes_never_mix_prefixes() {
    let mut cache = KvCache::new(16, 2);
    cache.trie.weaken_hash(0);
    let (a, b) = (salt("a"), salt("b"));
    compute(&mut cache, a.as_ref(), &[1, 2, 3, 4]);
    // Every hash is the same, so only the first block of all is in the trie.
    assert_eq!(found(&mut cache, a.as_ref(), &[1, 2, 3, 4], 4), 1);
    assert_eq!(found(&mut cache, b.as_ref(), &[1, 2, 3, 4], 4), 0);
    assert_eq!(found(&mut cache, a.as_ref(), &[3, 4], 2), 0);
    assert_eq!((cache.cached_blocks(), cache.free_blocks()), (1, 15));
}

/// Requests with and without a salt have the same tokens, and all hashes are the same: only
/// the salt that the trie remembers keeps one from the other's block.
#[test]
fn colliding_hashes_never_cross_from_a_salt_to_none_or_back() {
    let salts = [salt("a"), salt("b"), None];
    for owner in &salts {
        let mut cache = KvCache::new(16, 2);
        cache.trie.weaken_hash(0);
        compute(&mut cache, owner.as_ref(), &[1, 2]);
        for reader in &salts {
            let expected = usize::from(owner == reader);
            let blocks = found(&mut cache, reader.as_ref(), &[1, 2], 2);
            assert_eq!(blocks, expected, "{reader:?} reads what {owner:?} computed");
        }
    }
}

#[test]
fn an_equal_block_published_twice_is_kept_once() {
    let mut cache = KvCache::new(4, 2);
    let first = cache.allocate(Reclaim::Never).unwrap();
    let second = cache.allocate(Reclaim::Never).unwrap();
    assert_eq!(cache.publish(None, None, &[1, 2], &mut [first]), 1);
    let mut twice = [second];
    assert_eq!(cache.publish(None, None, &[1, 2], &mut twice), 1);
    assert_eq!(twice, [first]);
    assert_eq!((cache.refs(first), cache.refs(second)), (2, 0));
    cache.release_all(vec![first, first]);
    cache.check();
    assert_eq!((cache.cached_blocks(), cache.free_blocks()), (1, 3));
}

#[test]
fn evicts_leaves_first_by_last_use_and_never_a_held_block() {
    let mut cache = KvCache::new(4, 2);
    compute(&mut cache, None, &[1, 2, 3, 4]);
    compute(&mut cache, None, &[5, 6, 7, 8]);
    let held = cache.match_prefix(None, &[1, 2, 3, 4], 2);
    // Oldest leaf: [1, 2, 3, 4]'s second block; its first is held.
    let mut taken = Vec::new();
    let mut sizes = Vec::new();
    while let Some(block) = cache.allocate(Reclaim::Evict) {
        taken.push(block);
        sizes.push((
            found(&mut cache, None, &[1, 2, 3, 4], 4),
            found(&mut cache, None, &[5, 6, 7, 8], 4),
        ));
    }
    assert_eq!(sizes, [(1, 2), (1, 1), (1, 0)]);
    assert_eq!(cache.allocate(Reclaim::Evict), None);
    cache.release_all(held.into_blocks());
    cache.release_all(taken);
    cache.check();
    assert_eq!((cache.cached_blocks(), cache.free_blocks()), (1, 3));
}

/// The naive twin: a list of prefixes with their last use and holders, scanned every time.
#[derive(Default)]
struct Naive {
    /// (salt, prefix), last use, holders.
    entries: Vec<((usize, Vec<TokenId>), u64, u32)>,
    tick: u64,
    capacity: usize,
    /// Blocks held that are in no entry.
    loose: usize,
}

impl Naive {
    fn position(&self, salt: usize, prefix: &[TokenId]) -> Option<usize> {
        self.entries
            .iter()
            .position(|(key, ..)| key.0 == salt && key.1 == prefix)
    }

    fn matched(&self, salt: usize, tokens: &[TokenId], max: usize) -> usize {
        let whole = max.min(tokens.len()) / BLOCK;
        (1..=whole)
            .take_while(|n| self.position(salt, &tokens[..n * BLOCK]).is_some())
            .count()
    }

    fn hold(&mut self, salt: usize, tokens: &[TokenId], n: usize) {
        for i in 1..=n {
            let at = self.position(salt, &tokens[..i * BLOCK]).unwrap();
            self.entries[at].2 += 1;
        }
    }

    fn release(&mut self, salt: usize, tokens: &[TokenId], n: usize) {
        for i in (1..=n).rev() {
            let at = self.position(salt, &tokens[..i * BLOCK]).unwrap();
            self.entries[at].2 -= 1;
            if self.entries[at].2 == 0 {
                self.tick += 1;
                self.entries[at].1 = self.tick;
            }
        }
    }

    fn allocate(&mut self) -> bool {
        if self.entries.len() + self.loose == self.capacity {
            let is_leaf = |(salt, prefix): &(usize, Vec<TokenId>)| {
                !self.entries.iter().any(|((s, p), ..)| {
                    s == salt && p.len() > prefix.len() && p.starts_with(prefix)
                })
            };
            let victim = (0..self.entries.len())
                .filter(|&i| self.entries[i].2 == 0 && is_leaf(&self.entries[i].0))
                .min_by_key(|&i| self.entries[i].1);
            let Some(victim) = victim else {
                return false;
            };
            self.entries.remove(victim);
        }
        self.loose += 1;
        true
    }

    fn publish(&mut self, salt: usize, tokens: &[TokenId], from: usize, to: usize) {
        for i in from + 1..=to {
            self.loose -= 1;
            match self.position(salt, &tokens[..i * BLOCK]) {
                Some(at) => self.entries[at].2 += 1,
                None => self
                    .entries
                    .push(((salt, tokens[..i * BLOCK].to_vec()), 0, 1)),
            }
        }
    }
}

/// A request in progress: salt, tokens, blocks held, blocks matched.
type Running = (usize, Vec<TokenId>, Vec<BlockId>, usize);

#[derive(Clone, Debug)]
enum Op {
    /// Match and allocate the rest.
    Start {
        salt: usize,
        tokens: Vec<TokenId>,
        max: usize,
    },
    /// Publish and release.
    Finish(usize),
    /// Release without publishing.
    Abort(usize),
}

#[test]
fn a_prefix_evicts_another_that_was_used_less_often() {
    let mut cache = KvCache::new(1, BLOCK as u32);
    let hashes: Vec<_> = cache.root(None).blocks(&[1, 2, 3, 4], BLOCK).collect();
    let old = compute(&mut cache, None, &[9, 9]);
    cache.count_use(&old);
    for _ in 0..3 {
        assert_eq!(cache.allocate_for(hashes[0]), None);
        cache.count_unkept(hashes[0]);
    }
    assert_eq!(cache.allocate_for(hashes[1]), None, "the first use");
    let block = cache.allocate_for(hashes[0]);
    assert_eq!(block, Some(old[0]), "used three times before");
    assert_eq!(cache.evicted_blocks(), 1);
    assert_eq!(cache.allocate_for(hashes[0]), None, "nothing is left");
    cache.release_all(block.into_iter().collect());
    assert_eq!(cache.allocate_for(hashes[1]), block, "it is free");
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let start = (0..2usize, prop::collection::vec(0u32..2, 0..10), 0..10usize)
        .prop_map(|(salt, tokens, max)| Op::Start { salt, tokens, max });
    let op = prop_oneof![
        3 => start,
        2 => (0..8usize).prop_map(Op::Finish),
        1 => (0..8usize).prop_map(Op::Abort),
    ];
    prop::collection::vec(op, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Matches, evictions and block counts are those of the naive twin, whatever happens,
    /// with good hashes and with colliding ones (which may only miss).
    #[test]
    fn agrees_with_a_list_of_prefixes(ops in ops(), blocks in 1..12u32) {
        let salts = [salt(""), salt("x")];
        let mut cache = KvCache::new(blocks, BLOCK as u32);
        let mut naive = Naive { capacity: blocks as usize, ..Naive::default() };
        let mut running: Vec<Running> = Vec::new();
        for op in ops {
            match op {
                Op::Start { salt, tokens, max } => {
                    let expected = naive.matched(salt, &tokens, max);
                    naive.hold(salt, &tokens, expected);
                    let found = cache.match_prefix(salts[salt].as_ref(), &tokens, max);
                    prop_assert_eq!(found.blocks().len(), expected);
                    let mut held = found.into_blocks();
                    while (held.len() + 1) * BLOCK <= tokens.len() {
                        let block = cache.allocate(Reclaim::Evict);
                        prop_assert_eq!(block.is_some(), naive.allocate());
                        let Some(block) = block else { break };
                        held.push(block);
                    }
                    running.push((salt, tokens, held, expected));
                }
                Op::Finish(i) if i < running.len() => {
                    let (salt, tokens, mut held, matched) = running.remove(i);
                    let parent = matched.checked_sub(1).map(|p| held[p]);
                    let span = &tokens[matched * BLOCK..held.len() * BLOCK];
                    let n = held.len() - matched;
                    let salt_arc = salts[salt].as_ref();
                    prop_assert_eq!(cache.publish(salt_arc, parent, span, &mut held[matched..]), n);
                    naive.publish(salt, &tokens, matched, held.len());
                    naive.release(salt, &tokens, held.len());
                    cache.release_all(held);
                }
                Op::Abort(i) if i < running.len() => {
                    let (salt, tokens, held, matched) = running.remove(i);
                    naive.loose -= held.len() - matched;
                    naive.release(salt, &tokens, matched);
                    cache.release_all(held);
                }
                Op::Finish(_) | Op::Abort(_) => {}
            }
            cache.check();
            // Whatever the guess, the depth by hashes is that by tokens.
            for (salt, tokens, ..) in &running {
                let salt = salts[*salt].as_ref();
                let hashes: Vec<_> = cache.root(salt).blocks(tokens, BLOCK).collect();
                let depth = cache.cached_prefix(salt, tokens, tokens.len()) / BLOCK;
                for guess in 0..=hashes.len() + 1 {
                    prop_assert_eq!(cache.cached_blocks_near(&hashes, guess), depth);
                }
            }
            let unheld = naive.entries.iter().filter(|e| e.2 == 0).count();
            prop_assert_eq!(cache.cached_blocks() as usize, unheld);
            let in_use = naive.loose + naive.entries.len() - unheld;
            prop_assert_eq!(cache.used_blocks() as usize, in_use);
        }
    }

    #[test]
    fn weak_hashes_only_miss(prompts in prop::collection::vec(prop::collection::vec(0u32..2, 2..10), 1..20)) {
        let mut weak = KvCache::new(64, BLOCK as u32);
        weak.trie.weaken_hash(3);
        let mut strong = KvCache::new(64, BLOCK as u32);
        for prompt in &prompts {
            compute(&mut weak, None, prompt);
            compute(&mut strong, None, prompt);
            let n = found(&mut weak, None, prompt, prompt.len());
            prop_assert!(n <= found(&mut strong, None, prompt, prompt.len()));
            let m = weak.match_prefix(None, prompt, prompt.len());
            let spelled: Vec<TokenId> =
                m.blocks().iter().flat_map(|&b| weak.trie.tokens_of(b).to_vec()).collect();
            prop_assert_eq!(&spelled[..], &prompt[..n * BLOCK]);
            weak.release_all(m.into_blocks());
        }
    }
}
