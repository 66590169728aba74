//! The cache with host memory behind it, on a model of both memories.

use std::collections::BTreeSet;

use prelude_core::KvEvent;
use proptest::prelude::*;

use super::*;
use crate::{KvCache, Reclaim};

const BLOCK: usize = 2;

/// The content of a block: the salt and the tokens up to the block's end.
type Contents = (usize, Vec<TokenId>);

/// A cache, and memories that hold what its copies and its callers' steps put there.
struct World {
    cache: KvCache,
    device: Vec<Contents>,
    host: Vec<Contents>,
    salts: [Option<Arc<str>>; 2],
    running: Vec<Running>,
    /// Prefixes that were ever published.
    published: BTreeSet<Contents>,
    /// The blocks of the device, as a reader of events knows them.
    told: BTreeSet<u64>,
}

/// A request that holds its blocks.
struct Running {
    salt: usize,
    tokens: Vec<TokenId>,
    blocks: Vec<BlockId>,
    /// Blocks that came from the cache, loaded ones included.
    found: usize,
    computed: bool,
}

fn prefix(salt: usize, tokens: &[TokenId], blocks: usize) -> Contents {
    (salt, tokens[..blocks * BLOCK].to_vec())
}

impl World {
    fn new(blocks: u32, host_blocks: u32) -> Self {
        let mut cache = KvCache::new(blocks, BLOCK as u32);
        cache.use_host_memory(host_blocks);
        cache.record_events(1000);
        Self {
            cache,
            device: vec![Contents::default(); blocks as usize],
            host: vec![Contents::default(); host_blocks as usize],
            salts: [None, Some(Arc::from("x"))],
            running: Vec::new(),
            published: BTreeSet::new(),
            told: BTreeSet::new(),
        }
    }

    /// Reads the events, which have to lead to the blocks that are cached on the device.
    fn read_events(&mut self) {
        let read = |told: &mut BTreeSet<u64>, events: Vec<KvEvent>| {
            for event in events {
                match event {
                    KvEvent::Stored(stored) => {
                        assert!(stored.parent.is_none_or(|parent| told.contains(&parent)));
                        told.extend(stored.hashes);
                    }
                    KvEvent::Removed(hashes) => {
                        assert!(hashes.iter().all(|hash| told.remove(hash)));
                    }
                    KvEvent::Cleared => told.clear(),
                }
            }
        };
        read(&mut self.told, self.cache.take_events());
        let mut cached = BTreeSet::new();
        read(&mut cached, self.cache.contents());
        assert_eq!(self.told, cached);
    }

    /// Holds what is cached of a prompt, and blocks for the rest as far as there are any.
    fn start(&mut self, salt: usize, tokens: Vec<TokenId>, max: usize) -> usize {
        let name = self.salts[salt].clone();
        let mut found = self.cache.match_prefix(name.as_ref(), &tokens, max);
        let known = found.blocks().len();
        let loaded = (self.cache).load_behind(&mut found, name.as_ref(), &tokens, max);
        let mut blocks = found.into_blocks();
        assert_eq!(blocks.len(), known + loaded);
        let found = blocks.len();
        while (blocks.len() + 1) * BLOCK <= tokens.len() {
            let Some(block) = self.cache.allocate(Reclaim::Evict) else {
                break;
            };
            blocks.push(block);
        }
        self.running.push(Running {
            salt,
            tokens,
            blocks,
            found,
            computed: false,
        });
        self.cache.check();
        found
    }

    /// Makes the copies that are due, and computes what running requests have not computed.
    fn step(&mut self) {
        let copies = self.cache.take_copies();
        for KvStore { from, to } in copies.stores {
            self.host[to.index()] = self.device[from.index()].clone();
        }
        for KvLoad { from, to } in copies.loads {
            self.device[to.index()] = self.host[from.index()].clone();
        }
        for request in &mut self.running {
            for (i, block) in request.blocks.iter().enumerate() {
                let expected = prefix(request.salt, &request.tokens, i + 1);
                let held = &mut self.device[block.index()];
                if i >= request.found && !request.computed {
                    *held = expected;
                } else {
                    assert_eq!(*held, expected, "block {block}");
                }
            }
            request.computed = true;
        }
        self.cache.check();
    }

