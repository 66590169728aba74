//! Attention: prompts of many lengths, a forest, rows of one token over long contexts and over one
//! prompt.

use anyhow::Result;
use half::bf16;
use prelude_core::{BlockId, ForwardBatch};
use prelude_exec_cuda::{
    CudaOps, Error, PromptAttention, StepPlan,
    measure::{Device, Room, Times, times},
};
use prelude_models::{Ops as _, QkNorm, step::ArenaTensor};

use super::{Layer, checked};
use crate::{
    batches::{Forest, Sequence, count, decode},
    session::{Figure, Session, Work, at_least},
    values,
};

/// Tokens of a block.
const BLOCK: usize = 16;

pub(super) fn run(session: &mut Session) -> Result<()> {
    session.say_ceilings()?;
    let layer = Layer::of(session.pick("qwen3-4b", "tiny"))?;
    prefills(session, layer)?;
    generations(session, layer)?;
    session.skip("beside torch SDPA", "the comparison is not built yet")
}

/// Measures prompts, and a forest of them.
fn prefills(session: &mut Session, layer: Layer) -> Result<()> {
    let prompts: &[Prompts] = session.pick(
        &[
            (512, 16, Some(200.0)),
            (4096, 2, Some(300.0)),
            (128, 64, None),
            (1024, 8, None),
            (32_768, 1, Some(320.0)),
            (8192, 1, None),
        ],
        &[(40, 2, None), (70, 1, None)],
    );
    for &(len, many, must) in prompts {
        let name = format!("prefill {many} × {len}");
        session.attempt_within(&name, 3.0, |s| {
            prefill(
                s,
                layer,
                &name,
                (len, many, must),
                PromptAttention::default(),
            )
        })?;
    }
    let (query, children, each) = session.pick((400, 100, 100), (33, 3, 5));
    let name = format!("forest: {children} × {each} over {query}");
    session.attempt_within(&name, 3.0, |s| {
        forest(s, layer, &name, query, children, each)
    })
}

/// Measures decode rows.
fn generations(session: &mut Session, layer: Layer) -> Result<()> {
    // Number of rows, the context of each, and the share of the bandwidth that it must reach.
    let rows: &[(usize, usize, Option<f64>)] = session.pick(
        &[
            (64, 2048, Some(0.7)),
            (1, 512, None),
            (4, 512, None),
            (64, 512, None),
            (32, 4096, None),
            (1, 32_768, None),
            (256, 512, None),
        ],
        &[(2, 40, None), (1, 300, None)],
    );
    for &(rows, context, share) in rows {
        let name = format!("decode {rows} rows × {context}");
        session.attempt_within(&name, 3.0, |s| {
            decode_rows(s, layer, &name, (rows, 0, context), share)
        })?;
    }
    // Chats over one prompt, and as long ones over a prompt each.
    let (rows, prompt, own) = session.pick((64, 2048, 64), (4, 256, 20));
    for (shared, what) in [(prompt, "of one prompt"), (0, "of prompts of their own")] {
        let name = format!("decode {rows} rows × {prompt} {what}, and {own} each");
        session.attempt_within(&name, 3.0, |s| {
            decode_rows(s, layer, &name, (rows, shared, prompt + own), None)
        })?;
    }
    Ok(())
}

/// Returns a forest's pairs of query and visible key.
fn pairs(len: usize) -> f64 {
    len as f64 * (len as f64 + 1.0) / 2.0
}

/// Length of each prompt, how many, and the rate that they must reach.
pub(super) type Prompts = (usize, usize, Option<f64>);

/// Measures prompts of one length.
pub(super) fn prefill(
    session: &mut Session,
    layer: Layer,
    name: &str,
    (len, many, must): Prompts,
    kernel: PromptAttention,
) -> Result<()> {
    let mut batch = Forest::default();
    for _ in 0..many {
        batch.root(&vec![1; len]);
    }
    let flops = 4.0 * layer.shape.out_width() as f64 * many as f64 * pairs(len);
    prompts(session, layer, name, batch, (flops, len, must), kernel)
}

/// Measures many short children of one prompt, as in reranking.
fn forest(
    session: &mut Session,
    layer: Layer,
    name: &str,
    query: usize,
    children: usize,
    each: usize,
) -> Result<()> {
    let mut batch = Forest::default();
    let root = batch.root(&vec![1; query]);
    for _ in 0..children {
        batch.child(root, &vec![1; each]);
    }
    let seen = pairs(query) + children as f64 * (pairs(each) + (each * query) as f64);
    let flops = 4.0 * layer.shape.out_width() as f64 * seen;
    let measured = (flops, query + each, None);
    prompts(
        session,
        layer,
        name,
        batch,
        measured,
        PromptAttention::default(),
    )
}

