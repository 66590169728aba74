//! The definition run over operations in f64, against the reference's outputs.

use std::ops::Range;

use prelude_core::{
    BlockSpan, ForwardBatch, OneShotBatch, OutputHead, OutputRow, Pooling, Residency, RowOutput,
    Segment, SegmentIdx, TokenHead,
};

use super::*;
use crate::{
    Checkpoint, Fp8Matrix, ModelKind, TensorView, WeightLoader,
    conformance::fp8::{Stored, mixture},
    naive::device::{NaiveLoader, NaiveOps},
    testing::{golden_models, golden_tensors},
};

type NaiveModel = Box<dyn Model<NaiveOps>>;

fn load(checkpoint: &Checkpoint) -> NaiveModel {
    crate::load_model(checkpoint, 2048, &mut NaiveLoader::default()).unwrap()
}

/// Runs one prompt alone: results of `heads`, each at its positions.
fn run(
    model: &NaiveModel,
    ids: &[u32],
    heads: Vec<(Range<u32>, OutputHead)>,
    chunk: usize,
) -> (Vec<RowOutput>, NaiveOps) {
    let rows = heads.into_iter().map(|(positions, head)| OutputRow {
        segment: SegmentIdx(0),
        positions,
        head,
    });
    let batch = OneShotBatch {
        tokens: ids.to_vec(),
        segments: vec![Segment {
            tokens: 0..ids.len() as u32,
            parent: None,
            context_len: 0,
            cached: BlockSpan::EMPTY,
            residency: Residency::Transient,
        }],
        rows: rows.collect(),
        block_ids: Vec::new(),
    };
    let mut ops = NaiveOps::new(chunk, None);
    let output = ops.step(&ForwardBatch::OneShot(batch), 16, |ops, plan| {
        let Ok(()) = model.forward(ops, plan);
    });
    (output.oneshot, ops)
}

fn mean(positions: Range<u32>) -> (Range<u32>, OutputHead) {
    let head = OutputHead::Embed {
        pooling: Pooling::Mean,
        normalise: false,
        dimensions: None,
    };
    (positions, head)
}

/// The reference computes in f32 and this in f64: what differs is the reference's own rounding,
/// which between two of its own implementations reaches 1.4e-5.
const TOLERANCE: f32 = 1e-4;
/// Prompts up to this length: enough for every structure, little enough for f64 without tiles.
const LEN_MAX: usize = 20;

fn assert_close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() < TOLERANCE, "{what}[{i}]: {g} for {e}");
    }
}

