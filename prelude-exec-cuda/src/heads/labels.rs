//! Logits of labels.
//!
//! Normalised over the labels alone, a row reads the labels' rows of the head and nothing else.
//! Normalised over the vocabulary, the whole head is read once for up to [`GROUP_ROWS`] rows, and
//! the logits of the vocabulary are never written.

use std::collections::BTreeMap;

use half::bf16;
use prelude_core::{LabelScores, OutputHead, RowOutput};
use prelude_models::step::StepLayout;

use super::{
    NO_ROOM, NOT_FINITE,
    results::{self, Part, Results},
    rows, wants_labels, word,
};
use crate::{
    Error,
    kernels::{
        heads::{self, LabelLogits},
        launch::Launcher,
    },
    memory::{
        metadata::{Field, Metadata},
        space::{Buffer, Space},
        view::View,
    },
};

/// Rows for which the head is read once: a tile of the kernel.
pub(super) const GROUP_ROWS: usize = 64;

/// Rows that want logits of labels.
#[derive(Debug)]
pub(super) struct Labels {
    /// `[slabs, GROUP_ROWS, 2]`: maximum and sum of each slab of the vocabulary.
    partial: Buffer,
    dots: Dots,
    groups: Vec<Group>,
    places: ResultParts,
}

/// The places of the numbers of each row of the step.
pub(super) type ResultParts = BTreeMap<usize, LabelParts>;

/// Products of single hidden states with single rows of the head.
#[derive(Debug, Default)]
struct Dots {
    rows: Field<u32>,
    ids: Field<u32>,
    out: Option<Part>,
}

/// Rows whose logits are summed over the vocabulary together.
#[derive(Debug)]
struct Group {
    rows: usize,
    index: Field<u32>,
    pair_rows: Field<u32>,
    pair_ids: Field<u32>,
    pair_outs: Field<u32>,
    out: Part,
    log_sum_exp: Part,
}

/// The places of a row's numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct LabelParts {
    logits: Part,
    log_sum_exp: Option<Part>,
}

impl Labels {
    pub(super) fn new(space: &Space, vocab: usize) -> Result<Self, Error> {
        let words = heads::label_slabs(vocab) * GROUP_ROWS * 2;
        Ok(Self {
            partial: space.alloc("label sums", words * size_of::<f32>())?,
            dots: Dots::default(),
            groups: Vec::new(),
            places: BTreeMap::new(),
        })
    }

    /// Returns the bytes on the device.
    pub(super) const fn bytes(&self) -> usize {
        self.partial.bytes()
    }

    /// Swaps where numbers of two steps are.
    pub(super) const fn exchange(&mut self, places: &mut ResultParts) {
        std::mem::swap(&mut self.places, places);
    }

    pub(super) fn begin(
        &mut self,
        layout: &mut StepLayout,
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        self.places.clear();
        self.groups.clear();
        self.begin_dots(layout, results, metadata)?;
        let all: Vec<usize> = rows(layout, |head| wants_labels(head, true))
            .map(|r| r.0)
            .collect();
        for group in all.chunks(GROUP_ROWS) {
            self.begin_group(group, layout, results, metadata)?;
        }
        Ok(())
    }

    fn begin_dots(
        &mut self,
        layout: &mut StepLayout,
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        let (mut states, mut ids) = (Vec::new(), Vec::new());
        let mut ranges = Vec::new();
        let mut refused = Vec::new();
        for (i, row) in rows(layout, |head| wants_labels(head, false)) {
            let labels = labels_of(&row.head);
            if ids.len() + labels.len() > results.room() {
                refused.push(i);
                continue;
            }
            ranges.push((i, ids.len()..ids.len() + labels.len()));
            states.extend(labels.iter().map(|_| layout.outputs_of(row)[0]));
            ids.extend_from_slice(labels);
        }
        for i in refused {
            layout.rows[i].refused = Some(NO_ROOM);
        }
        self.dots.out = results.take(ids.len());
        let first = self.dots.out.map_or(0, |out| out.at);
        for (i, range) in ranges {
            let logits = Part {
                at: first + range.start,
                len: range.len(),
            };
            let place = LabelParts {
                logits,
                log_sum_exp: None,
            };
            self.places.insert(i, place);
        }
        self.dots.rows = metadata.push(&states)?;
        self.dots.ids = metadata.push(&ids)?;
        Ok(())
    }

