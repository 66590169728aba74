//! [`Ops`] on a GPU: each method is one or two launches.

use std::ops::Range;

use half::bf16;
use prelude_core::{Attention as VisibleTokens, KvCopies};
use prelude_kernels::families::{
    AttnDecodeParams, DecodeItem, DecodeRow, Gate, MeanRow, Segment, Span, Tile,
};
use prelude_models::{
    Activation, AttnShape, DenseModule, Distances, EmbedTables, Expert, ExpertRoom, ForwardState,
    MlpRoom, ModelConfig, Norm, Ops, QkNorm, Routing,
    step::{ArenaTensor, StepLayout},
};

use crate::{
    CudaConfig, Error, MemoryPlan, PromptAttention, StepPlan,
    heads::{DenseProduct, Heads, StepResults},
    kernels::{
        elementwise, encoder,
        gemm::{ProductKernel, ProductOutput, Products},
        hopper,
        hopper_gemm::HopperProducts,
        launch::Launcher,
        rope::QkNormRopeStore,
    },
    load::Weight,
    memory::{
        arena::{Arena, Region},
        host_kv::HostKv,
        kv_pool::{KvPool, KvShape},
        metadata::{Field, Metadata},
        pinned::Pinned,
        space::{Buffer, Space},
        view::View,
    },
    plan::{Chunk, PlanConfig},
};
use deferred::HeadKind;
use experts::ExpertBuffer;
use fp8::Fp8Rows;
use sizes::{partial_row_bytes, pass_room};

pub(crate) use deferred::HeadCall;
pub(crate) use sizes::Sizes;

mod attend;
mod deferred;
mod experts;
mod fp8;
mod sizes;
mod tune;

/// Room for the splits of decode rows. One row of the longest context of Qwen3-4B takes 2.7 MB;
/// more rows than fit run one after the other.
const MAX_PARTIAL_BYTES: usize = 64 << 20;

/// Query rows of a chunk from which on tiles are wide: 1,024 narrow ones, several for each
/// multiprocessor. Fewer are better spread.
const WIDE_TILES_FROM_ROWS: usize = 1024 * 64;

/// The operations, their buffers and the KV cache.
#[derive(Debug)]
pub struct CudaOps {
    pub(crate) space: Space,
    pub(crate) launcher: Launcher,
    pub(crate) products: Products,
    pub(crate) arena: Arena,
    kv: KvPool,
    /// Room for copies of blocks in host memory, if any.
    host_kv: Option<HostKv>,
    /// The keys and values of one layer, of all tokens of the step, if the step has several chunks or
    /// is a pass.
    own_kv: Option<OwnKv>,
    partial: Buffer,
    /// The room for a mixture of experts; `None` for other models.
    experts: Option<ExpertBuffer>,
    /// Room for rounded rows; `None` where matrices are bf16.
    fp8: Option<Fp8Rows>,
    metadata: Metadata,
    fields: Fields,
    pub(crate) heads: Heads,
    /// Heads that are put off while a step's launches up to them are captured.
    deferred: Option<Vec<HeadCall>>,
    pub(crate) plan_config: PlanConfig,
    /// True if `sm90_attn` computes attention of prompts.
    on_hopper: bool,
}

/// The keys and the values of one layer, of a step's own tokens: `[T, Hkv · D]` each.
pub(crate) type OwnKv = [ArenaTensor; 2];

/// The tensors that a pass holds on the GPU between its slices.
#[derive(Debug)]
pub(crate) struct PassBuffers {
    /// The region of the arena; none while a slice of the pass runs.
    pub(crate) region: Option<Region>,
    own_kv: Option<OwnKv>,
    pub(crate) state: ForwardState<ArenaTensor>,
}

/// The host's buffers of one step: metadata on its way to the GPU, and room for results.
#[derive(Debug)]
pub(crate) struct HostBuffers {
    metadata: Pinned,
    heads: StepResults,
}

