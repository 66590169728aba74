//! Byte-pair encoding of one word.
//!
//! A word starts as one token per byte. The pair of neighbours whose merge rule
//! comes first in the file, and of equal ones the leftmost, becomes one token,
//! until no rule applies. Two ways lead there: words of a few dozen bytes look for
//! the best pair by a linear scan over arrays on the stack, longer ones keep the
//! pairs in a heap, so that a word of n bytes takes O(n log n).
//!
//! Most words are a token themselves. For those the merges are skipped, if they
//! are known to lead to that token: this is proved for each token at load by
//! running its merges (or the file says so with `ignore_merges`). Such words of up to
//! 12 bytes are found in [`WordTable`], longer ones in a table of strings. Words of
//! several tokens are remembered by the thread ([`crate::cache`]).

use crate::atoms::{Atoms, NO_ATOM, decode};
pub(crate) use crate::cache::MergeScratch;
use crate::cache::{Cache, LongKey, Owner};
use crate::compare::{self, Compare, Scalar, Work};
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::pretokenize::Words;
use crate::table::{Merge, PairTable, StringTable, StringTableBuilder};
use crate::vocab::Vocab;
use crate::words::{KEY_MAX, Key, WordTable};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Longest word that is merged by scanning; at this length the heap is as fast.
const SCAN_MAX: usize = 48;

/// Ranks share a heap key with positions; far above any real number of merges.
pub(crate) const RANK_MAX: usize = (1 << 24) - 1;

const NO_RANK: u32 = u32::MAX;

/// In place of a byte's token: the vocabulary lacks it, and such bytes vanish from
/// words, as in the reference. StarCoder lacks eleven that start rare characters.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

/// The merges, and the words that are one token.
#[derive(Debug)]
pub(crate) struct Bpe {
    /// Token of each single byte, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    pairs: PairTable,
    /// Words of up to 12 bytes that are one token.
    words: WordTable,
    /// Those that do not fit there.
    long_words: StringTable,
    /// Lengths of the shortest and the longest of those.
    long_lens: (u32, u32),
    atoms: Atoms,
    /// Names this model in the threads' caches.
    owner: Owner,
    /// The same for parts of words, which `ignore_merges` does not speak about; equal
    /// to `owner` without it.
    parts_owner: Owner,
    /// Whether words that are one token are so by their merges.
    proved: bool,
    /// Whether a byte that text can have lacks a token.
    loses_bytes: bool,
}

/// What a thread keeps between words and calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    cache: Cache,
    merging: Merging,
    /// Tokens of one word.
    ids: Vec<u32>,
}

/// Memory for merging long words.
#[derive(Debug, Default)]
struct Merging {
    symbols: Vec<Symbol>,
    /// Rank in the upper 24 bits, position in the lower 40.
    heap: BinaryHeap<Reverse<u64>>,
}

/// Words of which keys are made before any is looked up. The memory that is asked for
/// meanwhile is what the processor can have under way, a few dozen lines.
const GROUP: usize = 32;

/// Bytes of memory for long words that a thread keeps: a word of some ten thousand
/// bytes. Those of longer ones are given back after the call.
const KEPT_BYTES: usize = 1 << 19;

/// The tokens with which merging begins, if they are few.
struct Symbols {
    ids: [u32; SCAN_MAX],
    /// Larger than `SCAN_MAX` when there are too many.
    len: usize,
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            ids: [0; SCAN_MAX],
            len: 0,
        }
    }
}

impl Symbols {
    /// Adds a token, unless the vocabulary has none for the byte.
    #[inline(always)]
    fn push(&mut self, token: u32) {
        if token != NO_TOKEN {
            if let Some(id) = self.ids.get_mut(self.len) {
                *id = token;
            }
            self.len += 1;
        }
    }
}

/// A token in a doubly linked list over the bytes of a word.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    /// The merge with the following symbol; `NO_RANK` when there is none or when
    /// this symbol was swallowed, so that old heap entries do not fit any more.
    merge: Merge,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;
