//! Keys and values: the block pool, and one layer's of the step.
//!
//! ```text
//! row of a position: | K of head 0 | K of head 1 | … | V of head 0 | V of head 1 | … |
//! step buffer        [max_step_tokens] rows, overwritten by each layer
//! pool, per layer    [num_blocks] blocks, of one of two forms:
//!   rows             [block_size] rows, which a matrix unit takes as they are
//!   panels           | K of head 0 | K of head 1 | … | V of head 0 | V of head 1 | … |, where
//!                    K of a head: dword (d, p) = components (2d, p), (2d + 1, p)   [dim/2][block_size]
//!                    V of a head: dword (p, d) = positions (2p, d), (2p + 1, d)    [block_size/2][dim]
//! ```
//!
//! In f32 a dword is one number, and halves are wholes. Panels are what products read: a key is put
//! in place once, when its block gets it, and not by each step that reads it.
//!
//! Keys and values are rounded to the cache's type when they are placed in the step buffer, so
//! that it makes no difference to later tokens whether they read them from there, in the same
//! step, or from a block.
//!
//! Values in a row are always finite: attention multiplies the values of keys that a query does
//! not see by a weight of 0, which a NaN or an infinity would survive. A value that is not finite
//! is stored as 0 and its key as NaN, so that exactly the queries that see it become NaN.

use half::bf16;

use super::{
    CpuDtype, Supported,
    lines::Lines,
    native,
    panel::{GROUP, Panel},
    simd,
};
use crate::Error;

/// Type of stored keys and values.
pub(crate) trait KvElement: bytemuck::Pod + Default + Send + Sync {
    /// Elements per dword of a panel.
    const PER_DWORD: usize;
    /// A key that makes scores NaN.
    const NAN: Self;

    /// Rounds a row.
    fn round(isa: Supported, x: &[f32], out: &mut [Self]);
    /// Returns the exact value.
    fn widen(self) -> f32;
    /// Writes the values of two positions to a line of dwords, each component of both together; in f32
    /// there is only the first.
    fn pair(isa: Supported, values: [&[Self]; 2], line: &mut [u32]);
    /// Returns the bits of bf16 numbers.
    ///
    /// # Panics
    /// If these are none.
    fn bf16_bits(x: &[Self]) -> &[u16];
    /// Returns packed dwords as a panel of their type.
    fn panel(dwords: &[u32]) -> Panel<'_>;
}

impl KvElement for f32 {
    const PER_DWORD: usize = 1;
    const NAN: Self = Self::NAN;

    fn round(_: Supported, x: &[f32], out: &mut [Self]) {
        out.copy_from_slice(x);
    }

    fn widen(self) -> f32 {
        self
    }

    fn pair(_: Supported, [value, _]: [&[Self]; 2], line: &mut [u32]) {
        line.copy_from_slice(bytemuck::cast_slice(value));
    }

    fn bf16_bits(_: &[Self]) -> &[u16] {
        unreachable!("f32 keys are not multiplied in bf16")
    }

    fn panel(dwords: &[u32]) -> Panel<'_> {
        Panel::F32(dwords)
    }
}

impl KvElement for bf16 {
    const PER_DWORD: usize = 2;
    const NAN: Self = Self::NAN;

    fn round(isa: Supported, x: &[f32], out: &mut [Self]) {
        simd::round_to_bf16(isa, x, bytemuck::cast_slice_mut(out));
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn pair(isa: Supported, [low, high]: [&[Self]; 2], line: &mut [u32]) {
        simd::interleave(isa, Self::bf16_bits(low), Self::bf16_bits(high), line);
    }

    fn bf16_bits(x: &[Self]) -> &[u16] {
        bytemuck::cast_slice(x)
    }

    fn panel(dwords: &[u32]) -> Panel<'_> {
        Panel::Bf16(dwords)
    }
}

/// Lines of `width` dwords, one after the other, that keys or values are put into: a block's of one
/// head, or a tile's.
pub(crate) struct Panels<'a> {
    pub(crate) dwords: &'a mut [u32],
    /// Dwords of a line.
    pub(crate) width: usize,
}

