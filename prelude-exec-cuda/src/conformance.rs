//! The conformance suite of `prelude-models`, in the emulation.

use half::bf16;
use prelude_core::{ForwardBatch, StepId, StepOutput};
use prelude_models::conformance::{self, Body, ConformanceDevice, Demands, Precision, Spec};

use crate::{
    CudaConfig, CudaLoader, CudaOps, StepPlan, Tensor, executor,
    kernels::launch::Launcher,
    memory::{kv_pool::KvShape, space::Space},
    ops::Sizes,
    testing::emulation,
};

struct Device {
    ops: CudaOps,
    plan: StepPlan,
}

impl Device {
    fn new(spec: &Spec, device: std::sync::Arc<kernels::emu::Device>, deterministic: bool) -> Self {
        let config = CudaConfig {
            block_size: spec.capacity.block_size,
            max_step_tokens: spec.capacity.max_step_tokens,
            chunk_tokens: u32::try_from(spec.chunk_tokens).unwrap(),
            max_context_len: Some(spec.capacity.max_context_len),
            deterministic,
            logits_rows_max: 4,
            metadata_bytes: 1 << 20,
            results_bytes: 1 << 20,
            ..CudaConfig::default()
        };
        let mut sizes = Sizes::new(&spec.model, &config);
        // Rows are padded to multiples of 8 elements, tensors to lines.
        sizes.arena_bytes = 8 * spec.arena_elements * size_of::<bf16>() + 16 * 128;
        let shape = spec.model.attn_shape();
        let ops = CudaOps::new(
            Space::Emu(std::sync::Arc::clone(&device)),
            Launcher::Emu(device),
            &spec.model,
            &config,
            sizes,
            |_| {
                Ok(KvShape {
                    layers: spec.model.num_hidden_layers,
                    kv_heads: shape.kv_heads,
                    head_dim: shape.head_dim,
                    block_size: spec.capacity.block_size as usize,
                    blocks: spec.capacity.num_blocks as usize,
                })
            },
        )
        .unwrap();
        Self {
            ops,
            plan: StepPlan::default(),
        }
    }
}

impl ConformanceDevice for Device {
    type Ops = CudaOps;
    type Loader = CudaLoader;

    fn loader(&mut self) -> CudaLoader {
        CudaLoader::new(self.ops.space.clone())
    }

    fn step(&mut self, batch: ForwardBatch, body: &mut Body<'_, CudaOps>) -> StepOutput {
        self.plan.rebuild(batch, self.ops.layout).unwrap();
        self.ops.begin(&mut self.plan).unwrap();
        body(&mut self.ops, &self.plan);
        self.ops.heads.send().unwrap();
        executor::output(StepId(0), &mut self.ops, &self.plan)
    }

    fn write(ops: &mut CudaOps, tensor: &mut Tensor, values: &[f32]) {
        let view = ops.arena.view(tensor);
        for (i, row) in values.chunks_exact(view.width()).enumerate() {
            let row: Vec<bf16> = row.iter().map(|&x| bf16::from_f32(x)).collect();
            let to = view.slice(i..i + 1).ptr();
            emulated(ops).write(to, &row).unwrap();
        }
    }

    fn read(ops: &mut CudaOps, tensor: &Tensor) -> Vec<f32> {
        let view = ops.arena.view(tensor);
        let mut values = Vec::new();
        for i in 0..view.rows() {
            let from = view.slice(i..i + 1).ptr();
            let row: Vec<bf16> = emulated(ops).download(from, view.width()).unwrap();
            values.extend(row.into_iter().map(bf16::to_f32));
        }
        values
    }
}

fn emulated(ops: &CudaOps) -> &kernels::emu::Device {
    match &ops.space {
        Space::Emu(device) => device,
        _ => unreachable!("the suite runs in the emulation"),
    }
}

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
    suite(demands, &|spec| {
        Device::new(spec, std::sync::Arc::clone(&device), deterministic)
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

#[test]
fn attention() {
    check(|demands, open| conformance::attention(demands, open));
}

/// Decode rows by their own kernels, which sum in another order than prompts' do.
#[test]
fn attention_of_decode_rows() {
    check_mode(false, |demands, open| {
        conformance::attention(demands, open);
    });
}

#[test]
fn heads() {
    check(|demands, open| conformance::heads(demands, open));
}
