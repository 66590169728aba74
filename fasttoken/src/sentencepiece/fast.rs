//! The ids of a word, for models that have a token or bytes for every character.
//!
//! A word, which may be a whole text, is cut where no rule joins two characters
//! ([`super::borders`]). Most pieces are a word of a language with the blank before it, or
//! one character of a script with few tokens. They are looked up in groups: as a token in
//! the frozen table, then in what the thread remembers ([`crate::cache`]), and only then
//! merged.

use super::merge::{Model, NO_ID, Scratch};
use crate::cache::{Cache, Known, LongKey, MergeScratch};
use crate::compare::{self, Compare, Work};
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::pairs::NO_RANK;
use crate::store::{Flat, Movable};
use crate::words::{KEY_MAX, Key};

/// Pieces whose keys are made before the first is looked up, so that memory that is far
/// away has been asked for.
const GROUP: usize = 32;

/// Longest piece, in symbols, that is merged by scanning arrays on the stack.
const SCAN_MAX: usize = 48;

/// A piece, and what is needed to look it up.
#[derive(Debug, Clone, Copy)]
struct Probe {
    key: Key,
    hash: u64,
    /// Its line of the table of words; or [`IN_BYTES`].
    line: usize,
    start: usize,
    end: usize,
}

/// In place of a line: a character that has no token.
const IN_BYTES: usize = usize::MAX;

/// Pieces of which the first `count` wait, in the order of the text.
struct Group {
    /// [`NO_ID`] for those that are not known yet.
    ids: [u32; GROUP],
    /// Set for those only.
    probes: [Probe; GROUP],
    count: usize,
    /// Room for up to four ids of each.
    staged: [u32; 4 * GROUP + 4],
}

/// Characters of a block of [`Singles`].
const BLOCK: usize = 64;
const END: usize = char::MAX as usize + 1;

/// The tokens of single characters: pieces of one character, of which texts in many
/// scripts are full, need no key, and are told by two small tables.
#[derive(Debug)]
pub(super) struct Singles {
    /// Block of each 64 code points; the first is empty.
    index: Flat<u16>,
    ids: Flat<u32>,
}

impl Singles {
    pub(super) fn new(tokens: impl Iterator<Item = (char, u32)>) -> Self {
        let mut index = vec![0u16; END / BLOCK];
        let mut ids = vec![NO_ID; BLOCK];
        for (c, id) in tokens {
            let block = &mut index[c as usize / BLOCK];
            if *block == 0 {
                *block = (ids.len() / BLOCK) as u16;
                ids.resize(ids.len() + BLOCK, NO_ID);
            }
            ids[usize::from(*block) * BLOCK + c as usize % BLOCK] = id;
        }
        Self {
            index: index.into(),
            ids: ids.into(),
        }
    }

    pub(super) fn write(&self, image: &mut Writer) {
        image.put(Section::SingleIndex, &self.index);
        image.put(Section::SingleIds, &self.ids);
    }

    /// What an index leads to is checked where it is used.
    pub(super) fn read(image: &Reader) -> Result<Self, ImageError> {
        Ok(Self {
            index: image.get(Section::SingleIndex)?,
            ids: image.get(Section::SingleIds)?,
        })
    }

    pub(super) fn tables(&mut self) -> [&mut dyn Movable; 2] {
        [&mut self.index, &mut self.ids]
    }

    /// [`NO_ID`] if there is none.
    #[inline(always)]
    pub(super) fn get(&self, c: char) -> u32 {
        let block = self.index.get(c as usize / BLOCK).copied().unwrap_or(0);
        let at = usize::from(block) * BLOCK + c as usize % BLOCK;
        self.ids.get(at).copied().unwrap_or(NO_ID)
    }
}

/// What [`Model::encode_word`] needs, to be compiled for several instruction sets.
struct EncodeWord<'a> {
    model: &'a Model,
    word: &'a str,
    memory: &'a mut MergeScratch,
    scratch: &'a mut Scratch,
    out: &'a mut Vec<u32>,
}

impl Work for EncodeWord<'_> {
    #[inline(always)]
    fn run<C: Compare>(self) {
        let Self {
            model,
            word,
            memory,
            scratch,
            out,
        } = self;
        let cache = memory.get().cache();
        let bytes = word.as_bytes();
        let probe = Probe {
            key: Key::NONE,
            hash: 0,
            line: 0,
            start: 0,
            end: 0,
        };
        let mut group = Group {
            ids: [NO_ID; GROUP],
            probes: [probe; GROUP],
            count: 0,
            staged: [0; 4 * GROUP + 4],
        };
        let mut chars = word.char_indices();
        let Some((_, mut left)) = chars.next() else {
            return;
        };
        // Where the piece and where its last character begins.
        let (mut start, mut last) = (0, 0);
        loop {
            let next = chars.next();
            let (end, right) = next.unwrap_or((word.len(), left));
            if next.is_none() || !model.borders.joins(left, right) {
                let at = group.count % GROUP;
                let single = if start == last {
                    model.singles.get(left)
                } else {
                    NO_ID
                };
                group.ids[at] = single;
                if single == NO_ID {
                    let (key, hash, line) = if start == last {
                        (Key::NONE, 0, IN_BYTES)
                    } else {
                        let key = Key::new(bytes, start, end);
                        let hash = key.hash();
                        let line = model.words.home(hash);
                        model.words.prefetch(line);
                        (key, hash, line)
                    };
                    group.probes[at] = Probe {
                        key,
                        hash,
                        line,
                        start,
                        end,
                    };
                }
                group.count += 1;
                start = end;
                if group.count == GROUP || next.is_none() {
                    model.look_up::<C>(&mut group, word, cache, scratch, out);
                }
            }
            if next.is_none() {
                return;
            }
            (left, last) = (right, end);
        }
    }
}

