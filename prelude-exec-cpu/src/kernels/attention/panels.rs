//! The panels of a tile of keys and values: rows are packed, blocks of panels are copied. A tile that
//! lies in blocks as a whole is read where it is, if the products have instructions for that.

use std::ops::Range;

use prelude_models::step::StepLayout;

use super::{
    Attention, Queries,
    locations::{KvLocation, for_runs},
};
use crate::kernels::{
    InputForm, Supported,
    kv::{HeadPanels, KvElement, Panels},
    panel::{GROUP, NR, Pieces, takes_pieces},
};

/// A tile of up to 64 keys and their values, as products read them.
#[derive(Debug, Default)]
pub(super) struct TilePanels {
    /// `[head_dim / PER_DWORD][64]`.
    pub(super) keys: Vec<u32>,
    /// For each 64 components: `[64 / PER_DWORD][64]`.
    pub(super) values: Vec<u32>,
}

/// The dwords that [`TilePanels`] has room for, in f32.
pub(super) const fn room(head_dim: usize) -> usize {
    NR * head_dim + NR * head_dim.next_multiple_of(NR)
}

impl TilePanels {
    /// Makes room for heads of `head_dim` components.
    pub(super) fn fit(&mut self, head_dim: usize) {
        let values = NR * head_dim.next_multiple_of(NR);
        for (panels, len) in [(&mut self.keys, NR * head_dim), (&mut self.values, values)] {
            panels.resize(panels.len().max(len), 0);
        }
    }

    /// Packs rows, `(key, value)`, into columns from `first` on.
    fn put_rows<'k, E: KvElement>(
        &mut self,
        isa: Supported,
        first: usize,
        rows: impl Iterator<Item = (&'k [E], &'k [E])>,
    ) {
        let (mut keys, mut values, mut count) = ([[].as_slice(); NR], [[].as_slice(); NR], 0);
        for (key, value) in rows {
            (keys[count], values[count]) = (key, value);
            count += 1;
        }
        let (keys, values) = (&keys[..count], &mut values[..count]);
        let mut panels = Panels {
            dwords: &mut self.keys,
            width: NR,
        };
        panels.put_keys(isa, first, keys);
        for dwords in self.values.chunks_exact_mut(NR / E::PER_DWORD * NR) {
            let mut part = [[].as_slice(); NR];
            for (part, rest) in part.iter_mut().zip(values.iter_mut()) {
                (*part, *rest) = rest.split_at(rest.len().min(NR));
            }
            if part[0].is_empty() {
                break;
            }
            let mut panels = Panels { dwords, width: NR };
            panels.put_values(isa, first, &part[..count]);
        }
    }

    /// Copies `columns` of a block of `size` positions to columns from `first` on.
    fn put_block<E: KvElement>(
        &mut self,
        block: HeadPanels<'_>,
        size: usize,
        columns: Range<usize>,
        first: usize,
    ) {
        let lines = block
            .keys
            .chunks_exact(size)
            .zip(self.keys.chunks_exact_mut(NR));
        if columns.len() == GROUP {
            // Most blocks: one vector of a known length.
            for (from, to) in lines {
                let from = from[columns.start..].first_chunk::<GROUP>();
                let to = to[first..].first_chunk_mut::<GROUP>();
                if let (Some(from), Some(to)) = (from, to) {
                    *to = *from;
                }
            }
        } else {
            for (from, to) in lines {
                to[first..][..columns.len()].copy_from_slice(&from[columns.clone()]);
            }
        }
        let per = E::PER_DWORD;
        let dim = block.values.len() / (size / per);
        let from = block.values.chunks_exact(dim).skip(columns.start / per);
        for (i, from) in from.take(columns.len().div_ceil(per)).enumerate() {
            for (j, from) in from.chunks(NR).enumerate() {
                let line = j * NR / per + first / per + i;
                self.values[line * NR..][..from.len()].copy_from_slice(from);
            }
        }
    }
}

