//! Qwen3: dense decoder layers with grouped queries, normalised queries and keys, and SwiGLU.
//!
//! Qwen Team, Qwen3 Technical Report (2025), §2. One definition serves text generation,
//! classification and embedding; they differ in the head alone.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    AttnShape, Checkpoint, Error, ForwardState, Model, ModelConfig, ModelKind, Ops, TensorView,
    WeightLoader,
    model::{ChunkTensors, KeptTensors},
};

/// A loaded Qwen3 model over weights of one device.
#[derive(Debug)]
pub struct Qwen3<W> {
    hidden: usize,
    intermediate: usize,
    shape: AttnShape,
    eps: f32,
    embed: W,
    layers: Vec<Layer<W>>,
    norm: W,
    rope: W,
    head: Head<W>,
}

#[derive(Debug)]
struct Layer<W> {
    input_norm: W,
    qkv: W,
    q_norm: W,
    k_norm: W,
    o: W,
    post_norm: W,
    gate_up: W,
    down: W,
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

impl<W> Qwen3<W> {
    /// Converts the checkpoint's weights, with rotations for positions `0..max_positions`.
    ///
    /// # Errors
    /// [`Error::Tensors`] if names or shapes are not Qwen3's, [`Error::NotFinite`] for damaged
    /// weights, [`Error::Loader`] for what the device says.
    pub fn load<L: WeightLoader<Weight = W>>(
        checkpoint: &Checkpoint,
        max_positions: usize,
        loader: &mut L,
    ) -> Result<Self, Error> {
        check_tensors(checkpoint)?;
        let config = checkpoint.config();
        let kind = checkpoint.kind();
        let mut source = WeightSource {
            checkpoint,
            prefix: prefix(checkpoint),
            loader,
        };
        let tied = *kind == ModelKind::CausalLm && config.tie_word_embeddings;
        let embed = source.embedding(tied)?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::load(&mut source, i, config.attention_bias))
            .collect::<Result<_, _>>()?;
        let norm = source.vector("norm")?;
        let head = match kind {
            ModelKind::CausalLm if tied => Head::Tied,
            ModelKind::CausalLm => Head::Vocabulary(source.head("lm_head")?),
            ModelKind::SequenceClassification { .. } => Head::Score(source.head("score")?),
            ModelKind::Embedding { .. } => Head::None,
        };
        let inv_freq = config.rope.inv_freq(config.head_dim);
        let rope = source
            .loader
            .rope(&inv_freq, config.rope.attention_scaling(), max_positions)
            .map_err(|e| loader_error("rope", e))?;
        Ok(Self {
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            shape: config.attn_shape(),
            eps: config.rms_norm_eps,
            embed,
            layers,
            norm,
            rope,
            head,
        })
    }
}

impl<W> Layer<W> {
    fn load<L: WeightLoader<Weight = W>>(
        source: &mut WeightSource<'_, L>,
        layer: usize,
        attention_bias: bool,
    ) -> Result<Self, Error> {
        let at = |name: &str| format!("layers.{layer}.{name}");
        let [q, k, v, o] = ["q", "k", "v", "o"].map(|p| at(&format!("self_attn.{p}_proj")));
        let [gate, up, down] = ["gate", "up", "down"].map(|p| at(&format!("mlp.{p}_proj")));
        Ok(Self {
            input_norm: source.vector(&at("input_layernorm"))?,
            qkv: source.linear(&at("self_attn.qkv_proj"), &[&q, &k, &v], attention_bias)?,
            q_norm: source.vector(&at("self_attn.q_norm"))?,
            k_norm: source.vector(&at("self_attn.k_norm"))?,
            o: source.linear(&o, &[&o], attention_bias)?,
            post_norm: source.vector(&at("post_attention_layernorm"))?,
            gate_up: source.linear(&at("mlp.gate_up_proj"), &[&gate, &up], false)?,
            down: source.linear(&down, &[&down], false)?,
        })
    }
}

/// Where weights come from and where they go.
struct WeightSource<'a, L> {
    checkpoint: &'a Checkpoint,
    prefix: &'static str,
    loader: &'a mut L,
}

