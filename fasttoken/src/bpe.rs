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
use crate::cache::{Cache, Known, LongKey, Owner};
use crate::compare::{self, Compare, Scalar, Work};
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::pairs::{NO_RANK, PairTable};
use crate::pretokenize::Words;
use crate::store::Movable;
use crate::table::{StringTable, StringTableBuilder};
use crate::vocab::Vocab;
use crate::words::{KEY_MAX, Key, WordTable};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Longest word that is merged by scanning; at this length the heap is as fast.
const SCAN_MAX: usize = 48;

/// Parts of so many symbols are merged at once: to look for one that was merged before
/// takes as long.
const FEW: usize = 4;

/// Most bytes after a run that is merged as one.
const RUN_TAIL: usize = 16;

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
    groups: Box<Groups>,
}

/// Words that are looked up together; kept between calls, since clearing them would take
/// as long as encoding a short text.
#[derive(Debug)]
struct Groups {
    /// Those of this group and of the next one.
    probes: [[Probe; GROUP]; 2],
    /// Tokens of up to three per word, and room to write four.
    staged: [u32; GROUP * 3 + 4],
}

impl Default for Groups {
    fn default() -> Self {
        let probe = Probe {
            key: Key::NONE,
            hash: 0,
            line: 0,
        };
        Self {
            probes: [[probe; GROUP]; 2],
            staged: [0; GROUP * 3 + 4],
        }
    }
}

/// A word that will be looked up.
#[derive(Debug, Clone, Copy)]
struct Probe {
    key: Key,
    hash: u64,
    /// Its line of the table of words.
    line: usize,
}

/// Memory for merging long words.
#[derive(Debug, Default)]
struct Merging {
    symbols: Vec<Symbol>,
    /// Rank in the upper 24 bits, position in the lower 40.
    heap: BinaryHeap<Reverse<u64>>,
}

