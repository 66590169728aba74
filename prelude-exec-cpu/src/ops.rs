//! [`Ops`] on the host.

use std::{ops::Range, sync::Arc};

use prelude_core::RowOutput;
use prelude_models::{
    Activation, AttnShape, DenseModule, Distances, EmbedTables, Expert, ExpertRoom, MlpRoom,
    ModelConfig, Norm, Ops, QkNorm, Routing,
    step::{ArenaTensor, NO_SLOT, StepLayout},
};

use crate::{
    CpuConfig, CpuDtype, Error, Quantization,
    arena::Arena,
    experts::{Shares, add_shares, gather_tokens},
    heads::{HeadPass, VocabularyHeads, mean},
    kernels::{
        Backend, InputForm, Supported, activation,
        attention::{self, Attention},
        gemm::{Multiplier, ProductOutput},
        kv::{self, Blocks, Kv, KvElement, KvStore},
        simd,
    },
    memory,
    pool::ComputePool,
    scratch::PerWorker,
    weights::Weight,
};

/// Rows of a task of element-wise work.
const ROW_BLOCK: usize = 8;

/// The operations, their buffers and the KV cache.
pub struct CpuOps {
    pub(crate) pool: Arc<ComputePool>,
    pub(crate) backend: Backend,
    chunk_tokens: usize,
    pub(crate) arena: Arena,
    pub(crate) kv: KvStore,
    pub(crate) multiplier: Multiplier,
    attention: PerWorker<attention::Scratch>,
    pub(crate) vocabulary: VocabularyHeads,
    /// The results, one for each row of the step.
    pub(crate) results: Vec<Option<RowOutput>>,
}

impl std::fmt::Debug for CpuOps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuOps")
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

impl CpuOps {
    /// Takes all memory that steps will need; `arena_len` f32 of it for activations.
    pub(crate) fn new(
        model: &ModelConfig,
        config: &CpuConfig,
        (dtype, backend): (CpuDtype, Backend),
        num_blocks: u32,
        arena_len: usize,
        pool: Arc<ComputePool>,
    ) -> Result<Self, Error> {
        let shape = model.attn_shape();
        let chunk = config.chunk_tokens.min(config.max_step_tokens) as usize;
        let threads = pool.threads();
        let by_distance = memory::attends_by_distance(model);
        let widest = memory::widest_input(model);
        let multiplier = Multiplier::new(backend, chunk, widest, model.intermediate_size);
        let multiplier = match config.quantization {
            Some(Quantization::Int8) => multiplier.with_int8(chunk, widest),
            Some(Quantization::Fp8) => multiplier.with_fp8(chunk, widest),
            None => multiplier,
        };
        Ok(Self {
            backend,
            chunk_tokens: chunk,
            arena: Arena::new(arena_len),
            kv: KvStore::new(
                dtype,
                model.num_hidden_layers,
                shape.kv_heads * shape.head_dim,
                config.max_step_tokens as usize,
                (
                    num_blocks as usize,
                    Blocks {
                        size: config.block_size as usize,
                        // A matrix unit packs rows itself.
                        panels: (backend.act != InputForm::Tiles).then_some(shape.head_dim),
                    },
                ),
            )?,
            multiplier,
            attention: PerWorker::new(threads, || {
                attention::Scratch::new(shape, backend, by_distance)
            }),
            vocabulary: VocabularyHeads::new(model.vocab_size, model.hidden_size, threads),
            results: Vec::new(),
            pool,
        })
    }

    /// Forgets the previous step.
    pub(crate) fn begin(&mut self, layout: &StepLayout) {
        self.arena.reset();
        self.forget_results(layout);
    }

    /// Forgets the results of the previous step, for one with these rows.
    pub(crate) fn forget_results(&mut self, layout: &StepLayout) {
        self.results.clear();
        self.results.extend(
            layout
                .rows
                .iter()
                .map(|row| row.refused.map(RowOutput::Failed)),
        );
    }

