//! Unicode normalization forms, with the tables of the reference.

use crate::compare::{self, Compare, Work};
use crate::error::Error;
use crate::json::Component;
use crate::unicode::{char_at, classes};
use std::borrow::Cow;
use std::ops::Range;
use unicode_normalization_alignments::{
    IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

/// One normalization form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

impl Form {
    fn quick_check(self, text: &str) -> bool {
        if text.is_ascii() {
            return true;
        }
        let result = match self {
            Self::Nfc => return Doubtful::new(text).next().is_none(),
            Self::Nfd => is_nfd_quick(text.chars()),
            Self::Nfkc => is_nfkc_quick(text.chars()),
            Self::Nfkd => is_nfkd_quick(text.chars()),
        };
        result == IsNormalized::Yes
    }

    /// Calls `each` with every character of the normalized text and its change: 1
    /// for a character that was inserted, -n for one that stands for n more.
    fn transform(self, text: &str, each: impl FnMut((char, isize))) {
        match self {
            Self::Nfc => text.nfc().for_each(each),
            Self::Nfd => text.nfd().for_each(each),
            Self::Nfkc => text.nfkc().for_each(each),
            Self::Nfkd => text.nfkd().for_each(each),
        }
    }

    fn apply(self, text: &str) -> Option<String> {
        if self == Self::Nfc {
            return nfc(text);
        }
        if self.quick_check(text) {
            return None;
        }
        let mut normalized = String::with_capacity(text.len() + 8);
        self.transform(text, |(c, _)| normalized.push(c));
        Some(normalized)
    }
}

/// `text` in NFC, unless it is. Only what is around characters that NFC could change is
/// normalized: Arabic text has some in every line and changes in none of them.
fn nfc(text: &str) -> Option<String> {
    let mut normalized = String::new();
    let mut done = 0;
    for doubtful in Doubtful::new(text) {
        // The character before it can be composed with it, and with nothing before.
        let before = text[..doubtful.start].char_indices().next_back();
        let start = before.map_or(0, |(at, _)| at);
        let part = &text[start..doubtful.end];
        if part.nfc().map(|(c, _)| c).ne(part.chars()) {
            normalized.reserve(text.len() - done + 8);
            normalized.push_str(&text[done..start]);
            normalized.extend(part.nfc().map(|(c, _)| c));
            done = doubtful.end;
        }
    }
    (done > 0).then(|| {
        normalized.push_str(&text[done..]);
        normalized
    })
}

/// The parts of a text that are not known to be in NFC, given what is before them. Most
/// text has none: its characters cost a look at their first bytes, others one at their
/// class. Only what stands between two inert ones is checked by the rules of NFC.
///
/// A character is inert if it is a starter that NFC never changes alone: what is before it
/// is normalized without it, and it composes with nothing before it.
struct Doubtful<'t> {
    text: &'t str,
    /// After an inert character, or at the begin.
    at: usize,
}

impl<'t> Doubtful<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }
}

impl Iterator for Doubtful<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let classes = classes();
        while let Some(start) = next_unsure(self.text.as_bytes(), self.at) {
            let mut end = start;
            self.at = loop {
                match char_at(self.text, end) {
                    Some(c) if classes.is_inert(c) => break end + c.len_utf8(),
                    Some(c) => end += c.len_utf8(),
                    None => break end,
                }
            };
            // Emoji stand in rows; to look at 32 bytes for each of them takes three times as long.
            let bytes = self.text.as_bytes();
            while bytes.get(self.at).is_some_and(|lead| !is_inert_lead(*lead))
                && let Some(c) = char_at(self.text, self.at)
                && classes.is_inert(c)
            {
                self.at += c.len_utf8();
            }
            if start < end && is_nfc_quick(self.text[start..end].chars()) != IsNormalized::Yes {
                return Some(start..end);
            }
        }
        self.at = self.text.len();
        None
    }
}

