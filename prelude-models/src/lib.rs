//! Model definitions over a small vocabulary of fused operations, and checkpoint loading.
#![deny(unsafe_code)]

mod model;
mod ops;
mod tensor;
mod weights;

pub use model::Model;
pub use ops::{AttnShape, Ops};
pub use tensor::{DType, TensorView};
pub use weights::WeightLoader;
