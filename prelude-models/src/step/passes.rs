//! Passes that are computed in slices: their room, and those that have begun.

use std::collections::BTreeMap;

use prelude_core::{
    Attention, Capacity, ExecutorError, ForwardBatch, PassCapacity, PassId, PassSlice,
};

use super::{StepLayout, VectorSizes};
use crate::ModelConfig;

/// Most passes that have begun and not ended.
const MAX_PASSES: u32 = 4;

/// Most output positions of a pass.
const MAX_OUTPUTS: u32 = 256;

/// Returns the room for passes of `tokens` tokens together, in slices of `slice_ms` milliseconds:
/// one long pass, or several shorter ones. `None` for no tokens, and for a model whose attention sees
/// whole prompts, which go through all layers at once.
///
/// # Panics
/// If the model has 2³² layers, which its configuration rules out.
#[must_use]
pub fn pass_capacity(model: &ModelConfig, tokens: u32, slice_ms: u32) -> Option<PassCapacity> {
    (tokens > 0 && model.attention == Attention::Causal).then(|| PassCapacity {
        layers: u32::try_from(model.num_hidden_layers).expect("the config bounds the layers"),
        tokens,
        passes: MAX_PASSES,
        outputs: MAX_OUTPUTS,
        slice_ms,
    })
}

/// Returns the size of what all passes together hold at most. `room_of` returns the size of a pass by
/// the most tokens and output positions that it has, in any unit: a part in proportion to the tokens,
/// and a part that grows up to `chunk_tokens` tokens at most.
#[must_use]
pub fn passes_room(
    passes: &PassCapacity,
    chunk_tokens: u32,
    room_of: impl Fn(usize, usize) -> usize,
) -> usize {
    let (tokens, outputs) = (passes.tokens as usize, passes.outputs as usize);
    // From so many tokens on, only the part in proportion to the tokens grows.
    let grown = 2 * outputs.max(chunk_tokens as usize);
    let others = passes.passes as usize - 1;
    if tokens <= grown {
        return (others + 1) * room_of(tokens, outputs);
    }
    // Tokens are counted once, whichever passes have them; what does not follow from them is counted for
    // each pass. One token more stands for what tensors of fewer tokens are rounded up by.
    let of_tokens = grown * ((room_of(2 * grown, outputs) - room_of(grown, outputs)) / grown);
    let of_each = room_of(grown, outputs) + room_of(1, outputs) - of_tokens;
    room_of(tokens, outputs) + others * of_each
}

/// A pass that has begun, and what an executor holds for it.
#[derive(Debug)]
pub struct Pass<P> {
    /// The whole pass.
    pub layout: StepLayout,
    /// The executor's own part.
    pub held: P,
}

/// The passes that have begun and not ended.
#[derive(Debug)]
pub struct Passes<P> {
    live: BTreeMap<PassId, Pass<P>>,
}

impl<P> Default for Passes<P> {
    fn default() -> Self {
        Self {
            live: BTreeMap::new(),
        }
    }
}

impl<P> Passes<P> {
    /// Drops the passes that are given up, and lays out the slice's pass if this is its first
    /// slice, for the executor to [`Passes::put`] it. The slice has been validated.
    ///
    /// # Errors
    /// [`ExecutorError::Step`] for a pass that there is no room for.
    pub fn lay_out(
        &mut self,
        slice: &mut PassSlice,
        capacity: &Capacity,
        sizes: VectorSizes,
    ) -> Result<Option<StepLayout>, ExecutorError> {
        for pass in &slice.abandoned {
            self.live.remove(pass);
        }
        let Some(batch) = slice.begin.take() else {
            return Ok(None);
        };
        let held: usize = self.live.values().map(|p| p.layout.tokens.len()).sum();
        let (live, tokens) = (self.live.len(), batch.tokens.len());
        let has_room = capacity.passes.is_some_and(|room| {
            held + tokens <= room.tokens as usize && live < room.passes as usize
        });
        if !has_room {
            let what = format!(
                "pass {} of {tokens} tokens has no room beside {live} passes of {held} tokens",
                slice.pass
            );
            return Err(ExecutorError::Step(what));
        }
        let mut layout = StepLayout::default();
        layout.rebuild(ForwardBatch::OneShot(batch), capacity.block_size, |_, _| {
            None
        })?;
        layout.refuse_invalid_rows(capacity.vocab_size, sizes);
        Ok(Some(layout))
    }

    /// Adds a pass that begins, or one that goes on.
    pub fn put(&mut self, id: PassId, pass: Pass<P>) {
        self.live.insert(id, pass);
    }

    /// Takes the slice's pass out, to compute the slice.
    ///
    /// # Errors
    /// [`ExecutorError::Step`] for a pass that has not begun or is over.
    pub fn take(&mut self, slice: &PassSlice) -> Result<Pass<P>, ExecutorError> {
        let Some(mut pass) = self.live.remove(&slice.pass) else {
            let what = format!("pass {} has not begun or is over", slice.pass);
            return Err(ExecutorError::Step(what));
        };
        if !slice.keeps {
            pass.layout.keep_nothing();
        }
        Ok(pass)
    }

    /// The executor's state of each pass, in the order in which they began.
    pub fn held_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.live.values_mut().map(|pass| &mut pass.held)
    }
}
