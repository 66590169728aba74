//! Where merging can begin, and where it never crosses.
//!
//! Merging begins with bytes, of which characters beyond ASCII have two to four. For
//! most characters it is certain that their own bytes merge to one token first,
//! whatever stands around them; such a character is an *atom*, from which merging can
//! begin as well. The proof, for words that are whole characters and of which every byte
//! has a token (others are merged whole): let `r` be the rank of the next merge inside of
//! the character, in each state on the way to its token, and let every rule that joins the
//! state's first or last symbol with anything outside come after `r`. Then no such
//! rule is applied before the character is whole, since the first rule of all that
//! apply is taken. If moreover the rules that join the whole token with anything come
//! after all of those inside, then taking the inner merges first changes nothing about
//! the order of the others. Rules that join something on the left often come early
//! (a space and the first byte of Cyrillic letters), but only few characters end what they
//! join; after those the character is no atom, after others it is. Asking for the last
//! byte alone, which 64 characters share, would turn down one Chinese character in six.
//! The same holds on the right: the last byte of 你 is joined early with 除, and with
//! nothing else. Asking whether there is a character at all that excludes it, not which,
//! would turn down another one in seven.
//!
//! What holds for one token holds for two: of characters that are no token, the bytes
//! often merge to two tokens first, and these are an atom together.
//!
//! Between two atoms that stand side by side in no token nothing is ever merged, since
//! the result would be a token with both. There a word falls apart, into parts that
//! are short and frequent. This is what makes languages without spaces fast: their
//! words are clauses that rarely come back, made of parts that do.

mod doubles;

use crate::bpe::NO_TOKEN;
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::pairs::{NO_RANK, PairTable};
use crate::store::{Flat, Movable};
use crate::vocab::Vocab;
use doubles::Doubles;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::{Deref, Range};

/// Code points per block of the table.
const BLOCK: usize = 64;
/// Characters from here on are no atoms. Above are rare scripts and emoji.
const END: usize = 0x2_0000;
/// Characters of one context, counted for each rule with them. Of eight vocabularies that
/// models use, Llama 3's has the most: 16.
const CHARS_MAX: usize = 1 << 12;
/// Rules looked at for all contexts of a file, and so at most 16 MiB of characters. Of the
/// same vocabularies, Qwen 3's needs the most: 17,319.
const RULES_MAX: usize = 1 << 22;
/// Scripts of which characters that are no token are atoms of two: Kana, Han and Hangul.
const SPLIT_SCRIPTS: [Range<u32>; 2] = [0x3040..0xA000, 0xAC00..0xD7A4];
/// In the table: no atom.
pub(crate) const NO_ATOM: u32 = u32::MAX;
/// The lower bits of an entry, which are the token.
const TOKEN_BITS: u32 = 20;
const TOKEN: u32 = (1 << TOKEN_BITS) - 1;
/// More different sets than the upper bits can name, without the one that would make an
/// entry [`NO_ATOM`]: later characters are no atoms.
const SETS_MAX: usize = (1 << (32 - TOKEN_BITS)) - 1;

/// What a file can make [`Atoms::new`] do. Characters beyond a limit are no atoms, which
/// costs time when text with them is encoded and changes nothing else.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// [`SETS_MAX`]
    sets: usize,
    /// [`CHARS_MAX`]
    chars: usize,
    /// [`RULES_MAX`]
    rules: usize,
}

impl Limits {
    const USUAL: Self = Self {
        sets: SETS_MAX,
        chars: CHARS_MAX,
        rules: RULES_MAX,
    };
}

/// A bit per pair of characters, by hash: 128 KiB, of which the pairs of a large
/// vocabulary set one in ten.
const NEIGHBOUR_BITS: usize = 1 << 20;

/// A bit for each value of a byte.
type ByteSet = [u64; 4];

/// A bit per set and character that it excludes, by hash.
const EXCLUDED_BITS: usize = 1 << 18;
/// A bit per character and the one after it that excludes it, by hash: 64 KiB, of which
/// Qwen 3's vocabulary sets one in twenty.
const FOLLOWER_BITS: usize = 1 << 19;

