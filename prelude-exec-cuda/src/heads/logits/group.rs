//! Laying out one group of rows of logits.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use prelude_core::{SampleHead, TokenId};
use prelude_kernels::families::{AdjustRow, LogprobRow, SampleRow};

use super::{
    super::{
        masks::{AllMasks, Masks},
        results::{Part, Results},
        word,
    },
    Choose, Group, Item, Lists, Logits, Sampled, ScoreParts, Scored, Scores, Seen, Want, changes,
    items::identity,
};
use crate::{
    Error,
    memory::{metadata::Metadata, view::View},
};

/// Most likeliest tokens that the kernel lists. For more, the host reads the whole row.
const TOP_MAX: usize = 64;

/// Lays out one group.
pub(super) struct Builder<'a> {
    pub(super) logits: &'a mut Logits,
    pub(super) lists: &'a mut Lists<Vec<u32>>,
    /// Past tokens of each row, with how often.
    pub(super) seen: &'a mut Seen,
    /// Allowed and masked tokens of each row.
    pub(super) masks: &'a AllMasks,
    /// Where lists of allowed tokens were put.
    pub(super) allowed_at: &'a mut HashMap<(usize, usize), u32>,
}

/// Rows of one launch of `prompt_logprobs`, before there are places for its results.
#[derive(Default)]
struct ScoreRows {
    rows: Vec<LogprobRow>,
    /// Row of the step of each.
    of: Vec<usize>,
    /// Row of the group and number of likeliest tokens, where that is above [`TOP_MAX`].
    long: Vec<Option<(usize, usize)>>,
    targets: usize,
    tops: usize,
}

impl ScoreRows {
    /// `logits`: the row's number in the group, and the row; `targets`: a range of the launch's.
    fn push(&mut self, of: usize, logits: (usize, View<f32>), targets: Range<usize>, top: usize) {
        let listed = if top > TOP_MAX { 0 } else { top };
        self.rows.push(LogprobRow {
            logits: logits.1.ptr(),
            target_first: word(targets.start),
            target_count: word(targets.len()),
            top_first: word(self.tops),
            top_n: word(listed),
        });
        self.of.push(of);
        self.long.push((top > TOP_MAX).then_some((logits.0, top)));
        self.targets = self.targets.max(targets.end);
        self.tops += listed;
    }

    fn take(&self, results: &mut Results) -> Option<ScoreParts> {
        Some(ScoreParts {
            lp: results.take(self.targets)?,
            rank: results.take(self.targets)?,
            top_id: results.take(self.tops)?,
            top_lp: results.take(self.tops)?,
            log_sum_exp: results.take(self.rows.len())?,
        })
    }

    /// Places for the rows that the host reads.
    fn take_long(&self, vocab: usize, results: &mut Results) -> Option<Vec<Option<Part>>> {
        let take = |long: &Option<_>| match long {
            Some(_) => results.take(vocab).map(Some),
            None => Some(None),
        };
        self.long.iter().map(take).collect()
    }

    /// Where each row's results are.
    fn places(
        &self,
        parts: ScoreParts,
        long: &[Option<Part>],
    ) -> impl Iterator<Item = (usize, Scored)> {
        let within = |part: Part, first: u32, len: u32| Part {
            at: part.at + first as usize,
            len: len as usize,
        };
        let long = self.long.iter().zip(long);
        let rows = self.of.iter().zip(&self.rows).zip(long);
        rows.map(move |((&of, row), (long, part))| {
            let scored = Scored {
                lp: within(parts.lp, row.target_first, row.target_count),
                rank: within(parts.rank, row.target_first, row.target_count),
                top_id: within(parts.top_id, row.top_first, row.top_n),
                top_lp: within(parts.top_lp, row.top_first, row.top_n),
                whole: part.zip(long.map(|(_, top)| top)),
            };
            (of, scored)
        })
    }
}

