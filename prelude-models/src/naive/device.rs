//! A whole device in f64: [`Ops`] as their documentation reads, over any batch. This crate's tests
//! run models on it, and run the conformance suite against it, whole and with [`Fault`]s.

use std::{collections::HashMap, convert::Infallible, ops::Range};

use prelude_core::{
    Attention, BlockId, ForwardBatch, LabelScores, Normalise, OneShotBatch, OutputHead, Pooling,
    PositionLogprobs, RowOutput, SampleHead, SampledToken, StepOutput, TokenHead, TokenLogprob,
    TokenSet,
};

use super::layout::{KvOrigin, Token, lay_out};
use crate::{
    Activation, AttnShape, DenseModule, Distances, EmbedTables, Expert, ExpertRoom, Ops, QkNorm,
    Routing, TensorView, WeightLoader, naive,
};

/// A plausible mistake, made on purpose to see that a test notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    EpsilonOutsideRoot,
    NormReadsFirstRows,
    SwapsGateAndUp,
    GathersInTokenOrder,
    ForgetsBias,
    AddsToFirstRows,
    KvHeadByRemainder,
    RotatesBeforeNorm,
    RotatesNeighbours,
    NormsWithoutWeights,
    ForgetsRopeScaling,
    KeepsBesideItsSlot,
    SeesItsSiblings,
    LayersShareBlocks,
    TiesTakeTheLargestId,
    RankCountsTies,
    BiasOnlyIfMasked,
    IgnoresConstraint,
    IgnoresChoice,
    LogSumExpOfLabels,
    FirstPositionOfState,
    NormalisesBeforeCutting,
    MeanOfLastChunk,
    TokensCountFromZero,
    ScalesTokensBeforeCutting,
    ClassesOfFirstToken,
    ScoresWithoutCheckingNumbers,
    MixesParts,
    SeesNoLaterToken,
    ForgetsTypes,
    ForgetsNormBias,
    GeluByTanh,
    SeesBeyondItsWindow,
    BiasLooksTheOtherWay,
    GateIsUp,
    MeanOfAllSegments,
    ForgetsEmbedScale,
    NormReplacesResidual,
    ForgetsNormOffset,
    ForgetsScoreCap,
    ForgetsLogitCap,
    WindowIsOneWider,
    ForgetsDense,
    KeepsShares,
    FirstExperts,
}

/// Activations: `[rows, width]`.
pub(crate) struct Rows {
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

/// Any weight.
#[derive(Clone, Default)]
pub(crate) struct Weight {
    pub(crate) values: Vec<f64>,
    pub(crate) bias: Vec<f64>,
    inv_freq: Vec<f32>,
    scaling: f32,
}

/// Keys and values of one position, all heads.
type KeyValue = (Vec<f64>, Vec<f64>);

/// A step, laid out.
pub(crate) struct NaiveStep {
    tokens: Vec<Token>,
    /// Tokens whose hidden states are read, in order of first use.
    outputs: Vec<usize>,
    rows: Vec<PlanRow>,
    /// Rows of the one-shot, prefill and decode parts.
    counts: [usize; 3],
}

struct PlanRow {
    head: OutputHead,
    first_position: u32,
    /// Indices into [`NaiveStep::outputs`].
    outputs: Vec<usize>,
}

impl NaiveStep {
    pub(crate) fn new(batch: &ForwardBatch, block_size: u32) -> Self {
        let (oneshot, prefill, decode) = batch.parts();
        let mut plan = Self {
            tokens: lay_out(batch, block_size),
            outputs: Vec::new(),
            rows: Vec::new(),
            counts: [oneshot.rows.len(), prefill.rows.len(), decode.rows.len()],
        };
        plan.add_forest(oneshot, 0);
        plan.add_forest(prefill, oneshot.tokens.len());
        let first = oneshot.tokens.len() + prefill.tokens.len();
        for (i, row) in decode.rows.iter().enumerate() {
            let head = OutputHead::Sample(row.sample.clone());
            plan.add_row(head, row.context_len, &[first + i]);
        }
        plan
    }

    fn add_forest(&mut self, forest: &OneShotBatch, first: usize) {
        for row in &forest.rows {
            let segment = &forest.segments[row.segment.index()];
            let last = first + segment.tokens.end as usize - 1;
            let tokens: Vec<usize> = row
                .positions
                .clone()
                .map(|p| match self.tokens[last].context[p as usize] {
                    KvOrigin::Token(t) => t,
                    KvOrigin::Pool(..) => panic!("position {p} is not computed in this step"),
                })
                .collect();
            self.add_row(row.head.clone(), row.positions.start, &tokens);
        }
    }

