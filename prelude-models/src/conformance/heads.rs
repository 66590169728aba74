//! Heads: what is read off hidden states.

use std::sync::Arc;

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, ForwardBatch, LabelScores, Normalise, OneShotBatch,
    OutputHead, OutputRow, Pooling, PositionLogprobs, Residency, RowOutput, SampleHead,
    SampledToken, SamplingParams, Segment, SegmentIdx, SeqId, StepOutput, TokenHead, TokenLogprob,
    TokenMask, TokenSet, TokenSource,
};

use super::{
    ConformanceDevice, Demands, LABELS, SMALL_SHAPE, SUM, Spec, VOCAB,
    batches::{greedy, root},
    one_segment, spec,
    values::{Values, assert_within, linear, matrix, wide},
};
use crate::{Ops, naive};

mod sampling;
mod vectors;

const HIDDEN: usize = 72;
/// Two rows of the head that are equal bit for bit, so that their logits tie.
const TWINS: (usize, usize) = (17, 200);
/// The error of exponentials and of the logarithm of their sum, on top of the error of logits.
const LOG_SUM_EXP: f64 = 2e-6;
/// Standard deviations by which a frequency may miss: 1 in 10^7 draws of a case would fail by
/// chance, and draws are seeded, so that a device that passes always does.
const SIGMAS: f64 = 5.5;

/// Checks `vocabulary_heads`, `pooling_heads` and `class_heads`, and how their results are
/// returned.
///
/// # Panics
/// If the device is wrong.
pub fn heads<D: ConformanceDevice>(demands: Demands, open: impl Fn(&Spec) -> D) {
    let heads = Heads::new(demands);
    heads.greedy(&open);
    heads.masks_and_penalties(&open);
    heads.draws(&open);
    heads.label_scores(&open);
    heads.logprobs(&open);
    heads.non_finite_rows(&open);
    heads.parts_of_a_mixed_step(&open);
    heads.pooling(&open);
    heads.classes(&open);
    heads.each_token(&open);
}

/// Checks heads that want logits, with logits that are bounded.
///
/// # Panics
/// If the device is wrong.
pub(super) fn capped<D: ConformanceDevice>(demands: Demands, open: &impl Fn(&Spec) -> D) {
    let heads = Heads {
        soft_cap: Some(CAP),
        ..Heads::new(demands)
    };
    heads.greedy(open);
    heads.masks_and_penalties(open);
    heads.label_scores(open);
    heads.logprobs(open);
}

/// About the largest logit.
const CAP: f32 = 8.0;

struct Heads {
    demands: Demands,
    soft_cap: Option<f32>,
    head: Vec<f32>,
    score: Vec<f32>,
}

/// Logits of one hidden state in f64, and bounds on their errors.
struct Logits {
    z: Vec<f64>,
    bound: Vec<f64>,
}

impl Logits {
    fn best(&self, allowed: impl Fn(usize) -> bool) -> usize {
        let ids = (0..self.z.len()).filter(|&i| allowed(i));
        ids.fold(None, |best: Option<usize>, i| match best {
            Some(b) if self.z[b] >= self.z[i] => Some(b),
            _ => Some(i),
        })
        .expect("some token is allowed")
    }

    /// Returns twice the largest bound: closer than that, two logits may swap.
    fn slack(&self) -> f64 {
        2.0 * self.bound.iter().copied().fold(0.0, f64::max)
    }

    fn logprob(&self, id: usize) -> f64 {
        self.z[id] - naive::log_sum_exp(&self.z)
    }
}

fn idx(id: u32) -> usize {
    id as usize
}

fn id(n: usize) -> u32 {
    u32::try_from(n).expect("cases are small")
}

fn sample(sampling: SamplingParams) -> SampleHead {
    SampleHead {
        sampling: Arc::new(sampling),
        ..greedy(None)
    }
}

/// Returns the tokens that a constraint lets come.
fn only(ids: &[u32]) -> Option<Arc<dyn TokenMask>> {
    Some(Arc::new(TokenSet::from_ids(ids.iter().copied(), id(VOCAB))))
}

fn greedy_with_top(top: u32) -> OutputHead {
    OutputHead::Sample(greedy(Some(top)))
}

/// Returns a row that reads `positions` of the first segment.
fn row(positions: std::ops::Range<usize>, head: OutputHead) -> OutputRow {
    OutputRow {
        segment: SegmentIdx(0),
        positions: id(positions.start)..id(positions.end),
        head,
    }
}

