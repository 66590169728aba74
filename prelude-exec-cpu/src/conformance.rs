//! The conformance suite of `prelude-models`, on every path that this machine has. Products in int8,
//! and in fp8 without experts, are compared with their definition in `kernels` instead; all else is the
//! same code.

use std::sync::Arc;

use prelude_core::{ForwardBatch, StepId, StepOutput};
use prelude_models::{
    conformance::{self, Body, ConformanceDevice, Demands, Precision, Spec},
    step::{ArenaTensor, StepLayout},
};

use crate::{
    ComputePool, CpuConfig, CpuDtype, CpuLoader, CpuOps, Isa, Quantization,
    arena::Arena,
    executor,
    kernels::Backend,
    testing::{small, unquantised},
};

struct Device {
    ops: CpuOps,
    layout: StepLayout,
    dtype: CpuDtype,
    backend: Backend,
    quantization: Option<Quantization>,
    block_size: u32,
}

impl Device {
    fn new(spec: &Spec, config: &CpuConfig) -> Self {
        let config = CpuConfig {
            block_size: spec.capacity.block_size,
            max_step_tokens: spec.capacity.max_step_tokens,
            chunk_tokens: u32::try_from(spec.chunk_tokens).unwrap(),
            ..config.clone()
        };
        let (dtype, backend) = config.choose(&spec.model).unwrap();
        let arena_len = spec.arena_elements + 16 * Arena::room(1, 1);
        Self {
            ops: CpuOps::new(
                &spec.model,
                &config,
                (dtype, backend),
                spec.capacity.num_blocks,
                arena_len,
                Arc::new(ComputePool::new(2)),
            )
            .unwrap(),
            layout: StepLayout::default(),
            dtype,
            backend,
            quantization: config.quantization,
            block_size: config.block_size,
        }
    }
}

impl ConformanceDevice for Device {
    type Ops = CpuOps;
    type Loader = CpuLoader;

    fn loader(&mut self) -> CpuLoader {
        let pool = Arc::clone(&self.ops.pool);
        CpuLoader::new(pool, (self.dtype, self.backend), self.quantization)
    }

    fn step(&mut self, batch: ForwardBatch, body: &mut Body<'_, CpuOps>) -> StepOutput {
        self.layout
            .rebuild(batch, self.block_size, |_, _| None)
            .unwrap();
        self.ops.begin(&self.layout);
        body(&mut self.ops, &self.layout);
        executor::output(StepId(0), &mut self.ops, &self.layout)
    }

    fn write(ops: &mut CpuOps, tensor: &mut ArenaTensor, values: &[f32]) {
        ops.arena.write(tensor).copy_from_slice(values);
    }

    fn read(ops: &mut CpuOps, tensor: &ArenaTensor) -> Vec<f32> {
        ops.arena.read(tensor).to_vec()
    }
}

/// Runs a suite on every path.
fn check(suite: impl Fn(Demands, &dyn Fn(&Spec) -> Device)) {
    for (_, config) in unquantised() {
        let precision = match config.dtype {
            Some(CpuDtype::Bf16) => Precision::Bf16,
            _ => Precision::F32,
        };
        let demands = Demands {
            precision,
            batch_invariant: true,
        };
        suite(demands, &|spec| Device::new(spec, &config));
    }
}

#[test]
fn elementwise() {
    check(|demands, open| conformance::elementwise(demands, open));
}

#[test]
fn products() {
    check(|demands, open| conformance::products(demands, open));
}

#[test]
fn attention() {
    check(|demands, open| conformance::attention(demands, open));
}

#[test]
fn encoders() {
    check(|demands, open| conformance::encoders(demands, open));
}

#[test]
fn gemma() {
    check(|demands, open| conformance::gemma(demands, open));
}

#[test]
fn experts() {
    check(|demands, open| conformance::experts(demands, open));
}

/// On every path: activations are f32, and rounded to bf16 before they are rounded to fp8.
#[test]
fn experts_in_fp8() {
    let demands = Demands {
        precision: Precision::F32,
        batch_invariant: true,
    };
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for dtype in [CpuDtype::F32, CpuDtype::Bf16] {
            let config = CpuConfig {
                path: Some(isa),
                dtype: Some(dtype),
                quantization: Some(Quantization::Fp8),
                ..small()
            };
            conformance::experts_in_fp8(demands, |spec| Device::new(spec, &config));
        }
    }
}

#[test]
fn heads() {
    check(|demands, open| conformance::heads(demands, open));
}
