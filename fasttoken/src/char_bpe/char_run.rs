//! The pieces of a run of characters, from their bytes to their ids; see [`super::run_encoder`].

use super::characters::{Characters, IDS, RUN};
use super::letter_table::META_BYTES;
use super::{CharBpe, NO_ID, Scratch};
use crate::cache::{Cache, LongKey, MANY_TOKENS, SHORT_TOKENS, ShortProbe};
use crate::compare::Compare;
use crate::pairs::{NO_RANK, RANK_MAX};
use crate::scan_merge::{MAX_SCAN_SYMBOLS, merge_by_scan};
use crate::short_tokens::{Key, MAX_KEY_BYTES};
use bytemuck::Zeroable;
use std::ops::Range;

/// Ids of a run: a character is up to four bytes, and moves are of eight.
const STAGED: usize = 4 * RUN + TOKENS;

/// Most tokens of a piece that is remembered, and the next power of two.
const TOKENS: usize = 8;

/// The position in [`Characters::ids`] of the tokens of pieces, after those of characters: four for
/// each looked-up piece, and then pieces of more tokens and new pieces.
const FOUND: usize = RUN;
const MADE: usize = FOUND + 4 * (RUN / 2);
const _: () = assert!(MADE + RUN + TOKENS == IDS && IDS <= u16::MAX as usize);

/// The characters of a run and the pieces that they make.
///
/// Pieces are sorted by how they are looked up, and each loop is over those of one kind. What
/// the next piece of a text is cannot be predicted: where every step asked, new Russian text
/// took a tenth more time.
#[derive(Debug, Zeroable)]
pub(super) struct Run {
    pub(super) characters: Characters,
    /// The position in [`Characters::ids`] and the number of the tokens of each piece.
    sources: [[u16; 2]; RUN],
    /// Pieces of several characters, up to [`MAX_KEY_BYTES`] bytes.
    shorts: [u16; RUN / 2],
    probes: [Probe; RUN / 2],
    /// The entries of longer pieces.
    longs: [u16; RUN / 2],
    keys: [LongKey; RUN / 2],
    /// Numbers among the short ones that are not where the cache has them first.
    absent: [u16; RUN / 2],
    /// The new pieces: indices of short pieces, or of long ones with [`LONG`] added.
    missing: [u16; RUN / 2],
    /// The position in [`Characters::ids`] of the next tokens.
    made: usize,
    staged: [u32; STAGED],
}

/// See [`Run::missing`].
const LONG: u16 = (RUN / 2) as u16;

#[derive(Debug, Clone, Copy, Zeroable)]
struct Probe {
    /// The key, and the owner as entries have it.
    wanted: ShortProbe,
    hash: u64,
}

impl Run {
    /// Sorts the first `pieces`. Returns how many are short, and how many long.
    #[inline(always)]
    pub(super) fn sort(&mut self, pieces: usize) -> (usize, usize) {
        let Characters { starts, firsts, .. } = &self.characters;
        // Most pieces of Chinese are one character, for which this loop does the least work.
        let mut several = 0;
        let ends = firsts[..pieces + 1].windows(2);
        for (piece, (ends, source)) in ends.zip(&mut self.sources).enumerate() {
            *source = [ends[0], 1];
            self.longs[several % (RUN / 2)] = piece as u16;
            several += usize::from(ends[1] > ends[0] + 1);
        }
        let (mut shorts, mut longs) = (0, 0);
        for at in 0..several.min(RUN / 2) {
            let piece = self.longs[at];
            let ends = [usize::from(piece), usize::from(piece) + 1].map(|n| firsts[n]);
            let [start, end] = ends.map(|first| starts[usize::from(first)]);
            let is_long = end.wrapping_sub(start) > MAX_KEY_BYTES;
            self.shorts[shorts % (RUN / 2)] = piece;
            self.longs[longs % (RUN / 2)] = piece;
            shorts += usize::from(!is_long);
            longs += usize::from(is_long);
        }
        (shorts, longs)
    }

