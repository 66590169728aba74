//! The three splits of DeepSeek V3 and R1, one after the other, as one grammar.
//!
//! The first split cuts out numbers, in groups of up to three, the second cuts out runs of
//! ideographs and kana, and the third works inside of each of the pieces. So a number, an
//! ideograph or a kana ends what is before it as the end of the text does: blanks keep
//! together there, and nothing of one piece is matched with anything of another. No pattern
//! looks behind, and none looks beyond its piece.
//!
//! The third one matches no control, format or unassigned character but the one right before
//! a letter. What it leaves between two matches is one piece, and counts as a match here.

use super::Scanner;
use super::block::{Blocks, after_last_newline};
use super::class_masks::{BLOCK, InstructionSet, WideMasks};
use super::grammar::Tail;
use crate::unicode::char_at;

/// The patterns of the splits, in their order.
pub(crate) const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];

/// The character kinds that the patterns distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Number,
    /// `\s`, of which `\r` and `\n` are told apart by the caller
    Space,
    /// The other characters, by whether the second split cuts them out.
    Word(Part, Cut),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// `[\p{L}\p{M}]`
    Letter,
    /// `[\p{P}\p{S}]`
    Sign,
    /// everything else
    Control,
}

/// Returns true if the second split cuts a character out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Out,
    Not,
}

impl Kind {
    const LETTER: Self = Self::Word(Part::Letter, Cut::Not);
    const SIGN: Self = Self::Word(Part::Sign, Cut::Not);

    /// Returns true if a piece of the first two splits ends before this kind and after a blank.
    fn begins_piece(self) -> bool {
        matches!(self, Self::Number | Self::Word(_, Cut::Out))
    }
}

impl Scanner<'_> {
    /// Returns the end of the word that begins at `at`; see [`Scanner::end_of_match`].
    pub(super) fn deepseek3(self, at: usize) -> usize {
        let Some((kind, len)) = self.kind_in_deepseek(at) else {
            return at;
        };
        let next = at + len;
        let follow = self.kind_in_deepseek(next);
        match kind {
            Kind::Number => self.digits(3, next),
            Kind::Word(Part::Letter, _) => self.run_in_deepseek(kind, next),
            Kind::Word(Part::Sign, _) => {
                let letters = self.ascii_letters(next);
                if len == 1 && letters > next {
                    return letters;
                }
                self.signs(kind, next)
            }
            Kind::Word(Part::Control, cut) => match follow {
                Some((letter, len)) if letter == Kind::Word(Part::Letter, cut) => {
                    self.run_in_deepseek(letter, next + len)
                }
                _ => self.unmatched(cut, at, next),
            },
            Kind::Space => {
                let first = self.text.as_bytes()[at];
                match follow {
                    Some((Kind::LETTER, len)) if !matches!(first, b'\r' | b'\n') => {
                        self.run_in_deepseek(Kind::LETTER, next + len)
                    }
                    Some((Kind::SIGN, len)) if first == b' ' => self.signs(Kind::SIGN, next + len),
                    _ => self.blanks_in_deepseek(at, next),
                }
            }
        }
    }

    #[inline]
    fn kind_in_deepseek(self, at: usize) -> Option<(Kind, usize)> {
        let c = char_at(self.text, at)?;
        Some((self.deepseek_kind(c), c.len_utf8()))
    }

    #[inline]
    fn deepseek_kind(self, c: char) -> Kind {
        let class = self.classes.class(c);
        // Categories in the order of `unicode::CATEGORIES`.
        let part = match class.category() {
            0..=7 => Part::Letter,
            8..=10 => return Kind::Number,
            11..=21 => Part::Sign,
            _ if class.is_space() => return Kind::Space,
            _ => Part::Control,
        };
        let cut = match c {
            '一'..='龥' | '\u{3040}'..='ヿ' => Cut::Out,
            _ => Cut::Not,
        };
        Kind::Word(part, cut)
    }

    fn run_in_deepseek(self, kind: Kind, mut at: usize) -> usize {
        while let Some((next, len)) = self.kind_in_deepseek(at) {
            if next != kind {
                break;
            }
            at += len;
        }
        at
    }

    fn ascii_letters(self, at: usize) -> usize {
        let rest = &self.text.as_bytes()[at..];
        let letters = rest.iter().take_while(|b| b.is_ascii_alphabetic());
        at + letters.count()
    }

    /// Matches `[\p{P}\p{S}]+[\r\n]*`; what the second split cut out is followed by nothing.
    fn signs(self, kind: Kind, at: usize) -> usize {
        let end = self.run_in_deepseek(kind, at);
        if kind == Kind::SIGN {
            self.tail(end, Tail::LineEnds)
        } else {
            end
        }
    }

    /// Matches `\s*[\r\n]+|\s+(?!\S)|\s+` for the blanks that begin at `start` and go on at `next`.
    fn blanks_in_deepseek(self, start: usize, next: usize) -> usize {
        let end = self.blanks_with_newlines(start, next);
        match self.kind_in_deepseek(end) {
            // The last blank was left to what follows, which is in another piece.
            Some((Kind::Space, len)) if !self.text[..end].ends_with(['\r', '\n']) => {
                match self.kind_in_deepseek(end + len) {
                    Some((kind, _)) if kind.begins_piece() => end + len,
                    _ => end,
                }
            }
            _ => end,
        }
    }

    /// Returns the end of the characters from `at` on that nothing matches, of which the first ends at
    /// `next`.
    fn unmatched(self, cut: Cut, mut at: usize, mut next: usize) -> usize {
        loop {
            match self.kind_in_deepseek(next) {
                Some((kind, len)) if kind == Kind::Word(Part::Control, cut) => {
                    (at, next) = (next, next + len);
                }
                // The letter takes the character before it.
                Some((kind, _)) if kind == Kind::Word(Part::Letter, cut) => return at,
                _ => return next,
            }
        }
    }
}

