//! Sizes of the buffers that are taken once, for all steps.

use prelude_core::{Attention, PassCapacity};
use prelude_models::{
    AttnShape, ModelConfig,
    step::{activation_room, kept_room, passes_room, slice_room},
};

use super::{MAX_PARTIAL_BYTES, experts::ExpertSizes, fp8::Fp8Sizes};
use crate::{CudaConfig, kernels::attention::SPLIT_KEYS, memory::arena::Arena};

/// Bytes of the buffers that are sized by configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The arena's part for activations of a step.
    pub(crate) activation_bytes: usize,
    /// The arena's part for one layer's keys and values of a step.
    pub(crate) own_kv_bytes: usize,
    /// The arena's part for passes.
    pub(crate) pass_bytes: usize,
    pub(crate) partial_bytes: usize,
    /// The sizes of the room for a mixture of experts, which is not in the arena; `None` for other models.
    pub(crate) experts: Option<ExpertSizes>,
    /// The sizes of the room for rounded rows; `None` where matrices are bf16.
    pub(crate) fp8: Option<Fp8Sizes>,
    /// Most tokens that a step has a result of each.
    pub(crate) result_tokens: usize,
}

impl Sizes {
    /// Computes the sizes for a model and for such passes.
    pub(crate) fn new(
        model: &ModelConfig,
        config: &CudaConfig,
        passes: Option<&PassCapacity>,
    ) -> Self {
        let shape = model.attn_shape();
        let tokens = config.max_step_tokens as usize;
        // What attention of whole texts sees is in its chunk, and no row of it decodes.
        let is_whole = model.attention == Attention::Full;
        let chunked = config.max_step_tokens > config.chunk_tokens && !is_whole;
        let longest = model.max_position_embeddings;
        let longest = config
            .max_context_len
            .map_or(longest, |len| longest.min(len as usize));
        let row = shape.heads * longest.div_ceil(SPLIT_KEYS) * partial_row_bytes(shape);
        let of_step = tokens.max(passes.map_or(0, |passes| passes.tokens as usize));
        let of_chunk = of_step.min(config.chunk_tokens as usize);
        let experts = ExpertSizes::new(model, of_chunk);
        let fp8 = Fp8Sizes::new(model, config, of_chunk);
        let mut without_experts = model.clone();
        without_experts.experts = None;
        let model = &without_experts;
        let activations = activation_room(model, tokens, tokens, config.chunk_tokens, Arena::room);
        // Of a slice everything but what the pass keeps.
        let of_slice = passes.map_or(0, |passes| {
            let (tokens, outputs) = (passes.tokens as usize, passes.outputs as usize);
            slice_room(model, tokens, outputs, config.chunk_tokens, &Arena::room)
        });
        Self {
            activation_bytes: activations.max(of_slice),
            own_kv_bytes: if chunked {
                own_kv_room(model, tokens)
            } else {
                0
            },
            pass_bytes: passes.map_or(0, |passes| {
                passes_room(passes, config.chunk_tokens, |tokens, outputs| {
                    pass_room(model, tokens, outputs)
                })
            }),
            experts,
            fp8,
            result_tokens: tokens.max(passes.map_or(0, |passes| passes.outputs as usize)),
            partial_bytes: match config.deterministic || is_whole {
                true => 0,
                false => row.max(MAX_PARTIAL_BYTES.min(tokens * row)),
            },
        }
    }
}

/// Returns the bytes of the region of a pass with so many tokens and at most so many output positions.
pub(super) fn pass_room(model: &ModelConfig, tokens: usize, outputs: usize) -> usize {
    let outputs = outputs.min(tokens / 2);
    kept_room(model, tokens, outputs, &Arena::room) + own_kv_room(model, tokens)
}

/// Returns the bytes of one layer's keys and values of a step's own tokens.
fn own_kv_room(model: &ModelConfig, tokens: usize) -> usize {
    2 * Arena::room(tokens, model.num_key_value_heads * model.head_dim)
}

/// Returns the bytes of the maximum, the sum and the output of one split.
pub(super) const fn partial_row_bytes(shape: AttnShape) -> usize {
    (shape.head_dim + 2) * size_of::<f32>()
}