    /// Makes keys, and asks for what they will be compared with.
    #[inline(always)]
    pub(super) fn seek(
        &mut self,
        model: &CharBpe,
        cache: &Cache,
        text: &[u8],
        shorts: usize,
        longs: usize,
    ) {
        let Characters { starts, firsts, .. } = &self.characters;
        let ends = |piece: u16| {
            let (first, next) = (firsts[usize::from(piece)], firsts[usize::from(piece) + 1]);
            (starts[usize::from(first)], starts[usize::from(next)])
        };
        for (piece, probe) in self.shorts[..shorts].iter().zip(&mut self.probes) {
            let (start, end) = ends(*piece);
            let key = Key::new(text, start, end);
            let hash = key.hash();
            cache.prefetch(hash);
            let wanted = Cache::probe(model.owner, key, hash);
            *probe = Probe { wanted, hash };
        }
        for (piece, key) in self.longs[..longs].iter().zip(&mut self.keys) {
            let (start, end) = ends(*piece);
            *key = LongKey::of_long(text, start, end);
            cache.prefetch_long(key);
        }
    }

    /// Looks up pieces. Returns how many are not known.
    #[inline(always)]
    pub(super) fn look<C: Compare>(
        &mut self,
        model: &CharBpe,
        cache: &mut Cache,
        shorts: usize,
        longs: usize,
    ) -> usize {
        let ids = &mut self.characters.ids;
        let mut absent = 0;
        let probes = self.shorts[..shorts].iter().zip(&self.probes);
        for (at, (piece, probe)) in probes.enumerate() {
            let (four, tokens) = cache.find_in_home::<C>(&probe.wanted);
            let found = FOUND + 4 * at;
            ids[found..found + 4].copy_from_slice(four);
            self.sources[usize::from(*piece) % RUN] = [found as u16, tokens as u16];
            self.absent[absent % (RUN / 2)] = at as u16;
            absent += usize::from(tokens > SHORT_TOKENS);
        }
        for &at in &self.absent[..absent] {
            let at = usize::from(at) % (RUN / 2);
            let hash = self.probes[at].hash;
            cache.prefetch_other(hash);
            model.words.prefetch(model.words.home(hash));
        }
        let mut missing = 0;
        self.made = MADE;
        let put = |made: &mut usize, ids: &mut [u32; IDS], (eight, tokens): (&[u32; 8], _)| {
            ids[*made..*made + TOKENS].copy_from_slice(eight);
            let source = [*made as u16, tokens as u16];
            *made += tokens;
            source
        };
        for &at in &self.absent[..absent] {
            let Probe { wanted, hash } = &self.probes[usize::from(at) % (RUN / 2)];
            let key = key_of(wanted);
            let source = &mut self.sources[usize::from(self.shorts[usize::from(at)]) % RUN];
            let found = usize::from(source[0]);
            let four = ids[found..]
                .first_chunk_mut()
                .expect("the array has room for four tokens behind every piece");
            let tokens = cache.find_elsewhere::<C>(model.owner, &model.words, key, *hash, four);
            source[1] = tokens.into();
            if usize::from(tokens) <= SHORT_TOKENS {
                continue;
            }
            if tokens == MANY_TOKENS
                && let Some(known) = cache.long_padded(model.owner, &LongKey::of_short(key, *hash))
            {
                *source = put(&mut self.made, ids, known);
                continue;
            }
            self.missing[missing % (RUN / 2)] = at;
            missing += 1;
        }
        for (at, (piece, key)) in self.longs[..longs].iter().zip(&self.keys).enumerate() {
            if let Some(known) = cache.long_padded(model.owner, key) {
                let source = put(&mut self.made, ids, known);
                self.sources[usize::from(*piece) % RUN] = source;
                continue;
            }
            self.missing[missing % (RUN / 2)] = at as u16 + LONG;
            missing += 1;
        }
        missing
    }

