//! Matrix products on Intel AMX: tiles of 16 rows by 64 bytes in their own registers.
//!
//! ```text
//! left    16 rows by 32 inputs, rounded to bf16 and cut into tiles   1 KiB, row after row
//! right   16 lines of a panel by 16 columns: pairs of inputs, as the panel has them
//! sums    16 rows by 16 columns of f32
//! ```
//!
//! `tdpbf16ps` multiplies bf16 pairs and adds to f32 sums; a row of sums depends on the same row
//! of the left tile alone. Every sum starts at zero and takes the inputs in order, 32 at a time,
//! whatever the number of rows: so rows do not depend on how many are multiplied together. Rows
//! beyond the last of a left tile are computed and thrown away. A row that is alone is multiplied
//! in vectors, step by step as the instruction is defined, so that it has the same bits.
//!
//! Instructions are inline assembly, since the compiler's intrinsics are not stable. It keeps
//! nothing in tile registers itself, and each block of assembly here says that it overwrites
//! them; between blocks only their *configuration* has to last, which [`Tiles`] stands for.

mod registers;

use std::arch::{
    asm,
    x86_64::{
        __m512, __m512bh, _mm512_add_ps, _mm512_cvtne2ps_pbh, _mm512_fmadd_ps, _mm512_fnmadd_ps,
        _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_max_ps,
        _mm512_min_ps, _mm512_mul_ps, _mm512_rcp14_ps, _mm512_roundscale_ps, _mm512_scalef_ps,
        _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_sub_ps,
    },
};

pub(crate) use self::registers::Tiles;
pub(super) use self::registers::{SPIN_FLOPS, is_available};

use super::{Isa, NR, Supported};
use crate::{
    kernels::tiles::{DEPTH, ROWS, TILE},
    pool::TileMut,
};

/// Lines of a panel that make a right tile: pairs of inputs.
const LINES: usize = DEPTH / 2;

/// Sums of two left tiles with a panel.
#[repr(align(64))]
pub(crate) struct Sums(pub(crate) [[f32; NR]; 2 * ROWS]);

impl Sums {
    pub(crate) const ZERO: Self = Self([[0.0; NR]; 2 * ROWS]);
}

/// Rounds up to 16 rows of `width` to bf16 and cuts them into left tiles; what a row lacks of its
/// last tile is 0, rows that are missing stay as they are.
///
/// # Panics
/// If `isa` has no tiles, there are more rows than 16, or `out` is not as deep as they.
pub(crate) fn pack_rows(isa: Supported, rows: &[f32], width: usize, out: &mut [u32]) {
    assert!(isa.isa() == Isa::AmxBf16, "no tiles on this path");
    assert!(
        rows.len() <= ROWS * width && rows.len().is_multiple_of(width),
        "not up to {ROWS} rows"
    );
    assert!(out.len() == width.div_ceil(DEPTH) * TILE, "another depth");
    // SAFETY: `Supported` was made only after the features were detected; lengths were checked.
    unsafe { pack(rows, width, out) };
}

/// # Safety
/// The instructions; lengths as [`pack_rows`] checks them.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn pack(rows: &[f32], width: usize, out: &mut [u32]) {
    let blocks = out.len() / TILE;
    for r in 0..rows.len() / width {
        for block in 0..blocks {
            let first = block * DEPTH;
            // SAFETY: `width` elements from here on, of which at most as many are read as the
            // row has left.
            let row = unsafe { rows.as_ptr().add(r * width + first) };
            let left = width - first;
            // SAFETY: as above; lanes that the mask leaves out are not read, and the pointer is
            // moved within the row or, with an empty mask, not used.
            let (low, high) = unsafe {
                if left >= DEPTH {
                    (_mm512_loadu_ps(row), _mm512_loadu_ps(row.add(16)))
                } else {
                    (
                        _mm512_maskz_loadu_ps(mask(left), row),
                        _mm512_maskz_loadu_ps(mask(left.saturating_sub(16)), row.wrapping_add(16)),
                    )
                }
            };
            let pairs = _mm512_cvtne2ps_pbh(high, low);
            // SAFETY: row r of tile `block`: 16 dwords.
            unsafe {
                let to = out.as_mut_ptr().add(block * TILE + r * 16);
                to.cast::<__m512bh>().write_unaligned(pairs);
            }
        }
    }
}