impl Model {
    /// Whether [`Model::encode_word`] may be asked.
    pub(super) fn is_simple(&self) -> bool {
        self.complete && self.whole.is_none()
    }

    /// Appends the ids of a word.
    pub(super) fn encode_word(
        &self,
        word: &str,
        memory: &mut MergeScratch,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        compare::run(EncodeWord {
            model: self,
            word,
            memory,
            scratch,
            out,
        });
    }

    /// Appends the ids of the pieces that wait.
    #[inline(always)]
    fn look_up<C: Compare>(
        &self,
        group: &mut Group,
        word: &str,
        cache: &mut Cache,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        let Group {
            ids,
            probes,
            count,
            staged,
        } = group;
        let pieces = std::mem::take(count).min(GROUP);
        for (id, probe) in ids.iter_mut().zip(&*probes).take(pieces) {
            if *id == NO_ID && probe.line != IN_BYTES {
                *id = self.words.get_or::<C>(probe.key, probe.line, NO_ID);
                if *id == NO_ID {
                    cache.prefetch_short(probe.hash);
                }
            }
        }
        let mut len = 0;
        for (&id, probe) in ids.iter().zip(&*probes).take(pieces) {
            if id != NO_ID {
                staged[len] = id;
                len += 1;
                continue;
            }
            if probe.line == IN_BYTES {
                for &byte in &word.as_bytes()[probe.start..probe.end] {
                    staged[len] = self.bytes[usize::from(byte)];
                    len += 1;
                }
                continue;
            }
            match cache.short(self.owner, probe.key, probe.hash) {
                Known::Tokens(four, count) => {
                    // All four in one move; those after the last token are overwritten.
                    staged[len..len + 4].copy_from_slice(four);
                    len += count;
                }
                known => {
                    out.extend_from_slice(&staged[..len]);
                    len = 0;
                    let elsewhere = matches!(known, Known::Elsewhere);
                    self.encode_rare(word, probe, elsewhere, cache, scratch, out);
                }
            }
        }
        out.extend_from_slice(&staged[..len]);
    }

    /// Appends the ids of a piece that is no short token and not remembered as a short one.
    #[inline(never)]
    fn encode_rare(
        &self,
        word: &str,
        probe: &Probe,
        elsewhere: bool,
        cache: &mut Cache,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        let piece = &word[probe.start..probe.end];
        let key_of_long = || LongKey::new(piece.as_bytes());
        let mut long = (piece.len() > KEY_MAX || elsewhere)
            .then(key_of_long)
            .flatten();
        if let Some(key) = &long
            && let Some(known) = cache.long(self.owner, key)
        {
            out.extend_from_slice(known);
            return;
        }
        let before = out.len();
        self.merge_piece(piece, scratch, out);
        let ids = &out[before..];
        if !cache.remember_short(self.owner, probe.key, probe.hash, ids) {
            long = long.or_else(key_of_long);
            if let Some(key) = &long {
                cache.remember_long(self.owner, key, ids);
            }
        } else if let Some(key) = &long {
            cache.remember_long(self.owner, key, ids);
        }
    }

    /// Appends what the characters of a piece are merged to.
    fn merge_piece(&self, piece: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let mut ids = [NO_ID; SCAN_MAX];
        let mut len = 0;
        for c in piece.chars() {
            if let Some(id) = self.char_id(c) {
                if len == SCAN_MAX {
                    return self.merge_all(piece, scratch, |id, _| out.push(id));
                }
                ids[len] = id;
                len += 1;
                continue;
            }
            // Complete models have them all.
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                if len == SCAN_MAX {
                    return self.merge_all(piece, scratch, |id, _| out.push(id));
                }
                ids[len] = self.bytes[usize::from(byte)];
                len += 1;
            }
        }
        let len = self.scan_ids(&mut ids, len);
        out.extend_from_slice(&ids[..len]);
    }

    /// Merges the first `len` of `ids`; the number of ids left.
    fn scan_ids(&self, ids: &mut [u32; SCAN_MAX], mut len: usize) -> usize {
        let mut ranks = [NO_RANK; SCAN_MAX];
        for at in 1..len {
            ranks[at - 1] = self.pairs.rank(ids[at - 1], ids[at]);
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
}
