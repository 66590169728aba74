//! The tensors that a model is loaded from: one answer for whoever looks at a checkpoint, be it to
//! check, to plan memory, to pack, or to name what was served.
//!
//! A file may hold more: buffers of integers that old releases of transformers saved, heads of
//! training, scales of a cache. They are named here, per architecture, and a checkpoint does not
//! have them, whatever their type. Any other tensor is refused when the model is loaded.

mod decoder;
mod encoder;
mod modern;

use std::collections::BTreeMap;

pub(crate) use self::{
    decoder::prefix as decoder_prefix,
    encoder::{norm_parts, prefix as encoder_prefix},
};
use crate::{DenseConfig, ModelConfig, ModelKind};

/// The name of the table of numbers that distances in an MPNet add to scores.
pub(crate) const DISTANCES: &str = "encoder.relative_attention_bias";

/// The name of the only product of a head that classifies each token, in encoders.
pub(crate) const TOKEN_SCORE: &str = "classifier";

/// The names of a ModernBERT's parts outside its layers.
pub(crate) mod modern_names {
    pub(crate) const WORDS: &str = "embeddings.tok_embeddings";
    pub(crate) const EMBEDDING_NORM: &str = "embeddings.norm";
    pub(crate) const LAST_NORM: &str = "final_norm";
    pub(crate) const HEAD_DENSE: &str = "head.dense";
    pub(crate) const HEAD_NORM: &str = "head.norm";
    pub(crate) const SCORE: &str = "classifier";
}

/// Names and shapes of tensors.
pub(crate) type Shapes = BTreeMap<String, Vec<usize>>;

/// A test of names.
pub(crate) type IsUnread = Box<dyn Fn(&str) -> bool>;

/// Returns the tensors that a model reads. The second part holds for a name of those that its files
/// may have beside them; `contains` says whether the files have a tensor.
pub(crate) fn read_by(
    config: &ModelConfig,
    kind: &ModelKind,
    contains: impl Fn(&str) -> bool,
) -> (Shapes, IsUnread) {
    let (mut shapes, is_unread): (_, IsUnread) = match &config.encoder {
        None => {
            let prefix = decoder::prefix(&contains);
            let shapes = decoder::shapes(config, kind, prefix);
            (shapes, Box::new(decoder::is_unread))
        }
        Some(encoder) => match &encoder.modern {
            None => {
                let prefix = encoder::prefix(&contains, encoder);
                let parts = norm_parts(&contains, prefix);
                let shapes = encoder::shapes(config, encoder, kind, (prefix, parts));
                let is_unread = move |name: &str| encoder::is_unread(prefix, name);
                (shapes, Box::new(is_unread))
            }
            Some(modern) => {
                let prefix = encoder::prefix(&contains, encoder);
                let shapes = modern::shapes(config, modern, kind, prefix);
                let embeds = matches!(kind, ModelKind::Embedding { .. });
                let is_unread = move |name: &str| modern::is_unread(embeds, name);
                (shapes, Box::new(is_unread))
            }
        },
    };
    shapes.extend(config.dense.iter().flat_map(DenseConfig::tensors));
    (shapes, is_unread)
}
