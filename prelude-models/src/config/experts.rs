//! The part of a mixture of experts' `config.json` that dense decoders do not have.

use super::{INTERMEDIATE_MAX, LAYERS_MAX};
use crate::{Error, Routing, json::Fields};

/// Most experts of a layer.
const EXPERTS_MAX: usize = 1 << 12;

/// The experts of a decoder's layers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpertsConfig {
    /// Number of experts of a layer that has experts.
    pub count: usize,
    /// Width of an expert.
    pub intermediate_size: usize,
    /// The choice of experts.
    pub routing: Routing,
    /// True for each layer that has experts in place of one MLP.
    pub layers: Vec<bool>,
}

impl ExpertsConfig {
    pub(super) fn read(fields: &Fields<'_>, layers: usize) -> Result<Self, Error> {
        let count = fields.required_count("num_experts", EXPERTS_MAX)?;
        let per_token = fields.required_count("num_experts_per_tok", count)?;
        let step = fields
            .count("decoder_sparse_step", LAYERS_MAX)?
            .unwrap_or(1);
        let dense = fields.array("mlp_only_layers")?.unwrap_or_default();
        let dense: Option<Vec<u64>> = dense.iter().map(serde_json::Value::as_u64).collect();
        let Some(dense) = dense else {
            return Err(fields.wrong("mlp_only_layers", "must be a list of numbers of layers"));
        };
        let has_experts =
            |layer: usize| (layer + 1).is_multiple_of(step) && !dense.contains(&(layer as u64));
        Ok(Self {
            count,
            intermediate_size: fields.required_count("moe_intermediate_size", INTERMEDIATE_MAX)?,
            routing: Routing {
                per_token,
                normalise: fields.boolean("norm_topk_prob")?.unwrap_or(false),
            },
            layers: (0..layers).map(has_experts).collect(),
        })
    }
}
