//! Encoders: layers whose attention sees the whole text, with a norm behind each half of a layer.
//!
//! Devlin et al., BERT (2019), §3; Liu et al., RoBERTa (2019), §4; Conneau et al., XLM-R (2020),
//! §3; Sanh et al., DistilBERT (2019), §3; Song et al., MPNet (2020), §3. The families differ in
//! the names of tensors, in the first row of the position table, in token types, in the layer
//! before the classes, and in what MPNet adds to attention's scores by distance. `modern` has
//! ModernBERT.
//!
//! Segments do not depend on each other, so a chunk of whole segments goes through all layers
//! before the next chunk begins, and no tensor is larger than a chunk but those of the outputs.
//! Where few tokens are output positions, as where a text is read at its first token, the last
//! layer ends with its attention for all others.

use std::ops::Range;

use crate::{Activation, AttnShape, Distances, EmbedTables, ForwardState, Model, Ops};

mod heads;
mod modern;
mod weights;

pub use modern::ModernEncoder;

use heads::Heads;

/// A loaded encoder over weights of one device.
#[derive(Debug)]
pub struct Encoder<W> {
    hidden: usize,
    intermediate: usize,
    shape: AttnShape,
    activation: Activation,
    eps: f32,
    num_words: u32,
    words: W,
    positions: W,
    types: Option<W>,
    /// Numbers added to the scores of attention: see [`Distances::bias`].
    distance_bias: Option<W>,
    norm: Norm<W>,
    layers: Vec<Layer<W>>,
    heads: Heads<W>,
}

/// A layer norm.
#[derive(Debug)]
struct Norm<W> {
    weight: W,
    bias: W,
}

#[derive(Debug)]
struct Layer<W> {
    qkv: W,
    o: W,
    attention_norm: Norm<W>,
    up: W,
    down: W,
    output_norm: Norm<W>,
}

/// Intermediates of a chunk of whole segments.
struct Chunk<T> {
    h: T,
    qkv: T,
    attn: T,
    inner: T,
}

impl<O: Ops> Model<O> for Encoder<O::Weight>
where
    O::Weight: Send + Sync,
{
    /// Runs the whole step: an executor of a model whose attention sees whole prompts has no
    /// passes, so no step is cut into slices.
    fn advance(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        _: &mut ForwardState<O::Tensor>,
        _: usize,
    ) -> Result<bool, O::Error> {
        let (tokens, outputs) = (ops.num_tokens(inputs), ops.num_outputs(inputs));
        if tokens == 0 {
            return Ok(true);
        }
        let mut picked = ops.alloc(outputs, self.hidden)?;
        let room = tokens.min(ops.chunk_tokens().max(1));
        let mut chunk = Chunk {
            h: ops.alloc(room, self.hidden)?,
            qkv: ops.alloc(room, self.shape.qkv_width())?,
            attn: ops.alloc(room, self.shape.out_width())?,
            inner: ops.alloc(room, self.intermediate)?,
        };
        let mut attended = match is_last_pruned(tokens, outputs, room) {
            true => Some(ops.alloc(outputs, self.shape.out_width())?),
            false => None,
        };
        let mut start = 0;
        while start < tokens {
            let rows = start..ops.whole_segments(inputs, start);
            self.run_chunk(ops, inputs, rows.clone(), &mut chunk, attended.as_mut())?;
            ops.gather_rows(inputs, &chunk.h, rows.clone(), &mut picked)?;
            start = rows.end;
        }
        if let (Some(attended), Some(layer)) = (&attended, self.layers.last()) {
            self.end_layer(ops, layer, attended, outputs, &mut picked, &mut chunk.inner)?;
        }
        heads::run(ops, inputs, &self.heads, picked, None)?;
        Ok(true)
    }
}

/// Returns true if the last layer computes nothing behind its attention but the output positions:
/// if they are at most half of the tokens, and a chunk has room for them.
const fn is_last_pruned(tokens: usize, outputs: usize, room: usize) -> bool {
    0 < outputs && 2 * outputs <= tokens && outputs <= room
}

impl<W> Encoder<W> {
    /// Leaves the last hidden states of the segments `rows` in `chunk.h`; with `attended`, those
    /// before the last layer, and in `attended` what the output positions attended to there.
    fn run_chunk<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        rows: Range<usize>,
        chunk: &mut Chunk<O::Tensor>,
        mut attended: Option<&mut O::Tensor>,
    ) -> Result<(), O::Error> {
        let n = rows.len();
        let Chunk {
            h,
            qkv,
            attn,
            inner,
        } = chunk;
        let tables = EmbedTables {
            words: &self.words,
            num_words: self.num_words,
            positions: Some(&self.positions),
            types: self.types.as_ref(),
        };
        let distances = Distances {
            window: None,
            bias: self.distance_bias.as_ref(),
        };
        ops.embed_sum(inputs, rows.clone(), tables, h)?;
        self.norm(ops, &self.norm, h, n)?;
        for (index, layer) in self.layers.iter().enumerate() {
            ops.linear(h, n, &layer.qkv, qkv)?;
            let (shape, placed) = (self.shape, rows.clone());
            ops.qk_norm_rope_store(inputs, index, placed, shape, None, None, qkv)?;
            ops.attention_by_distance(inputs, index, rows.clone(), shape, distances, qkv, attn)?;
            match &mut attended {
                Some(attended) if index + 1 == self.layers.len() => {
                    ops.gather_rows(inputs, attn, rows.clone(), attended)?;
                }
                _ => self.end_layer(ops, layer, attn, n, h, inner)?,
            }
        }
        Ok(())
    }

    /// Runs what follows a layer's attention on the first `n` rows of `h`.
    fn end_layer<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        layer: &Layer<W>,
        attended: &O::Tensor,
        n: usize,
        h: &mut O::Tensor,
        inner: &mut O::Tensor,
    ) -> Result<(), O::Error> {
        ops.linear_add(attended, 0..n, &layer.o, h)?;
        self.norm(ops, &layer.attention_norm, h, n)?;
        ops.linear(h, n, &layer.up, inner)?;
        ops.activate(inner, n, self.activation)?;
        ops.linear_add(inner, 0..n, &layer.down, h)?;
        self.norm(ops, &layer.output_norm, h, n)
    }

    fn norm<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        norm: &Norm<W>,
        h: &mut O::Tensor,
        n: usize,
    ) -> Result<(), O::Error> {
        ops.layer_norm(h, n, &norm.weight, &norm.bias, self.eps)
    }
}

#[cfg(test)]
mod tests;
