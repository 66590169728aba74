//! Byte-pair encoding of one word.
//!
//! A word starts as one token per byte. The pair of neighbours whose merge rule
//! comes first in the file, and of equal ones the leftmost, becomes one token,
//! until no rule applies ([`merge`]).
//!
//! Most words are a token themselves. For those the merges are skipped, if they
//! are known to lead to that token: this is proved for each token at load ([`prove`],
//! or the file says so with `ignore_merges`). Such words of up to
//! 12 bytes are found in [`WordTable`], longer ones in a table of strings. Words of
//! several tokens are remembered by the thread ([`crate::cache`]).

mod few;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod merge;
mod parts;
mod pending;
pub(crate) mod prove;
mod words;

use crate::atoms::Atoms;
pub(crate) use crate::cache::MergeScratch;
use crate::cache::{Cache, LongKey, Owner};
use crate::compare::{self, Scalar};
use crate::gather::Gathered;
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::pairs::PairTable;
use crate::pretokenize::Words;
use crate::sentencepiece::Pieces;
use crate::store::Movable;
use crate::table::{Crowded, StringTable, StringTableBuilder};
use crate::vocab::Vocab;
use crate::words::{KEY_MAX, Key, WordTable};
use few::FEW_WORDS;
use merge::Merging;
use parts::AtOnce;
use pending::Pending;
use prove::Proofs;
use std::ops::Range;
use words::{EncodeWords, Groups};

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
#[derive(Debug)]
pub(crate) struct Scratch {
    cache: Cache,
    merging: Merging,
    /// Tokens of one word.
    ids: Vec<u32>,
    pending: Box<Pending>,
    groups: Box<Groups>,
    /// Words that wait for [`Bpe::encode_words`].
    pub(crate) gathered: Option<Box<Gathered>>,
    /// Of the other family.
    pieces: Box<Pieces>,
}

impl Default for Scratch {
    /// Not where a call asks for what its thread has: these are 24 KB, for which that would
    /// make room on the stack each time, at 12 ns.
    #[cold]
    #[inline(never)]
    fn default() -> Self {
        Self {
            cache: Cache::default(),
            merging: Merging::default(),
            ids: Vec::new(),
            pending: Box::default(),
            groups: Box::default(),
            gathered: None,
            pieces: Box::default(),
        }
    }
}

/// Bytes of memory for long words that a thread keeps: a word of some ten thousand
/// bytes. Those of longer ones are given back after the call.
const KEPT_BYTES: usize = 1 << 19;

impl Scratch {
    /// What models of the other family need: the words that the thread remembers, and
    /// memory for their pieces.
    pub(crate) fn pieces(&mut self) -> (&mut Cache, &mut Pieces) {
        (&mut self.cache, &mut self.pieces)
    }

