//! Stop strings, found as text arrives.
//!
//! A match is the one that *ends* first, and of those that end there the longest. So what is
//! found does not depend on how the text was cut into pieces.

use std::sync::Arc;

/// Finds stop strings in text that arrives piece by piece, and holds back what may begin one.
#[derive(Clone, Debug)]
pub(crate) struct Stopper {
    stops: Arc<[String]>,
    include: bool,
    /// Text that may still turn out to be the beginning of a stop string.
    held: String,
}

impl Stopper {
    /// Returns a finder of stop strings; with `include`, a found stop string stays in the text.
    pub(crate) fn new(stops: Arc<[String]>, include: bool) -> Self {
        Self {
            stops,
            include,
            held: String::new(),
        }
    }

    /// Adds `piece` and appends to `out` what is certain. Returns the index of a stop string that
    /// has been found; the text is over then.
    pub(crate) fn push(&mut self, piece: &str, out: &mut String) -> Option<usize> {
        if self.stops.is_empty() {
            out.push_str(piece);
            return None;
        }
        // What is held is the beginning of a match or of none, so a match cannot begin before it.
        self.held.push_str(piece);
        let found = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(i, stop)| self.held.find(&**stop).map(|at| (at + stop.len(), at, i)))
            .min();
        if let Some((end, start, index)) = found {
            out.push_str(&self.held[..if self.include { end } else { start }]);
            self.held.clear();
            return Some(index);
        }
        let certain = self.held.len() - self.held_len();
        out.push_str(&self.held[..certain]);
        self.held.drain(..certain);
        None
    }

    /// Appends `piece` without looking for stop strings, and what was held before it.
    pub(crate) fn pass(&mut self, piece: &str, out: &mut String) {
        self.flush(out);
        out.push_str(piece);
    }

    /// Writes out all text that is held: the text is over, so none of it can become a stop string.
    pub(crate) fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Returns the length of the longest suffix of what is held that begins a stop string. It
    /// starts with the first byte of a string, so at a character.
    fn held_len(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = |stop: &String| {
            let stop = stop.as_bytes();
            let most = held.len().min(stop.len() - 1);
            (1..=most).rev().find(|&n| held.ends_with(&stop[..n]))
        };
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str], include: bool) -> (String, Option<usize>) {
        let stops: Arc<[String]> = stops.iter().map(|&s| s.to_owned()).collect();
        let mut stopper = Stopper::new(stops, include);
        let mut out = String::new();
        for piece in pieces {
            let found = stopper.push(piece, &mut out);
            if found.is_some() {
                return (out, found);
            }
        }
        stopper.flush(&mut out);
        (out, None)
    }

    #[test]
    fn finds_what_ends_first() {
        let check = |stops: &[&str], pieces: &[&str], text: &str, found| {
            assert_eq!(run(stops, pieces, false), (text.to_owned(), found));
        };
        check(&[], &["a", "b"], "ab", None);
        check(&["\n"], &["a", "b\nc"], "ab", Some(0));
        check(&["END"], &["xE", "N", "Dy"], "x", Some(0));
        check(&["END"], &["xE", "N", "E"], "xENE", None);
        check(&["aab"], &["a", "a", "a", "b"], "a", Some(0));
        check(&["abc", "b"], &["abc"], "a", Some(1));
        check(&["b", "ab"], &["xab"], "x", Some(1));
        check(&["é!"], &["caf\u{e9}", "s é", "!"], "cafés ", Some(0));
        assert_eq!(
            run(&["END"], &["xEN", "D!"], true),
            ("xEND".into(), Some(0))
        );
    }

    /// Looks at every prefix of the whole text, as the naive twin.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for (end, _) in text.char_indices().chain([(text.len(), ' ')]) {
            let ends =
                |(i, s): (usize, &String)| text[..end].ends_with(&**s).then(|| (end - s.len(), i));
            if let Some((start, i)) = stops.iter().enumerate().filter_map(ends).min() {
                return (text[..start].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abé]{0,5}", 0..12),
        ) {
            let expected = naive(&stops, &pieces.concat());
            let stop_refs: Vec<&str> = stops.iter().map(|s| &**s).collect();
            let piece_refs: Vec<&str> = pieces.iter().map(|s| &**s).collect();
            prop_assert_eq!(run(&stop_refs, &piece_refs, false), expected);
        }
    }
}