/// Returns a prompt of `tokens` tokens and the rows to read off it.
fn batch(tokens: usize, rows: Vec<OutputRow>) -> ForwardBatch {
    ForwardBatch::OneShot(OneShotBatch {
        rows,
        ..one_segment(&vec![1; tokens])
    })
}

impl Heads {
    fn new(demands: Demands) -> Self {
        let mut values = Values::new(demands.precision, 30);
        let mut head = values.many(VOCAB * HIDDEN, -0.5, 0.5);
        head.copy_within(TWINS.0 * HIDDEN..(TWINS.0 + 1) * HIDDEN, TWINS.1 * HIDDEN);
        Self {
            demands,
            soft_cap: None,
            head,
            score: values.many(LABELS * HIDDEN, -1.0, 1.0),
        }
    }

    /// Returns hidden states of `tokens` tokens; that of token 0 points at the twins.
    fn hidden(&self, tokens: usize) -> Vec<f32> {
        let mut values = Values::new(self.demands.precision, 31);
        let mut h = values.many(tokens * HIDDEN, -2.0, 2.0);
        for (h, w) in h.iter_mut().zip(&self.head[TWINS.0 * HIDDEN..][..HIDDEN]) {
            // A power of two: exact in every type.
            *h = w * 2.0;
        }
        h
    }

    /// Runs the heads of `step` on hidden states `h`, one row of [`HIDDEN`] per token.
    fn run<D: ConformanceDevice>(
        &self,
        open: &impl Fn(&Spec) -> D,
        step: ForwardBatch,
        h: &[f32],
    ) -> StepOutput {
        let tokens = step.num_tokens();
        assert_eq!(h.len(), tokens * HIDDEN);
        let spec = spec(HIDDEN, SMALL_SHAPE, tokens, 2 * h.len());
        let valid = step.validate(&spec.capacity);
        assert_eq!(valid, Ok(()), "a malformed case");
        let mut device = open(&spec);
        let mut loader = device.loader();
        let head = matrix(&mut loader, &self.head, VOCAB);
        let score = matrix(&mut loader, &self.score, LABELS);
        device.step(step, &mut |ops, inputs| {
            let mut hidden = ops.alloc(tokens, HIDDEN).expect("room");
            D::write(ops, &mut hidden, h);
            let outputs = ops.num_outputs(inputs);
            let mut read = ops.alloc(outputs, HIDDEN).expect("room");
            ops.gather_rows(inputs, &hidden, 0..tokens, &mut read)
                .expect("gather_rows runs");
            ops.pooling_heads(inputs, &read, &[])
                .expect("pooling_heads runs");
            ops.vocabulary_heads(inputs, &read, &head, self.soft_cap)
                .expect("vocabulary_heads runs");
            ops.class_heads(inputs, &read, &score)
                .expect("class_heads runs");
        })
    }

    /// Returns the one-shot results of rows over one prompt of the states `h`.
    fn rows<D: ConformanceDevice>(
        &self,
        open: &impl Fn(&Spec) -> D,
        h: &[f32],
        rows: Vec<OutputRow>,
    ) -> Vec<RowOutput> {
        let n = rows.len();
        let output = self.run(open, batch(h.len() / HIDDEN, rows), h);
        assert_eq!(output.oneshot.len(), n, "one result per row");
        output.oneshot
    }

    fn logits(&self, h: &[f32], token: usize) -> Logits {
        let h = wide(&h[token * HIDDEN..][..HIDDEN]);
        // A bounded logit is off by its own rounding as well.
        let of_cap = SUM * self.soft_cap.map_or(0.0, f64::from);
        let logits = linear(&h, &wide(&self.head), &[]).into_iter();
        let logits = logits.map(|(z, m)| (naive::soft_cap(z, self.soft_cap), SUM * m + of_cap));
        let (z, bound) = logits.unzip();
        Logits { z, bound }
    }

