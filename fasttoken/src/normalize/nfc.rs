//! NFC of the few parts of a text that are not known to have it.

use crate::compare::{self, Compare, Work};
use crate::unicode::{char_at, classes};
use std::ops::Range;
use unicode_normalization_alignments::char::{
    canonical_combining_class, compose, decompose_canonical,
};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

/// Returns `text` in NFC, or `None` if the text is in NFC already. Only what is around characters
/// that NFC could change is normalized: Arabic text has some in every line and changes in none of
/// them.
pub(super) fn nfc(text: &str) -> Option<String> {
    let (mut normalized, mut changed, mut parts) = (String::new(), String::new(), Vec::new());
    let mut done = 0;
    for doubtful in Doubtful::new(text) {
        // The character before it can be composed with it, and with nothing before.
        let before = text[..doubtful.at.start].char_indices().next_back();
        let start = before.map_or(0, |(at, _)| at);
        let part = &text[start..doubtful.at.end];
        if doubtful.may_be_nfc && is_plainly_composed(part) {
            continue;
        }
        changed.clear();
        push_nfc(part, &mut parts, &mut changed);
        if !doubtful.may_be_nfc || changed != part {
            normalized.reserve(text.len() - done + 8);
            normalized.push_str(&text[done..start]);
            normalized.push_str(&changed);
            done = doubtful.at.end;
        }
    }
    (done > 0).then(|| {
        normalized.push_str(&text[done..]);
        normalized
    })
}

/// Appends NFC of `text` to `normalized`, as Unicode's standard annex 15 defines it, with the
/// reference's tables. `parts` is memory that is used again.
///
/// The reference's iterator over the characters of NFC is slower: it also returns by how much each
/// one changes the length of the text, and it looks up each class twice.
fn push_nfc(text: &str, parts: &mut Vec<(u8, char)>, normalized: &mut String) {
    parts.clear();
    for c in text.chars() {
        decompose_canonical(c, |part| parts.push((combining_class(part), part)));
    }
    for marks in parts.chunk_by_mut(|before, after| before.0 > 0 && after.0 > 0) {
        // Stable: marks of one class keep their order.
        marks.sort_by_key(|&(class, _)| class);
    }
    // What is composed takes no more room than its parts, so it is written over them.
    let (mut starter, mut class_before, mut written) = (None::<usize>, 0, 0);
    for at in 0..parts.len() {
        let (class, c) = parts[at];
        // A mark of the same class, or any mark before a starter, blocks composition.
        let is_next = class_before == 0 || class > class_before;
        if let Some(starter) = starter.filter(|_| is_next)
            && let Some(composed) = compose(parts[starter].1, c)
        {
            parts[starter].1 = composed;
            continue;
        }
        if class == 0 {
            starter = Some(written);
        }
        class_before = class;
        parts[written] = (class, c);
        written += 1;
    }
    normalized.extend(parts[..written].iter().map(|&(_, c)| c));
}

/// Returns the canonical combining class of `c`: 0 for starters.
fn combining_class(c: char) -> u8 {
    // The first characters are starters, without a look into the table.
    if c < '\u{300}' {
        0
    } else {
        canonical_combining_class(c)
    }
}

/// Returns true for text in NFC in which no mark follows a character that has a decomposition;
/// false where NFC has to be made to know it. The quick check of `text` must not have said `No`:
/// its marks are in order, and NFC leaves each of its characters alone. What remains to be seen is
/// whether a mark or a second character composes with the character before.
fn is_plainly_composed(text: &str) -> bool {
    let mut starter: Option<char> = None;
    // The character before, and its class.
    let (mut previous, mut class) = ('\0', 0);
    for c in text.chars() {
        if c == previous && class > 0 {
            // The first of several equal marks keeps the others from the character.
            continue;
        }
        let class_before = std::mem::replace(&mut class, canonical_combining_class(c));
        previous = c;
        let is_next = class_before == 0 || class > class_before;
        if is_next && starter.is_some_and(|starter| compose(starter, c).is_some()) {
            return false;
        }
        if class == 0 {
            starter = Some(c);
        } else if class_before == 0 && starter.is_some_and(|starter| !is_whole_in_nfd(starter)) {
            return false;
        }
    }
    true
}

/// Returns true for a character without a canonical decomposition.
fn is_whole_in_nfd(c: char) -> bool {
    let mut is_whole = true;
    decompose_canonical(c, |part| is_whole &= part == c);
    is_whole
}

/// The parts of a text that are not known to be in NFC, given what is before them. Most
/// text has none: its characters cost a look at their first bytes, others one at their
/// class. Only what stands between two inert ones is checked by the rules of NFC.
///
/// A character is inert if it is a starter that NFC never changes alone: what is before it
/// is normalized without it, and it composes with nothing before it.
pub(super) struct Doubtful<'t> {
    text: &'t str,
    /// The place of the search, which is behind an inert character, or at the begin.
    at: usize,
}

impl<'t> Doubtful<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }
}

/// A part of a text that is not known to be in NFC.
pub(super) struct DoubtfulPart {
    at: Range<usize>,
    /// False if the part is known not to be in NFC.
    may_be_nfc: bool,
}

