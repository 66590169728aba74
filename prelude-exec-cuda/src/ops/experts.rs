//! Mixtures of experts: the buffers of a chunk's choices and products, and the launches of a layer.
//!
//! All experts are multiplied in one launch. Its grid is as large as a chunk of so many tokens may
//! need at most, and what a block works on is read from tables that the launches before it made: the
//! host waits for nothing, and a captured step serves all choices.

use std::ops::Range;

use half::bf16;
use prelude_models::{Expert, ModelConfig, Routing, step::ArenaTensor};

use super::CudaOps;
use crate::{
    Error,
    kernels::experts::{Factor, Order, tiles},
    load::Weight,
    memory::{
        space::{Buffer, Space},
        view::View,
    },
};

/// Parts of the buffer begin at multiples of this many bytes: a line of the GPU's L2 cache.
const ALIGN: usize = 128;

/// The sizes of a mixture, and the most tokens that a layer works on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertSizes {
    tokens: usize,
    experts: usize,
    per_token: usize,
    hidden: usize,
    inner: usize,
}

/// The bytes at which the parts of the buffer begin.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// f32 `[tokens, experts]`, rows of an even number of elements.
    logits: usize,
    /// u32 `[tokens, per_token]`.
    chosen: usize,
    /// f32 `[tokens, per_token]`.
    shares: usize,
    /// u32 `[tokens · per_token]`.
    tokens: usize,
    /// u32 `[tokens, per_token]`.
    places: usize,
    /// u32 `[tiles, 4]`.
    tiles: usize,
    /// u32.
    tile_count: usize,
    /// bf16 `[tokens · per_token, inner]`.
    inner: usize,
    /// bf16 `[tokens · per_token, hidden]`.
    out: usize,
    end: usize,
}

impl ExpertSizes {
    /// For chunks of `tokens` tokens; `None` for a model without experts.
    pub(super) fn new(model: &ModelConfig, tokens: usize) -> Option<Self> {
        let experts = model.experts.as_ref()?;
        Some(Self {
            tokens,
            experts: experts.count,
            per_token: experts.routing.per_token,
            hidden: model.hidden_size,
            inner: experts.intermediate_size,
        })
    }

    fn parts(&self) -> Parts {
        let choices = self.tokens * self.per_token;
        let mut end = 0;
        let mut take = |elements: usize, bytes: usize| {
            let at = end;
            end = (end + elements * bytes).next_multiple_of(ALIGN);
            at
        };
        Parts {
            logits: take(self.tokens * self.experts.next_multiple_of(2), 4),
            chosen: take(choices, 4),
            shares: take(choices, 4),
            tokens: take(choices, 4),
            places: take(choices, 4),
            tiles: take(4 * tiles(choices, self.experts), 4),
            tile_count: take(1, 4),
            inner: take(choices * self.inner, 2),
            out: take(choices * self.hidden, 2),
            end,
        }
    }
}

/// The memory of a chunk's choices and of what experts compute for them.
#[derive(Debug)]
pub(super) struct ExpertBuffer {
    data: Buffer,
    sizes: ExpertSizes,
    parts: Parts,
}

impl ExpertBuffer {
    pub(super) fn new(space: &Space, sizes: ExpertSizes) -> Result<Self, Error> {
        let parts = sizes.parts();
        Ok(Self {
            data: space.alloc("experts", parts.end)?,
            sizes,
            parts,
        })
    }

    pub(super) const fn bytes(&self) -> usize {
        self.data.bytes()
    }

    /// `[n, experts]`.
    fn logits(&self, n: usize) -> View<f32> {
        let experts = self.sizes.experts;
        let stride = experts.next_multiple_of(2);
        let rows = self.data.view(self.parts.logits, n, stride);
        rows.columns(0..experts)
    }

    /// Returns the parts of the room in which the choices of `n` tokens are put into order.
    fn order(&self, n: usize) -> Order {
        let (data, parts) = (&self.data, &self.parts);
        let ExpertSizes {
            experts, per_token, ..
        } = self.sizes;
        let choices = n * per_token;
        Order {
            chosen: data.view(parts.chosen, n, per_token),
            shares: data.view(parts.shares, n, per_token),
            tokens: data.view(parts.tokens, 1, choices),
            places: data.view(parts.places, n, per_token),
            tiles: data.view(parts.tiles, tiles(choices, experts), 4),
            tile_count: data.view(parts.tile_count, 1, 1),
            experts,
        }
    }

