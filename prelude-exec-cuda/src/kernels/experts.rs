//! Mixtures of experts: routing, the order of rows by expert, products of all experts at once, and
//! the sum of what they computed.

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    families::{
        EXPERTS_MAX, EXPERTS_PER_TOKEN_MAX, ExpertFactors, ExpertsGemmParams, ExpertsOrderParams,
        ExpertsRouteParams, ExpertsSumParams, expert_tiles,
    },
};

use super::{
    fp8::{Fp8View, Scaling},
    int,
    launch::{Access, Launcher, access},
};
use crate::{Error, config::FP8_BLOCK, memory::view::View};

/// One factor of the experts' products: rows of tokens or choices, or the weights of all experts, those of
/// one behind those of the other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Factor {
    /// bf16 `[rows, width]`.
    Bf16(View<bf16>),
    /// e4m3 `[rows, width]`, and its scales.
    Fp8(Fp8View),
}

impl Factor {
    const fn kind(&self) -> ExpertFactors {
        match self {
            Self::Bf16(_) => ExpertFactors::Bf16,
            Self::Fp8(view) => match view.scaling {
                Scaling::Rows => ExpertFactors::Fp8Rows,
                Scaling::Blocks => ExpertFactors::Fp8Blocks,
            },
        }
    }

    pub(crate) const fn ptr(&self) -> DevicePtr {
        match self {
            Self::Bf16(data) => data.ptr(),
            Self::Fp8(view) => view.data.ptr(),
        }
    }

    pub(crate) const fn rows(&self) -> usize {
        match self {
            Self::Bf16(data) => data.rows(),
            Self::Fp8(view) => view.data.rows(),
        }
    }

    pub(crate) const fn width(&self) -> usize {
        match self {
            Self::Bf16(data) => data.width(),
            Self::Fp8(view) => view.data.width(),
        }
    }

    const fn stride(&self) -> usize {
        match self {
            Self::Bf16(data) => data.stride(),
            Self::Fp8(view) => view.data.stride(),
        }
    }

    /// Returns the address of the scales, null for bf16.
    const fn scales(&self) -> DevicePtr {
        match self {
            Self::Bf16(_) => DevicePtr::NULL,
            Self::Fp8(view) => view.scales.ptr(),
        }
    }

    /// Returns true if there are scales of this shape, or none are needed.
    fn has_scales(&self, shape: impl FnOnce(Scaling) -> [usize; 2]) -> bool {
        match self {
            Self::Bf16(_) => true,
            Self::Fp8(Fp8View {
                scales, scaling, ..
            }) => {
                [scales.rows(), scales.width()] == shape(*scaling)
                    && scales.stride() == scales.width()
            }
        }
    }

    /// Returns true if rows begin where kernels read 16 bytes at once, and have whole units of them.
    const fn is_whole(&self) -> bool {
        match self {
            Self::Bf16(data) => data.width().is_multiple_of(8),
            Self::Fp8(view) => {
                let multiple = view.scaling.width_multiple();
                view.data.is_aligned() && view.data.width().is_multiple_of(multiple)
            }
        }
    }

    /// Adds what a launch reads of this.
    fn read(&self, [data_name, scales_name]: [&'static str; 2], reads: &mut Vec<Access>) {
        match self {
            Self::Bf16(data) => reads.push(access(data_name, *data)),
            Self::Fp8(view) => reads.extend([
                access(data_name, view.data),
                access(scales_name, view.scales),
            ]),
        }
    }
}

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
        x: Factor,
        w: Factor,
        y: View<bf16>,
    ) -> Result<(), Error> {
        const KERNEL: &str = "gemm_experts_up";
        let of_blocks = x.kind() == ExpertFactors::Fp8Blocks;
        rules! {
            KERNEL;
            x.rows() == self.chosen.rows() => "not a row of x for each token",
            !of_blocks || y.width().is_multiple_of(FP8_BLOCK) => "gates have a part of a block",
        }
        let params = self.product(KERNEL, x, (w, 2 * y.width()), y, self.tokens.ptr())?;
        let launch = params.launch_up(x.kind(), int(self.choices()), int(self.experts));
        let mut reads = self.reads(x, w);
        reads.push(access("tokens", self.tokens));
        launcher.launch(&launch, &params, &reads, &[access("y", y)])
    }

    /// `y[r]` = the expert's product with `x[r]`, for each sorted row. `x`: `[n · per_token, k]`; `w`:
    /// `[experts · m, k]`; `y`: `[n · per_token, m]`.
    pub(crate) fn down(
        &self,
        launcher: &mut Launcher,
        x: Factor,
        w: Factor,
        y: View<bf16>,
    ) -> Result<(), Error> {
        const KERNEL: &str = "gemm_experts_down";
        rules! {
            KERNEL;
            x.rows() == self.choices() => "not a row of x for each choice",
        }
        let params = self.product(KERNEL, x, (w, y.width()), y, DevicePtr::NULL)?;
        let launch = params.launch_down(x.kind(), int(self.choices()), int(self.experts));
        launcher.launch(&launch, &params, &self.reads(x, w), &[access("y", y)])
    }

    /// Returns the memory that the launch of a product of `x` and `w` reads, without `tokens`.
    fn reads(&self, x: Factor, w: Factor) -> Vec<Access> {
        let mut reads = vec![
            access("tiles", self.tiles),
            access("tile_count", self.tile_count),
        ];
        x.read(["x", "x_scale"], &mut reads);
        w.read(["w", "w_scale"], &mut reads);
        reads
    }

    /// Checks the arguments of a product with weights of which each expert has `w_rows` rows.
    fn product(
        &self,
        kernel: &'static str,
        x: Factor,
        (w, w_rows): (Factor, usize),
        y: View<bf16>,
        tokens: DevicePtr,
    ) -> Result<ExpertsGemmParams, Error> {
        let (rows, width) = (x.rows(), x.width());
        rules! {
            kernel;
            x.kind() == w.kind() => "x and w have other types or scales",
            w.rows() == self.experts * w_rows => "w has not a row for each column of y",
            width == w.width() => "x and w differ in width",
            w.stride() == width => "w has gaps",
            y.rows() == self.choices() => "not a row of y for each choice",
            x.is_whole() && w.is_whole()
                => "k is no multiple of 8, of e4m3 of 16, or with scales of blocks of 128",
            y.width().is_multiple_of(8) => "n is no multiple of 8",
            x.has_scales(|of| of.of_rows(rows, width)) => "not a scale for each row of x, or for 128 elements",
            w.has_scales(|of| of.of_stack(self.experts, w_rows, width))
                => "not a scale for each row of w, or for each block",
        }
        Ok(ExpertsGemmParams {
            x: x.ptr(),
            w: w.ptr(),
            y: y.ptr(),
            tokens,
            tiles: self.tiles.ptr(),
            tile_count: self.tile_count.ptr(),
            x_scale: x.scales(),
            w_scale: w.scales(),
            n: int(y.width()),
            k: int(width),
            x_rows: int(rows),
            x_stride: int(x.stride()),
            y_stride: int(y.stride()),
            reserved: 0,
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
