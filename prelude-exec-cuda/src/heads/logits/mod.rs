//! Full rows of logits: sampling and log-probabilities.
//!
//! Rows of logits are computed in groups of bounded memory. What reads them, sampling rows and
//! scored positions, is sorted by output position and cut into the same groups; an output position
//! that more rows read than fit one group is computed again in the next.
//!
//! | file | |
//! | --- | --- |
//! | `items` | what reads rows of logits |
//! | `group` | lays out one group |
//! | `read` | reads what it left |

mod group;
mod items;
mod read;

use std::collections::{BTreeMap, HashMap};

use half::bf16;
use prelude_core::{OutputHead, RowOutput};
use prelude_kernels::families::{AdjustRow, LogprobRow, SampleRow};
use prelude_models::{
    ModelConfig,
    step::{StepLayout, StepRow},
};

pub(super) use self::items::{Seen, seen};
use self::{
    group::Builder,
    items::{Item, Want, by_output, changes, items},
    read::{read_sampled, read_score},
};
use super::{
    NO_ROOM, NOT_FINITE,
    masks::AllMasks,
    results::{Part, Results},
};
use crate::{
    CudaConfig, Error,
    kernels::{
        elementwise,
        gemm::{ProductOutput, Products},
        launch::Launcher,
        vocabulary::{self, Adjust, Logprobs, Sample},
    },
    memory::{
        metadata::{Field, Metadata},
        space::{Buffer, Space},
        view::View,
    },
};

/// Rows of logits start at multiples of this many elements.
const STRIDE: usize = 64;

/// Rows that read full rows of logits.
#[derive(Debug)]
pub(super) struct Logits {
    vocab: usize,
    stride: usize,
    rows_max: usize,
    /// bf16 `[rows_max, H]`: the hidden states that a group's logits are computed from.
    states: Buffer,
    hidden: usize,
    /// f32 `[rows_max, stride]`.
    logits: Buffer,
    /// f32 `[rows_max, stride]`: rows after penalties, bias and masks.
    adjusted: Buffer,
    lists: Lists<Field<u32>>,
    groups: Vec<Group>,
    places: ResultParts,
}

/// The places of the numbers of each row of the step.
#[derive(Debug, Default)]
pub(super) struct ResultParts {
    sampled: BTreeMap<usize, Sampled>,
    scored: BTreeMap<usize, Vec<Scored>>,
}

/// Lists that sampling rows refer to, of all groups.
#[derive(Debug, Default)]
struct Lists<T> {
    seen: T,
    bias: T,
    allowed: T,
    masked: T,
}

/// Rows of logits that are in memory together, and what reads them.
#[derive(Debug)]
struct Group {
    index: Field<i32>,
    len: usize,
    /// Given tokens to score.
    targets: Field<i32>,
    adjust: Field<AdjustRow>,
    choose: Choose,
    ids: Part,
    status: Part,
    /// Log-probabilities of drawn tokens.
    drawn: Scores,
    /// Log-probabilities of given tokens.
    given: Scores,
    /// Rows of logits that the host reads, and where they go.
    copies: Vec<(usize, Part)>,
}

/// The rules by which a group's tokens are chosen.
#[derive(Clone, Copy, Debug)]
enum Choose {
    /// Tokens are sampled by each row's rules.
    Sample(Field<SampleRow>),
    /// The likeliest of each of the group's rows of logits, which is what their rules say.
    Argmax,
}

/// A launch of `prompt_logprobs`.
#[derive(Debug)]
struct Scores {
    rows: Field<LogprobRow>,
    parts: ScoreParts,
}

/// The places of the results of scores.
#[derive(Clone, Copy, Debug)]
struct ScoreParts {
    lp: Part,
    rank: Part,
    top_id: Part,
    top_lp: Part,
    log_sum_exp: Part,
}

/// The places of a sampling row's numbers.
#[derive(Clone, Copy, Debug)]
struct Sampled {
    status: Part,
    ids: Part,
    scores: Option<Scored>,
}

