//! Dense decoders: layers with grouped queries, rotary positions, RMS norms and SwiGLU.
//!
//! Touvron et al., LLaMA (2023), §2.2; Jiang et al., Mistral 7B (2023), §2; Qwen Team, Qwen2 (2024),
//! §2.2.1, and Qwen3 (2025), §2; Gemma Team, Gemma 2 (2024), §2, and Gemma 3 (2025), §2; Granite Team,
//! Granite 3.0 (2024), §2. The families differ in biases, in norms of queries and keys, in factors
//! (Granite), and in what Gemma alone has: norms behind the halves of a layer, layers with a window,
//! bounds of scores and logits; a checkpoint's configuration says it. One definition serves text
//! generation, classification and embedding; they differ in the head alone.
//!
//! A Granite multiplies what each half of a layer adds by a constant r. Its hidden states are kept
//! divided by r, from the embeddings on: then nothing is multiplied on the way, and an RMS norm gives
//! the same with its epsilon divided by r².

use std::ops::Range;

use prelude_core::Attention;

use crate::{
    Activation, AttnShape, DenseModule, Distances, Expert, ExpertRoom, ExpertsConfig, ForwardState,
    MlpRoom, Model, Norm, Ops, QkNorm,
    model::{ChunkTensors, KeptTensors},
};

mod weights;

/// A loaded dense decoder over weights of one device.
#[derive(Debug)]
pub struct Decoder<W> {
    hidden: usize,
    intermediate: usize,
    shape: AttnShape,
    eps: f32,
    /// Factor on rows of the embedding matrix.
    embed_scale: f32,
    embed: W,
    layers: Vec<Layer<W>>,
    norm: W,
    /// The last norm before a vocabulary head, if it is not `norm`: with the divisor of the logits.
    head_norm: Option<W>,
    rope: W,
    head: Head<W>,
    gemma: Option<Gemma<W>>,
    /// Products behind the pooling of an embedder.
    dense: Vec<DenseModule<W>>,
    experts: Option<ExpertsConfig>,
}

/// The parts of a decoder that Gemma alone has.
#[derive(Debug)]
struct Gemma<W> {
    /// Rotations of layers with a window.
    local_rope: W,
    window: u32,
    activation: Activation,
    logit_cap: Option<f32>,
}

#[derive(Debug)]
struct Layer<W> {
    input_norm: W,
    qkv: W,
    /// Norms of each head of queries and of keys, if the family has them.
    qk_norm: Option<(W, W)>,
    o: W,
    /// The norm before the MLP.
    mlp_norm: W,
    mlp: Mlp<W>,
    /// The additional norms and the window of a Gemma's layer; `None` in other models.
    gemma: Option<GemmaLayer<W>>,
}

/// The second half of a layer behind its norm.
#[derive(Debug)]
enum Mlp<W> {
    Dense { gate_up: W, down: W },
    Experts { router: W, experts: Vec<Expert<W>> },
}

#[derive(Debug)]
struct GemmaLayer<W> {
    /// The norm of what attention adds.
    attention_post_norm: W,
    /// The norm of what the MLP adds.
    mlp_post_norm: W,
    /// True if tokens see a window.
    is_local: bool,
}

#[derive(Debug)]
enum Head<W> {
    /// The embedding matrix itself.
    Tied,
    Vocabulary(W),
    Score(W),
    /// A bare body: hidden states can be pooled, nothing else.
    None,
}

