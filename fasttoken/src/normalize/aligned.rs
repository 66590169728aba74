//! A text with the ranges that its bytes come from, changed step by step as the reference changes
//! its own.

/// A text on its way through a normalizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Aligned {
    pub(super) text: String,
    /// The range of bytes of the raw text that each byte of the text comes from.
    pub(super) ranges: Vec<(usize, usize)>,
}

impl Aligned {
    /// Creates a text that nothing was done to yet.
    pub(super) fn new(text: &str) -> Self {
        let mut ranges = Vec::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            ranges.extend(std::iter::repeat_n((at, at + c.len_utf8()), c.len_utf8()));
        }
        Self {
            text: text.to_owned(),
            ranges,
        }
    }

    /// Replaces the text by the characters of `edits`, after the first `skipped` ones. The number
    /// beside each character is 0 if it stands for the next character of the text, `-n` if it
    /// stands for `n` more, and positive if it was inserted: it then has the range of the byte
    /// before it.
    pub(super) fn transform(
        &mut self,
        edits: impl IntoIterator<Item = (char, isize)>,
        skipped: usize,
    ) {
        let mut replaced = self.text.chars();
        let mut take =
            |count: usize| -> usize { replaced.by_ref().take(count).map(char::len_utf8).sum() };
        let mut at = take(skipped);
        let mut text = String::with_capacity(self.text.len() + 8);
        let mut ranges = Vec::with_capacity(self.ranges.len() + 8);
        for (c, change) in edits {
            let range = if change > 0 {
                at.checked_sub(1).and_then(|last| self.ranges.get(last))
            } else {
                self.ranges.get(at)
            };
            let range = range.copied().unwrap_or_default();
            if change <= 0 {
                at += take(1 + change.unsigned_abs());
            }
            ranges.extend(std::iter::repeat_n(range, c.len_utf8()));
            text.push(c);
        }
        (self.text, self.ranges) = (text, ranges);
    }

    /// Puts a string before the text, unless that is empty.
    pub(super) fn prepend(&mut self, prefix: &str) {
        if let Some(first) = self.ranges.first().copied() {
            self.text.insert_str(0, prefix);
            let inserted = std::iter::repeat_n(first, prefix.len());
            self.ranges.splice(..0, inserted);
        }
    }

    /// Replaces each of some ranges of bytes, which stand in order and are not empty.
    pub(super) fn replace(&mut self, matches: &[(usize, usize)], to: &str) {
        let (mut text, mut ranges) = (String::new(), Vec::with_capacity(self.ranges.len()));
        let mut done = 0;
        for &(start, end) in matches {
            text.push_str(&self.text[done..start]);
            ranges.extend_from_slice(&self.ranges[done..start]);
            text.push_str(to);
            // What comes in takes the range of the last byte that goes.
            ranges.extend(std::iter::repeat_n(self.ranges[end - 1], to.len()));
            done = end;
        }
        text.push_str(&self.text[done..]);
        ranges.extend_from_slice(&self.ranges[done..]);
        (self.text, self.ranges) = (text, ranges);
    }

    /// Keeps some characters. Each stands for those that are gone after it.
    pub(super) fn filter(&mut self, keep: impl Fn(char) -> bool) {
        let mut edits: Vec<(char, isize)> = Vec::with_capacity(self.text.len());
        let mut skipped = 0;
        for c in self.text.chars() {
            if keep(c) {
                edits.push((c, 0));
            } else if let Some((_, gone)) = edits.last_mut() {
                *gone -= 1;
            } else {
                skipped += 1;
            }
        }
        self.transform(edits, skipped);
    }

    /// Replaces each character by one.
    pub(super) fn map(&mut self, map: impl Fn(char) -> char) {
        let edits: Vec<_> = self.text.chars().map(|c| (map(c), 0)).collect();
        self.transform(edits, 0);
    }

    /// Replaces each character by its lower case.
    pub(super) fn lowercase(&mut self) {
        let mut edits = Vec::with_capacity(self.text.len());
        for c in self.text.chars() {
            let lower = c.to_lowercase().enumerate();
            edits.extend(lower.map(|(n, c)| (c, isize::from(n > 0))));
        }
        self.transform(edits, 0);
    }
}