    /// Runs `f` on rows `xs` of one tensor, each with its row of the rows `ys` of another. A core handles
    /// `per_ns` elements of those in a nanosecond.
    fn each_row(
        &mut self,
        (x, xs): (&ArenaTensor, Range<usize>),
        (y, ys): (&ArenaTensor, Range<usize>),
        per_ns: usize,
        f: impl Fn(&[f32], &mut [f32]) + Sync,
    ) {
        let (x_width, width) = (x.width(), y.width());
        let (x, y) = self.arena.pair(x, y);
        let x = &x[xs.start * x_width..xs.end * x_width];
        let y = &mut y[ys.start * width..ys.end * width];
        let cost_ns = y.len() / per_ns;
        self.pool.rows(y, width, ROW_BLOCK, cost_ns, |_, first, y| {
            let x = x[first * x_width..].chunks_exact(x_width);
            y.chunks_exact_mut(width).zip(x).for_each(|(y, x)| f(x, y));
        });
    }

    /// Returns a pass over the hidden states, and the buffers of heads that want logits.
    fn head_pass<'a>(
        &'a mut self,
        layout: &'a StepLayout,
        hidden: &ArenaTensor,
    ) -> (HeadPass<'a>, &'a mut VocabularyHeads) {
        let pass = HeadPass {
            layout,
            width: hidden.width(),
            hidden: self.arena.read(hidden),
            pool: &self.pool,
            multiplier: &mut self.multiplier,
            isa: self.backend.isa,
            results: &mut self.results,
        };
        (pass, &mut self.vocabulary)
    }
}

/// The place of the keys and values of one call.
struct Placement<'a> {
    layout: &'a StepLayout,
    isa: Supported,
    layer: usize,
    rows: Range<usize>,
    shape: AttnShape,
    norm: Option<QkNorm<'a, Weight>>,
    rope: Option<&'a Weight>,
}

impl Placement<'_> {
    fn run<E: KvElement>(&self, pool: &ComputePool, kv: &mut Kv<E>, qkv: &mut [f32]) {
        let width = self.shape.qkv_width();
        let row = 2 * kv.half;
        let step = &mut kv.step[self.rows.start * row..self.rows.end * row];
        let cost_ns = qkv.len() / 2;
        pool.rows2(
            (qkv, width),
            (step, row),
            ROW_BLOCK,
            cost_ns,
            |_, first, qkv, step| {
                let tokens = qkv.chunks_exact_mut(width).zip(step.chunks_exact_mut(row));
                for (i, (qkv, step)) in tokens.enumerate() {
                    self.place(self.rows.start + first + i, qkv, step);
                }
            },
        );
        // Slots that follow each other in a block are filled together.
        let size = self.layout.block_size();
        let slots = &self.layout.slots[..self.rows.end];
        let mut token = self.rows.start;
        while token < self.rows.end {
            let slot = slots[token];
            if slot == NO_SLOT {
                token += 1;
                continue;
            }
            let block = (slot..slot - slot % size + size).zip(&slots[token..]);
            let count = block.take_while(|(next, slot)| next == *slot).count();
            kv.keep(self.isa, self.layer, (token, slot as usize), count);
            token += count;
        }
    }

    fn place<E: KvElement>(&self, token: usize, qkv: &mut [f32], row: &mut [E]) {
        let dim = self.shape.head_dim;
        let rope = self.rope;
        let rotation = rope.map(|rope| rope.rotation(self.layout.positions[token]));
        let (q, kv) = qkv.split_at_mut(self.shape.out_width());
        let (k, v) = kv.split_at_mut(self.shape.kv_heads * dim);
        let (q_heads, k_heads) = (q.chunks_exact_mut(dim), k.chunks_exact_mut(dim));
        match (self.norm, rotation) {
            (Some(QkNorm { q, k, eps }), Some(rotation)) => {
                let (q, k) = (q.vector(), k.vector());
                q_heads.for_each(|head| simd::norm_rotate(self.isa, head, q, eps, rotation));
                k_heads.for_each(|head| simd::norm_rotate(self.isa, head, k, eps, rotation));
            }
            (None, Some(rotation)) => q_heads
                .chain(k_heads)
                .for_each(|head| simd::rotate(self.isa, head, rotation)),
            (None, None) => {}
            (Some(_), None) => {
                unreachable!("no model norms queries and keys that it does not turn")
            }
        }
        kv::place(self.isa, k, v, dim, row);
    }
}

impl Ops for CpuOps {
    type Tensor = ArenaTensor;
    type Weight = Weight;
    type Inputs<'a> = StepLayout;
    type Error = Error;

    fn num_tokens(&self, inputs: &StepLayout) -> usize {
        inputs.tokens.len()
    }

    fn num_outputs(&self, inputs: &StepLayout) -> usize {
        inputs.outputs.len()
    }