impl<O: Ops> Model<O> for Decoder<O::Weight>
where
    O::Weight: Send + Sync,
{
    fn advance(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        state: &mut ForwardState<O::Tensor>,
        layer_tokens: usize,
    ) -> Result<bool, O::Error> {
        let tokens = ops.num_tokens(inputs);
        if tokens == 0 {
            return Ok(true);
        }
        if self.shape.attention == Attention::Full {
            self.run_whole(ops, inputs)?;
            return Ok(true);
        }
        let size = (tokens, self.layers.len());
        let slice = state.next_slice(size, ops.chunk_tokens(), layer_tokens);
        let kept = match &mut state.kept {
            Some(kept) => kept,
            kept => kept.insert(self.begin(ops, inputs)?),
        };
        let mut chunk = self.alloc_chunk(ops, tokens)?;
        // A layer's chunks run in token order and ancestors precede descendants in it, so the K/V
        // of everything that a query sees have been placed when its chunk attends.
        for (layer, rows) in slice.chunks() {
            self.run_layer(layer, ops, inputs, rows, kept, &mut chunk)?;
        }
        state.layer_tokens = slice.end();
        if slice.is_last() {
            self.run_outputs(ops, inputs, kept, &mut chunk)?;
        }
        Ok(slice.is_last())
    }
}