/// A whole tile of keys and values in blocks of panels.
#[derive(Clone, Copy, Default)]
pub(super) struct InBlocks<'a> {
    /// From 16 positions on each: `[head_dim / 2][block_size]`.
    keys: [[&'a [u32]; GROUPS]; 1],
    /// Of 16 positions each: `[8][head_dim]`.
    values: [&'a [u32]; GROUPS],
    block_size: usize,
    head_dim: usize,
}

/// Groups of positions of a tile.
const GROUPS: usize = NR / GROUP;

impl<'a> InBlocks<'a> {
    /// Returns the keys, as columns; those of `next` are fetched meanwhile.
    pub(super) fn keys<'t>(&'t self, next: Option<&'t Self>) -> Pieces<'t> {
        Pieces {
            next: next.map_or(&[], |next| &next.keys),
            pieces: &self.keys,
            lines: self.head_dim / 2,
            width: self.block_size,
            columns: NR,
        }
    }

    /// Returns the parts of the values that hold the components from `first` on.
    pub(super) fn parts(&self, first: usize) -> [[&'a [u32]; GROUPS]; GROUPS] {
        // Beyond the last component, any are read in its place.
        let column = |group: usize| (first + group * GROUP).min(self.head_dim - GROUP);
        let of = |values: &'a [u32]| std::array::from_fn(|group| &values[column(group)..]);
        self.values.map(of)
    }

    /// Returns components of the values as columns, as many as there are from `first` on; `next` is fetched meanwhile.
    pub(super) fn values<'p>(
        &self,
        first: usize,
        pieces: &'p [[&'a [u32]; GROUPS]; GROUPS],
        next: Option<&'p [[&'a [u32]; GROUPS]; GROUPS]>,
    ) -> Pieces<'p> {
        Pieces {
            pieces,
            lines: GROUP / 2,
            width: self.head_dim,
            columns: NR.min(self.head_dim - first),
            next: next.map_or(&[], |next| next),
        }
    }
}

impl<E: KvElement> Attention<'_, E> {
    /// Returns the keys and values of `positions`, from span `cursor` of the path on, if they are a whole
    /// tile in blocks of panels and products can read them there.
    pub(super) fn in_blocks(
        &self,
        (isa, act): (Supported, InputForm),
        queries: &Queries<'_>,
        mut cursor: usize,
        positions: Range<u32>,
    ) -> Option<InBlocks<'_>> {
        let block_size = self.kv.panels()?;
        let head_dim = self.shape.head_dim;
        let reads = takes_pieces(isa) && act == InputForm::Bf16;
        let is_whole = [block_size, head_dim]
            .iter()
            .all(|n| n.is_multiple_of(GROUP));
        if !(reads && is_whole && positions.len() == NR) {
            return None;
        }
        let mut tile = InBlocks {
            block_size,
            head_dim,
            ..InBlocks::default()
        };
        let mut found = 0;
        for_runs(
            self.layout,
            queries.path,
            &mut cursor,
            positions,
            |_, location, count| {
                if let KvLocation::Slot(slot) = location {
                    let head = self.kv.head(self.layer, slot / block_size, queries.kv_head);
                    for first in (slot % block_size..).step_by(GROUP).take(count / GROUP) {
                        tile.keys[0][found] = &head.keys[first..];
                        tile.values[found] = &head.values[first / 2 * head_dim..];
                        found += 1;
                    }
                }
            },
        );
        (found == GROUPS).then_some(tile)
    }

    /// Puts the keys and values of `positions` in place.
    pub(super) fn fill(
        &self,
        isa: Supported,
        queries: &Queries<'_>,
        (layout, cursor): (&StepLayout, &mut usize),
        positions: Range<u32>,
        panels: &mut TilePanels,
    ) {
        let start = positions.start;
        for_runs(
            layout,
            queries.path,
            cursor,
            positions,
            |position, location, count| {
                let lane = (position - start) as usize;
                match (location, self.kv.panels()) {
                    (KvLocation::Slot(slot), Some(size)) => {
                        let block = self.kv.head(self.layer, slot / size, queries.kv_head);
                        let columns = slot % size..slot % size + count;
                        panels.put_block::<E>(block, size, columns, lane);
                    }
                    _ => {
                        let rows = (0..count).map(|i| self.head(location, i, queries.kv_head));
                        panels.put_rows(isa, lane, rows);
                    }
                }
            },
        );
    }
}
