//! Embeddings and class logits.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use half::bf16;
use prelude_core::{OutputHead, Pooling, RowOutput, TokenHead};
use prelude_kernels::families::PoolRow;
use prelude_models::step::{StepLayout, StepRow};

use super::{
    NO_ROOM,
    dense::{DenseProduct, DenseRoom, GROUP},
    finite,
    results::{Part, Results},
    rows, word,
};
use crate::{
    Error,
    kernels::{gemm::Products, heads, launch::Launcher},
    memory::{
        metadata::{Field, Metadata},
        view::View,
    },
};

/// The places of results of rows, which several rows may share.
///
/// Rows that want a result of each token are laid out by token: those that read the same one in
/// the same way share its result, so that all the step's rows together want no more of them than
/// the step has tokens. Only where they want one token's vector cut in several ways, it has several
/// results; a row for which there is no room then fails alone, the longest first.
#[derive(Debug, Default)]
struct ResultIndex {
    /// The results of each row of the step, in order.
    of_row: BTreeMap<usize, Vec<u32>>,
    /// Results in all.
    len: usize,
}

impl ResultIndex {
    /// Gives the rows `wants` their places, at most `room` in all: for each row of the step, what
    /// it wants in order. Equal wants share a place; `add` is told of each new one, in order.
    /// Returns the rows for which there is no room.
    fn lay_out<K: Copy + Ord>(
        &mut self,
        mut wants: Vec<(usize, Vec<K>)>,
        room: usize,
        mut add: impl FnMut(K),
    ) -> Vec<usize> {
        self.of_row.clear();
        self.len = 0;
        wants.sort_by_key(|(_, wants)| wants.len());
        let mut known: BTreeMap<K, u32> = BTreeMap::new();
        let mut refused = Vec::new();
        for (row, wants) in wants {
            let new: BTreeSet<K> = wants.iter().copied().collect();
            let new = new.iter().filter(|want| !known.contains_key(want)).count();
            if self.len + new > room {
                refused.push(row);
                continue;
            }
            let places = wants.into_iter().map(|want| match known.entry(want) {
                Entry::Occupied(place) => *place.get(),
                Entry::Vacant(place) => {
                    add(want);
                    self.len += 1;
                    *place.insert(word(self.len - 1))
                }
            });
            self.of_row.insert(row, places.collect());
        }
        refused
    }

    /// Returns the words of a row's results in `part`, in order; each has `width` words, of which the
    /// first `len` are read.
    fn parts(&self, row: usize, part: Part, width: usize, len: usize) -> Option<Vec<Part>> {
        let places = self.of_row.get(&row)?;
        let place = |&place: &u32| Part {
            at: part.at + place as usize * width,
            len,
        };
        Some(places.iter().map(place).collect())
    }
}

/// A vector that a row wants. Equal wants are one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    /// Index of the row that this result belongs to, if it shares the result with no other.
    whole_row: Option<usize>,
    /// The output that the result is read from, if it is read from one alone.
    output: u32,
    /// The first position's.
    position: u32,
    flags: u32,
    dimensions: u32,
}

/// Embedding rows, or rows that want a vector of each token.
#[derive(Debug)]
pub(super) struct Pooled {
    hidden: usize,
    /// The length of a vector behind the products of a model that has some.
    projected: Option<usize>,
    of: Scope,
    rows: Field<PoolRow>,
    index: Field<i32>,
    /// The rows that end what products make of pooled vectors, if there are products, and what they
    /// read of a group.
    ends: Field<PoolRow>,
    group: Field<i32>,
    /// `[places, width]`, of which each row uses its first dimensions.
    out: Option<(Part, usize)>,
    places: ResultIndex,
    /// The number of dimensions that each row of the step reads of each result.
    dimensions: BTreeMap<usize, usize>,
}

/// The things that have a result each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// A result for each row.
    Rows,
    /// A result for each token of each row.
    Tokens,
}

impl Scope {
    /// Returns the number of results of `width` words for which there is room.
    fn room(self, results: &Results, width: usize) -> usize {
        let words = match self {
            Self::Rows => results.room(),
            Self::Tokens => results.token_room(),
        };
        words.checked_div(width).unwrap_or(0)
    }

    fn take(self, results: &mut Results, len: usize) -> Option<Part> {
        match self {
            Self::Rows => results.take(len),
            Self::Tokens => results.take_for_tokens(len),
        }
    }
}

impl Pooled {
    pub(super) fn new(hidden: usize, projected: Option<usize>, of: Scope) -> Self {
        Self {
            hidden,
            projected,
            of,
            rows: Field::default(),
            index: Field::default(),
            ends: Field::default(),
            group: Field::default(),
            out: None,
            places: ResultIndex::default(),
            dimensions: BTreeMap::new(),
        }
    }

    /// Returns empty lists for another step.
    pub(super) fn spare(&self) -> Self {
        Self::new(self.hidden, self.projected, self.of)
    }

    /// Returns the length of a vector before it is cut.
    fn width(&self) -> usize {
        self.projected.unwrap_or(self.hidden)
    }

