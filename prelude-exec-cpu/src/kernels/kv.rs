//! Keys and values: the block pool, and one layer's of the step.
//!
//! ```text
//! row of a position: | K of head 0 | K of head 1 | … | V of head 0 | V of head 1 | … |
//! step buffer        [max_step_tokens] rows, overwritten by each layer
//! pool, per layer    [num_blocks · block_size] rows
//! ```
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
    CpuDtype, Supported, native,
    panel::{NR, Panel},
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
    /// Writes a key to column `lane` of a panel `[head_dim / PER_DWORD][64]`.
    fn pack_key(key: &[Self], lane: usize, panel: &mut [u32]);
    /// Writes up to 64 values to the rows of panels `[64 / PER_DWORD][64]` of 64 components each.
    fn pack_values(isa: Supported, values: &[&[Self]], panels: &mut [u32]);
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

    fn pack_key(key: &[Self], lane: usize, panel: &mut [u32]) {
        for (line, &x) in panel.chunks_exact_mut(NR).zip(key) {
            line[lane] = x.to_bits();
        }
    }

    fn pack_values(_: Supported, values: &[&[Self]], panels: &mut [u32]) {
        for (lane, value) in values.iter().enumerate() {
            for (j, part) in value.chunks(NR).enumerate() {
                let line = &mut panels[(j * NR + lane) * NR..][..part.len()];
                line.copy_from_slice(bytemuck::cast_slice(part));
            }
        }
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

    fn pack_key(key: &[Self], lane: usize, panel: &mut [u32]) {
        let pairs = key.as_chunks::<2>().0;
        for (line, [low, high]) in panel.chunks_exact_mut(NR).zip(pairs) {
            line[lane] = u32::from(low.to_bits()) | (u32::from(high.to_bits()) << 16);
        }
    }

    fn pack_values(isa: Supported, values: &[&[Self]], panels: &mut [u32]) {
        for (pair, rows) in values.chunks(2).enumerate() {
            for (j, low) in rows[0].chunks(NR).enumerate() {
                let low = Self::bf16_bits(low);
                let line = &mut panels[(j * NR / 2 + pair) * NR..][..low.len()];
                match rows.get(1) {
                    Some(high) => {
                        let high = &Self::bf16_bits(high)[j * NR..][..low.len()];
                        simd::interleave(isa, low, high, line);
                    }
                    None => line
                        .iter_mut()
                        .zip(low)
                        .for_each(|(x, &low)| *x = low.into()),
                }
            }
        }
    }

    fn bf16_bits(x: &[Self]) -> &[u16] {
        bytemuck::cast_slice(x)
    }

    fn panel(dwords: &[u32]) -> Panel<'_> {
        Panel::Bf16(dwords)
    }
}

/// Writes up to 64 keys to the columns of a panel `[head_dim / PER_DWORD][64]`, as
/// [`KvElement::pack_key`] would one by one.
pub(crate) fn pack_keys<E: KvElement>(isa: Supported, keys: &[&[E]], panel: &mut [u32]) {
    for (group, keys) in keys.chunks(GROUP).enumerate() {
        let first_lane = group * GROUP;
        let done = if keys.len() == GROUP {
            transpose(isa, keys, first_lane, panel)
        } else {
            0
        };
        for (i, key) in keys.iter().enumerate() {
            let rest = &key[done * E::PER_DWORD..];
            E::pack_key(rest, first_lane + i, &mut panel[done * NR..]);
        }
    }
}

/// Keys that are transposed together.
const GROUP: usize = 16;

/// Packs as many leading dwords of 16 keys as instructions allow, and says how many.
fn transpose<E: KvElement>(
    isa: Supported,
    keys: &[&[E]],
    first_lane: usize,
    panel: &mut [u32],
) -> usize {
    let mut rows: [&[u8]; GROUP] = [&[]; GROUP];
    for (row, key) in rows.iter_mut().zip(keys) {
        *row = bytemuck::cast_slice(key);
    }
    let dwords = keys[0].len() / E::PER_DWORD;
    for first in (0..dwords - dwords % GROUP).step_by(GROUP) {
        let out = &mut panel[first * NR + first_lane..];
        if !native::transpose(isa, &rows, first * 4, out) {
            return 0;
        }
    }
    dwords - dwords % GROUP
}

/// Keys and values of one element type.
pub(crate) struct Kv<E> {
    /// `kv_heads · head_dim`: half a row.
    pub(crate) half: usize,
    pub(crate) step: Vec<E>,
    pub(crate) layers: Vec<Vec<E>>,
}