/// The places of the scores of one or more tokens under one row of logits.
#[derive(Clone, Copy, Debug)]
struct Scored {
    lp: Part,
    rank: Part,
    top_id: Part,
    top_lp: Part,
    /// The row of logits itself, and how many of its likeliest tokens are wanted.
    whole: Option<(Part, usize)>,
}

impl Logits {
    pub(super) fn new(
        space: &Space,
        model: &ModelConfig,
        config: &CudaConfig,
    ) -> Result<Self, Error> {
        let rows_max = config.logits_rows_max as usize;
        let stride = model.vocab_size.next_multiple_of(STRIDE);
        let logits_bytes = rows_max * stride * size_of::<f32>();
        let states_bytes = rows_max * model.hidden_size * size_of::<bf16>();
        Ok(Self {
            vocab: model.vocab_size,
            stride,
            rows_max,
            states: space.alloc("logits states", states_bytes)?,
            hidden: model.hidden_size,
            logits: space.alloc("logits", logits_bytes)?,
            adjusted: space.alloc("adjusted logits", logits_bytes)?,
            lists: Lists::default(),
            groups: Vec::new(),
            places: ResultParts::default(),
        })
    }

    /// Returns the bytes on the device.
    pub(super) const fn bytes(&self) -> usize {
        self.states.bytes() + self.logits.bytes() + self.adjusted.bytes()
    }

    /// Swaps where numbers of two steps are.
    pub(super) const fn exchange(&mut self, places: &mut ResultParts) {
        std::mem::swap(&mut self.places, places);
    }

    /// Returns the place on the device of the first token that a row draws.
    pub(super) fn drawn_at(&self, row: usize) -> Option<usize> {
        self.places.sampled.get(&row).map(|at| at.ids.at)
    }

    pub(super) fn begin(
        &mut self,
        layout: &mut StepLayout,
        mut seen: Seen,
        masks: &AllMasks,
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        self.groups.clear();
        self.places.sampled.clear();
        self.places.scored.clear();
        let mut refused = Vec::new();
        let mut lists = Lists::default();
        let mut items = items(layout);
        // Stable: the positions of one row stay in order, since equal outputs are one position.
        items.sort_by_key(|item| item.output);
        let mut allowed_at = HashMap::new();
        let mut rest = &items[..];
        while !rest.is_empty() {
            let (group, tail) = rest.split_at(self.group_len(rest));
            rest = tail;
            let builder = Builder {
                logits: self,
                lists: &mut lists,
                seen: &mut seen,
                masks,
                allowed_at: &mut allowed_at,
            };
            if !builder.add(group, results, metadata)? {
                refused.extend(group.iter().map(|item| item.row));
            }
        }
        self.lists = Lists {
            seen: metadata.push(&lists.seen)?,
            bias: metadata.push(&lists.bias)?,
            allowed: metadata.push(&lists.allowed)?,
            masked: metadata.push(&lists.masked)?,
        };
        // Outputs are numbered by first use: a row's positions need not have risen in them.
        let orders: Vec<(usize, Vec<usize>)> = self
            .places
            .scored
            .keys()
            .map(|&row| (row, by_output(layout.outputs_of(&layout.rows[row]))))
            .collect();
        for (row, order) in orders {
            let found = self.places.scored.entry(row).or_default();
            if found.len() == order.len() {
                *found = order.iter().map(|&at| found[at]).collect();
            }
        }
        for row in refused {
            layout.rows[row].refused = Some(NO_ROOM);
        }
        Ok(())
    }

    /// Returns the number of ids of the vocabulary.
    pub(super) const fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the number of rows of logits that are in memory together.
    pub(super) const fn group_rows(&self) -> usize {
        self.rows_max
    }