/// The places of a plan's arrays in the metadata.
#[derive(Debug, Default)]
struct Fields {
    tokens: Field<i32>,
    /// The first token that positions and slots are of.
    first: usize,
    positions: Field<i32>,
    slots: Field<i32>,
    tables: Field<i32>,
    segments: Field<Segment>,
    spans: Field<Span>,
    tiles: Field<Tile>,
    decode: Field<DecodeRow>,
    items: Field<DecodeItem>,
    outputs: Field<i32>,
    means: Field<MeanRow>,
}

impl CudaOps {
    /// Takes all memory that steps will need, the KV pool last.
    pub(crate) fn new(
        space: Space,
        launcher: Launcher,
        model: &ModelConfig,
        config: &CudaConfig,
        sizes: Sizes,
        kv_shape: impl FnOnce(&Space) -> Result<KvShape, Error>,
    ) -> Result<Self, Error> {
        let shape = model.attn_shape();
        let on_hopper = hopper::takes(model)
            && match config.prompt_attention {
                PromptAttention::OfGpu => launcher.is_on_hopper(),
                PromptAttention::Varlen => false,
                PromptAttention::Hopper => true,
            };
        let bytes =
            |n: u64| usize::try_from(n).map_err(|_| Error::config("metadata_bytes", "too large"));
        let step_bytes = sizes.activation_bytes + sizes.own_kv_bytes;
        let arena = Arena::new(&space, step_bytes, sizes.pass_bytes)?;
        let partial = space.alloc("partial", sizes.partial_bytes)?;
        let experts = sizes.experts.map(|of| ExpertBuffer::new(&space, of));
        let experts = experts.transpose()?;
        let fp8 = sizes.fp8.map(|of| Fp8Rows::new(&space, of)).transpose()?;
        let products = Products::new(&space, config)?;
        let metadata = Metadata::new(&space, bytes(config.metadata_bytes)?)?;
        let heads = Heads::new(&space, model, config, sizes.result_tokens)?;
        let kv = KvPool::new(&space, kv_shape(&space)?)?;
        let host_kv = HostKv::new(&space, &kv, config.host_bytes)?;
        Ok(Self {
            plan_config: PlanConfig {
                block_size: config.block_size,
                chunk_tokens: config.chunk_tokens as usize,
                group: shape.heads / shape.kv_heads,
                wide_tokens: match has_wide_tiles(model) {
                    // The kernel for Hopper has no others, whatever a chunk's length is.
                    true if on_hopper => 0,
                    true => WIDE_TILES_FROM_ROWS / shape.heads,
                    false => usize::MAX,
                },
                decode_as_segments: config.deterministic,
                pad_tokens: config.graph_tokens as usize,
                splits_max: sizes.partial_bytes / (shape.heads * partial_row_bytes(shape)),
                rows_shared: rows_shared(shape),
                whole: model.attention == VisibleTokens::Full,
            },
            deferred: None,
            space,
            launcher,
            products,
            arena,
            kv,
            host_kv,
            own_kv: None,
            partial,
            experts,
            fp8,
            metadata,
            fields: Fields::default(),
            heads,
            on_hopper,
        })
    }

    /// Returns buffers for [`CudaOps::exchange`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], of the host's.
    pub(crate) fn spare(&self) -> Result<HostBuffers, Error> {
        Ok(HostBuffers {
            metadata: self.metadata.spare(&self.space)?,
            heads: self.heads.spare(&self.space)?,
        })
    }

    /// Swaps the latest step's host buffers with `host`, so that another step may be laid out while
    /// that one runs.
    pub(crate) fn exchange(&mut self, host: &mut HostBuffers) {
        self.metadata.exchange(&mut host.metadata);
        self.heads.exchange(&mut host.heads);
    }

