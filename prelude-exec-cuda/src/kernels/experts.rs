//! Mixtures of experts: routing, the order of rows by expert, products of all experts at once, and
//! the sum of what they computed.

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    families::{
        EXPERTS_MAX, EXPERTS_PER_TOKEN_MAX, ExpertsGemmParams, ExpertsOrderParams,
        ExpertsRouteParams, ExpertsSumParams, expert_tiles,
    },
};

use super::{
    int,
    launch::{Launcher, access},
};
use crate::{Error, memory::view::View};

/// Returns the most tiles that so many choices among `experts` make.
pub(crate) fn tiles(choices: usize, experts: usize) -> usize {
    expert_tiles(int(choices), int(experts)) as usize
}

/// The choices of `n` tokens, sorted by expert and then by token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// `[n, per_token]`: numbers of experts, ascending.
    pub(crate) chosen: View<u32>,
    /// `[n, per_token]`.
    pub(crate) shares: View<f32>,
    /// `[1, n · per_token]`: the token of each sorted row.
    pub(crate) tokens: View<u32>,
    /// `[n, per_token]`: the sorted row of each choice.
    pub(crate) places: View<u32>,
    /// `[tiles, 4]`.
    pub(crate) tiles: View<u32>,
    /// `[1, 1]`: the number of tiles that count.
    pub(crate) tile_count: View<u32>,
    /// Experts that are chosen among.
    pub(crate) experts: usize,
}

impl Order {
    fn choices(&self) -> usize {
        self.chosen.rows() * self.chosen.width()
    }

    /// Chooses by `logits`, `[n, experts]`, and sorts. If `normalise`, a token's shares add up to 1.
    pub(crate) fn make(
        &self,
        launcher: &mut Launcher,
        logits: View<f32>,
        normalise: bool,
    ) -> Result<(), Error> {
        const KERNEL: &str = "experts_route";
        let (rows, per_token) = (self.chosen.rows(), self.chosen.width());
        let choices = self.choices();
        rules! {
            KERNEL;
            logits.rows() == rows && logits.width() == self.experts
                => "not a logit for each token and expert",
            per_token <= self.experts && per_token <= EXPERTS_PER_TOKEN_MAX as usize
                => "too many experts of a token",
            self.experts <= EXPERTS_MAX as usize => "too many experts",
            self.shares.rows() == rows && self.shares.width() == per_token
                => "not a share for each choice",
            self.places.rows() == rows && self.places.width() == per_token
                => "not a place for each choice",
            self.chosen.stride() == per_token && self.shares.stride() == per_token
                && self.places.stride() == per_token => "choices have gaps",
            self.tokens.rows() == 1 && self.tokens.width() == choices
                => "not a token for each choice",
            self.tiles.width() == 4 && self.tiles.stride() == 4
                && self.tiles.ptr().0.is_multiple_of(16)
                && self.tiles.rows() == tiles(choices, self.experts) => "no room for all tiles",
        }
        let params = ExpertsRouteParams {
            logits: logits.ptr(),
            chosen: self.chosen.ptr(),
            shares: self.shares.ptr(),
            rows: int(rows),
            experts: int(self.experts),
            per_token: int(per_token),
            logits_stride: int(logits.stride()),
            normalise: u32::from(normalise),
            reserved: 0,
        };
        let writes = [access("chosen", self.chosen), access("shares", self.shares)];
        launcher.launch(
            &params.launch(),
            &params,
            &[access("logits", logits)],
            &writes,
        )?;
        let params = ExpertsOrderParams {
            chosen: self.chosen.ptr(),
            tokens: self.tokens.ptr(),
            places: self.places.ptr(),
            tiles: self.tiles.ptr(),
            tile_count: self.tile_count.ptr(),
            choices: int(choices),
            per_token: int(per_token),
            experts: int(self.experts),
            reserved: 0,
        };
        let writes = [
            access("tokens", self.tokens),
            access("places", self.places),
            access("tiles", self.tiles),
            access("tile_count", self.tile_count),
        ];
        let reads = [access("chosen", self.chosen)];
        launcher.launch(&params.launch(), &params, &reads, &writes)
    }

