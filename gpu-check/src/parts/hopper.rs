//! Attention of prompts by the kernel for Hopper, beside the one for older GPUs: right, the same
//! bits in any company, and how fast. Apart from other parts, so that a kernel that hangs costs this
//! part alone.

use anyhow::{Result, ensure};
use half::bf16;
use prelude_exec_cuda::{
    PromptAttention,
    measure::{Device, Room},
};
use prelude_models::{
    Ops as _,
    conformance::{self, Demands, Precision},
};

use super::{Layer, attn};
use crate::{batches::Forest, session::Session, values};

/// Compute capability of GPUs that can run it.
pub(super) const HOPPER: (i32, i32) = (9, 0);

pub(super) fn run(session: &mut Session) -> Result<()> {
    let facts = session.target.facts();
    if let Some(facts) = facts.filter(|facts| facts.compute_capability != HOPPER) {
        let (major, minor) = facts.compute_capability;
        let why = format!("it is for compute capability 9.0, and this GPU has {major}.{minor}");
        return session.skip("sm90_attn", why);
    }
    session.say_ceilings()?;
    for head_dim in [64, 128] {
        let layer = narrow(head_dim);
        let what = format!("sm90_attn beside attn_varlen, heads of {head_dim}");
        session.check(&what, |s| beside(s, layer))?;
        let what = format!("sm90_attn in any company, heads of {head_dim}");
        session.check(&what, |s| company(s, layer))?;
    }
    conform(session)?;
    times(session)
}

/// Returns a layer with heads that the kernel takes, small enough for an emulation.
fn narrow(head_dim: usize) -> Layer {
    let of = Layer::of("tiny").expect("it is there");
    let mut shape = of.shape;
    (shape.heads, shape.kv_heads, shape.head_dim) = (4, 2, head_dim);
    shape.scale = (head_dim as f32).powf(-0.5);
    Layer { shape, ..of }
}

/// Runs the conformance suite of attention in deterministic mode, where the same tokens have the same
/// bits: trees, cached prefixes, chunks, rows of one token.
fn conform(session: &mut Session) -> Result<()> {
    let what = "conformance: attention by sm90_attn";
    if session.is_smoke() {
        let why = "emulated: `cargo test -p prelude-exec-cuda` runs it";
        return session.skip(what, why);
    }
    session.check_within(what, 5.0, |session| {
        let demands = Demands {
            precision: Precision::Bf16,
            batch_invariant: true,
        };
        let cases = std::cell::Cell::new(0);
        let takes = |head_dim| head_dim == 64 || head_dim == 128;
        conformance::attention_of_heads(demands, takes, |spec| {
            cases.set(cases.get() + 1);
            // What cannot be said cannot be written either: the next result says so.
            let _ = session.beat(|| format!("case {}", cases.get()));
            let room = Room {
                prompt_attention: PromptAttention::Hopper,
                ..Room::from(spec)
            };
            match Device::open(&session.target, &room, true) {
                Ok(device) => device,
                Err(error) => panic!("case {}: {error}", cases.get()),
            }
        });
        Ok(format!("{} cases", cases.get()))
    })
}

/// Measures both kernels on the same prompts, one after the other.
fn times(session: &mut Session) -> Result<()> {
    let layer = session.pick(Layer::of("qwen3-4b")?, narrow(128));
    let prompts: &[attn::Prompts] = session.pick(
        &[
            (512, 16, Some(350.0)),
            (4096, 2, None),
            (32_768, 1, Some(550.0)),
            (128, 64, None),
            (300, 27, None),
        ],
        &[(40, 2, None)],
    );
    for &(len, many, must) in prompts {
        let kernels = [
            ("attn_varlen", PromptAttention::Varlen, None),
            ("sm90_attn", PromptAttention::Hopper, must),
        ];
        for (kernel, by, must) in kernels {
            let name = format!("prefill {many} × {len} by {kernel}");
            session.attempt_within(&name, 3.0, |s| {
                attn::prefill(s, layer, &name, (len, many, must), by)
            })?;
        }
    }
    Ok(())
}

