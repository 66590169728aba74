//! `embed`, `gather_rows`, norms and gates: work on rows, bound by memory.

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    families::{EmbedParams, Gate, GatherRowsParams, RmsNormForm, RmsNormParams, SiluMulParams},
};

use super::{
    int,
    launch::{Launcher, access},
};
use crate::{Error, memory::view::View};

/// `h[t] = scale · table[ids[t]]`. `ids`: `[1, T]`, where -(i + 1) is the id `sampled[i]`, which an earlier
/// step drew; `sampled`: `[1, _]`; `table`: `[V, H]`; `h`: `[T, H]`.
pub(crate) fn embed(
    launcher: &mut Launcher,
    ids: View<i32>,
    sampled: View<i32>,
    (table, scale): (View<bf16>, f32),
    h: View<bf16>,
) -> Result<(), Error> {
    const KERNEL: &str = "embed";
    rules! {
        KERNEL;
        table.width() == h.width() => "table and h differ in width",
        ids.width() >= h.rows() => "fewer ids than rows",
        h.width().is_multiple_of(8) => "width is no multiple of 8",
        table.stride() == table.width() => "the table has gaps",
    }
    let params = EmbedParams {
        ids: ids.ptr(),
        sampled: sampled.ptr(),
        table: table.ptr(),
        h: h.ptr(),
        live: DevicePtr::NULL,
        rows: int(h.rows()),
        width: int(h.width()),
        vocab: int(table.rows()),
        sampled_rows: int(sampled.width()),
        h_stride: int(h.stride()),
        scale,
    };
    let reads = [
        access("ids", ids),
        access("sampled", sampled),
        access("table", table),
    ];
    launcher.launch(&params.launch(), &params, &reads, &[access("h", h)])
}

/// `y[r] = x[index[r]]`. `index`: `[1, R]`; `x`: `[T, H]`; `y`: `[R, H]`.
pub(crate) fn gather_rows(
    launcher: &mut Launcher,
    index: View<i32>,
    x: View<bf16>,
    y: View<bf16>,
) -> Result<(), Error> {
    gather(launcher, index, x, y, None)
}

/// Gathers rows whose indices are in `first..first + x.rows()`; other rows of `y` stay.
pub(crate) fn gather_part(
    launcher: &mut Launcher,
    index: View<i32>,
    x: View<bf16>,
    first: usize,
    y: View<bf16>,
) -> Result<(), Error> {
    gather(launcher, index, x, y, Some(first))
}

fn gather(
    launcher: &mut Launcher,
    index: View<i32>,
    x: View<bf16>,
    y: View<bf16>,
    part: Option<usize>,
) -> Result<(), Error> {
    const KERNEL: &str = "gather_rows";
    rules! {
        KERNEL;
        x.width() == y.width() => "x and y differ in width",
        index.width() >= y.rows() => "fewer indices than rows",
        y.width().is_multiple_of(8) => "width is no multiple of 8",
    }
    let params = GatherRowsParams {
        index: index.ptr(),
        x: x.ptr(),
        y: y.ptr(),
        live: DevicePtr::NULL,
        rows: int(y.rows()),
        width: int(y.width()),
        x_rows: int(x.rows()),
        x_stride: int(x.stride()),
        y_stride: int(y.stride()),
        first: int(part.unwrap_or(0)),
        is_part: u32::from(part.is_some()),
        reserved: 0,
    };
    let reads = [access("index", index), access("x", x)];
    launcher.launch(&params.launch(), &params, &reads, &[access("y", y)])
}

/// `x = h / sqrt(mean(h²) + eps) · (offset + w)`, row by row. `h`, `x`: `[n, H]`; `w`: `[1, H]`.
pub(crate) fn rms_norm(
    launcher: &mut Launcher,
    h: View<bf16>,
    (w, offset): (View<bf16>, f32),
    eps: f32,
    x: View<bf16>,
) -> Result<(), Error> {
    const KERNEL: &str = "rms_norm";
    rules! {
        KERNEL;
        h.rows() == x.rows() => "h and x differ in rows",
        h.width() == x.width() && h.width() == w.width() => "widths differ",
        h.width().is_multiple_of(8) => "width is no multiple of 8",
    }
    let params = RmsNormParams {
        h: h.ptr(),
        d: DevicePtr::NULL,
        w: w.ptr(),
        x: x.ptr(),
        live: DevicePtr::NULL,
        rows: int(h.rows()),
        width: int(h.width()),
        h_stride: int(h.stride()),
        d_stride: 0,
        x_stride: int(x.stride()),
        eps,
        offset,
        reserved: 0,
    };
    let reads = [access("h", h), access("w", w)];
    let launch = params.launch(RmsNormForm::Plain);
    launcher.launch(&launch, &params, &reads, &[access("x", x)])
}

/// `h += d / sqrt(mean(d²) + eps) · (offset + w)`, row by row. `d`, `h`: `[n, H]`; `w`: `[1, H]`.
pub(crate) fn rms_norm_add(
    launcher: &mut Launcher,
    d: View<bf16>,
    (w, offset): (View<bf16>, f32),
    eps: f32,
    h: View<bf16>,
) -> Result<(), Error> {
    const KERNEL: &str = "rms_norm_add";
    rules! {
        KERNEL;
        h.rows() == d.rows() => "h and d differ in rows",
        h.width() == d.width() && h.width() == w.width() => "widths differ",
        h.width().is_multiple_of(8) => "width is no multiple of 8",
    }
    let params = RmsNormParams {
        h: h.ptr(),
        d: d.ptr(),
        w: w.ptr(),
        x: DevicePtr::NULL,
        live: DevicePtr::NULL,
        rows: int(h.rows()),
        width: int(h.width()),
        h_stride: int(h.stride()),
        d_stride: int(d.stride()),
        x_stride: 0,
        eps,
        offset,
        reserved: 0,
    };
    let reads = [access("d", d), access("w", w)];
    let launch = params.launch(RmsNormForm::Behind);
    launcher.launch(&launch, &params, &reads, &[access("h", h)])
}

/// `a = f(g) · u`, row by row, `f` the gate. `gate_up`: `[n, 2 I]`, g then u; `a`: `[n, I]`.
pub(crate) fn gate_mul(
    launcher: &mut Launcher,
    gate_up: View<bf16>,
    gate: Gate,
    a: View<bf16>,
) -> Result<(), Error> {
    const KERNEL: &str = "gate_mul";
    rules! {
        KERNEL;
        gate_up.rows() == a.rows() => "gate_up and a differ in rows",
        gate_up.width() == 2 * a.width() => "gate_up is not twice as wide as a",
        a.width().is_multiple_of(8) => "width is no multiple of 8",
        (a.rows() as u64 * a.width() as u64) < 1 << 34 => "rows · width is 2^34 or more",
    }
    let params = SiluMulParams {
        gate_up: gate_up.ptr(),
        a: a.ptr(),
        live: DevicePtr::NULL,
        rows: int(a.rows()),
        width: int(a.width()),
        gate_up_stride: int(gate_up.stride()),
        a_stride: int(a.stride()),
    };
    let reads = [access("gate_up", gate_up)];
    let launch = params.launch(gate);
    launcher.launch(&launch, &params, &reads, &[access("a", a)])
}
