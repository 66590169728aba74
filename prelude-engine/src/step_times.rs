//! The time that a one-shot step will take.

use std::{collections::BTreeMap, time::Duration};

use prelude_core::{Head, Request, RowSpec};

use crate::StepReport;

/// The latest time of one-shot steps, by the number of binary digits of their tokens and rows.
#[derive(Debug, Default)]
pub(crate) struct StepTimes(BTreeMap<u32, Duration>);

impl StepTimes {
    fn digits(tokens: usize, rows: usize) -> u32 {
        usize::BITS - tokens.saturating_add(rows).leading_zeros()
    }

    /// Notes the time of a step of one-shot work.
    pub(crate) fn note(&mut self, step: &StepReport) {
        let digits = Self::digits(step.oneshot_tokens, step.oneshot_rows);
        self.0.insert(digits, step.duration);
    }

    /// Returns whether the latest step of the request's size took at most `limit`. Cached tokens
    /// count as if they were computed.
    pub(crate) fn is_short(&self, request: &Request, limit: Duration) -> bool {
        let digits = Self::digits(request.tree.distinct_tokens(), request.rows.len());
        let known = self.0.get(&digits);
        !limit.is_zero()
            && known.is_some_and(|&known| known <= limit)
            && request.rows.iter().all(reads_one_output)
    }
}

/// Upper bound of the labels of a row whose scores take about as long as one draw.
const MAX_LABELS: usize = 256;

/// Returns whether a row takes one pass over the outputs of its head: a row that takes many may
/// make a short prompt's step long.
fn reads_one_output(row: &RowSpec) -> bool {
    match &row.head {
        Head::Classify | Head::Embed { .. } => true,
        Head::Generate(generate) => generate.n == 1,
        Head::LabelScores { labels, .. } => labels.len() <= MAX_LABELS,
        Head::PromptLogprobs { .. } | Head::Tokens(_) | Head::States { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prelude_core::{Generate, PromptTree, RequestId, StepId, Timestamp};

    use super::*;
    use crate::StepKind;

    const US: Duration = Duration::from_micros(1);

    fn note(times: &mut StepTimes, tokens: usize, duration: Duration) {
        times.note(&StepReport {
            step: StepId(0),
            kind: StepKind::OneShot,
            oneshot_tokens: tokens,
            prefill_tokens: 0,
            decode_rows: 0,
            oneshot_rows: 1,
            submitted: Timestamp::ZERO,
            duration,
            succeeded: true,
        });
    }

    fn is_short(times: &StepTimes, tokens: u32, head: Head, limit: Duration) -> bool {
        let tree = PromptTree::single((0..tokens).collect());
        let node = tree.last_node();
        let rows = vec![RowSpec { node, head }];
        let request = Request::new(RequestId(0), tree, rows, Timestamp::ZERO);
        times.is_short(&request, limit)
    }

    #[test]
    fn the_latest_step_of_a_size_says_how_long_the_next_takes() {
        let mut times = StepTimes::default();
        let check = |times: &StepTimes, tokens, limit, expected| {
            let short = is_short(times, tokens, Head::Classify, limit);
            assert_eq!(short, expected, "{tokens}, {limit:?}");
        };
        check(&times, 16, Duration::MAX, false);
        note(&mut times, 16, 100 * US);
        // Sizes of as many digits, with the row, and others.
        check(&times, 30, 100 * US, true);
        check(&times, 31, 100 * US, false);
        check(&times, 14, 100 * US, false);
        note(&mut times, 20, 800 * US);
        check(&times, 16, 799 * US, false);
        note(&mut times, 20, 100 * US);
        check(&times, 16, 100 * US, true);
        check(&times, 16, Duration::ZERO, false);
        // Sizes beyond any step.
        note(&mut times, usize::MAX, US);
    }

    #[test]
    fn a_short_prompt_with_much_to_draw_is_no_short_step() {
        let mut times = StepTimes::default();
        note(&mut times, 3, 100 * US);
        let draws = |n| {
            Head::Generate(Generate {
                max_tokens: 1,
                n,
                sampling: Arc::default(),
                top_logprobs: None,
                constraint: None,
            })
        };
        assert!(is_short(&times, 3, draws(1), 100 * US));
        assert!(!is_short(&times, 3, draws(128), Duration::MAX));
        let positions = 1..3;
        let logprobs = Head::PromptLogprobs { positions, top: 5 };
        assert!(!is_short(&times, 3, logprobs, Duration::MAX));
    }
}
