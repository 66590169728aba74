//! The device boundary for models: a vocabulary of fused operations.
//!
//! A model is written once against [`Ops`] and runs on every executor. The grain is that of a
//! fused kernel, not of a tensor library: too fine would put kernels' boundaries into the model,
//! too coarse would give one model file per device. The test of the grain: a model file names no
//! device, and a kernel file names no model.
//!
//! # Conventions
//! - `T` tokens of the step, `P` output positions (hidden states that some head reads), `H` hidden
//!   size, `Hq`/`Hkv` query/key-value heads, `D` head size, `I` MLP width, `V` vocabulary.
//! - Tensors are row-major `[rows, width]`, in the executor's activation type. Weights are
//!   `[out, in]` as stored in checkpoints; products are `x · Wᵀ`. Sums and softmax accumulate in
//!   f32 or wider.
//! - Outputs are arguments, allocated by [`Ops::alloc`] from an arena that the executor resets
//!   before each step: activations take no memory from the system during a step, and the same
//!   sequence of calls yields the same addresses. Heads may allocate lists and what they return. An output never aliases an input unless a method says so.
//!   What a step that runs in slices needs in its next slice is allocated by [`Ops::alloc_kept`].
//! - **Batch invariance**: the value of an output row depends on that row's inputs and absolute
//!   positions only, never on which other rows are in the step, on chunking, or on where the
//!   context's K/V come from. Bit for bit on the CPU.
//! - Methods that take `rows` work on that range of the step's tokens: layers run in token chunks
//!   (hybrid prefilling, PrefillOnly §4), so intermediates need room for a chunk only. A tensor
//!   called a *chunk tensor* holds row `i` of the chunk in its own row `i`.

use std::ops::Range;

use prelude_core::Attention;

/// Shape of one layer's attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttnShape {
    /// `Hq`: query heads. Query head `j` reads key-value head `j / (Hq / Hkv)`.
    pub heads: usize,
    /// `Hkv`: key-value heads; divides `heads`.
    pub kv_heads: usize,
    /// `D`: size of a head; even. Not necessarily `hidden / heads`.
    pub head_dim: usize,
    /// Multiplies `q · k`: `D^-0.5` unless the model says otherwise.
    pub scale: f32,
    /// Bounds scaled scores to `±cap`: `cap · tanh(score / cap)`. `None` leaves them as they are.
    pub soft_cap: Option<f32>,
    /// The tokens of a prompt that each of its tokens sees.
    pub attention: Attention,
}

impl AttnShape {
    /// Returns the width of a fused row of queries, keys and values: `(Hq + 2 Hkv) · D`.
    #[must_use]
    pub const fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Returns the width of a row of attention outputs: `Hq · D`.
    #[must_use]
    pub const fn out_width(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// A function that is applied to each number of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · Φ(x)`, where `Φ` is the normal distribution: Hendrycks and Gimpel, GELUs (2016), §2.
    Gelu,
    /// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`, the same paper's approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `tanh(x)`.
    Tanh,
}

/// Tables whose rows are added up to hidden states of an encoder, the first or later ones.
#[derive(Debug)]
pub struct EmbedTables<'a, W> {
    /// Rows by the id of a token without its type: `[V, H]`. `None`: rows are added to what is there.
    pub words: Option<&'a W>,
    /// Number of words: a token of type `k` has an id in `k · V..(k + 1) · V`.
    pub num_words: u32,
    /// Number of types that ids have, whether or not their rows are added here.
    pub num_types: u32,
    /// Rows by position: `[≥ positions, H]`. `None` if positions are not in a table.
    pub positions: Option<&'a W>,
    /// Rows by the type of a token: `[types, H]`. `None` if the model has no types.
    pub types: Option<&'a W>,
}

/// The part of attention that depends on how far apart two tokens of a text are.
#[derive(Debug)]
pub struct Distances<'a, W> {
    /// Tokens further apart than this many positions do not see each other; `None` leaves all that
    /// [`AttnShape::attention`] lets a token see.
    pub window: Option<u32>,
    /// Numbers added to the scaled products of queries and keys: `[Hq · (2 R + 1)]`, for each head
    /// by the position of the key less that of the query, from `-R` to `R`. Beyond that the
    /// outermost numbers hold.
    pub bias: Option<&'a W>,
}

