//! The meaning of a batch, token by token: the naive twin of `step::StepLayout`.

use std::ops::Range;

use prelude_core::{BlockId, ForwardBatch, OneShotBatch, Residency, TokenId, TokenSource};

/// The source of one position's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KvOrigin {
    /// An offset in a block, written by an earlier step.
    Pool(BlockId, u32),
    /// A token of this step.
    Token(usize),
}

/// A token of a step.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) id: TokenId,
    pub(crate) position: usize,
    /// Sources of positions `0..=position`; the last is the token itself.
    pub(crate) context: Vec<KvOrigin>,
    /// The first token of the token's segment, and the token after the last one.
    pub(crate) segment: Range<usize>,
    /// The place in which the token's keys and values are kept.
    pub(crate) kept: Option<(BlockId, u32)>,
}

/// Returns all tokens of a batch: one-shot, prefill, decode.
pub(crate) fn lay_out(batch: &ForwardBatch, block_size: u32) -> Vec<Token> {
    let (oneshot, prefill, decode) = batch.parts();
    let mut tokens = Vec::new();
    for forest in [oneshot, prefill] {
        add_forest(forest, block_size, &mut tokens);
    }
    for row in &decode.rows {
        let TokenSource::Known(id) = row.token else {
            unreachable!("cases know their tokens");
        };
        let blocks = row.blocks.of(&decode.block_ids);
        let mut context = cached(blocks, row.context_len, block_size);
        context.push(KvOrigin::Token(tokens.len()));
        tokens.push(Token {
            id,
            position: row.context_len as usize,
            context,
            segment: tokens.len()..tokens.len() + 1,
            kept: Some(place(blocks, row.context_len, 0, block_size)),
        });
    }
    tokens
}

fn add_forest(forest: &OneShotBatch, block_size: u32, tokens: &mut Vec<Token>) {
    let first = tokens.len();
    for segment in &forest.segments {
        let mut context = match segment.parent {
            None => cached(
                segment.cached.of(&forest.block_ids),
                segment.context_len,
                block_size,
            ),
            Some(parent) => {
                let last = forest.segments[parent.index()].tokens.end as usize - 1;
                tokens[first + last].context.clone()
            }
        };
        for (position, at) in (segment.context_len..segment.end()).zip(segment.tokens.clone()) {
            context.push(KvOrigin::Token(tokens.len()));
            let kept = match segment.residency {
                Residency::Transient => None,
                Residency::Keep(span) => {
                    let blocks = span.of(&forest.block_ids);
                    let base = segment.context_len / block_size;
                    let covered = position / block_size - base < span.len;
                    covered.then(|| place(blocks, position, base, block_size))
                }
            };
            tokens.push(Token {
                id: forest.tokens[at as usize],
                position: position as usize,
                context: context.clone(),
                segment: first + segment.tokens.start as usize..first + segment.tokens.end as usize,
                kept,
            });
        }
    }
}

/// Sources of positions `0..len` of a block table.
fn cached(blocks: &[BlockId], len: u32, block_size: u32) -> Vec<KvOrigin> {
    (0..len)
        .map(|position| {
            let (block, offset) = place(blocks, position, 0, block_size);
            KvOrigin::Pool(block, offset)
        })
        .collect()
}

/// Returns the block and the offset of a position, `blocks[0]` being the block number `base` of its
/// sequence.
fn place(blocks: &[BlockId], position: u32, base: u32, block_size: u32) -> (BlockId, u32) {
    let block = blocks[(position / block_size - base) as usize];
    (block, position % block_size)
}
