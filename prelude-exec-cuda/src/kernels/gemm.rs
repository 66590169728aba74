//! `gemm_mma`: products on tensor cores, the same algorithm for every number of rows.

use bytemuck::Pod;
use half::bf16;
use kernels::{
    DevicePtr,
    families::{GemmOutput, GemmParams},
};

use super::{
    check, int,
    launch::{Access, Launcher, access},
};
use crate::{Error, memory::view::View};

/// Where a product goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    /// `y = x · wᵀ`, bf16.
    Write(View<bf16>),
    /// `y += x · wᵀ`, bf16, rounded once.
    Add(View<bf16>),
    /// `y = x · wᵀ`, f32.
    Logits(View<f32>),
}

/// `x · wᵀ (+ bias)`. `x`: `[m, k]`; `w`: `[n, k]`; `bias`: `[1, n]`; output `[m, n]`.
pub(crate) fn gemm_mma(
    launcher: &mut Launcher,
    x: View<bf16>,
    w: View<bf16>,
    bias: Option<View<bf16>>,
    output: Output,
) -> Result<(), Error> {
    let (form, y) = match output {
        Output::Write(y) => (GemmOutput::Write, part(y)),
        Output::Add(y) => (GemmOutput::Add, part(y)),
        Output::Logits(y) => (GemmOutput::F32, part(y)),
    };
    let kernel = "gemm_mma";
    check(kernel, x.width() == w.width(), "x and w differ in width")?;
    check(kernel, x.rows() == y.rows, "x and y differ in rows")?;
    check(
        kernel,
        w.rows() == y.width,
        "w has not a row for each column of y",
    )?;
    check(kernel, x.width().is_multiple_of(8), "k is no multiple of 8")?;
    check(
        kernel,
        bias.is_none_or(|b| b.width() == y.width),
        "the bias has another width",
    )?;
    let mut reads = vec![access("x", x), access("w", w)];
    reads.extend(bias.map(|b| access("bias", b)));
    // Pairs of neighbours are stored at once.
    check(
        kernel,
        y.stride.is_multiple_of(2),
        "rows of y begin at odd elements",
    )?;
    let params = GemmParams {
        x: x.ptr(),
        w: w.ptr(),
        bias: bias.map_or(DevicePtr::NULL, |b| b.ptr()),
        y: y.ptr,
        live: DevicePtr::NULL,
        m: int(y.rows),
        n: int(y.width),
        k: int(x.width()),
        x_stride: int(x.stride()),
        w_stride: int(w.stride()),
        y_stride: int(y.stride),
    };
    launcher.launch(&params.launch(form), &params, &reads, &[y.access])
}

/// An output of either type.
struct Part {
    ptr: DevicePtr,
    rows: usize,
    width: usize,
    stride: usize,
    access: Access,
}

fn part<T: Pod>(y: View<T>) -> Part {
    Part {
        ptr: y.ptr(),
        rows: y.rows(),
        width: y.width(),
        stride: y.stride(),
        access: access("y", y),
    }
}