// The impls are written out because derived ones would ask the same traits of `W`.
impl<W> Clone for Distances<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Distances<'_, W> {}

/// The weights of one expert of a mixture.
#[derive(Debug)]
pub struct Expert<W> {
    /// `[2 I, H]`: gate, then up.
    pub gate_up: W,
    /// `[H, I]`.
    pub down: W,
}

/// The choice of the experts that work on a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// The number of experts that compute a token: those with the largest probabilities, of equal
    /// ones the first.
    pub per_token: usize,
    /// True if the probabilities of the chosen experts are divided by their sum.
    pub normalise: bool,
}

/// Room for the intermediates of a mixture of `E` experts of width `I` on a chunk of tokens, whose
/// contents are unspecified before and after.
#[derive(Debug)]
pub struct ExpertRoom<T> {
    /// `[_, E]`.
    pub logits: T,
    /// `[_, H]`.
    pub gathered: T,
    /// `[_, 2 I]`.
    pub gate_up: T,
    /// `[_, I]`.
    pub inner: T,
    /// `[_, H]`.
    pub out: T,
    /// `[_, H]`.
    pub sum: T,
}

/// A product behind a pooling: a module `Dense` of sentence-transformers.
#[derive(Debug)]
pub struct DenseModule<W> {
    /// `[outputs, inputs]`, with a bias or without.
    pub weight: W,
    /// The function of each number that comes out, if there is one.
    pub activation: Option<Activation>,
}

/// A norm as [`Ops::rms_norm`] ahead of a product.
#[derive(Debug)]
pub struct Norm<'a, W> {
    /// The weight, by [`crate::WeightLoader::norm`]: `[H]`.
    pub weight: &'a W,
    /// Added to the mean square inside the root.
    pub eps: f32,
}

// The impls are written out because derived ones would ask the same traits of `W`.
impl<W> Clone for Norm<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Norm<'_, W> {}

/// Room for the intermediates of a gated MLP of width `I` on a chunk of tokens, whose contents are
/// unspecified before and after, so that a device may keep intermediates where and how it likes.
#[derive(Debug)]
pub struct MlpRoom<'a, T> {
    /// `[_, H]`.
    pub x: &'a mut T,
    /// `[_, 2 I]`.
    pub gate_up: &'a mut T,
    /// `[_, I]`.
    pub a: &'a mut T,
}

/// Norms of each head of a layer's queries and keys, as [`Ops::rms_norm`].
#[derive(Debug)]
pub struct QkNorm<'a, W> {
    /// Weight of the queries' norm: `[D]`.
    pub q: &'a W,
    /// Weight of the keys' norm: `[D]`.
    pub k: &'a W,
    /// Added to the mean square inside the root.
    pub eps: f32,
}

// The impls are written out because derived ones would ask the same traits of `W`.
impl<W> Clone for QkNorm<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for QkNorm<'_, W> {}