    fn add_row(&mut self, head: OutputHead, first_position: u32, tokens: &[usize]) {
        let outputs = tokens.iter().map(|&t| {
            let known = self.outputs.iter().position(|&o| o == t);
            known.unwrap_or_else(|| {
                self.outputs.push(t);
                self.outputs.len() - 1
            })
        });
        let outputs = outputs.collect();
        self.rows.push(PlanRow {
            head,
            first_position,
            outputs,
        });
    }
}

/// The device.
#[derive(Default)]
pub(crate) struct NaiveOps {
    chunk: usize,
    fault: Option<Fault>,
    pool: HashMap<(usize, BlockId, u32), KeyValue>,
    /// K/V of this step's tokens, per layer.
    placed: Vec<Vec<KeyValue>>,
    results: Vec<Option<RowOutput>>,
    /// States after the final norm, as the heads read them.
    pub(crate) hidden: Vec<Vec<f64>>,
}

impl NaiveOps {
    /// A device whose layers work on `chunk` tokens at a time.
    pub(crate) fn new(chunk: usize, fault: Option<Fault>) -> Self {
        Self {
            chunk,
            fault,
            ..Self::default()
        }
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Runs one step.
    pub(crate) fn step(
        &mut self,
        batch: &ForwardBatch,
        block_size: u32,
        body: impl FnOnce(&mut Self, &NaiveStep),
    ) -> StepOutput {
        let mut plan = NaiveStep::new(batch, block_size);
        if self.has(Fault::SeesItsSiblings) {
            let all = plan.tokens.len();
            for token in &mut plan.tokens {
                let own = token.context.len() - 1;
                for source in &mut token.context[..own] {
                    if let KvOrigin::Token(t) = source {
                        *t = (*t + 1).min(all - 1);
                    }
                }
            }
        }
        self.placed.clear();
        self.results = plan.rows.iter().map(|_| None).collect();
        body(self, &plan);
        if self.has(Fault::MixesParts) {
            self.results.reverse();
        }
        let mut results = self
            .results
            .drain(..)
            .map(|row| row.unwrap_or(RowOutput::Failed("no head")));
        let [oneshot, prefill, decode] = plan
            .counts
            .map(|n| results.by_ref().take(n).collect::<Vec<_>>());
        StepOutput {
            oneshot,
            prefill,
            decode,
            ..StepOutput::default()
        }
    }

    pub(crate) fn write(tensor: &mut Rows, values: &[f32]) {
        assert_eq!(values.len(), tensor.data.len());
        for (to, &from) in tensor.data.iter_mut().zip(values) {
            *to = f64::from(from);
        }
    }

    pub(crate) fn read(tensor: &Rows) -> Vec<f32> {
        tensor.data.iter().map(|&v| v as f32).collect()
    }

    /// Answers the rows whose heads `handles`, if their states are finite.
    fn answer(
        &mut self,
        plan: &NaiveStep,
        hidden: &Rows,
        handles: fn(&OutputHead) -> bool,
        answer: impl Fn(&Self, &PlanRow, &[&[f64]]) -> RowOutput,
    ) {
        for (i, row) in plan.rows.iter().enumerate() {
            if !handles(&row.head) {
                continue;
            }
            let states: Vec<&[f64]> = row.outputs.iter().map(|&o| hidden.row(o)).collect();
            let finite = states.iter().copied().flatten().all(|v| v.is_finite());
            let careless = self.has(Fault::ScoresWithoutCheckingNumbers)
                && matches!(row.head, OutputHead::LabelScores { .. });
            self.results[i] = Some(if finite || careless {
                answer(self, row, &states)
            } else {
                RowOutput::Failed("not finite")
            });
        }
    }
}

impl Ops for NaiveOps {
    type Tensor = Rows;
    type Weight = Weight;
    type Inputs<'a> = NaiveStep;
    type Error = Infallible;

    fn num_tokens(&self, plan: &NaiveStep) -> usize {
        plan.tokens.len()
    }

    fn num_outputs(&self, plan: &NaiveStep) -> usize {
        plan.outputs.len()
    }

    fn has_outputs(&self, plan: &NaiveStep, rows: Range<usize>) -> bool {
        plan.outputs.iter().any(|t| rows.contains(t))
    }

    fn chunk_tokens(&self) -> usize {
        self.chunk
    }

    fn alloc(&mut self, rows: usize, width: usize) -> Result<Rows, Infallible> {
        // Not zeros: no model may rely on them.
        let data = vec![f64::NAN; rows * width];
        Ok(Rows { width, data })
    }

    fn alloc_kept(&mut self, rows: usize, width: usize) -> Result<Rows, Infallible> {
        self.alloc(rows, width)
    }

