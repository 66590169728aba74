//! Memory, planned and stated before a model is loaded.

use std::collections::BTreeSet;

use prelude_core::{Capacity, PassCapacity};
use prelude_models::{
    Checkpoint, DType, Fp8Scales, ModelConfig,
    step::{activation_room, pass_capacity, passes_room},
};

use crate::{
    CpuConfig, CpuDtype, Error, Quantization,
    arena::Arena,
    heads,
    kernels::{Backend, InputForm, attention, fp8, int8, panel::NR, tiles},
};

/// KV blocks if nothing is said about them.
const KV_BYTES_DEFAULT: u64 = 1 << 30;
/// The number of longest sequences that the default number of blocks holds at most.
const MAX_DEFAULT_SEQUENCES: u64 = 64;

/// Milliseconds of a slice of a pass: a step of a small model takes about as long.
const SLICE_MS: u32 = 20;

/// Bytes that an executor takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights in the executor's own format, rotations included, and the head of a decision model in
    /// f32, which is computed beside the executor.
    pub weights_bytes: u64,
    /// KV blocks: room for [`Capacity::num_blocks`].
    pub kv_bytes: u64,
    /// Activations of the largest step and of passes in slices, and one layer's keys and values
    /// of each.
    pub arena_bytes: u64,
    /// Buffers of kernels and heads.
    pub scratch_bytes: u64,
}

impl MemoryPlan {
    /// Returns the sum of all parts of the plan.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.weights_bytes
            .saturating_add(self.kv_bytes)
            .saturating_add(self.arena_bytes)
            .saturating_add(self.scratch_bytes)
    }

    /// Plans for a model, and refuses what exceeds the limit. The second part says what the
    /// executor can then run.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        config: &CpuConfig,
        threads: usize,
    ) -> Result<(Self, Capacity), Error> {
        let (plan, capacity) = Self::of_checkpoint(checkpoint, config, threads)?;
        let limit_bytes = config
            .memory_limit_bytes
            .or_else(available_bytes)
            .unwrap_or(u64::MAX);
        if plan.total_bytes() > limit_bytes {
            return Err(Error::Memory {
                total_bytes: plan.total_bytes(),
                weights_bytes: plan.weights_bytes,
                kv_bytes: plan.kv_bytes,
                arena_bytes: plan.arena_bytes,
                scratch_bytes: plan.scratch_bytes,
                limit_bytes,
            });
        }
        Ok((plan, capacity))
    }

    /// Plans for a checkpoint, whatever memory there is, on a pool of so many threads. The second part
    /// says what the executor can then run. Nothing of the weights is read.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Instructions`] for settings that no machine could serve.
    pub fn of_checkpoint(
        checkpoint: &Checkpoint,
        config: &CpuConfig,
        threads: usize,
    ) -> Result<(Self, Capacity), Error> {
        let model = checkpoint.config();
        config.check(model)?;
        let tensors = checkpoint.names().filter_map(|name| {
            // A tensor that cannot be read as numbers is not loaded.
            let (dtype, shape) = checkpoint.form(name)?;
            Some((name.to_owned(), dtype, shape.to_vec()))
        });
        let (mut plan, capacity) = Self::of_model(model, tensors, config, threads)?;
        let head = { checkpoint.decision() }.map_or(0, |decision| decision.head().bytes());
        plan.weights_bytes += head as u64;
        Ok((plan, capacity))
    }

    /// Plans for a model with such tensors (name, element type, shape), whatever memory there is. The
    /// second part says what the executor can then run.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Instructions`] for settings that no machine could serve.
    pub fn of_model(
        model: &ModelConfig,
        tensors: impl IntoIterator<Item = (String, DType, Vec<usize>)>,
        config: &CpuConfig,
        threads: usize,
    ) -> Result<(Self, Capacity), Error> {
        let config = &config.for_model(model);
        let (dtype, backend) = config.choose(model)?;
        let max_context_len = match config.max_context_len {
            Some(len) => len,
            None => u32::try_from(model.max_position_embeddings)
                .map_err(|_| Error::config("max_context_len", "must be given for this model"))?,
        };
        // One pass of the longest sequence, or several shorter ones.
        let pass_tokens = config.max_pass_tokens.unwrap_or(max_context_len);
        let capacity = Capacity {
            block_size: config.block_size,
            num_blocks: num_blocks(model, config, dtype, max_context_len)?,
            max_step_tokens: config.max_step_tokens,
            full_step_tokens: 2048,
            max_context_len,
            vocab_size: u32::try_from(model.num_ids())
                .map_err(|_| Error::config("max_context_len", "vocabulary beyond 2^32"))?,
            pipeline_depth: 1,
            passes: pass_capacity(model, pass_tokens, SLICE_MS),
            attention: model.attention,
            host_blocks: 0,
        };
        // Layers with a window have rotations of their own.
        let tables = 1 + u64::from(model.local.is_some());
        let rotations = tables * u64::from(max_context_len) * model.head_dim as u64 * 4;
        let tensors: Vec<_> = tensors.into_iter().collect();
        let plan = Self {
            weights_bytes: match config.quantization {
                Some(Quantization::Int8) => int8_bytes(model, &tensors, backend, dtype),
                Some(Quantization::Fp8) => fp8_bytes(model, &tensors, backend, dtype),
                None => weights_bytes(&tensors, backend, dtype),
            } + rotations,
            kv_bytes: (u64::from(capacity.num_blocks) * u64::from(capacity.block_size))
                .saturating_mul(kv_row_bytes(model, dtype))
                .saturating_mul(model.num_hidden_layers as u64),
            arena_bytes: (arena_len(model, config) * size_of::<f32>()) as u64
                + u64::from(config.max_step_tokens) * kv_row_bytes(model, dtype)
                + pass_bytes(model, config, dtype, capacity.passes),
            scratch_bytes: scratch_bytes(model, config, backend, threads),
        };
        Ok((plan, capacity))
    }
}

