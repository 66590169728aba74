//! ModernBERT: norms before each half of a layer, gates of GELU, rotary embeddings, and layers most
//! of which see a window around each token.
//!
//! Warner et al., Smarter, Better, Faster, Longer (2024), §2.1.

mod weights;

use std::ops::Range;

use super::{
    Norm,
    heads::{self, Heads},
    is_last_pruned,
};
use crate::{Activation, AttnShape, Distances, EmbedTables, ForwardState, Model, Ops};

/// A loaded ModernBERT over weights of one device.
#[derive(Debug)]
pub struct ModernEncoder<W> {
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) shape: AttnShape,
    pub(super) activation: Activation,
    pub(super) eps: f32,
    pub(super) num_words: u32,
    pub(super) words: W,
    pub(super) embedding_norm: Norm<W>,
    /// Rotations of layers that see whole texts.
    pub(super) rope: W,
    /// Rotations of layers with a window.
    pub(super) local_rope: W,
    /// Tokens on either side that a token sees in layers with a window.
    pub(super) window: u32,
    pub(super) layers: Vec<ModernLayer<W>>,
    pub(super) last_norm: Norm<W>,
    pub(super) heads: Heads<W>,
    /// True if classes are read from the mean of a text's hidden states.
    pub(super) has_mean_classes: bool,
}

#[derive(Debug)]
pub(super) struct ModernLayer<W> {
    /// The norm before attention; the first layer has none, since that of the embeddings lies
    /// before it.
    pub(super) attention_norm: Option<Norm<W>>,
    pub(super) qkv: W,
    pub(super) o: W,
    pub(super) mlp_norm: Norm<W>,
    pub(super) gate_up: W,
    pub(super) down: W,
    /// True if tokens see a window around them.
    pub(super) is_local: bool,
}

/// Intermediates of a chunk of whole segments.
struct Chunk<T> {
    h: T,
    qkv: T,
    attn: T,
    mlp: MlpRoom<T>,
}

/// Intermediates of the second half of a layer.
struct MlpRoom<T> {
    x: T,
    gate_up: T,
    inner: T,
}

impl<O: Ops> Model<O> for ModernEncoder<O::Weight>
where
    O::Weight: Send + Sync,
{
    /// Runs the whole step, as [`super::Encoder`] does.
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
        let mut chunk = Chunk {
            h: ops.alloc(room, self.hidden)?,
            qkv: ops.alloc(room, self.shape.qkv_width())?,
            attn: ops.alloc(room, self.shape.out_width())?,
            mlp: MlpRoom {
                x: ops.alloc(room, self.hidden)?,
                gate_up: ops.alloc(room, 2 * self.intermediate)?,
                inner: ops.alloc(room, self.intermediate)?,
            },
        };
        // The mean of a text needs all of its hidden states.
        let is_pruned = means.is_none() && is_last_pruned(tokens, outputs, room);
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
            ops.linear_add(attended, 0..outputs, &layer.o, &mut picked)?;
            self.run_mlp(ops, layer, outputs, &mut picked, &mut chunk.mlp)?;
            self.end(ops, outputs, &mut picked)?;
        }
        heads::run(ops, inputs, &self.heads, picked, means)?;
        Ok(true)
    }
}

impl<W> ModernEncoder<W> {
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
            words: &self.words,
            num_words: self.num_words,
            positions: None,
            types: None,
        };
        ops.embed_sum(inputs, rows.clone(), tables, &mut chunk.h)?;
        let Norm { weight, bias } = &self.embedding_norm;
        ops.layer_norm(&mut chunk.h, n, weight, bias, self.eps)?;
        for (index, layer) in self.layers.iter().enumerate() {
            self.attend((index, layer), ops, inputs, rows.clone(), chunk)?;
            if let Some(attended) = &mut attended
                && index + 1 == self.layers.len()
            {
                return ops.gather_rows(inputs, &chunk.attn, rows, attended);
            }
            ops.linear_add(&chunk.attn, 0..n, &layer.o, &mut chunk.h)?;
            self.run_mlp(ops, layer, n, &mut chunk.h, &mut chunk.mlp)?;
        }
        self.end(ops, n, &mut chunk.h)
    }

    /// Runs the norm behind the last layer on the first `n` rows of `h`.
    fn end<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        n: usize,
        h: &mut O::Tensor,
    ) -> Result<(), O::Error> {
        let Norm { weight, bias } = &self.last_norm;
        ops.layer_norm(h, n, weight, bias, self.eps)
    }

    /// Runs the second half of a layer on the first `n` rows of `h`.
    fn run_mlp<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        layer: &ModernLayer<W>,
        n: usize,
        h: &mut O::Tensor,
        room: &mut MlpRoom<O::Tensor>,
    ) -> Result<(), O::Error> {
        let MlpRoom { x, gate_up, inner } = room;
        let Norm { weight, bias } = &layer.mlp_norm;
        ops.layer_norm_of(h, n, weight, bias, self.eps, x)?;
        ops.linear(x, n, &layer.gate_up, gate_up)?;
        ops.activate_mul(gate_up, n, self.activation, inner)?;
        ops.linear_add(inner, 0..n, &layer.down, h)
    }

    /// Writes what the tokens of a chunk attend to in a layer into `chunk.attn`.
    fn attend<O: Ops<Weight = W>>(
        &self,
        (index, layer): (usize, &ModernLayer<W>),
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        rows: Range<usize>,
        chunk: &mut Chunk<O::Tensor>,
    ) -> Result<(), O::Error> {
        let Chunk { h, qkv, attn, mlp } = chunk;
        let (n, shape) = (rows.len(), self.shape);
        match &layer.attention_norm {
            None => ops.linear(h, n, &layer.qkv, qkv)?,
            Some(Norm { weight, bias }) => {
                ops.layer_norm_of(h, n, weight, bias, self.eps, &mut mlp.x)?;
                ops.linear(&mlp.x, n, &layer.qkv, qkv)?;
            }
        }
        let (rope, window) = match layer.is_local {
            true => (&self.local_rope, Some(self.window)),
            false => (&self.rope, None),
        };
        let placed = rows.clone();
        ops.qk_norm_rope_store(inputs, index, placed, shape, None, Some(rope), qkv)?;
        let distances = Distances { window, bias: None };
        ops.attention_by_distance(inputs, index, rows, shape, distances, qkv, attn)
    }
}
