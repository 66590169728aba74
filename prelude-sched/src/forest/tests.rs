use std::collections::{BTreeMap, BTreeSet};

use prelude_core::{
    Capacity, ForwardBatch, OneShotBatch, OutputHead, OutputRow, PromptTree, SegmentIdx, TokenId,
};
use prelude_kv::Reclaim;
use proptest::prelude::*;

use super::{emit::Emitted, *};
use crate::prompts::{Found, Prompts};

const CAPACITY: Capacity = Capacity {
    block_size: 4,
    num_blocks: 64,
    max_step_tokens: 4096,
    full_step_tokens: 2048,
    max_context_len: 1024,
    vocab_size: 100,
    pipeline_depth: 1,
    passes: None,
    attention: Attention::Causal,
    host_blocks: 0,
};
/// A prompt, its salt, and how much of it may be read from the cache.
type Row = (Vec<TokenId>, Option<Arc<str>>, usize);

/// Builds the step of rows that are requests of one prompt each.
fn build(rows: &[Row], cache: &mut KvCache) -> (OneShotBatch, Emitted, u32) {
    build_trees(rows.iter().map(single).collect(), cache)
}

/// Makes a request of one row.
fn single((tokens, salt, limit): &Row) -> (Option<Arc<str>>, Vec<(NodeIdx, usize)>, PromptTree) {
    let tree = PromptTree::single(tokens.clone());
    (salt.clone(), vec![(tree.last_node(), *limit)], tree)
}

/// A request: its salt, its rows with how much of each may be read from the cache, its prompts.
type Trees = Vec<(Option<Arc<str>>, Vec<(NodeIdx, usize)>, PromptTree)>;

/// Builds the step of all rows of some requests, one request after the other.
fn build_trees(requests: Trees, cache: &mut KvCache) -> (OneShotBatch, Emitted, u32) {
    build_with_room(requests, 0, cache)
}

/// Builds a step that may compute up to `room` tokens twice.
fn build_with_room(
    requests: Trees,
    room: u32,
    cache: &mut KvCache,
) -> (OneShotBatch, Emitted, u32) {
    let mut forest = Forest::new(CAPACITY.block_size, CAPACITY.attention);
    let mut ends = Vec::new();
    for (serial, (salt, rows, tree)) in (0..).zip(requests) {
        let block_size = cache.block_size();
        let mut prompts = Prompts::new(serial, salt, tree, block_size);
        for (node, limit) in rows {
            let needed = u32::try_from(limit).unwrap();
            let cached = prompts.find(node, needed, cache, &mut Found::default());
            let prompt = prompts.prompt(node, cached);
            let before = forest.num_tokens();
            let spot = forest.probe(prompt);
            forest.add(prompt, spot, needed, cache);
            assert_eq!(forest.num_tokens() - before, spot.new_tokens);
            ends.push(prompt.count());
        }
    }
    let promised = forest.num_tokens();
    let mut batch = OneShotBatch::default();
    let emitted = forest.emit(&mut batch, cache, true, room);
    let tokens = length_of(batch.tokens.len());
    assert!(tokens <= promised + room);
    let computed: u32 = emitted.rows.iter().map(|(_, joined)| joined.computed).sum();
    assert_eq!(computed, tokens);
    for (&end, &(segment, joined)) in ends.iter().zip(&emitted.rows) {
        assert_eq!(joined.cached + joined.shared + joined.computed, end);
        let head = OutputHead::Classify;
        batch.rows.push(OutputRow {
            segment,
            positions: end - 1..end,
            head,
        });
    }
    ForwardBatch::OneShot(batch.clone())
        .validate(&CAPACITY)
        .unwrap();
    (batch, emitted, tokens)
}

/// The tokens along the path of a segment and the position where they start.
fn spell(batch: &OneShotBatch, segment: SegmentIdx) -> (u32, Vec<TokenId>, Vec<BlockId>) {
    let here = &batch.segments[segment.index()];
    let own = &batch.tokens[here.tokens.start as usize..here.tokens.end as usize];
    match here.parent {
        None => (
            here.context_len,
            own.to_vec(),
            here.cached.of(&batch.block_ids).to_vec(),
        ),
        Some(parent) => {
            let (start, mut tokens, blocks) = spell(batch, parent);
            tokens.extend_from_slice(own);
            (start, tokens, blocks)
        }
    }
}

fn release(cache: &mut KvCache, emitted: Emitted) {
    cache.release_all(emitted.kept.blocks);
    cache.release_all(emitted.pins);
    cache.check();
}

fn prompt(shared: u32, own: u32, id: u32) -> Vec<TokenId> {
    (0..shared)
        .map(|t| t % 50)
        .chain((0..own).map(|t| 50 + (t * 7 + id) % 50))
        .collect()
}