    /// `[choices, inner]` and `[choices, hidden]`.
    fn products(&self, choices: usize) -> [View<bf16>; 2] {
        let ExpertSizes { inner, hidden, .. } = self.sizes;
        [(self.parts.inner, inner), (self.parts.out, hidden)]
            .map(|(at, width)| self.data.view(at, choices, width))
    }
}

impl CudaOps {
    pub(super) fn add_experts(
        &mut self,
        x: &ArenaTensor,
        rows: Range<usize>,
        (router, experts): (&Weight, &[Expert<Weight>]),
        routing: Routing,
        h: &ArenaTensor,
    ) -> Result<(), Error> {
        let refused = |what: &str| Err(Error::launch("experts_route", what));
        let n = rows.len();
        let Some(buffer) = &self.experts else {
            return refused("the model was said to have no experts");
        };
        let sizes = buffer.sizes;
        if n > sizes.tokens
            || experts.len() != sizes.experts
            || routing.per_token != sizes.per_token
        {
            return refused("more tokens than a chunk has, or other experts than the model's");
        }
        let [gate_up, down] = [
            stack(experts.iter().map(|expert| &expert.gate_up))?,
            stack(experts.iter().map(|expert| &expert.down))?,
        ];
        let x = self.arena.view(x).slice(0..n);
        let h = self.arena.view(h).slice(rows);
        let logits = buffer.logits(n);
        let order = buffer.order(n);
        let [inner, out] = buffer.products(n * sizes.per_token);
        let launcher = &mut self.launcher;
        self.products
            .route(launcher, x, router.matrix().0, logits)?;
        order.make(launcher, logits, routing.normalise)?;
        let x = self.rounded_like(gate_up, x)?;
        order.up(&mut self.launcher, x, gate_up, inner)?;
        // Takes the place of the rows of tokens.
        let inner = self.rounded_like(down, inner)?;
        order.down(&mut self.launcher, inner, down, out)?;
        order.sum(&mut self.launcher, out, h)
    }

    /// Returns rows as products with such weights take them: rounded, if those are in e4m3, in the room of
    /// the rows that were rounded before.
    fn rounded_like(&mut self, weights: Factor, rows: View<bf16>) -> Result<Factor, Error> {
        match weights {
            Factor::Bf16(_) => Ok(Factor::Bf16(rows)),
            Factor::Fp8(weights) => Ok(Factor::Fp8(self.rounded(rows, weights.scaling)?)),
        }
    }
}

/// Returns the matrices one behind the other, as they were loaded.
fn stack<'a>(mut matrices: impl ExactSizeIterator<Item = &'a Weight>) -> Result<Factor, Error> {
    let count = matrices.len();
    let first = matrices.next().and_then(Weight::stack);
    let in_order = first
        .filter(|(_, place)| *place == (0, count))
        .filter(|(all, _)| {
            matrices.enumerate().all(|(i, matrix)| {
                let found = matrix.stack();
                found.is_some_and(|(of, place)| of.ptr() == all.ptr() && place == (i + 1, count))
            })
        });
    match in_order {
        Some((all, _)) => Ok(all),
        None => Err(Error::launch(
            "gemm_experts_up",
            "the experts were not loaded as one stack",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let sizes = ExpertSizes {
            tokens: 5,
            experts: 7,
            per_token: 3,
            hidden: 24,
            inner: 8,
        };
        let space = Space::Virtual(std::sync::Arc::default());
        let buffer = ExpertBuffer::new(&space, sizes).unwrap();
        let order = buffer.order(5);
        let [inner, out] = buffer.products(15);
        let spans = [
            buffer.logits(5).span(),
            order.chosen.span(),
            order.shares.span(),
            order.tokens.span(),
            order.places.span(),
            order.tiles.span(),
            order.tile_count.span(),
            inner.span(),
            out.span(),
        ];
        assert!(spans.is_sorted_by(|a, b| a.end <= b.start));
        assert!(spans[8].end - spans[0].start <= buffer.bytes() as u64);
    }
}