    fn begin_group(
        &mut self,
        group: &[usize],
        layout: &mut StepLayout,
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        // (id, row of the group, where in `out`), by id, as the kernel looks them up.
        let mut pairs: Vec<(u32, u32, u32)> = Vec::new();
        let mut index = Vec::new();
        let mut ranges = Vec::new();
        // Both parts of the results begin aligned.
        let room = results.room().saturating_sub(group.len() + results::ALIGN);
        let mut refused = Vec::new();
        for &i in group {
            let row = &layout.rows[i];
            let labels = labels_of(&row.head);
            let (r, first) = (index.len(), pairs.len());
            if first + labels.len() > room {
                refused.push(i);
                continue;
            }
            index.push(layout.outputs_of(row)[0]);
            let outs = word(first)..;
            pairs.extend(labels.iter().zip(outs).map(|(&id, out)| (id, word(r), out)));
            ranges.push((i, first..pairs.len()));
        }
        for i in refused {
            layout.rows[i].refused = Some(NO_ROOM);
        }
        let parts = results.take(pairs.len()).zip(results.take(index.len()));
        let Some((out, log_sum_exp)) = parts.filter(|_| !index.is_empty()) else {
            return Ok(());
        };
        for (r, (i, range)) in ranges.into_iter().enumerate() {
            let logits = Part {
                at: out.at + range.start,
                len: range.len(),
            };
            let log_sum_exp = Some(Part {
                at: log_sum_exp.at + r,
                len: 1,
            });
            let place = LabelParts {
                logits,
                log_sum_exp,
            };
            self.places.insert(i, place);
        }
        pairs.sort_unstable();
        let column = |f: fn(&(u32, u32, u32)) -> u32| pairs.iter().map(f).collect::<Vec<_>>();
        self.groups.push(Group {
            rows: index.len(),
            index: metadata.push(&index)?,
            pair_ids: metadata.push(&column(|p| p.0))?,
            pair_rows: metadata.push(&column(|p| p.1))?,
            pair_outs: metadata.push(&column(|p| p.2))?,
            out,
            log_sum_exp,
        });
        Ok(())
    }

    pub(super) fn launch(
        &self,
        launcher: &mut Launcher,
        metadata: &Metadata,
        results: &Results,
        hidden: View<bf16>,
        (head, cap): (View<bf16>, f32),
    ) -> Result<(), Error> {
        if let Some(out) = self.dots.out.filter(|out| out.len > 0) {
            let (rows, ids) = (metadata.view(self.dots.rows), metadata.view(self.dots.ids));
            let head = (head, cap);
            heads::label_dots(launcher, rows, ids, hidden, head, results.view(out, 1))?;
        }
        let slabs = heads::label_slabs(head.rows());
        for group in &self.groups {
            LabelLogits {
                index: metadata.view(group.index),
                pair_rows: metadata.view(group.pair_rows),
                pair_ids: metadata.view(group.pair_ids),
                pair_outs: metadata.view(group.pair_outs),
                hidden,
                cap,
                table: head,
                out: results.view(group.out, 1),
                partial: self.partial.view(0, slabs, group.rows * 2),
                log_sum_exp: results.view(group.log_sum_exp, 1),
            }
            .launch(launcher)?;
        }
        Ok(())
    }

    pub(super) fn read(&self, row: usize, results: &Results) -> RowOutput {
        let Some(place) = self.places.get(&row) else {
            return RowOutput::NoRoom(NO_ROOM);
        };
        let logits: Vec<f32> = results.floats(place.logits).collect();
        let log_sum_exp = place
            .log_sum_exp
            .and_then(|part| results.floats(part).next());
        let all = logits.iter().chain(&log_sum_exp);
        if all.into_iter().all(|x| x.is_finite()) {
            RowOutput::LabelScores(LabelScores {
                logits,
                log_sum_exp,
            })
        } else {
            RowOutput::Failed(NOT_FINITE)
        }
    }
}

fn labels_of(head: &OutputHead) -> &[u32] {
    match head {
        OutputHead::LabelScores { labels, .. } => labels,
        _ => &[],
    }
}