    /// Takes the region of a pass that begins, of the arena that `passes` lie in.
    ///
    /// # Errors
    /// [`Error::Step`] if there is no room, or the driver's.
    pub(crate) fn begin_pass<'a>(
        &self,
        model: &ModelConfig,
        layout: &StepLayout,
        passes: impl Iterator<Item = &'a mut PassBuffers>,
    ) -> Result<PassBuffers, Error> {
        let (tokens, outputs) = (layout.tokens.len(), layout.outputs.len());
        let regions = passes.filter_map(|pass| pass.region.as_mut());
        let mut region = self
            .arena
            .take_region(regions, pass_room(model, tokens, outputs))?;
        let width = model.num_key_value_heads * model.head_dim;
        let own_kv = [region.alloc(tokens, width)?, region.alloc(tokens, width)?];
        Ok(PassBuffers {
            region: Some(region),
            own_kv: Some(own_kv),
            state: ForwardState::default(),
        })
    }

    /// Exchanges what the operations work on for what a pass holds.
    pub(crate) const fn exchange_pass(&mut self, pass: &mut PassBuffers) {
        self.arena.exchange(&mut pass.region);
        std::mem::swap(&mut self.own_kv, &mut pass.own_kv);
    }

    /// Forgets the previous step and sends what the next one, or the next slice, needs.
    ///
    /// # Errors
    /// [`Error::Step`] if the plan exceeds the metadata buffer, or the driver's.
    pub(crate) fn begin(&mut self, plan: &mut StepPlan) -> Result<(), Error> {
        self.lay_out(plan)?;
        if plan.slice.as_ref().is_none_or(|slice| slice.is_last) {
            self.heads.begin(&mut plan.layout, &mut self.metadata)?;
        }
        self.send()
    }

    /// Queues the copy of what was laid out to the device.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn send(&mut self) -> Result<(), Error> {
        self.metadata.send()
    }

    /// Forgets the previous step and gives the next one's tensors and metadata their places, those of
    /// its heads excepted.
    ///
    /// # Errors
    /// [`Error::Step`] if the plan exceeds the metadata buffer.
    pub(crate) fn lay_out(&mut self, plan: &StepPlan) -> Result<(), Error> {
        self.arena.reset();
        self.own_kv = None;
        let layout = &plan.layout;
        let whole = self.plan_config.whole;
        if plan.slice.is_none() && plan.chunks.len() > 1 && !whole {
            let (tokens, width) = (layout.tokens.len(), self.kv.shape().row_len());
            let mut half = || self.arena.alloc_kept(tokens, width);
            self.own_kv = Some([half()?, half()?]);
        }
        let metadata = &mut self.metadata;
        metadata.clear();
        let (ids, window) = match &plan.slice {
            None => (&layout.tokens[..], 0..layout.tokens.len()),
            Some(slice) if slice.is_first => (&layout.tokens[..], slice.window.clone()),
            Some(slice) => (&[][..], slice.window.clone()),
        };
        // Each segment has a token at least.
        let (segments, spans) = plan
            .shape
            .map_or((0, 0), |shape| (shape.tokens, shape.spans));
        self.fields = Fields {
            tokens: metadata.push(ints(ids))?,
            first: window.start,
            positions: metadata.push(ints(&layout.positions[window.clone()]))?,
            slots: metadata.push(ints(&layout.slots[window]))?,
            segments: metadata.push_within(&plan.segments, segments)?,
            spans: metadata.push_within(&plan.spans, spans)?,
            tiles: metadata.push(&plan.tiles)?,
            decode: metadata.push(&plan.decode)?,
            items: metadata.push(&plan.items)?,
            outputs: metadata.push(ints(&layout.outputs))?,
            means: metadata.push(&plan.means(self.plan_config))?,
            // Last of those that a graph reads: its length is not among what makes a step's shape,
            // and all before it must lie where they lay.
            tables: metadata.push(ints(&layout.blocks))?,
        };
        Ok(())
    }

    /// Returns the memory that these operations took, beside weights.
    pub(crate) fn memory(&self, weights_bytes: u64) -> MemoryPlan {
        let (arena, passes) = self.arena.bytes();
        let arena = arena + self.experts.as_ref().map_or(0, ExpertBuffer::bytes);
        let arena = arena + self.fp8.as_ref().map_or(0, Fp8Rows::bytes);
        let buffers = self.partial.bytes()
            + self.metadata.bytes()
            + self.heads.bytes()
            + self.products.bytes();
        MemoryPlan {
            weights_bytes,
            kv_bytes: self.kv.shape().bytes(),
            arena_bytes: arena as u64,
            pass_bytes: passes as u64,
            buffers_bytes: buffers as u64,
            host_bytes: self.host_kv.as_ref().map_or(0, HostKv::bytes),
        }
    }

    /// Returns the number of blocks of host memory.
    pub(crate) fn host_blocks(&self) -> u32 {
        self.host_kv.as_ref().map_or(0, HostKv::blocks)
    }

    /// Queues copies of blocks from and to host memory.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn copy_kv(&mut self, copies: &KvCopies) -> Result<(), Error> {
        match &mut self.host_kv {
            Some(host) => host.copy(&mut self.kv, copies),
            None => Ok(()),
        }
    }

    pub(crate) const fn num_blocks(&self) -> usize {
        self.kv.shape().blocks
    }

    /// Returns the keys and values of a layer in the pool, if anything is kept there.
    fn pages(&self, layer: usize) -> Option<(View<bf16>, View<bf16>)> {
        (!self.plan_config.whole).then(|| self.kv.layer(layer))
    }

    /// Returns the kernel for Hopper, if gates of so many rows are computed with their product at once.
    fn for_gates(&self, rows: usize, weight: &Weight) -> Option<HopperProducts> {
        if weight.fp8().is_some() {
            return None;
        }
        let (w, bias) = weight.matrix();
        self.products.for_gates(rows, w, bias)
    }

    fn multiply(
        &mut self,
        x: View<bf16>,
        weight: &Weight,
        output: ProductOutput,
    ) -> Result<(), Error> {
        if let Some(weight) = weight.fp8() {
            return self.multiply_fp8(x, weight, output);
        }
        let (w, bias) = weight.matrix();
        self.products
            .multiply(&mut self.launcher, x, w, bias, output)
    }
}