/// Returns the bytes of memory that the system says are available to this process now (Linux:
/// `MemAvailable`, or the control group's limit if that is lower); `None` where it does not say.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let read = |path| std::fs::read_to_string(path).ok();
    let groups = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let machine = read("/proc/meminfo").and_then(|text| mem_available(&text));
    // Version 2 writes "max" for no limit.
    let limits = groups.into_iter().filter_map(read);
    let limits = limits.filter_map(|text| text.trim().parse().ok());
    machine.into_iter().chain(limits).min()
}

/// Reads `MemAvailable` of `/proc/meminfo`, whose unit is KiB.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Returns the number of f32 of activations of the largest step.
pub(crate) fn arena_len(model: &ModelConfig, config: &CpuConfig) -> usize {
    let tokens = config.max_step_tokens as usize;
    activation_room(model, tokens, tokens, config.chunk_tokens, Arena::room)
}

/// Returns the bytes that passes in slices take at most.
fn pass_bytes(
    model: &ModelConfig,
    config: &CpuConfig,
    dtype: CpuDtype,
    passes: Option<PassCapacity>,
) -> u64 {
    let Some(passes) = passes else {
        return 0;
    };
    let chunk = config.chunk_tokens;
    let arena = passes_room(&passes, chunk, |tokens, outputs| {
        activation_room(model, tokens, outputs, chunk, Arena::room)
    });
    (arena * size_of::<f32>()) as u64 + u64::from(passes.tokens) * kv_row_bytes(model, dtype)
}

/// Returns the bytes of one position's keys and values in one layer.
fn kv_row_bytes(model: &ModelConfig, dtype: CpuDtype) -> u64 {
    let element = match dtype {
        CpuDtype::F32 => 4,
        CpuDtype::Bf16 => 2,
    };
    (2 * model.num_key_value_heads * model.head_dim * element) as u64
}

fn num_blocks(
    model: &ModelConfig,
    config: &CpuConfig,
    dtype: CpuDtype,
    max_context_len: u32,
) -> Result<u32, Error> {
    if let Some(blocks) = config.num_blocks {
        return Ok(blocks);
    }
    let block =
        u64::from(config.block_size) * kv_row_bytes(model, dtype) * model.num_hidden_layers as u64;
    let blocks = match config.kv_bytes {
        Some(bytes) => bytes / block,
        None => (KV_BYTES_DEFAULT / block)
            .min(u64::from(max_context_len.div_ceil(config.block_size)) * MAX_DEFAULT_SEQUENCES),
    };
    if blocks == 0 {
        return Err(Error::config(
            "kv_bytes",
            format!("must hold at least one block of {block} bytes"),
        ));
    }
    // Ids and slots are u32.
    Ok(u32::try_from(blocks)
        .unwrap_or(u32::MAX)
        .min(u32::MAX / config.block_size - 1))
}

