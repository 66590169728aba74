//! Attention on AMX tiles: scores, softmax and weighted values of 16 queries at a time.
//!
//! Everything is transposed, so that keys enter as they are stored, and so that the softmax of 16
//! queries runs in 16 lanes of vectors without ever adding across lanes:
//!
//! ```text
//! scoresᵀ[key][query]  = keys[key][d]   · queriesᵀ[d][query]      64 keys by 16 queries
//! outᵀ[d][query]      += valuesᵀ[d][key] · weightsᵀ[key][query]   a head by 16 queries
//!
//! keys     [4][blocks] tiles of 16 keys by 32 components
//! values   [head tiles][2] tiles of 16 components by 32 keys
//! queries  per 16 queries: [blocks] tiles of 16 pairs of components by 16 queries
//! weights  [2] tiles of 16 pairs of keys by 16 queries
//! out      per 16 queries: [head tiles] tiles of 16 components by 16 queries, f32
//! ```
//!
//! Components beyond the head's and keys beyond the context's are 0. Where a tile of keys is not
//! full, or lies beyond a query, what is left out would have added zeros: which lanes share a
//! tile, and how far the tile reaches, changes no bit but perhaps the sign of a zero, and the
//! last step makes every zero positive.

use std::arch::{
    asm,
    x86_64::{
        __m512, __m512bh, __m512i, _mm256_maskz_loadu_epi16, _mm512_add_ps, _mm512_castps_si512,
        _mm512_castsi512_ps, _mm512_cmpge_epu32_mask, _mm512_cmpneq_ps_mask, _mm512_cvtepu16_epi32,
        _mm512_cvtne2ps_pbh, _mm512_div_ps, _mm512_fmadd_ps, _mm512_fmsub_ps, _mm512_load_si512,
        _mm512_loadu_ps, _mm512_mask_max_ps, _mm512_maskz_loadu_epi16, _mm512_maskz_loadu_ps,
        _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_or_si512,
        _mm512_permutexvar_epi16, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_setzero_si512, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
        _mm512_sub_ps,
    },
};

use super::{
    Isa, NR, Supported,
    amx::{Tiles, exp2, mask},
    transpose::transposed,
};
use crate::kernels::{
    lines::Lines,
    tiles::{DEPTH, ROWS, TILE},
};

/// Tiles of keys among 64.
const GROUPS: usize = NR / ROWS;
/// Tiles of values, 32 keys each, among 64 keys.
const HALVES: usize = NR / DEPTH;

/// Queries of one key-value head, and the keys and values that they are at. Only made where the
/// instructions are available.
#[derive(Debug)]
pub(crate) struct Flash {
    head_dim: usize,
    keys: Lines,
    values: Lines,
    queries: Lines,
    scores: Lines,
    weights: Lines,
    out: Lines,
    lanes: Vec<Lanes>,
    start: u32,
}

/// State of 16 queries.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Lanes {
    /// Running maximum of scaled scores, as powers of 2.
    max: [f32; ROWS],
    sum: [f32; ROWS],
    position: [u32; ROWS],
}

impl Lanes {
    const NEW: Self = Self {
        max: [f32::NEG_INFINITY; ROWS],
        sum: [0.0; ROWS],
        position: [0; ROWS],
    };
}

impl Flash {
    /// Makes room for `queries` of heads of `head_dim`.
    ///
    /// # Panics
    /// If `isa` has no tiles.
    pub(crate) fn new(isa: Supported, head_dim: usize, queries: usize) -> Self {
        assert!(isa.isa() == Isa::AmxBf16, "no tiles on this path");
        let mut flash = Self {
            head_dim,
            keys: Lines::zeroed(GROUPS * head_dim.div_ceil(DEPTH) * TILE),
            values: Lines::zeroed(HALVES * head_dim.div_ceil(ROWS) * TILE),
            queries: Lines::zeroed(0),
            scores: Lines::zeroed(NR * ROWS),
            weights: Lines::zeroed(HALVES * TILE),
            out: Lines::zeroed(0),
            lanes: Vec::new(),
            start: 0,
        };
        flash.begin(queries);
        flash
    }

