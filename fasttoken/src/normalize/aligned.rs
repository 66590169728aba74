//! A text with the ranges that its bytes come from, changed step by step as the reference changes
//! its own.

/// A text on its way through a normalizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Aligned {
    pub(super) text: String,
    /// For each byte of the text, the range of bytes of the raw text that it comes from.
    pub(super) ranges: Vec<(usize, usize)>,
}

impl Aligned {
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