/// Returns token ids, positions, slots and block numbers as kernels take them: an id that an
/// outstanding step samples, and the slot of a token that is not kept, are negative.
fn ints(values: &[u32]) -> &[i32] {
    bytemuck::cast_slice(values)
}

/// Returns the number of rows of one token that can be read together, 1 if none can.
fn rows_shared(shape: AttnShape) -> usize {
    let int = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    AttnDecodeParams::rows_shared(int(shape.heads / shape.kv_heads), int(shape.head_dim)) as usize
}

/// Returns true if there are kernels with wide tiles for a model's attention: not for windows and
/// bounds of scores in decoders, for numbers for each distance, and for large heads.
fn has_wide_tiles(model: &ModelConfig) -> bool {
    let encoder = model.encoder.as_ref();
    match model.attention {
        VisibleTokens::Full => {
            model.head_dim <= 64 && encoder.is_none_or(|encoder| encoder.relative_buckets == 0)
        }
        VisibleTokens::Causal => {
            let is_plain = model.local.is_none() && model.scales.attention_cap.is_none();
            is_plain && model.head_dim <= 128
        }
    }
}

/// Returns the chunk that a layer method was given.
fn chunk<'a>(plan: &'a StepPlan, rows: &Range<usize>) -> Result<&'a Chunk, Error> {
    let found = plan.chunks.iter().find(|chunk| chunk.tokens == *rows);
    found.ok_or_else(|| Error::Step(format!("tokens {rows:?} are no chunk of the plan")))
}

impl Ops for CudaOps {
    type Tensor = ArenaTensor;
    type Weight = Weight;
    type Inputs<'a> = StepPlan;
    type Error = Error;