    /// `y[r] = silu(g) · u` of each sorted row, where `g` and `u` are the halves of its expert's
    /// product with its token's row of `x`. `x`: `[n, k]`; `w`: `[experts · 2 m, k]`; `y`:
    /// `[n · per_token, m]`.
    pub(crate) fn up(
        &self,
        launcher: &mut Launcher,
        x: View<bf16>,
        w: View<bf16>,
        y: View<bf16>,
    ) -> Result<(), Error> {
        const KERNEL: &str = "gemm_experts_up";
        rules! {
            KERNEL;
            x.rows() == self.chosen.rows() => "not a row of x for each token",
            w.rows() == self.experts * 2 * y.width() => "w has not a row for each column of y",
        }
        let params = self.product(KERNEL, x, w, y, self.tokens.ptr())?;
        let launch = params.launch_up(int(self.choices()), int(self.experts));
        let reads = [
            access("x", x),
            access("w", w),
            access("tokens", self.tokens),
            access("tiles", self.tiles),
            access("tile_count", self.tile_count),
        ];
        launcher.launch(&launch, &params, &reads, &[access("y", y)])
    }

    /// `y[r]` = the expert's product with `x[r]`, for each sorted row. `x`: `[n · per_token, k]`; `w`:
    /// `[experts · m, k]`; `y`: `[n · per_token, m]`.
    pub(crate) fn down(
        &self,
        launcher: &mut Launcher,
        x: View<bf16>,
        w: View<bf16>,
        y: View<bf16>,
    ) -> Result<(), Error> {
        const KERNEL: &str = "gemm_experts_down";
        rules! {
            KERNEL;
            x.rows() == self.choices() => "not a row of x for each choice",
            w.rows() == self.experts * y.width() => "w has not a row for each column of y",
        }
        let params = self.product(KERNEL, x, w, y, DevicePtr::NULL)?;
        let launch = params.launch_down(int(self.choices()), int(self.experts));
        let reads = [
            access("x", x),
            access("w", w),
            access("tiles", self.tiles),
            access("tile_count", self.tile_count),
        ];
        launcher.launch(&launch, &params, &reads, &[access("y", y)])
    }

    fn product(
        &self,
        kernel: &'static str,
        x: View<bf16>,
        w: View<bf16>,
        y: View<bf16>,
        tokens: DevicePtr,
    ) -> Result<ExpertsGemmParams, Error> {
        rules! {
            kernel;
            x.width() == w.width() => "x and w differ in width",
            w.stride() == w.width() => "w has gaps",
            y.rows() == self.choices() => "not a row of y for each choice",
            x.width().is_multiple_of(8) => "k is no multiple of 8",
            y.width().is_multiple_of(8) => "n is no multiple of 8",
        }
        Ok(ExpertsGemmParams {
            x: x.ptr(),
            w: w.ptr(),
            y: y.ptr(),
            tokens,
            tiles: self.tiles.ptr(),
            tile_count: self.tile_count.ptr(),
            n: int(y.width()),
            k: int(x.width()),
            x_stride: int(x.stride()),
            y_stride: int(y.stride()),
        })
    }

    /// `h[t] += ` the sum of the token's rows of `out` by its shares. `out`: `[n · per_token, H]`;
    /// `h`: `[n, H]`.
    pub(crate) fn sum(
        &self,
        launcher: &mut Launcher,
        out: View<bf16>,
        h: View<bf16>,
    ) -> Result<(), Error> {
        const KERNEL: &str = "experts_sum";
        rules! {
            KERNEL;
            out.width() == h.width() => "out and h differ in width",
            out.rows() == self.choices() => "not a row of out for each choice",
            h.rows() == self.chosen.rows() => "not a row of h for each token",
            h.width().is_multiple_of(8) => "width is no multiple of 8",
            (h.rows() as u64 * h.width() as u64) < 1 << 34 => "rows · width is 2^34 or more",
        }
        let params = ExpertsSumParams {
            out: out.ptr(),
            places: self.places.ptr(),
            shares: self.shares.ptr(),
            h: h.ptr(),
            rows: int(h.rows()),
            width: int(h.width()),
            per_token: int(self.chosen.width()),
            out_stride: int(out.stride()),
            h_stride: int(h.stride()),
            reserved: 0,
        };
        let reads = [
            access("out", out),
            access("places", self.places),
            access("shares", self.shares),
        ];
        launcher.launch(&params.launch(), &params, &reads, &[access("h", h)])
    }
}
