//! Measuring products at start, in the arena that no step uses yet.

use std::{sync::Arc, time::Duration};

use super::CudaOps;
use crate::{
    Error,
    kernels::lt::{Scratch, StreamWatch, Weights},
    memory::space::Space,
    timing::GpuStream,
};

impl CudaOps {
    /// Measures algorithms for products of these matrices that nobody has measured, for about so long.
    /// Not after the first step. Nothing where there is no GPU.
    ///
    /// # Errors
    /// [`Error::DeviceLost`]: what else fails leaves the library's own choice.
    pub(crate) fn tune_products(
        &mut self,
        matrices: &Weights,
        budget: Duration,
    ) -> Result<(), Error> {
        let context = match &self.space {
            Space::Cuda(context) => Arc::clone(context),
            #[cfg(feature = "emu")]
            Space::Emu(_) | Space::Virtual(_) => return Ok(()),
        };
        if budget.is_zero() || self.products.are_all_measured() {
            return Ok(());
        }
        match self.arena.fill_with_numbers(&self.space) {
            Ok(()) => {}
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            Err(_) => return Ok(()),
        }
        let buffer = self.arena.buffer();
        let scratch = Scratch {
            at: buffer.start(),
            bytes: buffer.bytes() as u64,
        };
        let mut watch = StreamWatch::new(GpuStream::new(&context, buffer));
        self.products.tune(matrices, scratch, &mut watch, budget)
    }
}
