//! A whole device in f64: [`Ops`] as their documentation reads, over any batch. This crate's tests
//! run models on it, and run the conformance suite against it, whole and with [`Fault`]s.

use std::{collections::HashMap, convert::Infallible, ops::Range};

use prelude_core::{
    BlockId, ForwardBatch, OneShotBatch, OutputHead, RowOutput, StepOutput, TokenHead,
};

pub(crate) use loader::NaiveLoader;

use super::layout::{KvOrigin, Token, lay_out};
use crate::{
    Activation, AttnShape, DenseModule, Distances, EmbedTables, Expert, ExpertRoom, Ops, QkNorm,
    Routing, naive,
};

mod attention;
mod heads;
mod loader;
mod sampling;

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
            let (positions, head): (Vec<u32>, _) = match &row.head {
                OutputHead::States(at) => (at.to_vec(), OutputHead::Tokens(TokenHead::STATE)),
                head => (row.positions.clone().collect(), head.clone()),
            };
            let tokens: Vec<usize> = { positions.into_iter() }
                .map(|p| match self.tokens[last].context[p as usize] {
                    KvOrigin::Token(t) => t,
                    KvOrigin::Pool(..) => panic!("position {p} is not computed in this step"),
                })
                .collect();
            self.add_row(head, row.positions.start, &tokens);
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
    /// Returns a device whose layers work on `chunk` tokens at a time.
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
            let mut sum = match tables.words {
                Some(words) => row(words, word as usize),
                None => h.row_mut(i).to_vec(),
            };
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
        self.place(plan, layer, rows, shape, (norm, rope), qkv);
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
        self.attend(plan, layer, rows, shape, distances, (qkv, out));
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
        self.answer_by_vocabulary(plan, hidden, head, soft_cap);
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
        self.pool_texts(plan, hidden, dense);
        self.pool_tokens(plan, hidden);
        Ok(())
    }

    fn class_heads(
        &mut self,
        plan: &NaiveStep,
        hidden: &Rows,
        score: &Weight,
    ) -> Result<(), Infallible> {
        self.classify(plan, hidden, score);
        Ok(())
    }
}
