//! Embeddings and class logits.

use std::{collections::BTreeMap, ops::Range};

use half::bf16;
use kernels::families::PoolRow;
use prelude_core::{OutputHead, Pooling, RowOutput, TokenHead};

use super::{
    NO_ROOM, finite,
    results::{Part, Results},
    rows, word,
};
use crate::{
    Error, StepPlan,
    kernels::{heads, launch::Launcher},
    memory::{
        metadata::{Field, Metadata},
        view::View,
    },
};

/// Embedding rows, or rows that want a vector of each token.
#[derive(Debug)]
pub(super) struct Pooled {
    hidden: usize,
    wanted: fn(&OutputHead) -> bool,
    rows: Field<PoolRow>,
    index: Field<i32>,
    /// `[rows, H]`, of which each row uses its first dimensions.
    out: Option<(Part, usize)>,
    /// For each row of the plan: its rows of `out` and how much of each.
    places: BTreeMap<usize, (Range<usize>, usize)>,
}

impl Pooled {
    pub(super) fn new(hidden: usize, wanted: fn(&OutputHead) -> bool) -> Self {
        Self {
            hidden,
            wanted,
            rows: Field::default(),
            index: Field::default(),
            out: None,
            places: BTreeMap::new(),
        }
    }

    pub(super) fn begin(
        &mut self,
        plan: &mut StepPlan,
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        let (mut list, mut index) = (Vec::new(), Vec::new());
        self.places.clear();
        for (i, row) in rows(plan, self.wanted) {
            let outputs = plan.outputs_of(row);
            // A vector of each token is as many rows of one position each.
            let (mean, size, normalise, dimensions) = match row.head {
                OutputHead::Embed {
                    pooling,
                    normalise,
                    dimensions,
                } => (
                    pooling == Pooling::Mean,
                    outputs.len(),
                    normalise,
                    dimensions,
                ),
                OutputHead::Tokens(TokenHead::Embed {
                    normalise,
                    dimensions,
                }) => (false, 1, normalise, dimensions),
                _ => continue,
            };
            let dimensions = dimensions.map_or(self.hidden, |d| d as usize);
            let mean = if mean { PoolRow::MEAN } else { 0 };
            let unit = if normalise { PoolRow::NORMALISE } else { 0 };
            let first = list.len();
            for at in (0..outputs.len()).step_by(size) {
                list.push(PoolRow {
                    first: word(index.len() + at),
                    count: word(size),
                    first_position: row.first_position + word(at),
                    flags: mean | unit,
                    dimensions: word(dimensions),
                    reserved: 0,
                });
            }
            self.places.insert(i, (first..list.len(), dimensions));
            index.extend(outputs.iter().map(|&o| o.cast_signed()));
        }
        self.out = results
            .take(list.len() * self.hidden)
            .map(|part| (part, list.len()));
        if self.out.is_none() {
            for &i in self.places.keys() {
                plan.rows[i].refused = Some(NO_ROOM);
            }
            list.clear();
        }
        self.rows = metadata.push(&list)?;
        self.index = metadata.push(&index)?;
        Ok(())
    }

    pub(super) fn launch(
        &self,
        launcher: &mut Launcher,
        metadata: &Metadata,
        results: &Results,
        hidden: View<bf16>,
    ) -> Result<(), Error> {
        let Some((part, rows)) = self.out.filter(|(_, rows)| *rows > 0) else {
            return Ok(());
        };
        let (list, index) = (metadata.view(self.rows), metadata.view(self.index));
        heads::pool(launcher, list, index, hidden, results.view(part, rows))
    }

    pub(super) fn read(&self, row: usize, results: &Results) -> RowOutput {
        let (Some((part, _)), Some((places, len))) = (self.out, self.places.get(&row)) else {
            return RowOutput::Failed(NO_ROOM);
        };
        let (at, len) = (part.at + places.start * self.hidden, *len);
        finite(results.floats(Part { at, len }), RowOutput::Embedding)
    }

    /// One vector per token.
    pub(super) fn read_all(&self, row: usize, results: &Results) -> Option<Vec<Vec<f32>>> {
        let ((part, _), (places, len)) = (self.out?, self.places.get(&row)?);
        let vector = |place| {
            let (at, len) = (part.at + place * self.hidden, *len);
            results.floats(Part { at, len }).collect()
        };
        Some(places.clone().map(vector).collect())
    }
}

/// Classification rows, or rows that want each token's logits.
#[derive(Debug)]
pub(super) struct Classes {
    labels: usize,
    wanted: fn(&OutputHead) -> bool,
    index: Field<i32>,
    /// `[rows, labels]`.
    out: Option<(Part, usize)>,
    /// For each row of the plan: its rows of `out`.
    places: BTreeMap<usize, Range<usize>>,
}

impl Classes {
    pub(super) fn new(labels: usize, wanted: fn(&OutputHead) -> bool) -> Self {
        Self {
            labels,
            wanted,
            index: Field::default(),
            out: None,
            places: BTreeMap::new(),
        }
    }

    pub(super) fn begin(
        &mut self,
        plan: &mut StepPlan,
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        let mut index = Vec::new();
        self.places.clear();
        for (i, row) in rows(plan, self.wanted) {
            let first = index.len();
            let outputs = plan.outputs_of(row).iter();
            index.extend(outputs.map(|o| o.cast_signed()));
            self.places.insert(i, first..index.len());
        }
        self.out = results
            .take(index.len() * self.labels)
            .map(|part| (part, index.len()));
        if self.out.is_none() {
            for &i in self.places.keys() {
                plan.rows[i].refused = Some(NO_ROOM);
            }
        }
        self.index = metadata.push(&index)?;
        Ok(())
    }

    pub(super) fn launch(
        &self,
        launcher: &mut Launcher,
        metadata: &Metadata,
        results: &Results,
        hidden: View<bf16>,
        score: View<bf16>,
    ) -> Result<(), Error> {
        let Some((part, rows)) = self.out.filter(|(_, rows)| *rows > 0) else {
            return Ok(());
        };
        let index = metadata.view(self.index);
        heads::classify(launcher, index, hidden, score, results.view(part, rows))
    }

    pub(super) fn read(&self, row: usize, results: &Results) -> RowOutput {
        let (Some((part, _)), Some(places)) = (self.out, self.places.get(&row)) else {
            return RowOutput::Failed(NO_ROOM);
        };
        let (at, len) = (part.at + places.start * self.labels, self.labels);
        finite(results.floats(Part { at, len }), RowOutput::Classes)
    }

    /// One list of logits per token.
    pub(super) fn read_all(&self, row: usize, results: &Results) -> Option<Vec<Vec<f32>>> {
        let ((part, _), places) = (self.out?, self.places.get(&row)?);
        let logits = |place| {
            let (at, len) = (part.at + place * self.labels, self.labels);
            results.floats(Part { at, len }).collect()
        };
        Some(places.clone().map(logits).collect())
    }
}