    fn label_scores<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        let h = self.hidden(17);
        let labels: Arc<[u32]> = Arc::from([5, 330, 0, 5, 17, 200]);
        let mut rows = Vec::new();
        for t in 0..17 {
            for normalise in [Normalise::OverLabels, Normalise::OverVocab] {
                let labels = Arc::clone(&labels);
                rows.push(row(t..t + 1, OutputHead::LabelScores { labels, normalise }));
            }
        }
        let got = self.rows(open, &h, rows);
        for (i, got) in got.iter().enumerate() {
            let t = i / 2;
            let RowOutput::LabelScores(LabelScores {
                logits: got,
                log_sum_exp,
            }) = got
            else {
                panic!("label scores, not {got:?}");
            };
            let logits = self.logits(&h, t);
            let expected = labels
                .iter()
                .map(|&l| (logits.z[idx(l)], logits.bound[idx(l)]));
            assert_within(|| format!("label scores, token {t}"), got, expected);
            assert_eq!(got[0].to_bits(), got[3].to_bits(), "a repeated label");
            match log_sum_exp {
                None => assert_eq!(i % 2, 0, "the log-sum-exp was asked for"),
                Some(lse) => {
                    assert_eq!(i % 2, 1, "the log-sum-exp was not asked for");
                    let expected = naive::log_sum_exp(&logits.z);
                    let bound = LOG_SUM_EXP + logits.slack();
                    assert_within(
                        || format!("log-sum-exp, token {t}"),
                        &[*lse],
                        [(expected, bound)],
                    );
                }
            }
        }
    }

    fn logprobs<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        const TOKENS: usize = 20;
        let h = self.hidden(TOKENS);
        let targets: Vec<u32> = (0..TOKENS).map(|t| id(t * 53 % VOCAB)).collect();
        let twins = vec![id(TWINS.1), id(TWINS.0)];
        let cases = [
            (0, targets, 5),
            // The tie's second member has the rank of the first. Positions are shared with above.
            (0, twins, 0),
            (7, vec![330, 0], id(VOCAB)),
        ];
        let rows = cases.clone().map(|(first, targets, top)| {
            let positions = first..first + targets.len();
            row(positions, OutputHead::Logprobs { targets, top })
        });
        let got = self.rows(open, &h, rows.into());
        for (got, (first, targets, top)) in got.iter().zip(cases) {
            let RowOutput::Logprobs {
                first_position,
                entries,
            } = got
            else {
                panic!("log-probabilities, not {got:?}");
            };
            assert_eq!(*first_position, id(first + 1), "first scored position");
            assert_eq!(entries.len(), targets.len());
            for (i, (entry, &target)) in entries.iter().zip(&targets).enumerate() {
                let what = format!("log-probabilities, position {}", first + i);
                check_entry(&what, entry, target, idx(top), &self.logits(&h, first + i));
            }
        }
        let RowOutput::Logprobs { entries, .. } = &got[1] else {
            panic!("log-probabilities, not {:?}", got[1]);
        };
        assert_eq!(entries[0].rank, 1, "a tie's rank counts larger logits only");
    }

    /// Checks that a row whose numbers are not finite fails alone.
    fn non_finite_rows<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        let clean = self.hidden(4);
        let mut h = clean.clone();
        h[HIDDEN + 5] = f32::NAN;
        h[2 * HIDDEN + 9] = f32::INFINITY;
        let heads = || {
            vec![
                OutputHead::Sample(sample(SamplingParams::default())),
                OutputHead::Sample(sample(SamplingParams {
                    temperature: 1.0,
                    ..SamplingParams::default()
                })),
                OutputHead::LabelScores {
                    labels: Arc::from([1, 2]),
                    normalise: Normalise::OverVocab,
                },
                OutputHead::LabelScores {
                    labels: Arc::from([1, 2]),
                    normalise: Normalise::OverLabels,
                },
                OutputHead::Logprobs {
                    targets: vec![4],
                    top: 1,
                },
                OutputHead::Embed {
                    pooling: Pooling::Last,
                    normalise: true,
                    dimensions: None,
                },
                OutputHead::Classify,
                OutputHead::Tokens(TokenHead::Embed {
                    normalise: true,
                    dimensions: None,
                }),
                OutputHead::Tokens(TokenHead::Classify),
            ]
        };
        let rows = || {
            (0..4)
                .flat_map(|t| heads().into_iter().map(move |head| row(t..t + 1, head)))
                .collect::<Vec<_>>()
        };
        let expected = self.rows(open, &clean, rows());
        let got = self.rows(open, &h, rows());
        let per_token = heads().len();
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let (t, head) = (i / per_token, i % per_token);
            if matches!(t, 1 | 2) {
                assert!(
                    matches!(got, RowOutput::Failed(_)),
                    "head {head} of a row that is not finite gives {got:?}"
                );
            } else {
                assert!(
                    !matches!(got, RowOutput::Failed(_)),
                    "head {head} of a good row beside bad ones failed"
                );
                if self.demands.batch_invariant {
                    assert_eq!(got, expected, "head {head} of a good row beside bad ones");
                }
            }
        }
    }

    /// Checks that one-shot, prefill and decode rows come back in their own parts, in order.
    fn parts_of_a_mixed_step<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        let h = self.hidden(3 + 2 + 2);
        let mut prefill = one_segment(&[1; 2]);
        prefill.segments[0].residency = Residency::Keep(BlockSpan { start: 0, len: 1 });
        prefill.block_ids = vec![BlockId(5)];
        prefill.rows = vec![row(1..2, greedy_with_top(1))];
        // A second one-shot root reads its own position 0.
        let mut oneshot = one_segment(&[1; 3]);
        oneshot.segments[0].tokens = 0..2;
        oneshot.segments.push(Segment {
            parent: Some(SegmentIdx(0)),
            context_len: 2,
            ..root(2..3)
        });
        oneshot.rows = [2..3, 1..2]
            .map(|at| OutputRow {
                segment: SegmentIdx(1),
                ..row(at, greedy_with_top(1))
            })
            .into();
        let decode_row = |seq, start| DecodeRow {
            seq: SeqId(seq),
            token: TokenSource::Known(1),
            context_len: 0,
            blocks: BlockSpan { start, len: 1 },
            sample: greedy(Some(1)),
        };
        let step = ForwardBatch::Mixed {
            oneshot,
            prefill,
            decode: DecodeBatch {
                rows: vec![decode_row(1, 1), decode_row(2, 0)],
                block_ids: vec![BlockId(8), BlockId(9)],
            },
        };
        let output = self.run(open, step, &h);
        let parts = [
            ("one-shot", &output.oneshot, vec![2, 1]),
            ("prefill", &output.prefill, vec![4]),
            ("decode", &output.decode, vec![5, 6]),
        ];
        for (part, rows, tokens) in parts {
            assert_eq!(rows.len(), tokens.len(), "{part} rows");
            for (got, t) in rows.iter().zip(tokens) {
                let logits = self.logits(&h, t);
                let token = sampled(got)[0].token;
                assert_eq!(idx(token), logits.best(|_| true), "{part} row of token {t}");
            }
        }
    }
}

