//! The interface of a model to an executor.

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
    /// Returns true if the step is complete. Between two slices, the tensors of `state` and the
    /// step's keys and values of one layer must stay as they are.
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
    pub(crate) tensors: Option<ForwardTensors<T>>,
}

impl<T> Default for ForwardState<T> {
    fn default() -> Self {
        Self {
            layer_tokens: 0,
            tensors: None,
        }
    }
}

/// The tensors of a step, allocated when it begins.
#[derive(Debug)]
pub(crate) struct ForwardTensors<T> {
    /// Hidden states of all tokens.
    pub(crate) h: T,
    pub(crate) chunk: ChunkTensors<T>,
    /// What the output positions attended to in the last layer, if that layer computes nothing else
    /// of the other positions.
    pub(crate) attended: Option<T>,
}

/// Intermediates of one chunk of tokens.
#[derive(Debug)]
pub(crate) struct ChunkTensors<T> {
    pub(crate) x: T,
    pub(crate) qkv: T,
    pub(crate) attn: T,
    pub(crate) gate_up: T,
    pub(crate) act: T,
}
