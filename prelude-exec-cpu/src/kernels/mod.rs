//! Arithmetic: the fast families and the reference.

pub(crate) mod activation;
pub(crate) mod attention;
mod backend;
pub(crate) mod elementwise;
pub(crate) mod gemm;
pub(crate) mod int8;
mod isa;
pub(crate) mod kv;
pub(crate) mod lines;
pub(crate) mod panel;
pub(crate) mod reference;
pub(crate) mod simd;
pub(crate) mod tiles;
pub(crate) mod words;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use backend::CpuDtype;
pub(crate) use backend::{Backend, InputForm};
pub use isa::Isa;
pub(crate) use isa::Supported;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{spin, transpose};