/// Fused operations on one device, during one step.
pub trait Ops {
    /// A cheap handle to `[rows, width]` activations in the step's arena.
    type Tensor;
    /// A matrix, vector or table in the device's own format.
    type Weight;
    /// The step's batch as the executor laid it out: token ids, positions, KV spans, KV writes,
    /// output positions and rows.
    type Inputs<'a>;
    /// The errors of the device.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns `T`, the number of tokens computed by the step.
    fn num_tokens(&self, inputs: &Self::Inputs<'_>) -> usize;

    /// Returns `P`, the number of output positions of the step, in the order in which heads read them.
    fn num_outputs(&self, inputs: &Self::Inputs<'_>) -> usize;

    /// Returns true if some output position is among these tokens of the step.
    fn has_outputs(&self, inputs: &Self::Inputs<'_>, rows: Range<usize>) -> bool;

    /// Returns the most tokens that a layer's intermediates have room for.
    fn chunk_tokens(&self) -> usize;

    /// Takes an uninitialised `[rows, width]` tensor from the step's arena, that stays until the end
    /// of the slice of the step that runs.
    ///
    /// # Errors
    /// When the arena, sized at start for the largest step, has no room: a defect of the executor.
    fn alloc(&mut self, rows: usize, width: usize) -> Result<Self::Tensor, Self::Error>;

    /// Takes an uninitialised `[rows, width]` tensor that stays until the end of the step, through
    /// all of its slices. A step takes these before any other.
    ///
    /// # Errors
    /// As [`Ops::alloc`].
    fn alloc_kept(&mut self, rows: usize, width: usize) -> Result<Self::Tensor, Self::Error>;

    /// Computes `h[t] = scale · table[id[t]]`, in f32 and rounded once. `h`: `[T, H]`, all tokens of
    /// the step.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn embed(
        &mut self,
        inputs: &Self::Inputs<'_>,
        table: &Self::Weight,
        scale: f32,
        h: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Returns the end of the longest run of whole segments that begins with the token `start` and
    /// has at most [`Ops::chunk_tokens`] tokens: the chunks of a model whose attention sees whole
    /// prompts. `start` is the first token of a segment; a segment that is longer than a chunk is a
    /// defect of the executor.
    fn whole_segments(&self, inputs: &Self::Inputs<'_>, start: usize) -> usize;

    /// Computes `h[i] = words[id] + types[type] + positions[position]` of token `rows.start + i`,
    /// summed in this order in f32, without the tables that there are not; without `words` the sum
    /// begins with `h[i]`. `h`: chunk tensor `[_, H]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn embed_sum(
        &mut self,
        inputs: &Self::Inputs<'_>,
        rows: Range<usize>,
        tables: EmbedTables<'_, Self::Weight>,
        h: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Computes `h[i] = (h[i] - mean(h[i])) / sqrt(var(h[i]) + eps) · weight + bias` for the first `n`
    /// rows, in place: Ba et al., Layer Normalization (2016), §3. The variance is the mean square of
    /// the differences from the mean; both in f32. `h`: `[≥ n, H]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn layer_norm(
        &mut self,
        h: &mut Self::Tensor,
        n: usize,
        weight: &Self::Weight,
        bias: &Self::Weight,
        eps: f32,
    ) -> Result<(), Self::Error>;

    /// Writes to `x[i]` what [`Ops::layer_norm`] makes of `h[i]`, for the first `n` rows. `h` and `x`:
    /// `[≥ n, H]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn layer_norm_of(
        &mut self,
        h: &Self::Tensor,
        n: usize,
        weight: &Self::Weight,
        bias: &Self::Weight,
        eps: f32,
        x: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Computes `x[i] = f(x[i])` for the first `n` rows, in place and in f32. `x`: `[≥ n, _]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn activate(
        &mut self,
        x: &mut Self::Tensor,
        n: usize,
        f: Activation,
    ) -> Result<(), Self::Error>;

    /// Computes `a[i] = f(g[i]) · u[i]` for the first `n` rows, in f32. `gate_up`: `[≥ n, 2 I]`, gate
    /// then up; `a`: `[≥ n, I]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn activate_mul(
        &mut self,
        gate_up: &Self::Tensor,
        n: usize,
        f: Activation,
        a: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Computes `x[i] = h[rows][i] / sqrt(mean(h²) + eps) · weight`. Mean square in f32; the quotient
    /// is rounded to the activation type before the product with the weight, as the reference does,
    /// unless the weight was loaded with an offset. `weight`: of [`crate::WeightLoader::norm`]. `h`:
    /// `[≥ rows.end, H]`; `x`: chunk tensor.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn rms_norm(
        &mut self,
        h: &Self::Tensor,
        rows: Range<usize>,
        weight: &Self::Weight,
        eps: f32,
        x: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Computes `h[rows][i] += x[i] / sqrt(mean(x²) + eps) · weight`: a norm behind a half of a layer.
    /// In f32 throughout, and rounded once. `x`: chunk tensor; `h`: `[≥ rows.end, H]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn rms_norm_add(
        &mut self,
        x: &Self::Tensor,
        rows: Range<usize>,
        weight: &Self::Weight,
        eps: f32,
        h: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Computes `y[i] = W · x[i] (+ bias)` for the first `n` rows. `x`: `[≥ n, in]`, `y`: `[≥ n, out]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn linear(
        &mut self,
        x: &Self::Tensor,
        n: usize,
        weight: &Self::Weight,
        y: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Computes `h[rows][i] += W · x[i] (+ bias)`. `x`: chunk tensor; `h`: `[≥ rows.end, H]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn linear_add(
        &mut self,
        x: &Self::Tensor,
        rows: Range<usize>,
        weight: &Self::Weight,
        h: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Normalises each head of q and k if there is a `norm`, rotates them by their token's absolute
    /// position if there is a `rope` (element `i` with `i + D/2`; as made by the loader), and places K and V where
    /// this step's attention and, for kept tokens, later steps find them. `qkv`: chunk tensor
    /// `[_, (Hq + 2 Hkv) · D]`, q then k then v; q is rewritten in place, the k and v parts are
    /// unspecified afterwards.
    ///
    /// # Errors
    /// [`Ops::Error`].
    #[expect(
        clippy::too_many_arguments,
        reason = "one fused kernel; a struct would be used once"
    )]
    fn qk_norm_rope_store(
        &mut self,
        inputs: &Self::Inputs<'_>,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        norm: Option<QkNorm<'_, Self::Weight>>,
        rope: Option<&Self::Weight>,
        qkv: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Computes attention of the chunk's queries over their whole visible context: cached blocks,
    /// ancestor segments, own segment causally. Keys of all earlier tokens of the step have been
    /// placed. With [`Attention::Full`] every query sees its whole segment, which has no context, and
    /// the chunk has whole segments. Keys are visited in tiles that start at absolute multiples of a
    /// constant, with softmax in f32. `qkv`: as left by [`Ops::qk_norm_rope_store`]; `out`: chunk
    /// tensor `[_, Hq · D]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn attention(
        &mut self,
        inputs: &Self::Inputs<'_>,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        qkv: &Self::Tensor,
        out: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// [`Ops::attention`] that depends on `distances` too. A bias is for whole prompts alone
    /// ([`Attention::Full`]); a window is for causal attention as well, whose tokens have none behind
    /// them.
    ///
    /// # Errors
    /// [`Ops::Error`].
    #[expect(
        clippy::too_many_arguments,
        reason = "one fused kernel; a struct would be used once"
    )]
    fn attention_by_distance(
        &mut self,
        inputs: &Self::Inputs<'_>,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        distances: Distances<'_, Self::Weight>,
        qkv: &Self::Tensor,
        out: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Computes `a[i] = silu(g[i]) · u[i]` for the first `n` rows, `silu(g) = g / (1 + e^-g)` in f32.
    /// `gate_up`: `[≥ n, 2 I]`, gate then up; `a`: `[≥ n, I]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn silu_mul(
        &mut self,
        gate_up: &Self::Tensor,
        n: usize,
        a: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Computes `y[i] = W · x[i] (+ bias)`, where `x[i]` is what [`Ops::rms_norm`] makes of
    /// `h[rows][i]`. `h`: `[≥ rows.end, H]`; `x`: chunk tensor `[_, H]`, whose contents are unspecified
    /// afterwards; `y`: chunk tensor `[_, out]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn norm_linear(
        &mut self,
        h: &Self::Tensor,
        rows: Range<usize>,
        norm: Norm<'_, Self::Weight>,
        weight: &Self::Weight,
        x: &mut Self::Tensor,
        y: &mut Self::Tensor,
    ) -> Result<(), Self::Error> {
        self.rms_norm(h, rows.clone(), norm.weight, norm.eps, x)?;
        self.linear(x, rows.len(), weight, y)
    }

    /// Computes `h[rows][i] += D · (silu(g) · u)`, where `g` and `u` are the halves of `G · x[i]`, and
    /// `x[i]` is what [`Ops::rms_norm`] makes of `h[rows][i]`: the second half of a layer. `h`:
    /// `[≥ rows.end, H]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn mlp_add(
        &mut self,
        rows: Range<usize>,
        norm: Norm<'_, Self::Weight>,
        gate_up_weight: &Self::Weight,
        down_weight: &Self::Weight,
        room: MlpRoom<'_, Self::Tensor>,
        h: &mut Self::Tensor,
    ) -> Result<(), Self::Error> {
        let MlpRoom { x, gate_up, a } = room;
        self.norm_linear(h, rows.clone(), norm, gate_up_weight, x, gate_up)?;
        self.silu_mul(gate_up, rows.len(), a)?;
        self.linear_add(a, rows, down_weight, h)
    }

    /// Returns the rows of [`ExpertRoom`]'s tensors for a chunk of `rows` tokens: as many, or none on a
    /// device that has room for all experts together of its own.
    fn expert_room_rows(&self, rows: usize) -> usize {
        rows
    }

    /// `h[rows][i] += Σ p · D · (silu(g) · u)` over the experts that `routing` chooses for row `i`, where
    /// `g` and `u` are the halves of an expert's `G · x[i]` and `p` its share of the softmax of
    /// `router · x[i]` over all experts. The sum runs in the order of experts, in f32. `x`: chunk
    /// tensor; `router`: `[E, H]`, of [`crate::WeightLoader::head`]; the experts' weights: of
    /// [`crate::WeightLoader::linear_of_stack`] or [`crate::WeightLoader::linear_fp8_of_stack`];
    /// `h`: `[≥ rows.end, H]`. Shazeer et al., Outrageously Large Neural Networks (2017), §2.1.
    ///
    /// # Errors
    /// [`Ops::Error`].
    #[expect(
        clippy::too_many_arguments,
        reason = "one operation; a struct would be used once"
    )]
    fn experts_add(
        &mut self,
        x: &Self::Tensor,
        rows: Range<usize>,
        router: &Self::Weight,
        experts: &[Expert<Self::Weight>],
        routing: Routing,
        room: &mut ExpertRoom<Self::Tensor>,
        h: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Copies `y[p] = x[output position p - rows.start]` for the output positions among `rows`, the
    /// tokens of the step that `x` holds; other rows of `y` stay as they are. `x`: `[≥ n, _]` of any
    /// width; `y`: `[P, _]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn gather_rows(
        &mut self,
        inputs: &Self::Inputs<'_>,
        x: &Self::Tensor,
        rows: Range<usize>,
        y: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Writes to `y[p]` the mean of `x` over all tokens of the segment that output position `p` lies
    /// in, for the output positions among `rows`, whole segments of the step that `x` holds; other rows
    /// of `y` stay as they are. Sums as [`Ops::pooling_heads`]. `x`: `[≥ n, H]`; `y`: `[P, H]`.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn segment_means(
        &mut self,
        inputs: &Self::Inputs<'_>,
        x: &Self::Tensor,
        rows: Range<usize>,
        y: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;

    /// Runs every head of the step that wants vocabulary logits: sampling, label scores and
    /// log-probabilities. `hidden`: `[P, H]` after the final norm; `head`: `[V, H]`. Logits are
    /// f32 and never rounded below it; `soft_cap` bounds them as [`AttnShape::soft_cap`] does scores.
    /// Results stay on the device until the step is collected.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn vocabulary_heads(
        &mut self,
        inputs: &Self::Inputs<'_>,
        hidden: &Self::Tensor,
        head: &Self::Weight,
        soft_cap: Option<f32>,
    ) -> Result<(), Self::Error>;

    /// Runs every pooling row of the step, and every row that wants a vector of each token: first, last,
    /// mean or each, cut to the wanted dimensions, then scaled to length 1 if wanted; f32. A pooled
    /// vector goes through the products of `dense` in turn before it is cut, and a token's does not.
    /// Means sum in position order in fixed chunks of 256 positions counted from position 0.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn pooling_heads(
        &mut self,
        inputs: &Self::Inputs<'_>,
        hidden: &Self::Tensor,
        dense: &[DenseModule<Self::Weight>],
    ) -> Result<(), Self::Error>;

    /// Runs every classification row of the step, at its position or at each of them. `score`: `[labels, H]`; logits in f32.
    ///
    /// # Errors
    /// [`Ops::Error`].
    fn class_heads(
        &mut self,
        inputs: &Self::Inputs<'_>,
        hidden: &Self::Tensor,
        score: &Self::Weight,
    ) -> Result<(), Self::Error>;
}
