//! Heads that want logits over the vocabulary.
//!
//! A row that wants label scores alone has only the labels' rows of the head multiplied; the
//! result has the same bits as the full product. All others share full rows of logits, computed
//! for distinct output positions in chunks, so that the logits of a long prompt take no more
//! memory than those of a short one.

use std::sync::Arc;

use prelude_core::{
    LabelScores, Normalise, OutputHead, PositionLogprobs, RowOutput, SampleHead, SampledToken,
    TokenId,
};
use prelude_models::step::StepLayout;

use super::{
    HeadPass, NOT_FINITE,
    logprobs::Readings,
    sample::{self, Scratch},
};
use crate::{
    kernels::{
        Supported,
        gemm::{Matrix, ProductOutput},
        simd,
    },
    scratch::PerWorker,
};

/// Logits computed at a time: at most this many bytes and [`MAX_LOGITS_ROWS`] rows.
const MAX_LOGITS_BYTES: usize = 48 << 20;
/// Most rows of a product: with 96 it runs at full speed.
const MAX_LOGITS_ROWS: usize = 96;

/// Returns the number of rows of logits computed at a time.
pub(crate) fn logits_rows(vocab: usize) -> usize {
    (MAX_LOGITS_BYTES / (vocab * size_of::<f32>())).clamp(1, MAX_LOGITS_ROWS)
}

/// Returns the bytes of one worker's buffers.
pub(crate) fn worker_bytes(vocab: usize) -> usize {
    sample::scratch_bytes(vocab)
}

/// Buffers for rows of logits.
#[derive(Debug)]
pub(crate) struct VocabularyHeads {
    /// `[rows, V]`.
    logits: Vec<f32>,
    /// `[rows, H]`: the hidden states that logits are computed from.
    states: Vec<f32>,
    workers: PerWorker<Scratch>,
    rows: usize,
}

/// A use of a row of logits.
struct Item<'a> {
    /// Index of the row.
    row: usize,
    /// Output position.
    output: u32,
    want: Want<'a>,
    got: Answer,
}

enum Want<'a> {
    Sample(&'a SampleHead),
    Labels(&'a [TokenId]),
    /// Score a token, the `index`-th of its row.
    Score {
        index: usize,
        target: TokenId,
        top: u32,
    },
}

impl Item<'_> {
    /// Returns the sort key: by output position, then equal targets together.
    const fn order(&self) -> (u32, TokenId) {
        match self.want {
            Want::Score { target, .. } => (self.output, target),
            Want::Sample(_) | Want::Labels(_) => (self.output, 0),
        }
    }
}

impl Want<'_> {
    /// Returns the number of likeliest tokens that are wanted.
    fn top(&self) -> u32 {
        match self {
            Self::Sample(head) => head.top_logprobs.unwrap_or(0),
            Self::Labels(_) => 0,
            Self::Score { top, .. } => *top,
        }
    }
}

enum Answer {
    Nothing,
    Row(RowOutput),
    Score(PositionLogprobs),
}

impl VocabularyHeads {
    pub(crate) fn new(vocab: usize, hidden: usize, threads: usize) -> Self {
        let rows = logits_rows(vocab);
        Self {
            logits: vec![0.0; rows * vocab],
            states: vec![0.0; rows * hidden],
            workers: PerWorker::new(threads, Scratch::default),
            rows,
        }
    }
}