/// The first byte from `at` on that begins a character that is not [`is_known_inert`].
fn next_unsure(bytes: &[u8], at: usize) -> Option<usize> {
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
        // With the two bytes after them.
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

/// The first byte of a window, but for the last two, that is not [`is_known_inert`].
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

/// Whether the first of three bytes begins no character, or one that is inert. Written
/// without branches, for vectors.
#[inline(always)]
fn is_known_inert(a: u8, b: u8, c: u8) -> bool {
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

/// Whether a byte begins no character that is not inert: ASCII, bytes
/// inside of characters, and the first bytes of U+0080 to U+02FF, U+0400 to U+047F,
/// U+04C0 to U+053F, U+4000 to U+9FFF, and U+B000 to U+CFFF (most of Latin, Cyrillic, Han,
/// Hangul).
#[inline(always)]
fn is_inert_lead(byte: u8) -> bool {
    (byte < 0xCC)
        | (byte & 0xFE == 0xD0)
        | (byte.wrapping_sub(0xD3) < 2)
        | (byte.wrapping_sub(0xE4) < 6)
        | (byte.wrapping_sub(0xEB) < 2)
}

/// One normalizer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Form(Form),
    /// Puts a string before every text that is not empty.
    Prepend(String),
    Replace {
        from: String,
        to: String,
    },
}

impl From<Form> for Step {
    fn from(form: Form) -> Self {
        Self::Form(form)
    }
}

/// `text` with `to` for each `from`, an ASCII character; `None` if it has none.
fn replace_byte(text: &str, from: u8, to: &str) -> Option<String> {
    let first = position(text.as_bytes(), from)?;
    let mut replaced = String::new();
    replaced.push_str(&text[..first]);
    push_replaced(&text[first..], from, to, &mut replaced);
    Some(replaced)
}

/// Appends `text` with `to` for each `from`, an ASCII character. In texts of words, which
/// this is for, calling a search for each of them takes longer than looking at eight bytes.
pub(crate) fn push_replaced(text: &str, from: u8, to: &str, out: &mut String) {
    debug_assert!(from.is_ascii(), "its bytes are in no other character");
    let times = text.bytes().filter(|byte| *byte == from).count();
    out.reserve(text.len() + times * to.len());
    let mut rest = text;
    while let Some(at) = position(rest.as_bytes(), from) {
        out.push_str(&rest[..at]);
        out.push_str(to);
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

/// Where the first `byte` is.
#[inline(always)]
fn position(bytes: &[u8], byte: u8) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (n, chunk) in chunks.iter().enumerate() {
        let unlike = u64::from_le_bytes(*chunk) ^ (u64::from(byte) * ONES);
        // The lowest bit that is set is that of the first byte that is zero.
        let zeros = unlike.wrapping_sub(ONES) & !unlike & (0x80 * ONES);
        if zeros != 0 {
            return Some(n * 8 + zeros.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|b| *b == byte)?;
    Some(chunks.len() * 8 + at)
}

impl Step {
    /// The normalized text, unless it is `text`.
    fn apply(&self, text: &str) -> Option<String> {
        match self {
            Self::Form(form) => form.apply(text),
            Self::Prepend(prefix) => (!text.is_empty()).then(|| format!("{prefix}{text}")),
            Self::Replace { from, to } => match from.as_bytes() {
                [byte] if byte.is_ascii() => replace_byte(text, *byte, to),
                _ => text.contains(from.as_str()).then(|| text.replace(from, to)),
            },
        }
    }

    /// [`Step::apply`] with the ranges of its bytes, given those of the bytes of `text`.
    fn align(&self, text: &str, alignment: &[(usize, usize)]) -> (String, Vec<(usize, usize)>) {
        let mut normalized = String::with_capacity(text.len() + 8);
        let mut next = Vec::with_capacity(alignment.len() + 8);
        match self {
            Self::Form(form) => {
                // Where in `text` the next character that replaces one stands.
                let mut at = 0usize;
                let mut replaced = text.chars();
                form.transform(text, |(c, change)| {
                    let range = if change > 0 {
                        // An inserted character shares the range of the one before it.
                        at.checked_sub(1).map_or((0, 0), |last| alignment[last])
                    } else {
                        alignment.get(at).copied().unwrap_or_default()
                    };
                    if change <= 0 {
                        let gone = 1 + change.unsigned_abs();
                        at += replaced
                            .by_ref()
                            .take(gone)
                            .map(char::len_utf8)
                            .sum::<usize>();
                    }
                    next.extend(std::iter::repeat_n(range, c.len_utf8()));
                    normalized.push(c);
                });
            }
            Self::Prepend(prefix) => {
                if let Some(first) = alignment.first() {
                    normalized.push_str(prefix);
                    next.extend(std::iter::repeat_n(*first, prefix.len()));
                }
                normalized.push_str(text);
                next.extend_from_slice(alignment);
            }
            Self::Replace { from, to } => {
                let mut done = 0;
                for (at, _) in text.match_indices(from.as_str()) {
                    let end = at + from.len();
                    normalized.push_str(&text[done..at]);
                    next.extend_from_slice(&alignment[done..at]);
                    normalized.push_str(to);
                    // What comes in takes the range of the last byte that goes.
                    next.extend(std::iter::repeat_n(alignment[end - 1], to.len()));
                    done = end;
                }
                normalized.push_str(&text[done..]);
                next.extend_from_slice(&alignment[done..]);
            }
        }
        (normalized, next)
    }
}

/// What becomes of spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blanks {
    Kept,
    Replaced,
    /// As [`Blanks::Replaced`], with one before every text that is not empty.
    Prefixed,
}

/// The normalizers of a tokenizer, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Normalizer {
    steps: Vec<Step>,
}

impl Normalizer {
    pub(crate) fn load(component: Option<&Component>, path: &str) -> Result<Self, Error> {
        let mut this = Self::default();
        if let Some(component) = component {
            this.add(component, path)?;
        }
        Ok(this)
    }

    fn add(&mut self, component: &Component, path: &str) -> Result<(), Error> {
        self.steps.push(match component.kind(path)? {
            "NFC" => Form::Nfc.into(),
            "NFD" => Form::Nfd.into(),
            "NFKC" => Form::Nfkc.into(),
            "NFKD" => Form::Nfkd.into(),
            "Prepend" => Step::Prepend(component.string("prepend", path)?.to_owned()),
            "Replace" => replace(component, path)?,
            "Sequence" => {
                for (part, path) in component.parts("normalizers", path)? {
                    self.add(&part, &path)?;
                }
                return Ok(());
            }
            other => {
                return Err(Error::unsupported(
                    path,
                    format!(
                        "normalizer {other} (supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence of these)"
                    ),
                ));
            }
        });
        Ok(())
    }

    /// Refuses steps that are no normalization form, which byte-level models do without
    /// and which their cuts do not know.
    pub(crate) fn only_forms(&self, path: &str) -> Result<(), Error> {
        if self.steps.iter().all(|step| matches!(step, Step::Form(_))) {
            return Ok(());
        }
        Err(Error::unsupported(
            path,
            "normalizer Prepend or Replace for a ByteLevel model (supported: NFC, NFD, NFKC, NFKD, Sequence of these)",
        ))
    }

    /// What is done to spaces, if nothing else is done: they may become `blank`.
    pub(crate) fn blanks(&self, blank: &str) -> Option<Blanks> {
        let replaces =
            |step: &Step| matches!(step, Step::Replace { from, to } if from == " " && to == blank);
        let prepends = |step: &Step| matches!(step, Step::Prepend(prefix) if prefix == blank);
        match self.steps.as_slice() {
            [] => Some(Blanks::Kept),
            [only] if replaces(only) => Some(Blanks::Replaced),
            [a, b] if prepends(a) && replaces(b) || replaces(a) && prepends(b) => {
                Some(Blanks::Prefixed)
            }
            _ => None,
        }
    }

    /// The normalized text; borrowed when it is seen to be normalized already.
    pub(crate) fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        for step in &self.steps {
            if let Some(normalized) = step.apply(&text) {
                text = Cow::Owned(normalized);
            }
        }
        text
    }

    /// Whether `text`, and every part of it, is seen to be normalized already.
    pub(crate) fn leaves(&self, text: &str) -> bool {
        // A quick check says yes to texts of which it does so to each character and to each
        // pair of neighbours.
        let leaves = |step: &Step| matches!(step, Step::Form(form) if form.quick_check(text));
        self.steps.iter().all(leaves)
    }

    /// For every byte of the normalized text, the range of bytes of `text` that it
    /// comes from, by the rules of the reference.
    pub(crate) fn alignment(&self, text: &str) -> Vec<(usize, usize)> {
        let mut text = Cow::Borrowed(text);
        let mut alignment = Vec::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            alignment.extend(std::iter::repeat_n((at, at + c.len_utf8()), c.len_utf8()));
        }
        for step in &self.steps {
            let (normalized, next) = step.align(&text, &alignment);
            text = Cow::Owned(normalized);
            alignment = next;
        }
        alignment
    }
}