    /// Returns about how many bytes the buffers for `queries` queries take.
    pub(crate) fn bytes(head_dim: usize, queries: usize) -> usize {
        let (blocks, tiles) = (head_dim.div_ceil(DEPTH), head_dim.div_ceil(ROWS));
        let count = queries.div_ceil(ROWS);
        (GROUPS * blocks + HALVES * tiles + count * (blocks + tiles)) * TILE * size_of::<u32>()
    }

    /// Returns the number of components of a head in tiles of 32.
    fn blocks(&self) -> usize {
        self.head_dim.div_ceil(DEPTH)
    }

    /// Returns the number of components of a head in tiles of 16.
    fn tiles(&self) -> usize {
        self.head_dim.div_ceil(ROWS)
    }

    /// Forgets all queries, and takes `queries` new ones, yet to be set.
    pub(crate) fn begin(&mut self, queries: usize) {
        let count = queries.div_ceil(ROWS);
        self.queries.fit(count * self.blocks() * TILE);
        self.out.fit(count * self.tiles() * TILE);
        self.lanes.clear();
        self.lanes.resize(count, Lanes::NEW);
    }

    /// Rounds up to 16 queries, `positions` of which do not fall, and puts them in place `index`.
    pub(crate) fn set_queries(&mut self, index: usize, queries: &[&[f32]], positions: &[u32]) {
        assert!(
            (1..=ROWS).contains(&queries.len()) && positions.len() == queries.len(),
            "not up to {ROWS} queries"
        );
        assert!(
            queries.iter().all(|q| q.len() == self.head_dim),
            "a query of another size"
        );
        // Lanes beyond the last query repeat the last query.
        let position = |i: usize| positions[i.min(positions.len() - 1)];
        self.lanes[index].position = std::array::from_fn(position);
        let len = self.blocks() * TILE;
        let out = &mut self.queries[index * len..][..len];
        // SAFETY: the features were detected; every query has `head_dim` components, for which
        // `out` has room.
        unsafe { pack_queries(queries, self.head_dim, out) };
    }

    /// Puts up to 64 keys and values in place, those of positions `start..`.
    pub(crate) fn set_keys(&mut self, start: u32, keys: &[&[u16]], values: &[&[u16]]) {
        assert!(
            (1..=NR).contains(&keys.len()) && keys.len() == values.len(),
            "not up to {NR} keys"
        );
        assert!(
            keys.iter().chain(values).all(|x| x.len() == self.head_dim),
            "a key or value of another size"
        );
        self.start = start;
        // SAFETY: the features were detected; every key and value has `head_dim` components, and
        // the buffers have room for 64 of them.
        unsafe {
            pack_keys(keys, self.head_dim, &mut self.keys);
            pack_values(values, self.head_dim, &mut self.values);
        }
    }

    /// Takes the keys and values in place into account. `scale` multiplies scores.
    pub(crate) fn attend(&mut self, tiles: &Tiles, scale: f32) {
        let (blocks, head_tiles) = (self.blocks(), self.tiles());
        let start = self.start;
        for (index, lanes) in self.lanes.iter_mut().enumerate() {
            let [first, .., last] = lanes.position;
            let Some(keys) = last.checked_sub(start) else {
                // All 16 queries have seen all keys that they may see.
                continue;
            };
            let keys = (keys as usize + 1).min(NR);
            let queries = &self.queries[index * blocks * TILE..][..blocks * TILE];
            let out = &mut self.out[index * head_tiles * TILE..][..head_tiles * TILE];
            tiles.scores(&self.keys, queries, keys.div_ceil(DEPTH), &mut self.scores);
            let tile = Softmax {
                scores: &self.scores,
                weights: &mut self.weights,
                groups: keys.div_ceil(ROWS),
                start,
                scale,
            };
            let all_visible = first
                .checked_sub(start)
                .is_some_and(|n| n as usize >= NR - 1);
            // SAFETY: the features were detected, and the buffers hold 64 by 16 scores and weights.
            unsafe {
                let factor = if all_visible {
                    tile.run::<true>(lanes)
                } else {
                    tile.run::<false>(lanes)
                };
                if start > 0 {
                    rescale(out, factor);
                }
            }
            let halves = keys.div_ceil(DEPTH);
            tiles.add_values(&self.values, &self.weights, halves, start == 0, out);
        }
    }