    fn has_outputs(&self, inputs: &StepLayout, rows: Range<usize>) -> bool {
        inputs.has_outputs(rows)
    }

    fn chunk_tokens(&self) -> usize {
        self.chunk_tokens
    }

    fn alloc(&mut self, rows: usize, width: usize) -> Result<ArenaTensor, Error> {
        Ok(self.arena.alloc(rows, width)?)
    }

    fn alloc_kept(&mut self, rows: usize, width: usize) -> Result<ArenaTensor, Error> {
        Ok(self.arena.alloc_kept(rows, width)?)
    }

    fn embed(
        &mut self,
        inputs: &StepLayout,
        table: &Weight,
        scale: f32,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let width = h.width();
        let h = &mut self.arena.write(h)[..inputs.tokens.len() * width];
        // A row of a packed table is a gather: a cache line for each pair of components.
        let cost_ns = h.len();
        self.pool
            .rows(h, width, ROW_BLOCK, cost_ns, |_, first, rows| {
                for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                    table.embedding(inputs.tokens[first + i], row);
                    if scale != 1.0 {
                        row.iter_mut().for_each(|x| *x *= scale);
                    }
                }
            });
        Ok(())
    }

    fn whole_segments(&self, inputs: &StepLayout, start: usize) -> usize {
        inputs.whole_segments(start, self.chunk_tokens)
    }

    fn embed_sum(
        &mut self,
        inputs: &StepLayout,
        rows: Range<usize>,
        tables: EmbedTables<'_, Weight>,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let width = h.width();
        let h = &mut self.arena.write(h)[..rows.len() * width];
        // A gather of some rows: a cache line for each pair of components.
        let cost_ns = 2 * h.len();
        self.pool
            .rows(h, width, ROW_BLOCK, cost_ns, |_, first, part| {
                for (i, row) in part.chunks_exact_mut(width).enumerate() {
                    let token = rows.start + first + i;
                    let id = inputs.tokens[token];
                    if let Some(words) = tables.words {
                        words.embedding(id % tables.num_words, row);
                    }
                    if let Some(types) = tables.types {
                        types.add_embedding(id / tables.num_words, row);
                    }
                    if let Some(positions) = tables.positions {
                        positions.add_embedding(inputs.positions[token], row);
                    }
                }
            });
        Ok(())
    }

    fn layer_norm(
        &mut self,
        h: &mut ArenaTensor,
        n: usize,
        weight: &Weight,
        bias: &Weight,
        eps: f32,
    ) -> Result<(), Error> {
        let width = h.width();
        let h = &mut self.arena.write(h)[..n * width];
        let (weight, bias) = (weight.vector(), bias.vector());
        let (isa, cost_ns) = (self.backend.isa, h.len() / 5);
        self.pool.rows(h, width, ROW_BLOCK, cost_ns, |_, _, h| {
            for row in h.chunks_exact_mut(width) {
                simd::layer_norm(isa, row, weight, bias, eps);
            }
        });
        Ok(())
    }

    fn layer_norm_of(
        &mut self,
        h: &ArenaTensor,
        n: usize,
        weight: &Weight,
        bias: &Weight,
        eps: f32,
        x: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let width = h.width();
        let (source, target) = self.arena.pair(h, x);
        target[..n * width].copy_from_slice(&source[..n * width]);
        self.layer_norm(x, n, weight, bias, eps)
    }

    fn activate(&mut self, x: &mut ArenaTensor, n: usize, f: Activation) -> Result<(), Error> {
        let width = x.width();
        let x = &mut self.arena.write(x)[..n * width];
        let (isa, cost_ns) = (self.backend.isa, x.len() / 2);
        self.pool.rows(x, width, ROW_BLOCK, cost_ns, |_, _, x| {
            activation::activate(isa, f, x);
        });
        Ok(())
    }

    fn activate_mul(
        &mut self,
        gate_up: &ArenaTensor,
        n: usize,
        f: Activation,
        a: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let isa = self.backend.isa;
        self.each_row((gate_up, 0..n), (a, 0..n), 1, |gate_up, a| {
            let (gate, up) = gate_up.split_at(a.len());
            a.copy_from_slice(gate);
            activation::activate(isa, f, a);
            for (a, u) in a.iter_mut().zip(up) {
                *a *= u;
            }
        });
        Ok(())
    }

    fn rms_norm(
        &mut self,
        h: &ArenaTensor,
        rows: Range<usize>,
        weight: &Weight,
        eps: f32,
        x: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let (n, weight, isa) = (rows.len(), weight.vector(), self.backend.isa);
        self.each_row((h, rows), (x, 0..n), 6, |h, x| {
            simd::rms_norm(isa, h, weight, eps, x);
        });
        Ok(())
    }

    fn rms_norm_add(
        &mut self,
        x: &ArenaTensor,
        rows: Range<usize>,
        weight: &Weight,
        eps: f32,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let (n, weight, isa) = (rows.len(), weight.vector(), self.backend.isa);
        self.each_row((x, 0..n), (h, rows), 6, |x, h| {
            simd::rms_norm_add(isa, x, weight, eps, h);
        });
        Ok(())
    }

    fn linear(
        &mut self,
        x: &ArenaTensor,
        n: usize,
        weight: &Weight,
        y: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let (inputs, outputs) = (x.width(), y.width());
        let (x, y) = self.arena.pair(x, y);
        let (x, y) = (&x[..n * inputs], &mut y[..n * outputs]);
        self.multiplier
            .run(&self.pool, x, weight.matrix(), ProductOutput::Write, y);
        Ok(())
    }

    fn linear_add(
        &mut self,
        x: &ArenaTensor,
        rows: Range<usize>,
        weight: &Weight,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let (inputs, outputs) = (x.width(), h.width());
        let (x, h) = self.arena.pair(x, h);
        let x = &x[..rows.len() * inputs];
        let h = &mut h[rows.start * outputs..rows.end * outputs];
        self.multiplier
            .run(&self.pool, x, weight.matrix(), ProductOutput::Add, h);
        Ok(())
    }

    fn qk_norm_rope_store(
        &mut self,
        inputs: &StepLayout,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        norm: Option<QkNorm<'_, Weight>>,
        rope: Option<&Weight>,
        qkv: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let qkv = &mut self.arena.write(qkv)[..rows.len() * shape.qkv_width()];
        let placement = Placement {
            layout: inputs,
            isa: self.backend.isa,
            layer,
            rows,
            shape,
            norm,
            rope,
        };
        match &mut self.kv {
            KvStore::F32(kv) => placement.run(&self.pool, kv, qkv),
            KvStore::Bf16(kv) => placement.run(&self.pool, kv, qkv),
        }
        Ok(())
    }

    fn attention(
        &mut self,
        inputs: &StepLayout,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        qkv: &ArenaTensor,
        out: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let distances = Distances {
            window: None,
            bias: None,
        };
        self.attention_by_distance(inputs, layer, rows, shape, distances, qkv, out)
    }

    fn attention_by_distance(
        &mut self,
        layout: &StepLayout,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        distances: Distances<'_, Weight>,
        qkv: &ArenaTensor,
        out: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let (qkv, out) = self.arena.pair(qkv, out);
        let out = &mut out[..rows.len() * shape.out_width()];
        let (pool, backend, scratch) = (&*self.pool, self.backend, &self.attention);
        let window = distances.window;
        let bias = distances.bias.map(Weight::vector);
        match &self.kv {
            KvStore::F32(kv) => Attention {
                layout,
                kv,
                layer,
                shape,
                window,
                bias,
                rows,
                qkv,
            }
            .run(pool, backend, scratch, out),
            KvStore::Bf16(kv) => Attention {
                layout,
                kv,
                layer,
                shape,
                window,
                bias,
                rows,
                qkv,
            }
            .run(pool, backend, scratch, out),
        }
        Ok(())
    }

    fn silu_mul(
        &mut self,
        gate_up: &ArenaTensor,
        n: usize,
        a: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let isa = self.backend.isa;
        self.each_row((gate_up, 0..n), (a, 0..n), 3, |gate_up, a| {
            let (gate, up) = gate_up.split_at(a.len());
            simd::silu_mul(isa, gate, up, a);
        });
        Ok(())
    }

    fn mlp_add(
        &mut self,
        rows: Range<usize>,
        norm: Norm<'_, Weight>,
        gate_up_weight: &Weight,
        down_weight: &Weight,
        room: MlpRoom<'_, ArenaTensor>,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let MlpRoom { x, gate_up, a } = room;
        self.rms_norm(h, rows.clone(), norm.weight, norm.eps, x)?;
        let (inputs, outputs) = (x.width(), h.width());
        let (x_rows, h_rows) = self.arena.pair(x, h);
        let x_rows = &x_rows[..rows.len() * inputs];
        let h_rows = &mut h_rows[rows.start * outputs..rows.end * outputs];
        let (first, second) = (gate_up_weight.matrix(), down_weight.matrix());
        if self
            .multiplier
            .run_gated(&self.pool, x_rows, first, second, h_rows)
        {
            return Ok(());
        }
        self.linear(x, rows.len(), gate_up_weight, gate_up)?;
        self.silu_mul(gate_up, rows.len(), a)?;
        self.linear_add(a, rows, down_weight, h)
    }

    fn experts_add(
        &mut self,
        x: &ArenaTensor,
        rows: Range<usize>,
        router: &Weight,
        experts: &[Expert<Weight>],
        routing: Routing,
        room: &mut ExpertRoom<ArenaTensor>,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let (n, width) = (rows.len(), h.width());
        self.linear(x, n, router, &mut room.logits)?;
        let logits = &self.arena.read(&room.logits)[..n * experts.len()];
        let shares = Shares::of(logits, experts.len(), routing);
        self.arena.write(&room.sum)[..n * width].fill(0.0);
        for (index, expert) in experts.iter().enumerate() {
            let tokens = shares.of_expert(index);
            if tokens.is_empty() {
                continue;
            }
            let (x_rows, gathered) = self.arena.pair(x, &room.gathered);
            gather_tokens(tokens, x_rows, width, gathered);
            let m = tokens.len();
            self.linear(&room.gathered, m, &expert.gate_up, &mut room.gate_up)?;
            self.silu_mul(&room.gate_up, m, &mut room.inner)?;
            self.linear(&room.inner, m, &expert.down, &mut room.out)?;
            let (out, sum) = self.arena.pair(&room.out, &room.sum);
            add_shares(tokens, out, width, sum);
        }
        let (sum, h) = self.arena.pair(&room.sum, h);
        let h = &mut h[rows.start * width..rows.end * width];
        h.iter_mut().zip(sum).for_each(|(h, y)| *h += y);
        Ok(())
    }

    fn gather_rows(
        &mut self,
        inputs: &StepLayout,
        x: &ArenaTensor,
        rows: Range<usize>,
        y: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let width = x.width();
        let (x, y) = self.arena.pair(x, y);
        for (row, &token) in y.chunks_exact_mut(width).zip(&inputs.outputs) {
            let token = token as usize;
            if rows.contains(&token) {
                row.copy_from_slice(&x[(token - rows.start) * width..][..width]);
            }
        }
        Ok(())
    }

    fn segment_means(
        &mut self,
        inputs: &StepLayout,
        x: &ArenaTensor,
        rows: Range<usize>,
        y: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let width = x.width();
        let (x, y) = self.arena.pair(x, y);
        // The last segment and its mean: a row's output positions lie in one.
        let mut last: Option<(Range<usize>, Vec<f32>)> = None;
        for (row, &token) in y.chunks_exact_mut(width).zip(&inputs.outputs) {
            let token = token as usize;
            if !rows.contains(&token) {
                continue;
            }
            if !matches!(&last, Some((segment, _)) if segment.contains(&token)) {
                let segment = inputs.segment_of(token);
                let states = &x[(segment.start - rows.start) * width..];
                let states = states.chunks_exact(width).take(segment.len());
                let of_segment = mean(states, 0, width);
                last = Some((segment, of_segment));
            }
            let (_, mean) = last.as_ref().expect("the segment's mean was taken");
            row.copy_from_slice(mean);
        }
        Ok(())
    }

    fn vocabulary_heads(
        &mut self,
        inputs: &StepLayout,
        hidden: &ArenaTensor,
        head: &Weight,
        soft_cap: Option<f32>,
    ) -> Result<(), Error> {
        let (mut pass, buffers) = self.head_pass(inputs, hidden);
        pass.vocabulary(buffers, head.matrix(), soft_cap);
        Ok(())
    }

    fn pooling_heads(
        &mut self,
        inputs: &StepLayout,
        hidden: &ArenaTensor,
        dense: &[DenseModule<Weight>],
    ) -> Result<(), Error> {
        self.head_pass(inputs, hidden).0.pooling(dense);
        Ok(())
    }

    fn class_heads(
        &mut self,
        inputs: &StepLayout,
        hidden: &ArenaTensor,
        score: &Weight,
    ) -> Result<(), Error> {
        self.head_pass(inputs, hidden).0.classes(score.matrix());
        Ok(())
    }
}