    /// Returns a new piece and the numbers of its characters.
    #[inline(always)]
    fn missing(&self, missing: u16) -> (usize, Range<usize>) {
        let piece = match missing.checked_sub(LONG) {
            Some(long) => self.longs[usize::from(long)],
            None => self.shorts[usize::from(missing)],
        };
        let piece = usize::from(piece);
        let firsts = &self.characters.firsts;
        (piece, firsts[piece].into()..firsts[piece + 1].into())
    }

    /// Merges the pieces that are not known, and remembers them.
    #[inline(always)]
    pub(super) fn merge(
        &mut self,
        model: &CharBpe,
        cache: &mut Cache,
        scratch: &mut Scratch,
        missing: usize,
    ) {
        for n in 0..missing {
            let missing = self.missing[n];
            let (piece, range) = self.missing(missing);
            let begin = self.made;
            let Characters { ids, joins, .. } = &mut self.characters;
            let len = range.len();
            if len <= MAX_SCAN_SYMBOLS {
                let mut symbols = [0; MAX_SCAN_SYMBOLS];
                symbols[..len].copy_from_slice(&ids[range.clone()]);
                let mut ranks = [NO_RANK; MAX_SCAN_SYMBOLS];
                let joins = joins[range].iter().skip(1);
                for (rank, join) in ranks.iter_mut().zip(joins) {
                    // What is above all ranks joins more than these two characters.
                    *rank = if *join > RANK_MAX as u32 {
                        NO_RANK
                    } else {
                        *join
                    };
                }
                let len = merge_by_scan(&model.pairs, &mut symbols, ranks, len);
                ids[begin..begin + len].copy_from_slice(&symbols[..len]);
                self.made += len;
            } else {
                let long = ids[range].to_vec();
                model.merge_many(long.into_iter(), scratch, |id| {
                    ids[self.made] = id;
                    self.made += 1;
                });
            }
            self.sources[piece % RUN] = [begin as u16, (self.made - begin) as u16];
            let ids = &self.characters.ids[begin..self.made];
            if let Some(long) = missing.checked_sub(LONG) {
                cache.insert_long(model.owner, &self.keys[usize::from(long)], ids);
                continue;
            }
            let Probe { wanted, hash } = &self.probes[usize::from(missing)];
            let key = key_of(wanted);
            if !cache.insert_short(model.owner, key, *hash, ids) {
                cache.insert_long(model.owner, &LongKey::of_short(key, *hash), ids);
            }
        }
    }

    /// Appends the ids of the first `pieces`.
    #[inline(always)]
    pub(super) fn put(&mut self, model: &CharBpe, text: &[u8], pieces: usize, out: &mut Vec<u32>) {
        let Characters {
            ids,
            starts,
            firsts,
            ..
        } = &self.characters;
        let mut len = 0;
        for (piece, &[from, tokens]) in self.sources[..pieces].iter().enumerate() {
            let (from, tokens) = (usize::from(from), usize::from(tokens));
            // Copies eight at once; later tokens overwrite the excess.
            self.staged[len..len + TOKENS].copy_from_slice(&ids[from..from + TOKENS]);
            if ids[from] == NO_ID {
                let first = usize::from(firsts[piece]);
                for &byte in of_character(&text[starts[first]..starts[first + 1]]) {
                    self.staged[len] = model.bytes[usize::from(byte)];
                    len += 1;
                }
                continue;
            }
            if tokens > TOKENS {
                self.staged[len..len + tokens].copy_from_slice(&ids[from..from + tokens]);
            }
            len += tokens;
        }
        out.extend_from_slice(&self.staged[..len]);
    }
}

#[inline(always)]
fn key_of(&[low, high, ..]: &ShortProbe) -> Key {
    Key { low, high }
}

/// Returns the bytes of a character that is spelled as in texts.
#[inline(always)]
fn of_character(spelled: &[u8]) -> &[u8] {
    match spelled {
        b" " => &META_BYTES,
        other if *other == META_BYTES => b" ",
        other => other,
    }
}
