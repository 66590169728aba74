//! Full rows of logits: sampling and log-probabilities.
//!
//! Rows of logits are computed in groups of bounded memory. What reads them, sampling rows and
//! scored positions, is sorted by output position and cut into the same groups; an output position
//! that more rows read than fit one group is computed again in the next.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
};

use half::bf16;
use kernels::families::{AdjustRow, LogprobRow, SampleRow, SampleStatus};
use prelude_core::{
    OutputHead, PositionLogprobs, RowOutput, SampleHead, SampledToken, TokenId, TokenLogprob,
};
use prelude_models::ModelConfig;

use super::{
    NO_LIST_ROOM, NO_ROOM, NOT_FINITE,
    results::{Part, Results},
    word,
};
use crate::{
    CudaConfig, Error, StepPlan,
    kernels::{
        elementwise,
        gemm::{Output, Products},
        launch::Launcher,
        vocabulary::{self, Adjust, Logprobs, Sample},
    },
    memory::{
        metadata::{Field, Metadata},
        space::{Buffer, Space},
        view::View,
    },
    plan::PlanRow,
};

/// Rows of logits start at multiples of this many elements.
const STRIDE: usize = 64;
/// Most likeliest tokens that the kernel lists. For more, the host reads the whole row.
const TOP_MAX: usize = 64;
/// What a sampling row gets whose masks leave nothing.
const NOTHING_ALLOWED: &str = "no token is allowed here";

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
    /// Where the numbers of each row of the plan are.
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
    sample: Field<SampleRow>,
    ids: Part,
    status: Part,
    /// Log-probabilities of drawn tokens.
    drawn: Scores,
    /// Log-probabilities of given tokens.
    given: Scores,
    /// Rows of logits that the host reads, and where they go.
    copies: Vec<(usize, Part)>,
}

/// One launch of `prompt_logprobs`.
#[derive(Debug)]
struct Scores {
    rows: Field<LogprobRow>,
    parts: ScoreParts,
}

/// Where its results are.
#[derive(Clone, Copy, Debug)]
struct ScoreParts {
    lp: Part,
    rank: Part,
    top_id: Part,
    top_lp: Part,
    log_sum_exp: Part,
}

/// Where a sampling row's numbers are.
#[derive(Clone, Copy, Debug)]
struct Sampled {
    status: Part,
    ids: Part,
    scores: Option<Scored>,
}

/// Where scores of one or more tokens under one row of logits are.
#[derive(Clone, Copy, Debug)]
struct Scored {
    lp: Part,
    rank: Part,
    top_id: Part,
    top_lp: Part,
    /// The row of logits itself, and how many of its likeliest tokens are wanted.
    whole: Option<(Part, usize)>,
}

/// One use of one row of logits.
#[derive(Clone, Copy)]
struct Item<'a> {
    row: usize,
    output: u32,
    want: Want<'a>,
}

