//! Choosing the vector instructions that find ends of words.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "calling code for the machine's vector instructions"
    )
)]

use super::class_masks;
use super::grammar::Shape;
use super::{ENDS, Grammar, Scanner, block, deepseek};
#[cfg(target_arch = "x86_64")]
use crate::ablation::FastPath;

impl Scanner<'_> {
    /// Writes ends of consecutive matches to `ends` after its first `count` ends. The first match
    /// begins at `at`, a character boundary where a match begins. Returns the new number of ends,
    /// which is `count` only at the end of the text, or with less room than for a block.
    // A call of its own took a text of one word 2 % of its instructions.
    #[inline(always)]
    pub(crate) fn fill(
        self,
        grammar: Grammar,
        at: usize,
        ends: &mut [usize; ENDS],
        count: usize,
    ) -> usize {
        #[cfg(target_arch = "x86_64")]
        if crate::cpu::has_bit_instructions() && FastPath::Blocks.is_taken() {
            if FastPath::Avx512.is_taken()
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vbmi2")
            {
                // SAFETY: just asked for.
                return unsafe { x86::fill_avx512(self, grammar, at, ends, count) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: just asked for.
                return unsafe { x86::fill_avx2(self, grammar, at, ends, count) };
            }
        }
        #[cfg(target_arch = "aarch64")]
        return fill_blocks::<class_masks::Neon>(self, grammar, at, ends, count);
        // Without vectors, blocks cost more than walking the text.
        #[cfg(not(target_arch = "aarch64"))]
        self.fill_slowly(grammar, at, ends, count)
    }

    /// Fills `ends` as [`Scanner::fill`] does, without blocks.
    #[cfg(any(test, not(target_arch = "aarch64")))]
    fn fill_slowly(
        self,
        grammar: Grammar,
        mut at: usize,
        ends: &mut [usize; ENDS],
        mut count: usize,
    ) -> usize {
        while at < self.text.len() && count < ENDS {
            at = self.end_of_match(grammar, at);
            ends[count] = at;
            count += 1;
        }
        count
    }
}

/// Fills `ends` block by block; compiled once for each instruction set, with everything that it
/// calls.
#[inline(always)]
fn fill_blocks<I: class_masks::InstructionSet>(
    scanner: Scanner<'_>,
    grammar: Grammar,
    at: usize,
    ends: &mut [usize; ENDS],
    count: usize,
) -> usize {
    // The most common patterns are compiled each for itself, since the shape is a constant there.
    macro_rules! fill {
        ($blocks:expr, $scanner:expr) => {
            block::fill::<I>($blocks, grammar, $scanner, at, ends, count)
        };
    }
    match grammar {
        Grammar::Gpt2 => fill!(Shape::GPT2, scanner),
        Grammar::Qwen2 => fill!(Shape::QWEN2, scanner),
        // All that is different is that marks are letters.
        Grammar::Qwen35 => fill!(Shape::QWEN2, scanner.with_kinds(Shape::QWEN35)),
        Grammar::Cl100k => fill!(Shape::CL100K, scanner),
        Grammar::O200k => fill!(Shape::O200K, scanner),
        Grammar::Other(shape) => fill!(shape, scanner.with_kinds(shape)),
        Grammar::DeepSeek3 => fill!(deepseek::DeepSeek3, scanner),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{ENDS, Grammar, Scanner, fill_blocks};
    use crate::scan::class_masks;

    /// Compiles [`fill_blocks`] for the named instructions.
    macro_rules! compile_for {
        ($features:literal, $name:ident, $instructions:ty) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name(
                scanner: Scanner<'_>,
                grammar: Grammar,
                at: usize,
                ends: &mut [usize; ENDS],
                count: usize,
            ) -> usize {
                fill_blocks::<$instructions>(scanner, grammar, at, ends, count)
            }
        };
    }
    compile_for!(
        "avx512bw,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt",
        fill_avx512,
        class_masks::Avx512
    );
    compile_for!("avx2,bmi1,bmi2,lzcnt,popcnt", fill_avx2, class_masks::Avx2);
}

/// An implementation of [`Scanner::fill`].
#[cfg(test)]
pub(super) type Fill = fn(Scanner<'_>, Grammar, usize, &mut [usize; ENDS], usize) -> usize;

/// Returns the implementations that this machine can run.
#[cfg(test)]
pub(super) fn every_way() -> Vec<Fill> {
    let ways: [Fill; 3] = [
        |scanner, grammar, at, ends, count| scanner.fill(grammar, at, ends, count),
        |scanner, grammar, at, ends, count| scanner.fill_slowly(grammar, at, ends, count),
        fill_blocks::<class_masks::class_masks_tests::Naive>,
    ];
    ways.into_iter().chain(vectors()).collect()
}

/// Returns the implementations that use vectors of this machine but that [`Scanner::fill`] may not
/// select.
#[cfg(all(test, target_arch = "x86_64"))]
fn vectors() -> Vec<Fill> {
    let mut ways: Vec<Fill> = Vec::new();
    if crate::cpu::has_bit_instructions() && is_x86_feature_detected!("avx2") {
        // SAFETY: all that it is compiled for was just asked for.
        ways.push(|scanner, grammar, at, ends, count| unsafe {
            x86::fill_avx2(scanner, grammar, at, ends, count)
        });
    }
    ways
}

/// Returns no further way to fill: there is one kind of vectors, which [`Scanner::fill`] takes.
#[cfg(all(test, not(target_arch = "x86_64")))]
fn vectors() -> [Fill; 0] {
    []
}