/// Returns a mask of the lowest `n` of 16 lanes.
pub(super) fn mask(n: usize) -> u16 {
    if n >= 16 { u16::MAX } else { (1 << n) - 1 }
}

/// Multiplies the first row of a run of left tiles by a panel, with the bits of [`Tiles::multiply`]
/// and without tiles, which load slower than vectors do.
///
/// `tdpbf16ps` is defined by its steps (Intel, Software Developer's Manual, volume 2): over the 16
/// pairs of a tile, products of the even inputs and those of the odd ones are added up apart,
/// each by fused multiply-add; then both sums are added, and what that gives to the result. All
/// round to nearest even and take and make no denormal numbers.
///
/// # Panics
/// If `isa` has no tiles, or the row is not as deep as the panel.
fn single(isa: Supported, left: &[u32], panel: &[u32], sums: &mut [f32; NR]) {
    assert!(isa.isa() == Isa::AmxBf16, "no tiles on this path");
    let blocks = panel.len() / (LINES * NR);
    assert!(
        blocks > 0 && panel.len() == blocks * LINES * NR && left.len() == blocks * TILE,
        "rows of another depth"
    );
    // SAFETY: `Supported` was made only after the features were detected; lengths were checked.
    unsafe { single_row(left.as_ptr(), panel.as_ptr(), blocks, sums) };
}

/// # Safety
/// AVX-512F; `left` points to `blocks` tiles, `panel` to `16 · blocks` lines; `blocks > 0`.
#[target_feature(enable = "avx512f")]
unsafe fn single_row(left: *const u32, panel: *const u32, blocks: usize, sums: &mut [f32; NR]) {
    // Round to nearest even, no exceptions, denormals are zero.
    static AS_TILES: u32 = 0x9fc0;
    let mut before = 0u32;
    // SAFETY: in each of `blocks` rounds the block reads the first 16 dwords of a left tile and
    // 16 lines of 64; it writes 64 sums. It leaves the control register as it was.
    unsafe {
        asm!(
            "stmxcsr [{before}]",
            "ldmxcsr [{as_tiles}]",
            "vpternlogd zmm16, zmm16, zmm16, 0xff",
            "vpslld zmm16, zmm16, 16",
            "vpxord zmm0, zmm0, zmm0", "vpxord zmm1, zmm1, zmm1",
            "vpxord zmm2, zmm2, zmm2", "vpxord zmm3, zmm3, zmm3",
            "2:",
            "vpxord zmm4, zmm4, zmm4", "vpxord zmm5, zmm5, zmm5",
            "vpxord zmm6, zmm6, zmm6", "vpxord zmm7, zmm7, zmm7",
            "vpxord zmm8, zmm8, zmm8", "vpxord zmm9, zmm9, zmm9",
            "vpxord zmm10, zmm10, zmm10", "vpxord zmm11, zmm11, zmm11",
            "lea {end}, [{left} + 64]",
            "3:",
            "vpbroadcastd zmm13, [{left}]",
            "vpslld zmm12, zmm13, 16",
            "vpandd zmm13, zmm13, zmm16",
            "vmovdqu32 zmm14, [{right}]",
            "vpslld zmm15, zmm14, 16",
            "vpandd zmm14, zmm14, zmm16",
            "vfmadd231ps zmm4, zmm15, zmm12",
            "vfmadd231ps zmm8, zmm14, zmm13",
            "vmovdqu32 zmm14, [{right} + 64]",
            "vpslld zmm15, zmm14, 16",
            "vpandd zmm14, zmm14, zmm16",
            "vfmadd231ps zmm5, zmm15, zmm12",
            "vfmadd231ps zmm9, zmm14, zmm13",
            "vmovdqu32 zmm14, [{right} + 128]",
            "vpslld zmm15, zmm14, 16",
            "vpandd zmm14, zmm14, zmm16",
            "vfmadd231ps zmm6, zmm15, zmm12",
            "vfmadd231ps zmm10, zmm14, zmm13",
            "vmovdqu32 zmm14, [{right} + 192]",
            "vpslld zmm15, zmm14, 16",
            "vpandd zmm14, zmm14, zmm16",
            "vfmadd231ps zmm7, zmm15, zmm12",
            "vfmadd231ps zmm11, zmm14, zmm13",
            "add {right}, 256",
            "add {left}, 4",
            "cmp {left}, {end}",
            "jne 3b",
            "vaddps zmm4, zmm4, zmm8",
            "vaddps zmm5, zmm5, zmm9",
            "vaddps zmm6, zmm6, zmm10",
            "vaddps zmm7, zmm7, zmm11",
            "vaddps zmm0, zmm0, zmm4",
            "vaddps zmm1, zmm1, zmm5",
            "vaddps zmm2, zmm2, zmm6",
            "vaddps zmm3, zmm3, zmm7",
            "add {left}, 1024 - 64",
            "dec {blocks}",
            "jnz 2b",
            "vmovups [{out}], zmm0",
            "vmovups [{out} + 64], zmm1",
            "vmovups [{out} + 128], zmm2",
            "vmovups [{out} + 192], zmm3",
            "ldmxcsr [{before}]",
            before = in(reg) &raw mut before,
            as_tiles = in(reg) &raw const AS_TILES,
            left = inout(reg) left => _,
            right = inout(reg) panel => _,
            blocks = inout(reg) blocks => _,
            end = out(reg) _,
            out = in(reg) sums.as_mut_ptr(),
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
            out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
            out("zmm16") _,
            options(nostack),
        );
    }
}