    /// Gives the outputs of the 16 queries in place `index` to `f(i, components)`, 16 components of
    /// query `i` at a time, in order.
    pub(crate) fn finish(&self, index: usize, rows: &mut [[f32; ROWS]]) {
        let head_tiles = self.tiles();
        assert!(rows.len() == head_tiles * ROWS, "another number of tiles");
        let out = &self.out[index * head_tiles * TILE..][..head_tiles * TILE];
        // SAFETY: the features were detected; `rows` has as many tiles as `out`.
        unsafe { normalise(out, &self.lanes[index].sum, rows) };
    }
}

/// # Safety
/// The instructions; `1..=16` queries of `head_dim`; `out` holds `⌈head_dim / 32⌉` tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pack_queries(queries: &[&[f32]], head_dim: usize, out: &mut [u32]) {
    for (block, out) in out.chunks_exact_mut(TILE).enumerate() {
        let first = block * DEPTH;
        let left = head_dim - first;
        let mut lines = [_mm512_setzero_si512(); ROWS];
        for (line, query) in lines.iter_mut().zip(queries) {
            // SAFETY: lanes beyond the query's end are masked; where all are, the pointer is not
            // used.
            let (low, high) = unsafe {
                let from = query.as_ptr().add(first);
                (
                    _mm512_maskz_loadu_ps(mask(left), from),
                    _mm512_maskz_loadu_ps(mask(left.saturating_sub(16)), from.wrapping_add(16)),
                )
            };
            *line = as_dwords(_mm512_cvtne2ps_pbh(high, low));
        }
        let lines = transposed(lines);
        for (out, line) in out.chunks_exact_mut(16).zip(lines) {
            // SAFETY: 16 dwords.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), line) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn as_dwords(x: __m512bh) -> __m512i {
    // SAFETY: both types are 64 bytes without invalid values.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(x) }
}

/// Returns a mask of the lowest `n` of 32 lanes.
fn wide_mask(n: usize) -> u32 {
    if n >= 32 { u32::MAX } else { (1 << n) - 1 }
}

/// # Safety
/// The instructions; up to 64 keys of `head_dim`; `out` holds 4 by `⌈head_dim / 32⌉` tiles.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_keys(keys: &[&[u16]], head_dim: usize, out: &mut [u32]) {
    let blocks = head_dim.div_ceil(DEPTH);
    for (i, key) in keys.iter().enumerate() {
        let (group, row) = (i / ROWS, i % ROWS);
        for block in 0..blocks {
            let first = block * DEPTH;
            // SAFETY: components beyond the head's are masked; row `row` of a tile of `out`.
            unsafe {
                let from = key.as_ptr().add(first).cast();
                let line = _mm512_maskz_loadu_epi16(wide_mask(head_dim - first), from);
                let to = out
                    .as_mut_ptr()
                    .add((group * blocks + block) * TILE + row * 16);
                _mm512_storeu_si512(to.cast(), line);
            }
        }
    }
}

/// # Safety
/// The instructions; `1..=64` values of `head_dim`; `out` holds `⌈head_dim / 16⌉` by 2 tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_values(values: &[&[u16]], head_dim: usize, out: &mut [u32]) {
    let halves = values.len().div_ceil(DEPTH);
    for tile in 0..head_dim.div_ceil(ROWS) {
        let first = tile * ROWS;
        let mask = mask(head_dim - first);
        for half in 0..halves {
            let mut lines = [_mm512_setzero_si512(); ROWS];
            let pairs = values[half * DEPTH..].chunks(2);
            for (line, pair) in lines.iter_mut().zip(pairs) {
                // SAFETY: components beyond the head's are masked.
                let widened = |value: &[u16]| unsafe {
                    let from = value.as_ptr().add(first).cast();
                    _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from))
                };
                *line = widened(pair[0]);
                if let Some(odd) = pair.get(1) {
                    *line = _mm512_or_si512(*line, _mm512_slli_epi32::<16>(widened(odd)));
                }
            }
            let lines = transposed(lines);
            let out = &mut out[(tile * HALVES + half) * TILE..][..TILE];
            for (out, line) in out.chunks_exact_mut(16).zip(lines) {
                // SAFETY: 16 dwords.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), line) };
            }
        }
    }
}

