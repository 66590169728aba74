//! The heads of the device in f64: what it answers with.

use prelude_core::{LabelScores, Normalise, OutputHead, Pooling, RowOutput, TokenHead};

use super::{Fault, NaiveOps, NaiveStep, Rows, Weight};
use crate::{DenseModule, naive};

impl NaiveOps {
    /// Answers the rows that read logits over the vocabulary.
    pub(super) fn answer_by_vocabulary(
        &mut self,
        plan: &NaiveStep,
        hidden: &Rows,
        head: &Weight,
        soft_cap: Option<f32>,
    ) {
        let soft_cap = soft_cap.filter(|_| !self.has(Fault::ForgetsLogitCap));
        let handles = |head: &OutputHead| {
            !matches!(
                head,
                OutputHead::Embed { .. }
                    | OutputHead::Classify
                    | OutputHead::Tokens(_)
                    | OutputHead::States(_)
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
                OutputHead::Embed { .. }
                | OutputHead::Classify
                | OutputHead::Tokens(_)
                | OutputHead::States(_) => {
                    unreachable!("not handled")
                }
            }
        });
    }

    /// Answers the rows that pool texts.
    pub(super) fn pool_texts(
        &mut self,
        plan: &NaiveStep,
        hidden: &Rows,
        dense: &[DenseModule<Weight>],
    ) {
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
    }

    /// Answers the rows that want a vector of each token.
    pub(super) fn pool_tokens(&mut self, plan: &NaiveStep, hidden: &Rows) {
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
    }

    /// Answers the rows that want classes, of texts and of tokens.
    pub(super) fn classify(&mut self, plan: &NaiveStep, hidden: &Rows, score: &Weight) {
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
    }
}
