//! The characters of a text, some two thousand at a time, and the places where it can be cut.
//!
//! Each character has its token, and the rank of the rule that joins it with the character before
//! it; see [`super::cut_table`].

use super::CharBpe;
use super::cut_table::ASK;
use super::letter_table::{Letter, code};
use crate::compare::{Compare, Work};
use crate::pairs::NO_RANK;
use bytemuck::Zeroable;

/// The number of bytes that are read together. As many zeros follow a text, so that its last bytes
/// can be read like others.
const WINDOW: usize = 64;
/// The extra bytes of a window, so that the first bytes of any character can be read in one move.
const MARGIN: usize = 3;

/// The number of characters of a run.
pub(super) const RUN: usize = 32 * WINDOW;

/// The number of tokens of the characters of a run and of its pieces, which share one array so that
/// both are copied alike.
pub(super) const IDS: usize = 4 * RUN + 8;

/// The characters of a run and where pieces begin; kept between calls.
#[derive(Debug, Zeroable)]
pub(super) struct Characters {
    /// The byte of the text at which the next unread character begins.
    pub(super) at: usize,
    /// The token of each of the `count` characters, or [`NO_ID`](super::NO_ID). Tokens of
    /// pieces follow.
    pub(super) ids: [u32; IDS],
    pub(super) joins: [u32; RUN],
    pub(super) starts: [usize; RUN + 1],
    pub(super) count: usize,
    /// The numbers of the `cuts` characters with which pieces begin.
    pub(super) firsts: [u16; RUN + 1],
    pub(super) cuts: usize,
    /// The last character that was read.
    last: Letter,
}

/// Replaces `text` by what `push` appends, in the spelling of [`super::letter_table`], and by what
/// reading expects after it. Returns where the text ends.
pub(super) fn spell(text: &mut Vec<u8>, push: impl FnOnce(&mut Vec<u8>)) -> usize {
    text.clear();
    push(text);
    let end = text.len();
    text.resize(end + WINDOW + MARGIN, 0);
    end
}

/// Returns a bit for each byte that begins a character.
#[inline(always)]
fn beginnings(window: &[u8; WINDOW]) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    /// Moves bit `8 n` to bit `56 + n`.
    const TOP_BITS: u64 = 0x0102_0408_1020_4080;
    let (eights, _) = window.as_chunks::<8>();
    let mut bits = 0;
    for (n, eight) in eights.iter().enumerate() {
        let bytes = u64::from_le_bytes(*eight);
        let begins = (!(bytes >> 7) | bytes >> 6) & ONES;
        bits |= (begins.wrapping_mul(TOP_BITS) >> 56) << (8 * n);
    }
    bits
}

/// Writes the code point at each byte that begins a character of up to three bytes. Returns true if
/// there are longer characters.
///
/// This is a loop of its own, so that compilers vectorize it.
#[inline(always)]
fn codes(window: &[u8; WINDOW + MARGIN], codes: &mut [u16; WINDOW]) -> bool {
    let mut highest = 0;
    for n in 0..WINDOW {
        let (a, b, c) = (window[n], window[n + 1], window[n + 2]);
        highest = highest.max(a);
        let (a, b, c) = (u16::from(a), u16::from(b & 0x3F), u16::from(c & 0x3F));
        let (two, three) = ((a & 0x1F) << 6 | b, a << 12 | b << 6 | c);
        codes[n] = if a < 0x80 {
            a
        } else if a < 0xE0 {
            two
        } else {
            three
        };
    }
    highest >= 0xF0
}

impl Characters {
    /// Begins a text.
    pub(super) fn begin(&mut self) {
        self.at = 0;
        self.restart();
    }

    fn restart(&mut self) {
        (self.count, self.cuts, self.last) = (0, 0, Letter::NONE);
    }

    /// Returns true if there is no room for another window of characters.
    pub(super) fn is_full(&self) -> bool {
        self.count > RUN - WINDOW
    }

    /// Reads the characters of one window, whose first bytes are the bits of `begins`. `letter_at`
    /// returns the character at a byte of the window.
    ///
    /// In two loops, since one needs more registers than there are.
    #[inline(always)]
    fn read_window(
        &mut self,
        model: &CharBpe,
        text: &[u8],
        mut begins: u64,
        letter_at: impl Fn(usize) -> Letter,
    ) {
        let found = begins.count_ones() as usize % (WINDOW + 1);
        let (at, count) = (self.at, self.count);
        let of_window = count..count + found;
        // The first element is the character before this window.
        let mut letters = [self.last; WINDOW + 1];
        let slots = self.ids[of_window.clone()].iter_mut();
        let slots = slots.zip(&mut letters[1..=found]);
        for ((id, slot), start) in slots.zip(&mut self.starts[of_window.clone()]) {
            let place = begins.trailing_zeros() as usize % WINDOW;
            begins &= begins.wrapping_sub(1);
            let letter = letter_at(place);
            (*id, *slot, *start) = (letter.id, letter, at + place);
        }
        self.last = letters[found];
        self.count = count + found;
        let cut_table = model.cut_table.view();
        let mut cuts = self.cuts;
        let slots = self.joins[of_window.clone()].iter_mut();
        let pairs = letters[..=found].windows(2);
        for (n, (join, pair)) in slots.zip(pairs).enumerate() {
            let rank = cut_table.rank(pair[0], pair[1]);
            *join = rank;
            self.firsts[cuts % RUN] = (count + n) as u16;
            cuts += usize::from(rank == NO_RANK);
        }
        if model.cut_table.asks() && self.joins[of_window].contains(&ASK) {
            cuts = self.ask(model, text, count);
        }
        self.cuts = cuts;
    }

