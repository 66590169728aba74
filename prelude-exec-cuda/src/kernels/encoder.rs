//! `embed_sum`, `layer_norm`, `activate` and `segment_means`: work on rows that encoders have and
//! decoders have not.

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    families::{
        ActivateParams, EmbedSumParams, Function, LayerNormParams, MeanRow, SegmentMeansParams,
    },
};
use prelude_models::Activation;

use super::{
    int,
    launch::{Launcher, access},
};
use crate::{Error, memory::view::View};

/// The tables whose rows [`embed_sum`] adds up, `[_, H]` each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    /// `None`: rows are added to those of `h`.
    pub(crate) words: Option<View<bf16>>,
    /// The number of words: ids of tokens of the type `k` are `k · num_words` above their words'.
    pub(crate) num_words: u32,
    /// The number of types that ids have.
    pub(crate) num_types: u32,
    pub(crate) positions: Option<View<bf16>>,
    pub(crate) types: Option<View<bf16>>,
}

/// `h[t] = words[id] + types[type] + positions[position]`, or with `h[t]` in place of words. `ids`, `positions`: `[1, n]`; `h`:
/// `[n, H]`.
pub(crate) fn embed_sum(
    launcher: &mut Launcher,
    ids: View<i32>,
    positions: View<i32>,
    tables: Tables,
    h: View<bf16>,
) -> Result<(), Error> {
    const KERNEL: &str = "embed_sum";
    let all = [tables.words, tables.positions, tables.types];
    let mut present = all.iter().flatten();
    rules! {
        KERNEL;
        ids.width() >= h.rows() && positions.width() >= h.rows()
            => "fewer ids or positions than rows",
        h.width().is_multiple_of(8) => "width is no multiple of 8",
        present.all(|table| table.width() == h.width() && table.stride() == table.width())
            => "a table has another width than h, or gaps",
        tables.num_words > 0
            && tables.words.is_none_or(|words| tables.num_words as usize <= words.rows())
            => "fewer words than the table should have",
        tables.num_types > 0
            && tables.types.is_none_or(|types| tables.num_types as usize <= types.rows())
            => "fewer types than the table should have",
    }
    let address = |table: Option<View<bf16>>| table.map_or(DevicePtr::NULL, |table| table.ptr());
    let rows = |table: Option<View<bf16>>| table.map_or(0, |table| int(table.rows()));
    let params = EmbedSumParams {
        ids: ids.ptr(),
        positions: positions.ptr(),
        words: address(tables.words),
        position_table: address(tables.positions),
        types: address(tables.types),
        h: h.ptr(),
        live: DevicePtr::NULL,
        rows: int(h.rows()),
        width: int(h.width()),
        num_words: tables.num_words,
        num_positions: rows(tables.positions),
        num_types: tables.num_types,
        h_stride: int(h.stride()),
    };
    let mut reads = vec![access("ids", ids), access("positions", positions)];
    let named = [
        ("words", tables.words),
        ("position_table", tables.positions),
        ("types", tables.types),
    ];
    reads.extend(
        named
            .into_iter()
            .filter_map(|(name, table)| Some(access(name, table?))),
    );
    launcher.launch(&params.launch(), &params, &reads, &[access("h", h)])
}

/// `x = (h - mean(h)) / sqrt(var(h) + eps) · w + b`, row by row, in place if there is no `h`. `h`,
/// `x`: `[n, H]`; `w`, `b`: `[1, H]`.
pub(crate) fn layer_norm(
    launcher: &mut Launcher,
    h: Option<View<bf16>>,
    [w, b]: [View<bf16>; 2],
    eps: f32,
    x: View<bf16>,
) -> Result<(), Error> {
    const KERNEL: &str = "layer_norm";
    let from = h.unwrap_or(x);
    rules! {
        KERNEL;
        from.rows() == x.rows() => "h and x differ in rows",
        [from, w, b].iter().all(|of| of.width() == x.width()) => "widths differ",
        x.width().is_multiple_of(8) => "width is no multiple of 8",
    }
    let params = LayerNormParams {
        h: from.ptr(),
        w: w.ptr(),
        b: b.ptr(),
        x: x.ptr(),
        live: DevicePtr::NULL,
        rows: int(x.rows()),
        width: int(x.width()),
        h_stride: int(from.stride()),
        x_stride: int(x.stride()),
        eps,
        reserved: 0,
    };
    let mut reads = vec![access("w", w), access("b", b)];
    reads.extend(h.map(|h| access("h", h)));
    launcher.launch(&params.launch(), &params, &reads, &[access("x", x)])
}

/// `x = f(x)`, in place. `x`: `[n, _]`.
pub(crate) fn activate(launcher: &mut Launcher, x: View<bf16>, f: Activation) -> Result<(), Error> {
    const KERNEL: &str = "activate";
    rules! {
        KERNEL;
        x.width().is_multiple_of(8) => "width is no multiple of 8",
        (x.rows() as u64 * x.width() as u64) < 1 << 34 => "rows · width is 2^34 or more",
    }
    let params = ActivateParams {
        x: x.ptr(),
        live: DevicePtr::NULL,
        rows: int(x.rows()),
        width: int(x.width()),
        stride: int(x.stride()),
        reserved: 0,
    };
    let function = match f {
        Activation::Gelu => Function::GeluErf,
        Activation::GeluTanh => Function::GeluTanh,
        Activation::Relu => Function::Relu,
        Activation::Tanh => Function::Tanh,
    };
    launcher.launch(&params.launch(function), &params, &[], &[access("x", x)])
}

/// `y[r]` = the mean over the tokens of `rows[r]`, if they are among those from `first` on that `x`
/// holds; other rows stay. `rows`: `[1, R]`; `x`: `[n, H]`; `y`: `[R, H]`.
pub(crate) fn segment_means(
    launcher: &mut Launcher,
    rows: View<MeanRow>,
    x: View<bf16>,
    first: usize,
    y: View<bf16>,
) -> Result<(), Error> {
    const KERNEL: &str = "segment_means";
    rules! {
        KERNEL;
        rows.width() >= y.rows() => "fewer means than rows",
        x.width() == y.width() => "x and y differ in width",
    }
    let params = SegmentMeansParams {
        row: rows.ptr(),
        x: x.ptr(),
        y: y.ptr(),
        live: DevicePtr::NULL,
        rows: int(y.rows()),
        width: int(y.width()),
        x_rows: int(x.rows()),
        first: int(first),
        x_stride: int(x.stride()),
        y_stride: int(y.stride()),
    };
    let reads = [access("rows", rows), access("x", x)];
    launcher.launch(&params.launch(), &params, &reads, &[access("y", y)])
}
