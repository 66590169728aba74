//! The interface of a model to an executor.

use crate::Ops;

/// A model's weights on one device and the order in which its operations run.
pub trait Model<O: Ops>: Send + Sync {
    /// Runs one step: computes the hidden states of all tokens, places K and V, and runs every
    /// head the step asks for. Results are read from the device when the step is collected.
    ///
    /// # Errors
    /// The device's.
    fn forward(&self, ops: &mut O, inputs: &O::Inputs<'_>) -> Result<(), O::Error>;
}