/// Returns the bytes of tensors (name, element type, shape) in the executor's own format.
fn weights_bytes(
    tensors: &[(String, DType, Vec<usize>)],
    backend: Backend,
    dtype: CpuDtype,
) -> u64 {
    // Matrices of one module may be stacked, and a stack is bf16 only if all its parts are.
    let module = |name: &str| name.rsplitn(3, '.').nth(2).map(str::to_owned);
    let widened: BTreeSet<_> = tensors
        .iter()
        .filter(|(_, dtype, shape)| shape.len() > 1 && *dtype != DType::Bf16)
        .map(|(name, ..)| module(name))
        .collect();
    let halved = |name: &str| dtype == CpuDtype::Bf16 || !widened.contains(&module(name));
    let bytes = tensors.iter().map(|(name, _, shape)| {
        let size = if shape.len() > 1 && halved(name) {
            2
        } else {
            4
        };
        let len = match shape[..] {
            [outputs, inputs] => packed_len(backend.act, outputs, inputs),
            _ => shape.iter().product(),
        };
        len as u64 * size
    });
    bytes.sum()
}

/// Returns the bytes of tensors (name, element type, shape) whose matrices are rounded to int8. Tables
/// are not, unless they are the output head as well.
fn int8_bytes(
    model: &ModelConfig,
    tensors: &[(String, DType, Vec<usize>)],
    backend: Backend,
    dtype: CpuDtype,
) -> u64 {
    let tied = model.tie_word_embeddings && model.architecture.ends_with("ForCausalLM");
    let is_rounded = |name: &str| tied || !name.contains("embed");
    rounded_bytes(tensors, (backend, dtype), is_rounded, int8::panel_lines)
}

/// Returns the bytes of tensors (name, element type, shape) of which the matrices of layers are rounded
/// to fp8, or are stored so with scales of blocks.
fn fp8_bytes(
    model: &ModelConfig,
    tensors: &[(String, DType, Vec<usize>)],
    backend: Backend,
    dtype: CpuDtype,
) -> u64 {
    // Routers are not rounded.
    let of_layer = |name: &str| name.contains("layers.") && !name.ends_with(".mlp.gate.weight");
    let has_blocks = model.fp8 == Some(Fp8Scales::Blocks([fp8::blocks::BLOCK; 2]));
    // Matrices that are rounded all the same have fewer scales, one part in 64 of a matrix less.
    let panel_lines = |inputs: usize| match has_blocks {
        true if inputs.is_multiple_of(fp8::blocks::BLOCK) => fp8::blocks::panel_lines(inputs),
        _ => fp8::panel_lines(inputs),
    };
    rounded_bytes(tensors, (backend, dtype), of_layer, panel_lines)
}

/// Returns the bytes of tensors (name, element type, shape) of which some matrices, by their names, are
/// rounded to panels of so many lines by their width.
fn rounded_bytes(
    tensors: &[(String, DType, Vec<usize>)],
    (backend, dtype): (Backend, CpuDtype),
    is_rounded: impl Fn(&str) -> bool,
    panel_lines: impl Fn(usize) -> usize,
) -> u64 {
    let of_tensor =
        |(name, _, shape): &(String, DType, Vec<usize>)| shape.len() == 2 && is_rounded(name);
    let (rounded, others): (Vec<_>, Vec<_>) = tensors.iter().cloned().partition(of_tensor);
    let bytes = rounded.iter().map(|(_, _, shape)| {
        let panels = shape[0].div_ceil(NR) as u64;
        panels * (panel_lines(shape[1]) * NR * size_of::<u32>()) as u64
    });
    bytes.sum::<u64>() + weights_bytes(&others, backend, dtype)
}

/// Returns the number of elements of a matrix in panels, which are padded to whole ones, as tiles are.
fn packed_len(act: InputForm, outputs: usize, inputs: usize) -> usize {
    let inputs = match act {
        InputForm::Tiles => inputs.next_multiple_of(tiles::DEPTH),
        InputForm::Bf16 | InputForm::F32 => inputs,
    };
    outputs.next_multiple_of(NR).saturating_mul(inputs)
}

