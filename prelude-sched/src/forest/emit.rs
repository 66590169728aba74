//! The forest as segments of a batch, and which of them are kept in KV blocks.

use std::{ops::Range, sync::Arc};

use prelude_core::{BlockId, BlockSpan, OneShotBatch, Residency, Segment, SegmentIdx, TokenId};
use prelude_kv::{BlockHash, KvCache, Reclaim};

use super::{Forest, Joined, Row, length};
use crate::length::length_of;

/// Blocks that a segment fills, to be published when its step has completed.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The row for which they are computed, in the order of [`Forest::add`].
    pub(crate) row: usize,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) after: After,
    /// A prompt, and which of its positions are in `blocks`.
    pub(crate) source: Arc<[TokenId]>,
    pub(crate) positions: Range<usize>,
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) hashes: Vec<BlockHash>,
}

/// What precedes kept blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// This block, held by the step; or nothing.
    Cached(Option<BlockId>),
    /// The last block of this earlier entry.
    Kept(usize),
}

/// Which segments are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepRule {
    pub(crate) enabled: bool,
    pub(crate) suffixes: bool,
    pub(crate) shared_min_rows: u32,
}

/// Who would find a node's beginning in the cache, were it kept.
#[derive(Clone, Copy, Debug, Default)]
struct Readers {
    /// Rows of this step, or waiting for room, of whose prompts it is a prefix.
    rows: u32,
    /// Positions before this one serve one of them.
    until: u32,
}

/// The forest as a batch.
#[derive(Debug, Default)]
pub(crate) struct Emitted {
    /// Where each row's prompt ends and what it cost, in the order of [`Forest::add`].
    pub(crate) rows: Vec<(SegmentIdx, Joined)>,
    pub(crate) kept: Vec<Kept>,
    /// Blocks of the roots, held until the step has completed.
    pub(crate) pins: Vec<BlockId>,
}

impl Forest {
    /// Appends the forest to a batch, taking blocks for what is to be kept.
    pub(crate) fn emit(
        mut self,
        batch: &mut OneShotBatch,
        cache: &mut KvCache,
        rule: KeepRule,
    ) -> Emitted {
        if self.out_of_order {
            self = self.in_order();
        }
        let wanted = self.wanted();
        let ends = self.row_ends();
        let order = self.preorder();
        let rows = ends.iter().zip(&self.rows);
        let rows = rows.map(|(&node, row)| (node, row.needed));
        let readers = self.readers(rows.chain(wanted), &order);
        let mut emitted = Emitted::default();
        let spans: Vec<BlockSpan> = self
            .roots
            .iter()
            .map(|r| push_blocks(batch, &r.cached.blocks))
            .collect();
        let mut segment_of = vec![SegmentIdx(0); self.nodes.len()];
        let mut kept_of: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for node in order {
            let here = &self.nodes[node];
            let Some(parent) = here.parent else {
                continue;
            };
            let is_root = self.nodes[parent].parent.is_none();
            let residency =
                match self.keep(node, &kept_of, readers[node], &emitted.kept, cache, rule) {
                    Some(kept) => {
                        let span = push_blocks(batch, &kept.blocks);
                        kept_of[node] = Some(emitted.kept.len());
                        emitted.kept.push(kept);
                        Residency::Keep(span)
                    }
                    None => Residency::Transient,
                };
            segment_of[node] = SegmentIdx(length_of(batch.segments.len()));
            let first = length_of(batch.tokens.len());
            batch
                .tokens
                .extend_from_slice(&here.source[here.start as usize..here.end as usize]);
            batch.segments.push(Segment {
                tokens: first..length_of(batch.tokens.len()),
                parent: (!is_root).then(|| segment_of[parent]),
                context_len: here.start,
                cached: if is_root {
                    spans[here.root]
                } else {
                    BlockSpan::EMPTY
                },
                residency,
            });
        }
        let rows = ends.iter().zip(&self.rows);
        emitted.rows = rows
            .map(|(&node, row)| (segment_of[node], row.joined))
            .collect();
        emitted.pins = self.pins;
        emitted
    }

