//! Embeddings and class logits.

use std::collections::BTreeMap;

use half::bf16;
use kernels::families::PoolRow;
use prelude_core::{OutputHead, Pooling, RowOutput};

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

/// Embedding rows.
#[derive(Debug)]
pub(super) struct Pooled {
    hidden: usize,
    rows: Field<PoolRow>,
    index: Field<i32>,
    /// `[rows, H]`, of which each row uses its first dimensions.
    out: Option<(Part, usize)>,
    /// For each row of the plan: its row of `out` and how much of it.
    places: BTreeMap<usize, (usize, usize)>,
}

impl Pooled {
    pub(super) fn new(hidden: usize) -> Self {
        Self {
            hidden,
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
        for (i, row) in rows(plan, |head| matches!(head, OutputHead::Embed { .. })) {
            let OutputHead::Embed {
                pooling,
                normalise,
                dimensions,
            } = row.head
            else {
                continue;
            };
            let outputs = plan.outputs_of(row);
            let dimensions = dimensions.map_or(self.hidden, |d| d as usize);
            let mean = if pooling == Pooling::Mean {
                PoolRow::MEAN
            } else {
                0
            };
            let unit = if normalise { PoolRow::NORMALISE } else { 0 };
            self.places.insert(i, (list.len(), dimensions));
            list.push(PoolRow {
                first: word(index.len()),
                count: word(outputs.len()),
                first_position: row.first_position,
                flags: mean | unit,
                dimensions: word(dimensions),
                reserved: 0,
            });
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
        let (Some((part, _)), Some(&(place, len))) = (self.out, self.places.get(&row)) else {
            return RowOutput::Failed(NO_ROOM);
        };
        let at = part.at + place * self.hidden;
        finite(results.floats(Part { at, len }), RowOutput::Embedding)
    }
}

/// Classification rows.
#[derive(Debug)]
pub(super) struct Classes {
    labels: usize,
    index: Field<i32>,
    /// `[rows, labels]`.
    out: Option<(Part, usize)>,
    places: BTreeMap<usize, usize>,
}

impl Classes {
    pub(super) fn new(labels: usize) -> Self {
        Self {
            labels,
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
        for (i, row) in rows(plan, |head| matches!(head, OutputHead::Classify)) {
            self.places.insert(i, index.len());
            index.push(plan.outputs_of(row)[0].cast_signed());
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
        let (Some((part, _)), Some(&place)) = (self.out, self.places.get(&row)) else {
            return RowOutput::Failed(NO_ROOM);
        };
        let (at, len) = (part.at + place * self.labels, self.labels);
        finite(results.floats(Part { at, len }), RowOutput::Classes)
    }
}
