//! Products by the kernel for Hopper, whatever the executor's configuration says.

use half::bf16;
use prelude_models::step::ArenaTensor;

use crate::{
    CudaOps, Error, Weight,
    kernels::{gemm::ProductOutput, hopper_gemm::HopperProducts},
    memory::view::View,
};

impl CudaOps {
    /// `y = x · wᵀ`, or `y += x · wᵀ`, by `sm90_gemm`, whose tiles are stored by warps of their own if
    /// `apart`. `x`: `[m, k]`; `y`: `[m, n]`.
    ///
    /// # Errors
    /// [`Error::Launch`] if the shapes do not fit or the GPU is another than Hopper, or the driver's.
    pub fn linear_on_hopper(
        &mut self,
        x: &ArenaTensor,
        w: &Weight,
        (adds, apart): (bool, bool),
        y: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let (x, y) = (self.arena.view(x), self.arena.view(y));
        let output = match adds {
            true => ProductOutput::Add(y),
            false => ProductOutput::Write(y),
        };
        let hopper = HopperProducts::new(&self.space).stored(apart);
        hopper.multiply(&mut self.launcher, x, matrix(w), output)
    }

    /// `a = silu(x · gateᵀ) · (x · upᵀ)` by one kernel; `w` holds gates, then what belongs to them. `x`:
    /// `[m, k]`; `a`: `[m, f]`.
    ///
    /// # Errors
    /// As [`CudaOps::linear_on_hopper`].
    pub fn gates_on_hopper(
        &mut self,
        x: &ArenaTensor,
        w: &Weight,
        apart: bool,
        a: &mut ArenaTensor,
    ) -> Result<(), Error> {
        let (x, a) = (self.arena.view(x), self.arena.view(a));
        let hopper = HopperProducts::new(&self.space).stored(apart);
        hopper.multiply_gated(&mut self.launcher, x, matrix(w), a)
    }
}

fn matrix(w: &Weight) -> View<bf16> {
    w.matrix().0
}