impl Panels<'_> {
    /// Returns the numbers of a line.
    fn numbers<E: KvElement>(&mut self, line: usize) -> &mut [E] {
        bytemuck::cast_slice_mut(&mut self.dwords[line * self.width..][..self.width])
    }

    /// Writes keys to columns from `first` on: dword d of each to line d.
    pub(crate) fn put_keys<E: KvElement>(&mut self, isa: Supported, first: usize, keys: &[&[E]]) {
        let mut at = 0;
        while at < keys.len() {
            let column = first + at;
            let together = keys[at..].first_chunk::<GROUP>();
            let together = together.filter(|_| column.is_multiple_of(GROUP));
            let done = together.map_or(0, |keys| self.transpose(isa, keys, column));
            let count = if done > 0 { GROUP } else { 1 };
            for (i, key) in keys[at..at + count].iter().enumerate() {
                for (d, pair) in key.chunks_exact(E::PER_DWORD).enumerate().skip(done) {
                    let numbers = &mut self.numbers(d)[(column + i) * E::PER_DWORD..];
                    numbers[..E::PER_DWORD].copy_from_slice(pair);
                }
            }
            at += count;
        }
    }

    /// Puts as many leading dwords of 16 keys in place as instructions allow, and says how many.
    fn transpose<E: KvElement>(
        &mut self,
        isa: Supported,
        keys: &[&[E]; GROUP],
        column: usize,
    ) -> usize {
        let rows = keys.map(bytemuck::cast_slice);
        let dwords = keys[0].len() / E::PER_DWORD;
        for first in (0..dwords - dwords % GROUP).step_by(GROUP) {
            let out = &mut self.dwords[first * self.width + column..];
            if !native::transpose(isa, &rows, first * 4, (out, self.width)) {
                return 0;
            }
        }
        dwords - dwords % GROUP
    }

    /// Writes values of positions from `first` on: those of two positions to each line, in f32 those
    /// of one. The values of other positions stay: a block's may be those of another sequence.
    pub(crate) fn put_values<E: KvElement>(
        &mut self,
        isa: Supported,
        first: usize,
        values: &[&[E]],
    ) {
        let (mut at, per_line) = (0, E::PER_DWORD);
        while at < values.len() {
            let (line, half) = ((first + at) / per_line, (first + at) % per_line);
            let count = (per_line - half).min(values.len() - at);
            if count == per_line {
                let pair = [values[at], values[at + per_line - 1]];
                let line = &mut self.dwords[line * self.width..][..pair[0].len()];
                E::pair(isa, pair, line);
            } else {
                for (pair, &x) in { self.numbers(line) }
                    .chunks_exact_mut(per_line)
                    .zip(values[at])
                {
                    pair[half] = x;
                }
            }
            at += count;
        }
    }
}

/// Keys and values of one element type.
pub(crate) struct Kv<E> {
    /// `kv_heads · head_dim`: half a row.
    pub(crate) half: usize,
    pub(crate) step: Vec<E>,
    blocks: Blocks,
    layers: Vec<Lines>,
}

/// The size of blocks, and what is in them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// Positions of a block.
    pub(crate) size: usize,
    /// Components of a head in panels, or `None` for rows.
    pub(crate) panels: Option<usize>,
}

/// Keys and values.
pub(crate) enum KvStore {
    F32(Kv<f32>),
    Bf16(Kv<bf16>),
}

impl KvStore {
    /// Allocates `num_blocks` zeroed blocks; the system provides pages when they are first written.
    pub(crate) fn new(
        dtype: CpuDtype,
        layers: usize,
        half: usize,
        step_tokens: usize,
        (num_blocks, blocks): (usize, Blocks),
    ) -> Result<Self, Error> {
        match dtype {
            CpuDtype::F32 => {
                Kv::new(layers, half, step_tokens, (num_blocks, blocks)).map(Self::F32)
            }
            CpuDtype::Bf16 => {
                // A block of one position has no pairs.
                let panels = blocks.panels.filter(|_| blocks.size > 1);
                let blocks = Blocks { panels, ..blocks };
                Kv::new(layers, half, step_tokens, (num_blocks, blocks)).map(Self::Bf16)
            }
        }
    }
}

/// The keys and values of one layer, of all tokens of a step.
pub(crate) enum StepKv {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

impl KvStore {
    /// Allocates the keys and values of a step of `tokens` tokens, apart from the pool.
    pub(crate) fn step_of(&self, tokens: usize) -> Result<StepKv, Error> {
        match self {
            Self::F32(kv) => Ok(StepKv::F32(zeroed(tokens * 2 * kv.half)?)),
            Self::Bf16(kv) => Ok(StepKv::Bf16(zeroed(tokens * 2 * kv.half)?)),
        }
    }

