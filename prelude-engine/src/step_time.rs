//! The time that one-shot steps took of late, by their size.

use std::time::Duration;

use prelude_core::{Head, OneShotBatch, OutputHead, OutputRow, Request, RowSpec, TokenId};

/// How much a one-shot step computes: its prompts, and what is made of their ends, which may be far
/// more where a short prompt has many draws or many places to be scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepSize {
    /// Prompt tokens.
    tokens: usize,
    /// Passes over a head's outputs: one for each draw, each scored position, each vector or list
    /// of classes, every [`LABELS`] of a row's labels.
    passes: usize,
}

impl StepSize {
    /// Returns the size of the step that answers a request; an upper bound, since some of it may be
    /// cached.
    pub(crate) fn of_request(request: &Request) -> Self {
        let passes = |row: &RowSpec| match &row.head {
            Head::Generate(generate) => generate.n as usize,
            Head::PromptLogprobs { positions, .. } => positions.len(),
            Head::Tokens(_) => request.tree.prompt_len(row.node) as usize,
            Head::LabelScores { labels, .. } => of_labels(labels),
            Head::Embed { .. } | Head::Classify => 1,
        };
        Self {
            tokens: request.tree.distinct_tokens(),
            passes: request.rows.iter().map(passes).sum(),
        }
    }

    /// Returns the size of the one-shot part of a batch.
    pub(crate) fn of_batch(batch: &OneShotBatch) -> Self {
        let passes = |row: &OutputRow| match &row.head {
            OutputHead::Sample(sample) => sample.draws as usize,
            OutputHead::Logprobs { targets, .. } => targets.len(),
            OutputHead::Tokens(_) => row.positions.len(),
            OutputHead::LabelScores { labels, .. } => of_labels(labels),
            OutputHead::Embed { .. } | OutputHead::Classify => 1,
        };
        Self {
            tokens: batch.tokens.len(),
            passes: batch.rows.iter().map(passes).sum(),
        }
    }
}

/// Labels of a row that take about as long as the vocabulary.
const LABELS: usize = 256;

fn of_labels(labels: &[TokenId]) -> usize {
    labels.len().div_ceil(LABELS)
}

/// The latest times of steps by size: numbers of as many binary digits count as one.
#[derive(Debug, Default)]
pub(crate) struct StepTimes([[Option<Duration>; Self::SIZES]; Self::SIZES]);

impl StepTimes {
    const SIZES: usize = 20;

    fn place(size: StepSize) -> (usize, usize) {
        let digits = |n: usize| {
            let digits = usize::BITS - n.leading_zeros();
            (digits as usize).min(Self::SIZES - 1)
        };
        (digits(size.tokens), digits(size.passes))
    }

    /// A step of one-shot work took `duration`. A longer time than the one known is believed at
    /// once, a shorter one by and by: what counts is how long a step may take.
    pub(crate) fn note(&mut self, size: StepSize, duration: Duration) {
        let (tokens, passes) = Self::place(size);
        let known = &mut self.0[tokens][passes];
        let faded = known.map_or(Duration::ZERO, |known| known - known / 8);
        *known = Some(duration.max(faded));
    }

    /// Returns whether steps of this size are known, and take at most `limit`. Nothing takes no
    /// time.
    pub(crate) fn are_within(&self, size: StepSize, limit: Duration) -> bool {
        let (tokens, passes) = Self::place(size);
        let known = self.0[tokens][passes];
        !limit.is_zero() && known.is_some_and(|known| known <= limit)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prelude_core::{
        Capacity, Generate, Normalise, PromptTree, RequestId, Timestamp, TokenHead,
    };
    use prelude_sched::{Scheduler, SchedulerConfig};

    use super::*;

    fn size(tokens: usize, passes: usize) -> StepSize {
        StepSize { tokens, passes }
    }

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn longer_times_are_believed_at_once_and_shorter_ones_by_and_by() {
        let mut times = StepTimes::default();
        let check = |times: &StepTimes, tokens, within: Duration, expected| {
            assert_eq!(
                times.are_within(size(tokens, 1), within),
                expected,
                "{tokens}, {within:?}"
            );
        };
        check(&times, 16, Duration::MAX, false);
        times.note(size(16, 1), 100 * US);
        // Of the same size, and not.
        check(&times, 31, 100 * US, true);
        check(&times, 32, 100 * US, false);
        check(&times, 15, 100 * US, false);
        times.note(size(20, 1), 800 * US);
        check(&times, 16, 799 * US, false);
        times.note(size(20, 1), 100 * US);
        check(&times, 16, 700 * US, true);
        check(&times, 16, 699 * US, false);
        for _ in 0..20 {
            times.note(size(16, 1), 100 * US);
        }
        check(&times, 16, 100 * US, true);
    }

    #[test]
    fn a_short_prompt_with_much_to_draw_is_no_short_step() {
        let mut times = StepTimes::default();
        times.note(size(3, 1), 100 * US);
        assert!(times.are_within(size(2, 1), 100 * US));
        assert!(!times.are_within(size(2, 128), Duration::MAX));
        times.note(size(3, 128), 20_000 * US);
        assert!(!times.are_within(size(2, 128), 500 * US));
        assert!(times.are_within(size(2, 1), 500 * US));
    }

    /// A request has the size of the step that answers it.
    #[test]
    fn requests_and_their_steps_have_one_size() {
        let check = |head: Head, passes: usize| {
            let tree = PromptTree::single(vec![1, 2, 3]);
            let rows = vec![RowSpec {
                node: tree.last_node(),
                head,
            }];
            let request = Request::new(RequestId(0), tree, rows, Timestamp::ZERO);
            assert_eq!(StepSize::of_request(&request), size(3, passes));
            let capacity = Capacity {
                block_size: 16,
                num_blocks: 8,
                max_step_tokens: 64,
                max_context_len: 64,
                vocab_size: 10,
                pipeline_depth: 1,
            };
            let mut scheduler = Scheduler::new(SchedulerConfig::default(), capacity).unwrap();
            scheduler.submit(Timestamp::ZERO, request).unwrap();
            let (_, batch) = scheduler
                .next_batch(Timestamp::ZERO, &mut Vec::new())
                .unwrap();
            assert_eq!(StepSize::of_batch(batch.parts().0), size(3, passes));
        };
        check(Head::Classify, 1);
        check(Head::Tokens(TokenHead::Classify), 3);
        let positions = 1..3;
        check(Head::PromptLogprobs { positions, top: 5 }, 2);
        check(
            Head::Generate(Generate {
                max_tokens: 1,
                n: 70,
                sampling: Arc::default(),
                top_logprobs: None,
                constraint: None,
            }),
            70,
        );
        check(
            Head::LabelScores {
                labels: vec![1, 2].into(),
                normalise: Normalise::OverLabels,
            },
            1,
        );
    }

    #[test]
    fn no_time_is_never() {
        let mut times = StepTimes::default();
        times.note(size(1, 1), Duration::ZERO);
        assert!(!times.are_within(size(1, 1), Duration::ZERO));
        // Larger than any step.
        times.note(size(usize::MAX, 1), US);
        assert!(times.are_within(size(1 << 40, 1), US));
    }
}