impl<L: WeightLoader> WeightSource<'_, L> {
    fn vector(&mut self, name: &str) -> Result<L::Weight, Error> {
        let name = format!("{}{name}.weight", self.prefix);
        let view = finite(self.checkpoint, &name)?;
        let loaded = self.loader.vector(&name, &view);
        self.checkpoint.release(&name);
        loaded.map_err(|e| loader_error(&name, e))
    }

    /// `parts` stacked into one matrix, known to the loader as `name`.
    fn linear(&mut self, name: &str, parts: &[&str], biased: bool) -> Result<L::Weight, Error> {
        let views = |what: &str| {
            parts
                .iter()
                .map(|part| finite(self.checkpoint, &format!("{}{part}.{what}", self.prefix)))
                .collect::<Result<Vec<_>, _>>()
        };
        let weights = views("weight")?;
        let biases = if biased { views("bias")? } else { Vec::new() };
        let name = format!("{}{name}.weight", self.prefix);
        let loaded = self.loader.linear(&name, &weights, &biases);
        for part in parts {
            self.checkpoint
                .release(&format!("{}{part}.weight", self.prefix));
        }
        loaded.map_err(|e| loader_error(&name, e))
    }

    fn embedding(&mut self, is_head: bool) -> Result<L::Weight, Error> {
        let name = format!("{}embed_tokens.weight", self.prefix);
        let view = finite(self.checkpoint, &name)?;
        let loaded = self.loader.embedding(&name, &view, is_head);
        self.checkpoint.release(&name);
        loaded.map_err(|e| loader_error(&name, e))
    }

    /// A head lies outside the body, so its name has no prefix.
    fn head(&mut self, name: &str) -> Result<L::Weight, Error> {
        let name = format!("{name}.weight");
        let view = finite(self.checkpoint, &name)?;
        let loaded = self.loader.linear(&name, &[view], &[]);
        self.checkpoint.release(&name);
        loaded.map_err(|e| loader_error(&name, e))
    }
}

/// A tensor without infinities and NaNs.
fn finite<'a>(checkpoint: &'a Checkpoint, name: &str) -> Result<TensorView<'a>, Error> {
    let view = checkpoint.tensor(name)?;
    match view.first_non_finite() {
        None => Ok(view),
        Some(index) => Err(Error::NotFinite {
            tensor: name.to_owned(),
            index,
        }),
    }
}

fn loader_error(weight: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Loader {
        weight: weight.to_owned(),
        source: Box::new(source),
    }
}

/// Returns the prefix of tensors' names: embedding models are saved from the bare body.
fn prefix(checkpoint: &Checkpoint) -> &'static str {
    if checkpoint.contains("embed_tokens.weight") {
        ""
    } else {
        "model."
    }
}

/// Names and shapes of all tensors that [`Qwen3::load`] reads.
fn expected(config: &ModelConfig, kind: &ModelKind, prefix: &str) -> BTreeMap<String, Vec<usize>> {
    let (h, i, d) = (
        config.hidden_size,
        config.intermediate_size,
        config.head_dim,
    );
    let q = config.num_attention_heads * d;
    let kv = config.num_key_value_heads * d;
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(name, shape.to_vec());
    };
    add(
        format!("{prefix}embed_tokens.weight"),
        &[config.vocab_size, h],
    );
    add(format!("{prefix}norm.weight"), &[h]);
    for layer in 0..config.num_hidden_layers {
        let mut at = |name: &str, shape: &[usize]| {
            add(format!("{prefix}layers.{layer}.{name}"), shape);
        };
        at("input_layernorm.weight", &[h]);
        at("post_attention_layernorm.weight", &[h]);
        at("self_attn.q_norm.weight", &[d]);
        at("self_attn.k_norm.weight", &[d]);
        at("mlp.gate_proj.weight", &[i, h]);
        at("mlp.up_proj.weight", &[i, h]);
        at("mlp.down_proj.weight", &[h, i]);
        for (part, out, input) in [("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)] {
            at(&format!("self_attn.{part}_proj.weight"), &[out, input]);
            if config.attention_bias {
                at(&format!("self_attn.{part}_proj.bias"), &[out]);
            }
        }
    }
    match kind {
        ModelKind::CausalLm if config.tie_word_embeddings => (),
        ModelKind::CausalLm => add("lm_head.weight".to_owned(), &[config.vocab_size, h]),
        ModelKind::SequenceClassification { labels } => {
            add("score.weight".to_owned(), &[labels.len(), h]);
        }
        ModelKind::Embedding { .. } => (),
    }
    tensors
}

