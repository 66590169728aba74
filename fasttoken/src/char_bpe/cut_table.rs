//! Places where a text can be cut without changing the merges of its parts.
//!
//! A SentencePiece-style model merges whole texts: nothing splits them into words first.
//! But a merge that joins the text before a place with the text after it has a left
//! part that ends in the character before the place, and a right part that begins with
//! the one after it. So where no rule has such parts, no merge ever crosses the place,
//! whatever else the text says, and both sides can be merged alone. These pairs of
//! characters are collected from the rules at load. Bytes and the unknown token are
//! part of no rule (load refuses a file where they are), so nothing crosses there.
//!
//! In real vocabularies no rule joins a letter with the `▁` after it, so texts fall
//! into words; and texts without blanks, such as Chinese, fall apart in many places.
//!
//! Few characters are an end of what rules join: of the 2,129 characters of Llama 2's
//! vocabulary, 217 on the left and 257 on the right. Each of these has a class, and a
//! square of classes says which of them rules join, and the rank of the rule that joins
//! the two characters themselves, with which merging begins.

use super::letter_table::{Builder, Letter, swapped};
use crate::format::CompiledError;
use crate::format::{Reader, Section, Writer};
use crate::pairs::{NO_RANK, PairTable};
use crate::store::{Flat, Relocatable};

/// A cell of the square: some rule joins the characters with their neighbours, but none joins these
/// two alone.
const JOINED: u32 = NO_RANK - 1;
/// A cell of the square: one of the characters has no class of its own, and the filter decides.
pub(super) const ASK: u32 = NO_RANK - 2;

/// Characters that have no class of their own, since a vocabulary can have thousands. Those
/// that are at no end have class 0, whose row and column say so.
const OTHER: u16 = 1;
/// Most classes: the square has a megabyte then.
const CLASSES_MAX: usize = 512;

/// The pairs of neighbouring characters that some rule joins.
#[derive(Debug)]
pub(super) struct CutTable {
    /// A row for each left class: a number for each right class.
    square: Flat<u32>,
    width: usize,
    /// Two bits of a number for each pair of which one is [`OTHER`], by hash: one in some
    /// hundred that no rule joins is taken for joined, which costs time and changes nothing.
    filter: Flat<u64>,
    /// True if the filter has bits; otherwise no lookup in it finds a join.
    asks: bool,
}

/// Gives classes to characters by how many rules they are an end of. Returns the number of
/// classes.
fn classify(counts: &[u32], mut set: impl FnMut(usize, u16)) -> usize {
    let mut ends: Vec<usize> = (0..counts.len()).filter(|at| counts[*at] > 0).collect();
    let own = CLASSES_MAX - usize::from(OTHER) - 1;
    if ends.len() > own {
        ends.sort_by_key(|at| std::cmp::Reverse(counts[*at]));
        for at in ends.drain(own..) {
            set(at, OTHER);
        }
        // Letters of a script are neighbours in the square, too.
        ends.sort_unstable();
    }
    for (class, at) in ends.iter().enumerate() {
        set(*at, class as u16 + OTHER + 1);
    }
    ends.len() + usize::from(OTHER) + 1
}