    /// Exchanges the room for a step's keys and values.
    ///
    /// # Panics
    /// If `step` is of another element type.
    pub(crate) fn swap_step(&mut self, step: &mut StepKv) {
        match (self, step) {
            (Self::F32(kv), StepKv::F32(step)) => std::mem::swap(&mut kv.step, step),
            (Self::Bf16(kv), StepKv::Bf16(step)) => std::mem::swap(&mut kv.step, step),
            _ => unreachable!("a store makes steps of its own type"),
        }
    }
}

fn zeroed<E: bytemuck::Zeroable>(len: usize) -> Result<Vec<E>, Error> {
    bytemuck::try_zeroed_vec(len).map_err(|()| no_room::<E>(len))
}

fn no_room<E>(len: usize) -> Error {
    Error::Allocation {
        what: "KV blocks; lower `kv_bytes` or `num_blocks`",
        bytes: len as u64 * size_of::<E>() as u64,
    }
}

/// The keys and values of one head in a block.
#[derive(Clone, Copy)]
pub(crate) struct HeadPanels<'a> {
    /// `[head_dim / PER_DWORD][block_size]`.
    pub(crate) keys: &'a [u32],
    /// `[block_size / PER_DWORD][head_dim]`.
    pub(crate) values: &'a [u32],
}