    /// Looks up the joins that the square does not decide, from character `first` on, and finds the
    /// cuts again. Returns their number.
    #[inline(never)]
    fn ask(&mut self, model: &CharBpe, text: &[u8], first: usize) -> usize {
        let mut cuts = self.cuts;
        for n in first..self.count {
            if self.joins[n] == ASK {
                // The first character of a text has no join to look up.
                let pair = [n.saturating_sub(1), n].map(|n| self.character(model, text, n));
                self.joins[n] = model.cut_table.ask(&model.pairs, pair[0], pair[1]);
            }
            self.firsts[cuts % RUN] = n as u16;
            cuts += usize::from(self.joins[n] == NO_RANK);
        }
        cuts
    }

    /// Returns the code point and the letter of a character that was read.
    fn character(&self, model: &CharBpe, text: &[u8], n: usize) -> (u32, Letter) {
        let four = text[self.starts[n]..].first_chunk();
        let code = code(*four.expect("the text ends with at least four zeros"));
        (code, model.letters.get(code))
    }

    /// Keeps the last piece, which may continue in the next run.
    #[inline(always)]
    pub(super) fn keep_last(&mut self) {
        let first = self
            .cuts
            .checked_sub(1)
            .map_or(0, |last| usize::from(self.firsts[last]));
        let (first, count) = (first.min(RUN), self.count.min(RUN));
        self.ids.copy_within(first..count, 0);
        self.joins.copy_within(first..count, 0);
        self.starts.copy_within(first..count, 0);
        self.count = count - first;
        self.firsts[0] = 0;
        self.cuts = 1;
    }

    /// Returns the tokens of the characters of the piece that waits, which is too long for a run,
    /// to its end.
    #[cold]
    #[inline(never)]
    pub(super) fn rest_of_piece(&mut self, model: &CharBpe, text: &[u8], end: usize) -> Vec<u32> {
        let mut ids = self.ids[..self.count].to_vec();
        let mut last = self.character(model, text, self.count.saturating_sub(1));
        while self.at < end {
            let four = text[self.at..].first_chunk::<4>();
            let four = four.expect("the text ends with at least four zeros");
            let width = match four[0] {
                0x80..0xC0 => {
                    self.at += 1;
                    continue;
                }
                0x00..0x80 => 1,
                0xC0..0xE0 => 2,
                0xE0..0xF0 => 3,
                _ => 4,
            };
            let code = code(*four);
            let next = (code, model.letters.get(code));
            if model.cut_table.rank(&model.pairs, last, next) == NO_RANK {
                break;
            }
            ids.push(next.1.id);
            last = next;
            self.at += width;
        }
        self.at = self.at.min(end);
        self.restart();
        ids
    }
}

/// Reads characters until there is no room for another window of them, or no text is left;
/// compiled for several instruction sets.
pub(super) struct Read<'a> {
    pub(super) characters: &'a mut Characters,
    pub(super) model: &'a CharBpe,
    /// The text in the form of [`spell`], and its end.
    pub(super) text: &'a [u8],
    pub(super) end: usize,
}

impl Work for Read<'_> {
    #[inline(always)]
    fn run<C: Compare>(self) {
        let Self {
            characters,
            model,
            text,
            end,
        } = self;
        let letters = model.letters.view();
        let mut narrow = [0; WINDOW];
        while characters.at < end && !characters.is_full() {
            let at = characters.at;
            let Some(window) = text[at..].first_chunk::<{ WINDOW + MARGIN }>() else {
                break;
            };
            let mut begins = beginnings(
                window
                    .first_chunk()
                    .expect("the window is longer than its beginning"),
            );
            if end - at < WINDOW {
                begins &= (1 << (end - at)) - 1;
            }
            if codes(window, &mut narrow) {
                characters.read_window(model, text, begins, |n| {
                    letters.get(code([
                        window[n],
                        window[n + 1],
                        window[n + 2],
                        window[n + 3],
                    ]))
                });
            } else {
                characters.read_window(model, text, begins, |n| letters.get_narrow(narrow[n]));
            }
            characters.at = (at + WINDOW).min(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn windows_are_read_as_characters(
            text in prop::collection::vec(prop::sample::select(vec!['a', 'ж', '漢', '🙂', ' ']), 0..90),
        ) {
            let text: String = text.into_iter().collect();
            let mut spelled = Vec::new();
            let end = spell(&mut spelled, |out| out.extend_from_slice(text.as_bytes()));
            prop_assert_eq!(end, text.len());
            let mut found = Vec::new();
            for at in (0..end).step_by(WINDOW) {
                let window = spelled[at..].first_chunk().expect("zeros are after it");
                let mut narrow = [0; WINDOW];
                let wide = codes(window, &mut narrow);
                let begins = beginnings(window.first_chunk().expect("it is longer"));
                let here = text.char_indices().filter(|c| (at..at + WINDOW).contains(&c.0));
                let four_bytes = window[..WINDOW].iter().any(|byte| *byte >= 0xF0);
                prop_assert_eq!(wide, four_bytes);
                for n in (0..WINDOW.min(end - at)).filter(|n| begins >> n & 1 != 0) {
                    let four = window[n..].first_chunk().expect("the margin has the rest");
                    let c = char::from_u32(code(*four));
                    found.extend(c.map(|c| (at + n, c)));
                    if c < Some('\u{10000}') {
                        prop_assert_eq!(u32::from(narrow[n]), code(*four));
                    }
                }
                prop_assert!(here.eq(found.iter().copied().filter(|c| c.0 >= at)));
            }
            prop_assert_eq!(found.len(), text.chars().count());
        }
    }
}
