//! The choice of rows for whose lists the step's metadata has room.
//!
//! Callers decide how long lists of labels, positions, biases, allowed and masked tokens are, and
//! a step holds many callers' rows. Rows with short lists go first, so that one caller's long one
//! costs no other its place; those that do not fit fail alone.

use std::collections::BTreeSet;

use prelude_core::{Normalise, OutputHead, TokenHead, TokenId};
use prelude_kernels::families::{AdjustRow, LogprobRow, PoolRow, SampleRow};
use prelude_models::step::{StepLayout, StepRow};

use super::{
    NO_LIST_ROOM, labels, logits,
    masks::{AllMasks, Masks},
};
use crate::memory::metadata::Metadata;

/// Bytes of an id, an index or a count.
const WORD: usize = size_of::<u32>();

/// The bytes that a row takes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Need<'a> {
    /// Bytes with a list that the row may share.
    all: usize,
    /// Bytes without that list.
    own: usize,
    row: usize,
    /// The allowed tokens by their list: rows of one request share a list, which is sent once.
    shared: Option<(usize, &'a [TokenId])>,
}

/// Refuses rows that do not fit `room` bytes. `seen`: see [`logits::seen`]; `group_rows`: rows of
/// logits that are in memory together.
pub(super) fn refuse(
    layout: &mut StepLayout,
    seen: &logits::Seen,
    masks: &AllMasks,
    room: usize,
    group_rows: usize,
) {
    let refused = refused(layout, seen, masks, room, group_rows);
    for row in refused {
        layout.rows[row].refused = Some(NO_LIST_ROOM);
    }
}

fn refused(
    layout: &StepLayout,
    seen: &logits::Seen,
    masks: &AllMasks,
    room: usize,
    group_rows: usize,
) -> Vec<usize> {
    let answered = layout.rows.iter().enumerate();
    let answered = answered.filter(|(_, row)| row.refused.is_none());
    let mut needs: Vec<_> = answered
        .map(|(i, row)| need(layout, i, row, seen, masks))
        .collect();
    needs.sort_unstable();
    let mut room = room.saturating_sub(padding(layout, group_rows));
    let mut sent = BTreeSet::new();
    let mut refused = Vec::new();
    for need in needs {
        let list = need.shared.map(|(at, list)| (at, list.len()));
        let is_there = list.is_some_and(|list| sent.contains(&list));
        let bytes = if is_there { need.own } else { need.all };
        match room.checked_sub(bytes) {
            Some(left) => {
                room = left;
                sent.extend(list);
            }
            None => refused.push(need.row),
        }
    }
    refused
}

/// Returns the most bytes that a row's part of every array takes.
fn need<'a>(
    layout: &StepLayout,
    index: usize,
    row: &StepRow,
    seen: &logits::Seen,
    masks: &'a AllMasks,
) -> Need<'a> {
    let outputs = layout.outputs_of(row).len();
    let mut shared = None;
    let own = match &row.head {
        // Products behind the pooling take a second row and an index.
        OutputHead::Embed { .. } => 2 * size_of::<PoolRow>() + WORD * (outputs + 1),
        OutputHead::Tokens(TokenHead::Embed { .. }) | OutputHead::States(_) => {
            (size_of::<PoolRow>() + WORD) * outputs
        }
        OutputHead::Classify | OutputHead::Tokens(TokenHead::Classify) => WORD * outputs,
        // A state and an id for each product.
        OutputHead::LabelScores {
            labels,
            normalise: Normalise::OverLabels,
        } => 2 * WORD * labels.len(),
        // The state; for each label its id, its row and its place.
        OutputHead::LabelScores {
            labels,
            normalise: Normalise::OverVocab,
        } => WORD + 3 * WORD * labels.len(),
        OutputHead::Logprobs { .. } => outputs * (2 * WORD + size_of::<LogprobRow>()),
        OutputHead::Sample(head) => {
            let params = &*head.sampling;
            let Masks { allowed, masked } = &masks[&index];
            let list = allowed.as_deref();
            shared = list.map(|list| (list.as_ptr().addr(), list));
            let words =
                seen.get(&index).map_or(0, Vec::len) + 2 * params.logit_bias.len() + masked.len();
            let rows = size_of::<AdjustRow>() + size_of::<SampleRow>() + size_of::<LogprobRow>();
            WORD + rows + WORD * words
        }
    };
    Need {
        all: own + WORD * shared.map_or(0, |(_, list)| list.len()),
        own,
        row: index,
        shared,
    }
}