    /// Ends a request, whose blocks are published if it was computed.
    fn finish(&mut self, at: usize) {
        let request = self.running.remove(at);
        let (found, mut blocks) = (request.found, request.blocks);
        if request.computed {
            let span = &request.tokens[found * BLOCK..blocks.len() * BLOCK];
            let parent = found.checked_sub(1).map(|last| blocks[last]);
            let salt = self.salts[request.salt].as_ref();
            (self.cache).publish(salt, parent, span, &mut blocks[found..]);
            let ends = found + 1..=blocks.len();
            self.published
                .extend(ends.map(|end| prefix(request.salt, &request.tokens, end)));
        }
        self.cache.release_all(blocks);
        self.cache.check();
    }

    /// Computes a prompt from start to end.
    fn compute(&mut self, tokens: &[TokenId]) -> usize {
        let found = self.start(0, tokens.to_vec(), tokens.len());
        self.step();
        self.finish(self.running.len() - 1);
        found
    }
}

#[test]
fn an_evicted_prefix_comes_back() {
    let mut world = World::new(2, 4);
    assert_eq!(world.compute(&[1, 2, 3, 4]), 0);
    assert_eq!(world.compute(&[5, 6, 7, 8]), 0);
    assert_eq!(world.compute(&[1, 2, 3, 4, 9]), 2);
    assert_eq!(world.compute(&[5, 6, 9, 9]), 1);
    assert_eq!(world.cache.loaded_blocks(), 3);
    // What comes back stays stored: its eviction copies nothing.
    assert_eq!(
        (world.cache.stored_blocks(), world.cache.host_blocks()),
        (4, 4)
    );
}

#[test]
fn host_memory_drops_the_ends_of_prompts_first() {
    let mut world = World::new(2, 3);
    world.compute(&[1, 2, 3, 4]);
    world.compute(&[5, 6, 7, 8]);
    world.compute(&[9, 9, 9, 9]);
    // Four blocks were evicted and three are stored: all but the end of the oldest prompt.
    assert_eq!(world.compute(&[1, 2, 3, 4]), 1);
}

#[test]
fn without_host_memory_nothing_is_copied() {
    let mut world = World::new(2, 0);
    world.compute(&[1, 2, 3, 4]);
    world.compute(&[5, 6, 7, 8]);
    assert_eq!(world.compute(&[1, 2, 3, 4]), 0);
    assert!(world.cache.take_copies().is_empty());
}

#[test]
fn salts_share_nothing_in_host_memory() {
    let mut world = World::new(1, 4);
    world.compute(&[1, 2]);
    world.compute(&[3, 4]);
    assert_eq!(world.start(1, vec![1, 2], 2), 0);
    world.finish(0);
    assert_eq!(world.start(0, vec![1, 2], 2), 1);
}

#[derive(Clone, Debug)]
enum Op {
    Start {
        salt: usize,
        tokens: Vec<TokenId>,
        max: usize,
    },
    Step,
    Finish(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let start = (0..2usize, prop::collection::vec(0u32..2, 0..10), 0..10usize)
        .prop_map(|(salt, tokens, max)| Op::Start { salt, tokens, max });
    let op = prop_oneof![
        3 => start,
        3 => Just(Op::Step),
        3 => (0..4usize).prop_map(Op::Finish),
    ];
    prop::collection::vec(op, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    /// Every block that a request finds holds its prefix once the copies are made. With room for
    /// all, nothing that was published is ever computed again while there are blocks to load it
    /// into. With more host blocks than blocks, no stored block lies behind one that is lost.
    #[test]
    fn found_blocks_hold_their_prefixes(ops in ops(), blocks in 1..10u32, host in 0..14u32, ample: bool) {
        let host = if ample { 500 } else { host };
        let mut world = World::new(blocks, host);
        for op in ops {
            match op {
                Op::Start { salt, tokens, max } => {
                    let whole = max.min(tokens.len()) / BLOCK;
                    let known = (1..=whole)
                        .take_while(|&n| world.published.contains(&prefix(salt, &tokens, n)))
                        .count();
                    let found = world.start(salt, tokens, max);
                    prop_assert!(found <= known);
                    if ample && found < known {
                        prop_assert_eq!(world.cache.available_blocks(), 0);
                    }
                }
                Op::Step => world.step(),
                Op::Finish(at) if at < world.running.len() => world.finish(at),
                Op::Finish(_) => {}
            }
            world.read_events();
            if host > blocks {
                let orphans = world.cache.orphans();
                prop_assert_eq!(orphans, 0);
            }
        }
        world.step();
    }
}