impl<E: KvElement> Kv<E> {
    fn new(
        layers: usize,
        half: usize,
        step_tokens: usize,
        (num_blocks, blocks): (usize, Blocks),
    ) -> Result<Self, Error> {
        let dwords = num_blocks * blocks.size * 2 * half / E::PER_DWORD;
        let layer = |_| Lines::try_zeroed(dwords).ok_or_else(|| no_room::<u32>(dwords));
        Ok(Self {
            half,
            step: zeroed(step_tokens * 2 * half)?,
            blocks,
            layers: (0..layers).map(layer).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the number of positions of a block in panels; `None` if blocks are rows.
    pub(crate) fn panels(&self) -> Option<usize> {
        self.blocks.panels.map(|_| self.blocks.size)
    }

    /// Returns a row of the step.
    pub(crate) fn token(&self, token: usize) -> &[E] {
        let width = 2 * self.half;
        &self.step[token * width..][..width]
    }

    /// Returns a row of the pool, whose blocks are rows.
    pub(crate) fn slot(&self, layer: usize, slot: usize) -> &[E] {
        let width = 2 * self.half / E::PER_DWORD;
        bytemuck::cast_slice(&self.layers[layer][slot * width..][..width])
    }

    /// Returns the keys and values of a head in a block of panels.
    pub(crate) fn head(&self, layer: usize, block: usize, head: usize) -> HeadPanels<'_> {
        let half = self.blocks.size * self.half / E::PER_DWORD;
        let (keys, values) = self.layers[layer][block * 2 * half..][..2 * half].split_at(half);
        let len = self.blocks.size * self.blocks.panels.unwrap_or(0) / E::PER_DWORD;
        HeadPanels {
            keys: &keys[head * len..][..len],
            values: &values[head * len..][..len],
        }
    }

    /// Copies the rows of tokens from `token` on to slots of `layer` from `slot` on, which lie in one
    /// block.
    pub(crate) fn keep(
        &mut self,
        isa: Supported,
        layer: usize,
        (token, slot): (usize, usize),
        count: usize,
    ) {
        let row = 2 * self.half;
        let rows = &self.step[token * row..][..count * row];
        let layer = &mut self.layers[layer];
        let Some(dim) = self.blocks.panels else {
            let width = row / E::PER_DWORD;
            layer[slot * width..][..count * width].copy_from_slice(bytemuck::cast_slice(rows));
            return;
        };
        let size = self.blocks.size;
        let half = size * self.half / E::PER_DWORD;
        let (block, first) = (slot / size, slot % size);
        let (keys, values) = layer[block * 2 * half..][..2 * half].split_at_mut(half);
        let len = size * dim / E::PER_DWORD;
        let heads = keys.chunks_exact_mut(len).zip(values.chunks_exact_mut(len));
        for (head, (dwords, values)) in heads.enumerate() {
            let width = size;
            let mut keys = Panels { dwords, width };
            let (dwords, width) = (values, dim);
            let mut values = Panels { dwords, width };
            let mut at = 0;
            while at < count {
                // Up to the next multiple of a group, so that whole groups are put in place together.
                let together = (GROUP - (first + at) % GROUP).min(count - at);
                let (mut key_rows, mut value_rows) =
                    ([[].as_slice(); GROUP], [[].as_slice(); GROUP]);
                for i in 0..together {
                    let (k, v) = rows[(at + i) * row..][..row].split_at(self.half);
                    key_rows[i] = &k[head * dim..][..dim];
                    value_rows[i] = &v[head * dim..][..dim];
                }
                keys.put_keys(isa, first + at, &key_rows[..together]);
                values.put_values(isa, first + at, &value_rows[..together]);
                at += together;
            }
        }
    }
}

/// Rounds one token's keys and values into its row. See the module's note on infinities.
pub(crate) fn place<E: KvElement>(
    isa: Supported,
    keys: &[f32],
    values: &[f32],
    head_dim: usize,
    row: &mut [E],
) {
    let (key_row, value_row) = row.split_at_mut(keys.len());
    E::round(isa, keys, key_row);
    E::round(isa, values, value_row);
    let heads = key_row
        .chunks_exact_mut(head_dim)
        .zip(value_row.chunks_exact_mut(head_dim));
    for (key, value) in heads {
        // Rounding to bf16 may overflow, so look at what was stored.
        if value.iter().any(|v| !v.widen().is_finite()) {
            key.fill(E::NAN);
            value.fill(E::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn check<E: KvElement>() {
        let isa = Supported::new(Isa::Scalar).unwrap();
        let mut row = [E::default(); 8];
        let values = [1.5, f32::INFINITY, -2.0, 0.25];
        place(isa, &[1.0, 2.0, 3.0, 4.0], &values, 2, &mut row);
        assert!(row[0].widen().is_nan() && row[1].widen().is_nan());
        let rest = row[2..].iter().map(|x| x.widen());
        assert!(rest.eq([3.0, 4.0, 0.0, 0.0, -2.0, 0.25]));
    }

    /// Numbers of a layer's rows, each another.
    fn rows<E: KvElement>(isa: Supported, count: usize, width: usize) -> Vec<E> {
        let numbers: Vec<f32> = (0..count * width).map(|i| (i % 251) as f32).collect();
        let mut rows = vec![E::default(); count * width];
        E::round(isa, &numbers, &mut rows);
        rows
    }

    /// Rows that are kept in pieces are in blocks of panels what they are in rows.
    fn check_blocks<E: KvElement>(dim: usize, size: usize, pieces: &[usize]) {
        let (heads, tokens) = (2, pieces.iter().sum::<usize>());
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            let blocks = |panels| (tokens.div_ceil(size), Blocks { size, panels });
            let mut stores = [blocks(Some(dim)), blocks(None)]
                .map(|blocks| Kv::<E>::new(1, heads * dim, tokens, blocks).unwrap());
            for store in &mut stores {
                store.step = rows(isa, tokens, 2 * heads * dim);
                let mut first = 0;
                for &count in pieces {
                    let mut at = first;
                    while at < first + count {
                        let end = (first + count).min((at / size + 1) * size);
                        store.keep(isa, 0, (at, at), end - at);
                        at = end;
                    }
                    first += count;
                }
                // A position that is computed again leaves those beside it as they are.
                for at in (0..tokens).step_by(2) {
                    store.keep(isa, 0, (at, at), 1);
                }
            }
            let [panels, expected] = stores;
            for (p, head) in (0..tokens).flat_map(|p| [(p, 0), (p, 1)]) {
                let (keys, values) = expected.slot(0, p).split_at(heads * dim);
                let found = panels.head(0, p / size, head);
                let (at, per) = (p % size, E::PER_DWORD);
                let number =
                    |line: &[u32], i: usize| bytemuck::cast_slice::<u32, E>(line)[i].widen();
                for d in 0..dim {
                    let key = number(&found.keys[d / per * size..], at * per + d % per);
                    let value = number(&found.values[at / per * dim..], d * per + at % per);
                    let expected = (keys[head * dim + d].widen(), values[head * dim + d].widen());
                    assert_eq!(
                        (key, value),
                        expected,
                        "{isa:?} {dim} {size} {p} {head} {d}"
                    );
                }
            }
        }
    }

    #[test]
    fn blocks_hold_what_is_put_there_in_pieces() {
        for (dim, size) in [(24, 2), (32, 16), (40, 4), (72, 16), (128, 16), (128, 64)] {
            for pieces in [&[64, 1, 1, 3][..], &[5, 16, 33], &[1; 40]] {
                check_blocks::<f32>(dim, size, pieces);
                check_blocks::<bf16>(dim, size, pieces);
            }
        }
        check_blocks::<f32>(6, 1, &[3, 1]);
    }

    #[test]
    fn values_that_are_not_finite_become_nan_keys() {
        check::<f32>();
        check::<bf16>();
    }
}