impl CutTable {
    /// Builds the table and classifies `letters`: `ends` are the characters left and right of the place
    /// where each rule joins its parts, in the usual spelling, and `pairs` are the rules. Classifies
    /// `letters`.
    pub(super) fn new(
        ends: impl Iterator<Item = (char, char)> + Clone,
        letters: &mut Builder,
        pairs: &PairTable,
    ) -> Self {
        let (mut lefts, mut rights) = (vec![0; letters.len()], vec![0; letters.len()]);
        // A character without a token is joined with nothing.
        let places = |letters: &Builder, (left, right)| {
            let places = (letters.place(left)?, letters.place(right)?);
            Some((places, (left, right)))
        };
        for ((left, right), _) in ends.clone().filter_map(|ends| places(letters, ends)) {
            lefts[left] += 1;
            rights[right] += 1;
        }
        let height = classify(&lefts, |at, class| letters.at(at).left = class);
        let width = classify(&rights, |at, class| letters.at(at).right = class);
        let mut square = vec![NO_RANK; height * width];
        let other = usize::from(OTHER);
        square[other * width + other..(other + 1) * width].fill(ASK);
        for row in other..height {
            square[row * width + other] = ASK;
        }
        let mut others = Vec::new();
        for ((left, right), ends) in ends.filter_map(|ends| places(letters, ends)) {
            let (left, right) = (letters.get(left), letters.get(right));
            let cell = &mut square[usize::from(left.left) * width + usize::from(right.right)];
            match *cell {
                NO_RANK => {
                    let rank = pairs.rank(left.id, right.id);
                    *cell = if rank == NO_RANK { JOINED } else { rank };
                }
                ASK => others.push(ends),
                _ => {}
            }
        }
        others.sort_unstable();
        others.dedup();
        let mut filter = vec![0; (others.len() / 2 + 1).next_power_of_two()];
        for (left, right) in others {
            let (word, bits) = place(swapped(left).into(), swapped(right).into(), filter.len());
            filter[word] |= bits;
        }
        Self {
            square: square.into(),
            width,
            asks: filter.iter().any(|bits| *bits != 0),
            filter: filter.into(),
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put(Section::BorderRanks, &self.square);
        writer.put(Section::BorderFacts, &[self.width as u32]);
        writer.put(Section::BorderBits, &self.filter);
    }

    pub(super) fn read(reader: &Reader) -> Result<Self, CompiledError> {
        let facts = reader.get::<u32>(Section::BorderFacts)?;
        let &[width] = &*facts else {
            return Err(Section::BorderFacts.invalid("there is not one of them"));
        };
        let filter = reader.get::<u64>(Section::BorderBits)?;
        let this = Self {
            square: reader.get(Section::BorderRanks)?,
            width: width as usize,
            asks: filter.iter().any(|bits| *bits != 0),
            filter,
        };
        this.checked()
            .ok_or_else(|| Section::BorderRanks.invalid("it is no square of classes"))
    }

    /// Returns the table, or `None` if its form is not one that [`CutTable::new`] makes. What else its
    /// contents say is checked when it is used.
    fn checked(self) -> Option<Self> {
        // The class 0 before the first character is joined with nothing.
        let row = self.square.get(..self.width)?;
        let first = row.iter().all(|rank| *rank == NO_RANK);
        (first && self.filter.len().is_power_of_two()).then_some(self)
    }

    pub(super) fn tables(&mut self) -> [&mut dyn Relocatable; 2] {
        [&mut self.square, &mut self.filter]
    }

    /// Returns true if [`CutTable::ask`] may find a join. If not, pairs with the cell [`ASK`] may be
    /// treated as joined.
    #[inline(always)]
    pub(super) fn asks(&self) -> bool {
        self.asks
    }

    /// Returns a view for many lookups.
    #[inline(always)]
    pub(super) fn view(&self) -> CutTableView<'_> {
        CutTableView {
            square: &self.square,
            width: self.width,
        }
    }

    /// Returns the rank of the rule that joins two characters; [`JOINED`] if there is none but others
    /// may join them with what is around them; [`NO_RANK`] if none does. Both are given with their code
    /// points in the spelling of texts.
    #[inline]
    pub(super) fn rank(&self, pairs: &PairTable, left: (u32, Letter), right: (u32, Letter)) -> u32 {
        match self.view().rank(left.1, right.1) {
            ASK => self.ask(pairs, left, right),
            rank => rank,
        }
    }

    /// Returns [`CutTable::rank`] for two characters where the square says [`ASK`].
    #[cold]
    #[inline(never)]
    pub(super) fn ask(&self, pairs: &PairTable, left: (u32, Letter), right: (u32, Letter)) -> u32 {
        let (word, bits) = place(left.0, right.0, self.filter.len());
        if self.filter[word] & bits != bits {
            return NO_RANK;
        }
        // The filter can report a join that does not exist, and never misses one.
        pairs.rank(left.1.id, right.1.id).min(JOINED)
    }
}

/// The square of [`CutTable`].
#[derive(Debug, Clone, Copy)]
pub(super) struct CutTableView<'a> {
    square: &'a [u32],
    width: usize,
}

