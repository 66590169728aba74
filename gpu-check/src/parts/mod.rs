//! The parts of a run, most informative first.

mod attn;
mod env;
mod gemm;
mod hopper;
mod host_copies;
mod invariance;
mod kernels;
mod model;
mod parity;
mod products;
mod rivals;
mod sanitize;
mod serve;

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use prelude_core::{Capacity, ForwardBatch};
use prelude_exec_cuda::{
    CudaOps, Error, PromptAttention,
    measure::{Device, Room},
};
use prelude_models::{AttnShape, Checkpoint};

use crate::{
    Common,
    batches::Forest,
    clocks::Sampler,
    make_model,
    results::part_names,
    session::{Session, said},
};

/// The work of one part.
type Body = fn(&mut Session) -> Result<()>;

/// Returns a part's work, and the seconds that it would like to have of a run's time: what it took
/// on one H200 (2026-11-22 and 2026-11-28), and some more.
fn part(name: &str) -> Option<(Body, u32)> {
    Some(match name {
        "env" => (env::run, 10),
        "kernels" => (kernels::run, 60),
        "parity" => (parity::run, 100),
        "gemm" => (gemm::run, 75),
        "attn" => (attn::run, 10),
        "model" => (model::run, 90),
        "serve" => (serve::run, 150),
        "invariance" => (invariance::run, 60),
        "hopper" => (hopper::run, 40),
        "rivals" => (rivals::run, 330),
        "sanitize" => (sanitize::run, 240),
        _ => return None,
    })
}

/// Returns the seconds that a part would like to have of a run's time.
pub(crate) fn wish(name: &str) -> u32 {
    part(name).map_or(0, |(_, seconds)| seconds)
}

/// Runs one part in this process. Whether nothing was wrong.
pub(crate) fn run(name: &str, common: &Common) -> Result<bool> {
    let (body, _) = part(name)
        .with_context(|| format!("no part `{name}`; there are: {}", part_names().join(", ")))?;
    let mut session = Session::open(name, common)?;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        match WATCHED.contains(&name) {
            true => watched(&mut session, name, body),
            false => body(&mut session),
        }
    }));
    let why = match caught {
        Ok(Ok(())) => return session.end(),
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => said(panic.as_ref()),
    };
    session.fail("the part itself", why.clone())?;
    session.broken(&why)?;
    Ok(false)
}

/// Parts of long work, whose clocks say what bounds them.
const WATCHED: [&str; 2] = ["model", "serve"];

/// Runs a part and writes down what the GPU's clocks, power and memory were meanwhile.
fn watched(session: &mut Session, name: &str, body: Body) -> Result<()> {
    let what = "clocks and power";
    if !session.target.is_gpu() {
        session.skip(what, "emulated: there are none")?;
        return body(session);
    }
    let sampler = match Sampler::start(session.common.device) {
        Ok(sampler) => sampler,
        Err(error) => {
            session.skip(what, format!("{error:#}"))?;
            return body(session);
        }
    };
    let ended = body(session);
    let series = sampler.seen();
    drop(sampler);
    let summary = series.summary();
    session.run().clocks.insert(name.to_owned(), series);
    match summary {
        Some(summary) => session.note(what, summary)?,
        None => session.skip(what, "nvidia-smi said nothing that could be read")?,
    }
    ended
}

/// Returns the tokenizer that made models get.
fn tokenizer(session: &Session) -> std::path::PathBuf {
    session.home.join("golden/demo-lm/model")
}

/// Returns a checkpoint with random weights, made if it is not there.
fn checkpoint(session: &Session, name: &str, layers: Option<usize>) -> Result<Checkpoint> {
    let folder = make_model::folder(&session.models, name, layers);
    let start = Instant::now();
    let tokenizer = tokenizer(session);
    let bytes = thread::scope(|scope| -> Result<u64> {
        let making = scope.spawn(|| make_model::make(name, layers, &tokenizer, &folder));
        while !making.is_finished() {
            let for_now = start.elapsed().as_secs();
            session.beat(|| format!("{} is being written, {for_now} s", folder.display()))?;
            thread::sleep(Duration::from_millis(5));
        }
        match making.join() {
            Ok(made) => made,
            Err(panic) => bail!("{}", said(panic.as_ref())),
        }
    })?;
    session.log(&format!(
        "{} has {bytes} bytes of weights, after {:.1} s",
        folder.display(),
        start.elapsed().as_secs_f64()
    ))?;
    Checkpoint::open(&folder).with_context(|| format!("cannot open {}", folder.display()))
}

/// Sizes of one layer, in whose room single operations run.
#[derive(Clone, Copy, Debug)]
struct Layer {
    hidden: usize,
    mlp: usize,
    shape: AttnShape,
    vocab: usize,
    /// Layers of the model; a device has one layer only.
    layers: usize,
}

