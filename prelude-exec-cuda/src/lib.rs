//! CUDA executor: models of `prelude-models` on one NVIDIA GPU.
//!
//! The driver, NVIDIA's libraries and compiled kernels are all found at run time, so this crate
//! builds, and its tests run, on a machine that has none of them.
//!
//! Read first: [`CudaConfig`].
#![deny(unsafe_code)]

mod config;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod encoders;
#[cfg(test)]
mod end_to_end;
mod error;
mod executor;
#[cfg(test)]
mod fp8;
#[cfg(test)]
mod golden;
mod graph;
mod heads;
#[cfg(test)]
mod hopper_products;
#[cfg(test)]
mod host_blocks;
mod info;
mod kernels;
mod load;
#[cfg(feature = "measure")]
pub mod measure;
mod memory;
mod memory_plan;
mod ops;
#[cfg(test)]
mod pipelined;
mod plan;
mod product_engine;
#[cfg(feature = "emu")]
mod record;
#[cfg(test)]
mod shared_pages;
#[cfg(test)]
mod sliced;
mod stage;
#[cfg(test)]
mod testing;
mod timing;
#[cfg(test)]
mod traffic;
mod wait;

pub use config::{CudaConfig, PromptAttention};
pub use error::Error;
pub use executor::CudaExecutor;
pub use graph::GraphStats;
pub use info::{info, usable_gpu};
pub use load::{CudaLoader, Weight};
pub use memory_plan::MemoryPlan;
pub use ops::CudaOps;
pub use plan::StepPlan;
pub use product_engine::{PlanCounts, ProductEngine};
#[cfg(feature = "emu")]
pub use record::Recording;
