//! The definition run over operations in f64, against the reference's outputs.

use std::convert::Infallible;

use super::*;
use crate::{
    naive,
    testing::{golden_models, golden_tensors},
};

/// One prompt alone; hidden states of `outputs` are read.
struct Prompt<'a> {
    ids: &'a [u32],
    outputs: Range<usize>,
}

struct Rows {
    width: usize,
    data: Vec<f64>,
}

impl Rows {
    fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.width..][..self.width]
    }

    fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.data[i * self.width..][..self.width]
    }
}

#[derive(Clone, Default)]
struct Weight {
    values: Vec<f64>,
    bias: Vec<f64>,
    inv_freq: Vec<f32>,
    scaling: f32,
}

/// Keys and values of one position, all heads.
type KeyValue = (Vec<f64>, Vec<f64>);

#[derive(Default)]
struct NaiveOps {
    chunk: usize,
    /// Per layer, per position.
    placed: Vec<Vec<KeyValue>>,
    pooled: Vec<Vec<f64>>,
    vocabulary: Vec<Vec<f64>>,
    classes: Vec<Vec<f64>>,
}

fn all_rows(hidden: &Rows, w: &Weight) -> Vec<Vec<f64>> {
    let rows = hidden.data.chunks_exact(hidden.width);
    rows.map(|x| naive::linear(x, &w.values, &w.bias)).collect()
}

impl Ops for NaiveOps {
    type Tensor = Rows;
    type Weight = Weight;
    type Inputs<'a> = Prompt<'a>;
    type Error = Infallible;

    fn num_tokens(&self, inputs: &Prompt<'_>) -> usize {
        inputs.ids.len()
    }

    fn num_outputs(&self, inputs: &Prompt<'_>) -> usize {
        inputs.outputs.len()
    }

    fn chunk_tokens(&self) -> usize {
        self.chunk
    }

    fn alloc(&mut self, rows: usize, width: usize) -> Result<Rows, Infallible> {
        // Not zeros: a model must not rely on them.
        let data = vec![f64::NAN; rows * width];
        Ok(Rows { width, data })
    }

