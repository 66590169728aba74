//! Models and operations in fp8, in the emulation: against a naive twin that rounds as it is defined,
//! against the CPU executor in fp8, and against recorded outputs of the reference implementation, which
//! rounds nothing to fp8.

mod experts;

use std::sync::Arc;

use half::bf16;
use prelude_core::{
    Executor, ForwardBatch, Normalise, OneShotBatch, OutputHead, Pooling, RowOutput,
};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuDtype, CpuExecutor, Quantization};
use prelude_models::{
    DType, Fp8Matrix, MlpRoom, Norm, Ops as _, TensorView, WeightLoader as _,
    conformance::{
        batches::{append, prompt},
        golden::{Allowed, Golden, GoldenComparison, folder},
    },
};

use crate::{
    CudaConfig, CudaExecutor, CudaLoader,
    config::FP8_BLOCK,
    end_to_end::{check_within, executor, run, short_prompts},
    kernels::{fp8::Scaling, launch::Launcher},
    load::Weight,
    measure::{Device, Room, Target},
    memory::space::Space,
    testing::{FP8_BLOCKS, checkpoint, emulation, small},
};

/// Most times the reference's own error in bf16 that answers in fp8 may be off: e4m3 has 4 bits less.
const FP8_TIMES: f64 = 16.0;

/// Value of an e4m3, by its definition.
fn value(bits: u8) -> f64 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    match exponent {
        0 => sign * mantissa * 2f64.powi(-9),
        _ => sign * (8.0 + mantissa) * 2f64.powi(exponent - 10),
    }
}

/// The nearest e4m3, ties to even.
fn nearest(x: f64) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let off = |bits: &u8| (value(*bits) - x.abs()).abs();
    let nearest = (0..=0x7eu8).min_by(|a, b| off(a).total_cmp(&off(b)).then((a & 1).cmp(&(b & 1))));
    nearest.unwrap() | sign
}

/// A row's scale, and its numbers in e4m3.
fn rounded(row: &[bf16]) -> (f32, Vec<u8>) {
    let largest = row.iter().map(|x| x.to_f32().abs());
    let scale = largest.fold(2f32.powi(-24), f32::max) / 448.0;
    let q = row.iter().map(|x| nearest(f64::from(x.to_f32() / scale)));
    (scale, q.collect())
}

/// The product of a row of `x` and a row of `w`, as the kernels define it.
fn product(x: &(f32, Vec<u8>), w: &(f32, Vec<u8>)) -> f64 {
    let sum: f64 =
        x.1.iter()
            .zip(&w.1)
            .map(|(&x, &w)| value(x) * value(w))
            .sum();
    sum * f64::from(x.0) * f64::from(w.0)
}

fn values(seed: usize, len: usize, size: f32) -> Vec<bf16> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 1999) as f32 / 999.0 - 1.0;
    (0..len).map(|i| bf16::from_f32(size * number(i))).collect()
}

fn view<'a>(values: &'a [bf16], shape: &[usize]) -> TensorView<'a> {
    TensorView {
        dtype: DType::Bf16,
        shape: shape.to_vec(),
        bytes: bytemuck::cast_slice(values),
    }
}

/// A matrix as checkpoints store it, with scales of blocks.
struct Stored {
    shape: [usize; 2],
    data: Vec<u8>,
    scales: Vec<f32>,
}

impl Stored {
    fn new(seed: usize, rows: usize, width: usize) -> Self {
        let data = values(seed, rows * width, 448.0);
        let count = rows.div_ceil(FP8_BLOCK) * (width / FP8_BLOCK);
        // Of different sizes, so that another block's shows.
        let scale = |i: usize| 2f32.powi(-10) * (1 + (i + seed) % 5) as f32;
        Self {
            shape: [rows, width],
            data: data.iter().map(|x| nearest(x.to_f64())).collect(),
            scales: (0..count).map(scale).collect(),
        }
    }

    fn view(&self) -> Fp8Matrix<'_> {
        Fp8Matrix {
            shape: self.shape,
            block: [FP8_BLOCK; 2],
            data: &self.data,
            scales: self.scales.clone(),
        }
    }

    /// The product of a row and a row of this, as the kernels define it.
    fn product(&self, x: &[bf16], row: usize) -> f64 {
        let width = self.shape[1];
        let groups = width / FP8_BLOCK;
        let w = self.data[row * width..][..width].chunks_exact(FP8_BLOCK);
        let of_groups = x.chunks_exact(FP8_BLOCK).map(rounded).zip(w);
        let sums = of_groups.enumerate().map(|(group, (x, w))| {
            let scale = self.scales[row / FP8_BLOCK * groups + group];
            product(&x, &(scale, w.to_vec()))
        });
        sums.sum()
    }
}

