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
    /// The places of the lists of allowed tokens.
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

    /// Takes room for the rows that the host reads whole.
    fn take_long(&self, vocab: usize, results: &mut Results) -> Option<Vec<Option<Part>>> {
        let take = |long: &Option<_>| match long {
            Some(_) => results.take(vocab).map(Some),
            None => Some(None),
        };
        self.long.iter().map(take).collect()
    }

    /// Returns the place of each row's results.
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

/// The lists of a group, as they are gathered from its items.
#[derive(Default)]
struct GroupLists {
    /// Output of each row of logits.
    index: Vec<i32>,
    adjust: Vec<AdjustRow>,
    sample: Vec<SampleRow>,
    /// Targets of `given`.
    targets: Vec<i32>,
    /// Scores of sampled tokens.
    drawn: ScoreRows,
    /// Scores of given tokens.
    given: ScoreRows,
    /// Number of tokens to sample.
    draws: usize,
    /// The sampling rows: for each its row of the step, its index in `sample`, its first token and
    /// its number of tokens.
    sampled: Vec<(usize, usize, usize, usize)>,
    /// True if some row of logits has another use than one choice of its likeliest token.
    is_not_greedy: bool,
}

/// The parts of a step's results that a group writes.
struct GroupParts {
    ids: Part,
    status: Part,
    drawn: ScoreParts,
    given: ScoreParts,
    drawn_long: Vec<Option<Part>>,
    given_long: Vec<Option<Part>>,
}

impl GroupLists {
    /// Takes the parts, if the results have room for all.
    fn take(&self, vocab: usize, results: &mut Results) -> Option<GroupParts> {
        Some(GroupParts {
            ids: results.take(self.draws)?,
            status: results.take(self.sample.len())?,
            drawn: self.drawn.take(results)?,
            given: self.given.take(results)?,
            drawn_long: self.drawn.take_long(vocab, results)?,
            given_long: self.given.take_long(vocab, results)?,
        })
    }
}

impl Builder<'_> {
    /// Returns false if the results have no room for the group.
    pub(super) fn add(
        mut self,
        items: &[Item<'_>],
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<bool, Error> {
        let lists = self.gather(items);
        let Some(parts) = lists.take(self.logits.vocab, results) else {
            return Ok(false);
        };
        self.place(&lists, &parts);
        let long = lists.drawn.long.iter().chain(&lists.given.long);
        let copies = long
            .zip(parts.drawn_long.iter().chain(&parts.given_long))
            .filter_map(|(long, part)| Some((long.as_ref()?.0, (*part)?)));
        self.logits.groups.push(Group {
            index: metadata.push(&lists.index)?,
            len: lists.index.len(),
            targets: metadata.push(&lists.targets)?,
            adjust: metadata.push(&lists.adjust)?,
            choose: match lists.is_not_greedy {
                false => Choose::Argmax,
                true => Choose::Sample(metadata.push(&lists.sample)?),
            },
            ids: parts.ids,
            status: parts.status,
            drawn: Scores {
                rows: metadata.push(&lists.drawn.rows)?,
                parts: parts.drawn,
            },
            given: Scores {
                rows: metadata.push(&lists.given.rows)?,
                parts: parts.given,
            },
            copies: copies.collect(),
        });
        Ok(true)
    }

    fn gather(&mut self, items: &[Item<'_>]) -> GroupLists {
        let mut lists = GroupLists::default();
        for item in items {
            if lists.index.last() != Some(&item.output.cast_signed()) {
                lists.index.push(item.output.cast_signed());
            }
            match item.want {
                Want::Score { target, top } => {
                    lists.is_not_greedy = true;
                    let row = lists.index.len() - 1;
                    let raw = self.logits.row(&self.logits.logits, row);
                    let top = (top as usize).min(self.logits.vocab);
                    let at = lists.targets.len();
                    lists.given.push(item.row, (row, raw), at..at + 1, top);
                    lists.targets.push(target.cast_signed());
                }
                Want::Sample(head) => self.gather_sample(item.row, head, &mut lists),
            }
        }
        lists
    }

    /// Adds a use of the latest row of logits that samples.
    fn gather_sample(&mut self, row: usize, head: &SampleHead, lists: &mut GroupLists) {
        let last = lists.index.len() - 1;
        let raw = self.logits.row(&self.logits.logits, last);
        lists.is_not_greedy |= !takes_likeliest(head) || last != lists.sample.len();
        let mut from = raw;
        if changes(head) {
            from = self.logits.row(&self.logits.adjusted, lists.adjust.len());
            lists.adjust.push(self.adjust(row, head, raw, from));
        }
        let draws = head.draws as usize;
        lists
            .sampled
            .push((row, lists.sample.len(), lists.draws, draws));
        lists.sample.push(sample_row(head, from, raw, lists.draws));
        if let Some(top) = head.top_logprobs {
            let top = (top as usize).min(self.logits.vocab);
            let range = lists.draws..lists.draws + draws;
            lists.drawn.push(row, (last, raw), range, top);
        }
        lists.draws += draws;
    }

    /// Notes where the results of each row of the step are.
    fn place(&mut self, lists: &GroupLists, parts: &GroupParts) {
        let drawn_scores: BTreeMap<usize, Scored> =
            lists.drawn.places(parts.drawn, &parts.drawn_long).collect();
        for &(row, index, first, len) in &lists.sampled {
            let at = Sampled {
                status: Part {
                    at: parts.status.at + index,
                    len: 1,
                },
                ids: Part {
                    at: parts.ids.at + first,
                    len,
                },
                scores: drawn_scores.get(&row).copied(),
            };
            self.logits.places.sampled.insert(row, at);
        }
        let scored = &mut self.logits.places.scored;
        for (row, place) in lists.given.places(parts.given, &parts.given_long) {
            scored.entry(row).or_default().push(place);
        }
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