fn check_tensors(checkpoint: &Checkpoint) -> Result<(), Error> {
    let config = checkpoint.config();
    let expected = expected(config, checkpoint.kind(), prefix(checkpoint));
    // Published tied checkpoints often hold a copy of the embedding matrix as head, and bodies
    // saved from a language model keep its head; the reference reads neither.
    checkpoint.check_tensors(&config.architecture, &expected, |name| {
        name == "lm_head.weight"
    })
}

impl<O: Ops> Model<O> for Qwen3<O::Weight>
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

impl<W> Qwen3<W> {
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
        ops.embed(inputs, &self.embed, &mut h)?;
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
                ops.linear_add(&chunk.attn, rows.clone(), &layer.o, h)?;
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
        ops.gather_rows(inputs, h, 0..tokens, &mut picked)?;
        if let Some((attended, layer)) = attended.as_ref().zip(self.layers.last()) {
            ops.linear_add(attended, 0..outputs, &layer.o, &mut picked)?;
            let room = tokens.min(ops.chunk_tokens().max(1));
            for start in (0..outputs).step_by(room) {
                let rows = start..outputs.min(start + room);
                self.run_mlp(layer, ops, rows, &mut picked, chunk)?;
            }
        }
        self.run_heads(ops, inputs, &picked)
    }

    /// Norm, fused product and rotation of a chunk; its K/V are placed.
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
        ops.rms_norm(h, rows.clone(), &layer.input_norm, self.eps, &mut chunk.x)?;
        ops.linear(&chunk.x, rows.len(), &layer.qkv, &mut chunk.qkv)?;
        ops.qk_norm_rope_store(
            inputs,
            index,
            rows,
            self.shape,
            &layer.q_norm,
            &layer.k_norm,
            self.eps,
            &self.rope,
            &mut chunk.qkv,
        )
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
        ops.attention(inputs, index, rows, self.shape, qkv, attn)
    }

    /// The second half of a layer, added to rows of `h`.
    fn run_mlp<O: Ops<Weight = W>>(
        &self,
        layer: &Layer<W>,
        ops: &mut O,
        rows: Range<usize>,
        h: &mut O::Tensor,
        chunk: &mut ChunkTensors<O::Tensor>,
    ) -> Result<(), O::Error> {
        let ChunkTensors {
            x, gate_up, act, ..
        } = chunk;
        ops.rms_norm(h, rows.clone(), &layer.post_norm, self.eps, x)?;
        ops.mlp_add(x, rows, &layer.gate_up, &layer.down, gate_up, act, h)
    }

    /// `picked`: hidden states of the output positions, of which there is one.
    fn run_heads<O: Ops<Weight = W>>(
        &self,
        ops: &mut O,
        inputs: &O::Inputs<'_>,
        picked: &O::Tensor,
    ) -> Result<(), O::Error> {
        let outputs = ops.num_outputs(inputs);
        let mut hidden = ops.alloc(outputs, self.hidden)?;
        ops.rms_norm(picked, 0..outputs, &self.norm, self.eps, &mut hidden)?;
        ops.pooling_heads(inputs, &hidden)?;
        match &self.head {
            Head::Tied => ops.vocabulary_heads(inputs, &hidden, &self.embed),
            Head::Vocabulary(head) => ops.vocabulary_heads(inputs, &hidden, head),
            Head::Score(score) => ops.class_heads(inputs, &hidden, score),
            Head::None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