/// Multiplies the rows of one tile of the output with a panel, and writes the products, with
/// `bias`, or adds them.
///
/// `left`: a run of tiles for every 16 rows, as [`pack_rows`] makes them; `panel`: as deep;
/// `next`: what may come next, to be brought near.
///
/// # Panics
/// If `isa` has no tiles, or the shapes differ.
pub(crate) fn multiply(
    isa: Supported,
    left: &[u32],
    (panel, next): (&[u32], &[u32]),
    bias: Option<&[f32]>,
    add: bool,
    tile: &mut TileMut<'_, f32>,
) {
    assert!(
        tile.cols <= NR && bias.is_none_or(|bias| bias.len() == tile.cols),
        "another number of columns"
    );
    // In as many steps as pass by in which it can be fetched.
    let mut near = next.chunks(panel.len() / 4);
    let run = panel.len() / (LINES * NR) * TILE;
    let mut sums = Sums::ZERO;
    if tile.rows == 1 {
        single(isa, left, panel, &mut sums.0[0]);
        // SAFETY: as below.
        unsafe { finish(&sums, bias, add, (0, 1), tile) };
        return;
    }
    let tiles = Tiles::new(isa);
    for (i, left) in left.chunks(2 * run).enumerate() {
        let first = i * 2 * ROWS;
        tiles.multiply(left, panel, near.next(), &mut sums);
        let count = (tile.rows - first).min(2 * ROWS);
        // SAFETY: `Supported` was made only after the features were detected; the bias is as
        // long as the tile is wide, at most 64.
        unsafe { finish(&sums, bias, add, (first, count), tile) };
    }
}

/// Multiplies rows with a panel of gates and one of ups, and writes `silu(g) · u`, rounded to
/// bf16 and cut into left tiles: a row of `out` is two tiles of 16 rows.
///
/// `left`: a run of tiles for each row of `out`, of which the first `rows` rows count; `next`: the
/// panels that may come next.
///
/// # Panics
/// If `isa` has no tiles, or the shapes differ.
pub(crate) fn gate(
    isa: Supported,
    (left, rows): (&[u32], usize),
    [gates, ups]: [&[u32]; 2],
    next: [&[u32]; 2],
    out: &mut TileMut<'_, u32>,
) {
    assert!(
        out.cols == NR / DEPTH * TILE && gates.len() == ups.len(),
        "other panels"
    );
    let [mut near_gates, mut near_ups] = next.map(|next| next.chunks(gates.len() / 4));
    let run = gates.len() / (LINES * NR) * TILE;
    assert!(left.len() == out.rows * run, "another number of rows");
    let (mut gate, mut up) = (Sums::ZERO, Sums::ZERO);
    if rows == 1 {
        single(isa, left, gates, &mut gate.0[0]);
        single(isa, left, ups, &mut up.0[0]);
        // SAFETY: as below, with one row.
        unsafe { silu_mul(&gate.0[..1], &up.0[..1], out.row(0)) };
        return;
    }
    let tiles = Tiles::new(isa);
    for (i, left) in left.chunks(2 * run).enumerate() {
        tiles.multiply(left, gates, near_gates.next(), &mut gate);
        tiles.multiply(left, ups, near_ups.next(), &mut up);
        for j in 0..left.len() / run {
            let rows = j * ROWS..(j + 1) * ROWS;
            let out = out.row(2 * i + j);
            // SAFETY: `Supported` was made only after the features were detected; both have 16
            // rows, and `out` two tiles.
            unsafe { silu_mul(&gate.0[rows.clone()], &up.0[rows], out) };
        }
    }
}

