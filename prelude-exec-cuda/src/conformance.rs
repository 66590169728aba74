//! The conformance suite of `prelude-models`, in the emulation.

use prelude_models::conformance::{self, Demands, Precision, Spec};

use crate::{
    PromptAttention,
    measure::{Device, Room, Target},
    testing::emulation,
};

/// Runs a suite in deterministic mode, where the same tokens must give the same bits.
fn check(suite: impl Fn(Demands, &dyn Fn(&Spec) -> Device)) {
    check_mode(true, suite);
}

fn check_mode(deterministic: bool, suite: impl Fn(Demands, &dyn Fn(&Spec) -> Device)) {
    let Some(device) = emulation() else { return };
    let demands = Demands {
        precision: Precision::Bf16,
        batch_invariant: deterministic,
    };
    let target = Target::emulated(device);
    suite(demands, &|spec| {
        Device::open(&target, &Room::from(spec), deterministic).unwrap()
    });
}

#[test]
fn elementwise() {
    check(|demands, open| conformance::elementwise(demands, open));
}

#[test]
fn products() {
    check(|demands, open| conformance::products(demands, open));
}

/// The kernel for Hopper in place of `gemm_mma`.
#[test]
fn products_on_hopper() {
    let Some(device) = emulation() else { return };
    let demands = Demands {
        precision: Precision::Bf16,
        batch_invariant: true,
    };
    let target = Target::emulated(device);
    conformance::products(demands, |spec| {
        let room = Room {
            hopper_products: true,
            ..Room::from(spec)
        };
        Device::open(&target, &room, true).unwrap()
    });
}

#[test]
fn attention() {
    check(|demands, open| conformance::attention(demands, open));
}

/// `sm90_attn` passes the suite with heads of 64 and 128 elements. A row of one token is computed as a
/// prompt.
#[test]
fn attention_on_hopper() {
    let Some(device) = emulation() else { return };
    let demands = Demands {
        precision: Precision::Bf16,
        batch_invariant: true,
    };
    let target = Target::emulated(device);
    let takes = |head_dim| head_dim == 64 || head_dim == 128;
    conformance::attention_of_heads(demands, takes, |spec| {
        let room = Room {
            prompt_attention: PromptAttention::Hopper,
            ..Room::from(spec)
        };
        Device::open(&target, &room, true).unwrap()
    });
}

/// Decode rows by their own kernels, which sum in another order than prompts' do.
#[test]
fn attention_of_decode_rows() {
    check_mode(false, |demands, open| {
        conformance::attention(demands, open);
    });
}

#[test]
fn gemma() {
    check(|demands, open| conformance::gemma(demands, open));
}

#[test]
fn gemma_of_decode_rows() {
    check_mode(false, |demands, open| conformance::gemma(demands, open));
}

#[test]
fn experts() {
    check(|demands, open| conformance::experts(demands, open));
}

/// Routing of few rows by a kernel that sums in another order.
#[test]
fn experts_out_of_deterministic_mode() {
    check_mode(false, |demands, open| conformance::experts(demands, open));
}

fn check_experts_in_fp8(deterministic: bool) {
    let Some(device) = emulation() else { return };
    let demands = Demands {
        precision: Precision::Bf16,
        batch_invariant: deterministic,
    };
    let target = Target::emulated(device);
    conformance::experts_in_fp8(demands, |spec| {
        let room = Room {
            fp8: true,
            ..Room::from(spec)
        };
        Device::open(&target, &room, deterministic).unwrap()
    });
}

#[test]
fn experts_in_fp8() {
    check_experts_in_fp8(true);
}

#[test]
fn experts_in_fp8_out_of_deterministic_mode() {
    check_experts_in_fp8(false);
}

#[test]
fn heads() {
    check(|demands, open| conformance::heads(demands, open));
}

#[test]
fn encoders() {
    check(|demands, open| conformance::encoders(demands, open));
}

/// Products behind a pooling by the kernel for few rows, too.
#[test]
fn encoders_out_of_deterministic_mode() {
    check_mode(false, |demands, open| {
        conformance::encoders(demands, open);
    });
}
