//! Prelude's CUDA kernels, as data: what a host program needs to launch them, and what a test
//! needs to run them without a GPU.
//!
//! - [`FAMILIES`]: the sources, embedded, with their kernels' names. NVRTC compiles them with
//!   nothing but [`HEADERS`].
//! - [`families`]: for each family the parameter struct, mirrored from its `.cuh` file, and the
//!   grid and block that its launch contract prescribes.
//! - `emu` (feature `emu`): the same kernels compiled by g++ and run on the host, one fibre a
//!   CUDA thread, with bounds, races and missing barriers reported.
//!
//! No CUDA library is needed or used here. Who launches is `prelude-exec-cuda`.
#![deny(unsafe_code)]

#[cfg(feature = "emu")]
pub mod emu;
pub mod families;
mod images;
mod launch;
mod params;
mod sources;
mod tensor_map;

pub use images::{ImageError, Images, MANIFEST};
pub use launch::Launch;
pub use params::{DevicePtr, Field, Params};
pub use sources::{FAMILIES, Family, HEADERS, Header};
pub use tensor_map::{TensorMap, TensorTile};