/// # Safety
/// The instructions; 16 rows of gates and ups, two tiles of `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn silu_mul(gates: &[[f32; NR]], ups: &[[f32; NR]], out: &mut [u32]) {
    for (r, (gates, ups)) in gates.iter().zip(ups).enumerate() {
        for half in 0..NR / DEPTH {
            let mut x = [_mm512_setzero_ps(); 2];
            for (i, x) in x.iter_mut().enumerate() {
                let first = half * DEPTH + i * 16;
                // SAFETY: 16 of 64 columns.
                let (g, u) = unsafe {
                    (
                        _mm512_loadu_ps(gates.as_ptr().add(first)),
                        _mm512_loadu_ps(ups.as_ptr().add(first)),
                    )
                };
                *x = _mm512_mul_ps(silu(g), u);
            }
            let pairs = _mm512_cvtne2ps_pbh(x[1], x[0]);
            // SAFETY: row r of tile `half`: 16 dwords.
            unsafe {
                let to = out.as_mut_ptr().add(half * TILE + r * 16);
                to.cast::<__m512bh>().write_unaligned(pairs);
            }
        }
    }
}

/// Returns `2^x` for x up to 127 within 3 units in the last place, exactly 1 for 0, and 0 below
/// -200; NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn exp2(x: __m512) -> __m512 {
    // The second operand is the result if one of both is NaN.
    let x = _mm512_max_ps(_mm512_set1_ps(-200.0), x);
    let n = _mm512_roundscale_ps::<8>(x);
    let f = _mm512_sub_ps(x, n);
    // Degree 5 at Chebyshev's points in [-1/2, 1/2].
    let mut p = _mm512_set1_ps(1.339_086_3e-3);
    for coefficient in [
        9.676_032e-3,
        5.550_357e-2,
        2.402_210_7e-1,
        6.931_472e-1,
        1.0,
    ] {
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(coefficient));
    }
    _mm512_scalef_ps(p, n)
}

/// Returns `x / (1 + e^-x)`, within a few units in the last place.
#[inline]
#[target_feature(enable = "avx512f")]
fn silu(x: __m512) -> __m512 {
    let t = _mm512_mul_ps(x, _mm512_set1_ps(-std::f32::consts::LOG2_E));
    // Beyond 2^120 the result is 0 to f32 for any number that a layer produces, and the
    // reciprocal must not become infinite. NaN stays: the second operand would be the result.
    let t = _mm512_min_ps(_mm512_set1_ps(120.0), t);
    let d = _mm512_add_ps(exp2(t), _mm512_set1_ps(1.0));
    // 14 bits, then one step of Newton's.
    let r = _mm512_rcp14_ps(d);
    let r = _mm512_mul_ps(r, _mm512_fnmadd_ps(d, r, _mm512_set1_ps(2.0)));
    _mm512_mul_ps(x, r)
}