fn replace(component: &Component, path: &str) -> Result<Step, Error> {
    let pattern = component.object("pattern", path)?;
    match pattern.get("String").and_then(|pattern| pattern.as_str()) {
        Some(from) if !from.is_empty() => Ok(Step::Replace {
            from: from.to_owned(),
            to: component.string("content", path)?.to_owned(),
        }),
        _ => Err(Error::unsupported(
            path,
            "normalizer Replace by a regular expression or of nothing",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_replaced_as_strings_are() {
        let mut text = String::new();
        for n in 0..300u32 {
            text.push(['a', ' ', 'é', '漢', ' ', 'b', '\u{20AC}'][(n * n % 11 % 7) as usize]);
            for to in ["", "▁", "  "] {
                let expected = text.replace(' ', to);
                let found = replace_byte(&text, b' ', to).unwrap_or_else(|| text.clone());
                assert_eq!(found, expected);
            }
        }
        assert_eq!(replace_byte("aé", b' ', "_"), None);
    }
    use proptest::prelude::*;
    use tokenizers::normalizers::{NFC, NFD, NFKC, NFKD, NormalizerWrapper};
    use tokenizers::{NormalizedString, Normalizer as _};
    use unicode_normalization_alignments::char::canonical_combining_class;

    fn check(text: &str) {
        let forms: [(Form, NormalizerWrapper); 4] = [
            (Form::Nfc, NFC.into()),
            (Form::Nfd, NFD.into()),
            (Form::Nfkc, NFKC.into()),
            (Form::Nfkd, NFKD.into()),
        ];
        for (form, reference) in forms {
            let mut expected = NormalizedString::from(text);
            reference.normalize(&mut expected).unwrap();
            let ours = Normalizer {
                steps: vec![form.into()],
            };
            assert_eq!(ours.apply(text), expected.get(), "{form:?} of {text:?}");
            assert_eq!(ours.alignment(text).len(), expected.get().len());
        }
    }

    #[test]
    fn every_character_normalizes_as_in_the_reference() {
        let all: Vec<char> = ('\0'..=char::MAX).collect();
        for chunk in all.chunks(1024) {
            let mut text = String::new();
            for &c in chunk {
                // Marks of low and high combining class show the class of `c`.
                text.extend(['e', '\u{345}', c, '\u{334}', '\u{301}', c]);
            }
            check(&text);
        }
    }

    #[test]
    fn inert_characters_are_starters_that_stay() {
        for c in '\0'..=char::MAX {
            let mut buffer = [0; 4];
            if is_inert_lead(c.encode_utf8(&mut buffer).as_bytes()[0]) {
                let yes = is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes;
                assert!(yes && canonical_combining_class(c) == 0, "{c:?}");
            }
        }
    }

    #[test]
    fn known_characters_are_starters_that_stay() {
        let (mut known, mut missed) = (0, 0);
        for c in '\u{80}'..=char::MAX {
            let mut buffer = [0; 4];
            c.encode_utf8(&mut buffer);
            let [a, second, third, _] = buffer;
            // A byte after the character must not decide, in this text or any other.
            for after in [0, 0x80, 0x99, 0xFF] {
                let at = |n: usize, byte: u8| if n < c.len_utf8() { byte } else { after };
                let found = is_known_inert(a, at(1, second), at(2, third));
                let inert = classes().is_inert(c);
                assert!(!found || inert, "{c:?}");
                known += usize::from(found);
                missed += usize::from(!found && inert && ('\u{620}'..'\u{640}').contains(&c));
            }
        }
        assert!(known > 4 * 37_000 && missed == 0, "{known} {missed}");
    }

    /// Windows of every length and place, against a look at each character.
    #[test]
    fn unsure_characters_are_found_anywhere() {
        for c in ['\u{301}', '\u{654}', '\u{3099}', '\u{1161}', '\u{340}'] {
            for filler in ["a", "é", "ع", "か", "하", "漢", "。"] {
                for before in 0..40 {
                    for after in [0, 1, 2, 30, 31, 32, 33, 34] {
                        let text = [
                            &filler.repeat(before),
                            &*c.to_string(),
                            &filler.repeat(after),
                        ];
                        let text = text.concat();
                        let found = next_unsure(text.as_bytes(), 0);
                        assert_eq!(found, Some(before * filler.len()), "{text:?}");
                        let rest = before * filler.len() + c.len_utf8();
                        assert_eq!(next_unsure(text.as_bytes(), rest), None, "{text:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn classes_know_what_nfc_leaves_alone() {
        for c in '\0'..=char::MAX {
            let yes = is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes;
            let starter = canonical_combining_class(c) == 0;
            assert_eq!(classes().is_inert(c), yes && starter, "{c:?}");
        }
    }

    proptest! {
        #[test]
        fn the_check_in_parts_is_that_of_the_whole(
            text in r"([a-cäж漢かがيَ이]|[\u{300}-\u{345}]|[\u{3099}\u{64B}\u{651}\u{5B0}\u{93C}\u{94D}]|[\u{1161}-\u{1165}]|\PC){0,40}"
        ) {
            let whole = is_nfc_quick(text.chars()) == IsNormalized::Yes;
            prop_assert_eq!(Form::Nfc.quick_check(&text), whole);
            check(&text);
        }

        #[test]
        fn strings_normalize_as_in_the_reference(
            text in r"([a-e]|[\u{300}-\u{345}]|[\u{1100}-\u{1112}\u{1161}-\u{1175}\u{11A8}-\u{11C2}]|[가각Åﬁ½\u{958}\u{F73}\u{1D15E}]|\PC){0,16}"
        ) {
            check(&text);
        }
    }

    /// Spec trap: the reference normalizes by Unicode 9; later marks stay put.
    #[test]
    fn younger_characters_are_left_alone() {
        let text = "a\u{301}\u{10D69}\u{105D2}\u{307}";
        check(text);
        let nfc = Normalizer {
            steps: vec![Form::Nfc.into()],
        };
        assert_eq!(nfc.apply("\u{105D2}\u{307}"), "\u{105D2}\u{307}");
    }
}