/// Next to what a character is no atom, and what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Context {
    /// Last bytes of all before it that excludes it: nearly always this decides.
    suspects: ByteSet,
    /// Bytes before it that exclude it whatever their character is.
    always: ByteSet,
    /// Characters before it that exclude it, rising.
    chars: Vec<u32>,
    /// First bytes after it that exclude it whatever their character is.
    next: ByteSet,
    /// [`FOLLOWED`], [`NEXT`] and [`SPLIT`].
    facts: u64,
}

/// Some characters after it exclude it.
const FOLLOWED: u64 = 1;
/// Some first bytes after it exclude it.
const NEXT: u64 = 4;
/// It is two tokens.
const SPLIT: u64 = 2;

/// A [`Context`], but for the characters.
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Excluded {
    suspects: ByteSet,
    always: ByteSet,
    next: ByteSet,
    facts: u64,
}

/// The tokens of a character, of which the second is [`NO_TOKEN`] if it is one.
pub(crate) type Atom = [u32; 2];
/// In place of a character, with the byte 0: the word begins or ends. To take it for a
/// character that excludes another would cost time and change nothing.
pub(crate) const NO_CHAR: u32 = u32::MAX;
/// In place of an atom.
pub(crate) const NONE: Atom = [NO_ATOM, NO_TOKEN];

fn contains(set: &[u64], byte: u8) -> bool {
    set.get(usize::from(byte / 64))
        .is_none_or(|bits| bits >> (byte % 64) & 1 == 1)
}

/// The atoms of a vocabulary, and which of them can be neighbours in a token.
#[derive(Debug, Default)]
pub(crate) struct Atoms {
    /// Block of each 64 code points.
    index: Flat<u16>,
    /// For each character [`NO_ATOM`], or its token in the lower 20 bits and which of
    /// `excluded` in the upper ones. Instead of two tokens, their place in `splits`.
    tokens: Flat<u32>,
    splits: Flat<Atom>,
    /// The first is empty.
    excluded: Flat<Excluded>,
    /// The characters of contexts.
    excluded_chars: Flat<u64>,
    followers: Flat<u64>,
    neighbours: Flat<u64>,
    doubles: Doubles,
}

impl Atoms {
    /// `rules` are the left token, the right token and the rank of each merge of `pairs`,
    /// `ids` the tokens that spell bytes.
    pub(crate) fn new(
        byte_ids: &[u32; 256],
        pairs: &PairTable,
        rules: impl Iterator<Item = (u32, u32, u32)>,
        ids: &[u32],
        vocab: &Vocab,
    ) -> Self {
        Self::within(Limits::USUAL, byte_ids, (pairs, rules), ids, vocab).0
    }