/// A step of the running softmax of 16 queries.
struct Softmax<'a> {
    /// `[64][16]`, f32.
    scores: &'a [u32],
    /// `[64 / 2][16]` pairs of bf16.
    weights: &'a mut [u32],
    /// Sixteens of keys to look at.
    groups: usize,
    /// Position of the first key.
    start: u32,
    scale: f32,
}

impl Softmax<'_> {
    /// Makes weights of scores, 0 for keys beyond a query's position, updates maxima and sums,
    /// and returns the factors for what was accumulated under the old maxima.
    ///
    /// # Safety
    /// The instructions; 64 by 16 scores and weights, at most 4 groups.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn run<const ALL_VISIBLE: bool>(self, lanes: &mut Lanes) -> __m512 {
        let scale = _mm512_set1_ps(self.scale * std::f32::consts::LOG2_E);
        // SAFETY: 16 numbers each.
        let (position, old, old_sum) = unsafe {
            (
                _mm512_load_si512(lanes.position.as_ptr().cast()),
                _mm512_loadu_ps(lanes.max.as_ptr()),
                _mm512_loadu_ps(lanes.sum.as_ptr()),
            )
        };
        let keys = self.groups * ROWS;
        // SAFETY: one of 64 keys.
        let score =
            |key: usize| unsafe { _mm512_loadu_ps(self.scores.as_ptr().add(key * ROWS).cast()) };
        let visible = |key: usize| {
            if ALL_VISIBLE {
                u16::MAX
            } else {
                let key = _mm512_set1_epi32((self.start + key as u32).cast_signed());
                _mm512_cmpge_epu32_mask(position, key)
            }
        };
        // NaN never becomes a maximum: the second operand would be the result.
        let mut max = [_mm512_set1_ps(f32::NEG_INFINITY); 4];
        for first in (0..keys).step_by(4) {
            for (i, max) in max.iter_mut().enumerate() {
                let scaled = _mm512_mul_ps(score(first + i), scale);
                *max = _mm512_mask_max_ps(*max, visible(first + i), scaled, *max);
            }
        }
        let new = _mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3]));
        let new = _mm512_max_ps(new, old);
        let factor = exp2(_mm512_sub_ps(old, new));
        let mut sums = [_mm512_setzero_ps(); 4];
        // Lane 2 i of 16 bits from lane i of the low half, lane 2 i + 1 from lane i of the high.
        let mut order = [0u16; 32];
        for (i, order) in order.iter_mut().enumerate() {
            *order = (i / 2 + i % 2 * 16) as u16;
        }
        // SAFETY: 64 bytes.
        let order = unsafe { std::mem::transmute::<[u16; 32], __m512i>(order) };
        for first in (0..keys).step_by(4) {
            let mut weights = [_mm512_setzero_ps(); 4];
            for (i, (weight, sum)) in weights.iter_mut().zip(&mut sums).enumerate() {
                let x = _mm512_fmsub_ps(score(first + i), scale, new);
                *weight = _mm512_maskz_mov_ps(visible(first + i), exp2(x));
                *sum = _mm512_add_ps(*sum, *weight);
            }
            for (i, pair) in weights.chunks_exact(2).enumerate() {
                let pair = as_dwords(_mm512_cvtne2ps_pbh(pair[1], pair[0]));
                let pair = _mm512_permutexvar_epi16(order, pair);
                // SAFETY: one of 32 pairs of keys.
                unsafe {
                    let to = self.weights.as_mut_ptr().add((first / 2 + i) * 16);
                    _mm512_storeu_si512(to.cast(), pair);
                }
            }
        }
        if !self.groups.is_multiple_of(2) {
            self.weights[keys / 2 * 16..][..TILE / 2].fill(0);
        }
        let sum = _mm512_add_ps(
            _mm512_add_ps(sums[0], sums[1]),
            _mm512_add_ps(sums[2], sums[3]),
        );
        let sum = _mm512_fmadd_ps(old_sum, factor, sum);
        // SAFETY: 16 numbers each.
        unsafe {
            _mm512_storeu_ps(lanes.max.as_mut_ptr(), new);
            _mm512_storeu_ps(lanes.sum.as_mut_ptr(), sum);
        }
        factor
    }
}

