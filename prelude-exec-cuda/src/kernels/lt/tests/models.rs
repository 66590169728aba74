use prelude_core::{Executor as _, ForwardBatch, OutputHead, RowOutput, StepId};
use prelude_models::conformance::batches::{greedy, prompt};

use super::*;
use crate::{CudaExecutor, testing::checkpoint};

/// A step's size and heads may be any: its algorithms were chosen before it.
#[test]
fn no_step_asks_the_heuristic() {
    for (name, fp8) in [
        ("demo-lm", false),
        ("demo-classifier", false),
        ("demo-lm", true),
    ] {
        let config = CudaConfig {
            chunk_tokens: 128,
            max_step_tokens: 320,
            fp8,
            ..small()
        };
        let (mut executor, recording) =
            CudaExecutor::recording(&checkpoint(name), &config).unwrap();
        let chosen = |executor: &CudaExecutor| -> Vec<Key> {
            let lt = executor.ops().products.library().unwrap();
            lt.chosen.keys().copied().collect()
        };
        let before = chosen(&executor);
        assert!(!before.is_empty());
        let head = || match name {
            "demo-lm" => OutputHead::Sample(greedy(None)),
            _ => OutputHead::Classify,
        };
        for len in [1, 31, 32, 33, 100, 128, 129, 300] {
            let batch = prompt(&vec![7; len as usize], vec![(len - 1..len, head())]);
            let step = StepId(u64::from(len));
            executor.submit(step, ForwardBatch::OneShot(batch)).unwrap();
            let _ = executor.collect(step).unwrap();
        }
        let products = recording.take();
        let mut products = products.iter().map(String::as_str);
        let by_library = match fp8 {
            true => "cublasLtMatmul fp8",
            false => "cublasLtMatmul ",
        };
        assert!(products.any(|line| line.contains(by_library)));
        assert_eq!(chosen(&executor), before, "{name}");
    }
}

/// Rows in fp8 that our kernel for few of them takes from the library: prompts of so many tokens, of which
/// all layers but the last have as many rows.
#[test]
fn few_rows_in_fp8_are_our_kernels() {
    let config = CudaConfig {
        fp8: true,
        ..small()
    };
    let (mut executor, recording) =
        CudaExecutor::recording(&checkpoint("demo-lm"), &config).unwrap();
    for (len, by_own) in [(1, true), (8, true), (9, false), (16, false), (17, false)] {
        let batch = prompt(&vec![7; len], vec![]);
        let step = StepId(len as u64);
        let _ = recording.take();
        executor.submit(step, ForwardBatch::OneShot(batch)).unwrap();
        let _ = executor.collect(step).unwrap();
        let lines = recording.take();
        let names = ["prelude_gemm_fp8", "cublasLtMatmul fp8"];
        let of_product = |line: &&String| names.iter().any(|name| line.starts_with(name));
        let first = lines.iter().find(of_product).unwrap();
        assert_eq!(
            first.contains("gemm_fp8_few"),
            by_own,
            "{len} rows: {first}"
        );
    }
}

/// Rows of a prompt that products with scales of blocks have, by the library and by our kernel for few: as
/// many as there are fours of more than 16, and the rest.
#[test]
fn blocks_are_the_librarys_in_fours() {
    let config = CudaConfig {
        fp8: true,
        ..small()
    };
    let checkpoint = checkpoint(crate::testing::FP8_BLOCKS);
    let (mut executor, recording) = CudaExecutor::recording(&checkpoint, &config).unwrap();
    for (len, first, second) in [
        (16, "prelude_gemm_fp8_block_few_16", None),
        (
            17,
            "cublasLtMatmul fp8 blocks",
            Some("prelude_gemm_fp8_block_few_8"),
        ),
        (20, "cublasLtMatmul fp8 blocks", None),
    ] {
        let batch = prompt(&vec![7; len], vec![]);
        let step = StepId(len as u64);
        let _ = recording.take();
        executor.submit(step, ForwardBatch::OneShot(batch)).unwrap();
        let _ = executor.collect(step).unwrap();
        let lines = recording.take();
        let of_weight =
            |line: &&String| line.contains("w=model.layers.0.self_attn.qkv_proj.weight ");
        let made: Vec<&String> = lines.iter().filter(of_weight).collect();
        assert!(made[0].starts_with(first), "{len}: {}", made[0]);
        let rest = made
            .get(1)
            .map(|line| line.starts_with(second.unwrap_or_default()));
        assert_eq!(rest, second.map(|_| true), "{len}: {made:?}");
    }
}

/// A whole model by the library's products, against the same by our kernel.
#[test]
fn a_model_runs_by_the_librarys_products() {
    let Some(device) = emulation() else { return };
    let Some(folder) = fake("model", &["-DVERSION=130100"]) else {
        return;
    };
    let tokens: Vec<u32> = (0..40).map(|i| (i * 997 + 31) % 4096).collect();
    let mut classes = Vec::new();
    for by_library in [false, true] {
        let mut executor = CudaExecutor::emulated(
            &checkpoint("demo-classifier"),
            &small(),
            Arc::clone(&device),
        )
        .unwrap();
        if by_library {
            let space = Space::Emu(Arc::clone(&device));
            executor.set_products(Products::library_alone(lt(&folder, &space).unwrap()));
            assert!(executor.products().to_string().contains("cuBLASLt 13.1.0"));
        }
        let batch = prompt(&tokens, vec![(39..40, OutputHead::Classify)]);
        executor
            .submit(StepId(0), ForwardBatch::OneShot(batch))
            .unwrap();
        let output = executor.collect(StepId(0)).unwrap().oneshot;
        let [RowOutput::Classes(logits)] = &output[..] else {
            panic!("{output:?}");
        };
        classes.push(logits.clone());
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let difference = classes[0].iter().zip(&classes[1]);
    let largest = difference.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let spread = classes[0]
        .iter()
        .copied()
        .fold(0.0, |m: f32, x| m.max(x.abs()));
    // Sums in another order, rounded to bf16 after each of 12 products.
    assert!(largest < 0.02 * spread, "{largest} of {spread}");
}
