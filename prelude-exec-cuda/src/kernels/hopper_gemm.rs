//! `sm90_gemm`: products by Hopper's own instructions. Right by emulation, never run on a GPU yet, and so
//! for measurements alone: [`crate::CudaConfig::hopper_products`].

use half::bf16;
use prelude_kernels::{
    DevicePtr, TensorMap,
    families::{GemmOutput, Sm90GemmParams, Sm90Output},
};

use super::{
    gemm::{Part, ProductOutput, output_part, part},
    int,
    launch::{Launcher, access},
};
use crate::{
    Error,
    memory::{space::Space, view::View},
};

const KERNEL: &str = "sm90_gemm";
/// Multiprocessors of the device that computes nothing: those of an H200.
#[cfg(feature = "emu")]
const RECORDED: u32 = 132;
/// Multiprocessors of the emulation: so few that blocks have several tiles.
#[cfg(feature = "emu")]
const EMULATED: u32 = 3;

/// Products on a GPU of so many multiprocessors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HopperProducts {
    multiprocessors: u32,
}

impl HopperProducts {
    pub(crate) fn new(space: &Space) -> Self {
        let multiprocessors = match space {
            Space::Cuda(context) => context.multiprocessors,
            #[cfg(feature = "emu")]
            Space::Emu(_) => EMULATED,
            #[cfg(feature = "emu")]
            Space::Virtual(_) => RECORDED,
        };
        Self { multiprocessors }
    }

    /// Returns true if the kernel takes a product with a matrix of so many rows: bf16, without a bias.
    /// It depends on the matrix alone, so that one kernel has all numbers of rows.
    pub(crate) fn takes(output: GemmOutput, w_rows: usize, bias: Option<View<bf16>>) -> bool {
        output != GemmOutput::F32 && bias.is_none() && w_rows.is_multiple_of(8)
    }

    /// `x · wᵀ`, written or added. `x`: `[m, k]`; `w`: `[n, k]`; output `[m, n]`.
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub(crate) fn multiply(
        self,
        launcher: &mut Launcher,
        x: View<bf16>,
        w: View<bf16>,
        output: ProductOutput,
    ) -> Result<(), Error> {
        let (form, y) = output_part(output);
        let form = match form {
            GemmOutput::Write => Sm90Output::Write,
            GemmOutput::Add => Sm90Output::Add,
            GemmOutput::F32 => return Err(Error::launch(KERNEL, "it does not write f32")),
        };
        rules! {
            KERNEL;
            w.rows() == y.width => "w has not a row for each column of y",
        }
        self.launch(launcher, (x, w), form, y)
    }

    /// `silu(x · gateᵀ) · (x · upᵀ)`. `x`: `[m, k]`; `w`: `[2f, k]`, gates first; `a`: `[m, f]`. The bits
    /// are those of `silu_mul` behind [`Self::multiply`].
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub(crate) fn multiply_gated(
        self,
        launcher: &mut Launcher,
        x: View<bf16>,
        w: View<bf16>,
        a: View<bf16>,
    ) -> Result<(), Error> {
        rules! {
            KERNEL;
            w.rows() == 2 * a.width() => "w has not two rows for each column of a",
        }
        self.launch(launcher, (x, w), Sm90Output::SiluMul, part(a))
    }

    fn launch(
        self,
        launcher: &mut Launcher,
        (x, w): (View<bf16>, View<bf16>),
        form: Sm90Output,
        y: Part,
    ) -> Result<(), Error> {
        rules! {
            KERNEL;
            x.width() == w.width() => "x and w differ in width",
            x.rows() == y.rows => "x and y differ in rows",
            x.width().is_multiple_of(8) => "k is no multiple of 8",
            y.width.is_multiple_of(8) => "n is no multiple of 8",
        }
        if y.rows == 0 {
            return Ok(());
        }
        let params = Sm90GemmParams {
            x: map(launcher, x)?,
            w: map(launcher, w)?,
            y: y.ptr,
            live: DevicePtr::NULL,
            m: int(y.rows),
            n: int(y.width),
            k: int(x.width()),
            y_stride: int(y.stride),
            reserved: [0; 24],
        };
        // Tiles are stored by warps that do nothing else: a guess, since neither form is measured.
        let launch = params.launch(form, true, self.multiprocessors);
        let reads = [access("x", x), access("w", w)];
        launcher.launch(&launch, &params, &reads, &[y.access])
    }
}

/// Returns the boxes that a factor is copied in.
fn map(launcher: &Launcher, of: View<bf16>) -> Result<TensorMap, Error> {
    let [rows, width, stride] = [of.rows(), of.width(), of.stride()].map(|n| n as u64);
    launcher.tensor_map(Sm90GemmParams::tile(of.ptr(), rows, width, stride))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::record::Recording;

    /// Returns the record of a product of 300 rows, or the reason why it is refused.
    fn product(form: Sm90Output, w_rows: usize, n: usize) -> String {
        let recording = Arc::new(Recording::default());
        let space = Space::Virtual(Arc::clone(&recording));
        let alloc = |name| space.alloc(name, 1 << 20).unwrap();
        let (x, w, y) = (alloc("x"), alloc("w"), alloc("y"));
        let (x, w) = (x.view(0, 300, 64), w.view(0, w_rows, 64));
        let y = y.view(0, 300, n);
        let mut launcher = Launcher::Record(Arc::clone(&recording), None);
        let hopper = HopperProducts::new(&space);
        let result = match form {
            Sm90Output::Write => hopper.multiply(&mut launcher, x, w, ProductOutput::Write(y)),
            Sm90Output::Add => hopper.multiply(&mut launcher, x, w, ProductOutput::Add(y)),
            Sm90Output::SiluMul => hopper.multiply_gated(&mut launcher, x, w, y),
        };
        let lines = recording.take().join("\n");
        result.map_or_else(|e| e.to_string(), |()| lines)
    }

    #[test]
    fn the_kernel_is_launched_or_refused_by_shape() {
        let check = |form, w_rows, n, expected: &str| {
            let text = product(form, w_rows, n);
            assert!(text.contains(expected), "{text}");
        };
        let (write, gated) = (Sm90Output::Write, Sm90Output::SiluMul);
        check(
            write,
            520,
            520,
            "prelude_sm90_gemm_apart <<<9, 384, 213120 B>>> y=y m=300 n=520 k=64 y_stride=520",
        );
        check(
            Sm90Output::Add,
            8,
            8,
            "prelude_sm90_gemm_apart_add <<<3, 384",
        );
        check(gated, 520, 260, "n is no multiple of 8");
        check(
            gated,
            528,
            264,
            "prelude_sm90_gemm_apart_silu_mul <<<9, 384",
        );
        check(gated, 264, 264, "two rows for each column");
        check(write, 264, 256, "a row for each column");
    }
}