#[derive(Clone, Copy)]
enum Want<'a> {
    Sample(&'a SampleHead),
    Score { target: TokenId, top: u32 },
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
            sampled: BTreeMap::new(),
            scored: BTreeMap::new(),
        })
    }

    pub(super) fn begin(
        &mut self,
        plan: &mut StepPlan,
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        self.groups.clear();
        self.sampled.clear();
        self.scored.clear();
        let mut refused = Vec::new();
        let mut lists = Lists::default();
        let mut items = items(plan);
        // Stable: the positions of one row stay in order, since equal outputs are one position.
        items.sort_by_key(|item| item.output);
        let mut seen = seen(&items);
        let room = metadata.room().saturating_sub(self.fixed_bytes(&items));
        let too_long = too_long(&items, &seen, room);
        items.retain(|item| !too_long.contains(&item.row));
        refused.extend(too_long.into_iter().map(|row| (row, NO_LIST_ROOM)));
        let mut allowed_at = HashMap::new();
        let mut rest = &items[..];
        while !rest.is_empty() {
            let (group, tail) = rest.split_at(self.group_len(rest));
            rest = tail;
            let builder = Builder {
                logits: self,
                lists: &mut lists,
                seen: &mut seen,
                allowed_at: &mut allowed_at,
            };
            if !builder.add(group, results, metadata)? {
                refused.extend(group.iter().map(|item| (item.row, NO_ROOM)));
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
            .scored
            .keys()
            .map(|&row| (row, by_output(plan.outputs_of(&plan.rows[row]))))
            .collect();
        for (row, order) in orders {
            let found = self.scored.entry(row).or_default();
            if found.len() == order.len() {
                *found = order.iter().map(|&at| found[at]).collect();
            }
        }
        for (row, why) in refused {
            plan.rows[row].refused = Some(why);
        }
        Ok(())
    }

    /// Most bytes of metadata that the items take beside their lists.
    fn fixed_bytes(&self, items: &[Item<'_>]) -> usize {
        let mut groups = 0;
        let mut rest = items;
        while !rest.is_empty() {
            rest = &rest[self.group_len(rest)..];
            groups += 1;
        }
        let item = |item: &Item<'_>| {
            let row = match item.want {
                Want::Sample(_) => size_of::<AdjustRow>() + size_of::<SampleRow>(),
                Want::Score { .. } => size_of::<i32>(),
            };
            row + size_of::<i32>() + size_of::<LogprobRow>()
        };
        // Six arrays of each group, and the four lists.
        items.iter().map(item).sum::<usize>() + (6 * groups + 4) * Metadata::PADDING
    }

    /// How many of the items fit one group.
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

    /// Row `i` of a buffer of logits.
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
        head: View<bf16>,
    ) -> Result<(), Error> {
        for group in &self.groups {
            let states = self.states.view(0, group.len, self.hidden);
            elementwise::gather_rows(launcher, metadata.view(group.index), hidden, states)?;
            let logits = self.logits.view::<f32>(0, group.len, self.stride);
            let output = Output::Logits(logits.columns(0..self.vocab));
            products.multiply(launcher, states, head, None, output)?;
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
            Sample {
                rows: metadata.view(group.sample),
                logits,
                adjusted,
                ids,
                status: results.view(group.status, 1),
                vocab: self.vocab,
            }
            .launch(launcher)?;
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

    pub(super) fn read(&self, row: &PlanRow, index: usize, results: &Results) -> RowOutput {
        match &row.head {
            OutputHead::Sample(_) => {
                let Some(at) = self.sampled.get(&index) else {
                    return RowOutput::Failed(NO_ROOM);
                };
                read_sampled(at, results)
            }
            OutputHead::Logprobs { targets, .. } => {
                let scored = self.scored.get(&index).map_or(&[][..], Vec::as_slice);
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
            _ => RowOutput::Failed(NO_ROOM),
        }
    }
}

/// Where each position of a row stands among its positions sorted by output.
fn by_output(outputs: &[u32]) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..outputs.len()).collect();
    sorted.sort_by_key(|&i| outputs[i]);
    let mut order = vec![0; outputs.len()];
    for (at, i) in sorted.into_iter().enumerate() {
        order[i] = at;
    }
    order
}

/// Every use of a full row of logits.
fn items(plan: &StepPlan) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    for (row, planned) in plan.rows.iter().enumerate() {
        if planned.refused.is_some() {
            continue;
        }
        let outputs = plan.outputs_of(planned);
        match &planned.head {
            OutputHead::Sample(head) => items.push(Item {
                row,
                output: outputs[0],
                want: Want::Sample(head),
            }),
            OutputHead::Logprobs { targets, top } => {
                let scores = outputs.iter().zip(targets).map(|(&output, &target)| Item {
                    row,
                    output,
                    want: Want::Score { target, top: *top },
                });
                items.extend(scores);
            }
            OutputHead::LabelScores { .. } | OutputHead::Embed { .. } | OutputHead::Classify => {}
        }
    }
    items
}

/// Whether penalties, bias or masks do anything.
fn changes(head: &SampleHead) -> bool {
    let params = &head.sampling;
    head.history.is_some()
        || !params.logit_bias.is_empty()
        || params.allowed_token_ids.is_some()
        || head.masks_stops() && !params.stop_token_ids.is_empty()
}