    /// Also gives the number of rules looked at.
    fn within(
        limits: Limits,
        byte_ids: &[u32; 256],
        (pairs, rules): (&PairTable, impl Iterator<Item = (u32, u32, u32)>),
        ids: &[u32],
        vocab: &Vocab,
    ) -> (Self, usize) {
        let end = ids.iter().max().map_or(0, |id| *id as usize + 1);
        // Of the tokens, only those that are part of a character, or of two, can be the
        // last or the first symbol of an atom.
        let mut symbols = vec![false; end];
        for &id in ids {
            let piece = vocab.piece(id);
            symbols[id as usize] = piece.len() <= 4 && !piece.is_ascii();
        }
        let is_symbol = |id: u32| symbols.get(id as usize).is_none_or(|is| *is);
        // Of the rules with such a token on one side, those that can join what is in one
        // character with what is in the next one.
        let (mut as_left, mut as_right) = (Vec::new(), Vec::new());
        // Two characters are side by side in a token where one of its rules joined them.
        let mut neighbours = vec![0u64; NEIGHBOUR_BITS / 64];
        for (left, right, rank) in rules {
            let (left_piece, right_piece) = (vocab.piece(left), vocab.piece(right));
            let (last, first) = (End::of(left_piece), Begin::of(right_piece));
            if let (Some(End::Char(left, _)), Some(Begin::Char(right))) = (last, first) {
                set_bit(&mut neighbours, neighbour_bit(left, right));
            }
            if is_symbol(left)
                && let Some(first) = first
            {
                as_left.push((left, rank, first));
            }
            if (is_symbol(right) || right_piece == doubles::ASCII)
                && let Some(last) = last
                && ends_character(left_piece)
            {
                as_right.push((right, rank, last));
            }
        }
        as_left.sort_unstable();
        as_right.sort_unstable();
        let rules = Rules {
            byte_ids,
            pairs,
            left_starts: starts(&as_left, end),
            right_starts: starts(&as_right, end),
            as_left,
            as_right,
            limits,
            seen: Cell::new(0),
        };

        let mut made = Builder::new(limits);
        for &id in ids {
            let piece = vocab.piece(id);
            if let Some((code, len)) = decode(piece, 0)
                && len == piece.len()
                && len > 1
                && (code as usize) < END
                && id <= TOKEN
                && made.has_room()
                && let Some((bounds, symbols)) = rules.atom(piece)
                && *symbols == [id]
            {
                made.add(code, bounds, id);
            }
        }
        for code in SPLIT_SCRIPTS.into_iter().flatten() {
            let mut buffer = [0; 4];
            if let Some(c) = char::from_u32(code)
                && !made.has(code)
                && made.has_room()
                && rules.merges_something(c.encode_utf8(&mut buffer).as_bytes())
                && let Some((mut bounds, symbols)) =
                    rules.atom(c.encode_utf8(&mut buffer).as_bytes())
                && let [first, second] = symbols[..]
            {
                bounds.context.facts |= SPLIT;
                let at = made.splits.len() as u32;
                made.splits.push([first, second]);
                made.add(code, bounds, at);
            }
        }
        let doubles = rules.doubles(&mut made, ids, vocab);
        let this = Self {
            doubles,
            index: made.index.into(),
            tokens: made.tokens.into(),
            splits: made.splits.into(),
            excluded: made.excluded.into(),
            excluded_chars: made.excluded_chars.into(),
            followers: made.followers.into(),
            neighbours: neighbours.into(),
        };
        (this, rules.seen.get())
    }

    pub(crate) fn write(&self, image: &mut Writer) {
        image.put(Section::AtomIndex, &self.index);
        image.put(Section::AtomTokens, &self.tokens);
        image.put(Section::AtomSplits, &self.splits);
        image.put(Section::AtomSets, &self.excluded);
        image.put(Section::AtomChars, &self.excluded_chars);
        image.put(Section::AtomFollowers, &self.followers);
        image.put(Section::Neighbours, &self.neighbours);
        self.doubles.write(image);
    }

    pub(crate) fn tables(&mut self) -> [&mut dyn Movable; 8] {
        [
            &mut self.index,
            &mut self.tokens,
            &mut self.splits,
            &mut self.excluded,
            &mut self.excluded_chars,
            &mut self.followers,
            &mut self.neighbours,
            self.doubles.table(),
        ]
    }

    /// Look-ups check every index, so any contents will do.
    pub(crate) fn read(image: &Reader) -> Result<Self, ImageError> {
        Ok(Self {
            index: image.get(Section::AtomIndex)?,
            tokens: image.get(Section::AtomTokens)?,
            splits: image.get(Section::AtomSplits)?,
            excluded: image.get(Section::AtomSets)?,
            excluded_chars: image.get(Section::AtomChars)?,
            followers: image.get(Section::AtomFollowers)?,
            neighbours: image.get(Section::Neighbours)?,
            doubles: Doubles::read(image)?,
        })
    }

