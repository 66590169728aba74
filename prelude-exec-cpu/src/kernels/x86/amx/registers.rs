//! The tile registers of a thread: whether there are any, their configuration, and the loops of
//! instructions on them.

use std::{
    arch::{asm, x86_64::__cpuid_count},
    marker::PhantomData,
    sync::OnceLock,
};

use super::{LINES, Sums};
use crate::kernels::{
    Isa, Supported,
    panel::NR,
    tiles::{DEPTH, ROWS, TILE},
};

/// Returns true if the processor has tiles for bf16, and the system saves them and permits their
/// use. Asked once per process: threads inherit the permission.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_tiles() && is_permitted())
}

fn has_tiles() -> bool {
    if !is_x86_feature_detected!("xsave") {
        return false;
    }
    // Leaf 7: bits 22 and 24 of edx are AMX-BF16 and AMX-TILE. Leaf 29 describes palette 1.
    const FEATURES: u32 = 1 << 22 | 1 << 24;
    if __cpuid_count(0, 0).eax < 0x1d || __cpuid_count(7, 0).edx & FEATURES != FEATURES {
        return false;
    }
    let palette = __cpuid_count(0x1d, 1);
    let (row_bytes, tiles, rows) = (
        palette.ebx & 0xffff,
        palette.ebx >> 16,
        palette.ecx & 0xffff,
    );
    // Component 17 of the state is the configuration, 18 the data.
    // SAFETY: the system has switched on XSAVE, which brings this instruction.
    let enabled = unsafe { std::arch::x86_64::_xgetbv(0) };
    row_bytes == 64 && tiles == 8 && rows == 16 && enabled >> 17 & 3 == 3
}

/// Asks Linux for the 8 KiB of tile data per thread, which it gives out on request only; returns
/// whether it does.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: the call takes two integers and touches no memory of ours. The kernel overwrites
    // rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Operand of `ldtilecfg`: palette 1, eight tiles of 16 rows by 64 bytes.
#[repr(C, align(64))]
struct Palette {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static PALETTE: Palette = Palette {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Two left tiles by two right tiles at a time, four sums for four loads, with instructions in
/// each round that bring the next panel near.
///
/// Needs: `left` is two runs of `blocks` tiles, `panel` `16 · blocks` lines; `blocks > 0`.
macro_rules! two {
    ($left:expr, $panel:expr, $blocks:expr, $sums:expr, $next:expr, [$($near:literal),* $(,)?]) => {{
        let mut next: *const u32 = $next;
        for half in 0..2 {
            let columns = half * 2 * ROWS;
            // In each of `blocks` rounds this reads a tile of each run, and columns
            // `columns..columns + 32` of 16 lines; it writes those columns of all 32 rows.
            // Prefetching faults nowhere.
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{left} + {packed}]",
                "tileloadd tmm6, [{right} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{right} + {line} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{lower} + {packed}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                $($near,)*
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {left}, 1024",
                "add {lower}, 1024",
                "add {right}, 4096",
                "dec {blocks}",
                "jnz 2b",
                "tilestored [{out} + {line}], tmm0",
                "tilestored [{out} + {line} + 64], tmm1",
                "tilestored [{out} + {line} + 4096], tmm2",
                "tilestored [{out} + {line} + 4096 + 64], tmm3",
                left = inout(reg) $left.as_ptr() => _,
                lower = inout(reg) $left.as_ptr().add($blocks * TILE) => _,
                right = inout(reg) $panel.as_ptr().add(columns) => _,
                blocks = inout(reg) $blocks => _,
                next = inout(reg) next,
                out = in(reg) $sums.0.as_mut_ptr().cast::<f32>().add(columns),
                packed = in(reg) 64usize,
                line = in(reg) 4 * NR,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
        let _ = next;
    }};
}

/// The tile registers of this thread, configured. Dropping it gives them back, so that an idle
/// thread has no tile state to be saved. A thread has one at a time: tasks take it and drop it.
pub(crate) struct Tiles(PhantomData<*const ()>);

impl Tiles {
    /// # Panics
    /// If `isa` has no tiles.
    pub(crate) fn new(isa: Supported) -> Self {
        assert!(isa.isa() == Isa::AmxBf16, "no tiles on this path");
        // SAFETY: the machine has tiles and lets us use them, or `isa` would not exist; the
        // operand is 64 bytes and describes what `has_tiles` has seen.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const PALETTE, options(nostack, preserves_flags, readonly));
        }
        Self(PhantomData)
    }

