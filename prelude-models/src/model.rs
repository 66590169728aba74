//! The interface of a model to an executor.

use std::ops::Range;

use crate::Ops;

/// A model's weights on one device and the order in which its operations run.
pub trait Model<O: Ops>: Send + Sync {
    /// Runs one step: computes the hidden states of all tokens, places K and V, and runs every
    /// head the step asks for. Results are read from the device when the step is collected.
    ///
    /// # Errors
    /// The device's.
    fn forward(&self, ops: &mut O, inputs: &O::Inputs<'_>) -> Result<(), O::Error> {
        self.advance(ops, inputs, &mut ForwardState::default(), usize::MAX)?;
        Ok(())
    }

    /// Runs a slice of a step: at most `layer_tokens` more layer tokens, each token once for each
    /// layer, all tokens through one layer before the next; after the last of them, the heads.
    /// Returns true if the step is complete. Between two slices, what [`Ops::alloc_kept`] returned
    /// and the step's keys and values of one layer must stay as they are. Chunks are those of
    /// [`ForwardState::next_slice`].
    ///
    /// # Errors
    /// The device's; the step cannot go on then.
    fn advance(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        state: &mut ForwardState<O::Tensor>,
        layer_tokens: usize,
    ) -> Result<bool, O::Error>;
}

/// The state of a step between two slices of it. The default is a step that has not begun.
#[derive(Debug)]
pub struct ForwardState<T> {
    /// Layer tokens that have been computed.
    pub(crate) layer_tokens: usize,
    /// The tensors, once the step has begun.
    pub(crate) kept: Option<KeptTensors<T>>,
}

impl<T> Default for ForwardState<T> {
    fn default() -> Self {
        Self {
            layer_tokens: 0,
            kept: None,
        }
    }
}

impl<T> ForwardState<T> {
    /// Returns the work of the next slice of a step of `tokens` tokens: at most `layer_tokens`, in
    /// chunks of at most `chunk_tokens`.
    #[must_use]
    pub fn next_slice(
        &self,
        (tokens, layers): (usize, usize),
        chunk_tokens: usize,
        layer_tokens: usize,
    ) -> SliceWork {
        SliceWork::new(
            (tokens, layers),
            chunk_tokens,
            self.layer_tokens,
            layer_tokens,
        )
    }
}

/// The work of one slice of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceWork {
    /// Tokens of the step.
    tokens: usize,
    chunk_tokens: usize,
    /// Layer tokens that have been computed before the slice, and after it.
    done: Range<usize>,
    /// Layer tokens of the step.
    all: usize,
}

impl SliceWork {
    /// Returns a slice of at most `layer_tokens`, behind the first `done` layer tokens of a step of
    /// `tokens` tokens, in chunks of at most `chunk_tokens`.
    #[must_use]
    pub fn new(
        (tokens, layers): (usize, usize),
        chunk_tokens: usize,
        done: usize,
        layer_tokens: usize,
    ) -> Self {
        let all = tokens * layers;
        Self {
            tokens,
            chunk_tokens: chunk_tokens.max(1),
            done: done..done.saturating_add(layer_tokens).min(all),
            all,
        }
    }

    /// Returns the slice's chunks in the order in which they run: a layer, and a range of the
    /// step's tokens.
    pub fn chunks(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut done = self.done.clone();
        std::iter::from_fn(move || {
            if done.is_empty() {
                return None;
            }
            let (layer, start) = (done.start / self.tokens, done.start % self.tokens);
            let end = self.tokens.min(start + self.chunk_tokens);
            let rows = start..end.min(start + done.len());
            done.start += rows.len();
            Some((layer, rows))
        })
    }

    /// Returns true if the step begins with this slice.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.done.start == 0
    }

    /// Returns true if the step ends with this slice.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.done.end == self.all
    }

    /// Returns the layer tokens that have been computed after the slice.
    pub(crate) const fn end(&self) -> usize {
        self.done.end
    }
}

/// The tensors that stay from slice to slice, allocated when a step begins.
#[derive(Debug)]
pub(crate) struct KeptTensors<T> {
    /// Hidden states of all tokens.
    pub(crate) h: T,
    /// The vectors that the output positions attended to in the last layer, if that layer computes
    /// nothing else of the other positions.
    pub(crate) attended: Option<T>,
}

/// Intermediates of one chunk of tokens, allocated for a slice.
#[derive(Debug)]
pub(crate) struct ChunkTensors<T> {
    pub(crate) x: T,
    pub(crate) qkv: T,
    pub(crate) attn: T,
    pub(crate) gate_up: T,
    pub(crate) act: T,
    /// The room for a mixture of experts; `None` for other models.
    pub(crate) experts: Option<crate::ExpertRoom<T>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_every_layer_in_order() {
        for (tokens, layers, chunk_tokens) in [(10, 3, 4), (1, 5, 8), (7, 1, 7), (9, 2, 100)] {
            for sizes in [vec![1], vec![3], vec![11, 2], vec![usize::MAX]] {
                let mut state = ForwardState::<()>::default();
                let (mut seen, mut sizes) = (Vec::new(), sizes.iter().cycle());
                loop {
                    let size = *sizes.next().unwrap();
                    let slice = state.next_slice((tokens, layers), chunk_tokens, size);
                    assert_eq!(slice.is_first(), seen.is_empty());
                    let before = seen.len();
                    for (layer, rows) in slice.chunks() {
                        assert!(rows.len() <= chunk_tokens);
                        seen.extend(rows.map(|token| (layer, token)));
                    }
                    state.layer_tokens = slice.end();
                    if slice.is_last() {
                        break;
                    }
                    assert_eq!(seen.len() - before, size);
                }
                let all = (0..layers).flat_map(|layer| (0..tokens).map(move |t| (layer, t)));
                assert_eq!(seen, all.collect::<Vec<_>>());
            }
        }
    }
}