impl Builder<'_> {
    /// False if the results have no room for it.
    pub(super) fn add(
        mut self,
        items: &[Item<'_>],
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<bool, Error> {
        let mut index: Vec<i32> = Vec::new();
        let (mut adjust, mut sample) = (Vec::new(), Vec::new());
        let (mut drawn, mut given) = (ScoreRows::default(), ScoreRows::default());
        let mut draws = 0;
        let mut sampled = Vec::new();
        // Whether each row of logits has one item, which takes its likeliest token.
        let mut is_greedy = true;
        let mut targets: Vec<i32> = Vec::new();
        for item in items {
            if index.last() != Some(&item.output.cast_signed()) {
                index.push(item.output.cast_signed());
            }
            let raw = self.logits.row(&self.logits.logits, index.len() - 1);
            match item.want {
                Want::Score { target, top } => {
                    is_greedy = false;
                    let top = (top as usize).min(self.logits.vocab);
                    let at = targets.len();
                    given.push(item.row, (index.len() - 1, raw), at..at + 1, top);
                    targets.push(target.cast_signed());
                }
                Want::Sample(head) => {
                    is_greedy &= takes_likeliest(head) && index.len() == sample.len() + 1;
                    let mut from = raw;
                    if changes(head) {
                        from = self.logits.row(&self.logits.adjusted, adjust.len());
                        adjust.push(self.adjust(item.row, head, raw, from));
                    }
                    sampled.push((item.row, sample.len(), draws, head.draws as usize));
                    sample.push(sample_row(head, from, raw, draws));
                    if let Some(top) = head.top_logprobs {
                        let top = (top as usize).min(self.logits.vocab);
                        let range = draws..draws + head.draws as usize;
                        drawn.push(item.row, (index.len() - 1, raw), range, top);
                    }
                    draws += head.draws as usize;
                }
            }
        }
        let parts = (|| {
            Some((
                results.take(draws)?,
                results.take(sample.len())?,
                drawn.take(results)?,
                given.take(results)?,
                drawn.take_long(self.logits.vocab, results)?,
                given.take_long(self.logits.vocab, results)?,
            ))
        })();
        let Some((ids, status, drawn_parts, given_parts, drawn_long, given_long)) = parts else {
            return Ok(false);
        };
        let drawn_scores: BTreeMap<usize, Scored> =
            drawn.places(drawn_parts, &drawn_long).collect();
        for (row, place, first, len) in sampled {
            let at = Sampled {
                status: Part {
                    at: status.at + place,
                    len: 1,
                },
                ids: Part {
                    at: ids.at + first,
                    len,
                },
                scores: drawn_scores.get(&row).copied(),
            };
            self.logits.places.sampled.insert(row, at);
        }
        for (row, place) in given.places(given_parts, &given_long) {
            self.logits
                .places
                .scored
                .entry(row)
                .or_default()
                .push(place);
        }
        let long = drawn.long.iter().chain(&given.long);
        let copies = long
            .zip(drawn_long.iter().chain(&given_long))
            .filter_map(|(long, part)| Some((long.as_ref()?.0, (*part)?)));
        self.logits.groups.push(Group {
            index: metadata.push(&index)?,
            len: index.len(),
            targets: metadata.push(&targets)?,
            adjust: metadata.push(&adjust)?,
            choose: match is_greedy {
                true => Choose::Argmax,
                false => Choose::Sample(metadata.push(&sample)?),
            },
            ids,
            status,
            drawn: Scores {
                rows: metadata.push(&drawn.rows)?,
                parts: drawn_parts,
            },
            given: Scores {
                rows: metadata.push(&given.rows)?,
                parts: given_parts,
            },
            copies: copies.collect(),
        });
        Ok(true)
    }

    fn adjust(
        &mut self,
        row: usize,
        head: &SampleHead,
        logits: View<f32>,
        out: View<f32>,
    ) -> AdjustRow {
        let params = &*head.sampling;
        let seen = self.seen.remove(&row).unwrap_or_default();
        let lists = &mut *self.lists;
        let Masks { allowed, masked } = &self.masks[&row];
        let allowed = allowed.as_deref();
        let allowed_first = match allowed {
            None => 0,
            Some(list) => *self.allowed_at.entry(identity(list)).or_insert_with(|| {
                let first = word(lists.allowed.len());
                lists.allowed.extend(list);
                first
            }),
        };
        let row = AdjustRow {
            logits: logits.ptr(),
            out: out.ptr(),
            seen_first: word(lists.seen.len() / 2),
            seen_count: word(seen.len() / 2),
            bias_first: word(lists.bias.len() / 2),
            bias_count: word(params.logit_bias.len()),
            allowed_first,
            allowed_count: word(allowed.map_or(0, <[TokenId]>::len)),
            masked_first: word(lists.masked.len()),
            masked_count: word(masked.len()),
            repetition: params.repetition_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
            allows_all: u32::from(allowed.is_none()),
        };
        lists.seen.extend(seen);
        let bias = params.logit_bias.iter();
        lists
            .bias
            .extend(bias.flat_map(|&(id, b)| [id, b.to_bits()]));
        lists.masked.extend(&**masked);
        row
    }
}

/// Returns true if a row's rules say nothing but "the likeliest token, once".
fn takes_likeliest(head: &SampleHead) -> bool {
    head.sampling.temperature == 0.0 && head.draws == 1 && !changes(head)
}

fn sample_row(head: &SampleHead, from: View<f32>, raw: View<f32>, first: usize) -> SampleRow {
    let params = &*head.sampling;
    SampleRow {
        logits: from.ptr(),
        raw: raw.ptr(),
        seed: params.seed,
        output_position: head.output_position,
        choice: head.choice,
        draws: head.draws,
        first: word(first),
        top_k: params.top_k,
        temperature: params.temperature,
        top_p: params.top_p,
        min_p: params.min_p,
    }
}