    fn embed(
        &mut self,
        plan: &NaiveStep,
        w: &Weight,
        scale: f32,
        h: &mut Rows,
    ) -> Result<(), Infallible> {
        let forgets = self.has(Fault::ForgetsEmbedScale);
        let scale = if forgets { 1.0 } else { f64::from(scale) };
        for (i, token) in plan.tokens.iter().enumerate() {
            let row = &w.values[token.id as usize * h.width..][..h.width];
            for (h, x) in h.row_mut(i).iter_mut().zip(row) {
                *h = x * scale;
            }
        }
        Ok(())
    }

    fn whole_segments(&self, plan: &NaiveStep, start: usize) -> usize {
        let mut end = start;
        while let Some(token) = plan.tokens.get(end)
            && (end == start || token.segment.end - start <= self.chunk)
        {
            end = token.segment.end;
        }
        end
    }

    fn embed_sum(
        &mut self,
        plan: &NaiveStep,
        rows: Range<usize>,
        tables: EmbedTables<'_, Weight>,
        h: &mut Rows,
    ) -> Result<(), Infallible> {
        let width = h.width;
        let row = |table: &Weight, i: usize| table.values[i * width..][..width].to_vec();
        for (i, token) in plan.tokens[rows].iter().enumerate() {
            let (word, kind) = (token.id % tables.num_words, token.id / tables.num_words);
            let mut sum = row(tables.words, word as usize);
            let add = |sum: &mut Vec<f64>, more: Vec<f64>| {
                sum.iter_mut()
                    .zip(more)
                    .for_each(|(sum, more)| *sum += more);
            };
            if let Some(types) = tables.types {
                let forgets = self.has(Fault::ForgetsTypes);
                add(
                    &mut sum,
                    row(types, if forgets { 0 } else { kind as usize }),
                );
            }
            if let Some(positions) = tables.positions {
                add(&mut sum, row(positions, token.position));
            }
            h.row_mut(i).copy_from_slice(&sum);
        }
        Ok(())
    }

    fn layer_norm(
        &mut self,
        h: &mut Rows,
        n: usize,
        weight: &Weight,
        bias: &Weight,
        eps: f32,
    ) -> Result<(), Infallible> {
        let none = vec![0.0; h.width];
        let forgets = self.has(Fault::ForgetsNormBias);
        let bias = if forgets { &none } else { &bias.values };
        for i in 0..n {
            let y = naive::layer_norm(h.row(i), &weight.values, bias, f64::from(eps));
            h.row_mut(i).copy_from_slice(&y);
        }
        Ok(())
    }

    fn layer_norm_of(
        &mut self,
        h: &Rows,
        n: usize,
        weight: &Weight,
        bias: &Weight,
        eps: f32,
        x: &mut Rows,
    ) -> Result<(), Infallible> {
        for i in 0..n {
            x.row_mut(i).copy_from_slice(h.row(i));
        }
        self.layer_norm(x, n, weight, bias, eps)
    }

    fn activate_mul(
        &mut self,
        gate_up: &Rows,
        n: usize,
        f: Activation,
        a: &mut Rows,
    ) -> Result<(), Infallible> {
        for i in 0..n {
            let mut row = gate_up.row(i).to_vec();
            if self.has(Fault::GateIsUp) {
                row.rotate_left(a.width);
            }
            let (gate, up) = row.split_at(a.width);
            for ((a, &g), u) in a.row_mut(i).iter_mut().zip(gate).zip(up) {
                *a = naive::activate(g, f) * u;
            }
        }
        Ok(())
    }