    /// Gives back what an unusually long word took.
    pub(crate) fn shrink(&mut self) {
        let bytes = self.merging.bytes() + self.ids.capacity() * size_of::<u32>();
        if bytes > KEPT_BYTES {
            self.merging = Merging::default();
            self.ids = Vec::new();
        }
        self.pieces.shrink(KEPT_BYTES);
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
    /// spell bytes, rising; with `ignore_merges` all of them are taken, otherwise those
    /// that their merges lead to. `rules` are those that the pairs were made of.
    ///
    /// # Errors
    /// Where words were chosen to share their place in a table.
    pub(crate) fn index_words(
        &mut self,
        all: &[u32],
        rules: &[[u32; 3]],
        vocab: &Vocab,
        ignore_merges: bool,
    ) -> Result<(), Crowded> {
        // Tokens are numbered in the order in which training found them, which is
        // about that of their frequency.
        let own;
        let ids = if ignore_merges {
            all
        } else {
            own = self.reproduced(all, rules, vocab);
            &own
        };
        let lens = self.index_ids(ids, vocab)?;
        self.long_lens = lens;
        let repeats = self.pairs.has_repeats();
        let ranked = (0..)
            .zip(rules)
            .map(|(rank, rule)| (rule[0], rule[1], rank));
        // Of two rules for one pair, the earlier does not exist.
        let ranked = ranked.filter(|&(l, r, rank)| !repeats || self.pairs.rank(l, r) == rank);
        self.atoms = Atoms::new(&self.byte_ids, &self.pairs, ranked, all, vocab);
        self.proved = !ignore_merges;
        self.name_owners();
        Ok(())
    }

    /// Those of `all` that merging their bytes leads to.
    fn reproduced(&self, all: &[u32], rules: &[[u32; 3]], vocab: &Vocab) -> Vec<u32> {
        let id_end = all.last().map_or(0, |id| *id as usize + 1);
        let proofs = Proofs::new(self.byte_ids.into_iter(), rules, &self.pairs, id_end);
        let mut merging = Merging::default();
        let mut merged = Vec::new();
        let mut is_own = |id: u32| {
            merged.clear();
            self.merge(vocab.piece(id), &mut merging, &mut merged);
            merged == [id]
        };
        let ids = all.iter().copied();
        ids.filter(|id| proofs.contains(*id) || is_own(*id))
            .collect()
    }

    /// Fills the tables of words; the lengths of the shortest and the longest of those in
    /// the second one.
    fn index_ids(&mut self, ids: &[u32], vocab: &Vocab) -> Result<(u32, u32), Crowded> {
        let (words, crowded) = WordTable::new(ids.iter().map(|&id| (vocab.key(id), id)));
        self.words = words;
        let long = ids
            .iter()
            .filter(|&&id| !WordTable::fits(vocab.key(id), id))
            .chain(&crowded);
        let mut long_words = StringTableBuilder::with_capacity(long.clone().count());
        let mut lens = (u32::MAX, 0);
        for &id in long {
            let word = vocab.piece(id);
            long_words.insert(word, id, |id| vocab.piece(id))?;
            let len = u32::try_from(word.len()).unwrap_or(u32::MAX);
            lens = (len.min(lens.0), len.max(lens.1));
        }
        self.long_words = long_words.finish();
        Ok(lens)
    }

    /// Appends the tokens of each of `words`, and the ids of those that are added tokens.
    pub(crate) fn encode_words(
        &self,
        words: &Words<'_>,
        vocab: &Vocab,
        scratch: &mut MergeScratch,
        out: &mut Vec<u32>,
    ) {
        if words.ends.len() <= FEW_WORDS {
            return self.encode_few(words, vocab, scratch.get(), out);
        }
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
        if let Some((four, tokens)) = scratch.cache.short(self.owner, key, hash) {
            out.extend_from_slice(&four[..tokens]);
            return;
        }
        if !self.encode_known(word, &scratch.cache, out) {
            let rest = (&mut scratch.cache, &mut scratch.merging, &mut scratch.ids);
            self.encode_rare(word, (key, hash), vocab, rest, out);
        }
    }

    /// Appends the tokens of a word that is long, or has many, if they are remembered.
    fn encode_known(&self, word: &[u8], cache: &Cache, out: &mut Vec<u32>) -> bool {
        let known = Self::long_key(word).and_then(|key| cache.long(self.owner, key));
        out.extend_from_slice(known.unwrap_or_default());
        known.is_some()
    }

    /// Appends the tokens of a word that neither the table of words nor the cache has, and
    /// remembers them.
    #[inline(never)]
    fn encode_rare(
        &self,
        word: &[u8],
        (key, hash): (Key, u64),
        vocab: &Vocab,
        (cache, merging, ids): (&mut Cache, &mut Merging, &mut Vec<u32>),
        out: &mut Vec<u32>,
    ) {
        // Clauses of Chinese and Japanese rarely come back as a whole.
        if self.is_clause_of_parts(word) {
            return self.merge_parts(word, (cache, merging), &mut AtOnce, out);
        }
        if self.look_long(word, (key, hash), vocab, cache, out) {
            return;
        }
        ids.clear();
        self.merge_parts(word, (&mut *cache, merging), &mut AtOnce, ids);
        self.remember(word, (key, hash), cache, ids);
        out.extend_from_slice(ids);
    }

    /// [`Bpe::encode_rare`] for the word at `place` of a text, of which parts may wait: then
    /// there is room for their tokens in `out`.
    #[inline(never)]
    fn encode_later(
        &self,
        (bytes, place): (&[u8], Range<usize>),
        (key, hash): (Key, u64),
        vocab: &Vocab,
        (cache, merging, pending): (&mut Cache, &mut Merging, &mut Pending),
        out: &mut Vec<u32>,
    ) {
        let word = &bytes[place.clone()];
        if self.is_clause_of_parts(word) {
            return self.merge_parts(word, (cache, merging), &mut AtOnce, out);
        }
        if self.look_long(word, (key, hash), vocab, cache, out) {
            return;
        }
        if is_clause(word) {
            // Their parts are short, and merged as soon as they could have been put aside.
            let before = out.len();
            self.merge_parts(word, (&mut *cache, merging), &mut AtOnce, out);
            self.remember(word, (key, hash), cache, &out[before..]);
        } else {
            pending.word(self, bytes, place, (key, hash), (cache, merging), out);
        }
    }

    /// Whether a word is not looked for as a whole, but in parts.
    fn is_clause_of_parts(&self, word: &[u8]) -> bool {
        self.proved && word.len() > KEY_MAX && is_clause(word)
    }

    /// The key of a long word; none of those that do not come back.
    fn long_key(word: &[u8]) -> Option<LongKey> {
        (!is_clause(word)).then(|| LongKey::new(word)).flatten()
    }

    /// Looks for a word in the table of long ones, and appends its token. Returns whether it
    /// was found.
    fn look_long(
        &self,
        word: &[u8],
        (key, hash): (Key, u64),
        vocab: &Vocab,
        cache: &mut Cache,
        out: &mut Vec<u32>,
    ) -> bool {
        // Hashing a long word for nothing takes as long as a merge or two.
        let (shortest, longest) = self.long_lens;
        let whole = (shortest as usize..=longest as usize)
            .contains(&word.len())
            .then(|| self.long_words.get(word, |id| vocab.piece(id)));
        let Some(id) = whole.flatten() else {
            return false;
        };
        self.remember(word, (key, hash), cache, &[id]);
        out.push(id);
        true
    }

    /// Remembers the tokens of a word that was merged.
    fn remember(&self, word: &[u8], (key, hash): (Key, u64), cache: &mut Cache, ids: &[u32]) {
        // A word that is too long for a short key is remembered as a long one however few
        // its tokens are: of Russian words of 16 to 31 bytes, three in four come back.
        if (key.is_none() || !cache.remember_short(self.owner, key, hash, ids))
            && let Some(long) = Self::long_key(word)
        {
            cache.remember_long(self.owner, &long, ids);
        }
    }

    /// Appends one token per byte, without merging.
    pub(crate) fn encode_bytes(&self, word: &[u8], out: &mut Vec<u32>) {
        out.extend(self.byte_tokens(word));
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
}

/// Whether a long word is a clause of Chinese or Japanese.
#[inline(always)]
fn is_clause(word: &[u8]) -> bool {
    matches!(word.first(), Some(0xE3..=0xE9 | 0xEF))
}

/// Whether the vocabulary lacks a byte that UTF-8 uses.
fn loses_bytes(byte_ids: &[u32; 256]) -> bool {
    let never = |byte: usize| matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    let mut lacking = byte_ids.iter().enumerate();
    lacking.any(|(byte, id)| *id == NO_TOKEN && !never(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{alphabet, vocab};

    /// Bytes are their own ids; from 256 on are two, four, eight and sixteen times `a`.
    fn model() -> (Bpe, Vocab) {
        let mut builder = vocab::Builder::default();
        let bytes = (0..=255).map(|byte| vec![byte]);
        let runs = (1..5).map(|n| vec![b'a'; 1 << n]);
        for (id, piece) in (0..).zip(bytes.chain(runs)) {
            assert_eq!(builder.add_model(&alphabet::spell(&piece), id), Ok(()));
        }
        let names = builder.index().expect("each token once");
        let vocab = builder.finish(names, 0);
        let a = u32::from(b'a');
        let rules = [
            [a, a, 256],
            [256, 256, 257],
            [257, 257, 258],
            [258, 258, 259],
        ];
        let mut bpe = Bpe::new(
            std::array::from_fn(|byte| byte as u32),
            PairTable::new(&rules),
        );
        let all: Vec<u32> = (0..260).collect();
        let indexed = bpe.index_words(&all, &rules, &vocab, false);
        assert!(indexed.is_ok());
        (bpe, vocab)
    }

    #[test]
    fn words_are_remembered_however_long_they_are_and_however_few_their_tokens() {
        let (bpe, vocab) = model();
        let run = "a".repeat(16);
        let words = [
            ("aab", 2),
            ("abab", 4),
            ("abababab", 8),
            (&*format!("{run}b"), 2),
            (&*format!("{run}bab"), 4),
            (&*format!("{run}babababa"), 9),
        ];
        for (word, tokens) in words {
            let mut scratch = MergeScratch::default();
            let mut out = Vec::new();
            bpe.encode(word.as_bytes(), &vocab, &mut scratch, &mut out);
            assert_eq!(out.len(), tokens);
            let (cache, _) = scratch.get().pieces();
            let key = Key::new(word.as_bytes(), 0, word.len());
            let long = LongKey::new(word.as_bytes()).expect("at most 31 bytes");
            let known = match cache.short(bpe.owner, key, key.hash()) {
                Some((four, tokens)) => Some(&four[..tokens]),
                _ => cache.long(bpe.owner, long),
            };
            // There is no room for more than seven.
            assert_eq!(known, (tokens <= 7).then_some(&*out), "{word}");
        }
    }

    /// Words by the hundred give what they give one by one, whatever waits for whom.
    #[test]
    fn words_of_a_text_are_those_that_are_encoded_alone() {
        let (bpe, vocab) = model();
        let mut state = 1u64;
        let mut below = |end: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((state >> 33) % end) as usize
        };
        for count in [1, 3, 20, 64, 65, 300, 2000] {
            let (mut text, mut ends) = (String::new(), Vec::new());
            for _ in 0..count {
                for _ in 0..1 + below(9) {
                    text.push_str(["a", "aa", "aaaa", "b", "ж", "漢", "é"][below(7)]);
                }
                ends.push(text.len());
            }
            let words = Words {
                text: &text,
                start: 0,
                ends: &ends,
                base: 0,
                tokens: &[],
            };
            let (mut together, mut alone) = (vec![7], vec![7]);
            let mut scratch = MergeScratch::default();
            bpe.encode_words(&words, &vocab, &mut scratch, &mut together);
            let mut start = 0;
            for &end in &ends {
                // Not the memory of the other one, which is in use.
                let mut scratch = MergeScratch::default();
                bpe.encode(
                    &text.as_bytes()[start..end],
                    &vocab,
                    &mut scratch,
                    &mut alone,
                );
                start = end;
            }
            assert_eq!(together, alone, "{count} words");
            // All that can be remembered is, and remembered right.
            let mut again = vec![7];
            bpe.encode_words(&words, &vocab, &mut scratch, &mut again);
            assert_eq!(again, alone);
        }
    }
}