#[test]
fn a_shared_prompt_with_64_suffixes_is_computed_once() {
    let mut cache = KvCache::new(64, 4);
    let suffixed = |id: u32| [prompt(30, 0, 0), vec![36 + id]].concat();
    let rows: Vec<Row> = (0..64).map(|id| (suffixed(id), None, 30)).collect();
    let (batch, emitted, tokens) = build(&rows, &mut cache);
    assert_eq!(tokens, 30 + 64);
    assert_eq!(batch.segments.len(), 65);
    // Seven whole blocks of the 30 shared tokens; the suffixes start inside the eighth.
    assert_eq!(emitted.kept.segments.len(), 1);
    assert_eq!(emitted.kept.blocks.len(), 7);
    release(&mut cache, emitted);
}

#[test]
fn a_suffix_seen_once_evicts_nothing_and_what_is_shared_or_returns_does() {
    let mut cache = KvCache::new(3, 4);
    // Fill the pool with cached blocks.
    let mut blocks: Vec<BlockId> = (0..3)
        .map(|_| cache.allocate(Reclaim::Never).unwrap())
        .collect();
    cache.publish(None, None, &[9; 12], &mut blocks);
    cache.release_all(blocks);
    let mut kept = |ids: &[u32]| {
        let row = |&id: &u32| (prompt(8, 8, id), None, 15);
        let rows: Vec<Row> = ids.iter().map(row).collect();
        let (_, emitted, _) = build(&rows, &mut cache);
        let n = emitted.kept.blocks.len();
        release(&mut cache, emitted);
        n
    };
    assert_eq!(kept(&[1]), 0);
    // Two shared blocks by eviction; then nothing is free for the suffixes.
    assert_eq!(kept(&[2, 3]), 2);
    // What was evicted is free now, and a suffix may use it.
    assert_eq!(kept(&[4]), 2);
    // The first prompt returns a second time, and takes all that there is.
    assert_eq!(kept(&[1]), 2);
    assert_eq!(kept(&[1]), 3);
}

#[test]
fn a_row_that_needs_the_whole_prompt_computes_it_and_others_join() {
    let mut cache = KvCache::new(64, 4);
    let long = prompt(20, 0, 0);
    let mut blocks: Vec<BlockId> = (0..4)
        .map(|_| cache.allocate(Reclaim::Never).unwrap())
        .collect();
    cache.publish(None, None, &long[..16], &mut blocks);
    cache.release_all(blocks);
    // The first must compute from 0; the second finds 16 tokens cached, but 20 computed.
    let rows = [(long.clone(), None, 0), (prompt(20, 2, 1), None, 21)];
    let (_, emitted, tokens) = build(&rows, &mut cache);
    assert_eq!(tokens, 22);
    release(&mut cache, emitted);
    let rows = [(prompt(20, 2, 1), None, 21), (long.clone(), None, 0)];
    let (_, emitted, tokens) = build(&rows, &mut cache);
    assert_eq!(tokens, 22, "in any order");
    release(&mut cache, emitted);
    // Also if its root is there already, thanks to an unrelated prompt (found by proptest).
    let other = (vec![99], None, 0);
    let rows = [(prompt(20, 2, 1), None, 21), other, (long.clone(), None, 0)];
    let (_, emitted, tokens) = build(&rows, &mut cache);
    assert_eq!(tokens, 23);
    release(&mut cache, emitted);
    // Where the cache holds more than the step computes, the cache is used.
    let rows = [(long[..10].to_vec(), None, 0), (prompt(20, 2, 1), None, 21)];
    let (batch, emitted, tokens) = build(&rows, &mut cache);
    assert_eq!(tokens, 10 + 6);
    assert_eq!(batch.segments[1].context_len, 16);
    release(&mut cache, emitted);
}

/// Prompts that part inside a block compute that block each, and keep what follows.
#[test]
fn prompts_that_part_inside_a_block_keep_what_follows() {
    let mut cache = KvCache::new(64, 4);
    // Two states after a template of 6 tokens, each with two questions.
    let rows: Vec<Row> = [(1, 1), (1, 2), (2, 1), (2, 2)]
        .map(|(state, question)| ([prompt(6, 20, state), vec![question; 3]].concat(), None, 28))
        .to_vec();
    let requests = || rows.iter().map(single).collect::<Vec<_>>();
    let (batch, emitted, tokens) = build_with_room(requests(), 4, &mut cache);
    // The template's last two tokens belong to a block of each state.
    assert_eq!(tokens, 6 + 2 * 20 + 4 * 3 + 2);
    let lens: Vec<_> = batch.segments.iter().map(|s| s.tokens.len()).collect();
    assert_eq!(lens, [4, 22, 3, 3, 22, 3, 3]);
    // One block of the template and five of each state, all but its last two tokens.
    assert_eq!(emitted.kept.blocks.len(), 1 + 2 * 5);
    release(&mut cache, emitted);
    // With room for one, one state is kept, and the other begins where the template ends.
    let (batch, emitted, tokens) = build_with_room(requests(), 2, &mut cache);
    assert_eq!(tokens, 6 + 2 * 20 + 4 * 3 + 2);
    let starts: Vec<_> = batch.segments.iter().map(|s| s.context_len).collect();
    assert_eq!(starts, [0, 4, 4, 26, 26, 6, 26, 26]);
    assert_eq!(emitted.kept.blocks.len(), 1 + 5);
    release(&mut cache, emitted);
}