fn scratch_bytes(model: &ModelConfig, config: &CpuConfig, backend: Backend, threads: usize) -> u64 {
    // Left tiles of the widest input, and of the MLP's middle: whole tiles.
    let padded = |width: usize| width.next_multiple_of(tiles::DEPTH);
    let widths = padded(widest_input(model)) + padded(model.intermediate_size);
    let chunk = (config.chunk_tokens as usize).next_multiple_of(tiles::ROWS);
    let rounded = match config.quantization {
        Some(Quantization::Fp8) => chunk * fp8::room_dwords(widest_input(model)) * size_of::<f32>(),
        _ => 0,
    };
    let rows = chunk * widths * size_of::<u16>() + rounded;
    let by_distance = attends_by_distance(model);
    let attention = attention::scratch_bytes(model.attn_shape(), backend, by_distance) * threads;
    let heads = heads::logits_rows(model.vocab_size)
        * (model.vocab_size + model.hidden_size)
        * size_of::<f32>()
        + heads::worker_bytes(model.vocab_size) * threads;
    (rows + attention + heads) as u64
}

/// Returns true if attention of some layers depends on the distance of tokens, or bounds scores.
pub(crate) fn attends_by_distance(model: &ModelConfig) -> bool {
    let encoder = model.encoder.as_ref();
    model.local.is_some()
        || model.scales.attention_cap.is_some()
        || encoder.is_some_and(|of| of.relative_buckets > 0)
}

