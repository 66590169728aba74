//! The longest prompt that fits a memory, by the strategy that computes it (PrefillOnly §2 and §4,
//! Table 2 and Fig. 10): the arithmetic of the executors' own memory plans.
//!
//! | strategy | a step | K/V |
//! | --- | --- | --- |
//! | paged | the whole prompt through each layer at once | of all layers, in blocks |
//! | chunked | a chunk of the prompt | of all layers, in blocks |
//! | hybrid | a slice of a pass: chunks of one layer after the other | of one layer |

use std::fmt::Write as _;

use anyhow::Result;
use prelude_exec_cpu::{CpuConfig, CpuDtype, MemoryPlan as CpuPlan};
use prelude_exec_cuda::{CudaConfig, measure};
use prelude_models::{DType, ModelConfig};

use crate::make_model::{Shape, config_of, tensor_shapes};

/// Tokens of a step of others, and of a chunk: the scheduler's default.
const STEP_TOKENS: u32 = 2048;
/// Token positions per KV block.
const BLOCK: u32 = 16;
/// Bound of the search, in tokens.
const MOST: u32 = 1 << 26;
/// Threads of the host's executor, which have buffers each.
const THREADS: usize = 16;

#[derive(Clone, Copy, Debug)]
enum Strategy {
    Paged,
    Chunked,
    Hybrid,
}

/// The settings of an executor that serves one prompt at a time.
struct Settings {
    step_tokens: u32,
    /// Tokens that a layer works on at once; `None` for the executor's own choice.
    chunk_tokens: Option<u32>,
    pass_tokens: u32,
    blocks: u32,
}

impl Strategy {
    const ALL: [Self; 3] = [Self::Paged, Self::Chunked, Self::Hybrid];

    /// Returns settings for prompts of up to `len` tokens.
    fn settings(self, len: u32) -> Settings {
        let chunked = Settings {
            step_tokens: len.min(STEP_TOKENS),
            chunk_tokens: None,
            pass_tokens: 0,
            blocks: len.div_ceil(BLOCK),
        };
        match self {
            Self::Chunked => chunked,
            Self::Paged => Settings {
                step_tokens: len,
                chunk_tokens: Some(len),
                ..chunked
            },
            // A pool has a block.
            Self::Hybrid => Settings {
                pass_tokens: len,
                blocks: 1,
                ..chunked
            },
        }
    }
}

/// An executor whose plan is asked.
#[derive(Clone, Copy, Debug)]
enum Device {
    Cpu,
    Gpu,
}

impl Device {
    /// Returns the bytes that an executor takes to serve prompts of up to `len` tokens.
    fn bytes(self, shape: &Shape, strategy: Strategy, len: u32) -> Result<u64> {
        let mut model = config_of(&shape.sizes)?;
        // Whatever it was made for: the memory is the bound that is looked for.
        model.max_position_embeddings = len as usize;
        let settings = strategy.settings(len);
        let tensors = tensor_shapes(&shape.sizes);
        match self {
            Self::Cpu => cpu_bytes(&model, tensors, &settings),
            Self::Gpu => gpu_bytes(&model, &tensors, &settings),
        }
    }
}

fn cpu_bytes(
    model: &ModelConfig,
    tensors: Vec<(String, Vec<usize>)>,
    settings: &Settings,
) -> Result<u64> {
    let default = CpuConfig::default();
    let config = CpuConfig {
        dtype: Some(CpuDtype::Bf16),
        num_blocks: Some(settings.blocks),
        block_size: BLOCK,
        max_step_tokens: settings.step_tokens,
        chunk_tokens: settings.chunk_tokens.unwrap_or(default.chunk_tokens),
        max_pass_tokens: Some(settings.pass_tokens),
        ..default
    };
    let tensors = tensors
        .into_iter()
        .map(|(name, dims)| (name, DType::Bf16, dims));
    let (plan, _) = CpuPlan::of_model(model, tensors, &config, THREADS)?;
    Ok(plan.total_bytes())
}