    /// Multiplies the rows of one or two left tiles by a panel of 64 columns.
    ///
    /// `left`: `blocks` tiles of 16 rows each, one run of tiles after the other; `panel`:
    /// `[16 · blocks][64]` dwords; `next`: a quarter of the panel that comes next, if any, to be
    /// brought near.
    ///
    /// # Panics
    /// If `left` is not one or two runs as deep as the panel.
    #[inline]
    pub(super) fn multiply(
        &self,
        left: &[u32],
        panel: &[u32],
        next: Option<&[u32]>,
        sums: &mut Sums,
    ) {
        let blocks = panel.len() / (LINES * NR);
        assert!(
            blocks > 0 && panel.len() == blocks * LINES * NR,
            "a panel of part of a tile"
        );
        if left.len() == 2 * blocks * TILE {
            // SAFETY: the lengths were checked just now.
            unsafe {
                match next {
                    Some(next) => two!(
                        left,
                        panel,
                        blocks,
                        sums,
                        next.as_ptr(),
                        [
                            "prefetcht1 [{next}]",
                            "prefetcht1 [{next} + 64]",
                            "prefetcht1 [{next} + 128]",
                            "prefetcht1 [{next} + 192]",
                            "prefetcht1 [{next} + 256]",
                            "prefetcht1 [{next} + 320]",
                            "prefetcht1 [{next} + 384]",
                            "prefetcht1 [{next} + 448]",
                            "add {next}, 512",
                        ]
                    ),
                    None => two!(left, panel, blocks, sums, panel.as_ptr(), ["/* {next} */"]),
                }
            }
        } else {
            assert!(left.len() == blocks * TILE, "rows of another depth");
            // SAFETY: as above.
            unsafe { self.one(left.as_ptr(), panel.as_ptr(), blocks, sums) };
        }
    }

    /// Multiplies one left tile by four right tiles, so that the panel passes by once: for few rows
    /// the time is that of reading it.
    ///
    /// # Safety
    /// `left` points to `blocks` tiles, `panel` to `16 · blocks` lines; `blocks > 0`.
    #[inline]
    unsafe fn one(&self, left: *const u32, panel: *const u32, blocks: usize, sums: &mut Sums) {
        // SAFETY: in each of `blocks` rounds the block reads a left tile and 16 lines; it writes
        // 16 rows.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{left} + {packed}]",
                "tileloadd tmm5, [{right} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{right} + {line} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tileloadd tmm7, [{right} + {line} + 128]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{right} + {line} + 192]",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "add {left}, 1024",
                "add {right}, 4096",
                "dec {blocks}",
                "jnz 2b",
                "tilestored [{out} + {line}], tmm0",
                "tilestored [{out} + {line} + 64], tmm1",
                "tilestored [{out} + {line} + 128], tmm2",
                "tilestored [{out} + {line} + 192], tmm3",
                left = inout(reg) left => _,
                right = inout(reg) panel => _,
                blocks = inout(reg) blocks => _,
                out = in(reg) sums.0.as_mut_ptr(),
                packed = in(reg) 64usize,
                line = in(reg) 4 * NR,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Floating-point operations of a round of [`Tiles::spin`].
pub(crate) const SPIN_FLOPS: usize = 4 * 2 * ROWS * ROWS * DEPTH;

impl Tiles {
    /// Runs `rounds` rounds of products of tiles in registers.
    pub(crate) fn spin(&self, rounds: usize) {
        if rounds == 0 {
            return;
        }
        // SAFETY: the registers are configured; nothing else is touched.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tilezero tmm4",
                "tilezero tmm5",
                "tilezero tmm6",
                "tilezero tmm7",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {rounds}",
                "jnz 2b",
                rounds = inout(reg) rounds => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: nothing on this thread uses tiles without a `Tiles` of its own.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, nomem),
            );
        }
    }
}