const NO_MERGE: Merge = Merge {
    rank: NO_RANK,
    id: 0,
};

impl Scratch {
    /// Gives back what an unusually long word took.
    pub(crate) fn shrink(&mut self) {
        let Merging { symbols, heap } = &self.merging;
        let bytes = symbols.capacity() * size_of::<Symbol>()
            + heap.capacity() * size_of::<u64>()
            + self.ids.capacity() * size_of::<u32>();
        if bytes > KEPT_BYTES {
            self.merging = Merging::default();
            self.ids = Vec::new();
        }
    }
}

impl Bpe {
    /// `byte_ids` gives the token of each byte, or [`NO_TOKEN`].
    pub(crate) fn new(byte_ids: [u32; 256], pairs: PairTable) -> Self {
        Self {
            byte_ids,
            pairs,
            words: WordTable::default(),
            long_words: StringTableBuilder::with_capacity(0).finish(),
            long_lens: (u32::MAX, 0),
            atoms: Atoms::default(),
            owner: Owner::NONE,
            parts_owner: Owner::NONE,
            proved: false,
            loses_bytes: loses_bytes(&byte_ids),
        }
    }

    pub(crate) fn write(&self, image: &mut Writer) {
        image.put(Section::ByteIds, &self.byte_ids);
        self.pairs.write(image);
        image.put(Section::Words, self.words.lines());
        image.put(Section::LongWords, self.long_words.slots());
        let (shortest, longest) = self.long_lens;
        image.put(
            Section::WordFacts,
            &[shortest, longest, u32::from(self.proved)],
        );
        self.atoms.write(image);
    }

    pub(crate) fn read(image: &Reader) -> Result<Self, ImageError> {
        let byte_ids = image.get::<u32>(Section::ByteIds)?;
        let words = WordTable::from_lines(image.get(Section::Words)?);
        let long_words = StringTable::from_slots(image.get(Section::LongWords)?);
        let facts = image.get::<u32>(Section::WordFacts)?;
        let &[shortest, longest, proved] = &*facts else {
            return Err(Section::WordFacts.invalid("there are not three of them"));
        };
        let unlike = "it is not a table";
        let byte_ids: [u32; 256] = byte_ids[..]
            .try_into()
            .map_err(|_| Section::ByteIds.invalid("there are not 256 of them"))?;
        let mut this = Self {
            byte_ids,
            pairs: PairTable::read(image)?,
            words: words.ok_or_else(|| Section::Words.invalid(unlike))?,
            long_words: long_words.ok_or_else(|| Section::LongWords.invalid(unlike))?,
            long_lens: (shortest, longest),
            atoms: Atoms::read(image)?,
            owner: Owner::NONE,
            parts_owner: Owner::NONE,
            proved: proved == 1,
            loses_bytes: loses_bytes(&byte_ids),
        };
        this.name_owners();
        Ok(this)
    }

    /// Takes names for the threads' caches.
    fn name_owners(&mut self) {
        self.owner = Owner::new();
        self.parts_owner = if self.proved {
            self.owner
        } else {
            Owner::new()
        };
    }

