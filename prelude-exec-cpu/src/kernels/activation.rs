//! Activations, by either family.

use prelude_models::Activation;

use super::{Backend, reference, simd};

/// Applies an activation to each number.
pub(crate) fn activate(backend: Backend, f: Activation, x: &mut [f32]) {
    match (backend, f) {
        (Backend::Reference, f) => reference::activate(x, f),
        (Backend::Fast { isa, .. }, Activation::Gelu) => simd::gelu(isa, x),
        (Backend::Fast { isa, .. }, Activation::GeluTanh) => simd::gelu_tanh(isa, x),
        (Backend::Fast { isa, .. }, Activation::Relu) => simd::relu(isa, x),
        (Backend::Fast { isa, .. }, Activation::Tanh) => simd::tanh(isa, x),
    }
}