/// Makes one request of rows with one salt.
fn shared(rows: &[Row]) -> (Option<Arc<str>>, Vec<(NodeIdx, usize)>, PromptTree) {
    let prompts: Vec<_> = rows.iter().map(|(tokens, ..)| tokens).collect();
    let (tree, ends) = PromptTree::from_prompts(&prompts).unwrap();
    let limits = rows.iter().map(|(_, _, limit)| *limit);
    (
        rows[0].1.clone(),
        ends.into_iter().zip(limits).collect(),
        tree,
    )
}

/// A request whose tree has a chain of nodes is laid out like one whose tree has one node.
#[test]
fn prompt_trees_cut_no_segment() {
    let whole = prompt(30, 10, 1);
    let mut tree = PromptTree::new();
    let mut parent = None;
    for piece in whole.chunks(7) {
        parent = Some(tree.push(parent, piece.to_vec()).unwrap());
    }
    let chain = (None, vec![(tree.last_node(), 39)], tree);
    let single: Row = (whole, None, 39);
    let mut cache = KvCache::new(64, 4);
    let (batch, emitted, _) = build_trees(vec![chain], &mut cache);
    assert_eq!(batch.segments.len(), 1);
    release(&mut cache, emitted);
    let (other, emitted, _) = build(&[single], &mut cache);
    assert_eq!(
        (other.segments, other.tokens),
        (batch.segments, batch.tokens)
    );
    release(&mut cache, emitted);
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (prop::collection::vec(0u32..2, 1..20), 0..3usize, 0..20usize);
    let salts = [None, Some(Arc::from("a")), Some(Arc::from("b"))];
    let row = row.prop_map(move |(tokens, salt, limit)| {
        let limit = limit.min(tokens.len() - 1);
        (tokens, salts[salt].clone(), limit)
    });
    prop::collection::vec(row, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    /// Every row's path spells its prompt after a cached prefix whose blocks are the right
    /// ones, and no more is computed twice than there is room for: without a cache the tokens of
    /// the step are the distinct prefixes of its prompts, with one they are no more than that. Some
    /// steps come as a request for each prompt, some as one request whose tree shares what it can.
    #[test]
    fn is_the_trie_of_its_prompts(
        steps in prop::collection::vec((rows(), any::<bool>()), 1..5),
        room in prop_oneof![Just(0u32), 0..20u32],
    ) {
        let mut cache = KvCache::new(64, 4);
        // Block to what is in it.
        let mut contents: BTreeMap<BlockId, (Option<Arc<str>>, Vec<TokenId>)> = BTreeMap::new();
        for (i, (rows, in_trees)) in steps.iter().enumerate() {
            let mut rows = rows.clone();
            let (batch, emitted, tokens) = if *in_trees {
                rows.sort_by(|a, b| a.1.cmp(&b.1));
                let by_salt = rows.chunk_by(|a, b| a.1 == b.1);
                build_with_room(by_salt.map(shared).collect(), room, &mut cache)
            } else {
                build_with_room(rows.iter().map(single).collect(), room, &mut cache)
            };
            let prefixes: BTreeSet<_> = rows
                .iter()
                .flat_map(|(p, salt, _)| (1..=p.len()).map(move |n| (salt, &p[..n])))
                .collect();
            if i == 0 {
                prop_assert!(tokens as usize >= prefixes.len());
            }
            prop_assert!(tokens as usize <= prefixes.len() + room as usize);
            for ((prompt, salt, limit), &(segment, _)) in rows.iter().zip(&emitted.rows) {
                let (start, path, blocks) = spell(&batch, segment);
                let own = prompt.len() - start as usize;
                prop_assert_eq!(&path[..own], &prompt[start as usize..]);
                prop_assert!(start as usize <= *limit);
                for (b, block) in blocks.iter().enumerate() {
                    let (of, prefix) = &contents[block];
                    prop_assert_eq!(of, salt);
                    prop_assert_eq!(&prefix[..], &prompt[..(b + 1) * 4]);
                }
            }
            // What a completed step does.
            let mut kept = emitted.kept;
            for segment in &kept.segments {
                let parent = match segment.after {
                    After::Cached(block) => block,
                    After::Segment(above) => {
                        Some(kept.blocks[kept.segments[above].blocks.end - 1])
                    }
                };
                let (salt, span) = (segment.salt.as_ref(), segment.blocks.clone());
                let tokens = &kept.tokens[span.start * 4..span.end * 4];
                let (owner, ..) = &rows[segment.row];
                prop_assert_eq!(tokens, &owner[segment.before * 4..][..tokens.len()]);
                let n = cache.publish(salt, parent, tokens, &mut kept.blocks[span.clone()]);
                prop_assert_eq!(n, span.len());
                for (b, &block) in kept.blocks[span].iter().enumerate() {
                    let prefix = owner[..(segment.before + b + 1) * 4].to_vec();
                    contents.insert(block, (segment.salt.clone(), prefix));
                }
            }
            release(&mut cache, Emitted { kept, ..emitted });
        }
    }
}