    /// The tokens of a character beyond ASCII, or [`NONE`]. `before` is what its word has
    /// before it: the last byte, and the character that this ends. `next` is what its word
    /// has after it: the character, and its first byte. [`NO_CHAR`] and 0 where there is
    /// none.
    #[inline(always)]
    pub(crate) fn get(&self, code: u32, before: (u8, u32), next: (u32, u8)) -> Atom {
        let block = self.index.get(code as usize / BLOCK).copied().unwrap_or(0);
        let at = usize::from(block) * BLOCK + code as usize % BLOCK;
        let entry = self.tokens.get(at).copied().unwrap_or(NO_ATOM);
        if entry == NO_ATOM {
            return NONE;
        }
        let (context, token) = (entry >> TOKEN_BITS, entry & TOKEN);
        if context == 0 {
            return [token, NO_TOKEN];
        }
        let Some(excluded) = self.excluded.get(context as usize) else {
            return NONE;
        };
        if self.is_excluded(context, excluded, before) {
            return NONE;
        }
        if excluded.facts == 0 {
            return [token, NO_TOKEN];
        }
        let (right, lead) = next;
        let followed =
            excluded.facts & FOLLOWED != 0 && has_bit(&self.followers, follower_bit(code, right));
        if followed || contains(&excluded.next, lead) {
            return NONE;
        }
        if excluded.facts & SPLIT == 0 {
            return [token, NO_TOKEN];
        }
        self.splits.get(token as usize).copied().unwrap_or(NONE)
    }

    /// The token of two characters of which the second one is no atom after the first one,
    /// or [`NO_TOKEN`]. `before` is what its word has before both.
    #[inline(always)]
    pub(crate) fn double(&self, left: u32, code: u32, before: (u8, u32)) -> u32 {
        let entry = self.doubles.get(left, code);
        if entry == NO_ATOM {
            return NO_TOKEN;
        }
        let (context, token) = (entry >> TOKEN_BITS, entry & TOKEN);
        let excluded = self.excluded.get(context as usize);
        let is_atom = excluded.is_some_and(|excluded| !self.is_excluded(context, excluded, before));
        if is_atom { token } else { NO_TOKEN }
    }

    /// Whether what is before excludes a character with this context.
    #[inline(always)]
    fn is_excluded(&self, context: u32, excluded: &Excluded, before: (u8, u32)) -> bool {
        let (byte, left) = before;
        contains(&excluded.suspects, byte)
            && (contains(&excluded.always, byte)
                || has_bit(&self.excluded_chars, excluded_bit(context, left)))
    }

    /// Whether a token may have these two characters side by side.
    #[inline(always)]
    pub(crate) fn may_join(&self, left: u32, right: u32) -> bool {
        has_bit(&self.neighbours, neighbour_bit(left, right))
    }
}

/// Atoms that are being gathered.
struct Builder {
    limits: Limits,
    index: Vec<u16>,
    tokens: Vec<u32>,
    splits: Vec<Atom>,
    excluded: Vec<Excluded>,
    excluded_chars: Vec<u64>,
    followers: Vec<u64>,
    known: HashMap<Context, u32>,
}