/// Loads a matrix as it is stored.
fn load_stored(loader: &mut CudaLoader, stored: &Stored, biases: &[TensorView<'_>]) -> Weight {
    let loaded = loader.linear_fp8("w", &[stored.view()], biases).unwrap();
    let loaded = loaded.unwrap();
    assert_eq!(loaded.fp8().unwrap().0.scaling, Scaling::Blocks);
    loaded
}

/// Blocks of 128 × 128 are sent as they are stored, parts behind each other; others are not taken, and
/// none where nothing is rounded.
#[test]
fn blocks_are_loaded_as_they_are() {
    let Some(device) = emulation() else { return };
    let space = Space::Emu(Arc::clone(&device));
    let launcher = Launcher::Emu(Arc::clone(&device), None);
    let mut loader = CudaLoader::new(space.clone(), Some(launcher));
    let parts = [(0, 256, 256), (1, 128, 256), (2, 40, 256)].map(|(s, r, w)| Stored::new(s, r, w));
    let before = loader.bytes();
    let bias = values(9, 424, 2.0);
    let views = parts.each_ref().map(Stored::view);
    let biases = [view(&bias, &[424])];
    let weight = loader.linear_fp8("w", &views, &biases).unwrap().unwrap();
    assert_eq!(
        loader.bytes() - before,
        424 * 256 + 4 * 4 * (2 + 1 + 1) + 2 * 424
    );
    let (matrix, bias) = weight.fp8().unwrap();
    assert_eq!(bias.unwrap().width(), 424);
    let data: Vec<u8> = device.download(matrix.data.ptr(), 424 * 256).unwrap();
    let scales: Vec<f32> = device.download(matrix.scales.ptr(), 16).unwrap();
    let all = |of: fn(&Stored) -> &[u8]| parts.iter().flat_map(of).copied().collect::<Vec<_>>();
    assert!(data == all(|part| &part.data));
    // Two blocks a row, filled up to four.
    let rows = parts.iter().flat_map(|part| part.scales.chunks_exact(2));
    let expected: Vec<f32> = rows.flat_map(|row| [row[0], row[1], 0.0, 0.0]).collect();
    assert_eq!(scales, expected);

    let mut refused = |parts: &[Fp8Matrix<'_>], biases: &[TensorView<'_>]| {
        assert!(loader.linear_fp8("w", parts, biases).unwrap().is_none());
    };
    let [first, second, last] = &views;
    refused(&[last.clone(), first.clone()], &[]);
    refused(&[first.clone(), Stored::new(1, 128, 128).view()], &[]);
    refused(&[first.clone(), second.clone()], &biases);
    refused(&[Stored::new(1, 128, 0).view()], &[]);
    refused(&[Stored::new(1, 0, 128).view()], &[]);
    refused(&[], &[]);
    let other = Fp8Matrix {
        block: [128, 64],
        ..first.clone()
    };
    refused(&[other], &[]);
    let narrow = Fp8Matrix {
        shape: [1, 16],
        data: &parts[0].data[..16],
        scales: vec![1.0],
        ..first.clone()
    };
    refused(&[narrow], &[]);
    let mut loader = CudaLoader::new(space, None);
    assert!(loader.linear_fp8("w", &views, &[]).unwrap().is_none());
}

/// Weights are rounded row by row, whatever was rounded before; heads and tables are not.
#[test]
fn matrices_of_layers_are_rounded() {
    let Some(device) = emulation() else { return };
    let space = Space::Emu(Arc::clone(&device));
    let launcher = Launcher::Emu(Arc::clone(&device), None);
    let mut loader = CudaLoader::new(space, Some(launcher));
    for (i, (rows, width)) in [(3, 32), (40, 16), (5, 272)].into_iter().enumerate() {
        let before = loader.bytes();
        let (a, b) = (values(i, rows * width, 0.3), values(9 + i, width, 2.0));
        let parts = [view(&a, &[rows, width]), view(&b, &[1, width])];
        let weight = loader.linear("w", &parts, &[]).unwrap();
        let (matrix, bias) = weight.fp8().unwrap();
        assert!(bias.is_none());
        let taken = (rows + 1) * (width + 4);
        assert_eq!(loader.bytes() - before, taken as u64);
        let data: Vec<u8> = device
            .download(matrix.data.ptr(), (rows + 1) * width)
            .unwrap();
        let scales: Vec<f32> = device.download(matrix.scales.ptr(), rows + 1).unwrap();
        let all = [a, b].concat();
        for (r, row) in all.chunks_exact(width).enumerate() {
            let expected = rounded(row);
            assert_eq!(scales[r], expected.0, "row {r}");
            assert_eq!(data[r * width..][..width], expected.1[..], "row {r}");
        }
    }
    let table = values(1, 64, 1.0);
    let table = view(&table, &[4, 16]);
    let head = loader.head("score", std::slice::from_ref(&table), &[]);
    for kept in [head, loader.embedding("embed", &table, true)] {
        assert!(kept.unwrap().fp8().is_none());
    }
    let narrow = values(2, 24, 1.0);
    let error = loader.linear("w", &[view(&narrow, &[1, 24])], &[]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("multiple of 16"), "{error}");
    assert!(loader.end_rounding().is_some());
}

/// `linear` and `linear_add` are products of what both factors are rounded to: of few rows and of many,
/// of more rows than are rounded at once.
fn check_products(deterministic: bool) {
    let Some(device) = emulation() else { return };
    let target = Target::emulated(device);
    for (rows, input, output, biased) in
        [(1, 64, 40, true), (17, 112, 24, false), (70, 48, 136, true)]
    {
        let mut room = room(rows * (input + 3 * output));
        room.model.hidden_size = input;
        let mut device = Device::open(&target, &room, deterministic).unwrap();
        let (w, x) = (values(1, output * input, 0.2), values(2, rows * input, 3.0));
        let (b, before) = (values(3, output, 1.0), values(4, rows * output, 4.0));
        let biases = [view(&b, &[output])];
        let biases = if biased { &biases[..] } else { &[] };
        let mut loader = device.loader().unwrap();
        let weight = loader.linear("w", &[view(&w, &[output, input])], biases);
        let weight = weight.unwrap();
        let batch = ForwardBatch::OneShot(OneShotBatch::EMPTY);
        let (results, _) = device
            .step(batch, |ops, _| {
                let x = ops.filled(rows, input, &x)?;
                let mut y = ops.alloc(rows, output)?;
                ops.linear(&x, rows, &weight, &mut y)?;
                let mut h = ops.filled(rows, output, &before)?;
                ops.linear_add(&x, 0..rows, &weight, &mut h)?;
                let mut first = ops.alloc(1, output)?;
                ops.linear(&x, 1, &weight, &mut first)?;
                Ok([ops.read(&y)?, ops.read(&h)?, ops.read(&first)?])
            })
            .unwrap();
        let [y, h, first] = results;
        if deterministic {
            assert_eq!(first, y[..output], "row 0 alone");
        }
        let w: Vec<_> = w.chunks_exact(input).map(rounded).collect();
        for (row, x) in x.chunks_exact(input).map(rounded).enumerate() {
            for (column, w) in w.iter().enumerate() {
                let at = row * output + column;
                let bias = if biased { b[column].to_f64() } else { 0.0 };
                let sum = product(&x, w) + bias;
                let added = sum + before[at].to_f64();
                for (got, expected) in [(y[at], sum), (h[at], added)] {
                    // One rounding to bf16, and what f32 sums pile up.
                    let bound = expected.abs() / 256.0 + 1e-4;
                    let off = (got.to_f64() - expected).abs();
                    assert!(off <= bound, "[{row}, {column}]: {got} is not {expected}");
                }
            }
        }
    }
}

#[test]
fn products_are_of_what_is_rounded() {
    check_products(true);
}

#[test]
fn products_of_few_rows_too() {
    check_products(false);
}

/// The same of a matrix with scales of blocks and rows of 128 elements.
fn check_products_of_blocks(deterministic: bool) {
    let Some(device) = emulation() else { return };
    let target = Target::emulated(device);
    for (rows, input, output, biased) in [
        (1, 128, 40, true),
        (17, 384, 200, false),
        (70, 256, 136, true),
    ] {
        let mut room = room(rows * (input + 3 * output));
        room.model.hidden_size = input;
        let mut device = Device::open(&target, &room, deterministic).unwrap();
        let (w, x) = (Stored::new(1, output, input), values(2, rows * input, 3.0));
        let (b, before) = (values(3, output, 1.0), values(4, rows * output, 4.0));
        let biases = [view(&b, &[output])];
        let biases = if biased { &biases[..] } else { &[] };
        let weight = load_stored(&mut device.loader().unwrap(), &w, biases);
        let batch = ForwardBatch::OneShot(OneShotBatch::EMPTY);
        let ([y, h, first], _) = device
            .step(batch, |ops, _| {
                let x = ops.filled(rows, input, &x)?;
                let mut y = ops.alloc(rows, output)?;
                ops.linear(&x, rows, &weight, &mut y)?;
                let mut h = ops.filled(rows, output, &before)?;
                ops.linear_add(&x, 0..rows, &weight, &mut h)?;
                let mut first = ops.alloc(1, output)?;
                ops.linear(&x, 1, &weight, &mut first)?;
                Ok([ops.read(&y)?, ops.read(&h)?, ops.read(&first)?])
            })
            .unwrap();
        if deterministic {
            assert_eq!(first, y[..output], "row 0 alone");
        }
        for (row, x) in x.chunks_exact(input).enumerate() {
            for (column, bias) in b.iter().enumerate() {
                let at = row * output + column;
                let bias = if biased { bias.to_f64() } else { 0.0 };
                let sum = w.product(x, column) + bias;
                let added = sum + before[at].to_f64();
                for (got, expected) in [(y[at], sum), (h[at], added)] {
                    // One rounding to bf16, and what f32 sums pile up.
                    let bound = expected.abs() / 256.0 + 1e-3;
                    let off = (got.to_f64() - expected).abs();
                    assert!(off <= bound, "[{row}, {column}]: {got} is not {expected}");
                }
            }
        }
    }
}

#[test]
fn products_with_scales_of_blocks() {
    check_products_of_blocks(true);
}

#[test]
fn products_of_few_rows_with_scales_of_blocks() {
    check_products_of_blocks(false);
}

/// Room for a model in fp8 and so many activations.
fn room(arena_elements: usize) -> Room {
    Room {
        model: checkpoint("demo-lm").config().clone(),
        blocks: 4,
        block_size: 16,
        step_tokens: 64,
        chunk_tokens: 64,
        context_len: 64,
        arena_elements,
        lists_bytes: 1 << 20,
        logits_rows: 1,
        hopper_products: false,
        fp8: true,
        prompt_attention: crate::PromptAttention::OfGpu,
    }
}

/// The second half of a layer, whose norms and gates are never stored, has the bits of its four
/// operations: of few rows and many, and of more than are rounded at once.
#[test]
fn norms_and_gates_are_rounded_as_if_stored() {
    check_norms_and_gates(Scaling::Rows, (48, 80));
}

/// So it has where numbers are rounded 128 at a time.
#[test]
fn norms_and_gates_are_rounded_in_groups_as_if_stored() {
    check_norms_and_gates(Scaling::Blocks, (256, 384));
}

fn check_norms_and_gates(scaling: Scaling, (hidden, inner): (usize, usize)) {
    let Some(device) = emulation() else { return };
    let target = Target::emulated(device);
    for (rows, deterministic) in [(3, false), (40, false), (70, false), (33, true)] {
        let mut room = room(rows * (3 * hidden + 3 * inner));
        room.model.hidden_size = hidden;
        room.model.intermediate_size = inner;
        let mut device = Device::open(&target, &room, deterministic).unwrap();
        let mut loader = device.loader().unwrap();
        let mut load = |seed: usize, rows: usize, width: usize| match scaling {
            Scaling::Rows => {
                let values = values(seed, rows * width, 0.4);
                let loaded = loader.linear("w", &[view(&values, &[rows, width])], &[]);
                loaded.unwrap()
            }
            Scaling::Blocks => load_stored(&mut loader, &Stored::new(seed, rows, width), &[]),
        };
        let (up, down) = (load(1, 2 * inner, hidden), load(2, hidden, inner));
        let offset = if deterministic { 1.0 } else { 0.0 };
        let norm = values(3, hidden, 2.0);
        let weight = loader.norm("norm", &view(&norm, &[hidden]), offset);
        let norm = Norm {
            weight: &weight.unwrap(),
            eps: 1e-6,
        };
        let before = values(4, rows * hidden, 2.0);
        let batch = ForwardBatch::OneShot(OneShotBatch::EMPTY);
        let ([at_once, in_turn], _) = device
            .step(batch, |ops, _| {
                let mut x = ops.alloc(rows, hidden)?;
                let mut gate_up = ops.alloc(rows, 2 * inner)?;
                let mut a = ops.alloc(rows, inner)?;
                let mut h = ops.filled(rows, hidden, &before)?;
                let room = MlpRoom {
                    x: &mut x,
                    gate_up: &mut gate_up,
                    a: &mut a,
                };
                ops.mlp_add(0..rows, norm, &up, &down, room, &mut h)?;
                let at_once = ops.read(&h)?;
                ops.write(&mut h, &before)?;
                ops.rms_norm(&h, 0..rows, norm.weight, norm.eps, &mut x)?;
                ops.linear(&x, rows, &up, &mut gate_up)?;
                ops.silu_mul(&gate_up, rows, &mut a)?;
                ops.linear_add(&a, 0..rows, &down, &mut h)?;
                Ok([at_once, ops.read(&h)?])
            })
            .unwrap();
        assert!(at_once == in_turn && at_once != before, "{rows} rows");
    }
}

/// Weights take half the memory, the embedding apart; rows that are rounded take some of the arena.
#[test]
fn memory_is_that_of_fp8() {
    let open = |fp8| {
        let config = CudaConfig { fp8, ..small() };
        let (executor, _) = CudaExecutor::recording(&checkpoint("demo-lm"), &config).unwrap();
        executor.memory()
    };
    let (bf16, fp8) = (open(false), open(true));
    let model = checkpoint("demo-lm");
    let model = model.config();
    let (h, i) = (model.hidden_size, model.intermediate_size);
    let shape = model.attn_shape();
    let outputs = shape.qkv_width() + h + 2 * i + h;
    let elements = shape.qkv_width() * h + h * shape.out_width() + 3 * h * i;
    let saved = model.num_hidden_layers * (elements - 4 * outputs);
    assert_eq!(bf16.weights_bytes - fp8.weights_bytes, saved as u64);
    assert!(fp8.arena_bytes > bf16.arena_bytes);
    assert_eq!(fp8.kv_bytes, bf16.kv_bytes);
}

/// Blocks take a byte an element and a scale each, rows of which are filled up to fours.
#[test]
fn memory_is_that_of_blocks() {
    let open = |fp8| {
        let config = CudaConfig { fp8, ..small() };
        let model = checkpoint(FP8_BLOCKS);
        let (executor, _) = CudaExecutor::recording(&model, &config).unwrap();
        executor.memory()
    };
    let model = checkpoint(FP8_BLOCKS);
    let model = model.config();
    let (h, i) = (model.hidden_size, model.intermediate_size);
    let shape = model.attn_shape();
    let matrices = [
        (shape.qkv_width(), h),
        (h, shape.out_width()),
        (2 * i, h),
        (h, i),
    ];
    let saved = matrices.map(|(rows, width)| {
        let scales = rows / FP8_BLOCK * (width / FP8_BLOCK).next_multiple_of(4);
        rows * width - 4 * scales
    });
    let saved = model.num_hidden_layers * saved.iter().sum::<usize>();
    let (bf16, fp8) = (open(false), open(true));
    assert_eq!(bf16.weights_bytes - fp8.weights_bytes, saved as u64);
}

/// Differences from the reference in f32, as multiples of those that it shows itself in bf16; 12 times
/// is the most of any array.
#[test]
fn trained_models_answer_as_recorded() {
    for name in ["demo-lm", "demo-classifier"] {
        check_within(name, true, |golden, array| {
            let (max, mean) = golden.bf16_error(array)?;
            Some(Allowed {
                max: FP8_TIMES * max,
                mean: FP8_TIMES * mean,
            })
        });
    }
}

/// The numbers of answers: of embeddings, and of other heads.
fn numbers(rows: &[RowOutput]) -> [Vec<f64>; 2] {
    let [mut embeddings, mut others] = [vec![], vec![]];
    for row in rows {
        match row {
            RowOutput::Embedding(row) => embeddings.extend(row.iter().map(|&x| f64::from(x))),
            RowOutput::Classes(row) => others.extend(row.iter().map(|&x| f64::from(x))),
            RowOutput::LabelScores(row) => others.extend(row.logits.iter().map(|&x| f64::from(x))),
            RowOutput::Logprobs { entries, .. } => {
                others.extend(entries.iter().map(|entry| f64::from(entry.logprob)));
            }
            other => panic!("{other:?}"),
        }
    }
    [embeddings, others]
}

/// The root of the mean square of differences.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert!(a.len() == b.len() && a.len() > 100, "{}", a.len());
    let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
    (squares.sum::<f64>() / a.len() as f64).sqrt()
}

