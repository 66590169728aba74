//! Random forests of prompts, and rows that read them.

use std::{ops::Range, sync::Arc};

use prelude_core::{
    BlockId, BlockSpan, Normalise, OneShotBatch, OutputHead, Pooling, Residency, SampleHead,
    SamplingParams, Segment, SegmentIdx, TokenHead,
};
use proptest::prelude::*;

use super::BLOCK;
use crate::testing::sample_head;

/// A node of a random forest: its parent, if any, is one of those before it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(super) parent: Option<prop::sample::Index>,
    pub(super) tokens: Vec<u32>,
    /// True if the node's K/V are kept where alignment allows.
    pub(super) keep: bool,
}

/// A random row: which node, which head, from where on the path.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) node: prop::sample::Index,
    pub(super) head: u8,
    pub(super) start: prop::sample::Index,
}

pub(super) fn tokens(len: Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..4096, len)
}

pub(crate) fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let lens = prop_oneof![3 => tokens(1..9), 2 => tokens(9..40), 1 => tokens(60..90)];
    let node = (
        prop::option::weighted(0.8, any::<prop::sample::Index>()),
        lens,
        any::<bool>(),
    )
        .prop_map(|(parent, tokens, keep)| Node {
            parent,
            tokens,
            keep,
        });
    prop::collection::vec(node, 1..7)
}

pub(crate) fn rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (
        any::<prop::sample::Index>(),
        0u8..8,
        any::<prop::sample::Index>(),
    )
        .prop_map(|(node, head, start)| Row { node, head, start });
    prop::collection::vec(row, 1..7)
}

/// Returns one of each kind of head, over positions that end at `end` and start at `first` or
/// later.
pub(crate) fn head(row: &Row, path: &[u32], first: u32) -> (Range<u32>, OutputHead) {
    let end = u32::try_from(path.len()).unwrap();
    let last = end - 1..end;
    let start = first + row.start.index((end - first) as usize) as u32;
    let labels = || Arc::from([5, path[path.len() / 2], path[0], 5]);
    match row.head {
        0 => (last, OutputHead::Sample(sample_head())),
        1 => {
            let sampling = SamplingParams {
                temperature: 1.5,
                top_p: 0.9,
                seed: 11,
                ..SamplingParams::default()
            };
            let head = SampleHead {
                sampling: Arc::new(sampling),
                draws: 3,
                ..sample_head()
            };
            (last, OutputHead::Sample(head))
        }
        2 => {
            let normalise = Normalise::OverLabels;
            let labels = labels();
            (last, OutputHead::LabelScores { labels, normalise })
        }
        3 => {
            let normalise = Normalise::OverVocab;
            let labels = labels();
            (last, OutputHead::LabelScores { labels, normalise })
        }
        4 => {
            let targets = path[start as usize..].to_vec();
            (start..end, OutputHead::Logprobs { targets, top: 3 })
        }
        5 => {
            let head = TokenHead::Embed {
                normalise: true,
                dimensions: Some(40),
            };
            (start..end, OutputHead::Tokens(head))
        }
        6 => {
            let at = (start..end).filter(|at| at % 3 == 1 || at + 1 == end);
            (start..end, OutputHead::States(at.collect()))
        }
        _ => {
            let head = OutputHead::Embed {
                pooling: Pooling::Mean,
                normalise: true,
                dimensions: Some(40),
            };
            (start..end, head)
        }
    }
}

/// Returns the forest as a batch whose roots start after `cached` tokens of `prefix` (all of which
/// lie in `prefix_blocks`), with kept segments in blocks from `next_block` on.
pub(crate) fn forest(
    nodes: &[Node],
    prefix: &[u32],
    prefix_blocks: &[BlockId],
    next_block: u32,
) -> (OneShotBatch, Vec<Vec<u32>>) {
    let mut batch = OneShotBatch {
        block_ids: prefix_blocks.to_vec(),
        ..OneShotBatch::EMPTY
    };
    let mut paths: Vec<Vec<u32>> = Vec::new();
    let mut next_block = next_block;
    for (i, node) in nodes.iter().enumerate() {
        let parent = node.parent.filter(|_| i > 0).map(|p| p.index(i));
        let context = parent.map_or_else(|| prefix.to_vec(), |p| paths[p].clone());
        let context_len = u32::try_from(context.len()).unwrap();
        let start = u32::try_from(batch.tokens.len()).unwrap();
        batch.tokens.extend(&node.tokens);
        let len = u32::try_from(node.tokens.len()).unwrap();
        let cached = BlockSpan {
            start: 0,
            len: context_len.div_ceil(BLOCK),
        };
        let blocks = len.div_ceil(BLOCK);
        let residency = if node.keep && context_len.is_multiple_of(BLOCK) {
            let first = u32::try_from(batch.block_ids.len()).unwrap();
            batch
                .block_ids
                .extend((next_block..next_block + blocks).map(BlockId));
            next_block += blocks;
            Residency::Keep(BlockSpan {
                start: first,
                len: blocks,
            })
        } else {
            Residency::Transient
        };
        batch.segments.push(Segment {
            tokens: start..start + len,
            parent: parent.map(|p| SegmentIdx(u32::try_from(p).unwrap())),
            context_len,
            cached: if parent.is_none() {
                cached
            } else {
                BlockSpan::EMPTY
            },
            residency,
        });
        paths.push([context, node.tokens.clone()].concat());
    }
    (batch, paths)
}