fn prompts(
    session: &mut Session,
    layer: Layer,
    name: &str,
    batch: Forest,
    (flops, context, must): (f64, usize, Option<f64>),
    kernel: PromptAttention,
) -> Result<()> {
    let tokens = batch.tokens();
    let (qkv, out) = (layer.shape.qkv_width(), layer.shape.out_width());
    let mut room = layer.room(tokens, 4, context, tokens * (qkv + out))?;
    room.prompt_attention = kernel;
    let times = attend(session, layer, &room, batch.oneshot())?;
    let ceiling = session.ceilings.flops;
    session.figure(Figure {
        work: Some(Work::Flops(flops)),
        bound_s: ceiling.map(|ceiling| flops / ceiling),
        goal: must.and_then(at_least),
        ..Figure::of(name, &times)
    })
}

/// Measures rows of contexts of this length, of which the first `shared` tokens are in the same blocks:
/// a whole number of blocks.
fn decode_rows(
    session: &mut Session,
    layer: Layer,
    name: &str,
    (rows, shared, context): (usize, usize, usize),
    share: Option<f64>,
) -> Result<()> {
    let of_all = shared / BLOCK;
    let each = context.div_ceil(BLOCK) - of_all;
    let sequences: Vec<Sequence> = (0..rows)
        .map(|i| {
            let own = of_all + i * each;
            Sequence {
                blocks: (0..of_all)
                    .chain(own..own + each)
                    .map(|block| BlockId(count(block)))
                    .collect(),
                // The new token is in the context already when attention runs.
                len: context - 1,
                next: 1,
            }
        })
        .collect();
    let (qkv, out) = (layer.shape.qkv_width(), layer.shape.out_width());
    let blocks = of_all + rows * each;
    let room = layer.room(rows, blocks, context, rows.max(8) * (qkv + out))?;
    let times = attend(session, layer, &room, decode(&sequences, BLOCK, None, None))?;
    let kv = 2.0 * 2.0 * (layer.shape.kv_heads * layer.shape.head_dim) as f64;
    // What is shared has to come from memory once.
    let bytes = (shared + rows * (context - shared)) as f64 * kv;
    let ceiling = session.ceilings.bytes;
    session.figure(Figure {
        work: Some(Work::Bytes(bytes)),
        bound_s: ceiling.map(|ceiling| bytes / ceiling),
        goal: share
            .zip(ceiling)
            .and_then(|(share, ceiling)| at_least(share * ceiling * 1e-12)),
        ..Figure::of(name, &times)
    })
}

/// Measures the attention of one layer.
fn attend(session: &Session, layer: Layer, room: &Room, batch: ForwardBatch) -> Result<Times> {
    let tokens = batch.num_tokens();
    let shape = layer.shape;
    let qkv: Vec<bf16> = values::values(3, tokens * shape.qkv_width());
    let repetitions = session.pick(8, 2);
    before_attention(session, layer, room, batch, &qkv, |ops, plan, qkv, out| {
        times(ops, repetitions, |ops, _| {
            ops.attention(plan, 0, 0..tokens, shape, qkv, out)
        })
    })
}

/// Runs a step up to a layer's attention, whose keys and values are then in their places, and `body`
/// with the rows of queries, keys and values and the room for its output.
pub(super) fn before_attention<T>(
    session: &Session,
    layer: Layer,
    room: &Room,
    batch: ForwardBatch,
    qkv: &[bf16],
    body: impl FnOnce(&mut CudaOps, &StepPlan, &ArenaTensor, &mut ArenaTensor) -> Result<T, Error>,
) -> Result<T> {
    let tokens = batch.num_tokens();
    let shape = layer.shape;
    let mut device = Device::open(&session.target, room, false)?;
    let mut loader = device.loader()?;
    // Values as after the norm of q and k: scores are sharp, none overflows.
    let norm = QkNorm {
        q: &values::vector(&mut loader, 4, shape.head_dim)?,
        k: &values::vector(&mut loader, 5, shape.head_dim)?,
        eps: 1e-6,
    };
    let rope = rope(&mut loader, shape.head_dim, room.context_len as usize)?;
    let batch = checked(batch, room)?;
    let (done, _) = device.step(batch, |ops, plan| {
        let mut qkv = ops.filled(tokens, shape.qkv_width(), qkv)?;
        let mut out = ops.alloc(tokens, shape.out_width())?;
        let all = 0..tokens;
        ops.qk_norm_rope_store(plan, 0, all, shape, Some(norm), Some(&rope), &mut qkv)?;
        body(ops, plan, &qkv, &mut out)
    })?;
    Ok(done)
}

/// Rotations of `positions` positions.
pub(super) fn rope(
    loader: &mut prelude_exec_cuda::CudaLoader,
    head_dim: usize,
    positions: usize,
) -> Result<prelude_exec_cuda::Weight> {
    use prelude_models::WeightLoader as _;

    let half = head_dim / 2;
    let inv_freq: Vec<f32> = (0..half)
        .map(|i| 1e6f32.powf(-(i as f32) / half as f32))
        .collect();
    Ok(loader.rope(&inv_freq, 1.0, positions)?)
}
