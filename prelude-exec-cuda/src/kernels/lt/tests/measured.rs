use prelude_core::{ForwardBatch, OneShotBatch};
use prelude_models::{DType, TensorView, WeightLoader as _};

use super::*;
use crate::{
    CudaLoader,
    measure::{Device, Operands, Room, Target, Tuner, WeightCycle},
    testing::checkpoint,
};

/// An algorithm that is wrong is said and never chosen, however fast; what is chosen is kept for
/// the rows that plans are made for alone, and found again as an executor looks for it.
#[test]
fn measured_algorithms_are_right_before_they_are_fast() {
    check_measured("measured", false);
}

#[test]
fn measured_algorithms_in_fp8_are_right_too() {
    check_measured("measured-fp8", true);
}

fn check_measured(test: &str, fp8: bool) {
    let Some(device) = emulation() else { return };
    let Some(folder) = fake(test, &["-DVERSION=130100", "-DWRONG_FIRST"]) else {
        return;
    };
    let room = Room {
        model: checkpoint("demo-classifier").config().clone(),
        blocks: 4,
        block_size: 16,
        step_tokens: 64,
        chunk_tokens: 64,
        context_len: 64,
        arena_elements: 1 << 14,
        lists_bytes: 1 << 20,
        logits_rows: 1,
        hopper_products: false,
        fp8,
        prompt_attention: crate::PromptAttention::OfGpu,
    };
    let target = Target::emulated(Arc::clone(&device));
    let mut measuring = Device::open(&target, &room, false).unwrap();
    let weight = |loader: &mut CudaLoader, n: usize, k: usize, seed: usize| {
        let values: Vec<bf16> = (0..n * k)
            .map(|i| bf16::from_f32(((i * 37 + seed) % 23) as f32 / 23.0 - 0.5))
            .collect();
        let view = TensorView {
            dtype: DType::Bf16,
            shape: vec![n, k],
            bytes: bytemuck::cast_slice(&values),
        };
        loader.linear("w", &[view], &[]).unwrap()
    };
    let (n, k) = (24, 64);
    let mut loader = measuring.loader().unwrap();
    let weights: Vec<_> = (0..3).map(|i| weight(&mut loader, n, k, i)).collect();
    let space = Space::Emu(Arc::clone(&device));
    let mut lt = lt(&folder, &space).unwrap();
    let machine = Machine {
        device: "played".to_owned(),
        driver: "none".to_owned(),
        cublaslt: 130_100,
        build: "0".to_owned(),
    };
    lt.machine = Some(machine.clone());
    let mut products = Some(Products::library_alone(lt));
    let mut tuner = Tuner::default();
    let mut turn = WeightCycle::default();
    for (m, adds) in [(32, true), (32, false), (5, true), (40, false)] {
        let batch = ForwardBatch::OneShot(OneShotBatch::EMPTY);
        let measured = measuring.step(batch, |ops, _| {
            if let Some(products) = products.take() {
                ops.products = products;
            }
            let values: Vec<bf16> = (0..m * k)
                .map(|i| bf16::from_f32((i % 19) as f32 / 19.0 - 0.4))
                .collect();
            let x = ops.filled(m, k, &values)?;
            let mut y = ops.filled(m, n, &vec![bf16::ONE; m * n])?;
            let mut operands = Operands {
                x: &x,
                weights: &weights,
                y: &mut y,
                adds,
            };
            tuner.measure(ops, &mut operands, 2, &mut turn)
        });
        let measured = measured.unwrap().0.unwrap();
        assert_eq!((measured.candidates, measured.wrong.len()), (2, 1), "M {m}");
        assert!(measured.wrong[0].starts_with("candidate 0: number"));
        assert!(measured.first.is_none() && measured.best.is_some());
    }
    // Neither 5 nor 40 rows are a plan's.
    assert_eq!(tuner.plans(), 2);
    std::fs::write(folder.join(Tuner::FILE), tuner.file().unwrap()).unwrap();
    assert_eq!(tuner.read_back(&folder), Ok(2));
    let config = CudaConfig {
        cache_dir: Some(folder.clone()),
        ..small()
    };
    let (found, _) = recorded(&config, &machine);
    std::fs::write(folder.join(Tuner::FILE), "{}").unwrap();
    assert!(tuner.read_back(&folder).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(found.keys().all(|key| key.fp8.is_some() == fp8));
    let forms: Vec<_> = found.keys().map(|key| (key.m, key.form)).collect();
    assert_eq!(forms, [(32, plans::Form::Write), (32, plans::Form::Add)]);
    // The second of the two that work.
    assert!(
        found
            .values()
            .all(|plan| plan.algo.0[2] == 0 && plan.us.is_some())
    );
}