/// Returns the longest rows that enter a product.
pub(crate) fn widest_input(model: &ModelConfig) -> usize {
    let dense = model.dense.iter().map(|module| module.inputs);
    let of_layers = [
        model.hidden_size,
        model.intermediate_size,
        model.attn_shape().out_width(),
    ];
    let experts = model
        .experts
        .iter()
        .map(|experts| experts.intermediate_size);
    let encoder = model.encoder.as_ref();
    let markers = encoder
        .and_then(|of| of.markers)
        .map(|_| 4 * model.hidden_size);
    let all = of_layers.into_iter().chain(dense).chain(experts);
    let widest = all.chain(markers).max();
    widest.expect("a layer has products")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types of a file's tensors count, not those that its configuration names.
    #[test]
    fn weights_are_counted_by_their_own_type() {
        let checkpoint = crate::testing::checkpoint("demo-lm");
        let tensors: Vec<_> = checkpoint
            .names()
            .map(|name| (name.to_owned(), checkpoint.tensor(name).unwrap()))
            .map(|(name, view)| (name, view.dtype, view.shape))
            .collect();
        let backend = CpuConfig::default().choose(checkpoint.config()).unwrap().1;
        let matrices = |matrix: bool| -> u64 {
            let views = checkpoint.names().map(|n| checkpoint.tensor(n).unwrap());
            let views = views.filter(|view| (view.shape.len() > 1) == matrix);
            views.map(|view| view.len() as u64).sum()
        };
        let check = |backend, dtype, size| {
            let expected = matrices(true) * size + matrices(false) * 4;
            assert_eq!(weights_bytes(&tensors, backend, dtype), expected);
        };
        check(backend, CpuDtype::Bf16, 2);
        check(backend, CpuDtype::F32, 2);
    }

    /// The planned size of a matrix is that of the packed matrix, in odd sizes as well.
    #[test]
    fn padding_is_counted() {
        use crate::kernels::{Supported, gemm};

        let pool = crate::ComputePool::new(1);
        for isa in crate::Isa::ALL.into_iter().filter_map(Supported::new) {
            let act = InputForm::of(isa, CpuDtype::Bf16);
            let format = match act {
                InputForm::Tiles => gemm::Format::Tiles,
                InputForm::Bf16 | InputForm::F32 => gemm::Format::Bf16,
            };
            for (outputs, inputs) in [(64, 64), (1, 80), (65, 46), (3, 2)] {
                let matrix = gemm::Matrix::new(&pool, format, (outputs, inputs), |_, row| {
                    row.resize(inputs, 1.0);
                });
                let planned = packed_len(act, outputs, inputs) * 2;
                assert_eq!(matrix.bytes(), planned, "{isa:?} {outputs} x {inputs}");
            }
        }
    }

    /// The planned size of a model in int8 or fp8 is that of its packed matrices, with tables of untied
    /// models as they were; in int8 it is not much more than half of that in bf16.
    #[test]
    fn rounded_weights_are_counted() {
        use crate::kernels::gemm;

        let pool = crate::ComputePool::new(1);
        for (outputs, inputs) in [(64, 64), (1, 80), (65, 46), (3, 2), (130, 300)] {
            let shape = (outputs, inputs);
            for (format, lines) in [
                (gemm::Format::Int8, int8::panel_lines(inputs)),
                (gemm::Format::Fp8, fp8::panel_lines(inputs)),
            ] {
                let matrix = gemm::Matrix::new(&pool, format, shape, |_, row| {
                    row.resize(inputs, 1.0);
                });
                let planned = outputs.div_ceil(NR) * lines * NR * 4;
                assert_eq!(matrix.bytes(), planned, "{format:?} {outputs} x {inputs}");
            }
        }
        let planned = |name: &str, quantization| {
            let checkpoint = crate::testing::checkpoint(name);
            let config = CpuConfig {
                quantization,
                dtype: Some(CpuDtype::Bf16),
                ..crate::testing::small()
            };
            MemoryPlan::new(&checkpoint, &config, 1).unwrap().0
        };
        for (name, most) in [("demo-lm", 0.56), ("rand-untied-sharded", 0.85)] {
            let [bf16, int8] = [None, Some(Quantization::Int8)].map(|q| planned(name, q));
            let share = int8.weights_bytes as f64 / bf16.weights_bytes as f64;
            assert!(share < most && share > 0.5, "{name}: {share}");
            assert_eq!(int8.scratch_bytes, bf16.scratch_bytes);
        }
        // A scale for each output of a layer, and rows that are rounded.
        let [bf16, fp8] = [None, Some(Quantization::Fp8)].map(|q| planned("demo-lm", q));
        let model = crate::testing::checkpoint("demo-lm");
        let model = model.config();
        let of_layer = model.attn_shape().qkv_width() + 2 * model.hidden_size;
        let scales = model.num_hidden_layers * (of_layer + 2 * model.intermediate_size);
        assert_eq!(fp8.weights_bytes - bf16.weights_bytes, 4 * scales as u64);
        assert!(fp8.scratch_bytes > bf16.scratch_bytes);
        // One for each output and 128 inputs.
        let name = crate::testing::FP8_BLOCKS;
        let [bf16, blocks] = [None, Some(Quantization::Fp8)].map(|q| planned(name, q));
        let model = crate::testing::checkpoint(name);
        let model = model.config();
        let (shape, h) = (model.attn_shape(), model.hidden_size);
        let elements = h * (shape.qkv_width() + shape.out_width() + 3 * model.intermediate_size);
        let scales = model.num_hidden_layers * elements / fp8::blocks::BLOCK;
        assert_eq!(blocks.weights_bytes - bf16.weights_bytes, 4 * scales as u64);
    }

    /// Experts are counted as they are packed, and the matrices that choose them are not rounded.
    #[test]
    fn experts_in_fp8_are_counted() {
        use crate::testing::{BF16_MIXTURE, FP8_MIXTURE};

        for (name, group) in [
            (BF16_MIXTURE, None),
            (FP8_MIXTURE, Some(fp8::blocks::BLOCK)),
        ] {
            let checkpoint = crate::testing::checkpoint(name);
            let planned = |quantization| {
                let config = CpuConfig {
                    quantization,
                    ..crate::testing::small()
                };
                MemoryPlan::new(&checkpoint, &config, 1).unwrap().0
            };
            let [bf16, fp8] = [None, Some(Quantization::Fp8)].map(planned);
            let model = checkpoint.config();
            let (shape, h) = (model.attn_shape(), model.hidden_size);
            let experts = model.experts.as_ref().unwrap();
            // Rows and widths; of a layer with experts and of one with an MLP.
            let attention = [(shape.qkv_width(), h), (h, shape.out_width())];
            let mlp = |i: usize| [(2 * i, h), (h, i)];
            let mut matrices = [attention, attention, mlp(model.intermediate_size)].concat();
            for _ in 0..experts.count {
                matrices.extend(mlp(experts.intermediate_size));
            }
            let scales = matrices.into_iter().map(|(rows, width)| match group {
                Some(group) => rows * width / group,
                None => rows,
            });
            let scales: usize = scales.sum();
            let more = fp8.weights_bytes - bf16.weights_bytes;
            assert_eq!(more, 4 * scales as u64, "{name}");
        }
    }

    #[test]
    fn available_memory_is_read() {
        let text = "MemTotal:       65 kB\nMemAvailable:   24 kB\nBuffers: 1 kB\n";
        assert_eq!(mem_available(text), Some(24 << 10));
        for text in ["", "MemAvailable: x kB\n", "MemAvailable: 5\n"] {
            assert_eq!(mem_available(text), None);
        }
        if cfg!(target_os = "linux") {
            assert!(available_bytes().is_some());
        }
    }
}