/// Computes attention of a forest whose tokens have the keys, queries and values of `seeds`, a row a
/// token.
fn outputs(
    session: &Session,
    layer: Layer,
    forest: Forest,
    seeds: &[u64],
    kernel: PromptAttention,
) -> Result<Vec<bf16>> {
    let shape = layer.shape;
    let (qkv_width, out_width) = (shape.qkv_width(), shape.out_width());
    let tokens = seeds.len();
    let mut room = layer.room(tokens, 4, tokens, tokens * (qkv_width + out_width))?;
    room.prompt_attention = kernel;
    let rows = seeds.iter().map(|&seed| values::values(seed, qkv_width));
    let rows: Vec<bf16> = rows.flatten().collect();
    let batch = forest.oneshot();
    attn::before_attention(
        session,
        layer,
        &room,
        batch,
        &rows,
        |ops, plan, qkv, out| {
            ops.attention(plan, 0, 0..tokens, shape, qkv, out)?;
            ops.read(out)
        },
    )
}

/// Compares both kernels on prompts around edges of tiles, and on children of one of them: their
/// outputs differ by roundings of weights and of the result, each at most 1/256 of the largest value.
fn beside(session: &mut Session, layer: Layer) -> Result<String> {
    const LIMIT: f32 = 4.0 / 256.0;
    let lens = session.pick(vec![1, 127, 128, 129, 300, 1000], vec![1, 130]);
    let children = session.pick(vec![5, 64, 200], vec![20]);
    let mut forest = Forest::default();
    let mut root = None;
    for &len in &lens {
        root = Some(forest.root(&vec![1; len]));
    }
    for &len in &children {
        forest.child(root.expect("there are roots"), &vec![1; len]);
    }
    let seeds: Vec<u64> = (0..forest.tokens() as u64).map(|i| 100 + i).collect();
    let run = |kernel| outputs(session, layer, forest.clone(), &seeds, kernel);
    let (expected, got) = (run(PromptAttention::Varlen)?, run(PromptAttention::Hopper)?);
    let mut worst = 0f32;
    for (i, (expected, got)) in expected.iter().zip(&got).enumerate() {
        let off = (expected.to_f32() - got.to_f32()).abs();
        // Values are within -1..1. NaN fails.
        ensure!(
            off <= LIMIT,
            "row {}: {got} beside {expected}",
            i / layer.shape.out_width()
        );
        worst = worst.max(off);
    }
    Ok(format!(
        "prompts {lens:?}, children {children:?}: they differ by {worst:.5} of {LIMIT:.5} at most"
    ))
}

/// Checks that a prompt's rows have the same bits alone, behind other prompts, and in two segments of
/// which one goes on behind the other.
fn company(session: &mut Session, layer: Layer) -> Result<String> {
    let (len, first) = session.pick((700, 333), (140, 50));
    let own: Vec<u64> = (0..len as u64).map(|i| 100 + i).collect();
    let mut alone = Forest::default();
    alone.root(&vec![1; len]);
    let alone = outputs(session, layer, alone, &own, PromptAttention::Hopper)?;

    let before = session.pick(77, 7);
    let mut among = Forest::default();
    among.root(&vec![1; before]);
    let parent = among.root(&vec![1; first]);
    among.child(parent, &vec![1; len - first]);
    let mut seeds: Vec<u64> = (0..before as u64).map(|i| 9000 + i).collect();
    seeds.extend(&own);
    let among = outputs(session, layer, among, &seeds, PromptAttention::Hopper)?;
    let among = &among[before * layer.shape.out_width()..];
    for (i, (a, b)) in alone.iter().zip(among).enumerate() {
        let row = i / layer.shape.out_width();
        ensure!(
            a.to_bits() == b.to_bits(),
            "row {row} has other bits in company"
        );
    }
    Ok(format!(
        "{len} tokens, alone and behind {before} others in two segments"
    ))
}
