//! The lengths of outputs, by what their prompts have in common.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use prelude_core::Timestamp;

use crate::prompt::Root;

/// Most outputs that are remembered: the mean of fewer is as good.
const MAX_REMEMBERED: usize = 1 << 16;

/// Lengths of the outputs of the window.
#[derive(Debug)]
pub(super) struct Outputs {
    span: Duration,
    default: f64,
    recent: VecDeque<(Timestamp, Root, u32)>,
    /// Sum and number.
    sums: BTreeMap<Root, (u64, u64)>,
}

impl Outputs {
    pub(super) fn new(span: Duration, default: u32) -> Self {
        Self {
            span,
            default: f64::from(default),
            recent: VecDeque::new(),
            sums: BTreeMap::new(),
        }
    }

    /// Returns the output tokens of a request, as far as is known: the request's limit if that is
    /// at most one, which is no decoding; else the mean of requests with the same root.
    pub(super) fn expected(&self, root: Root, most: Option<u32>) -> f64 {
        let mean = || {
            let sum = self.sums.get(&root);
            sum.map_or(self.default, |&(sum, count)| sum as f64 / count as f64)
        };
        match most {
            Some(most @ ..=1) => f64::from(most),
            Some(most) => mean().min(f64::from(most)),
            None => mean(),
        }
    }

    pub(super) fn note(&mut self, now: Timestamp, root: Root, tokens: u32) {
        // A request of one output token says so itself, so it tells nothing of others.
        if tokens <= 1 {
            return;
        }
        self.recent.push_back((now, root, tokens));
        let (sum, count) = self.sums.entry(root).or_default();
        *sum += u64::from(tokens);
        *count += 1;
    }

    pub(super) fn advance(&mut self, now: Timestamp) {
        while let Some(&(at, root, tokens)) = self.recent.front()
            && (now.saturating_since(at) >= self.span || self.recent.len() > MAX_REMEMBERED)
        {
            self.recent.pop_front();
            if let Some((sum, count)) = self.sums.get_mut(&root) {
                *sum -= u64::from(tokens);
                *count -= 1;
                if *count == 0 {
                    self.sums.remove(&root);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_the_window_and_the_root() {
        let span = Duration::from_secs(10);
        let mut outputs = Outputs::new(span, 45);
        let [a, b] = [Root(1), Root(2)];
        let at = |s: u64| Timestamp::ZERO.saturating_add(Duration::from_secs(s));
        assert_eq!(outputs.expected(a, None), 45.0);
        outputs.note(at(1), a, 10);
        outputs.note(at(2), a, 30);
        outputs.note(at(3), a, 1);
        assert_eq!(outputs.expected(a, None), 20.0);
        assert_eq!(outputs.expected(a, Some(12)), 12.0);
        assert_eq!(outputs.expected(a, Some(1)), 1.0);
        assert_eq!(outputs.expected(b, None), 45.0);
        outputs.advance(at(11));
        assert_eq!(outputs.expected(a, None), 30.0);
        outputs.advance(at(12));
        assert_eq!(outputs.expected(a, None), 45.0);
    }
}