    /// Returns the vectors that row `i` of a step wants of its outputs, and how much of each it reads.
    fn vectors(&self, i: usize, row: &StepRow, outputs: &[u32]) -> Option<(usize, Vec<Wanted>)> {
        let (pooling, normalise, dimensions) = match row.head {
            OutputHead::Embed {
                pooling,
                normalise,
                dimensions,
            } => (pooling, normalise, dimensions),
            OutputHead::Tokens(TokenHead::Embed {
                normalise,
                dimensions,
            }) => (Pooling::First, normalise, dimensions),
            _ => return None,
        };
        let dimensions = dimensions.map_or_else(|| self.width(), |d| d as usize);
        let mut flags = 0;
        if pooling == Pooling::Mean {
            flags |= PoolRow::MEAN;
        }
        if normalise {
            flags |= PoolRow::NORMALISE;
        }
        let vector = |whole_row, output, position| Wanted {
            whole_row,
            output,
            position,
            flags,
            dimensions: word(dimensions),
        };
        // Each output by itself, the first alone where a row is pooled.
        let singles = outputs.iter().zip(row.first_position..);
        let singles = singles.map(|(&output, position)| vector(None, output, position));
        let vectors = match (self.of, pooling) {
            (Scope::Rows, Pooling::First) => singles.take(1).collect(),
            (Scope::Rows, _) => vec![vector(Some(i), 0, row.first_position)],
            (Scope::Tokens, _) => singles.collect(),
        };
        Some((dimensions, vectors))
    }

    pub(super) fn begin(
        &mut self,
        layout: &mut StepLayout,
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        self.dimensions.clear();
        let mut wanted = Vec::new();
        let is_wanted: fn(&OutputHead) -> bool = match self.of {
            Scope::Rows => |head| matches!(head, OutputHead::Embed { .. }),
            Scope::Tokens => |head| matches!(head, OutputHead::Tokens(TokenHead::Embed { .. })),
        };
        for (i, row) in rows(layout, is_wanted) {
            if let Some((dimensions, vectors)) = self.vectors(i, row, layout.outputs_of(row)) {
                self.dimensions.insert(i, dimensions);
                wanted.push((i, vectors));
            }
        }
        let (mut list, mut index) = (Vec::new(), Vec::new());
        let room = self.of.room(results, self.width());
        let refused = self.places.lay_out(wanted, room, |vector: Wanted| {
            let outputs = match vector.whole_row {
                Some(row) => layout.outputs_of(&layout.rows[row]),
                None => std::slice::from_ref(&vector.output),
            };
            list.push(PoolRow {
                first: word(index.len()),
                count: word(outputs.len()),
                first_position: vector.position,
                flags: vector.flags,
                dimensions: vector.dimensions,
                reserved: 0,
            });
            index.extend(outputs.iter().map(|o| o.cast_signed()));
        });
        for row in refused {
            layout.rows[row].refused = Some(NO_ROOM);
        }
        let part = self.of.take(results, list.len() * self.width());
        self.out = part.map(|part| (part, list.len()));
        if self.projected.is_some() {
            let (ends, group) = self.put_products_between(&mut list);
            self.ends = metadata.push(&ends)?;
            self.group = metadata.push(&group)?;
        }
        self.rows = metadata.push(&list)?;
        self.index = metadata.push(&index)?;
        Ok(())
    }

    /// Leaves the pooling itself in `list`; returns the rows that cut and scale what products make
    /// of it, a group after the other, and the vectors of a group.
    fn put_products_between(&self, list: &mut [PoolRow]) -> (Vec<PoolRow>, Vec<i32>) {
        let mut ends = list.to_vec();
        for (i, (row, end)) in list.iter_mut().zip(&mut ends).enumerate() {
            row.flags &= PoolRow::MEAN;
            row.dimensions = word(self.hidden);
            end.flags &= PoolRow::NORMALISE;
            (end.first, end.count, end.first_position) = (word(i % GROUP), 1, 0);
        }
        let group = 0..word(list.len().min(GROUP)).cast_signed();
        (ends, group.collect())
    }

    /// Pools, multiplies and ends the vectors of rows, group by group.
    pub(super) fn launch_dense(
        &self,
        launcher: &mut Launcher,
        products: &mut Products,
        metadata: &Metadata,
        results: &Results,
        hidden: View<bf16>,
        (room, dense): (&DenseRoom, &[DenseProduct]),
    ) -> Result<(), Error> {
        let Some((part, rows)) = self.out.filter(|(_, rows)| *rows > 0) else {
            return Ok(());
        };
        let index = metadata.view(self.index);
        for start in (0..rows).step_by(GROUP) {
            let group = start..rows.min(start + GROUP);
            let pooled = room.pooled(group.len(), hidden.width())?;
            let list = metadata.part(self.rows, group.clone());
            heads::pool_bf16(launcher, list, index, hidden, pooled)?;
            let states = room.multiply(launcher, products, pooled, dense)?;
            let ends = metadata.part(self.ends, group.clone());
            let of_group = metadata.view(self.group);
            let out = results.view(part, rows).slice(group);
            heads::pool(launcher, ends, of_group, states, out)?;
        }
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
        match self.parts(row).as_deref() {
            Some(&[part]) => finite(results.floats(part), RowOutput::Embedding),
            _ => RowOutput::NoRoom(NO_ROOM),
        }
    }