/// [`DEEPSEEK3`] in blocks.
#[derive(Clone, Copy)]
pub(super) struct DeepSeek3;

impl Blocks for DeepSeek3 {
    #[inline(always)]
    fn certain_ends<I: InstructionSet>(
        self,
        scanner: Scanner<'_>,
        at: usize,
        block: &[u8; BLOCK],
        valid: usize,
        last: bool,
    ) -> Option<(u64, bool)> {
        let ascii = I::class_masks(block);
        let valid_mask = u64::MAX >> (BLOCK - valid);
        let control = I::within(block, 0, 0x20) & !ascii.space | I::within(block, 0x7F, 1);
        let known = ascii.letter | ascii.number | ascii.space | control | ascii.non_ascii;
        let masks = ClassMasks {
            letter: ascii.letter,
            ascii_letter: ascii.letter,
            number: ascii.number,
            space: ascii.space,
            blank: ascii.blank,
            newline: ascii.newline,
            // Bytes after the text are zero.
            control: control & valid_mask,
            sign: !known,
            cut_letter: 0,
            cut_sign: 0,
        };
        if ascii.non_ascii == 0 {
            let mask = word_ends::<false>(&masks, u64::MAX, valid_mask, last);
            return (mask != 0 || last).then_some((mask, last));
        }
        let wide = I::wide(block);
        let cut = cut_out::<I>(block);
        let (masks, wide_mask) = add_wide(scanner, at, masks, &wide, cut, ascii.non_ascii, block)?;
        let last = last && wide_mask == u64::MAX;
        let valid_mask = valid_mask & wide_mask;
        let mask = word_ends::<true>(&masks, !wide.tail, valid_mask, last);
        (mask != 0 || last).then_some((mask, last))
    }
}

/// Returns the first bytes of characters that the second split cuts out: U+3040 to U+30FF, U+4E00 to
/// U+9FA5. Those that the block cuts may be missing.
#[inline(always)]
fn cut_out<I: InstructionSet>(block: &[u8; BLOCK]) -> u64 {
    let within = |first, count| I::within(block, first, count);
    let (e3, e4, e9) = (within(0xE3, 1), within(0xE4, 1), within(0xE9, 1));
    let second = |first, count| within(first, count) >> 1;
    let last = within(0xBE, 1) >> 1 & within(0x80, 0x26) >> 2;
    within(0xE5, 4) | e3 & second(0x81, 3) | e4 & second(0xB8, 8) | e9 & (second(0x80, 0x3E) | last)
}

/// Bit masks of 64 bytes, one for each kind of character: bit `i` is set if byte `i` belongs to such a character.
#[derive(Clone, Copy)]
struct ClassMasks {
    letter: u64,
    ascii_letter: u64,
    number: u64,
    space: u64,
    /// U+0020
    blank: u64,
    /// `\r` and `\n`
    newline: u64,
    control: u64,
    sign: u64,
    /// Letters that the second split cuts out.
    cut_letter: u64,
    /// Signs that the second split cuts out.
    cut_sign: u64,
}

impl ClassMasks {
    fn and(self, mask: u64) -> Self {
        Self {
            letter: self.letter & mask,
            ascii_letter: self.ascii_letter & mask,
            number: self.number & mask,
            space: self.space & mask,
            blank: self.blank & mask,
            newline: self.newline & mask,
            control: self.control & mask,
            sign: self.sign & mask,
            cut_letter: self.cut_letter & mask,
            cut_sign: self.cut_sign & mask,
        }
    }
}

