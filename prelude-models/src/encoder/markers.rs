//! Layers behind an encoder that let the options of a question see each other: what a Laya has
//! before the head that reads a number at each option's marker.
//!
//! The vector of the question's type is added to all hidden states, then come layers as PyTorch's
//! `TransformerEncoderLayer` has them with norms before the halves: attention over the whole text
//! without positions, and a ReLU between the two products of the second half.

use std::ops::Range;

use prelude_core::Attention;

use super::Norm;
use crate::{
    Activation, AttnShape, EmbedTables, EncoderConfig, Error, Ops,
    source::{Form, TensorSource},
};

/// Added to the variance by every norm: PyTorch's default.
const EPS: f32 = 1e-5;

/// The layers, and the vectors of the types of questions.
#[derive(Debug)]
pub(super) struct Markers<W> {
    types: W,
    shape: AttnShape,
    layers: Vec<Layer<W>>,
}

#[derive(Debug)]
struct Layer<W> {
    attention_norm: Norm<W>,
    qkv: W,
    out: W,
    mlp_norm: Norm<W>,
    up: W,
    down: W,
}

/// Returns the shape of the layers' attention: heads of 64 elements, but one of a narrower model.
pub(crate) fn shape(hidden: usize) -> AttnShape {
    let heads = (hidden / 64).max(1);
    let head_dim = hidden / heads;
    AttnShape {
        heads,
        kv_heads: heads,
        head_dim,
        scale: (head_dim as f64).powf(-0.5) as f32,
        soft_cap: None,
        attention: Attention::Full,
    }
}

/// Intermediates of a chunk: hidden states behind a norm, and of the second half.
pub(super) struct Room<T> {
    x: T,
    inner: T,
}

impl<W> Markers<W> {
    /// Makes what a decision model has behind its encoder, if this is one.
    pub(super) fn of<S: TensorSource<Weight = W>>(
        source: &mut S,
        hidden: usize,
        encoder: &EncoderConfig,
    ) -> Result<Option<Self>, Error> {
        let define = |layers| Self::define(source, hidden, (layers, encoder.token_types));
        encoder.markers.map(define).transpose()
    }

    /// Makes `layers` layers of the tensors that it asks `source` for. All names are whole.
    fn define<S: TensorSource<Weight = W>>(
        source: &mut S,
        hidden: usize,
        (layers, types): (usize, usize),
    ) -> Result<Self, Error> {
        let rows = 0..types;
        let is_head = false;
        let form = Form::Table { rows, is_head };
        let types = source.tensor("type_emb.weight".to_owned(), &[types, hidden], form)?;
        let layers = (0..layers)
            .map(|layer| {
                let at = |name: &str| format!("head.layers.{layer}.{name}");
                let mut norm = |name: &str| {
                    let mut part = |of: &str| {
                        source.tensor(at(&format!("{name}.{of}")), &[hidden], Form::Vector)
                    };
                    Ok::<_, Error>(Norm {
                        weight: part("weight")?,
                        bias: part("bias")?,
                    })
                };
                let (attention_norm, mlp_norm) = (norm("norm1")?, norm("norm2")?);
                let mut product = |name: &str, outputs: usize, inputs: usize| {
                    source.head(&at(name), outputs, (inputs, true))
                };
                Ok(Layer {
                    attention_norm,
                    qkv: product("self_attn.in_proj", 3 * hidden, hidden)?,
                    out: product("self_attn.out_proj", hidden, hidden)?,
                    mlp_norm,
                    up: product("linear1", 4 * hidden, hidden)?,
                    down: product("linear2", hidden, 4 * hidden)?,
                })
            })
            .collect::<Result<_, Error>>()?;
        let shape = shape(hidden);
        Ok(Self {
            types,
            shape,
            layers,
        })
    }

    /// Takes the intermediates of a chunk of `rows` tokens.
    pub(super) fn alloc<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        rows: usize,
        hidden: usize,
    ) -> Result<Room<O::Tensor>, O::Error> {
        Ok(Room {
            x: ops.alloc(rows, hidden)?,
            inner: ops.alloc(rows, 4 * hidden)?,
        })
    }

    /// Runs the layers on the whole segments `rows`, whose hidden states are `h`. Keys and values are
    /// placed as those of the layer `place` of the encoder, which needs its own no longer.
    pub(super) fn run<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        (place, rows, [num_words, num_types]): (usize, Range<usize>, [u32; 2]),
        h: &mut O::Tensor,
        [qkv, attn]: [&mut O::Tensor; 2],
        room: &mut Room<O::Tensor>,
    ) -> Result<(), O::Error> {
        let Room { x, inner } = room;
        let n = rows.len();
        let types = EmbedTables {
            words: None,
            num_words,
            num_types,
            positions: None,
            types: Some(&self.types),
        };
        ops.embed_sum(inputs, rows.clone(), types, h)?;
        for layer in &self.layers {
            let Norm { weight, bias } = &layer.attention_norm;
            ops.layer_norm_of(h, n, weight, bias, EPS, x)?;
            ops.linear(x, n, &layer.qkv, qkv)?;
            let (shape, placed) = (self.shape, rows.clone());
            ops.qk_norm_rope_store(inputs, place, placed, shape, None, None, qkv)?;
            ops.attention(inputs, place, rows.clone(), shape, qkv, attn)?;
            ops.linear_add(attn, 0..n, &layer.out, h)?;
            let Norm { weight, bias } = &layer.mlp_norm;
            ops.layer_norm_of(h, n, weight, bias, EPS, x)?;
            ops.linear(x, n, &layer.up, inner)?;
            ops.activate(inner, n, Activation::Relu)?;
            ops.linear_add(inner, 0..n, &layer.down, h)?;
        }
        Ok(())
    }
}
