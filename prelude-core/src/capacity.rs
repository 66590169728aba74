//! The limits of an executor.

use serde::{Deserialize, Serialize};

/// The limits of an executor: what it can hold and run. They are fixed while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// Token positions per KV block.
    pub block_size: u32,
    /// KV blocks in the pool: ids `0..num_blocks`.
    pub num_blocks: u32,
    /// Most tokens one step may compute.
    pub max_step_tokens: u32,
    /// The number of tokens from which on a larger step computes a token hardly faster.
    #[serde(default = "default_full_step_tokens")]
    pub full_step_tokens: u32,
    /// Longest sequence, in tokens.
    pub max_context_len: u32,
    /// Token ids are `0..vocab_size` (rows of the embedding matrix).
    pub vocab_size: u32,
    /// Steps that may be submitted before the first is collected, at least 1.
    pub pipeline_depth: u32,
    /// The room for passes that are computed in slices; `None` if the executor computes none.
    pub passes: Option<PassCapacity>,
    /// Blocks of host memory to which cached KV blocks may be copied: ids `0..host_blocks`; 0 if the
    /// executor has none.
    #[serde(default)]
    pub host_blocks: u32,
    /// The tokens that the model's attention lets a token see.
    #[serde(default)]
    pub attention: Attention,
}

/// Returns the tokens of a full step in a profile that does not say: those of steps beside generations.
const fn default_full_step_tokens() -> u32 {
    2048
}

/// The tokens of a prompt that a model's attention lets a token see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// A token sees itself and the tokens before it, so prompts with a common beginning share its
    /// keys and values.
    #[default]
    Causal,
    /// A token sees all tokens of its prompt, so a prompt shares nothing with others: each row's
    /// prompt is computed whole, in one step, in a segment of its own, and none of it is kept. Such
    /// a model generates nothing, and its classes are read at the first token.
    Full,
}

/// The room of an executor for passes that are computed in slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassCapacity {
    /// Layers of the model: a pass of `n` tokens is `n · layers` layer tokens of work.
    pub layers: u32,
    /// Most tokens of all passes that have begun and not ended.
    pub tokens: u32,
    /// Most passes that have begun and not ended.
    pub passes: u32,
    /// Most output positions of a pass.
    pub outputs: u32,
    /// Milliseconds that a slice takes where settings do not say: far longer than the device needs to
    /// start a step, and short beside the time that users wait for an answer.
    pub slice_ms: u32,
}