impl HeadPass<'_> {
    /// Answers every row that samples, scores labels or wants log-probabilities.
    pub(crate) fn vocabulary(
        &mut self,
        buffers: &mut VocabularyHeads,
        head: &Matrix,
        soft_cap: Option<f32>,
    ) {
        self.run_label_rows(buffers, head, soft_cap);
        let mut items = items(self.layout);
        items.sort_by_key(Item::order);
        let mut rest = &mut items[..];
        while !rest.is_empty() {
            let (chunk, outputs) = take_chunk(&mut rest, buffers.rows);
            self.run_chunk(chunk, &outputs, buffers, (head, soft_cap));
        }
        self.collect_items(items);
    }

    /// Computes the logits of `outputs` and answers the items that read them.
    fn run_chunk(
        &mut self,
        items: &mut [Item<'_>],
        outputs: &[u32],
        buffers: &mut VocabularyHeads,
        (head, soft_cap): (&Matrix, Option<f32>),
    ) {
        let states = &mut buffers.states[..outputs.len() * self.width];
        for (state, &output) in states.chunks_exact_mut(self.width).zip(outputs) {
            state.copy_from_slice(self.state(output));
        }
        let vocab = head.outputs();
        let logits = &mut buffers.logits[..outputs.len() * vocab];
        self.multiplier
            .run(self.pool, states, head, ProductOutput::Write, logits);
        let isa = self.isa;
        if let Some(cap) = soft_cap {
            let cost_ns = logits.len() / 2;
            self.pool.rows(logits, vocab, 1, cost_ns, |_, _, logits| {
                simd::soft_cap(isa, logits, 1.0, cap);
            });
        }
        let (logits, workers) = (&*logits, &buffers.workers);
        let cost_ns = items.len() * vocab;
        // A task is one row of logits with all that read it, so that they share what they can.
        let mut readers: Vec<&mut [Item<'_>]> =
            items.chunk_by_mut(|a, b| a.output == b.output).collect();
        self.pool
            .rows(&mut readers, 1, 1, cost_ns, |worker, first, readers| {
                let logits = logits[first * vocab..].chunks_exact(vocab);
                for (items, logits) in readers.iter_mut().zip(logits) {
                    answer(isa, &mut workers.get(worker), logits, items);
                }
            });
    }

    /// Puts the items' answers into their rows' results.
    fn collect_items(&mut self, items: Vec<Item<'_>>) {
        let layout = self.layout;
        let mut scores: Vec<Vec<Option<PositionLogprobs>>> = Vec::new();
        scores.resize_with(layout.rows.len(), Vec::new);
        for item in items {
            match (item.got, &item.want) {
                (Answer::Row(output), _) => self.results[item.row] = Some(output),
                (Answer::Score(score), Want::Score { index, .. }) => {
                    let scores = &mut scores[item.row];
                    scores.resize(scores.len().max(index + 1), None);
                    scores[*index] = Some(score);
                }
                _ => unreachable!("every item was answered in its kind"),
            }
        }
        for (i, row) in layout.rows.iter().enumerate() {
            // A position that failed has put its failure in the row's place.
            if matches!(row.head, OutputHead::Logprobs { .. }) && self.results[i].is_none() {
                let entries = std::mem::take(&mut scores[i]);
                self.results[i] = Some(RowOutput::Logprobs {
                    first_position: row.first_position + 1,
                    entries: entries
                        .into_iter()
                        .map(|entry| entry.expect("every position was scored"))
                        .collect(),
                });
            }
        }
    }

    /// Answers rows that want the logits of labels and nothing else, those with equal labels
    /// together.
    fn run_label_rows(
        &mut self,
        buffers: &mut VocabularyHeads,
        head: &Matrix,
        soft_cap: Option<f32>,
    ) {
        let (layout, width) = (self.layout, self.width);
        let label_rows: Vec<(usize, &Arc<[TokenId]>)> = layout
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.refused.is_none())
            .filter_map(|(i, row)| match &row.head {
                OutputHead::LabelScores {
                    labels,
                    normalise: Normalise::OverLabels,
                } => Some((i, labels)),
                _ => None,
            })
            .collect();
        for group in label_rows.chunk_by(|a, b| Arc::ptr_eq(a.1, b.1) || a.1 == b.1) {
            let labels = group[0].1;
            let part = head.select(self.pool, labels);
            for rows in group.chunks(buffers.rows) {
                let states = &mut buffers.states[..rows.len() * width];
                for (state, (row, _)) in states.chunks_exact_mut(width).zip(rows) {
                    let output = layout.outputs_of(&layout.rows[*row])[0];
                    state.copy_from_slice(self.state(output));
                }
                let mut logits = vec![0.0; rows.len() * labels.len()];
                self.multiplier
                    .run(self.pool, states, &part, ProductOutput::Write, &mut logits);
                if let Some(cap) = soft_cap {
                    simd::soft_cap(self.isa, &mut logits, 1.0, cap);
                }
                for ((row, _), logits) in rows.iter().zip(logits.chunks_exact(labels.len())) {
                    self.results[*row] = Some(label_scores(logits.to_vec(), None));
                }
            }
        }
    }
}