    fn activate(&mut self, x: &mut Rows, n: usize, f: Activation) -> Result<(), Infallible> {
        let f = match f {
            Activation::Gelu if self.has(Fault::GeluByTanh) => Activation::GeluTanh,
            f => f,
        };
        for i in 0..n {
            for v in x.row_mut(i) {
                *v = naive::activate(*v, f);
            }
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
        let mut eps = f64::from(eps);
        if self.has(Fault::EpsilonOutsideRoot) {
            eps = eps.powi(2);
        }
        for (i, mut t) in rows.enumerate() {
            if self.has(Fault::NormReadsFirstRows) {
                t = i;
            }
            let y = naive::rms_norm(h.row(t), &w.values, eps);
            x.row_mut(i).copy_from_slice(&y);
        }
        Ok(())
    }

    fn rms_norm_add(
        &mut self,
        x: &Rows,
        rows: Range<usize>,
        w: &Weight,
        eps: f32,
        h: &mut Rows,
    ) -> Result<(), Infallible> {
        for (i, t) in rows.enumerate() {
            let y = naive::rms_norm(x.row(i), &w.values, f64::from(eps));
            let replaces = self.has(Fault::NormReplacesResidual);
            for (h, y) in h.row_mut(t).iter_mut().zip(y) {
                *h = if replaces { y } else { *h + y };
            }
        }
        Ok(())
    }

    fn linear(&mut self, x: &Rows, n: usize, w: &Weight, y: &mut Rows) -> Result<(), Infallible> {
        let forgets = self.has(Fault::ForgetsBias);
        let bias: &[f64] = if forgets { &[] } else { &w.bias };
        for i in 0..n {
            let row = naive::linear(x.row(i), &w.values, bias);
            y.row_mut(i).copy_from_slice(&row);
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
        for (i, mut t) in rows.enumerate() {
            if self.has(Fault::AddsToFirstRows) {
                t = i;
            }
            let y = naive::linear(x.row(i), &w.values, &w.bias);
            h.row_mut(t).iter_mut().zip(y).for_each(|(h, y)| *h += y);
        }
        Ok(())
    }

    fn qk_norm_rope_store(
        &mut self,
        plan: &NaiveStep,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        norm: Option<QkNorm<'_, Weight>>,
        rope: Option<&Weight>,
        qkv: &mut Rows,
    ) -> Result<(), Infallible> {
        if self.placed.len() <= layer {
            self.placed.resize_with(layer + 1, Vec::new);
        }
        let scaling = if self.has(Fault::ForgetsRopeScaling) {
            1.0
        } else {
            rope.map_or(1.0, |rope| rope.scaling)
        };
        let eps = norm.map_or(0.0, |norm| f64::from(norm.eps));
        let weights = norm.map_or((None, None), |norm| (Some(norm.q), Some(norm.k)));
        let fault = self.fault;
        let turn = |head: &[f64], norm: Option<&Weight>, position| {
            let norm = |head: &[f64]| match norm {
                Some(norm) => naive::rms_norm(head, &norm.values, eps),
                None if fault == Some(Fault::NormsWithoutWeights) => {
                    naive::rms_norm(head, &vec![1.0; head.len()], f64::from(1e-6f32))
                }
                None => head.to_vec(),
            };
            let rotate = |head: &[f64]| match rope {
                Some(rope) => naive::rotate(head, position, &rope.inv_freq, scaling),
                None => head.to_vec(),
            };
            match fault {
                Some(Fault::RotatesBeforeNorm) => norm(&rotate(head)),
                Some(Fault::RotatesNeighbours) => {
                    let d = head.len();
                    let at = |i: usize| i % (d / 2) * 2 + i / (d / 2);
                    let halves: Vec<f64> = (0..d).map(|i| norm(head)[at(i)]).collect();
                    let turned = rotate(&halves);
                    (0..d).map(|i| turned[i % 2 * (d / 2) + i / 2]).collect()
                }
                _ => rotate(&norm(head)),
            }
        };
        let mut placed = Vec::new();
        for (i, t) in rows.enumerate() {
            let position = plan.tokens[t].position;
            let row = qkv.row_mut(i);
            let (q, kv) = row.split_at_mut(shape.out_width());
            for head in q.chunks_exact_mut(shape.head_dim) {
                head.copy_from_slice(&turn(head, weights.0, position));
            }
            let (k, v) = kv.split_at(shape.kv_heads * shape.head_dim);
            let k = k.chunks_exact(shape.head_dim);
            let k: Vec<f64> = k.flat_map(|head| turn(head, weights.1, position)).collect();
            assert_eq!(
                self.placed[layer].len() + i,
                t,
                "tokens are placed in order"
            );
            placed.push((k, v.to_vec()));
            kv.fill(f64::NAN);
            if let Some((block, mut offset)) = plan.tokens[t].kept {
                if self.fault == Some(Fault::KeepsBesideItsSlot) {
                    offset ^= 1;
                }
                let shared = self.fault == Some(Fault::LayersShareBlocks);
                let layer = if shared { 0 } else { layer };
                self.pool.insert((layer, block, offset), placed[i].clone());
            }
        }
        self.placed[layer].extend(placed);
        Ok(())
    }

    fn attention(
        &mut self,
        plan: &NaiveStep,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        qkv: &Rows,
        out: &mut Rows,
    ) -> Result<(), Infallible> {
        let distances = Distances {
            window: None,
            bias: None,
        };
        self.attention_by_distance(plan, layer, rows, shape, distances, qkv, out)
    }

    fn attention_by_distance(
        &mut self,
        plan: &NaiveStep,
        layer: usize,
        rows: Range<usize>,
        shape: AttnShape,
        distances: Distances<'_, Weight>,
        qkv: &Rows,
        out: &mut Rows,
    ) -> Result<(), Infallible> {
        let (d, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        let window = distances.window.map_or(usize::MAX, |w| w as usize);
        let window = match self.fault {
            Some(Fault::SeesBeyondItsWindow) => usize::MAX,
            Some(Fault::WindowIsOneWider) => window.saturating_add(1),
            _ => window,
        };
        let cap = shape.soft_cap.filter(|_| !self.has(Fault::ForgetsScoreCap));
        let shares = self.has(Fault::LayersShareBlocks);
        let pool_layer = if shares { 0 } else { layer };
        for (i, t) in rows.enumerate() {
            let token = &plan.tokens[t];
            // The index of a token in either list is its position: whole prompts begin at 0.
            let whole: Vec<KvOrigin> = token.segment.clone().map(KvOrigin::Token).collect();
            let context = match shape.attention {
                Attention::Full if !self.has(Fault::SeesNoLaterToken) => &whole,
                _ => &token.context,
            };
            let near = |&(position, _): &(usize, &KvOrigin)| {
                let distance: usize = token.position.abs_diff(position);
                distance <= window
            };
            let seen = context.iter().enumerate().filter(near);
            let seen: Vec<(usize, &KeyValue)> = seen
                .filter_map(|(position, source)| {
                    let kv = match *source {
                        KvOrigin::Token(t) => self.placed[layer].get(t),
                        KvOrigin::Pool(block, offset) => {
                            self.pool.get(&(pool_layer, block, offset))
                        }
                    };
                    Some((position, kv?))
                })
                .collect();
            for head in 0..shape.heads {
                let first = if self.has(Fault::KvHeadByRemainder) {
                    head % shape.kv_heads * d
                } else {
                    head / group * d
                };
                let at = first..first + d;
                let q = &qkv.row(i)[head * d..][..d];
                let score = |&(position, (key, _)): &(usize, &KeyValue)| {
                    let (mut from, mut to) = (token.position, position);
                    if self.has(Fault::BiasLooksTheOtherWay) {
                        std::mem::swap(&mut from, &mut to);
                    }
                    let bias = distances.bias.map_or(0.0, |bias| {
                        naive::distance_bias(&bias.values, shape.heads, head, from, to)
                    });
                    let score = naive::dot(q, &key[at.clone()]) * f64::from(shape.scale);
                    naive::soft_cap(score, cap) + bias
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let values: Vec<&[f64]> = seen.iter().map(|(_, kv)| &kv.1[at.clone()]).collect();
                let y = naive::average(&scores, &values);
                out.row_mut(i)[head * d..][..d].copy_from_slice(&y);
            }
        }
        Ok(())
    }

    fn segment_means(
        &mut self,
        plan: &NaiveStep,
        x: &Rows,
        rows: Range<usize>,
        y: &mut Rows,
    ) -> Result<(), Infallible> {
        for (i, &t) in plan.outputs.iter().enumerate() {
            if !rows.contains(&t) {
                continue;
            }
            let all = self.has(Fault::MeanOfAllSegments);
            let segment = match all {
                true => rows.clone(),
                false => plan.tokens[t].segment.clone(),
            };
            let n = segment.len() as f64;
            for j in 0..x.width {
                let sum: f64 = segment.clone().map(|t| x.row(t - rows.start)[j]).sum();
                y.row_mut(i)[j] = sum / n;
            }
        }
        Ok(())
    }

    fn silu_mul(&mut self, gate_up: &Rows, n: usize, a: &mut Rows) -> Result<(), Infallible> {
        for i in 0..n {
            let mut row = gate_up.row(i).to_vec();
            if self.has(Fault::SwapsGateAndUp) {
                row.rotate_left(a.width);
            }
            a.row_mut(i).copy_from_slice(&naive::silu_mul(&row));
        }
        Ok(())
    }

    fn experts_add(
        &mut self,
        x: &Rows,
        rows: Range<usize>,
        router: &Weight,
        experts: &[Expert<Weight>],
        routing: Routing,
        _: &mut ExpertRoom<Rows>,
        h: &mut Rows,
    ) -> Result<(), Infallible> {
        for (i, t) in rows.enumerate() {
            let logits = naive::linear(x.row(i), &router.values, &[]);
            let normalise = routing.normalise != self.has(Fault::KeepsShares);
            let routing = Routing {
                normalise,
                ..routing
            };
            for (e, share) in naive::route(&logits, routing) {
                let e = if self.has(Fault::FirstExperts) {
                    e / 2
                } else {
                    e
                };
                let gate_up = naive::linear(x.row(i), &experts[e].gate_up.values, &[]);
                let inner = naive::silu_mul(&gate_up);
                let out = naive::linear(&inner, &experts[e].down.values, &[]);
                let h = h.row_mut(t).iter_mut();
                h.zip(out).for_each(|(h, y)| *h += share * y);
            }
        }
        Ok(())
    }

    fn gather_rows(
        &mut self,
        plan: &NaiveStep,
        x: &Rows,
        rows: Range<usize>,
        y: &mut Rows,
    ) -> Result<(), Infallible> {
        let mut outputs = plan.outputs.clone();
        if self.has(Fault::GathersInTokenOrder) {
            outputs.sort_unstable();
        }
        for (i, &t) in outputs.iter().enumerate() {
            if rows.contains(&t) {
                y.row_mut(i).copy_from_slice(x.row(t - rows.start));
            }
        }
        Ok(())
    }

    fn vocabulary_heads(
        &mut self,
        plan: &NaiveStep,
        hidden: &Rows,
        head: &Weight,
        soft_cap: Option<f32>,
    ) -> Result<(), Infallible> {
        let soft_cap = soft_cap.filter(|_| !self.has(Fault::ForgetsLogitCap));
        let handles = |head: &OutputHead| {
            !matches!(
                head,
                OutputHead::Embed { .. } | OutputHead::Classify | OutputHead::Tokens(_)
            )
        };
        self.answer(plan, hidden, handles, |ops, row, states| {
            let logits = |h: &[f64]| -> Vec<f64> {
                let logits = naive::linear(h, &head.values, &[]);
                logits
                    .iter()
                    .map(|&z| naive::soft_cap(z, soft_cap))
                    .collect()
            };
            match &row.head {
                OutputHead::Sample(sample) => ops.sample(sample, &logits(states[0])),
                OutputHead::LabelScores { labels, normalise } => {
                    let z = logits(states[0]);
                    let of_labels: Vec<f64> = labels.iter().map(|&l| z[l as usize]).collect();
                    let over = if ops.has(Fault::LogSumExpOfLabels) {
                        &of_labels
                    } else {
                        &z
                    };
                    RowOutput::LabelScores(LabelScores {
                        log_sum_exp: (*normalise == Normalise::OverVocab)
                            .then(|| naive::log_sum_exp(over) as f32),
                        logits: of_labels.iter().map(|&z| z as f32).collect(),
                    })
                }
                OutputHead::Logprobs { targets, top } => {
                    let entries = targets.iter().zip(states);
                    let shift = u32::from(!ops.has(Fault::FirstPositionOfState));
                    RowOutput::Logprobs {
                        first_position: row.first_position + shift,
                        entries: entries
                            .map(|(&target, state)| ops.entry(target, *top, &logits(state)))
                            .collect(),
                    }
                }
                OutputHead::Embed { .. } | OutputHead::Classify | OutputHead::Tokens(_) => {
                    unreachable!("not handled")
                }
            }
        });
        Ok(())
    }

    fn pooling_heads(
        &mut self,
        plan: &NaiveStep,
        hidden: &Rows,
        dense: &[DenseModule<Weight>],
    ) -> Result<(), Infallible> {
        let rows = hidden.data.chunks_exact(hidden.width);
        self.hidden = rows.map(<[f64]>::to_vec).collect();
        let handles = |head: &OutputHead| matches!(head, OutputHead::Embed { .. });
        self.answer(plan, hidden, handles, |ops, row, states| {
            let OutputHead::Embed {
                pooling,
                normalise,
                dimensions,
            } = row.head
            else {
                unreachable!("not handled");
            };
            let states = match pooling {
                Pooling::First => &states[..1],
                Pooling::Last => &states[states.len() - 1..],
                Pooling::Mean if ops.has(Fault::MeanOfLastChunk) && states.len() > 256 => {
                    &states[256..]
                }
                Pooling::Mean => states,
            };
            let mean = |i: usize| states.iter().map(|s| s[i]).sum::<f64>() / states.len() as f64;
            let mut vector: Vec<f64> = (0..hidden.width).map(mean).collect();
            for module in dense.iter().skip(usize::from(ops.has(Fault::ForgetsDense))) {
                let weight = &module.weight;
                vector = naive::linear(&vector, &weight.values, &weight.bias);
                if let Some(f) = module.activation {
                    vector.iter_mut().for_each(|v| *v = naive::activate(*v, f));
                }
            }
            let whole = vector.len();
            let scale = |v: &mut Vec<f64>| {
                let norm = naive::dot(v, v).sqrt();
                v.iter_mut().for_each(|v| *v /= norm);
            };
            let early = ops.has(Fault::NormalisesBeforeCutting);
            if normalise && early {
                scale(&mut vector);
            }
            vector.truncate(dimensions.map_or(whole, |d| d as usize));
            if normalise && !early {
                scale(&mut vector);
            }
            RowOutput::Embedding(vector.into_iter().map(|v| v as f32).collect())
        });
        let handles =
            |head: &OutputHead| matches!(head, OutputHead::Tokens(TokenHead::Embed { .. }));
        self.answer(plan, hidden, handles, |ops, row, states| {
            let OutputHead::Tokens(TokenHead::Embed {
                normalise,
                dimensions,
            }) = row.head
            else {
                unreachable!("not handled");
            };
            let vector = |state: &&[f64]| -> Vec<f32> {
                let kept = &state[..dimensions.map_or(hidden.width, |d| d as usize)];
                let early = ops.has(Fault::ScalesTokensBeforeCutting);
                let scaled = if early { state } else { kept };
                let norm = if normalise {
                    naive::dot(scaled, scaled).sqrt()
                } else {
                    1.0
                };
                kept.iter().map(|v| (v / norm) as f32).collect()
            };
            let counts_from_zero = ops.has(Fault::TokensCountFromZero);
            RowOutput::Tokens {
                first_position: if counts_from_zero {
                    0
                } else {
                    row.first_position
                },
                rows: states.iter().map(vector).collect(),
            }
        });
        Ok(())
    }

    fn class_heads(
        &mut self,
        plan: &NaiveStep,
        hidden: &Rows,
        score: &Weight,
    ) -> Result<(), Infallible> {
        let handles = |head: &OutputHead| matches!(head, OutputHead::Classify);
        self.answer(plan, hidden, handles, |_, _, states| {
            let z = naive::linear(states[0], &score.values, &score.bias);
            RowOutput::Classes(z.iter().map(|&z| z as f32).collect())
        });
        let handles = |head: &OutputHead| matches!(head, OutputHead::Tokens(TokenHead::Classify));
        self.answer(plan, hidden, handles, |ops, row, states| {
            let of_first = ops.has(Fault::ClassesOfFirstToken);
            let logits = |state: &&[f64]| {
                let state = if of_first { &states[0] } else { state };
                let z = naive::linear(state, &score.values, &score.bias);
                z.iter().map(|&z| z as f32).collect()
            };
            RowOutput::Tokens {
                first_position: row.first_position,
                rows: states.iter().map(logits).collect(),
            }
        });
        Ok(())
    }
}

/// Sampling and log-probabilities.
impl NaiveOps {
    /// Ids by falling logit, ties by id.
    fn ranked(&self, z: &[f64]) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..z.len() as u32).collect();
        if self.has(Fault::TiesTakeTheLargestId) {
            ids.reverse();
        }
        ids.sort_by(|&a, &b| z[b as usize].total_cmp(&z[a as usize]));
        ids
    }

    fn top(&self, z: &[f64], n: u32) -> Vec<TokenLogprob> {
        let lse = naive::log_sum_exp(z);
        let ids = self.ranked(z).into_iter().take(n as usize);
        ids.map(|token| TokenLogprob {
            token,
            logprob: (z[token as usize] - lse) as f32,
        })
        .collect()
    }

    fn entry(&self, token: u32, top: u32, z: &[f64]) -> PositionLogprobs {
        let own = z[token as usize];
        let rank = if self.has(Fault::RankCountsTies) {
            z.iter().filter(|&&other| other >= own).count()
        } else {
            1 + z.iter().filter(|&&other| other > own).count()
        };
        PositionLogprobs {
            token,
            logprob: (own - naive::log_sum_exp(z)) as f32,
            rank: rank as u32,
            top: self.top(z, top),
        }
    }

    fn sample(&self, head: &SampleHead, raw: &[f64]) -> RowOutput {
        let (p, z) = (&head.sampling, self.adjusted(head, raw));
        let mut ids = self.ranked(&z);
        ids.retain(|&id| z[id as usize] > f64::NEG_INFINITY);
        if ids.is_empty() {
            return RowOutput::NoToken;
        }
        let greedy = p.temperature == 0.0;
        if greedy {
            ids.truncate(1);
        }
        let temperature = if greedy {
            1.0
        } else {
            f64::from(p.temperature)
        };
        let scaled = |id: u32| z[id as usize] / temperature;
        let lse = naive::log_sum_exp(&ids.iter().map(|&id| scaled(id)).collect::<Vec<_>>());
        let probability = |id: u32| (scaled(id) - lse).exp();
        if p.top_k > 0 {
            ids.truncate(p.top_k as usize);
        }
        let mut sum = 0.0;
        let nucleus = ids.iter().take_while(|&&id| {
            let before = sum;
            sum += probability(id);
            before < f64::from(p.top_p)
        });
        let kept = nucleus.count().max(1);
        ids.truncate(kept);
        let least = probability(ids[0]) * f64::from(p.min_p);
        ids.retain(|&id| probability(id) >= least);
        let total: f64 = ids.iter().map(|&id| probability(id)).sum();
        let tokens = (head.choice..head.choice + head.draws)
            .map(|choice| {
                let choice = if self.has(Fault::IgnoresChoice) {
                    0
                } else {
                    choice
                };
                let mut left = total * uniform(p.seed, choice, head.output_position);
                let drawn = ids.iter().find(|&&id| {
                    left -= probability(id);
                    left < 0.0
                });
                let token = *drawn.unwrap_or(&ids[ids.len() - 1]);
                let logprob = raw[token as usize] - naive::log_sum_exp(raw);
                SampledToken {
                    token,
                    logprob: head.top_logprobs.map(|_| logprob as f32),
                    top: self.top(raw, head.top_logprobs.unwrap_or(0)),
                }
            })
            .collect();
        RowOutput::Sampled(tokens)
    }

    /// Logits after penalties, bias and masks.
    fn adjusted(&self, head: &SampleHead, raw: &[f64]) -> Vec<f64> {
        let p = &head.sampling;
        let mut z = raw.to_vec();
        if let Some(history) = &head.history {
            for (id, z) in (0u32..).zip(&mut z) {
                let in_output = history.output.iter().filter(|&&t| t == id).count() as f64;
                if in_output > 0.0 || history.prompt.contains(&id) {
                    let r = f64::from(p.repetition_penalty);
                    *z = if *z > 0.0 { *z / r } else { *z * r };
                }
                if in_output > 0.0 {
                    *z -= f64::from(p.presence_penalty);
                    *z -= f64::from(p.frequency_penalty) * in_output;
                }
            }
        }
        let masked = p.allowed_token_ids.is_some();
        if masked || !self.has(Fault::BiasOnlyIfMasked) {
            for &(id, bias) in &*p.logit_bias {
                z[id as usize] += f64::from(bias);
            }
        }
        let nothing = TokenSet::default();
        let mask = head.mask.as_ref();
        let mask = mask.filter(|_| !self.has(Fault::IgnoresConstraint));
        let mask = mask.map(|mask| mask.wait().unwrap_or(&nothing));
        let allowed = |id: u32| {
            p.allowed_token_ids
                .as_ref()
                .is_none_or(|ids| ids.contains(&id))
                && mask.is_none_or(|mask| mask.contains(id))
                && !(head.masks_stops() && p.stop_token_ids.contains(&id))
        };
        for (id, z) in (0u32..).zip(&mut z) {
            if !allowed(id) {
                *z = f64::NEG_INFINITY;
            }
        }
        z
    }
}

/// A number in `0..1` that depends on its arguments alone.
fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    let mut z = seed ^ (u64::from(choice) << 32 | u64::from(position));
    for _ in 0..2 {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    (z >> 11) as f64 / (1u64 << 53) as f64
}

/// Widens weights, and remembers what it was given.
#[derive(Default)]
pub(crate) struct NaiveLoader {
    pub(crate) names: Vec<String>,
    /// Matrices with biases, and how many.
    pub(crate) biased: Vec<(String, usize)>,
    pub(crate) embedding_is_head: bool,
    /// True for the fault of that name.
    pub(crate) forgets_norm_offset: bool,
}

fn widen(views: &[TensorView<'_>]) -> Vec<f64> {
    let mut values = Vec::new();
    for view in views {
        view.read_f32(0..view.len(), &mut values);
    }
    values.into_iter().map(f64::from).collect()
}

impl WeightLoader for NaiveLoader {
    type Weight = Weight;
    type Error = Infallible;

    fn linear(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Weight, Infallible> {
        self.names.push(name.to_owned());
        let bias = widen(biases);
        if !bias.is_empty() {
            self.biased.push((name.to_owned(), bias.len()));
        }
        Ok(Weight {
            values: widen(parts),
            bias,
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

    fn norm(
        &mut self,
        name: &str,
        values: &TensorView<'_>,
        offset: f32,
    ) -> Result<Weight, Infallible> {
        let mut weight = self.vector(name, values)?;
        let offset = if self.forgets_norm_offset {
            0.0
        } else {
            offset
        };
        weight
            .values
            .iter_mut()
            .for_each(|w| *w += f64::from(offset));
        Ok(weight)
    }

    fn rope(&mut self, inv_freq: &[f32], scaling: f32, _: usize) -> Result<Weight, Infallible> {
        Ok(Weight {
            inv_freq: inv_freq.to_vec(),
            scaling,
            ..Weight::default()
        })
    }
}