    /// Takes blocks for a node if it should be kept: whole blocks from its start, which must
    /// follow kept or cached blocks without a gap.
    fn keep(
        &self,
        node: usize,
        kept_of: &[Option<usize>],
        readers: Readers,
        kept: &[Kept],
        cache: &mut KvCache,
        rule: KeepRule,
    ) -> Option<Kept> {
        let here = &self.nodes[node];
        if !rule.enabled || !here.start.is_multiple_of(self.block_size) {
            return None;
        }
        let reclaim = if readers.rows >= rule.shared_min_rows {
            Reclaim::Evict
        } else if rule.suffixes && readers.rows > 0 {
            Reclaim::Never
        } else {
            return None;
        };
        let root = &self.roots[here.root];
        let parent = here.parent.expect("a root is not a segment");
        let (after, mut hash) = match kept_of[parent] {
            _ if parent == root.node => (
                After::Cached(root.cached.blocks.last().copied()),
                root.cached.hash,
            ),
            Some(above) if kept[above].positions.end == here.start as usize => {
                let last = kept[above]
                    .hashes
                    .last()
                    .expect("a kept segment has a block");
                (After::Kept(above), *last)
            }
            _ => return None,
        };
        let block_size = self.block_size as usize;
        let (start, end) = (here.start as usize, here.end.min(readers.until) as usize);
        let most = end.saturating_sub(start) / block_size;
        let mut blocks = Vec::with_capacity(most);
        let mut hashes = Vec::with_capacity(most);
        while start + (blocks.len() + 1) * block_size <= end {
            let Some(block) = cache.allocate(reclaim) else {
                break;
            };
            let first = start + blocks.len() * block_size;
            hash = hash.then(&here.source[first..first + block_size]);
            hashes.push(hash);
            blocks.push(block);
        }
        if blocks.is_empty() {
            return None;
        }
        let positions = start..start + blocks.len() * block_size;
        let (salt, source) = (root.salt.clone(), here.source.clone());
        Some(Kept {
            row: here.owner,
            salt,
            after,
            source,
            positions,
            blocks,
            hashes,
        })
    }

    /// The node in which each row's prompt ends.
    fn row_ends(&self) -> Vec<usize> {
        let climb = |row: &Row| {
            let (mut node, end) = (row.node, length(&row.tokens));
            while end <= self.nodes[node].start {
                node = self.nodes[node]
                    .parent
                    .expect("a prompt ends below its root");
            }
            node
        };
        self.rows.iter().map(climb).collect()
    }

    /// Parents before children, trees one after the other, older children first.
    fn preorder(&self) -> Vec<usize> {
        let mut children = vec![Vec::new(); self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(parent) = node.parent {
                children[parent].push(i);
            }
        }
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut open: Vec<usize> = self.roots.iter().rev().map(|r| r.node).collect();
        while let Some(node) = open.pop() {
            order.push(node);
            open.extend(children[node].iter().rev());
        }
        order
    }

    /// Of each node, the rows of which it is a prefix and which could have read a block of it from
    /// the cache; `ends` is where each row's prompt ends, and the first position that the row needs.
    ///
    /// The last token is always computed, but a prompt that goes on behind it reads it: so the
    /// block that ends with it counts.
    fn readers(&self, ends: impl Iterator<Item = (usize, u32)>, order: &[usize]) -> Vec<Readers> {
        let mut readers = vec![Readers::default(); self.nodes.len()];
        for (mut node, needed) in ends {
            let until = needed + 1;
            while self.nodes[node].start + self.block_size > until {
                match self.nodes[node].parent {
                    Some(parent) => node = parent,
                    None => break,
                }
            }
            let here = &mut readers[node];
            here.rows += 1;
            here.until = here.until.max(until);
        }
        for &node in order.iter().rev() {
            if let Some(parent) = self.nodes[node].parent {
                let Readers { rows, until } = readers[node];
                readers[parent].rows += rows;
                readers[parent].until = readers[parent].until.max(until);
            }
        }
        readers
    }
}

/// Appends blocks to a batch's list.
pub(crate) fn push_blocks(batch: &mut OneShotBatch, blocks: &[BlockId]) -> BlockSpan {
    let start = length_of(batch.block_ids.len());
    batch.block_ids.extend_from_slice(blocks);
    BlockSpan {
        start,
        len: length_of(blocks.len()),
    }
}