fn sampled(output: &RowOutput) -> &[SampledToken] {
    match output {
        RowOutput::Sampled(tokens) => tokens,
        other => panic!("sampled tokens, not {other:?}"),
    }
}

fn check_logprob(what: &str, token: u32, got: f32, logits: &Logits) {
    let bound = LOG_SUM_EXP + logits.bound[idx(token)] + logits.slack();
    assert_within(
        || format!("{what}: log-probability of {token}"),
        &[got],
        [(logits.logprob(idx(token)), bound)],
    );
}

/// Checks that `top` lists distinct tokens, best first, ties by id, none of them unlikelier than
/// one left out.
fn check_top(what: &str, top: &[TokenLogprob], wanted: usize, logits: &Logits) {
    assert_eq!(
        top.len(),
        wanted.min(VOCAB),
        "{what}: length of the top list"
    );
    for t in top {
        check_logprob(what, t.token, t.logprob, logits);
    }
    for pair in top.windows(2) {
        let in_order = pair[0].logprob > pair[1].logprob
            || (pair[0].logprob == pair[1].logprob && pair[0].token < pair[1].token);
        assert!(in_order, "{what}: {pair:?} are out of order");
    }
    let listed: Vec<usize> = top.iter().map(|t| idx(t.token)).collect();
    if let Some(&last) = listed.last()
        && listed.len() < VOCAB
    {
        let missed = logits.best(|i| !listed.contains(&i));
        assert!(
            logits.z[missed] <= logits.z[last] + logits.slack(),
            "{what}: {missed} is likelier than {last} and not listed"
        );
    }
}

fn check_entry(what: &str, entry: &PositionLogprobs, target: u32, top: usize, logits: &Logits) {
    assert_eq!(entry.token, target, "{what}: token");
    check_logprob(what, target, entry.logprob, logits);
    check_top(what, &entry.top, top, logits);
    let z = logits.z[idx(target)];
    let above = |margin: f64| {
        let larger = logits.z.iter().filter(|&&other| other > z + margin);
        id(1 + larger.count())
    };
    let slack = logits.slack();
    assert!(
        (above(slack)..=above(-slack)).contains(&entry.rank),
        "{what}: rank {} of {target}, expected {}",
        entry.rank,
        above(0.0)
    );
}