impl<W> Decoder<W> {
    /// Runs a step of whole prompts, which no executor cuts into slices: a chunk holds the keys and
    /// values of all that its queries see.
    fn run_whole<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
    ) -> Result<(), O::Error> {
        let tokens = ops.num_tokens(inputs);
        let mut kept = self.begin(ops, inputs)?;
        let mut chunk = self.alloc_chunk(ops, tokens)?;
        for layer in 0..self.layers.len() {
            let mut start = 0;
            while start < tokens {
                let rows = start..ops.whole_segments(inputs, start);
                start = rows.end;
                self.run_layer(layer, ops, inputs, rows, &mut kept, &mut chunk)?;
            }
        }
        self.run_outputs(ops, inputs, &mut kept, &mut chunk)
    }

    /// Takes the tensors that stay as long as the step does, and embeds its tokens.
    fn begin<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
    ) -> Result<KeptTensors<O::Tensor>, O::Error> {
        let (tokens, outputs) = (ops.num_tokens(inputs), ops.num_outputs(inputs));
        let mut h = ops.alloc_kept(tokens, self.hidden)?;
        // Few output positions: the others leave the last layer once their K/V are placed. With
        // many, taking the few others out costs more memory than it saves work.
        let is_pruned = 2 * outputs <= tokens && !self.layers.is_empty();
        let attended = match is_pruned {
            true => Some(ops.alloc_kept(outputs, self.shape.out_width())?),
            false => None,
        };
        ops.embed(inputs, &self.embed, self.embed_scale, &mut h)?;
        Ok(KeptTensors { h, attended })
    }

    /// Takes the intermediates of a chunk of a step of `tokens` tokens.
    fn alloc_chunk<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        tokens: usize,
    ) -> Result<ChunkTensors<O::Tensor>, O::Error> {
        let room = tokens.min(ops.chunk_tokens().max(1));
        Ok(ChunkTensors {
            x: ops.alloc(room, self.hidden)?,
            qkv: ops.alloc(room, self.shape.qkv_width())?,
            attn: ops.alloc(room, self.shape.out_width())?,
            gate_up: ops.alloc(room, 2 * self.intermediate)?,
            act: ops.alloc(room, self.intermediate)?,
            experts: match &self.experts {
                None => None,
                Some(experts) => {
                    let room = ops.expert_room_rows(room);
                    Some(ExpertRoom {
                        logits: ops.alloc(room, experts.count)?,
                        gathered: ops.alloc(room, self.hidden)?,
                        gate_up: ops.alloc(room, 2 * experts.intermediate_size)?,
                        inner: ops.alloc(room, experts.intermediate_size)?,
                        out: ops.alloc(room, self.hidden)?,
                        sum: ops.alloc(room, self.hidden)?,
                    })
                }
            },
        })
    }

    /// Runs a layer on a chunk. Of a pruned step's last layer, nothing but K/V and the output
    /// positions' hidden states is ever read (suffix discard, PrefillOnly §5.1, by rows).
    fn run_layer<O: Ops<Weight = W>>(
        &self,
        index: usize,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        rows: Range<usize>,
        kept: &mut KeptTensors<O::Tensor>,
        chunk: &mut ChunkTensors<O::Tensor>,
    ) -> Result<(), O::Error> {
        let KeptTensors { h, attended } = kept;
        match attended {
            Some(attended) if index + 1 == self.layers.len() => {
                if ops.has_outputs(inputs, rows.clone()) {
                    self.attend(index, ops, inputs, rows.clone(), h, chunk)?;
                    return ops.gather_rows(inputs, &chunk.attn, rows, attended);
                }
                self.place(index, ops, inputs, rows, h, chunk)
            }
            _ => {
                let layer = &self.layers[index];
                self.attend(index, ops, inputs, rows.clone(), h, chunk)?;
                let ChunkTensors { x, attn, .. } = chunk;
                self.add_attended(layer, ops, attn, rows.clone(), x, h)?;
                self.run_mlp(layer, ops, rows, h, chunk)
            }
        }
    }

    /// Takes out the output positions' hidden states, ends their last layer if it is pruned, and
    /// runs the heads.
    fn run_outputs<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        kept: &mut KeptTensors<O::Tensor>,
        chunk: &mut ChunkTensors<O::Tensor>,
    ) -> Result<(), O::Error> {
        let (tokens, outputs) = (ops.num_tokens(inputs), ops.num_outputs(inputs));
        let KeptTensors { h, attended } = kept;
        if attended.is_some() && outputs == 0 {
            return Ok(());
        }
        let mut picked = ops.alloc(outputs, self.hidden)?;
        let mut hidden = ops.alloc(outputs, self.hidden)?;
        ops.gather_rows(inputs, h, 0..tokens, &mut picked)?;
        if let Some((attended, layer)) = attended.as_ref().zip(self.layers.last()) {
            let (rows, x) = (0..outputs, &mut hidden);
            self.add_attended(layer, ops, attended, rows, x, &mut picked)?;
            let room = tokens.min(ops.chunk_tokens().max(1));
            for start in (0..outputs).step_by(room) {
                let rows = start..outputs.min(start + room);
                self.run_mlp(layer, ops, rows, &mut picked, chunk)?;
            }
        }
        ops.rms_norm(&picked, 0..outputs, &self.norm, self.eps, &mut hidden)?;
        ops.pooling_heads(inputs, &hidden, &self.dense)?;
        if let Some(norm) = &self.head_norm {
            ops.rms_norm(&picked, 0..outputs, norm, self.eps, &mut hidden)?;
        }
        self.run_head(ops, inputs, &hidden)
    }

    /// Computes the norm, the fused product and the rotation of a chunk, and places its K/V.
    fn place<O: Ops<Weight = W>>(
        &self,
        index: usize,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        rows: Range<usize>,
        h: &O::Tensor,
        chunk: &mut ChunkTensors<O::Tensor>,
    ) -> Result<(), O::Error> {
        let layer = &self.layers[index];
        let eps = self.eps;
        let weight = &layer.input_norm;
        let norm = Norm { weight, eps };
        let ChunkTensors { x, qkv, .. } = chunk;
        ops.norm_linear(h, rows.clone(), norm, &layer.qkv, x, qkv)?;
        let norm = layer.qk_norm.as_ref();
        let norm = norm.map(|(q, k)| QkNorm { q, k, eps });
        let rope = match self.local(layer) {
            Some(gemma) => &gemma.local_rope,
            None => &self.rope,
        };
        ops.qk_norm_rope_store(
            inputs,
            index,
            rows,
            self.shape,
            norm,
            Some(rope),
            &mut chunk.qkv,
        )
    }

    /// Returns what Gemma's layers with a window have, if this is one.
    fn local(&self, layer: &Layer<W>) -> Option<&Gemma<W>> {
        let is_local = layer.gemma.as_ref().is_some_and(|gemma| gemma.is_local);
        self.gemma.as_ref().filter(|_| is_local)
    }

    /// Computes and keeps keys and values, then writes what the queries attend to into
    /// `chunk.attn`.
    fn attend<O: Ops<Weight = W>>(
        &self,
        index: usize,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        rows: Range<usize>,
        h: &O::Tensor,
        chunk: &mut ChunkTensors<O::Tensor>,
    ) -> Result<(), O::Error> {
        self.place(index, ops, inputs, rows.clone(), h, chunk)?;
        let ChunkTensors { qkv, attn, .. } = chunk;
        match self.local(&self.layers[index]) {
            None => ops.attention(inputs, index, rows, self.shape, qkv, attn),
            Some(gemma) => {
                let near = Distances {
                    window: Some(gemma.window),
                    bias: None,
                };
                ops.attention_by_distance(inputs, index, rows, self.shape, near, qkv, attn)
            }
        }
    }

    /// Adds what the queries of a layer attended to to rows of `h`; `x` is room.
    fn add_attended<O: Ops<Weight = W>>(
        &self,
        layer: &Layer<W>,
        ops: &mut O,
        attended: &O::Tensor,
        rows: Range<usize>,
        x: &mut O::Tensor,
        h: &mut O::Tensor,
    ) -> Result<(), O::Error> {
        let Some(gemma) = &layer.gemma else {
            return ops.linear_add(attended, rows, &layer.o, h);
        };
        ops.linear(attended, rows.len(), &layer.o, x)?;
        ops.rms_norm_add(x, rows, &gemma.attention_post_norm, self.eps, h)
    }

    /// Runs the second half of a layer, which is added to rows of `h`.
    fn run_mlp<O: Ops<Weight = W>>(
        &self,
        layer: &Layer<W>,
        ops: &mut O,
        rows: Range<usize>,
        h: &mut O::Tensor,
        chunk: &mut ChunkTensors<O::Tensor>,
    ) -> Result<(), O::Error> {
        let ChunkTensors {
            x,
            gate_up,
            act,
            experts: room,
            ..
        } = chunk;
        let (weight, eps) = (&layer.mlp_norm, self.eps);
        let norm = Norm { weight, eps };
        let (up, down) = match (&layer.mlp, &self.experts, room) {
            (Mlp::Dense { gate_up, down }, ..) => (gate_up, down),
            (Mlp::Experts { router, experts }, Some(config), Some(room)) => {
                ops.rms_norm(h, rows.clone(), weight, eps, x)?;
                return ops.experts_add(x, rows, router, experts, config.routing, room, h);
            }
            (Mlp::Experts { .. }, ..) => unreachable!("a layer with experts has their room"),
        };
        let Some((gemma, of_layer)) = self.gemma.as_ref().zip(layer.gemma.as_ref()) else {
            let room = MlpRoom { x, gate_up, a: act };
            return ops.mlp_add(rows, norm, up, down, room, h);
        };
        let n = rows.len();
        ops.norm_linear(h, rows.clone(), norm, up, x, gate_up)?;
        ops.activate_mul(gate_up, n, gemma.activation, act)?;
        ops.linear(act, n, down, x)?;
        ops.rms_norm_add(x, rows, &of_layer.mlp_post_norm, self.eps, h)
    }

    /// Runs the head on `hidden`, the states of the output positions after the last norm, of which
    /// there is one.
    fn run_head<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        hidden: &O::Tensor,
    ) -> Result<(), O::Error> {
        let cap = self.gemma.as_ref().and_then(|gemma| gemma.logit_cap);
        match &self.head {
            Head::Tied => ops.vocabulary_heads(inputs, hidden, &self.embed, cap),
            Head::Vocabulary(head) => ops.vocabulary_heads(inputs, hidden, head, cap),
            Head::Score(score) => ops.class_heads(inputs, hidden, score),
            Head::None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