    /// Returns one vector for each token of the row.
    pub(super) fn read_all(&self, row: usize, results: &Results) -> Option<Vec<Vec<f32>>> {
        let vector = |part| results.floats(part).collect();
        Some(self.parts(row)?.into_iter().map(vector).collect())
    }

    fn parts(&self, row: usize) -> Option<Vec<Part>> {
        let ((part, _), &len) = (self.out?, self.dimensions.get(&row)?);
        self.places.parts(row, part, self.width(), len)
    }
}

/// Classification rows, or rows that want each token's logits.
#[derive(Debug)]
pub(super) struct Classes {
    labels: usize,
    of: Scope,
    index: Field<i32>,
    /// `[places, labels]`.
    out: Option<(Part, usize)>,
    places: ResultIndex,
}

impl Classes {
    pub(super) fn new(labels: usize, of: Scope) -> Self {
        Self {
            labels,
            of,
            index: Field::default(),
            out: None,
            places: ResultIndex::default(),
        }
    }

    /// Returns empty lists for another step.
    pub(super) fn spare(&self) -> Self {
        Self::new(self.labels, self.of)
    }

    pub(super) fn begin(
        &mut self,
        layout: &mut StepLayout,
        results: &mut Results,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        let is_wanted: fn(&OutputHead) -> bool = match self.of {
            Scope::Rows => |head| matches!(head, OutputHead::Classify),
            Scope::Tokens => |head| matches!(head, OutputHead::Tokens(TokenHead::Classify)),
        };
        let outputs = |row| {
            let outputs = layout.outputs_of(row);
            match self.of {
                // The classes of a text are those of its first position that is read.
                Scope::Rows => &outputs[..outputs.len().min(1)],
                Scope::Tokens => outputs,
            }
        };
        let wanted = rows(layout, is_wanted).map(|(i, row)| (i, outputs(row).to_vec()));
        let (wanted, mut index) = (wanted.collect(), Vec::new());
        let room = self.of.room(results, self.labels);
        let add = |output: u32| index.push(output.cast_signed());
        for row in self.places.lay_out(wanted, room, add) {
            layout.rows[row].refused = Some(NO_ROOM);
        }
        let part = self.of.take(results, index.len() * self.labels);
        self.out = part.map(|part| (part, index.len()));
        self.index = metadata.push(&index)?;
        Ok(())
    }

    pub(super) fn launch(
        &self,
        launcher: &mut Launcher,
        metadata: &Metadata,
        results: &Results,
        hidden: View<bf16>,
        score: (View<bf16>, Option<View<bf16>>),
    ) -> Result<(), Error> {
        let Some((part, rows)) = self.out.filter(|(_, rows)| *rows > 0) else {
            return Ok(());
        };
        let index = metadata.view(self.index);
        heads::classify(launcher, index, hidden, score, results.view(part, rows))
    }

    pub(super) fn read(&self, row: usize, results: &Results) -> RowOutput {
        match self.parts(row).as_deref() {
            Some(&[part]) => finite(results.floats(part), RowOutput::Classes),
            _ => RowOutput::NoRoom(NO_ROOM),
        }
    }

    /// Returns one list of logits for each token of the row.
    pub(super) fn read_all(&self, row: usize, results: &Results) -> Option<Vec<Vec<f32>>> {
        let logits = |part| results.floats(part).collect();
        Some(self.parts(row)?.into_iter().map(logits).collect())
    }

    fn parts(&self, row: usize) -> Option<Vec<Part>> {
        let (part, _) = self.out?;
        self.places.parts(row, part, self.labels, self.labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_wants_share_a_place_and_long_rows_give_way() {
        let mut places = ResultIndex::default();
        let mut made = Vec::new();
        let wants = vec![
            (4, vec![1, 2, 3]),
            (7, vec![2]),
            (9, vec![3, 2, 5]),
            (2, vec![8]),
        ];
        let refused = places.lay_out(wants, 4, |want| made.push(want));
        // Short ones first: 2, 8, then 1 and 3 beside 2; 5 has no room.
        assert_eq!((refused, made), (vec![9], vec![2, 8, 1, 3]));
        let part = Part { at: 100, len: 40 };
        let ats = |row| -> Option<Vec<usize>> {
            let parts = places.parts(row, part, 10, 6)?;
            Some(parts.iter().map(|part| part.at).collect())
        };
        assert_eq!(ats(4), Some(vec![120, 100, 130]));
        assert_eq!(
            (ats(7), ats(2), ats(9)),
            (Some(vec![100]), Some(vec![110]), None)
        );
    }
}
