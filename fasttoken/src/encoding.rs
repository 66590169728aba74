//! The result of encoding with everything that can be known about each id.

use std::ops::Range;

/// Ids with what is known about each of them: columns of equal length.
///
/// Made by [`Tokenizer::encode_with`](crate::Tokenizer::encode_with) and
/// [`Tokenizer::encode_with_offsets`](crate::Tokenizer::encode_with_offsets); every
/// column holds what the reference's `Encoding` holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoding {
    /// The ids.
    pub ids: Vec<u32>,
    /// The part of the input that an id belongs to, as the file's template numbers parts.
    pub type_ids: Vec<u32>,
    /// The word of its text that an id comes from, counted from 0. An added token in the text
    /// counts as a word. `None` for ids from a template and for padding.
    pub word_ids: Vec<Option<u32>>,
    /// Start and end of each id in its own text, in bytes or characters. Ids that share
    /// a character each have the whole character's range; ids from a template and
    /// padding have `(0, 0)`.
    pub offsets: Vec<(usize, usize)>,
    /// 1 for ids from a template and for padding, else 0. Special tokens that stand in
    /// the text itself have 0.
    pub special_tokens_mask: Vec<u32>,
    /// 0 for padding, else 1.
    pub attention_mask: Vec<u32>,
    /// The ids that truncation cut off, in pieces of the same length with the same template.
    ///
    /// Like in the reference, a text is not encoded further than the word in which the
    /// limit is reached, so this is not the rest of a long text.
    pub overflowing: Vec<Self>,
    /// The range of ids of each text; empty if all ids come from the first text.
    sequences: Vec<(usize, Range<usize>)>,
    /// The tokens that are not spelled as the vocabulary spells their id, by rising place: text that
    /// Unigram does not know, and added tokens with the blanks that they took.
    spellings: Vec<(usize, Box<str>)>,
    /// Blanks at the beginning and at the end of each token, where a post-processor
    /// asks for them, and nothing once it has run.
    pub(crate) blanks: Vec<(u32, u32)>,
}

impl Encoding {
    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns true if there are no ids.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the number of texts: 2 for a pair.
    pub fn n_sequences(&self) -> usize {
        self.sequences.len().max(1)
    }

    /// Returns the range of the ids of text `sequence`, 0 or 1, with the ids of a template between
    /// them. All ids belong to a text that the encoding does not know, as in the reference.
    pub fn sequence_range(&self, sequence: usize) -> Range<usize> {
        let known = self.sequences.iter().find(|(id, _)| *id == sequence);
        known.map_or(0..self.len(), |(_, range)| range.clone())
    }

    /// Returns the text that the id at place `n` comes from, 0 or 1, or `None` for an id from a
    /// template. See [`Encoding::sequence_ids`].
    pub fn sequence_of(&self, n: usize) -> Option<usize> {
        if self.sequences.is_empty() {
            // As in the reference, one more than the last is in the text too.
            return (n <= self.len()).then_some(0);
        }
        let has = |(_, range): &&(usize, Range<usize>)| range.contains(&n);
        self.sequences
            .iter()
            .find(has)
            .map(|(sequence, _)| *sequence)
    }

    /// Returns the text that each id comes from, 0 or 1, and `None` for ids from a template.
    /// Padding is `None` too, unless the input is a single text without a template.
    pub fn sequence_ids(&self) -> Vec<Option<usize>> {
        let mut ids = vec![None; self.len()];
        for sequence in 0..self.n_sequences() {
            ids[self.sequence_range(sequence)].fill(Some(sequence));
        }
        ids
    }

    /// Returns the place in the columns of the first id that covers position `at` of text `sequence`
    /// (0 or 1), in the unit of the offsets. Returns `None` if no id covers it, or if the encoding
    /// was made without offsets.
    pub fn char_to_token(&self, at: usize, sequence: usize) -> Option<usize> {
        let sequences = self.sequence_ids();
        let covers = |n: &usize| {
            let (start, end) = self.offsets[*n];
            sequences[*n] == Some(sequence) && start <= at && at < end
        };
        (0..self.offsets.len()).find(covers)
    }

    /// Sets the token of the id that is added next, if its text is not what the vocabulary has for it.
    pub(crate) fn spell(&mut self, text: &str, in_vocabulary: Option<&str>) {
        if in_vocabulary != Some(text) {
            self.spellings.push((self.ids.len(), text.into()));
        }
    }

    /// Returns the tokens that are not spelled as the vocabulary spells their id, and their places.
    pub(crate) fn spellings(&self) -> impl Iterator<Item = (usize, &str)> {
        self.spellings.iter().map(|(at, text)| (*at, &**text))
    }

    /// Returns the ids that a template puts around texts.
    pub(crate) fn special(ids: &[u32], type_id: u32) -> Self {
        let len = ids.len();
        Self {
            ids: ids.to_vec(),
            type_ids: vec![type_id; len],
            word_ids: vec![None; len],
            offsets: vec![(0, 0); len],
            special_tokens_mask: vec![1; len],
            attention_mask: vec![1; len],
            ..Self::default()
        }
    }