/// Most of what fp8 costs by which this executor's answers in it may be off from the CPU executor's: of
/// roundings that have nothing to do with each other it would be 1.4 times, of one that is missing once.
const MAX_SHARE: f64 = 0.85;

/// Answers in fp8 are those of the CPU executor in fp8, which rounds the same rows to the same numbers,
/// but for what a GPU rounds to bf16 between products, by which some numbers become the next e4m3.
#[test]
fn models_answer_as_the_cpu_executor_in_fp8() {
    for name in ["demo-lm", "demo-classifier"] {
        let golden = Golden::open(&folder(name)).unwrap();
        let comparison = GoldenComparison::new(&golden);
        let mut batch = OneShotBatch::default();
        for recorded in short_prompts(&golden) {
            let outputs = comparison.outputs(&recorded.tokens, false);
            append(&mut batch, prompt(&recorded.tokens, outputs));
        }
        check_beside_the_cpu(name, &batch, MAX_SHARE);
    }
}

/// The same of matrices that are multiplied as they are stored: fp8 costs less then, since they are not
/// rounded, by the same differences.
const MAX_SHARE_OF_BLOCKS: f64 = 1.0;

/// Prompts of a model with 600 tokens, each with an embedding and label scores.
fn batch_of_600() -> OneShotBatch {
    let mut batch = OneShotBatch::default();
    for (first, len) in [(3, 70), (200, 31), (450, 1)] {
        let tokens: Vec<u32> = (0..len).map(|i| (first + i * 37) % 600).collect();
        let embed = OutputHead::Embed {
            pooling: Pooling::Mean,
            normalise: false,
            dimensions: None,
        };
        let scores = OutputHead::LabelScores {
            labels: (0..40).map(|i| i * 14).collect(),
            normalise: Normalise::OverLabels,
        };
        let outputs = vec![(0..len, embed), (len - 1..len, scores)];
        append(&mut batch, prompt(&tokens, outputs));
    }
    batch
}