impl Iterator for Doubtful<'_> {
    type Item = DoubtfulPart;

    fn next(&mut self) -> Option<DoubtfulPart> {
        let classes = classes();
        let bytes = self.text.as_bytes();
        loop {
            // Letters with marks stand in rows: to look at 32 bytes for each takes longer.
            let start = match bytes.get(self.at) {
                Some(lead) if !is_inert_lead(*lead) => self.at,
                _ => match next_unsure(bytes, self.at) {
                    Some(start) => start,
                    None => break,
                },
            };
            let mut end = start;
            self.at = loop {
                match char_at(self.text, end) {
                    Some(c) if classes.is_inert(c) => break end + c.len_utf8(),
                    Some(c) => end += c.len_utf8(),
                    None => break end,
                }
            };
            // Emoji stand in rows; to look at 32 bytes for each of them takes three times as long.
            while bytes.get(self.at).is_some_and(|lead| !is_inert_lead(*lead))
                && let Some(c) = char_at(self.text, self.at)
                && classes.is_inert(c)
            {
                self.at += c.len_utf8();
            }
            // Of equal characters in a row the check says what it says of one.
            let mut previous = None;
            let chars = self.text[start..end].chars();
            let chars = chars.filter(|&c| previous.replace(c) != Some(c));
            if start == end {
                continue;
            }
            let quick = is_nfc_quick(chars);
            if quick != IsNormalized::Yes {
                return Some(DoubtfulPart {
                    at: start..end,
                    may_be_nfc: quick == IsNormalized::Maybe,
                });
            }
        }
        self.at = self.text.len();
        None
    }
}

/// Returns the first byte from `at` on that begins a character that is not [`is_known_inert`].
pub(super) fn next_unsure(bytes: &[u8], at: usize) -> Option<usize> {
    let mut found = None;
    compare::run(NextUnsure {
        bytes,
        at,
        found: &mut found,
    });
    found
}

/// [`next_unsure`], to be compiled for several instruction sets.
struct NextUnsure<'a> {
    bytes: &'a [u8],
    at: usize,
    found: &'a mut Option<usize>,
}

/// Bytes that are looked at together.
const BLOCK: usize = 32;

impl Work for NextUnsure<'_> {
    #[inline(always)]
    fn run<C: Compare>(self) {
        let mut at = self.at;
        // Each window has the two bytes after it as well.
        while let Some(window) = self
            .bytes
            .get(at..)
            .and_then(<[u8]>::first_chunk::<{ BLOCK + 2 }>)
        {
            let mut plain = true;
            for lead in &window[..BLOCK] {
                plain &= is_inert_lead(*lead);
            }
            if !plain && let Some(n) = first_unsure(window) {
                *self.found = Some(at + n);
                return;
            }
            at += BLOCK;
        }
        let rest = self.bytes.get(at..).unwrap_or_default();
        let mut window = [0; BLOCK + 4];
        window[..rest.len()].copy_from_slice(rest);
        *self.found = first_unsure(&window).map(|n| at + n);
    }
}

/// Returns the first byte of a window, but for the last two, that is not [`is_known_inert`].
#[inline(always)]
fn first_unsure<const N: usize>(window: &[u8; N]) -> Option<usize> {
    // Without a branch for each, and as a plain loop, compilers make vectors of it: as a fold
    // over three iterators it stayed a function of its own that had none, an eighth of the
    // time of Korean text.
    let mut known = true;
    for n in 0..N - 2 {
        known &= is_known_inert(window[n], window[n + 1], window[n + 2]);
    }
    if known {
        return None;
    }
    (0..N - 2).find(|&n| !is_known_inert(window[n], window[n + 1], window[n + 2]))
}

/// Returns true if the first of three bytes begins no character, or an inert one. Written without
/// branches, for vectors.
#[inline(always)]
pub(super) fn is_known_inert(a: u8, b: u8, c: u8) -> bool {
    let within = |byte: u8, from: u8, to: u8| byte.wrapping_sub(from) <= to - from;
    // U+0620 to U+064A and U+0680 to U+06D3: Arabic.
    let arabic = (a == 0xD8) & (b >= 0xA0)
        | (a == 0xD9) & (b <= 0x8A)
        | (a == 0xDA)
        | (a == 0xDB) & (b <= 0x93);
    // U+0388 to U+03FF, and U+05D0 to U+05EA: Greek and Hebrew.
    let greek_hebrew =
        (a == 0xCE) & (b >= 0x88) | (a == 0xCF) | (a == 0xD7) & within(b, 0x90, 0xAA);
    // U+AC00 to U+AFFF and U+D000 to U+D77F: what is missing of Hangul.
    let hangul = (a == 0xEA) & (b >= 0xB0) | (a == 0xED) & (b <= 0x9D);
    // U+3040 to U+30FF but the two marks that combine, and U+3000 to U+3029: Kana and
    // punctuation.
    let kana = (a == 0xE3)
        & ((b == 0x81)
            | (b == 0x83)
            | (b == 0x82) & !within(c, 0x99, 0x9A)
            | (b == 0x80) & (c < 0xAA));
    // U+FF00 to U+FF3F, and U+2010 to U+203F.
    let punctuation = (a == 0xEF) & (b == 0xBC) | (a == 0xE2) & (b == 0x80) & (c >= 0x90);
    is_inert_lead(a) | arabic | greek_hebrew | hangul | kana | punctuation
}

/// Returns true for a byte that begins no character or only inert ones: ASCII, bytes inside of
/// characters, and the first bytes of U+0080 to U+02FF, U+0400 to U+047F, U+04C0 to U+053F, U+4000
/// to U+9FFF, and U+B000 to U+CFFF (most of Latin, Cyrillic, Han, Hangul).
#[inline(always)]
pub(super) fn is_inert_lead(byte: u8) -> bool {
    (byte < 0xCC)
        | (byte & 0xFE == 0xD0)
        | (byte.wrapping_sub(0xD3) < 2)
        | (byte.wrapping_sub(0xE4) < 6)
        | (byte.wrapping_sub(0xEB) < 2)
}