/// Multiplies every line of 16 queries by their factors.
///
/// # Safety
/// AVX-512F; a whole number of lines.
#[target_feature(enable = "avx512f")]
unsafe fn rescale(out: &mut [u32], factor: __m512) {
    if _mm512_cmpneq_ps_mask(factor, _mm512_set1_ps(1.0)) == 0 {
        return;
    }
    for line in out.chunks_exact_mut(16) {
        let line = line.as_mut_ptr().cast();
        // SAFETY: 16 numbers.
        unsafe { _mm512_storeu_ps(line, _mm512_mul_ps(_mm512_loadu_ps(line), factor)) };
    }
}

/// Divides by the sums, and turns lines of 16 queries into lines of 16 components.
///
/// # Safety
/// AVX-512F; as many lines in `rows` as in `out`, a whole number of tiles.
#[target_feature(enable = "avx512f")]
unsafe fn normalise(out: &[u32], sum: &[f32; ROWS], rows: &mut [[f32; ROWS]]) {
    // SAFETY: 16 numbers.
    let sum = unsafe { _mm512_loadu_ps(sum.as_ptr()) };
    for (out, rows) in out.chunks_exact(TILE).zip(rows.chunks_exact_mut(ROWS)) {
        let mut lines = [_mm512_setzero_si512(); ROWS];
        for (line, x) in lines.iter_mut().zip(out.chunks_exact(16)) {
            // SAFETY: 16 numbers.
            let x = unsafe { _mm512_loadu_ps(x.as_ptr().cast()) };
            // Adding zero makes a negative zero positive.
            let x = _mm512_add_ps(_mm512_div_ps(x, sum), _mm512_setzero_ps());
            *line = _mm512_castps_si512(x);
        }
        for (row, line) in rows.iter_mut().zip(transposed(lines)) {
            // SAFETY: 16 numbers.
            unsafe { _mm512_storeu_ps(row.as_mut_ptr(), _mm512_castsi512_ps(line)) };
        }
    }
}