    /// Returns the number of items that fit one group.
    fn group_len(&self, items: &[Item<'_>]) -> usize {
        let (mut outputs, mut adjusted, mut last) = (0, 0, None);
        for (i, item) in items.iter().enumerate() {
            outputs += usize::from(last != Some(item.output));
            last = Some(item.output);
            adjusted += usize::from(matches!(item.want, Want::Sample(head) if changes(head)));
            if outputs > self.rows_max || adjusted > self.rows_max {
                return i;
            }
        }
        items.len()
    }

    /// Returns row `i` of a buffer of logits.
    fn row(&self, buffer: &Buffer, i: usize) -> View<f32> {
        buffer.view(i * self.stride * size_of::<f32>(), 1, self.vocab)
    }

    pub(super) fn launch(
        &self,
        launcher: &mut Launcher,
        products: &mut Products,
        metadata: &Metadata,
        results: &Results,
        hidden: View<bf16>,
        (head, cap): (View<bf16>, f32),
    ) -> Result<(), Error> {
        for group in &self.groups {
            let states = self.states.view(0, group.len, self.hidden);
            elementwise::gather_rows(launcher, metadata.view(group.index), hidden, states)?;
            let logits = self.logits.view::<f32>(0, group.len, self.stride);
            let output = ProductOutput::Logits(logits.columns(0..self.vocab));
            products.multiply(launcher, states, head, None, output)?;
            if cap > 0.0 {
                vocabulary::cap_logits(launcher, logits.columns(0..self.vocab), cap)?;
            }
            let adjusted = self.adjusted.view::<f32>(0, self.rows_max, self.stride);
            Adjust {
                rows: metadata.view(group.adjust),
                seen: metadata.view(self.lists.seen),
                bias: metadata.view(self.lists.bias),
                allowed: metadata.view(self.lists.allowed),
                masked: metadata.view(self.lists.masked),
                logits,
                out: adjusted,
                vocab: self.vocab,
            }
            .launch(launcher)?;
            let ids = results.view::<i32>(group.ids, 1);
            let status = results.view(group.status, 1);
            match group.choose {
                Choose::Argmax => {
                    let rows = logits.columns(0..self.vocab);
                    vocabulary::argmax(launcher, rows, ids, status)?;
                }
                Choose::Sample(rows) => Sample {
                    rows: metadata.view(rows),
                    logits,
                    adjusted,
                    ids,
                    status,
                    vocab: self.vocab,
                }
                .launch(launcher)?,
            }
            let scores = |scores: &Scores, targets| Logprobs {
                rows: metadata.view(scores.rows),
                targets,
                logits,
                lp: results.view(scores.parts.lp, 1),
                rank: results.view(scores.parts.rank, 1),
                top_id: results.view(scores.parts.top_id, 1),
                top_lp: results.view(scores.parts.top_lp, 1),
                log_sum_exp: results.view(scores.parts.log_sum_exp, 1),
                vocab: self.vocab,
            };
            vocabulary::logprobs(launcher, scores(&group.drawn, ids))?;
            vocabulary::logprobs(launcher, scores(&group.given, metadata.view(group.targets)))?;
            for &(row, part) in &group.copies {
                results.copy_from(part, &self.logits, row * self.stride)?;
            }
        }
        Ok(())
    }

    pub(super) fn read(&self, row: &StepRow, index: usize, results: &Results) -> RowOutput {
        match &row.head {
            OutputHead::Sample(_) => {
                let Some(at) = self.places.sampled.get(&index) else {
                    return RowOutput::NoRoom(NO_ROOM);
                };
                read_sampled(at, results)
            }
            OutputHead::Logprobs { targets, .. } => {
                let scored = self
                    .places
                    .scored
                    .get(&index)
                    .map_or(&[][..], Vec::as_slice);
                let entries = scored.iter().zip(targets);
                let entries: Option<Vec<_>> = entries
                    .map(|(at, &token)| read_score(at, token, results))
                    .collect();
                match entries {
                    Some(entries) => RowOutput::Logprobs {
                        first_position: row.first_position + 1,
                        entries,
                    },
                    None => RowOutput::Failed(NOT_FINITE),
                }
            }
            _ => RowOutput::NoRoom(NO_ROOM),
        }
    }
}