/// Adds the characters beyond ASCII to the masks, and says which bytes of the block these
/// speak about: those before the first character that the block cuts, that is a number (of
/// which counting is left to the scalar version) or that is rare. `None` if that one is the first.
#[inline(always)]
fn add_wide(
    scanner: Scanner<'_>,
    at: usize,
    mut masks: ClassMasks,
    wide: &WideMasks,
    cut: u64,
    non_ascii: u64,
    block: &[u8; BLOCK],
) -> Option<(ClassMasks, u64)> {
    // Characters that the block cuts are left to the loop.
    let (two, three) = (wide.two << 1 >> 1, wide.three << 2 >> 2);
    let whole = |three: u64| three | three << 1 | three << 2;
    let letters = two | two << 1 | whole(three & !cut);
    let cut_letters = whole(three & cut);
    let signs = whole(wide.punctuation);
    masks.letter |= letters;
    masks.cut_letter |= cut_letters;
    masks.sign |= signs;
    let mut left = non_ascii & !(letters | cut_letters | signs);
    let mut valid_mask = u64::MAX;
    while left != 0 {
        let offset = left.trailing_zeros() as usize;
        let lead = block[offset];
        let len = 2 + usize::from(lead >= 0xE0) + usize::from(lead >= 0xF0);
        let kind = if offset + len > BLOCK {
            None
        } else {
            char_at(scanner.text, at + offset).map(|c| scanner.deepseek_kind(c))
        };
        let bits = ((1u64 << len) - 1) << offset;
        let mask = match kind {
            Some(Kind::LETTER) => &mut masks.letter,
            Some(Kind::SIGN) => &mut masks.sign,
            Some(Kind::Space) => &mut masks.space,
            Some(Kind::Word(Part::Control, Cut::Not)) => &mut masks.control,
            Some(Kind::Word(Part::Letter, Cut::Out)) => &mut masks.cut_letter,
            Some(Kind::Word(Part::Sign, Cut::Out)) => &mut masks.cut_sign,
            Some(Kind::Number | Kind::Word(Part::Control, Cut::Out)) | None => {
                valid_mask = (1 << offset) - 1;
                break;
            }
        };
        *mask |= bits;
        left &= !bits;
    }
    (valid_mask != 0).then(|| (masks.and(valid_mask), valid_mask))
}

/// Ends of words in bytes 1 to 63. With `WIDE`, characters may have several bytes, of which
/// `leads` are the first.
#[inline(always)]
fn word_ends<const WIDE: bool>(masks: &ClassMasks, leads: u64, valid_mask: u64, last: bool) -> u64 {
    let ClassMasks {
        letter,
        ascii_letter,
        number,
        blank,
        control,
        sign,
        cut_letter,
        cut_sign,
        ..
    } = *masks;

    // Bytes whose word is certain to begin at or before them: the last run of one kind may go
    // on after the block, and what follows it decides over its inside.
    let limit = if last {
        u64::MAX
    } else {
        // Where none of these changes, the kind that is left out does not.
        let change = |mask: u64| mask ^ mask << 1;
        let mut starts = change(letter) | change(number) | change(masks.space) | change(sign);
        if WIDE {
            starts |= change(control) | change(cut_letter);
        }
        let run = 63 - (starts & valid_mask | 1).leading_zeros();
        u64::MAX >> (63 - run)
    };

    // Line ends right after signs belong to their word.
    let (mut space, mut newline) = (masks.space, masks.newline);
    let after = sign << 1 & newline;
    if after != 0 {
        let taken = newline & !newline.wrapping_add(after);
        space &= !taken;
        newline &= !taken;
    }

    let first_of = |mask: u64| mask & !(mask << 1);
    // A sign that is alone, without a space before it, takes ASCII letters.
    let own_sign = first_of(sign) & !(blank << 1);
    let taken = own_sign << 1 & ascii_letter;
    let mut starts = own_sign | first_of(cut_letter);
    if WIDE {
        // Letters beyond ASCII begin a word after those.
        starts |= ascii_letter.wrapping_add(taken) & !ascii_letter & letter;
        starts |= first_of(cut_sign);
    }
    // One blank or control character may precede other letters.
    let prefix = space & !newline | control;
    starts |= first_of(letter) & !(prefix << 1 | taken);

    let lead_of = |last_bytes: u64| {
        if !WIDE {
            return last_bytes;
        }
        let step = |bits: u64| bits & leads | (bits & !leads) >> 1;
        step(step(step(last_bytes)))
    };
    starts |= first_of(control) | lead_of(control & letter >> 1);

    // A run of blanks leaves its last blank to the next word of the same piece.
    let ends_piece = (number | cut_letter | cut_sign) >> 1;
    let run_end = space & !(space >> 1) & valid_mask >> 1 & !newline & !ends_piece;
    starts |= first_of(space) | lead_of(run_end);
    // Up to the last line end a run of blanks is one word.
    starts |= after_last_newline(space & !newline, newline);

    let mut third = first_of(number);
    while third != 0 {
        starts |= third;
        third = third << 3 & number & number << 1 & number << 2;
    }
    starts & limit & !1 & valid_mask
}

#[cfg(test)]
mod deepseek_scan_tests;