/// # Safety
/// AVX-512F; a bias of the tile's width, at most 64.
#[target_feature(enable = "avx512f")]
unsafe fn finish(
    sums: &Sums,
    bias: Option<&[f32]>,
    add: bool,
    (first, count): (usize, usize),
    tile: &mut TileMut<'_, f32>,
) {
    let cols = tile.cols;
    for (i, sums) in sums.0[..count].iter().enumerate() {
        let out = tile.row(first + i);
        for lane in (0..cols).step_by(16) {
            let mask = mask(cols - lane);
            // SAFETY: lanes below `cols` of rows that are as long, and of a row of 64 sums.
            unsafe {
                let to = out.as_mut_ptr().add(lane);
                let mut x = _mm512_loadu_ps(sums.as_ptr().add(lane));
                if let Some(bias) = bias {
                    x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, bias.as_ptr().add(lane)));
                }
                if add {
                    x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), x);
                }
                if mask == u16::MAX {
                    _mm512_storeu_ps(to, x);
                } else {
                    _mm512_mask_storeu_ps(to, mask, x);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a bf16 number from a fixed sequence, `spread` binary orders of magnitude below 2^7
    /// at most.
    fn bits(i: usize, spread: u32) -> u32 {
        let x = (i as u32 ^ 0x9e37).wrapping_mul(2_654_435_761);
        let x = (x ^ x >> 15).wrapping_mul(2_246_822_519);
        let exponent = (134 - (x >> 8) % (spread + 1)) << 7;
        x >> 31 << 15 | exponent | x & 0x7f
    }

    /// Numbers that are special to one of the two instruction sequences: both ends of the
    /// denormals, zeros, infinities and what is no number.
    const SPECIAL: [u32; 10] = [
        0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc1,
    ];

    /// Compares as below; a NaN equals every other NaN, whatever its sign and payload.
    #[test]
    fn special_numbers_alone_are_those_of_tiles() {
        let Some(isa) = Supported::new(Isa::AmxBf16) else {
            eprintln!("SKIP: no AMX on this machine");
            return;
        };
        let (mut nans, mut infinities) = (0, 0);
        for seed in 0..400 {
            // One special number in so many others.
            let every = [1, 7, 61, 500][seed % 4];
            let one = |i: usize| {
                let i = i + seed * 1_000_003;
                let x = bits(i, 30) as usize;
                match (i ^ x).is_multiple_of(every) {
                    true => SPECIAL[x % SPECIAL.len()],
                    false => bits(i, 30),
                }
            };
            let pair = |i: usize| one(2 * i) | one(2 * i + 1) << 16;
            let left: Vec<u32> = (0..2 * TILE).map(pair).collect();
            let panel: Vec<u32> = (0..2 * LINES * NR).map(|i| pair(i + 77_777)).collect();
            let mut together = Sums::ZERO;
            Tiles::new(isa).multiply(&left, &panel, None, &mut together);
            let mut alone = [f32::NAN; NR];
            single(isa, &left, &panel, &mut alone);
            for (a, b) in alone.iter().zip(&together.0[0]) {
                assert!(
                    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
                    "{a} {b}"
                );
                nans += usize::from(a.is_nan());
                infinities += usize::from(a.is_infinite());
            }
        }
        assert!(nans > 100 && infinities > 100, "{nans} {infinities}");
    }

    /// A row alone against the same row among others, with numbers of like magnitude, with such
    /// whose sums round at every step, and with such whose products are denormal.
    #[test]
    fn single_rows_have_the_bits_of_tiles() {
        let Some(isa) = Supported::new(Isa::AmxBf16) else {
            eprintln!("SKIP: no AMX on this machine");
            return;
        };
        for (blocks, spread) in [(1, 8), (3, 20), (32, 14), (2, 100), (2, 134)] {
            for seed in 0..50 {
                let pair = |i: usize| {
                    let i = 2 * i + seed * 1_000_003;
                    bits(i, spread) | bits(i + 1, spread) << 16
                };
                let left: Vec<u32> = (0..blocks * TILE).map(pair).collect();
                let panel: Vec<u32> = (0..blocks * LINES * NR).map(|i| pair(i + 77_777)).collect();
                let mut together = Sums::ZERO;
                Tiles::new(isa).multiply(&left, &panel, None, &mut together);
                let mut alone = [f32::NAN; NR];
                single(isa, &left, &panel, &mut alone);
                let [a, b] = [&alone, &together.0[0]].map(|sums| sums.map(f32::to_bits));
                assert_eq!(a, b, "{blocks} blocks, spread {spread}, seed {seed}");
                assert!(alone.iter().any(|&x| x != 0.0) || spread > 60);
            }
        }
    }
}