    fn num_tokens(&self, inputs: &StepPlan) -> usize {
        inputs.layout.tokens.len()
    }

    fn num_outputs(&self, inputs: &StepPlan) -> usize {
        inputs.layout.outputs.len()
    }

    fn has_outputs(&self, inputs: &StepPlan, rows: Range<usize>) -> bool {
        inputs.layout.has_outputs(rows)
    }

    fn chunk_tokens(&self) -> usize {
        self.plan_config.chunk_tokens
    }

    fn alloc(&mut self, rows: usize, width: usize) -> Result<ArenaTensor, Error> {
        Ok(self.arena.alloc(rows, width)?)
    }

    fn alloc_kept(&mut self, rows: usize, width: usize) -> Result<ArenaTensor, Error> {
        Ok(self.arena.alloc_kept(rows, width)?)
    }

    fn embed(
        &mut self,
        inputs: &StepPlan,
        table: &Weight,
        scale: f32,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let h = self.arena.view(h).slice(0..inputs.layout.tokens.len());
        let ids = self.metadata.view(self.fields.tokens);
        let drawn = self.heads.drawn();
        elementwise::embed(&mut self.launcher, ids, drawn, (table.matrix().0, scale), h)
    }

    /// Returns the end of the chunk that begins at token `start`; the last chunk has the padding of a
    /// step too.
    fn whole_segments(&self, inputs: &StepPlan, start: usize) -> usize {
        let mut chunks = inputs.chunks.iter().map(|chunk| &chunk.tokens);
        let chunk = chunks.find(|tokens| tokens.start == start);
        chunk.map_or(inputs.layout.tokens.len(), |tokens| tokens.end)
    }

    fn embed_sum(
        &mut self,
        _: &StepPlan,
        rows: Range<usize>,
        tables: EmbedTables<'_, Weight>,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let h = self.arena.view(h).slice(0..rows.len());
        let ids = self.metadata.part(self.fields.tokens, rows.clone());
        let positions = self.metadata.part(self.fields.positions, rows);
        let tables = encoder::Tables {
            words: tables.words.map(|table| table.matrix().0),
            num_words: tables.num_words,
            num_types: tables.num_types,
            positions: tables.positions.map(|table| table.matrix().0),
            types: tables.types.map(|table| table.matrix().0),
        };
        encoder::embed_sum(&mut self.launcher, ids, positions, tables, h)
    }

    fn layer_norm(
        &mut self,
        h: &mut ArenaTensor,
        n: usize,
        weight: &Weight,
        bias: &Weight,
        eps: f32,
    ) -> Result<(), Error> {
        let h = self.arena.view(h).slice(0..n);
        let weights = [weight.vector(), bias.vector()];
        encoder::layer_norm(&mut self.launcher, None, weights, eps, h)
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
        let h = self.arena.view(h).slice(0..n);
        let x = self.arena.view(x).slice(0..n);
        let weights = [weight.vector(), bias.vector()];
        encoder::layer_norm(&mut self.launcher, Some(h), weights, eps, x)
    }

    fn activate(&mut self, x: &mut ArenaTensor, n: usize, f: Activation) -> Result<(), Error> {
        let x = self.arena.view(x).slice(0..n);
        encoder::activate(&mut self.launcher, x, f)
    }

    fn activate_mul(
        &mut self,
        gate_up: &ArenaTensor,
        n: usize,
        f: Activation,
        a: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let gate = match f {
            Activation::Gelu => Gate::GeluErf,
            Activation::GeluTanh => Gate::GeluTanh,
            Activation::Relu => Gate::Relu,
            Activation::Tanh => return Err(Error::no_kernels("gates of tanh")),
        };
        let gate_up = self.arena.view(gate_up).slice(0..n);
        let a = self.arena.view(a).slice(0..n);
        elementwise::gate_mul(&mut self.launcher, gate_up, gate, a)
    }