/// Returns every use of a full row of logits.
fn items(layout: &StepLayout) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    for (row, planned) in layout.rows.iter().enumerate() {
        if planned.refused.is_some() {
            continue;
        }
        let outputs = layout.outputs_of(planned);
        let mut push = |output, want| {
            items.push(Item {
                row,
                output,
                want,
                got: Answer::Nothing,
            });
        };
        match &planned.head {
            OutputHead::Sample(sample) => push(outputs[0], Want::Sample(sample)),
            OutputHead::LabelScores {
                labels,
                normalise: Normalise::OverVocab,
            } => push(outputs[0], Want::Labels(labels)),
            OutputHead::Logprobs { targets, top } => {
                for (index, (&output, &target)) in outputs.iter().zip(targets).enumerate() {
                    let top = *top;
                    push(output, Want::Score { index, target, top });
                }
            }
            OutputHead::LabelScores { .. }
            | OutputHead::Embed { .. }
            | OutputHead::Classify
            | OutputHead::Tokens(_)
            | OutputHead::States(_) => {}
        }
    }
    items
}

/// Splits off the items that read the next `rows` distinct outputs.
fn take_chunk<'a, 'b>(
    rest: &mut &'a mut [Item<'b>],
    rows: usize,
) -> (&'a mut [Item<'b>], Vec<u32>) {
    let mut outputs: Vec<u32> = Vec::new();
    let mut len = 0;
    for item in rest.iter() {
        if outputs.last() != Some(&item.output) {
            if outputs.len() == rows {
                break;
            }
            outputs.push(item.output);
        }
        len += 1;
    }
    let (chunk, tail) = std::mem::take(rest).split_at_mut(len);
    *rest = tail;
    (chunk, outputs)
}

/// Answers all that read one row of logits.
fn answer(isa: Supported, scratch: &mut Scratch, logits: &[f32], items: &mut [Item<'_>]) {
    let (max, finite) = simd::max_finite(isa, logits);
    if !finite {
        for item in items {
            item.got = Answer::Row(RowOutput::Failed(NOT_FINITE));
        }
        return;
    }
    let top_max = items.iter().map(|item| item.want.top()).max().unwrap_or(0);
    let mut readings = Readings::new(isa, logits, max, top_max);
    for item in items {
        item.got = match item.want {
            Want::Sample(head) => match scratch.sample(isa, logits, max, head) {
                Ok(tokens) => {
                    Answer::Row(sampled(tokens, logits, &mut readings, head.top_logprobs))
                }
                Err(output) => Answer::Row(output),
            },
            Want::Labels(labels) => {
                let scores = labels.iter().map(|&id| logits[id as usize]).collect();
                let log_sum_exp = readings.softmax().log_sum_exp();
                Answer::Row(label_scores(scores, Some(log_sum_exp)))
            }
            Want::Score { target, top, .. } => Answer::Score(readings.score(target, top)),
        };
    }
}

fn sampled(
    tokens: Vec<TokenId>,
    logits: &[f32],
    readings: &mut Readings<'_>,
    top_logprobs: Option<u32>,
) -> RowOutput {
    let top = top_logprobs.map(|n| (readings.softmax(), readings.top(n)));
    let report = |token: TokenId| match &top {
        None => SampledToken {
            token,
            logprob: None,
            top: Vec::new(),
        },
        Some((softmax, top)) => SampledToken {
            token,
            logprob: Some(softmax.of(logits[token as usize])),
            top: top.clone(),
        },
    };
    RowOutput::Sampled(tokens.into_iter().map(report).collect())
}

fn label_scores(logits: Vec<f32>, log_sum_exp: Option<f32>) -> RowOutput {
    if logits.iter().all(|x| x.is_finite()) {
        RowOutput::LabelScores(LabelScores {
            logits,
            log_sum_exp,
        })
    } else {
        RowOutput::Failed(NOT_FINITE)
    }
}
