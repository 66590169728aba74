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

mod merge;
pub(crate) mod prove;
mod words;

use crate::atoms::{self, Atoms, NO_ATOM};
pub(crate) use crate::cache::MergeScratch;
use crate::cache::{Cache, Known, LongKey, Owner, SHORT_TOKENS};
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
use merge::{Merging, SCAN_MAX, Symbols};
use prove::Proofs;
use std::ops::Range;
use words::{EncodeWords, Groups};

/// Parts of so many symbols are merged at once: to look for one that was merged before
/// takes as long.
const FEW: usize = 8;

/// Words of up to so many ASCII characters are merged whole: looking for places where they
/// fall apart takes longer than merging what is between these.
const ASCII_MAX: usize = 16;

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
    /// Words that wait for [`Bpe::encode_words`].
    pub(crate) gathered: Option<Box<Gathered>>,
    /// Of the other family.
    pieces: Box<Pieces>,
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
        let clause = is_clause(word);
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
        // A word that is too long for a short key is remembered as a long one however few
        // its tokens are: of Russian words of 16 to 31 bytes, three in four come back.
        if key.is_none() || !cache.remember_short(self.owner, key, hash, ids) {
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
    #[inline(never)]
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
        if word.len() <= ASCII_MAX && word.is_ascii() {
            for (id, byte) in symbols.ids.iter_mut().zip(word) {
                *id = self.byte_ids[usize::from(*byte)];
            }
            symbols.len = word.len();
            return self.finish_part(word, 0..word.len(), &mut symbols, cache, merging, out);
        }
        // Where the part begins, and the character before `at` if it is an atom of one
        // token.
        let (mut start, mut before) = (0, atoms::NO_CHAR);
        // Whether the last token is that character alone.
        let mut single = false;
        // The last byte and the last character, atom or not, and those before these.
        let (mut previous, mut earlier) = ((0, atoms::NO_CHAR), (0, atoms::NO_CHAR));
        let (mut at, mut lead) = (0, word.first().copied().unwrap_or(0));
        let (mut code, mut end) = char_of_word(word, 0, lead);
        while at < word.len() {
            let next_lead = word.get(end).copied().unwrap_or(0);
            let (next, next_end) = char_of_word(word, end, next_lead);
            let [token, second] = if lead.is_ascii() {
                [self.byte_ids[usize::from(lead)], NO_TOKEN]
            } else {
                self.atoms.get(code, previous, (next, next_lead))
            };
            if token == NO_ATOM {
                let double = if single {
                    self.atoms.double(before, code, earlier)
                } else {
                    NO_TOKEN
                };
                if double == NO_TOKEN {
                    for &byte in &word[at..end] {
                        symbols.push(self.byte_ids[usize::from(byte)]);
                    }
                    before = atoms::NO_CHAR;
                } else {
                    symbols.replace_last(double);
                    before = code;
                }
                single = false;
            } else if second != NO_TOKEN {
                symbols.push(token);
                symbols.push(second);
                before = atoms::NO_CHAR;
                single = false;
            } else {
                if before != atoms::NO_CHAR {
                    if self.atoms.may_join(before, code) {
                        let last = symbols.ids.get(symbols.len.wrapping_sub(1));
                        self.pairs
                            .prefetch(last.copied().unwrap_or(NO_TOKEN), token);
                    } else {
                        self.finish_part(word, start..at, &mut symbols, cache, merging, out);
                        start = at;
                    }
                }
                symbols.push(token);
                before = code;
                single = true;
            }
            earlier = previous;
            previous = (word[end - 1], code);
            (at, lead) = (end, next_lead);
            (code, end) = (next, next_end);
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
        let [left, right, ..] = symbols.ids;
        if len == 1 {
            out.push(left);
        } else if len == 2 {
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
        // Of parts with more tokens nothing would be found.
        if !whole && out.len() - before <= SHORT_TOKENS {
            cache.remember_short(self.parts_owner, key, hash, &out[before..]);
        }
    }
}

/// The character of a word that begins with `lead` at `at`, and where it ends. Words are
/// valid UTF-8, which is not checked again; after the word is [`atoms::NO_CHAR`].
#[inline(always)]
fn char_of_word(word: &[u8], at: usize, lead: u8) -> (u32, usize) {
    let tail = |n: usize| u32::from(word.get(at + n).copied().unwrap_or(0)) & 0x3F;
    let bits = u32::from(lead);
    let (code, len) = match lead {
        _ if at >= word.len() => (atoms::NO_CHAR, 0),
        ..0x80 => (bits, 1),
        0x80..0xE0 => ((bits & 0x1F) << 6 | tail(1), 2),
        0xE0..0xF0 => ((bits & 0x0F) << 12 | tail(1) << 6 | tail(2), 3),
        _ => {
            let code = (bits & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
            (code, 4)
        }
    };
    (code, (at + len).min(word.len()))
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
                Known::Tokens(four, tokens) => Some(&four[..tokens]),
                _ => cache.long(bpe.owner, &long),
            };
            // There is no room for more than seven.
            assert_eq!(known, (tokens <= 7).then_some(&*out), "{word}");
        }
    }
}