impl Tiles {
    /// `out[key][query]`: scores of the first `halves · 32` of 64 keys with 16 queries.
    #[inline]
    fn scores(&self, keys: &[u32], queries: &[u32], halves: usize, out: &mut [u32]) {
        let blocks = queries.len() / TILE;
        let is_whole = blocks > 0 && queries.len() == blocks * TILE;
        let fits = keys.len() >= GROUPS * blocks * TILE && out.len() >= NR * ROWS;
        let is_half = (1..=HALVES).contains(&halves);
        assert!(is_whole && fits && is_half, "shapes of scores");
        // SAFETY: in each of `blocks` rounds the block reads one tile of queries and one of each
        // of four (or, in a half, two) groups of keys; it writes 16 lines for each group.
        unsafe {
            if halves == 2 {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    "tileloadd tmm4, [{queries} + {line}]",
                    "tileloadd tmm5, [{a} + {line}]",
                    "tdpbf16ps tmm0, tmm5, tmm4",
                    "tileloadd tmm6, [{b} + {line}]",
                    "tdpbf16ps tmm1, tmm6, tmm4",
                    "tileloadd tmm7, [{c} + {line}]",
                    "tdpbf16ps tmm2, tmm7, tmm4",
                    "tileloadd tmm5, [{d} + {line}]",
                    "tdpbf16ps tmm3, tmm5, tmm4",
                    "add {queries}, 1024",
                    "add {a}, 1024",
                    "add {b}, 1024",
                    "add {c}, 1024",
                    "add {d}, 1024",
                    "dec {blocks}",
                    "jnz 2b",
                    "tilestored [{out} + {line}], tmm0",
                    "tilestored [{out} + {line} + 1024], tmm1",
                    "tilestored [{out} + {line} + 2048], tmm2",
                    "tilestored [{out} + {line} + 3072], tmm3",
                    queries = inout(reg) queries.as_ptr() => _,
                    a = inout(reg) keys.as_ptr() => _,
                    b = inout(reg) keys.as_ptr().add(blocks * TILE) => _,
                    c = inout(reg) keys.as_ptr().add(2 * blocks * TILE) => _,
                    d = inout(reg) keys.as_ptr().add(3 * blocks * TILE) => _,
                    blocks = inout(reg) blocks => _,
                    out = in(reg) out.as_mut_ptr(),
                    line = in(reg) 64usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            } else {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "2:",
                    "tileloadd tmm4, [{queries} + {line}]",
                    "tileloadd tmm5, [{a} + {line}]",
                    "tdpbf16ps tmm0, tmm5, tmm4",
                    "tileloadd tmm6, [{b} + {line}]",
                    "tdpbf16ps tmm1, tmm6, tmm4",
                    "add {queries}, 1024",
                    "add {a}, 1024",
                    "add {b}, 1024",
                    "dec {blocks}",
                    "jnz 2b",
                    "tilestored [{out} + {line}], tmm0",
                    "tilestored [{out} + {line} + 1024], tmm1",
                    queries = inout(reg) queries.as_ptr() => _,
                    a = inout(reg) keys.as_ptr() => _,
                    b = inout(reg) keys.as_ptr().add(blocks * TILE) => _,
                    blocks = inout(reg) blocks => _,
                    out = in(reg) out.as_mut_ptr(),
                    line = in(reg) 64usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    }

    /// `out[d][query] = (0 or out) + Σ values[d][key] · weights[key][query]` over the first
    /// `halves · 32` of 64 keys.
    #[inline]
    fn add_values(
        &self,
        values: &[u32],
        weights: &[u32],
        halves: usize,
        is_first: bool,
        out: &mut [u32],
    ) {
        let count = out.len() / TILE;
        assert!(
            count > 0
                && out.len() == count * TILE
                && values.len() >= HALVES * count * TILE
                && weights.len() >= HALVES * TILE
                && (1..=HALVES).contains(&halves),
            "shapes of values"
        );
        // SAFETY: the block reads two tiles of weights and, in each of `count` rounds, two tiles
        // of values and one of `out`, which it writes.
        unsafe {
            asm!(
                "tileloadd tmm6, [{weights} + {line}]",
                "tileloadd tmm7, [{weights} + {line} + 1024]",
                "2:",
                "tilezero tmm0",
                "test {first:e}, {first:e}",
                "jnz 3f",
                "tileloadd tmm0, [{out} + {line}]",
                "3:",
                "tileloadd tmm1, [{values} + {line}]",
                "tdpbf16ps tmm0, tmm1, tmm6",
                "cmp {halves}, 2",
                "jne 4f",
                "tileloadd tmm2, [{values} + {line} + 1024]",
                "tdpbf16ps tmm0, tmm2, tmm7",
                "4:",
                "tilestored [{out} + {line}], tmm0",
                "add {values}, 2048",
                "add {out}, 1024",
                "dec {count}",
                "jnz 2b",
                weights = in(reg) weights.as_ptr(),
                values = inout(reg) values.as_ptr() => _,
                out = inout(reg) out.as_mut_ptr() => _,
                count = inout(reg) count => _,
                halves = in(reg) halves,
                first = in(reg) u32::from(is_first),
                line = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn numbers(seed: usize, len: usize) -> Vec<f32> {
        let number = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 24) as f32;
        (0..len)
            .map(|i| number(seed * 7919 + i) / 64.0 - 2.0)
            .collect()
    }

    fn bits(x: &[f32]) -> Vec<u16> {
        x.iter().map(|&x| bf16::from_f32(x).to_bits()).collect()
    }

    /// Computes attention of queries at `positions` over all keys up to the last of them.
    fn attend(
        isa: Supported,
        dim: usize,
        (queries, positions): (&[&[f32]], &[u32]),
        (keys, values): (&[u16], &[u16]),
    ) -> Vec<Vec<f32>> {
        let mut flash = Flash::new(isa, dim, 1);
        flash.begin(queries.len());
        for (i, (queries, positions)) in
            queries.chunks(ROWS).zip(positions.chunks(ROWS)).enumerate()
        {
            flash.set_queries(i, queries, positions);
        }
        let tiles = Tiles::new(isa);
        let end = positions[positions.len() - 1] as usize + 1;
        for start in (0..end).step_by(NR) {
            let range = start * dim..end.min(start + NR) * dim;
            let keys: Vec<&[u16]> = keys[range.clone()].chunks(dim).collect();
            let values: Vec<&[u16]> = values[range].chunks(dim).collect();
            flash.set_keys(u32::try_from(start).unwrap(), &keys, &values);
            flash.attend(&tiles, 0.3);
        }
        let mut rows = vec![[f32::NAN; ROWS]; dim.next_multiple_of(ROWS)];
        (0..queries.len())
            .map(|i| {
                flash.finish(i / ROWS, &mut rows);
                let components = rows[i % ROWS..].iter().step_by(ROWS).flatten();
                components.copied().take(dim).collect()
            })
            .collect()
    }

    /// Ragged heads and contexts against f64, and each query alone against all together.
    #[test]
    fn attention_is_right_and_queries_do_not_depend_on_each_other() {
        let Some(isa) = Supported::new(Isa::AmxBf16) else {
            eprintln!("SKIP: no AMX on this machine");
            return;
        };
        for (dim, first, count) in [
            (2, 0, 1),
            (24, 0, 40),
            (32, 61, 5),
            (128, 100, 37),
            (80, 15, 64),
        ] {
            let end = first + count;
            let q = numbers(1, count * dim);
            let (k, v) = (bits(&numbers(2, end * dim)), bits(&numbers(3, end * dim)));
            let queries: Vec<&[f32]> = q.chunks(dim).collect();
            let positions: Vec<u32> = (first..end).map(|p| u32::try_from(p).unwrap()).collect();
            let together = attend(isa, dim, (&queries, &positions), (&k, &v));
            let wide = |x: &[u16], i: usize| -> Vec<f64> {
                let row = &x[i * dim..][..dim];
                row.iter().map(|&x| bf16::from_bits(x).to_f64()).collect()
            };
            for (i, got) in together.iter().enumerate() {
                let visible = positions[i] as usize + 1;
                let alone = attend(isa, dim, (&queries[i..=i], &positions[i..=i]), (&k, &v));
                assert_eq!(&alone[0], got, "dim {dim}, query {i}");
                let scores: Vec<f64> = (0..visible)
                    .map(|j| {
                        let terms = queries[i].iter().zip(wide(&k, j));
                        terms.map(|(&q, k)| f64::from(q) * k).sum::<f64>() * f64::from(0.3f32)
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for (d, &got) in got.iter().enumerate() {
                    let terms = weights.iter().enumerate();
                    let terms = terms.map(|(j, w)| w / sum * wide(&v, j)[d]);
                    let (exact, size) = terms.fold((0.0, 0.0), |(a, b), x| (a + x, b + x.abs()));
                    // Weights were rounded to bf16.
                    let bound = size * f64::from(bf16::EPSILON) / 2.0 * 1.01 + 1e-5;
                    assert!(
                        (f64::from(got) - exact).abs() <= bound,
                        "dim {dim}, query {i}, {d}: {got} {exact}"
                    );
                }
            }
        }
    }
}
