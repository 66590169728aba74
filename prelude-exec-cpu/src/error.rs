//! Errors of the executor.

use thiserror::Error;

/// The reason why an executor cannot be made, or a step cannot run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting out of range.
    #[error("`{field}` {what}")]
    Config {
        /// The field of [`crate::CpuConfig`].
        field: &'static str,
        /// The rule that is broken, with the values.
        what: String,
    },
    /// Instructions were asked for that this machine lacks.
    #[error("this machine has no {isa} instructions; leave `path` unset to use what it has")]
    Instructions {
        /// The family.
        isa: &'static str,
    },
    /// The plan exceeds the limit.
    #[error(
        "the model needs {total_bytes} bytes (weights {weights_bytes}, KV blocks {kv_bytes}, \
         activations {arena_bytes}, scratch {scratch_bytes}), over the limit of {limit_bytes}; \
         lower `kv_bytes`, `max_step_tokens` or `max_context_len`, or raise the limit"
    )]
    Memory {
        /// The sum of all parts.
        total_bytes: u64,
        /// Weights.
        weights_bytes: u64,
        /// KV blocks.
        kv_bytes: u64,
        /// Activations of the largest step.
        arena_bytes: u64,
        /// Buffers of kernels and heads.
        scratch_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The system refused memory.
    #[error("the system refused {bytes} bytes for {what}")]
    Allocation {
        /// The purpose of the memory, and a remedy.
        what: &'static str,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A weight that does not fit its use.
    #[error("{name}: {what}")]
    Weight {
        /// The weight's name in the checkpoint.
        name: String,
        /// The rule that is broken, with the values.
        what: String,
    },
    /// The model cannot be read or is not one that Prelude knows.
    #[error(transparent)]
    Model(#[from] prelude_models::Error),
    /// A step asked for more activations than the arena holds.
    #[error(transparent)]
    Arena(#[from] prelude_models::step::ArenaFull),
}

impl Error {
    pub(crate) fn config(field: &'static str, what: impl Into<String>) -> Self {
        Self::Config {
            field,
            what: what.into(),
        }
    }

    pub(crate) fn weight(name: &str, what: impl Into<String>) -> Self {
        Self::Weight {
            name: name.to_owned(),
            what: what.into(),
        }
    }
}
