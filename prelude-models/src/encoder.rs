//! Encoders: layers whose attention sees the whole text.
//!
//! Devlin et al., BERT (2019), §3; Liu et al., RoBERTa (2019), §4; Conneau et al., XLM-R (2020),
//! §3; Sanh et al., DistilBERT (2019), §3; Song et al., MPNet (2020), §3: a norm lies behind each half
//! of a layer. The families differ in the names of tensors, in the first row of the position table, in
//! token types, in the layer before the classes, and in what MPNet adds to attention's scores by
//! distance. Warner et al., Smarter, Better, Faster, Longer (2024), §2.1: ModernBERT has norms before
//! the halves of a layer, gates of GELU, rotary embeddings, and layers most of which see a window
//! around each token.
//!
//! Segments do not depend on each other, so a chunk of whole segments goes through all layers
//! before the next chunk begins, and no tensor is larger than a chunk but those of the outputs.
//! Where few tokens are output positions, as where a text is read at its first token, the last
//! layer ends with its attention for all others.

use std::ops::Range;

use crate::{Activation, AttnShape, Distances, EmbedTables, ForwardState, Model, Ops};

mod heads;
pub(crate) mod markers;
mod weights;

use heads::Heads;
use markers::Markers;

/// A loaded encoder over weights of one device.
#[derive(Debug)]
pub struct Encoder<W> {
    hidden: usize,
    intermediate: usize,
    shape: AttnShape,
    activation: Activation,
    eps: f32,
    num_words: u32,
    num_types: u32,
    words: W,
    positions: Option<W>,
    types: Option<W>,
    /// Numbers added to the scores of attention: see [`Distances::bias`].
    distance_bias: Option<W>,
    /// Rotations of layers that see whole texts, and of those with a window.
    ropes: Option<[W; 2]>,
    /// Tokens on either side that a token sees in layers with a window.
    window: Option<u32>,
    norm: Norm<W>,
    layers: Vec<Layer<W>>,
    /// The norm behind the last layer, if norms lie before the halves of a layer and not behind them.
    last_norm: Option<Norm<W>>,
    /// The layers that a decision model has behind the last norm.
    markers: Option<Markers<W>>,
    heads: Heads<W>,
    /// True if classes are read from the mean of a text's hidden states.
    has_mean_classes: bool,
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
    /// The norm behind attention, or before it; the first layer has none before it, since that of the
    /// embeddings lies there.
    attention_norm: Option<Norm<W>>,
    /// The first product of the second half; with a gate where norms lie before the halves.
    up: W,
    down: W,
    /// The norm behind the second half, or before it.
    mlp_norm: Norm<W>,
    /// True if tokens see a window around them.
    is_local: bool,
}

/// Intermediates of a chunk of whole segments.
struct Chunk<T> {
    h: T,
    qkv: T,
    attn: T,
    room: Room<T>,
    markers: Option<markers::Room<T>>,
}

/// Intermediates of a half of a layer.
struct Room<T> {
    /// Where norms lie before the halves of a layer: hidden states behind a norm, and products with
    /// gates.
    pre_norm: Option<(T, T)>,
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
        let mut means = match self.has_mean_classes {
            true => Some(ops.alloc(outputs, self.hidden)?),
            false => None,
        };
        let room = tokens.min(ops.chunk_tokens().max(1));
        let mut chunk = self.alloc_chunk(ops, room)?;
        // The mean of a text needs all of its hidden states, and so do layers behind the last.
        let is_pruned =
            means.is_none() && self.markers.is_none() && is_last_pruned(tokens, outputs, room);
        let mut attended = match is_pruned {
            true => Some(ops.alloc(outputs, self.shape.out_width())?),
            false => None,
        };
        let mut start = 0;
        while start < tokens {
            let rows = start..ops.whole_segments(inputs, start);
            self.run_chunk(ops, inputs, rows.clone(), &mut chunk, attended.as_mut())?;
            ops.gather_rows(inputs, &chunk.h, rows.clone(), &mut picked)?;
            if let Some(means) = &mut means {
                ops.segment_means(inputs, &chunk.h, rows.clone(), means)?;
            }
            start = rows.end;
        }
        if let (Some(attended), Some(layer)) = (&attended, self.layers.last()) {
            self.end_layer(ops, layer, attended, outputs, &mut picked, &mut chunk.room)?;
            self.end(ops, outputs, &mut picked)?;
        }
        heads::run(ops, inputs, &self.heads, picked, means)?;
        Ok(true)
    }
}

/// Returns true if the last layer computes nothing behind its attention but the output positions:
/// if they are at most half of the tokens, and a chunk has room for them.
const fn is_last_pruned(tokens: usize, outputs: usize, room: usize) -> bool {
    0 < outputs && 2 * outputs <= tokens && outputs <= room
}

