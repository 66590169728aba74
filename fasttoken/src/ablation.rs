//! Fast paths that can be left out, to measure what each is worth.
//!
//! Without the feature `ablation`, each of them is always taken, and [`FastPath::is_taken`] is a
//! constant. With it, one of them can be left out in the whole process. The ids stay the same.

#[cfg(feature = "ablation")]
use std::sync::atomic::{AtomicUsize, Ordering};

/// Declares the paths, and the list of all of them.
macro_rules! fast_paths {
    ($($(#[$doc:meta])* $path:ident,)*) => {
        /// A fast path, which computes what a plainer way would compute too.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        #[cfg_attr(
            not(feature = "ablation"),
            expect(unreachable_pub, reason = "public for measurements alone")
        )]
        #[cfg_attr(
            not(any(feature = "ablation", target_arch = "x86_64")),
            expect(dead_code, reason = "some paths are of x86-64 alone")
        )]
        pub enum FastPath {
            $($(#[$doc])* $path,)*
        }

        #[cfg(feature = "ablation")]
        impl FastPath {
            /// The fast paths.
            pub const ALL: [Self; [$(FastPath::$path),*].len()] = [$(Self::$path),*];
        }
    };
}

fast_paths! {
    /// The thread's cache of the tokens of words and pieces.
    ThreadCache,
    /// Encoding a text of a few words without the pipeline.
    ShortText,
    /// One pipeline for the words of all segments between added tokens.
    WordCollector,
    /// Merging that begins with the tokens of characters, not of bytes.
    Premerge,
    /// Merging that begins with the token of two characters.
    CharPairs,
    /// Merging a short ASCII word without looking for places where it falls apart.
    WholeAscii,
    /// Leaving clauses of Chinese and Japanese out of the cache.
    Clauses,
    /// Halving a run of one byte.
    Runs,
    /// The square of ranks of the first tokens.
    DensePairs,
    /// The filter in front of the table of pairs.
    PairFilter,
    /// Finding ends of words for 64 bytes at a time.
    Blocks,
    /// AVX-512 for ends of words, in place of AVX2.
    Avx512,
    /// Vector instructions in lookups.
    Compare,
    /// One check of a whole text, in place of one of each segment, that it is normalized.
    WholeCheck,
    /// Prefetching of memory.
    Prefetch,
    /// Huge pages for tables.
    HugePages,
    /// Proofs of tokens at load, in place of merging each.
    Proofs,
    /// Encoding of SentencePiece-style models in runs of characters.
    Runes,
    /// Reading the text of SentencePiece-style models without normalizing it.
    Direct,
}

#[cfg(feature = "ablation")]
static LEFT_OUT: AtomicUsize = AtomicUsize::new(usize::MAX);

impl FastPath {
    /// Returns true if the path is to be taken.
    #[cfg(not(feature = "ablation"))]
    #[inline(always)]
    pub(crate) const fn is_taken(self) -> bool {
        true
    }

    /// Returns true if the path is to be taken.
    #[cfg(feature = "ablation")]
    #[inline(always)]
    pub(crate) fn is_taken(self) -> bool {
        LEFT_OUT.load(Ordering::Relaxed) != self as usize
    }
}

#[cfg(feature = "ablation")]
impl FastPath {
    /// Leaves out one path from now on, or none. Tokenizers have to be loaded anew, since some paths
    /// are tables that loading makes.
    pub fn leave_out(path: Option<Self>) {
        LEFT_OUT.store(
            path.map_or(usize::MAX, |path| path as usize),
            Ordering::Relaxed,
        );
    }
}
