//! Modules `Dense`: products behind the pooling of an embedder.

use half::bf16;
use prelude_models::{Activation, DenseModule, ModelConfig};

use crate::{
    Error, Weight,
    kernels::{
        encoder,
        gemm::{ProductOutput, Products},
        launch::Launcher,
    },
    memory::{
        space::{Buffer, Space},
        view::View,
    },
};

/// Vectors that go through the products together.
pub(super) const GROUP: usize = 64;

/// A product of pooled vectors, and the function of what comes out.
#[derive(Clone, Debug)]
pub(crate) struct DenseProduct {
    /// `[outputs, inputs]`.
    weight: View<bf16>,
    /// `[1, outputs]`.
    bias: Option<View<bf16>>,
    activation: Option<Activation>,
}

impl DenseProduct {
    pub(crate) fn new(module: &DenseModule<Weight>) -> Self {
        let (weight, bias) = module.weight.matrix();
        Self {
            weight,
            bias,
            activation: module.activation,
        }
    }
}

/// Room for a group of vectors, before and after a product.
#[derive(Debug)]
pub(super) struct DenseRoom {
    /// bf16 `[GROUP, stride]` each.
    states: [Buffer; 2],
    stride: usize,
}

impl DenseRoom {
    /// Allocates room for the modules of a model; returns `None` if the model has no modules.
    pub(super) fn new(space: &Space, model: &ModelConfig) -> Result<Option<Self>, Error> {
        if model.dense.is_empty() {
            return Ok(None);
        }
        let widths = model.dense.iter().flat_map(|of| [of.inputs, of.outputs]);
        // Rows of multiples of 16 bytes.
        let stride = widths
            .fold(model.hidden_size, usize::max)
            .next_multiple_of(8);
        let room = || space.alloc("dense states", GROUP * stride * size_of::<bf16>());
        Ok(Some(Self {
            states: [room()?, room()?],
            stride,
        }))
    }

    /// Returns the bytes on the device.
    pub(super) const fn bytes(&self) -> usize {
        2 * self.states[0].bytes()
    }

    /// Returns room for `rows` vectors of `width` numbers in one of the two buffers.
    fn view(&self, which: usize, rows: usize, width: usize) -> Result<View<bf16>, Error> {
        if rows > GROUP || width > self.stride {
            let what = format!("no room for {rows} vectors of {width} numbers behind a pooling");
            return Err(Error::Step(what));
        }
        let all = self.states[which].view(0, rows, self.stride);
        Ok(all.columns(0..width))
    }

    /// Returns the place of vectors that are pooled: `[rows, width]`.
    pub(super) fn pooled(&self, rows: usize, width: usize) -> Result<View<bf16>, Error> {
        self.view(0, rows, width)
    }

    /// Returns what the products make of the vectors in [`DenseRoom::pooled`].
    pub(super) fn multiply(
        &self,
        launcher: &mut Launcher,
        products: &mut Products,
        pooled: View<bf16>,
        dense: &[DenseProduct],
    ) -> Result<View<bf16>, Error> {
        let mut states = pooled;
        for (i, product) in dense.iter().enumerate() {
            let DenseProduct {
                weight,
                bias,
                activation,
            } = *product;
            let next = self.view((i + 1) % 2, states.rows(), weight.rows())?;
            products.multiply(launcher, states, weight, bias, ProductOutput::Write(next))?;
            if let Some(f) = activation {
                encoder::activate(launcher, next, f)?;
            }
            states = next;
        }
        Ok(states)
    }
}