    /// Assigns all ids to text `sequence`.
    pub(crate) fn set_sequence(&mut self, sequence: usize) {
        let range = 0..self.len();
        match self.sequences.iter_mut().find(|(id, _)| *id == sequence) {
            Some((_, known)) => *known = range,
            None => self.sequences.push((sequence, range)),
        }
    }

    /// Assigns all ids to text `sequence`, and to no other.
    pub(crate) fn set_only_sequence(&mut self, sequence: usize) {
        self.sequences.clear();
        self.set_sequence(sequence);
    }

    /// Returns the ids of `range` without what overflowed and without sequences.
    fn slice(&self, range: Range<usize>) -> Self {
        let blanks = self.blanks.get(range.clone()).unwrap_or_default();
        let spellings = self.spellings.iter().filter(|(at, _)| range.contains(at));
        let spellings = spellings.map(|(at, text)| (at - range.start, text.clone()));
        Self {
            spellings: spellings.collect(),
            ids: self.ids[range.clone()].to_vec(),
            type_ids: self.type_ids[range.clone()].to_vec(),
            word_ids: self.word_ids[range.clone()].to_vec(),
            offsets: self.offsets[range.clone()].to_vec(),
            special_tokens_mask: self.special_tokens_mask[range.clone()].to_vec(),
            attention_mask: self.attention_mask[range].to_vec(),
            blanks: blanks.to_vec(),
            ..Self::default()
        }
    }

    /// Keeps the first of `parts` and puts the others into `overflowing`.
    pub(crate) fn cut(&mut self, parts: impl IntoIterator<Item = Range<usize>>) {
        let mut cut = parts.into_iter().map(|part| self.slice(part));
        if let Some(mut first) = cut.next() {
            first.overflowing = cut.collect();
            *self = first;
        }
    }

    /// Removes all ids, and moves them to `overflowing` if `keep`.
    pub(crate) fn cut_all(&mut self, keep: bool) {
        if self.is_empty() {
            return;
        }
        let all = std::mem::take(self);
        if keep {
            self.overflowing.push(all);
        }
    }

    /// Appends `other`. What overflowed is combined: every piece of this one with every
    /// piece of the other, each with pieces of its own, as the reference does.
    pub(crate) fn append(&mut self, other: &Self) {
        let mut overflowing = Vec::new();
        for piece in &self.overflowing {
            overflowing.push(piece.joined(other));
            overflowing.extend(other.overflowing.iter().map(|more| piece.joined(more)));
        }
        overflowing.extend(other.overflowing.iter().map(|more| self.joined(more)));
        self.append_ids(other);
        self.overflowing = overflowing;
    }

    fn joined(&self, other: &Self) -> Self {
        let mut joined = self.clone();
        joined.append(other);
        joined
    }

    fn append_ids(&mut self, other: &Self) {
        let before = self.len();
        for (sequence, range) in &other.sequences {
            let range = before + range.start..before + range.end;
            match self.sequences.iter_mut().find(|(id, _)| id == sequence) {
                Some((_, known)) => *known = range,
                None => self.sequences.push((*sequence, range)),
            }
        }
        let spellings = other.spellings.iter();
        self.spellings
            .extend(spellings.map(|(at, text)| (before + at, text.clone())));
        self.ids.extend_from_slice(&other.ids);
        self.type_ids.extend_from_slice(&other.type_ids);
        self.word_ids.extend_from_slice(&other.word_ids);
        self.offsets.extend_from_slice(&other.offsets);
        self.special_tokens_mask
            .extend_from_slice(&other.special_tokens_mask);
        self.attention_mask.extend_from_slice(&other.attention_mask);
    }

    /// Returns the number of ids that [`Encoding::pad`] would add.
    pub(crate) fn missing(&self, len: usize) -> usize {
        let own = len.saturating_sub(self.len());
        let pieces = self.overflowing.iter().map(|piece| piece.missing(len));
        pieces.fold(own, usize::saturating_add)
    }

    /// Fills up to `len` ids, here and in what overflowed.
    pub(crate) fn pad(&mut self, len: usize, id: u32, type_id: u32, left: bool) {
        for piece in &mut self.overflowing {
            piece.pad(len, id, type_id, left);
        }
        let missing = len.saturating_sub(self.len());
        if missing == 0 {
            return;
        }
        let filled = self.len();
        fill(&mut self.ids, missing, id, left);
        fill(&mut self.type_ids, missing, type_id, left);
        fill(&mut self.word_ids, missing, None, left);
        fill(&mut self.offsets, missing, (0, 0), left);
        fill(&mut self.special_tokens_mask, missing, 1, left);
        fill(&mut self.attention_mask, missing, 0, left);
        debug_assert_eq!(self.len(), filled + missing);
        if left {
            for (_, range) in &mut self.sequences {
                *range = range.start + missing..range.end + missing;
            }
            for (at, _) in &mut self.spellings {
                *at += missing;
            }
        }
    }
}

fn fill<T: Clone>(column: &mut Vec<T>, missing: usize, value: T, left: bool) {
    let before = column.len();
    column.resize(before + missing, value);
    if left {
        column.rotate_right(missing);
    }
}