impl Layer {
    /// Returns the sizes of a made model.
    fn of(name: &str) -> Result<Self> {
        let shape = make_model::shape(name)?.sizes;
        Ok(Self {
            hidden: shape.hidden,
            mlp: shape.mlp,
            shape: AttnShape {
                attention: prelude_core::Attention::Causal,
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                scale: (shape.head_dim as f32).powf(-0.5),
                soft_cap: None,
            },
            vocab: shape.vocab,
            layers: shape.layers,
        })
    }

    /// Returns the rows and columns of the four matrices of a layer, by name.
    fn matrices(&self) -> [(&'static str, usize, usize); 4] {
        let s = self.shape;
        [
            ("qkv", s.qkv_width(), self.hidden),
            ("o", self.hidden, s.out_width()),
            ("gate-up", 2 * self.mlp, self.hidden),
            ("down", self.hidden, self.mlp),
        ]
    }

    /// Returns the floating-point operations of a prompt of `tokens` tokens that asks for one next
    /// token: products, attention to what went before, one row of logits.
    fn prompt_flops(&self, tokens: usize) -> f64 {
        let weights: usize = self.matrices().iter().map(|(_, n, k)| n * k).sum();
        let (tokens, layers) = (tokens as f64, self.layers as f64);
        let products = 2.0 * weights as f64 * layers * tokens;
        let attention = 2.0 * self.shape.out_width() as f64 * layers * tokens * (tokens + 1.0);
        products + attention + 2.0 * (self.vocab * self.hidden) as f64
    }

    /// Returns room for steps of `tokens` tokens over `blocks` KV blocks, with tensors of
    /// `arena_elements`.
    fn room(
        &self,
        tokens: usize,
        blocks: usize,
        context: usize,
        arena_elements: usize,
    ) -> Result<Room> {
        let count = crate::batches::count;
        let mut model = make_model::config_of(&make_model::Sizes {
            hidden: self.hidden,
            layers: 1,
            heads: self.shape.heads,
            kv_heads: self.shape.kv_heads,
            head_dim: self.shape.head_dim,
            mlp: self.mlp,
            vocab: self.vocab,
        })?;
        model.max_position_embeddings = context;
        Ok(Room {
            model,
            blocks,
            block_size: 16,
            step_tokens: count(tokens),
            chunk_tokens: tokens.next_multiple_of(64),
            context_len: count(context),
            arena_elements,
            lists_bytes: 8 << 20,
            logits_rows: 4,
            hopper_products: false,
            fp8: false,
            prompt_attention: PromptAttention::default(),
        })
    }
}

/// The reason why a GPU computes nothing in fp8.
const NO_FP8: &str = "fp8 needs a GPU of compute capability 8.9 or higher";

/// Returns true if the GPU, or what stands in for it, computes in fp8.
fn has_fp8(session: &Session) -> bool {
    let facts = session.target.facts();
    facts.is_none_or(|facts| facts.compute_capability >= (8, 9))
}

/// Runs operations in a step of one token.
fn in_step<T>(
    device: &mut Device,
    room: &Room,
    body: impl FnOnce(&mut CudaOps) -> Result<T, Error>,
) -> Result<T> {
    let batch = checked(Forest::prompt(&[0], vec![]).oneshot(), room)?;
    Ok(device.step(batch, |ops, _| body(ops))?.0)
}

/// Returns what the name of a result says of the executor's mode.
const fn mode(deterministic: bool) -> &'static str {
    if deterministic { ", deterministic" } else { "" }
}

/// Returns the batch if it is valid, else an error that says what is wrong with it: batches here are
/// made by hand.
fn checked(batch: ForwardBatch, room: &Room) -> Result<ForwardBatch> {
    let capacity = Capacity {
        block_size: room.block_size,
        num_blocks: crate::batches::count(room.blocks),
        max_step_tokens: room.step_tokens,
        full_step_tokens: 2048,
        max_context_len: room.context_len,
        vocab_size: crate::batches::count(room.model.vocab_size),
        pipeline_depth: 1,
        passes: None,
        attention: prelude_core::Attention::Causal,
        host_blocks: 0,
    };
    batch.validate(&capacity)?;
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_part_has_its_work() {
        assert!(part_names().into_iter().all(|name| part(name).is_some()));
        assert!(part("nonsense").is_none());
    }

    /// 3.6 billion weights outside the table of embeddings, two operations each.
    #[test]
    fn a_prompt_has_the_operations_of_its_weights() {
        let flops = Layer::of("qwen3-4b").unwrap().prompt_flops(512);
        assert!((flops / 512.0 / 7.3e9 - 1.0).abs() < 0.03, "{flops}");
    }
}