    fn embed(&mut self, inputs: &Prompt<'_>, w: &Weight, h: &mut Rows) -> Result<(), Infallible> {
        for (i, &id) in inputs.ids.iter().enumerate() {
            let row = &w.values[id as usize * h.width..][..h.width];
            h.row_mut(i).copy_from_slice(row);
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        h: &Rows,
        rows: Range<usize>,
        w: &Weight,
        eps: f32,
        x: &mut Rows,
    ) -> Result<(), Infallible> {
        for (i, t) in rows.enumerate() {
            let y = naive::rms_norm(h.row(t), &w.values, f64::from(eps));
            x.row_mut(i).copy_from_slice(&y);
        }
        Ok(())
    }

    fn linear(&mut self, x: &Rows, n: usize, w: &Weight, y: &mut Rows) -> Result<(), Infallible> {
        for i in 0..n {
            y.row_mut(i)
                .copy_from_slice(&naive::linear(x.row(i), &w.values, &w.bias));
        }
        Ok(())
    }

    fn linear_add(
        &mut self,
        x: &Rows,
        rows: Range<usize>,
        w: &Weight,
        h: &mut Rows,
    ) -> Result<(), Infallible> {
        for (i, t) in rows.enumerate() {
            let y = naive::linear(x.row(i), &w.values, &w.bias);
            h.row_mut(t).iter_mut().zip(y).for_each(|(h, y)| *h += y);
        }
        Ok(())
    }

    fn qk_norm_rope_store(
        &mut self,
        _: &Prompt<'_>,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        q_norm: &Weight,
        k_norm: &Weight,
        eps: f32,
        rope: &Weight,
        qkv: &mut Rows,
    ) -> Result<(), Infallible> {
        self.placed.resize_with(layer + 1, Vec::new);
        for (i, t) in rows.enumerate() {
            let turn = |head: &[f64], norm: &Weight| {
                let head = naive::rms_norm(head, &norm.values, f64::from(eps));
                naive::rotate(&head, t, &rope.inv_freq, rope.scaling)
            };
            let row = qkv.row_mut(i);
            let (q, kv) = row.split_at_mut(shape.out_width());
            for head in q.chunks_exact_mut(shape.head_dim) {
                head.copy_from_slice(&turn(head, q_norm));
            }
            let (k, v) = kv.split_at(shape.kv_heads * shape.head_dim);
            let k = k.chunks_exact(shape.head_dim);
            let k = k.flat_map(|head| turn(head, k_norm)).collect();
            assert_eq!(self.placed[layer].len(), t, "K/V are placed in order");
            self.placed[layer].push((k, v.to_vec()));
            kv.fill(f64::NAN);
        }
        Ok(())
    }

    fn attention(
        &mut self,
        _: &Prompt<'_>,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        qkv: &Rows,
        out: &mut Rows,
    ) -> Result<(), Infallible> {
        let (d, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        for (i, t) in rows.enumerate() {
            let seen = &self.placed[layer][..=t];
            for head in 0..shape.heads {
                let at = head / group * d;
                let keys: Vec<&[f64]> = seen.iter().map(|(k, _)| &k[at..at + d]).collect();
                let values: Vec<&[f64]> = seen.iter().map(|(_, v)| &v[at..at + d]).collect();
                let q = &qkv.row(i)[head * d..][..d];
                let y = naive::attend(q, &keys, &values, f64::from(shape.scale));
                out.row_mut(i)[head * d..][..d].copy_from_slice(&y);
            }
        }
        Ok(())
    }

    fn silu_mul(&mut self, gate_up: &Rows, n: usize, a: &mut Rows) -> Result<(), Infallible> {
        for i in 0..n {
            a.row_mut(i)
                .copy_from_slice(&naive::silu_mul(gate_up.row(i)));
        }
        Ok(())
    }

    fn gather_rows(
        &mut self,
        inputs: &Prompt<'_>,
        h: &Rows,
        y: &mut Rows,
    ) -> Result<(), Infallible> {
        for (i, t) in inputs.outputs.clone().enumerate() {
            y.row_mut(i).copy_from_slice(h.row(t));
        }
        Ok(())
    }

    fn vocabulary_heads(
        &mut self,
        _: &Prompt<'_>,
        hidden: &Rows,
        head: &Weight,
    ) -> Result<(), Infallible> {
        self.vocabulary = all_rows(hidden, head);
        Ok(())
    }

    fn pooling_heads(&mut self, _: &Prompt<'_>, hidden: &Rows) -> Result<(), Infallible> {
        let rows = hidden.data.chunks_exact(hidden.width);
        self.pooled = rows.map(<[f64]>::to_vec).collect();
        Ok(())
    }

    fn class_heads(
        &mut self,
        _: &Prompt<'_>,
        hidden: &Rows,
        score: &Weight,
    ) -> Result<(), Infallible> {
        self.classes = all_rows(hidden, score);
        Ok(())
    }
}

#[derive(Default)]
struct Loader {
    names: Vec<String>,
    embedding_is_head: bool,
}

fn widen(views: &[TensorView<'_>]) -> Vec<f64> {
    let mut values = Vec::new();
    for view in views {
        view.read_f32(0..view.len(), &mut values);
    }
    values.into_iter().map(f64::from).collect()
}

impl WeightLoader for Loader {
    type Weight = Weight;
    type Error = Infallible;

    fn linear(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Weight, Infallible> {
        self.names.push(name.to_owned());
        Ok(Weight {
            values: widen(parts),
            bias: widen(biases),
            ..Weight::default()
        })
    }

    fn embedding(
        &mut self,
        name: &str,
        table: &TensorView<'_>,
        is_head: bool,
    ) -> Result<Weight, Infallible> {
        self.embedding_is_head = is_head;
        self.linear(name, std::slice::from_ref(table), &[])
    }

    fn vector(&mut self, name: &str, values: &TensorView<'_>) -> Result<Weight, Infallible> {
        self.linear(name, std::slice::from_ref(values), &[])
    }

    fn rope(&mut self, inv_freq: &[f32], scaling: f32, _: usize) -> Result<Weight, Infallible> {
        Ok(Weight {
            inv_freq: inv_freq.to_vec(),
            scaling,
            ..Weight::default()
        })
    }
}

fn run(model: &dyn Model<NaiveOps>, ids: &[u32], outputs: Range<usize>, chunk: usize) -> NaiveOps {
    let mut ops = NaiveOps {
        chunk,
        ..NaiveOps::default()
    };
    let Ok(()) = model.forward(&mut ops, &Prompt { ids, outputs });
    ops
}

/// The reference computes in f32 and this in f64: what differs is the reference's own rounding,
/// which between two of its own implementations reaches 1.4e-5.
const TOLERANCE: f64 = 1e-4;
/// Prompts up to this length: enough for every structure, little enough for f64 without tiles.
const LEN_MAX: usize = 20;

fn assert_close(what: &str, got: &[f64], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!(
            (g - f64::from(*e)).abs() < TOLERANCE,
            "{what}[{i}]: {g} for {e}"
        );
    }
}

#[test]
fn golden_models_give_the_reference_outputs() {
    for (name, checkpoint) in golden_models() {
        let mut loader = Loader::default();
        let model = crate::load_model::<NaiveOps, _>(&checkpoint, 2048, &mut loader).unwrap();
        let golden = golden_tensors(&name);
        let hidden = checkpoint.config().hidden_size;
        let embed_last = golden.f32("f32.embed_last");
        let short = golden.prompts();
        let short = short.iter().enumerate().filter(|(_, p)| p.len() <= LEN_MAX);
        for (p, ids) in short.step_by(4) {
            let what = format!("{name} prompt {p}");
            let ops = run(&*model, ids, ids.len() - 1..ids.len(), 7);
            assert_close(&what, &ops.pooled[0], &embed_last[p * hidden..][..hidden]);
            match checkpoint.kind() {
                ModelKind::CausalLm => {
                    let ids = golden.i32("f32.last_top_ids");
                    let got: Vec<f64> = ids[p * 50..][..50]
                        .iter()
                        .map(|&id| ops.vocabulary[0][id as usize])
                        .collect();
                    let expected = golden.f32("f32.last_top_logits");
                    assert_close(&what, &got, &expected[p * 50..][..50]);
                    let lse = naive::log_sum_exp(&ops.vocabulary[0]);
                    assert_close(&what, &[lse], &golden.f32("f32.last_lse")[p..][..1]);
                    assert!(ops.classes.is_empty());
                }
                ModelKind::SequenceClassification { labels } => {
                    let n = labels.len();
                    let expected = golden.f32("f32.cls_logits");
                    assert_close(&what, &ops.classes[0], &expected[p * n..][..n]);
                    assert!(ops.vocabulary.is_empty());
                }
                ModelKind::Embedding { .. } => {
                    assert!(ops.vocabulary.is_empty() && ops.classes.is_empty());
                }
            }
        }
    }
}

#[test]
fn chunks_and_outputs_do_not_change_results() {
    let (_, checkpoint) = golden_models().swap_remove(4);
    let model = crate::load_model::<NaiveOps, _>(&checkpoint, 64, &mut Loader::default()).unwrap();
    let ids: Vec<u32> = (0..13).map(|i| i * 97 % 4000).collect();
    let whole = run(&*model, &ids, 0..13, 1000);
    for chunk in [0, 1, 3, 12, 13] {
        assert_eq!(run(&*model, &ids, 0..13, chunk).pooled, whole.pooled);
    }
    assert_eq!(run(&*model, &ids, 5..7, 4).pooled, whole.pooled[5..7]);
    let none = run(&*model, &ids, 0..0, 4);
    assert!(none.pooled.is_empty() && none.vocabulary.is_empty());
    assert!(run(&*model, &[], 0..0, 4).placed.is_empty());
}

#[test]
fn heads_and_fused_weights_by_kind() {
    for (name, checkpoint) in golden_models() {
        let mut loader = Loader::default();
        let model = Qwen3::load(&checkpoint, 64, &mut loader).unwrap();
        let (head, is_head) = match &*name {
            "demo-lm" => ("Tied", true),
            "rand-untied-sharded" => ("Vocabulary", false),
            "rand-embed" => ("None", false),
            _ => ("Score", false),
        };
        let got = match model.head {
            Head::Tied => "Tied",
            Head::Vocabulary(_) => "Vocabulary",
            Head::Score(_) => "Score",
            Head::None => "None",
        };
        assert_eq!((got, loader.embedding_is_head), (head, is_head), "{name}");
        let prefix = if name == "rand-embed" { "" } else { "model." };
        let fused = format!("{prefix}layers.1.self_attn.qkv_proj.weight");
        assert!(loader.names.contains(&fused), "{:?}", loader.names);
        let width = model.shape.qkv_width() * model.hidden;
        assert_eq!(model.layers[1].qkv.values.len(), width);
    }
}