/// Words of which keys are made before any is looked up, while those of the group before
/// are: the memory that is asked for meanwhile is what the processor can have under way, a
/// few dozen lines.
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
    /// Rank of the merge with the following symbol; `NO_RANK` when there is none or when
    /// this symbol was swallowed, so that old heap entries do not fit any more.
    rank: u32,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

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

    /// All tables, those that encoding reads most first.
    pub(crate) fn tables(&mut self) -> impl Iterator<Item = &mut dyn Movable> {
        let first = self.atoms.tables().into_iter();
        let rest = [self.words.table(), self.long_words.table()];
        first.chain(self.pairs.tables()).chain(rest)
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
            Known::Tokens(four, tokens) => out.extend_from_slice(&four[..tokens]),
            known => {
                let elsewhere = matches!(known, Known::Elsewhere);
                let rest = (&mut scratch.cache, &mut scratch.merging, &mut scratch.ids);
                self.encode_rare(word, (key, hash, elsewhere), vocab, rest, out);
            }
        }
    }

    /// Appends the tokens of a word that neither the table nor the cache of short
    /// words has, and remembers them.
    #[inline(never)]
    fn encode_rare(
        &self,
        word: &[u8],
        (key, hash, elsewhere): (Key, u64, bool),
        vocab: &Vocab,
        (cache, merging, ids): (&mut Cache, &mut Merging, &mut Vec<u32>),
        out: &mut Vec<u32>,
    ) {
        // Clauses of Chinese and Japanese rarely come back as a whole.
        let clause = matches!(word.first(), Some(0xE3..=0xE9 | 0xEF));
        if clause && word.len() > KEY_MAX && self.proved {
            return self.merge_parts(word, cache, merging, out);
        }
        let key_of_long = |repeats: bool| (repeats && !clause).then(|| LongKey::new(word));
        let mut long = key_of_long(word.len() > KEY_MAX || elsewhere).flatten();
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
        if !cache.remember_short(self.owner, key, hash, ids) {
            long = long.or_else(|| key_of_long(true).flatten());
            if let Some(key) = &long {
                cache.remember_long(self.owner, key, ids);
            }
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
            let len = self.merge_by_scan::<SCAN_MAX>(&mut symbols.ids, symbols.len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else if !self.merge_run(word, out) {
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
        // The last character, atom or not.
        let mut previous = None;
        let mut at = 0;
        while at < word.len() {
            let lead = word[at];
            let (code, len) = decode(word, at).unwrap_or((0, 1));
            let token = match len {
                1 if lead.is_ascii() => self.byte_ids[usize::from(lead)],
                1 => NO_ATOM,
                _ => self.atoms.token(code, previous),
            };
            let atom = token != NO_ATOM;
            if atom
                && let Some(left) = before
                && !self.atoms.may_join(left, code)
            {
                self.finish_part(word, start..at, &mut symbols, cache, merging, out);
                start = at;
            } else if atom && before.is_some() {
                let last = symbols.ids.get(symbols.len.wrapping_sub(1));
                self.pairs
                    .prefetch(last.copied().unwrap_or(NO_TOKEN), token);
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
            previous = Some((word[at - 1], code));
        }
        self.finish_part(word, start..word.len(), &mut symbols, cache, merging, out);
    }

    /// Appends the tokens of a part of `word`, which begins as `symbols`, and empties
    /// those.
    #[inline(always)]
    fn finish_part(
        &self,
        word: &[u8],
        part: Range<usize>,
        symbols: &mut Symbols,
        cache: &mut Cache,
        merging: &mut Merging,
        out: &mut Vec<u32>,
    ) {
        let len = std::mem::take(&mut symbols.len);
        if len <= 1 {
            out.extend_from_slice(&symbols.ids[..len]);
        } else if len == 2 {
            let [left, right, ..] = symbols.ids;
            match self.pairs.merged(left, right) {
                Some(id) => out.push(id),
                None => out.extend([left, right]),
            }
        } else if len <= FEW {
            let len = self.merge_by_scan::<FEW>(&mut symbols.ids, len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else {
            self.merge_part(word, part, symbols, len, cache, merging, out);
        }
    }

    /// [`Bpe::finish_part`] for a part that merging takes a while for.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "of one function, cut in two")]
    fn merge_part(
        &self,
        word: &[u8],
        part: Range<usize>,
        symbols: &mut Symbols,
        len: usize,
        cache: &mut Cache,
        merging: &mut Merging,
        out: &mut Vec<u32>,
    ) {
        // Whole words were looked for before they came here.
        let whole = part.len() == word.len();
        let part = &word[part];
        let key = Key::new(part, 0, part.len());
        let hash = key.hash();
        if !whole {
            if self.proved
                && let Some(id) = self.words.get::<Scalar>(key, self.words.home(hash))
            {
                out.push(id);
                return;
            }
            if let Known::Tokens(four, tokens) = cache.short(self.parts_owner, key, hash) {
                out.extend_from_slice(&four[..tokens]);
                return;
            }
        }
        let before = out.len();
        if len <= 16 {
            let len = self.merge_by_scan::<16>(&mut symbols.ids, len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else if len <= SCAN_MAX {
            let len = self.merge_by_scan::<SCAN_MAX>(&mut symbols.ids, len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else {
            self.merge(part, merging, out);
        }
        if !whole && out.len() - before <= FEW {
            cache.remember_short(self.parts_owner, key, hash, &out[before..]);
        }
    }

    /// Merges the first `len` of `ids`, at most `N`; the number of tokens left.
    #[inline(always)]
    fn merge_by_scan<const N: usize>(&self, ids: &mut [u32; SCAN_MAX], mut len: usize) -> usize {
        let mut ranks = [NO_RANK; N];
        let len_max = len.min(N);
        for at in 1..len_max {
            ranks[at - 1] = self.pairs.rank(ids[at - 1], ids[at]);
        }
        while len > 1 {
            let (mut best, mut at) = (NO_RANK, 0);
            for (n, &rank) in ranks[..(len - 1).min(N)].iter().enumerate() {
                if rank < best {
                    (best, at) = (rank, n);
                }
            }
            if best == NO_RANK {
                break;
            }
            ids[at] = self.pairs.product(best);
            len -= 1;
            // Plain loops: calls for moves of a few numbers cost more than the moves.
            for n in at + 1..len {
                ids[n] = ids[n + 1];
                ranks[n - 1] = ranks[n];
            }
            ranks[len - 1] = NO_RANK;
            if at + 1 < len {
                ranks[at] = self.pairs.rank(ids[at], ids[at + 1]);
            }
            if at > 0 {
                ranks[at - 1] = self.pairs.rank(ids[at - 1], ids[at]);
            }
        }
        len
    }

    /// Merges a long word that begins with a run of one byte, if what follows is short:
    /// rulers, indentation, screams. A run of `n` equal symbols becomes one of `n / 2`
    /// in one step, as long as no pair that this makes comes before the pair of the run.
    /// Returns whether the word was of this kind; `out` is unchanged if not.
    fn merge_run(&self, word: &[u8], out: &mut Vec<u32>) -> bool {
        let Some(&first) = word.first() else {
            return false;
        };
        let run = word.iter().take_while(|byte| **byte == first).count();
        let mut symbol = self.byte_ids[usize::from(first)];
        if word.len() - run > RUN_TAIL || symbol == NO_TOKEN {
            return false;
        }
        let mut count = run;
        let mut tail: Vec<u32> = self.byte_tokens(&word[run..]).collect();
        while count + tail.len() > SCAN_MAX {
            if tail.len() > 2 * RUN_TAIL {
                return false;
            }
            let own = self.pairs.rank(symbol, symbol);
            // The best pair after the first symbol of the run's last pair.
            let mut best = (own, 0);
            let mut left = symbol;
            for (at, &right) in tail.iter().enumerate() {
                let rank = self.pairs.rank(left, right);
                if rank < best.0 {
                    best = (rank, at + 1);
                }
                left = right;
            }
            match best {
                (NO_RANK, _) => {
                    out.extend(std::iter::repeat_n(symbol, count));
                    out.extend(tail);
                    return true;
                }
                (_, 0) => {
                    let made = self.pairs.product(own);
                    let after = tail.first().copied();
                    let meets = [Some(made), Some(symbol), after].into_iter().flatten();
                    let first_of_new = meets.map(|right| self.pairs.rank(made, right)).min();
                    if first_of_new.is_some_and(|rank| rank < own) {
                        return false;
                    }
                    if count % 2 == 1 {
                        tail.insert(0, symbol);
                    }
                    (symbol, count) = (made, count / 2);
                }
                (rank, 1) => {
                    tail[0] = self.pairs.product(rank);
                    count -= 1;
                }
                (rank, at) => {
                    tail[at - 2] = self.pairs.product(rank);
                    tail.remove(at - 1);
                }
            }
        }
        let mut ids = [0; SCAN_MAX];
        ids[..count].fill(symbol);
        ids[count..count + tail.len()].copy_from_slice(&tail);
        let len = self.merge_by_scan::<SCAN_MAX>(&mut ids, count + tail.len());
        out.extend_from_slice(&ids[..len]);
        true
    }

    fn merge_by_heap(&self, word: &[u8], scratch: &mut Merging, out: &mut Vec<u32>) {
        let Merging { symbols, heap } = scratch;
        symbols.clear();
        symbols.extend(self.byte_tokens(word).enumerate().map(|(at, id)| Symbol {
            id,
            rank: NO_RANK,
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
            let rank = self.pairs.rank(symbols[at - 1].id, symbols[at].id);
            symbols[at - 1].rank = rank;
            if rank != NO_RANK {
                entries.push(Reverse(entry(rank, at - 1)));
            }
        }
        *heap = BinaryHeap::from(entries);

        while let Some(Reverse(top)) = heap.pop() {
            let (rank, at) = ((top >> 40) as u32, (top & ((1 << 40) - 1)) as usize);
            if symbols[at].rank != rank {
                continue;
            }
            let next = symbols[at].next;
            let right = symbols[next];
            symbols[next].rank = NO_RANK;
            symbols[at].id = self.pairs.product(rank);
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
        let rank = match symbols.get(next) {
            Some(right) => self.pairs.rank(id, right.id),
            None => NO_RANK,
        };
        symbols[at].rank = rank;
        if rank != NO_RANK {
            heap.push(Reverse(entry(rank, at)));
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
        let Scratch {
            cache,
            merging,
            ids,
            groups,
        } = scratch.get();
        let Groups {
            probes: [now, next],
            staged,
        } = &mut **groups;
        let (mut from, mut ahead) = (words.start, words.start);
        let mut look_ahead = |ends: &[usize], probes: &mut [Probe; GROUP]| {
            for (probe, &end) in probes.iter_mut().zip(ends) {
                let key = Key::new(bytes, ahead, end);
                let hash = key.hash();
                let line = bpe.words.home(hash);
                bpe.words.prefetch(line);
                *probe = Probe { key, hash, line };
                ahead = end;
            }
        };
        let (mut now, mut next) = (now, next);
        let mut chunks = words.ends.chunks(GROUP);
        let mut chunk = chunks.next();
        if let Some(ends) = chunk {
            look_ahead(ends, now);
        }
        while let Some(ends) = chunk {
            chunk = chunks.next();
            if let Some(ends) = chunk {
                look_ahead(ends, next);
            }
            let mut found = [NO_TOKEN; GROUP];
            for (found, probe) in found.iter_mut().zip(&now[..ends.len()]) {
                *found = bpe.words.get_or::<C>(probe.key, probe.line, NO_TOKEN);
                if *found == NO_TOKEN {
                    cache.prefetch_short(probe.hash);
                }
            }
            let mut count = 0;
            for ((&found, probe), &end) in found.iter().zip(&*now).zip(ends) {
                if found != NO_TOKEN {
                    staged[count] = found;
                    count += 1;
                } else {
                    match cache.short(bpe.owner, probe.key, probe.hash) {
                        Known::Tokens(four, tokens) => {
                            // All four in one move; those after the last token are
                            // overwritten.
                            staged[count..count + 4].copy_from_slice(four);
                            count += tokens;
                        }
                        known => {
                            out.extend_from_slice(&staged[..count]);
                            count = 0;
                            let elsewhere = matches!(known, Known::Elsewhere);
                            let what = (probe.key, probe.hash, elsewhere);
                            let rest = (&mut *cache, &mut *merging, &mut *ids);
                            bpe.encode_rare(&bytes[from..end], what, vocab, rest, out);
                        }
                    }
                }
                from = end;
            }
            out.extend_from_slice(&staged[..count]);
            std::mem::swap(&mut now, &mut next);
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
    use proptest::prelude::*;

    /// Bytes 0..4 are tokens 0..4; each rule makes a new token.
    fn bpe(rules: &[(u32, u32)]) -> Bpe {
        let rules: Vec<_> = rules
            .iter()
            .enumerate()
            .map(|(rank, &(left, right))| [left, right, 4 + rank as u32])
            .collect();
        let pairs = PairTable::new(&rules);
        Bpe::new(std::array::from_fn(|byte| byte as u32), pairs)
    }

    /// The definition, one merge at a time.
    fn naive(bpe: &Bpe, word: &[u8]) -> Vec<u32> {
        let mut ids: Vec<u32> = word.iter().map(|&b| u32::from(b)).collect();
        while let Some((rank, at)) = (1..ids.len())
            .map(|at| (bpe.pairs.rank(ids[at - 1], ids[at]), at))
            .filter(|(rank, _)| *rank != NO_RANK)
            .min()
        {
            ids.splice(at - 1..=at, [bpe.pairs.product(rank)]);
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

    proptest! {
        #[test]
        fn runs_are_the_definition(
            rules in prop::collection::vec((0u32..12, 0u32..12), 0..12),
            run in SCAN_MAX..300,
            tail in prop::collection::vec(0u8..4, 0..RUN_TAIL + 2),
        ) {
            let bpe = bpe(&rules);
            let mut word = vec![0; run];
            word.extend(&tail);
            let mut merged = vec![9];
            if bpe.merge_run(&word, &mut merged) {
                prop_assert_eq!(&merged[1..], &naive(&bpe, &word));
            } else {
                prop_assert_eq!(merged, [9]);
            }
        }

        #[test]
        fn runs_of_trained_rules_are_merged(
            order in any::<u64>(),
            run in SCAN_MAX..300,
            tail in prop::collection::vec(0u8..2, 0..RUN_TAIL - 1),
        ) {
            // Tokens of zeros, each made of two that were made before.
            let mut rules = vec![(0, 0)];
            for n in 1..8u32 {
                let pick = |shift: u32| (order >> (8 * n - shift)) as u32 % (n + 1);
                let token = |n: u32| if n == 0 { 0 } else { 3 + n };
                let rule = (token(pick(0)), token(pick(4)));
                rules.push(rule);
            }
            let bpe = bpe(&rules);
            let mut word = vec![0; run];
            word.push(3);
            word.extend(&tail);
            let mut merged = Vec::new();
            prop_assert!(bpe.merge_run(&word, &mut merged));
            prop_assert_eq!(&merged, &naive(&bpe, &word));
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