fn gpu_bytes(
    model: &ModelConfig,
    tensors: &[(String, Vec<usize>)],
    settings: &Settings,
) -> Result<u64> {
    let default = CudaConfig::default();
    let config = CudaConfig {
        num_blocks: Some(settings.blocks),
        block_size: BLOCK,
        max_step_tokens: settings.step_tokens,
        chunk_tokens: settings.chunk_tokens.unwrap_or(default.chunk_tokens),
        max_pass_tokens: Some(settings.pass_tokens),
        ..default
    };
    let weights = tensors
        .iter()
        .map(|(_, dims)| dims.iter().product::<usize>());
    // In bf16; and rotations in f32.
    let rotations = model.max_position_embeddings * model.head_dim * size_of::<f32>();
    let bytes = weights.sum::<usize>() * size_of::<half::bf16>() + rotations;
    let plan = measure::memory_plan(model, bytes as u64, &config)?;
    Ok(plan.total_bytes())
}

/// Returns the tokens of the longest prompt that fits; 0 if none does.
fn longest(device: Device, shape: &Shape, strategy: Strategy, memory: u64) -> Result<u32> {
    let fits = |len: u32| Ok::<_, anyhow::Error>(device.bytes(shape, strategy, len)? <= memory);
    // Doubled first, since a plan of far too many tokens takes memory itself.
    let (mut fitting, mut too_long) = (0, 1);
    while too_long < MOST && fits(too_long)? {
        (fitting, too_long) = (too_long, 2 * too_long);
    }
    while fitting + 1 < too_long {
        let middle = u32::midpoint(fitting, too_long);
        match fits(middle)? {
            true => fitting = middle,
            false => too_long = middle,
        }
    }
    Ok(fitting)
}

/// Returns the table of shapes and memory sizes in GiB, as Markdown.
pub(crate) fn table(shapes: &[Shape], memory_gib: &[u32]) -> Result<String> {
    let mut text = format!(
        "Longest prompt, in tokens, that the memory plans of the executors hold: bf16, one prompt at \
         a time, steps of {STEP_TOKENS} tokens where it is cut, whatever context the model was made \
         for; {THREADS} threads on the host.\n\n\
         | executor | model | memory | paged | chunked | hybrid | hybrid / chunked |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for (device, name) in [(Device::Gpu, "CUDA"), (Device::Cpu, "CPU")] {
        for (shape, &gib) in shapes
            .iter()
            .flat_map(|shape| memory_gib.iter().map(move |gib| (shape, gib)))
        {
            let memory = u64::from(gib) << 30;
            let mut of = |strategy| longest(device, shape, strategy, memory);
            let [paged, chunked, hybrid] = Strategy::ALL.map(&mut of);
            let (paged, chunked, hybrid) = (paged?, chunked?, hybrid?);
            let ratio = f64::from(hybrid) / f64::from(chunked.max(1));
            writeln!(
                text,
                "| {name} | {} | {gib} GiB | {paged} | {chunked} | {hybrid} | {ratio:.1} |",
                shape.name
            )?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make_model::shape;

    #[test]
    fn a_plan_of_one_more_token_does_not_fit() {
        let shape = shape("qwen3-0.6b").unwrap();
        let memory = 4 << 30;
        for device in [Device::Gpu, Device::Cpu] {
            let lens = Strategy::ALL.map(|strategy| {
                let len = longest(device, &shape, strategy, memory).unwrap();
                let bytes = |len| device.bytes(&shape, strategy, len).unwrap();
                assert!(
                    bytes(len) <= memory && bytes(len + 1) > memory,
                    "{strategy:?}"
                );
                len
            });
            // PrefillOnly, Table 2: what is cut fits longer prompts, and without the K/V of all
            // layers far longer ones.
            assert!(
                lens[0] < lens[1] && 5 * lens[1] < lens[2],
                "{device:?}: {lens:?}"
            );
        }
    }

    #[test]
    fn nothing_fits_beside_weights_that_do_not() {
        let shape = shape("qwen3-4b").unwrap();
        for strategy in Strategy::ALL {
            assert_eq!(longest(Device::Gpu, &shape, strategy, 1 << 30).unwrap(), 0);
        }
    }
}