impl Builder {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            index: vec![0; END / BLOCK],
            tokens: vec![NO_ATOM; BLOCK],
            splits: Vec::new(),
            excluded: vec![Excluded::default()],
            excluded_chars: vec![0; EXCLUDED_BITS / 64],
            followers: vec![0; FOLLOWER_BITS / 64],
            known: HashMap::from([(Context::default(), 0)]),
        }
    }

    /// Whether one more set can be named.
    fn has_room(&self) -> bool {
        self.excluded.len() < self.limits.sets
    }

    /// Where the entry of a character is; `None` if its block has none yet.
    fn place(&self, code: u32) -> Option<usize> {
        let block = self.index[code as usize / BLOCK];
        (block != 0).then(|| usize::from(block) * BLOCK + code as usize % BLOCK)
    }

    fn has(&self, code: u32) -> bool {
        self.place(code)
            .is_some_and(|at| self.tokens[at] != NO_ATOM)
    }

    /// Whether a character is no atom after another one, of which the last byte is given.
    fn excludes(&self, code: u32, (byte, left): (u8, u32)) -> bool {
        let entry = self.place(code).map_or(NO_ATOM, |at| self.tokens[at]);
        let context = entry >> TOKEN_BITS;
        entry == NO_ATOM
            || contains(&self.excluded[context as usize].always, byte)
            || has_bit(&self.excluded_chars, excluded_bit(context, left))
    }

    /// The number that a context has already.
    fn number_of(&self, context: &Context) -> Option<u32> {
        // Of nearly all characters it is empty, which is told without hashing it.
        let empty = *context == Context::default();
        if empty {
            Some(0)
        } else {
            self.known.get(context).copied()
        }
    }

    /// The number of a context, which is given one if it has none yet.
    fn name(&mut self, context: Context) -> u32 {
        if let Some(number) = self.number_of(&context) {
            return number;
        }
        let number = self.excluded.len() as u32;
        self.excluded.push(Excluded {
            suspects: context.suspects,
            always: context.always,
            next: context.next,
            facts: context.facts,
        });
        for left in &context.chars {
            set_bit(&mut self.excluded_chars, excluded_bit(number, *left));
        }
        self.known.insert(context, number);
        number
    }

    /// Makes a character an atom. `what` is its token, or where in `splits` they are.
    fn add(&mut self, code: u32, bounds: Bounds, what: u32) {
        let Bounds { context, followers } = bounds;
        for next in followers {
            set_bit(&mut self.followers, follower_bit(code, next));
        }
        let context = self.name(context);
        let at = self.place(code).unwrap_or_else(|| {
            self.index[code as usize / BLOCK] = (self.tokens.len() / BLOCK) as u16;
            self.tokens.resize(self.tokens.len() + BLOCK, NO_ATOM);
            self.tokens.len() - BLOCK + code as usize % BLOCK
        });
        self.tokens[at] = entry(context, what);
    }
}

fn has_bit(bits: &[u64], at: usize) -> bool {
    bits.get(at / 64)
        .is_none_or(|word| word >> (at % 64) & 1 == 1)
}

fn set_bit(bits: &mut [u64], at: usize) {
    bits[at / 64] |= 1 << (at % 64);
}

/// An entry of the table of tokens; never [`NO_ATOM`], as `context` is below [`SETS_MAX`].
#[inline(always)]
fn entry(context: u32, id: u32) -> u32 {
    context << TOKEN_BITS | id
}

#[inline(always)]
fn neighbour_bit(left: u32, right: u32) -> usize {
    let pair = u64::from(left) << 32 | u64::from(right);
    // The upper bits of a product depend on all of the factor.
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44) as usize % NEIGHBOUR_BITS
}

#[inline(always)]
fn excluded_bit(context: u32, code: u32) -> usize {
    let pair = u64::from(context) << 32 | u64::from(code);
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 46) as usize % EXCLUDED_BITS
}

#[inline(always)]
fn follower_bit(code: u32, next: u32) -> usize {
    let pair = u64::from(code) << 32 | u64::from(next);
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 45) as usize % FOLLOWER_BITS
}

/// What a token ends with that ends where a character does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// A whole character, so text has this one there.
    Char(u32, u8),
    /// The last bytes of one that begins before the token: any with this last byte.
    Byte(u8),
}

impl End {
    fn of(piece: &[u8]) -> Option<Self> {
        let last = *piece.last()?;
        let tail = piece.iter().rev().take_while(|byte| *byte & 0xC0 == 0x80);
        let whole = piece
            .len()
            .checked_sub(tail.count() + 1)
            .and_then(|at| Some((at, decode(piece, at)?)))
            .filter(|(at, (_, len))| at + len == piece.len());
        Some(match whole {
            Some((_, (code, _))) => Self::Char(code, last),
            None => Self::Byte(last),
        })
    }
}

/// What a token begins with that begins where a character does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Begin {
    /// A whole character, so text has this one there.
    Char(u32),
    /// The first bytes of one that ends after the token: any with this first byte.
    Lead(u8),
}