#[test]
fn golden_models_give_the_reference_outputs() {
    for (name, checkpoint) in golden_models() {
        let model = load(&checkpoint);
        let golden = golden_tensors(&name);
        let prompts = golden.prompts();
        let short = prompts.iter().filter(|p| p.tokens.len() <= LEN_MAX);
        for prompt in short.step_by(4) {
            let (p, ids) = (prompt.index, &prompt.tokens);
            let what = format!("{name} prompt {p}");
            let last = ids.len() as u32 - 1..ids.len() as u32;
            let mut heads = vec![mean(last.clone()), mean(0..ids.len() as u32)];
            match checkpoint.kind() {
                ModelKind::CausalLm => {
                    let ids = golden.i32("f32.last_top_ids").unwrap().0;
                    let labels = ids[p * 50..][..50].iter().map(|&id| id as u32).collect();
                    heads.push((
                        last,
                        OutputHead::LabelScores {
                            labels,
                            normalise: prelude_core::Normalise::OverVocab,
                        },
                    ));
                }
                ModelKind::SequenceClassification { .. } => {
                    let read = if golden.is_whole() { 0..1 } else { last };
                    heads.push((read, OutputHead::Classify));
                }
                ModelKind::TokenClassification { .. } => {
                    let whole = 0..ids.len() as u32;
                    heads.push((whole, OutputHead::Tokens(TokenHead::Classify)));
                }
                ModelKind::Embedding { .. } => {}
            }
            let row_of = |array: &str, width: usize| {
                let (values, _) = golden.f32(array).unwrap();
                values[p * width..][..width].to_vec()
            };
            // An encoder's chunks hold whole prompts.
            let chunk = if golden.is_whole() { LEN_MAX } else { 7 };
            let (rows, _) = run(&model, ids, heads, chunk);
            let size = checkpoint.config().embedding_size();
            let mut embeddings = ["f32.embed_last", "f32.embed_mean"].into_iter();
            for row in rows {
                match row {
                    RowOutput::Embedding(got) => {
                        let array = embeddings.next().unwrap();
                        assert_close(&what, &got, &row_of(array, size));
                    }
                    RowOutput::LabelScores(got) => {
                        assert_close(&what, &got.logits, &row_of("f32.last_top_logits", 50));
                        let lse = got.log_sum_exp.unwrap();
                        assert_close(&what, &[lse], &row_of("f32.last_lse", 1));
                    }
                    RowOutput::Tokens { rows, .. } => {
                        let (values, width) = golden.f32("f32.tok_logits").unwrap();
                        let expected = &values[prompt.offset * width..];
                        assert_close(&what, &rows.concat(), &expected[..rows.len() * width]);
                    }
                    RowOutput::Classes(got) => {
                        assert_close(&what, &got, &row_of("f32.cls_logits", got.len()));
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn chunks_and_outputs_do_not_change_results() {
    let (_, checkpoint) = golden_models()
        .into_iter()
        .find(|(name, _)| name == "rand-untied-sharded")
        .unwrap();
    let model = load(&checkpoint);
    let ids: Vec<u32> = (0..13).map(|i| i * 97 % 4000).collect();
    let hidden =
        |positions: Range<u32>, chunk| run(&model, &ids, vec![mean(positions)], chunk).1.hidden;
    let whole = hidden(0..13, 1000);
    assert_eq!(whole.len(), 13);
    for chunk in [0, 1, 3, 12, 13] {
        assert_eq!(hidden(0..13, chunk), whole);
    }
    // Few outputs: the others leave the last layer early. More of them than a chunk holds, none in
    // some chunks, the last alone, one too many to leave any out.
    for positions in [0..1, 5..7, 4..10, 12..13, 6..13] {
        for chunk in [1, 2, 4, 5, 13] {
            let at = positions.start as usize..positions.end as usize;
            assert_eq!(
                hidden(positions.clone(), chunk),
                whole[at],
                "{positions:?} in chunks of {chunk}"
            );
        }
    }
    // A step without outputs runs no head: its work is in the K/V that it places.
    assert!(run(&model, &ids, vec![], 4).1.hidden.is_empty());
}

#[test]
fn encoders_whose_last_layer_ends_early_give_the_same_results() {
    let models = golden_models();
    let encoders = models.iter().filter(|(_, c)| c.config().encoder.is_some());
    let mut seen = 0;
    for (name, checkpoint) in encoders {
        let model = load(checkpoint);
        let vocab = checkpoint.config().vocab_size as u32;
        let ids: Vec<u32> = (0..13).map(|i| i * 97 % vocab).collect();
        let hidden = |positions: Range<u32>| {
            let (_, ops) = run(&model, &ids, vec![mean(positions)], 16);
            ops.hidden
        };
        let whole = hidden(0..13);
        // The first token alone, as classes read it; as many as may end the layer; one too many.
        for positions in [0..1, 5..7, 12..13, 7..13, 6..13] {
            let at = positions.start as usize..positions.end as usize;
            let got = hidden(positions.clone());
            assert_eq!(got, whole[at], "{name}: {positions:?}");
        }
        seen += 1;
    }
    assert!(seen > 0, "no golden model is an encoder");
}

#[test]
fn heads_and_fused_weights_by_kind() {
    for (name, checkpoint) in golden_models() {
        let mut loader = NaiveLoader::default();
        if checkpoint.config().encoder.is_some() {
            continue;
        }
        let model = Decoder::load(&checkpoint, 64, &mut loader).unwrap();
        let (head, is_head) = match &*name {
            "demo-lm" | "rand-qwen2" | "rand-gemma2" | "rand-gemma3" | "rand-granite"
            | "rand-fp8-block" | "rand-gguf-qwen2" => ("Tied", true),
            "rand-untied-sharded" | "rand-llama" | "rand-qwen3-moe" | "rand-gguf-llama" => {
                ("Vocabulary", false)
            }
            "rand-embed" | "rand-qwen2-whole" | "rand-gemma3-embed" => ("None", false),
            _ => ("Score", false),
        };
        let got = match model.head {
            Head::Tied => "Tied",
            Head::Vocabulary(_) => "Vocabulary",
            Head::Score(_) => "Score",
            Head::None => "None",
        };
        assert_eq!((got, loader.embedding_is_head), (head, is_head), "{name}");
        let is_bare = head == "None";
        let prefix = if is_bare { "" } else { "model." };
        let fused = format!("{prefix}layers.1.self_attn.qkv_proj.weight");
        assert!(loader.names.contains(&fused), "{:?}", loader.names);
        let (layer, width) = (&model.layers[1], model.shape.qkv_width());
        assert_eq!(layer.qkv.values.len(), width * model.hidden);
        // Of the mixture the layer that is none.
        let Mlp::Dense { gate_up, down } = &layer.mlp else {
            panic!("{name}: layer 1 has experts");
        };
        let biases = [&layer.qkv, &layer.o, gate_up, down];
        let expected = match &*name {
            "rand-llama" => [width, model.hidden, 2 * model.intermediate, model.hidden],
            "rand-qwen2" | "rand-qwen2-reward" | "rand-qwen2-whole" | "rand-gguf-qwen2" => {
                [width, 0, 0, 0]
            }
            _ => [0; 4],
        };
        assert_eq!(biases.map(|w| w.bias.len()), expected, "{name}");
        let architecture = &checkpoint.config().architecture;
        let has_norm = ["Qwen3", "Gemma3"]
            .iter()
            .any(|a| architecture.starts_with(a));
        assert_eq!(layer.qk_norm.is_some(), has_norm, "{name}");
        let is_gemma = architecture.starts_with("Gemma");
        assert_eq!(layer.gemma.is_some(), is_gemma, "{name}");
    }
}

/// A loader that says which of its methods loaded each matrix, and takes blocks as they are stored.
#[derive(Default)]
struct Recorder(Vec<(&'static str, String)>);

impl Recorder {
    fn note(&mut self, method: &'static str, name: &str) -> Result<(), std::convert::Infallible> {
        self.0.push((method, name.to_owned()));
        Ok(())
    }
}

impl WeightLoader for Recorder {
    type Weight = ();
    type Error = std::convert::Infallible;

    fn linear(
        &mut self,
        name: &str,
        _: &[TensorView<'_>],
        _: &[TensorView<'_>],
    ) -> Result<(), Self::Error> {
        self.note("linear", name)
    }

    fn linear_fp8(
        &mut self,
        name: &str,
        _: &[Fp8Matrix<'_>],
        _: &[TensorView<'_>],
    ) -> Result<Option<()>, Self::Error> {
        self.note("linear_fp8", name).map(Some)
    }

    fn head(
        &mut self,
        name: &str,
        _: &[TensorView<'_>],
        _: &[TensorView<'_>],
    ) -> Result<(), Self::Error> {
        self.note("head", name)
    }

    fn linear_of_stack(
        &mut self,
        name: &str,
        _: (usize, usize),
        _: &[TensorView<'_>],
    ) -> Result<(), Self::Error> {
        self.note("linear_of_stack", name)
    }

    fn linear_fp8_of_stack(
        &mut self,
        name: &str,
        (index, count): (usize, usize),
        parts: &[Fp8Matrix<'_>],
    ) -> Result<Option<()>, Self::Error> {
        assert!(index < count && !parts.is_empty());
        self.note("linear_fp8_of_stack", name).map(Some)
    }

    fn embedding(&mut self, _: &str, _: &TensorView<'_>, _: bool) -> Result<(), Self::Error> {
        Ok(())
    }

    fn vector(&mut self, _: &str, _: &TensorView<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    fn norm(&mut self, _: &str, _: &TensorView<'_>, _: f32) -> Result<(), Self::Error> {
        Ok(())
    }

    fn rope(&mut self, _: &[f32], _: f32, _: usize) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Experts that are stored in fp8 are loaded as attention's matrices are, and the matrix that chooses them
/// as a head is.
#[test]
fn experts_are_loaded_as_they_are_stored() {
    for (stored, of_stack, of_layer) in [
        (Stored::Blocks, "linear_fp8_of_stack", "linear_fp8"),
        (Stored::Bf16, "linear_of_stack", "linear"),
    ] {
        let mut loader = Recorder::default();
        Decoder::load(&mixture(stored), 64, &mut loader).unwrap();
        let layer = |name: &str| format!("model.layers.0.{name}.weight");
        let methods = |name: &str| {
            let name = layer(name);
            let of_name = loader.0.iter().filter(|(_, of)| *of == name);
            of_name.map(|(method, _)| *method).collect::<Vec<_>>()
        };
        assert_eq!(methods("self_attn.qkv_proj"), [of_layer]);
        assert_eq!(methods("mlp.gate"), ["head"]);
        for product in ["gate_up", "down"] {
            let name = |e: usize| format!("mlp.experts.{e}.{product}_proj");
            assert!(
                (0..5).all(|e| methods(&name(e)) == [of_stack]),
                "{:?}",
                loader.0
            );
        }
        // The experts of one product come one after the other.
        let is_expert = |(_, name): &&(_, String)| name.contains("experts");
        let experts: Vec<_> = loader.0.iter().filter(is_expert).collect();
        assert_eq!(experts.len(), 10);
        assert!(
            experts[..5]
                .iter()
                .all(|(_, name)| name.contains("gate_up"))
        );
    }
}