impl CutTableView<'_> {
    /// Returns the cell of two characters: the result of [`CutTable::rank`], or [`ASK`].
    #[inline(always)]
    pub(super) fn rank(self, left: Letter, right: Letter) -> u32 {
        let at = usize::from(left.left) * self.width + usize::from(right.right);
        self.square.get(at).copied().unwrap_or(NO_RANK)
    }
}

/// Returns the index of a pair's number, of `words` numbers (a power of two), and the pair's bits
/// in it.
#[inline(always)]
fn place(left: u32, right: u32, words: usize) -> (usize, u64) {
    let pair = u64::from(left) << 32 | u64::from(right);
    // The upper bits of a product depend on all of the factor.
    let hash = pair.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let word = (hash >> 44) as usize & (words - 1);
    (word, 1 << (hash >> 32 & 63) | 1 << (hash >> 38 & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the ranks of all pairs of some characters equal their definition.
    fn check(letters: &[char], rules: &[(String, String)]) {
        // Tokens: all characters, then what rules make.
        let tokens = letters.iter().zip(0..).map(|(c, id)| (*c, id));
        let mut letters_of = Builder::new(tokens);
        let id = |text: &str| {
            let mut chars = text.chars();
            let first = letters.iter().position(|c| Some(*c) == chars.next());
            match (first, text.chars().count()) {
                (Some(at), 1) => at as u32,
                _ => 5_000 + text.len() as u32,
            }
        };
        let numbers: Vec<_> = (10_000..)
            .zip(rules)
            .map(|(made, (left, right))| [id(left), id(right), made])
            .collect();
        let pairs = PairTable::new(&numbers);
        let ends = rules
            .iter()
            .filter_map(|(left, right)| Some((left.chars().next_back()?, right.chars().next()?)));
        let cut_table = CutTable::new(ends, &mut letters_of, &pairs);
        let cut_table = cut_table.checked().expect("made just now");
        let table = letters_of.finish();
        let mut wrong = 0;
        for &left in letters {
            for &right in letters {
                let [a, b] = [left, right].map(|c| (swapped(c).into(), table.of(c)));
                let found = cut_table.rank(&pairs, a, b);
                let joined = rules
                    .iter()
                    .any(|(l, r)| l.ends_with(left) && r.starts_with(right));
                let alone = pairs.rank(a.1.id, b.1.id);
                let expected = match (joined, alone) {
                    (false, _) => NO_RANK,
                    (true, NO_RANK) => JOINED,
                    (true, rank) => rank,
                };
                // The filter may take some for joined.
                wrong += usize::from(found != expected);
                assert!(found == expected || expected == NO_RANK, "{left}{right}");
            }
        }
        let all = letters.len() * letters.len();
        assert!(wrong <= all / 10, "{wrong} of {all}");
        assert!(letters.len() > CLASSES_MAX || wrong == 0);
    }

    #[test]
    fn squares_that_join_nothing_with_something_are_refused() {
        let cut_table = |square: &[u32], width, filter: usize| CutTable {
            square: square.to_vec().into(),
            width,
            filter: vec![0; filter].into(),
            asks: false,
        };
        let row = [NO_RANK, NO_RANK, 5, JOINED];
        assert!(cut_table(&row, 2, 1).checked().is_some());
        assert!(cut_table(&row, 2, 3).checked().is_none());
        assert!(cut_table(&row, 3, 1).checked().is_none());
        assert!(cut_table(&row, 5, 1).checked().is_none());
    }

    #[test]
    fn pairs_are_those_of_the_rules() {
        let rules = [
            ("b", "c"),
            ("ab", "c"),
            ("▁", "a"),
            ("é", "漢字"),
            ("x", "▁"),
        ];
        let rules = rules.map(|(left, right)| (left.to_owned(), right.to_owned()));
        check(&['a', 'b', 'c', '▁', 'é', '漢', '字', 'x', ' '], &rules);
    }

    #[test]
    fn more_characters_than_classes_are_asked_for() {
        let letters: Vec<char> = ('一'..).take(CLASSES_MAX + 90).collect();
        let rule = |n: usize| {
            let letter = |n: usize| letters[n % letters.len()].to_string();
            (
                letter(n),
                letter(n * n + n / 7 + 1) + if n.is_multiple_of(3) { "字" } else { "" },
            )
        };
        let rules: Vec<_> = (0..2_000).map(rule).collect();
        check(&letters, &rules);
    }
}
