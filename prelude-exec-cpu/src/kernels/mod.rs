//! Arithmetic, on every instruction set.

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod aarch64;
pub(crate) mod activation;
pub(crate) mod attention;
mod backend;
pub(crate) mod elementwise;
pub(crate) mod fp8;
pub(crate) mod gemm;
pub(crate) mod int8;
mod isa;
pub(crate) mod kv;
pub(crate) mod lines;
pub(crate) mod panel;
#[cfg(not(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_endian = "little")
)))]
mod portable;
pub(crate) mod simd;
pub(crate) mod tiles;
pub(crate) mod words;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
use aarch64 as native;
#[cfg(not(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_endian = "little")
)))]
use portable as native;
#[cfg(target_arch = "x86_64")]
use x86 as native;

pub use backend::CpuDtype;
pub(crate) use backend::{Backend, InputForm};
pub use isa::Isa;
pub(crate) use isa::Supported;
pub(crate) use native::spin;