impl Begin {
    /// `None` for a token that begins inside of a character.
    fn of(piece: &[u8]) -> Option<Self> {
        let lead = *piece.first()?;
        if lead & 0xC0 == 0x80 {
            return None;
        }
        let whole = decode(piece, 0).map(|(code, _)| Self::Char(code));
        Some(whole.unwrap_or(Self::Lead(lead)))
    }
}

/// Whether a token can stand where a character ends: not, if it ends before the last
/// byte of one that it begins.
fn ends_character(piece: &[u8]) -> bool {
    let tail = piece.iter().rev().take_while(|byte| *byte & 0xC0 == 0x80);
    let tail = tail.count();
    match piece.len().checked_sub(tail + 1).map(|at| piece[at]) {
        Some(lead) => {
            let needed = match lead {
                ..0xC0 => 0,
                0xC0..0xE0 => 1,
                0xE0..0xF0 => 2,
                0xF0.. => 3,
            };
            tail >= needed
        }
        None => true,
    }
}

struct Rules<'a> {
    byte_ids: &'a [u32; 256],
    pairs: &'a PairTable,
    /// The left token, the rank, and the beginning of the right token of every rule that
    /// can join what is in one character with the next one; sorted.
    as_left: Vec<(u32, u32, Begin)>,
    /// The right token, the rank, and the end of the left token of every rule that can
    /// join what is in one character with the next one; sorted.
    as_right: Vec<(u32, u32, End)>,
    /// Where the rules of each token begin in these two.
    left_starts: Vec<u32>,
    right_starts: Vec<u32>,
    limits: Limits,
    /// Rules looked at so far.
    seen: Cell<usize>,
}

/// Where the entries of each token below `end` begin in a list that is sorted by these.
fn starts<T, U>(sorted: &[(u32, T, U)], end: usize) -> Vec<u32> {
    let mut starts = Vec::with_capacity(end);
    for (at, (token, ..)) in sorted.iter().enumerate() {
        let upto = (*token as usize + 1).min(end);
        if starts.len() < upto {
            starts.resize(upto, at as u32);
        }
    }
    starts
}

/// The tokens of a character on the way to its own.
#[derive(Default)]
struct Symbols {
    ids: [u32; 4],
    len: usize,
}

impl Deref for Symbols {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.ids[..self.len]
    }
}

/// Next to what a character is no atom.
#[derive(Default)]
struct Bounds {
    context: Context,
    /// Characters after it that exclude it.
    followers: Vec<u32>,
}