    fn attention_by_distance(
        &mut self,
        inputs: &StepPlan,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        distances: Distances<'_, Weight>,
        qkv: &ArenaTensor,
        out: &mut ArenaTensor,
    ) -> Result<(), Error> {
        self.attend(inputs, layer, rows, (shape, distances), qkv, out)
    }

    fn segment_means(
        &mut self,
        inputs: &StepPlan,
        x: &ArenaTensor,
        rows: Range<usize>,
        y: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let y = self.arena.view(y).slice(0..inputs.layout.outputs.len());
        let x = self.arena.view(x).slice(0..rows.len());
        let means = self.metadata.view(self.fields.means);
        encoder::segment_means(&mut self.launcher, means, x, rows.start, y)
    }

    fn rms_norm(
        &mut self,
        h: &ArenaTensor,
        rows: Range<usize>,
        weight: &Weight,
        eps: f32,
        x: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let x = self.arena.view(x).slice(0..rows.len());
        let h = self.arena.view(h).slice(rows);
        elementwise::rms_norm(&mut self.launcher, h, weight.norm(), eps, x)
    }

    fn rms_norm_add(
        &mut self,
        x: &ArenaTensor,
        rows: Range<usize>,
        weight: &Weight,
        eps: f32,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let x = self.arena.view(x).slice(0..rows.len());
        let h = self.arena.view(h).slice(rows);
        elementwise::rms_norm_add(&mut self.launcher, x, weight.norm(), eps, h)
    }

    fn linear(
        &mut self,
        x: &ArenaTensor,
        n: usize,
        weight: &Weight,
        y: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let x = self.arena.view(x).slice(0..n);
        let y = self.arena.view(y).slice(0..n);
        self.multiply(x, weight, ProductOutput::Write(y))
    }

    fn linear_add(
        &mut self,
        x: &ArenaTensor,
        rows: Range<usize>,
        weight: &Weight,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let x = self.arena.view(x).slice(0..rows.len());
        let h = self.arena.view(h).slice(rows);
        self.multiply(x, weight, ProductOutput::Add(h))
    }

    fn qk_norm_rope_store(
        &mut self,
        _: &StepPlan,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        norm: Option<QkNorm<'_, Weight>>,
        rope: Option<&Weight>,
        qkv: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let rope = match rope {
            Some(rope) => rope,
            // Queries, keys and values are where attention finds them.
            None if self.plan_config.whole && norm.is_none() => return Ok(()),
            None => return Err(Error::no_kernels("queries and keys that are not rotated")),
        };
        let qkv = self.arena.view(qkv).slice(0..rows.len());
        let step = self.own_kv.as_ref().map(|own| {
            let [k, v] = own.each_ref().map(|t| self.arena.view(t));
            (k.slice(rows.clone()), v.slice(rows.clone()))
        });
        let sent = rows.start - self.fields.first..rows.end - self.fields.first;
        QkNormRopeStore {
            shape,
            qkv,
            positions: self.metadata.part(self.fields.positions, sent.clone()),
            slots: self.metadata.part(self.fields.slots, sent),
            rope: rope.rope(),
            norms: norm.map(|norm| [norm.q.vector(), norm.k.vector()]),
            eps: norm.map_or(0.0, |norm| norm.eps),
            offset: norm.map_or(0.0, |norm| norm.q.norm().1),
            pages: self.pages(layer),
            block_size: self.kv.shape().block_size,
            step,
        }
        .launch(&mut self.launcher)
    }

    fn attention(
        &mut self,
        inputs: &StepPlan,
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
        self.attend(inputs, layer, rows, (shape, distances), qkv, out)
    }

    fn silu_mul(
        &mut self,
        gate_up: &ArenaTensor,
        n: usize,
        a: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let gate_up = self.arena.view(gate_up).slice(0..n);
        let a = self.arena.view(a).slice(0..n);
        elementwise::gate_mul(&mut self.launcher, gate_up, Gate::Silu, a)
    }