    /// Finds the words that are one token. `all` are the model's own tokens that
    /// spell bytes; with `ignore_merges` all of them are taken, otherwise those that
    /// their merges lead to.
    pub(crate) fn index_words(&mut self, all: &[u32], vocab: &Vocab, ignore_merges: bool) {
        let mut merging = Merging::default();
        let mut merged = Vec::new();
        let mut whole = |id: u32| {
            merged.clear();
            if !ignore_merges {
                self.merge(vocab.piece(id), &mut merging, &mut merged);
            }
            ignore_merges || merged == [id]
        };
        // Tokens are numbered in the order in which training found them, which is
        // about that of their frequency.
        let mut ids: Vec<u32> = all.iter().copied().filter(|id| whole(*id)).collect();
        ids.sort_unstable();
        self.words = WordTable::new(ids.iter().map(|&id| (vocab.piece(id), id)));
        let long = ids
            .iter()
            .filter(|&&id| !WordTable::fits(vocab.piece(id), id));
        let mut long_words = StringTableBuilder::with_capacity(long.clone().count());
        for &id in long {
            let word = vocab.piece(id);
            long_words.insert(word, id, |id| vocab.piece(id));
            let (shortest, longest) = self.long_lens;
            let len = u32::try_from(word.len()).unwrap_or(u32::MAX);
            self.long_lens = (len.min(shortest), len.max(longest));
        }
        self.long_words = long_words.finish();
        self.atoms = Atoms::new(&self.byte_ids, &self.pairs, all, vocab);
        self.proved = !ignore_merges;
        self.name_owners();
    }

    /// Appends the tokens of each of `words`.
    pub(crate) fn encode_words(
        &self,
        words: &Words<'_>,
        vocab: &Vocab,
        scratch: &mut MergeScratch,
        out: &mut Vec<u32>,
    ) {
        compare::run(EncodeWords {
            bpe: self,
            words,
            vocab,
            scratch,
            out,
        });
    }

    /// Appends the tokens of `word`.
    #[inline]
    pub(crate) fn encode(
        &self,
        word: &[u8],
        vocab: &Vocab,
        scratch: &mut MergeScratch,
        out: &mut Vec<u32>,
    ) {
        let key = Key::new(word, 0, word.len());
        let hash = key.hash();
        if let Some(id) = self.words.get::<Scalar>(key, self.words.home(hash)) {
            out.push(id);
            return;
        }
        let scratch = scratch.get();
        match scratch.cache.short(self.owner, key, hash) {
            Some((four, tokens)) => out.extend_from_slice(&four[..tokens]),
            None => self.encode_rare(word, key, hash, vocab, scratch, out),
        }
    }

    /// Appends the tokens of a word that neither the table nor the cache of short
    /// words has, and remembers them.
    #[inline(never)]
    fn encode_rare(
        &self,
        word: &[u8],
        key: Key,
        hash: u64,
        vocab: &Vocab,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        let Scratch {
            cache,
            merging,
            ids,
        } = scratch;
        let long = LongKey::new(word);
        if let Some(key) = &long
            && let Some(known) = cache.long(self.owner, key)
        {
            out.extend_from_slice(known);
            return;
        }
        ids.clear();
        // Hashing a long word for nothing takes as long as a merge or two.
        let (shortest, longest) = self.long_lens;
        let whole = (shortest as usize..=longest as usize)
            .contains(&word.len())
            .then(|| self.long_words.get(word, |id| vocab.piece(id)));
        match whole.flatten() {
            Some(id) => ids.push(id),
            None => self.merge_parts(word, cache, merging, ids),
        }
        if !cache.remember_short(self.owner, key, hash, ids)
            && let Some(key) = &long
        {
            cache.remember_long(self.owner, key, ids);
        }
        out.extend_from_slice(ids);
    }

    /// Appends one token per byte, without merging.
    pub(crate) fn encode_bytes(&self, word: &[u8], out: &mut Vec<u32>) {
        out.extend(self.byte_tokens(word));
    }