/// Keys and values.
pub(crate) enum KvStore {
    F32(Kv<f32>),
    Bf16(Kv<bf16>),
}

impl KvStore {
    /// Allocates a zeroed pool; the system provides pages when they are first written.
    pub(crate) fn new(
        dtype: CpuDtype,
        layers: usize,
        half: usize,
        step_tokens: usize,
        slots: usize,
    ) -> Result<Self, Error> {
        fn make<E: KvElement>(
            layers: usize,
            half: usize,
            step_tokens: usize,
            slots: usize,
        ) -> Result<Kv<E>, Error> {
            Ok(Kv {
                half,
                step: zeroed(step_tokens * 2 * half)?,
                layers: (0..layers)
                    .map(|_| zeroed(slots * 2 * half))
                    .collect::<Result<_, _>>()?,
            })
        }
        match dtype {
            CpuDtype::F32 => Ok(Self::F32(make(layers, half, step_tokens, slots)?)),
            CpuDtype::Bf16 => Ok(Self::Bf16(make(layers, half, step_tokens, slots)?)),
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

fn zeroed<E: KvElement>(len: usize) -> Result<Vec<E>, Error> {
    bytemuck::try_zeroed_vec(len).map_err(|()| Error::Allocation {
        what: "KV blocks; lower `kv_bytes` or `num_blocks`",
        bytes: len as u64 * size_of::<E>() as u64,
    })
}

impl<E: KvElement> Kv<E> {
    /// Copies a row of the step buffer to a slot of `layer`.
    pub(crate) fn keep(&mut self, layer: usize, token: usize, slot: usize) {
        let width = 2 * self.half;
        self.layers[layer][slot * width..][..width]
            .copy_from_slice(&self.step[token * width..][..width]);
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

    fn check_packing<E: KvElement>() {
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            for (dim, keys) in [(24, 64), (32, 16), (40, 35), (128, 64), (2, 17)] {
                let mut data = vec![E::default(); dim * keys];
                let numbers: Vec<f32> = (0..dim * keys).map(|i| i as f32).collect();
                E::round(isa, &numbers, &mut data);
                let keys: Vec<&[E]> = data.chunks_exact(dim).collect();
                let mut expected = vec![0; dim / E::PER_DWORD * NR];
                let mut got = expected.clone();
                for (lane, key) in keys.iter().enumerate() {
                    E::pack_key(key, lane, &mut expected);
                }
                pack_keys(isa, &keys, &mut got);
                assert_eq!(got, expected, "{isa:?} {dim}");
            }
        }
    }

    #[test]
    fn keys_are_packed_in_groups_as_one_by_one() {
        check_packing::<f32>();
        check_packing::<bf16>();
    }

    fn check_values<E: KvElement>() {
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            for (dim, count) in [(24, 64), (64, 1), (72, 35), (128, 64)] {
                let number = |lane: usize, component: usize| (lane * 3 + component) as f32;
                let rows: Vec<Vec<E>> = (0..count)
                    .map(|lane| {
                        let numbers: Vec<f32> = (0..dim).map(|c| number(lane, c)).collect();
                        let mut row = vec![E::default(); dim];
                        E::round(isa, &numbers, &mut row);
                        row
                    })
                    .collect();
                let values: Vec<&[E]> = rows.iter().map(|row| &row[..]).collect();
                // What an earlier tile left.
                let mut panels = vec![u32::MAX; dim.next_multiple_of(NR) * NR / E::PER_DWORD];
                E::pack_values(isa, &values, &mut panels);
                for lane in 0..count.next_multiple_of(E::PER_DWORD) {
                    for c in 0..dim {
                        let line = c / NR * NR / E::PER_DWORD + lane / E::PER_DWORD;
                        let dword = panels[line * NR + c % NR];
                        let found = match (E::PER_DWORD, lane % 2) {
                            (1, _) => f32::from_bits(dword),
                            (_, 0) => f32::from_bits(dword << 16),
                            _ => f32::from_bits(dword & 0xffff_0000),
                        };
                        let expected = rows.get(lane).map_or(0.0, |row| row[c].widen());
                        assert_eq!(found, expected, "{isa:?} {dim} {lane} {c}");
                    }
                }
            }
        }
    }

    #[test]
    fn values_are_packed_in_pairs_with_zeros_behind_the_last() {
        check_values::<f32>();
        check_values::<bf16>();
    }

    #[test]
    fn values_that_are_not_finite_become_nan_keys() {
        check::<f32>();
        check::<bf16>();
    }
}