    fn norm_linear(
        &mut self,
        h: &ArenaTensor,
        rows: Range<usize>,
        norm: Norm<'_, Weight>,
        weight: &Weight,
        x: &mut ArenaTensor,
        y: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let n = rows.len();
        if let Some(of_fp8) = weight.fp8() {
            let h = self.arena.view(h).slice(rows.clone());
            let y = self.arena.view(y).slice(0..n);
            if self.norm_multiply_fp8(h, norm, of_fp8, y)? {
                return Ok(());
            }
        }
        self.rms_norm(h, rows, norm.weight, norm.eps, x)?;
        self.linear(x, n, weight, y)
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
        let (n, MlpRoom { x, gate_up, a }) = (rows.len(), room);
        if let Some(hopper) = self.for_gates(n, gate_up_weight) {
            self.rms_norm(h, rows.clone(), norm.weight, norm.eps, x)?;
            let of_x = self.arena.view(x).slice(0..n);
            let of_a = self.arena.view(a).slice(0..n);
            let (w, _) = gate_up_weight.matrix();
            hopper.multiply_gated(&mut self.launcher, of_x, w, of_a)?;
            self.products.note(ProductKernel::Hopper);
            return self.linear_add(a, rows, down_weight, h);
        }
        self.norm_linear(h, rows.clone(), norm, gate_up_weight, x, gate_up)?;
        let of_gate_up = self.arena.view(gate_up).slice(0..n);
        let of_h = self.arena.view(h).slice(rows.clone());
        if self.gated_add_fp8(of_gate_up, down_weight, of_h)? {
            return Ok(());
        }
        self.silu_mul(gate_up, n, a)?;
        self.linear_add(a, rows, down_weight, h)
    }

    fn expert_room_rows(&self, _: usize) -> usize {
        0
    }

    fn experts_add(
        &mut self,
        x: &ArenaTensor,
        rows: Range<usize>,
        router: &Weight,
        experts: &[Expert<Weight>],
        routing: Routing,
        _: &mut ExpertRoom<ArenaTensor>,
        h: &mut ArenaTensor,
    ) -> Result<(), Error> {
        self.add_experts(x, rows, (router, experts), routing, h)
    }

    fn gather_rows(
        &mut self,
        inputs: &StepPlan,
        x: &ArenaTensor,
        rows: Range<usize>,
        y: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let y = self.arena.view(y).slice(0..inputs.layout.outputs.len());
        let x = self.arena.view(x).slice(0..rows.len());
        let index = self.metadata.view(self.fields.outputs);
        if rows == (0..inputs.layout.tokens.len()) {
            return elementwise::gather_rows(&mut self.launcher, index, x, y);
        }
        elementwise::gather_part(&mut self.launcher, index, x, rows.start, y)
    }

    fn vocabulary_heads(
        &mut self,
        inputs: &StepPlan,
        hidden: &ArenaTensor,
        head: &Weight,
        soft_cap: Option<f32>,
    ) -> Result<(), Error> {
        let kind = HeadKind::Vocabulary {
            head: head.matrix().0,
            cap: soft_cap.unwrap_or(0.0),
        };
        self.head(kind, inputs, hidden)
    }

    fn pooling_heads(
        &mut self,
        inputs: &StepPlan,
        hidden: &ArenaTensor,
        dense: &[DenseModule<Weight>],
    ) -> Result<(), Error> {
        let dense = dense.iter().map(DenseProduct::new).collect();
        self.head(HeadKind::Pooling { dense }, inputs, hidden)
    }

    fn class_heads(
        &mut self,
        inputs: &StepPlan,
        hidden: &ArenaTensor,
        score: &Weight,
    ) -> Result<(), Error> {
        let (score, bias) = score.matrix();
        self.head(HeadKind::Classes { score, bias }, inputs, hidden)
    }
}