/// Past tokens and how often each was put out, one after the other, of each row that has a past.
fn seen(items: &[Item<'_>]) -> BTreeMap<usize, Vec<u32>> {
    let mut all = BTreeMap::new();
    for item in items {
        let Want::Sample(SampleHead {
            history: Some(history),
            ..
        }) = item.want
        else {
            continue;
        };
        let mut seen: BTreeMap<TokenId, u32> = BTreeMap::new();
        for &id in &*history.prompt {
            seen.entry(id).or_default();
        }
        for &id in &history.output {
            *seen.entry(id).or_default() += 1;
        }
        all.insert(
            item.row,
            seen.into_iter().flat_map(|(id, n)| [id, n]).collect(),
        );
    }
    all
}

/// Tokens that stop a row's text and may not be drawn yet.
fn masked(head: &SampleHead) -> &[TokenId] {
    match head.masks_stops() {
        true => &head.sampling.stop_token_ids,
        false => &[],
    }
}

/// A list by where it is: rows of one request share theirs, and it is sent once.
fn identity(list: &[TokenId]) -> (usize, usize) {
    (list.as_ptr().addr(), list.len())
}

/// Rows whose lists do not fit `room` bytes. Short lists go first, so that one caller's long one
/// costs no other its place.
fn too_long(
    items: &[Item<'_>],
    seen: &BTreeMap<usize, Vec<u32>>,
    mut room: usize,
) -> BTreeSet<usize> {
    let mut rows = Vec::new();
    for item in items {
        if let Want::Sample(head) = item.want {
            let params = &*head.sampling;
            let allowed = params.allowed_token_ids.as_deref();
            let own = seen.get(&item.row).map_or(0, Vec::len)
                + 2 * params.logit_bias.len()
                + masked(head).len();
            let all = own + allowed.map_or(0, <[TokenId]>::len);
            rows.push((all, own, item.row, allowed.map(identity)));
        }
    }
    rows.sort_unstable();
    let mut refused = BTreeSet::new();
    let mut sent = BTreeSet::new();
    for (all, own, row, allowed) in rows {
        let shared = allowed.is_some_and(|list| sent.contains(&list));
        let bytes = size_of::<u32>() * if shared { own } else { all };
        match room.checked_sub(bytes) {
            Some(left) => {
                room = left;
                sent.extend(allowed);
            }
            None => {
                refused.insert(row);
            }
        }
    }
    refused
}

/// Lays out one group.
struct Builder<'a> {
    logits: &'a mut Logits,
    lists: &'a mut Lists<Vec<u32>>,
    /// Past tokens of each row, with how often.
    seen: &'a mut BTreeMap<usize, Vec<u32>>,
    /// Where lists of allowed tokens were put.
    allowed_at: &'a mut HashMap<(usize, usize), u32>,
}

/// Rows of one launch of `prompt_logprobs`, before there are places for its results.
#[derive(Default)]
struct ScoreRows {
    rows: Vec<LogprobRow>,
    /// Row of the plan of each.
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
    fn add(
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
        let mut targets: Vec<i32> = Vec::new();
        for item in items {
            if index.last() != Some(&item.output.cast_signed()) {
                index.push(item.output.cast_signed());
            }
            let raw = self.logits.row(&self.logits.logits, index.len() - 1);
            match item.want {
                Want::Score { target, top } => {
                    let top = (top as usize).min(self.logits.vocab);
                    let at = targets.len();
                    given.push(item.row, (index.len() - 1, raw), at..at + 1, top);
                    targets.push(target.cast_signed());
                }
                Want::Sample(head) => {
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
            self.logits.sampled.insert(row, at);
        }
        for (row, place) in given.places(given_parts, &given_long) {
            self.logits.scored.entry(row).or_default().push(place);
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
            sample: metadata.push(&sample)?,
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
        let allowed = params.allowed_token_ids.as_deref();
        let masked = masked(head);
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
        lists.masked.extend(masked);
        row
    }
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

fn read_sampled(at: &Sampled, results: &Results) -> RowOutput {
    let status = results.words(at.status).next();
    match status.and_then(SampleStatus::from_code) {
        Some(SampleStatus::Sampled) => {}
        Some(SampleStatus::NothingAllowed) => return RowOutput::Failed(NOTHING_ALLOWED),
        _ => return RowOutput::Failed(NOT_FINITE),
    }
    let ids = results.words(at.ids);
    let Some(scores) = &at.scores else {
        let plain = |token| SampledToken {
            token,
            logprob: None,
            top: Vec::new(),
        };
        return RowOutput::Sampled(ids.map(plain).collect());
    };
    if let Some((part, top)) = scores.whole {
        let row = Whole::new(results.floats(part).collect());
        let top = row.top(top);
        let tokens = ids.map(|token| SampledToken {
            token,
            logprob: Some(row.logprob(token)),
            top: top.clone(),
        });
        return RowOutput::Sampled(tokens.collect());
    }
    let top = read_top(scores, results);
    let tokens = ids
        .zip(results.floats(scores.lp))
        .map(|(token, lp)| SampledToken {
            token,
            logprob: Some(lp),
            top: top.clone(),
        });
    RowOutput::Sampled(tokens.collect())
}

/// A whole row of finite logits, for lists longer than the kernel's.
struct Whole {
    logits: Vec<f32>,
    log_sum_exp: f64,
}

impl Whole {
    fn new(logits: Vec<f32>) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let max = f64::from(max);
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        Self {
            logits,
            log_sum_exp: max + sum.ln(),
        }
    }

    fn logprob(&self, token: TokenId) -> f32 {
        (f64::from(self.logits[token as usize]) - self.log_sum_exp) as f32
    }

    /// Best first, ties by smaller id.
    fn top(&self, n: usize) -> Vec<TokenLogprob> {
        let mut ids: Vec<TokenId> = (0..word(self.logits.len())).collect();
        ids.sort_by(|&a, &b| {
            let logit = |id: TokenId| self.logits[id as usize];
            logit(b).total_cmp(&logit(a)).then(a.cmp(&b))
        });
        let best = ids.into_iter().take(n);
        best.map(|token| TokenLogprob {
            token,
            logprob: self.logprob(token),
        })
        .collect()
    }
}

/// None if the row's numbers are not finite.
fn read_score(at: &Scored, token: TokenId, results: &Results) -> Option<PositionLogprobs> {
    let rank = results.words(at.rank).next().filter(|&rank| rank > 0)?;
    if let Some((part, top)) = at.whole {
        let row = Whole::new(results.floats(part).collect());
        return Some(PositionLogprobs {
            token,
            logprob: row.logprob(token),
            rank,
            top: row.top(top),
        });
    }
    Some(PositionLogprobs {
        token,
        logprob: results.floats(at.lp).next()?,
        rank,
        top: read_top(at, results),
    })
}

fn read_top(at: &Scored, results: &Results) -> Vec<TokenLogprob> {
    let entries = results.words(at.top_id).zip(results.floats(at.top_lp));
    entries
        .map(|(token, logprob)| TokenLogprob { token, logprob })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prelude_core::{
        BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor as _, ForwardBatch, SamplingParams,
        SeqId, StepId, TokenSource,
    };

    use super::*;
    use crate::{
        CudaExecutor,
        testing::{checkpoint, small},
    };

    /// Why rows that are sampled so are refused, with 40 KiB of metadata.
    fn refusals(sampling: &[&Arc<SamplingParams>]) -> Vec<Option<&'static str>> {
        let config = CudaConfig {
            metadata_bytes: 40 << 10,
            ..small()
        };
        let (mut executor, _) = CudaExecutor::recording(&checkpoint("demo-lm"), &config).unwrap();
        let mut batch = DecodeBatch::EMPTY;
        for (i, sampling) in (0..).zip(sampling) {
            batch.block_ids.push(BlockId(i));
            batch.rows.push(DecodeRow {
                seq: SeqId(u64::from(i)),
                token: TokenSource::Known(7),
                context_len: 3,
                blocks: BlockSpan { start: i, len: 1 },
                sample: SampleHead {
                    sampling: Arc::clone(sampling),
                    choice: 0,
                    draws: 1,
                    output_position: 0,
                    top_logprobs: None,
                    history: None,
                },
            });
        }
        executor
            .submit(StepId(0), ForwardBatch::Decode(batch))
            .unwrap();
        executor.plan().rows.iter().map(|row| row.refused).collect()
    }

    fn biased(n: u32) -> Arc<SamplingParams> {
        Arc::new(SamplingParams {
            logit_bias: (0..n).map(|id| (id, 1.0)).collect(),
            ..SamplingParams::default()
        })
    }

    #[test]
    fn long_lists_cost_no_other_row_its_place() {
        // 8 bytes an entry: one list of 4096 fits beside short ones, two do not.
        let (long, short) = (biased(4096), biased(20));
        let found = refusals(&[&long, &short, &long, &short]);
        assert_eq!((found[1], found[3]), (None, None));
        assert_eq!(
            [found[0], found[2]].iter().flatten().count(),
            1,
            "{found:?}"
        );
        assert!(found.contains(&Some(NO_LIST_ROOM)));
    }

    #[test]
    fn a_list_of_allowed_tokens_is_sent_once() {
        let allowed = |n| {
            Arc::new(SamplingParams {
                allowed_token_ids: Some((0..n).collect()),
                ..SamplingParams::default()
            })
        };
        // 16 KiB each.
        let (one, two, three) = (allowed(4096), allowed(4096), allowed(4096));
        assert_eq!(refusals(&[&one; 9]), [None; 9]);
        assert_eq!(refusals(&[&one, &two, &two, &one]), [None; 4]);
        let found = refusals(&[&one, &two, &three]);
        assert_eq!(found.iter().flatten().count(), 1, "{found:?}");
    }

    #[test]
    fn whole_rows_are_ranked_like_the_kernel_does() {
        let row = Whole::new(vec![1.0, 3.0, -2.0, 3.0]);
        let ids: Vec<_> = row.top(3).iter().map(|t| t.token).collect();
        assert_eq!(ids, [1, 3, 0]);
        let total: f64 = row.top(9).iter().map(|t| f64::from(t.logprob).exp()).sum();
        assert!((total - 1.0).abs() < 1e-6);
        assert_eq!(row.top(1)[0].logprob.to_bits(), row.logprob(1).to_bits());
    }

    #[test]
    fn positions_are_found_among_outputs() {
        assert_eq!(by_output(&[7, 2, 9]), [1, 0, 2]);
        assert_eq!(by_output(&[]), [0; 0]);
    }
}
