//! Activations by name.

use prelude_models::Activation;

use super::{Supported, simd};

/// Applies an activation to each number.
pub(crate) fn activate(isa: Supported, f: Activation, x: &mut [f32]) {
    match f {
        Activation::Gelu => simd::gelu(isa, x),
        Activation::GeluTanh => simd::gelu_tanh(isa, x),
        Activation::Relu => simd::relu(isa, x),
        Activation::Tanh => simd::tanh(isa, x),
    }
}