    fn merge(&self, word: &[u8], scratch: &mut Merging, out: &mut Vec<u32>) {
        if word.len() <= SCAN_MAX {
            let mut symbols = Symbols::default();
            for &byte in word {
                symbols.push(self.byte_ids[usize::from(byte)]);
            }
            let len = self.merge_by_scan(&mut symbols.ids, symbols.len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else {
            self.merge_by_heap(word, scratch, out);
        }
    }

    /// The tokens of the bytes of `word`, of those that have one.
    fn byte_tokens(&self, word: &[u8]) -> impl Iterator<Item = u32> {
        let tokens = word.iter().map(|&byte| self.byte_ids[usize::from(byte)]);
        tokens.filter(|&id| id != NO_TOKEN)
    }

    /// Whether the vocabulary has a token for `byte`.
    pub(crate) fn has_byte(&self, byte: u8) -> bool {
        self.byte_ids[usize::from(byte)] != NO_TOKEN
    }

    fn merge_of(&self, left: u32, right: u32) -> Merge {
        self.pairs.get(left, right).unwrap_or(NO_MERGE)
    }

    /// Merges a word that is valid UTF-8, part by part ([`crate::atoms`]).
    ///
    /// Atoms and their neighbours are known for words of which every byte has a token:
    /// where one vanishes, tokens meet that no text has side by side.
    fn merge_parts(
        &self,
        word: &[u8],
        cache: &mut Cache,
        merging: &mut Merging,
        out: &mut Vec<u32>,
    ) {
        if self.loses_bytes && word.iter().any(|byte| !self.has_byte(*byte)) {
            return self.merge(word, merging, out);
        }
        let mut symbols = Symbols::default();
        // Where the part begins, and the atom before `at`.
        let (mut start, mut before) = (0, None);
        let mut at = 0;
        while at < word.len() {
            let (code, len) = decode(word, at).unwrap_or((0, 1));
            let (atom, token) = match (len, self.byte_ids[usize::from(word[at])]) {
                (1, token) => (word[at].is_ascii(), token),
                _ => {
                    let token = self.atoms.token(code, word[..at].last().copied());
                    (token != NO_ATOM, token)
                }
            };
            if atom
                && let Some(left) = before
                && !self.atoms.may_join(left, code)
            {
                self.finish_part(&word[start..at], &mut symbols, cache, merging, out);
                start = at;
            }
            before = atom.then_some(code);
            if atom {
                symbols.push(token);
            } else {
                for &byte in &word[at..at + len] {
                    symbols.push(self.byte_ids[usize::from(byte)]);
                }
            }
            at += len;
        }
        self.finish_part(&word[start..], &mut symbols, cache, merging, out);
    }

    /// Appends the tokens of a part, which begins as `symbols`, and empties those.
    fn finish_part(
        &self,
        part: &[u8],
        symbols: &mut Symbols,
        cache: &mut Cache,
        merging: &mut Merging,
        out: &mut Vec<u32>,
    ) {
        let len = std::mem::take(&mut symbols.len);
        if len <= 1 {
            out.extend_from_slice(&symbols.ids[..len]);
            return;
        }
        if len == 2 {
            let [left, right, ..] = symbols.ids;
            match self.pairs.get(left, right) {
                Some(merge) => out.push(merge.id),
                None => out.extend([left, right]),
            }
            return;
        }
        let key = Key::new(part, 0, part.len());
        let hash = key.hash();
        if self.proved
            && let Some(id) = self.words.get::<Scalar>(key, self.words.home(hash))
        {
            out.push(id);
            return;
        }
        if let Some((four, tokens)) = cache.short(self.parts_owner, key, hash) {
            out.extend_from_slice(&four[..tokens]);
            return;
        }
        let before = out.len();
        if len <= SCAN_MAX {
            let len = self.merge_by_scan(&mut symbols.ids, len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else {
            self.merge_by_heap(part, merging, out);
        }
        cache.remember_short(self.parts_owner, key, hash, &out[before..]);
    }

    /// Merges the first `len` of `ids`; the number of tokens left.
    fn merge_by_scan(&self, ids: &mut [u32; SCAN_MAX], mut len: usize) -> usize {
        let mut ranks = [NO_RANK; SCAN_MAX];
        let mut merged = [0; SCAN_MAX];
        for at in 1..len {
            let merge = self.merge_of(ids[at - 1], ids[at]);
            (ranks[at - 1], merged[at - 1]) = (merge.rank, merge.id);
        }
        while len > 1 {
            let (mut best, mut at) = (NO_RANK, 0);
            for (n, &rank) in ranks[..len - 1].iter().enumerate() {
                if rank < best {
                    (best, at) = (rank, n);
                }
            }
            if best == NO_RANK {
                break;
            }
            ids[at] = merged[at];
            len -= 1;
            // Plain loops: calls for moves of a few numbers cost more than the moves.
            for n in at + 1..len {
                ids[n] = ids[n + 1];
                ranks[n - 1] = ranks[n];
                merged[n - 1] = merged[n];
            }
            ranks[len - 1] = NO_RANK;
            if at + 1 < len {
                let merge = self.merge_of(ids[at], ids[at + 1]);
                (ranks[at], merged[at]) = (merge.rank, merge.id);
            }
            if at > 0 {
                let merge = self.merge_of(ids[at - 1], ids[at]);
                (ranks[at - 1], merged[at - 1]) = (merge.rank, merge.id);
            }
        }
        len
    }

    fn merge_by_heap(&self, word: &[u8], scratch: &mut Merging, out: &mut Vec<u32>) {
        let Merging { symbols, heap } = scratch;
        symbols.clear();
        symbols.extend(self.byte_tokens(word).enumerate().map(|(at, id)| Symbol {
            id,
            merge: NO_MERGE,
            previous: at.wrapping_sub(1),
            next: at + 1,
        }));
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        // Filling a vector and heapifying is linear; pushing one by one is not.
        let mut entries = std::mem::take(heap).into_vec();
        entries.clear();
        for at in 1..symbols.len() {
            let merge = self.merge_of(symbols[at - 1].id, symbols[at].id);
            symbols[at - 1].merge = merge;
            if merge.rank != NO_RANK {
                entries.push(Reverse(entry(merge.rank, at - 1)));
            }
        }
        *heap = BinaryHeap::from(entries);

        while let Some(Reverse(top)) = heap.pop() {
            let (rank, at) = ((top >> 40) as u32, (top & ((1 << 40) - 1)) as usize);
            let Symbol { merge, next, .. } = symbols[at];
            if merge.rank != rank {
                continue;
            }
            let right = symbols[next];
            symbols[next].merge = NO_MERGE;
            symbols[at].id = merge.id;
            symbols[at].next = right.next;
            if right.next != NONE {
                symbols[right.next].previous = at;
            }
            self.update(symbols, heap, at);
            let previous = symbols[at].previous;
            if previous != NONE {
                self.update(symbols, heap, previous);
            }
        }

        let mut at = 0;
        while let Some(symbol) = symbols.get(at) {
            out.push(symbol.id);
            at = symbol.next;
        }
    }

    /// Looks up the merge of `at` with its right neighbour, after either changed.
    fn update(&self, symbols: &mut [Symbol], heap: &mut BinaryHeap<Reverse<u64>>, at: usize) {
        let Symbol { id, next, .. } = symbols[at];
        let merge = match symbols.get(next) {
            Some(right) => self.merge_of(id, right.id),
            None => NO_MERGE,
        };
        symbols[at].merge = merge;
        if merge.rank != NO_RANK {
            heap.push(Reverse(entry(merge.rank, at)));
        }
    }
}

/// [`Bpe::encode_words`], to be compiled for several instruction sets.
struct EncodeWords<'a, 'w> {
    bpe: &'a Bpe,
    words: &'a Words<'w>,
    vocab: &'a Vocab,
    scratch: &'a mut MergeScratch,
    out: &'a mut Vec<u32>,
}

impl Work for EncodeWords<'_, '_> {
    #[inline(always)]
    fn run<C: Compare>(self) {
        let Self {
            bpe,
            words,
            vocab,
            scratch,
            out,
        } = self;
        let bytes = words.text.as_bytes();
        let mut keys = [(Key::NONE, 0); GROUP];
        let mut ids = [0u32; GROUP * KEY_MAX + 4];
        let mut start = words.start;
        for ends in words.ends.chunks(GROUP) {
            let mut from = start;
            for (slot, &end) in keys.iter_mut().zip(ends) {
                let key = Key::new(bytes, start, end);
                let line = bpe.words.home(key.hash());
                bpe.words.prefetch(line);
                *slot = (key, line);
                start = end;
            }
            let mut count = 0;
            for (&(key, line), &end) in keys.iter().zip(ends) {
                if let Some(id) = bpe.words.get::<C>(key, line) {
                    ids[count] = id;
                    count += 1;
                } else {
                    let scratch = scratch.get();
                    let hash = key.hash();
                    if let Some((four, tokens)) = scratch.cache.short(bpe.owner, key, hash) {
                        // All four in one move; those after the last token are
                        // overwritten.
                        ids[count..count + 4].copy_from_slice(four);
                        count += tokens;
                    } else {
                        out.extend_from_slice(&ids[..count]);
                        count = 0;
                        bpe.encode_rare(&bytes[from..end], key, hash, vocab, scratch, out);
                    }
                }
                from = end;
            }
            out.extend_from_slice(&ids[..count]);
        }
    }
}

/// Whether the vocabulary lacks a byte that UTF-8 uses.
fn loses_bytes(byte_ids: &[u32; 256]) -> bool {
    let never = |byte: usize| matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    let mut lacking = byte_ids.iter().enumerate();
    lacking.any(|(byte, id)| *id == NO_TOKEN && !never(byte))
}

fn entry(rank: u32, at: usize) -> u64 {
    u64::from(rank) << 40 | at as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::PairTableBuilder;
    use proptest::prelude::*;

    /// Bytes 0..4 are tokens 0..4; each rule makes a new token.
    fn bpe(rules: &[(u32, u32)]) -> Bpe {
        let mut pairs = PairTableBuilder::with_capacity(rules.len());
        for (rank, &(left, right)) in rules.iter().enumerate() {
            let id = 4 + rank as u32;
            let rank = rank as u32;
            pairs.insert(left, right, Merge { rank, id });
        }
        Bpe::new(std::array::from_fn(|byte| byte as u32), pairs.finish())
    }

    /// The definition, one merge at a time.
    fn naive(bpe: &Bpe, word: &[u8]) -> Vec<u32> {
        let mut ids: Vec<u32> = word.iter().map(|&b| u32::from(b)).collect();
        while let Some((merge, at)) = (1..ids.len())
            .filter_map(|at| Some((bpe.pairs.get(ids[at - 1], ids[at])?, at)))
            .min_by_key(|(merge, at)| (merge.rank, *at))
        {
            ids.splice(at - 1..=at, [merge.id]);
        }
        ids
    }

    proptest! {
        #[test]
        fn scan_and_heap_are_the_definition(
            rules in prop::collection::vec((0u32..24, 0u32..24), 0..24),
            word in prop::collection::vec(0u8..4, 0..SCAN_MAX),
        ) {
            let bpe = bpe(&rules);
            let expected = naive(&bpe, &word);
            let mut scratch = Merging::default();
            let (mut scanned, mut heaped) = (Vec::new(), Vec::new());
            bpe.merge(&word[..word.len().min(SCAN_MAX)], &mut scratch, &mut scanned);
            bpe.merge_by_heap(&word, &mut scratch, &mut heaped);
            prop_assert_eq!(&scanned, &expected);
            prop_assert_eq!(&heaped, &expected);
            // The scratch carries nothing over.
            heaped.clear();
            bpe.merge_by_heap(&word, &mut scratch, &mut heaped);
            prop_assert_eq!(&heaped, &expected);
        }
    }

    #[test]
    fn long_words_are_merged() {
        let bpe = bpe(&[(0, 0), (4, 4), (5, 5)]);
        let mut out = Vec::new();
        bpe.merge(&vec![0; 1 << 20], &mut Merging::default(), &mut out);
        assert_eq!(out, vec![6; 1 << 17]);
    }
}