/// So they are where matrices are multiplied as the checkpoint stores them.
#[test]
fn blocks_answer_as_the_cpu_executor_in_fp8() {
    check_beside_the_cpu(FP8_BLOCKS, &batch_of_600(), MAX_SHARE_OF_BLOCKS);
}

fn check_beside_the_cpu(name: &str, batch: &OneShotBatch, max_share: f64) {
    let answers = |executor: &mut dyn Executor| {
        let output = run(executor, ForwardBatch::OneShot(batch.clone()));
        numbers(&output.oneshot)
    };
    let config = CudaConfig {
        deterministic: true,
        fp8: true,
        logits_rows_max: 128,
        chunk_tokens: 128,
        max_context_len: Some(1024),
        ..small()
    };
    let Some(mut cuda) = executor(name, &config) else {
        return;
    };
    let cuda = answers(&mut cuda);
    let [fp8, bf16] = [Some(Quantization::Fp8), None].map(|quantization| {
        let config = CpuConfig {
            num_blocks: Some(64),
            max_context_len: Some(1024),
            dtype: Some(CpuDtype::Bf16),
            quantization,
            ..CpuConfig::default()
        };
        let pool = Arc::new(ComputePool::new(1));
        answers(&mut CpuExecutor::new(&checkpoint(name), config, pool).unwrap())
    });
    for head in 0..2 {
        let cost = distance(&fp8[head], &bf16[head]);
        let share = distance(&cuda[head], &fp8[head]) / cost;
        println!("{name} {head}: {share} of {cost}");
        assert!(share < max_share, "{name} {head}: {share} of {cost}");
    }
}