impl Rules<'_> {
    /// What the bytes of the character `piece` always merge to first, and next to what
    /// they may not.
    fn atom(&self, piece: &[u8]) -> Option<(Bounds, Symbols)> {
        let mut symbols = Symbols::default();
        for (symbol, byte) in symbols.ids.iter_mut().zip(piece) {
            *symbol = self.byte_ids[usize::from(*byte)];
            symbols.len += 1;
        }
        if symbols.contains(&NO_TOKEN) {
            return None;
        }
        let mut bounds = Bounds::default();
        let mut last_rank = 0;
        loop {
            let merges = symbols.windows(2).enumerate().filter_map(|(at, pair)| {
                let rank = self.pairs.rank(pair[0], pair[1]);
                (rank != NO_RANK).then(|| (rank, at, self.pairs.product(rank)))
            });
            let Some((rank, at, id)) = merges.min() else {
                break;
            };
            self.close_until(&symbols, rank, &mut bounds)?;
            symbols.ids[at] = id;
            symbols.ids.copy_within(at + 2.., at + 1);
            symbols.len -= 1;
            last_rank = rank.max(last_rank);
        }
        self.close_until(&symbols, last_rank, &mut bounds)?;
        let Bounds { context, followers } = &mut bounds;
        context.chars.sort_unstable();
        context.chars.dedup();
        if !followers.is_empty() {
            context.facts |= FOLLOWED;
        }
        Some((bounds, symbols))
    }

    /// The atoms of two characters, of which the second one is an atom but for the first.
    fn doubles(&self, made: &mut Builder, ids: &[u32], vocab: &Vocab) -> Doubles {
        let mut doubles = doubles::Builder::default();
        for &id in ids {
            let piece = vocab.piece(id);
            if !(3..=doubles::BYTES_MAX).contains(&piece.len())
                || !made.has_room()
                || !doubles.has_room()
            {
                continue;
            }
            let Some((left, len)) = decode(piece, 0) else {
                continue;
            };
            let first = &piece[..len];
            if (len > 1 || first == doubles::ASCII)
                && let Some((right, rest)) = decode(piece, len)
                && len + rest == piece.len()
                && rest > 1
                && id <= TOKEN
                && made.excludes(right, (first[len - 1], left))
                && let Some((bounds, symbols)) = self.atom(piece)
                && *symbols == [id]
                && let Some(context) = doubles::context(bounds)
            {
                doubles.add(left, right, entry(made.name(context), id));
            }
        }
        doubles.finish()
    }

    /// Whether any two bytes of a character merge: a quick look at what [`Rules::atom`]
    /// would begin with.
    fn merges_something(&self, piece: &[u8]) -> bool {
        let id = |byte: u8| self.byte_ids[usize::from(byte)];
        let mut pairs = piece.windows(2);
        pairs.any(|pair| self.pairs.rank(id(pair[0]), id(pair[1])) != NO_RANK)
    }

    /// Excludes all that a rule of at most this rank joins with the first or the last of
    /// these symbols. `None` if that is too much.
    fn close_until(&self, symbols: &[u32], rank: u32, bounds: &mut Bounds) -> Option<()> {
        let add = |set: &mut ByteSet, byte: u8| set[usize::from(byte / 64)] |= 1 << (byte % 64);
        let (first, last) = (symbols[0], symbols[symbols.len() - 1]);
        let Bounds { context, followers } = bounds;
        let seen = || {
            let seen = self.seen.get();
            (seen < self.limits.rules).then(|| self.seen.set(seen + 1))
        };
        // A token with no rules may begin at another's, which the loop ends at.
        let from = |starts: &[u32], token: u32| starts.get(token as usize).copied();
        let rules =
            from(&self.right_starts, first).map_or(&[][..], |n| &self.as_right[n as usize..]);
        for &(right, other, end) in rules {
            if right != first || other > rank {
                break;
            }
            if context.chars.len() == self.limits.chars {
                return None;
            }
            seen()?;
            match end {
                End::Char(code, byte) => {
                    add(&mut context.suspects, byte);
                    context.chars.push(code);
                }
                End::Byte(byte) => {
                    add(&mut context.suspects, byte);
                    add(&mut context.always, byte);
                }
            }
        }
        let rules = from(&self.left_starts, last).map_or(&[][..], |n| &self.as_left[n as usize..]);
        for &(left, other, begin) in rules {
            if left != last || other > rank {
                break;
            }
            if followers.len() == self.limits.chars {
                return None;
            }
            seen()?;
            match begin {
                Begin::Char(code) => followers.push(code),
                Begin::Lead(byte) => {
                    add(&mut context.next, byte);
                    context.facts |= NEXT;
                }
            }
        }
        Some(())
    }
}

/// The character at `at` and its length; `None` where no whole one begins.
#[inline(always)]
pub(crate) fn decode(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let lead = *bytes.get(at)?;
    let tail = |n: usize| {
        let byte = bytes.get(at + n).copied().unwrap_or(0);
        (byte & 0xC0 == 0x80).then_some(u32::from(byte & 0x3F))
    };
    let lead_bits = u32::from(lead);
    match lead {
        ..0x80 => Some((lead_bits, 1)),
        0xC2..0xE0 => Some(((lead_bits & 0x1F) << 6 | tail(1)?, 2)),
        0xE0..0xF0 => Some(((lead_bits & 0x0F) << 12 | tail(1)? << 6 | tail(2)?, 3)),
        0xF0..0xF5 => {
            let code = (lead_bits & 0x07) << 18 | tail(1)? << 12 | tail(2)? << 6 | tail(3)?;
            Some((code, 4))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
