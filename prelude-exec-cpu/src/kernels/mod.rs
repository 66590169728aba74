//! Arithmetic: the fast families and the reference.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod gemm;
mod isa;
pub(crate) mod lines;
pub(crate) mod panel;
pub(crate) mod reference;
pub(crate) mod simd;
pub(crate) mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use isa::Isa;
pub(crate) use isa::Supported;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{spin, transpose};
