//! Products by the kernel for Hopper, in the emulation: where it is used, and that gates computed with
//! their product have the bits of those computed behind it.

use half::bf16;
use prelude_core::{ForwardBatch, OneShotBatch};
use prelude_models::{DType, MlpRoom, Norm, Ops as _, TensorView, WeightLoader as _};

use crate::{
    PromptAttention,
    measure::{Device, ProductCounts, Room, Target},
    testing::{checkpoint, emulation},
};

/// Returns room for the second half of a layer with so many rows.
fn room(rows: usize, (hidden, inner): (usize, usize)) -> Room {
    let mut model = checkpoint("demo-lm").config().clone();
    model.hidden_size = hidden;
    model.intermediate_size = inner;
    Room {
        model,
        blocks: 4,
        block_size: 16,
        step_tokens: 64,
        chunk_tokens: 64,
        context_len: 64,
        arena_elements: rows * (2 * hidden + 3 * inner) + (1 << 12),
        lists_bytes: 1 << 20,
        logits_rows: 1,
        hopper_products: true,
        fp8: false,
        prompt_attention: PromptAttention::OfGpu,
    }
}

fn values(seed: usize, count: usize, scale: f32) -> Vec<bf16> {
    let of = |i: usize| ((i * 37 + seed * 101) % 223) as f32 / 223.0 - 0.5;
    (0..count).map(|i| bf16::from_f32(scale * of(i))).collect()
}

fn view<'a>(values: &'a [bf16], shape: &[usize]) -> TensorView<'a> {
    TensorView {
        dtype: DType::Bf16,
        shape: shape.to_vec(),
        bytes: bytemuck::cast_slice(values),
    }
}

/// Runs the second half of a layer, and then its four operations one after the other, with a bias in
/// front of the gates if asked. Returns both results, and what multiplied the first time.
fn layer(
    target: &Target,
    rows: usize,
    deterministic: bool,
    has_bias: bool,
) -> ([Vec<bf16>; 2], ProductCounts) {
    let (hidden, inner) = (72, 136);
    let room = room(rows, (hidden, inner));
    let mut device = Device::open(target, &room, deterministic).unwrap();
    let mut loader = device.loader().unwrap();
    let (up, down) = (
        values(1, 2 * inner * hidden, 0.8),
        values(2, hidden * inner, 0.8),
    );
    let bias = values(3, 2 * inner, 1.0);
    let bias = has_bias.then(|| view(&bias, &[2 * inner]));
    let up = loader.linear("up", &[view(&up, &[2 * inner, hidden])], bias.as_slice());
    let down = loader.linear("down", &[view(&down, &[hidden, inner])], &[]);
    let (up, down) = (up.unwrap(), down.unwrap());
    let norm = values(4, hidden, 2.0);
    let norm = loader.norm("norm", &view(&norm, &[hidden]), 0.0).unwrap();
    let norm = Norm {
        weight: &norm,
        eps: 1e-6,
    };
    let before = values(5, rows * hidden, 2.0);
    let batch = ForwardBatch::OneShot(OneShotBatch::EMPTY);
    let ((results, counts), _) = device
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
            let (at_once, counts) = (ops.read(&h)?, ops.product_counts());
            ops.write(&mut h, &before)?;
            ops.rms_norm(&h, 0..rows, norm.weight, norm.eps, &mut x)?;
            ops.linear(&x, rows, &up, &mut gate_up)?;
            ops.silu_mul(&gate_up, rows, &mut a)?;
            ops.linear_add(&a, 0..rows, &down, &mut h)?;
            Ok(([at_once, ops.read(&h)?], counts))
        })
        .unwrap();
    (results, counts)
}

/// In deterministic mode `silu(gate) · up` has the same bits in one launch and in two, for few rows and
/// many, with and without a bias that the kernel does not take.
#[test]
fn gates_have_the_bits_of_two_operations() {
    let Some(device) = emulation() else { return };
    let target = Target::emulated(device);
    for (rows, has_bias) in [(1, false), (130, false), (20, true)] {
        let ([at_once, in_turn], _) = layer(&target, rows, true, has_bias);
        assert!(at_once == in_turn, "{rows} rows, bias: {has_bias}");
    }
}

/// Beside the library, gates of many rows alone.
#[test]
fn the_library_multiplies_the_rest() {
    let counts = |rows, has_bias| {
        let (_, counts) = layer(&Target::recorded(), rows, false, has_bias);
        (counts.library, counts.own)
    };
    assert_eq!(counts(1024, false), (1, 1));
    assert_eq!(counts(1023, false), (2, 0));
    assert_eq!(counts(1024, true), (2, 0));
}