impl<W> Encoder<W> {
    fn alloc_chunk<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        room: usize,
    ) -> Result<Chunk<O::Tensor>, O::Error> {
        Ok(Chunk {
            h: ops.alloc(room, self.hidden)?,
            qkv: ops.alloc(room, self.shape.qkv_width())?,
            attn: ops.alloc(room, self.shape.out_width())?,
            room: Room {
                pre_norm: match self.last_norm {
                    None => None,
                    Some(_) => Some((
                        ops.alloc(room, self.hidden)?,
                        ops.alloc(room, 2 * self.intermediate)?,
                    )),
                },
                inner: ops.alloc(room, self.intermediate)?,
            },
            markers: match &self.markers {
                None => None,
                Some(markers) => Some(markers.alloc(ops, room, self.hidden)?),
            },
        })
    }

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
        let tables = EmbedTables {
            words: Some(&self.words),
            num_words: self.num_words,
            num_types: self.num_types,
            positions: self.positions.as_ref(),
            types: self.types.as_ref(),
        };
        ops.embed_sum(inputs, rows.clone(), tables, &mut chunk.h)?;
        self.norm(ops, &self.norm, &mut chunk.h, n)?;
        for (index, layer) in self.layers.iter().enumerate() {
            self.attend((index, layer), ops, inputs, rows.clone(), chunk)?;
            let Chunk { h, attn, room, .. } = chunk;
            if let Some(attended) = &mut attended
                && index + 1 == self.layers.len()
            {
                return ops.gather_rows(inputs, attn, rows, attended);
            }
            self.end_layer(ops, layer, attn, n, h, room)?;
        }
        self.end(ops, n, &mut chunk.h)?;
        let Chunk {
            h,
            qkv,
            attn,
            markers,
            ..
        } = chunk;
        match self.markers.as_ref().zip(markers.as_mut()) {
            None => Ok(()),
            Some((markers, room)) => {
                let at = (
                    self.layers.len() - 1,
                    rows,
                    [self.num_words, self.num_types],
                );
                markers.run(ops, inputs, at, h, [qkv, attn], room)
            }
        }
    }

    /// Writes what the tokens of a chunk attend to in a layer into `chunk.attn`.
    fn attend<O: Ops<Weight = W>>(
        &self,
        (index, layer): (usize, &Layer<W>),
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        rows: Range<usize>,
        chunk: &mut Chunk<O::Tensor>,
    ) -> Result<(), O::Error> {
        let Chunk {
            h, qkv, attn, room, ..
        } = chunk;
        let (n, shape) = (rows.len(), self.shape);
        match (&layer.attention_norm, &mut room.pre_norm) {
            (Some(Norm { weight, bias }), Some((x, _))) => {
                ops.layer_norm_of(h, n, weight, bias, self.eps, x)?;
                ops.linear(x, n, &layer.qkv, qkv)?;
            }
            _ => ops.linear(h, n, &layer.qkv, qkv)?,
        }
        let ropes = self.ropes.as_ref();
        let rope = ropes.map(|[global, local]| if layer.is_local { local } else { global });
        let placed = rows.clone();
        ops.qk_norm_rope_store(inputs, index, placed, shape, None, rope, qkv)?;
        let distances = Distances {
            window: self.window.filter(|_| layer.is_local),
            bias: self.distance_bias.as_ref(),
        };
        ops.attention_by_distance(inputs, index, rows, shape, distances, qkv, attn)
    }

    /// Runs what follows a layer's attention on the first `n` rows of `h`.
    fn end_layer<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        layer: &Layer<W>,
        attended: &O::Tensor,
        n: usize,
        h: &mut O::Tensor,
        room: &mut Room<O::Tensor>,
    ) -> Result<(), O::Error> {
        let Room { pre_norm, inner } = room;
        ops.linear_add(attended, 0..n, &layer.o, h)?;
        if let Some((x, gate_up)) = pre_norm {
            let Norm { weight, bias } = &layer.mlp_norm;
            ops.layer_norm_of(h, n, weight, bias, self.eps, x)?;
            ops.linear(x, n, &layer.up, gate_up)?;
            ops.activate_mul(gate_up, n, self.activation, inner)?;
            return ops.linear_add(inner, 0..n, &layer.down, h);
        }
        if let Some(norm) = &layer.attention_norm {
            self.norm(ops, norm, h, n)?;
        }
        ops.linear(h, n, &layer.up, inner)?;
        ops.activate(inner, n, self.activation)?;
        ops.linear_add(inner, 0..n, &layer.down, h)?;
        self.norm(ops, &layer.mlp_norm, h, n)
    }

    /// Runs the norm behind the last layer, if there is one, on the first `n` rows of `h`.
    fn end<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        n: usize,
        h: &mut O::Tensor,
    ) -> Result<(), O::Error> {
        match &self.last_norm {
            None => Ok(()),
            Some(norm) => self.norm(ops, norm, h, n),
        }
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