/// Returns the most bytes between arrays.
fn padding(layout: &StepLayout, group_rows: usize) -> usize {
    let (mut over_vocab, mut of_logits) = (0usize, 0usize);
    for row in &layout.rows {
        match &row.head {
            OutputHead::LabelScores {
                normalise: Normalise::OverVocab,
                ..
            } => over_vocab += 1,
            OutputHead::Sample(_) | OutputHead::Logprobs { .. } => {
                of_logits += layout.outputs_of(row).len();
            }
            _ => {}
        }
    }
    // A group ends where its rows of logits, or the changed copies, would be too many.
    let groups = 2 * of_logits / group_rows.max(1) + 1;
    let arrays = 10 + 4 * over_vocab.div_ceil(labels::GROUP_ROWS) + 6 * groups + 4;
    arrays * Metadata::PADDING
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prelude_core::{
        BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor as _, ForwardBatch, Pooling,
        RowOutput, SampleHead, SamplingParams, SeqId, StepId, TokenSource,
    };
    use prelude_models::conformance::batches;

    use super::{super::NO_ROOM, *};
    use crate::{
        CudaConfig, CudaExecutor,
        testing::{checkpoint, small},
    };

    /// Returns why rows are refused, with 40 KiB of metadata. The step itself must run.
    fn refusals(batch: ForwardBatch) -> Vec<Option<&'static str>> {
        let config = CudaConfig {
            metadata_bytes: 40 << 10,
            ..small()
        };
        let (mut executor, _) = CudaExecutor::recording(&checkpoint("demo-lm"), &config).unwrap();
        executor.submit(StepId(0), batch).unwrap();
        executor
            .plan()
            .layout
            .rows
            .iter()
            .map(|row| row.refused)
            .collect()
    }

    fn sampled(sampling: &[&Arc<SamplingParams>]) -> ForwardBatch {
        let mut batch = DecodeBatch::EMPTY;
        for (i, sampling) in (0..).zip(sampling) {
            batch.block_ids.push(BlockId(i));
            batch.rows.push(DecodeRow {
                seq: SeqId(u64::from(i)),
                token: TokenSource::Known(7),
                context_len: 3,
                blocks: BlockSpan { start: i, len: 1 },
                sample: SampleHead {
                    sampling: Arc::clone(sampling),
                    choice: 0,
                    draws: 1,
                    output_position: 0,
                    top_logprobs: None,
                    history: None,
                    mask: None,
                },
            });
        }
        ForwardBatch::Decode(batch)
    }

    /// Returns one prompt of 100 tokens that all heads read.
    fn prompt(heads: impl IntoIterator<Item = (std::ops::Range<u32>, OutputHead)>) -> ForwardBatch {
        let tokens: Vec<u32> = (0..100).collect();
        ForwardBatch::OneShot(batches::prompt(&tokens, heads.into_iter().collect()))
    }

    fn labels(n: u32, normalise: Normalise) -> (std::ops::Range<u32>, OutputHead) {
        let labels = (0..n).collect();
        (99..100, OutputHead::LabelScores { labels, normalise })
    }

    fn biased(n: u32) -> Arc<SamplingParams> {
        Arc::new(SamplingParams {
            logit_bias: (0..n).map(|id| (id, 1.0)).collect(),
            ..SamplingParams::default()
        })
    }

    #[test]
    fn long_lists_cost_no_other_row_its_place() {
        // 8 bytes an entry: one list of 4096 fits beside short ones, two do not.
        let (long, short) = (biased(4096), biased(20));
        let found = refusals(sampled(&[&long, &short, &long, &short]));
        assert_eq!((found[1], found[3]), (None, None));
        assert_eq!(
            [found[0], found[2]].iter().flatten().count(),
            1,
            "{found:?}"
        );
        assert!(found.contains(&Some(NO_LIST_ROOM)));
    }

    #[test]
    fn a_list_of_allowed_tokens_is_sent_once() {
        let allowed = |n| {
            Arc::new(SamplingParams {
                allowed_token_ids: Some((0..n).collect()),
                ..SamplingParams::default()
            })
        };
        // 16 KiB each.
        let (one, two, three) = (allowed(4096), allowed(4096), allowed(4096));
        assert_eq!(refusals(sampled(&[&one; 9])), [None; 9]);
        assert_eq!(refusals(sampled(&[&one, &two, &two, &one])), [None; 4]);
        let found = refusals(sampled(&[&one, &two, &three]));
        assert_eq!(found.iter().flatten().count(), 1, "{found:?}");
    }

    #[test]
    fn long_label_lists_fail_alone() {
        use Normalise::{OverLabels, OverVocab};
        // 48 KiB: more than there is.
        let found = refusals(prompt([labels(3, OverVocab), labels(4096, OverVocab)]));
        assert_eq!(found, [None, Some(NO_LIST_ROOM)]);
        // 32 KiB each: one fits, and so do those with few labels.
        let rows = [
            labels(4096, OverLabels),
            labels(3, OverVocab),
            labels(4096, OverLabels),
            labels(3, OverLabels),
        ];
        let found = refusals(prompt(rows));
        assert_eq!((found[1], found[3]), (None, None), "{found:?}");
        assert_eq!(found.iter().flatten().count(), 1, "{found:?}");
    }

    #[test]
    fn labels_without_room_for_results_fail_alone() {
        let config = CudaConfig {
            results_bytes: 4 << 10,
            ..small()
        };
        for normalise in [Normalise::OverLabels, Normalise::OverVocab] {
            let (mut executor, _) =
                CudaExecutor::recording(&checkpoint("demo-lm"), &config).unwrap();
            let rows = [3, 2000, 900, 4].map(|n| labels(n, normalise));
            executor.submit(StepId(0), prompt(rows)).unwrap();
            let refused = executor.plan().layout.rows.iter().map(|row| row.refused);
            let refused: Vec<_> = refused.collect();
            assert_eq!(refused, [None, Some(NO_ROOM), None, None], "{normalise:?}");
            let rows = executor.collect(StepId(0)).unwrap().oneshot;
            assert_eq!(rows[1], RowOutput::NoRoom(NO_ROOM));
            assert!(rows.iter().all(|row| !matches!(row, RowOutput::Failed(_))));
        }
    }

    #[test]
    fn many_long_means_fail_alone() {
        let mean = OutputHead::Embed {
            pooling: Pooling::Mean,
            normalise: true,
            dimensions: None,
        };
        // 400 bytes of positions each: not all of 200 fit, and one that reads one position does.
        let rows = std::iter::repeat_n((0..100, mean.clone()), 200);
        let found = refusals(prompt(rows.chain([(99..100, mean)])));
        let refused = found.iter().flatten().count();
        assert!((80..180).contains(&refused), "{refused}");
        assert_eq!(found[200], None);
    }
    /// A row gets this room whatever the other rows of the step ask for.
    #[test]
    fn a_result_of_each_token_has_room() {
        let config = CudaConfig {
            results_bytes: 4 << 10,
            ..small()
        };
        for (model, head) in [
            (
                "rand-embed",
                TokenHead::Embed {
                    normalise: true,
                    dimensions: None,
                },
            ),
            ("demo-classifier", TokenHead::Classify),
        ] {
            let (mut executor, _) = CudaExecutor::recording(&checkpoint(model), &config).unwrap();
            let rows = (0..20).map(|i| (i..100, OutputHead::Tokens(head)));
            executor.submit(StepId(0), prompt(rows)).unwrap();
            let refused = executor
                .plan()
                .layout
                .rows
                .iter()
                .filter_map(|row| row.refused);
            assert_eq!(refused.count(), 0, "{model}");
        }
    }
}
