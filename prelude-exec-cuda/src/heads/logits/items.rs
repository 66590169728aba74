//! Uses of full rows of logits.

use std::collections::BTreeMap;

use prelude_core::{OutputHead, SampleHead, TokenId};
use prelude_models::step::StepLayout;

/// A use of a row of logits.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub(super) row: usize,
    pub(super) output: u32,
    pub(super) want: Want<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Want<'a> {
    Sample(&'a SampleHead),
    Score { target: TokenId, top: u32 },
}

/// Returns the rank of each position of a row among its positions sorted by output.
pub(super) fn by_output(outputs: &[u32]) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..outputs.len()).collect();
    sorted.sort_by_key(|&i| outputs[i]);
    let mut order = vec![0; outputs.len()];
    for (at, i) in sorted.into_iter().enumerate() {
        order[i] = at;
    }
    order
}

/// Returns every use of a full row of logits.
pub(super) fn items(layout: &StepLayout) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    for (row, planned) in layout.rows.iter().enumerate() {
        if planned.refused.is_some() {
            continue;
        }
        let outputs = layout.outputs_of(planned);
        match &planned.head {
            OutputHead::Sample(head) => items.push(Item {
                row,
                output: outputs[0],
                want: Want::Sample(head),
            }),
            OutputHead::Logprobs { targets, top } => {
                let scores = outputs.iter().zip(targets).map(|(&output, &target)| Item {
                    row,
                    output,
                    want: Want::Score { target, top: *top },
                });
                items.extend(scores);
            }
            OutputHead::LabelScores { .. }
            | OutputHead::Embed { .. }
            | OutputHead::Classify
            | OutputHead::Tokens(_)
            | OutputHead::States(_) => {}
        }
    }
    items
}

/// Returns true if penalties, bias or masks change any logit.
pub(super) fn changes(head: &SampleHead) -> bool {
    let params = &head.sampling;
    head.history.is_some()
        || !params.logit_bias.is_empty()
        || params.allowed_token_ids.is_some()
        || head.mask.is_some()
        || head.masks_stops() && !params.stop_token_ids.is_empty()
}

/// Past tokens and how often each was put out, one after the other, of each row that has a past.
pub(in crate::heads) type Seen = BTreeMap<usize, Vec<u32>>;

/// Returns [`Seen`] of a step.
pub(in crate::heads) fn seen(layout: &StepLayout) -> Seen {
    let mut all = Seen::new();
    for item in items(layout) {
        let Want::Sample(SampleHead {
            history: Some(history),
            ..
        }) = item.want
        else {
            continue;
        };
        let mut seen: BTreeMap<TokenId, u32> = BTreeMap::new();
        for &id in &*history.prompt {
            seen.entry(id).or_default();
        }
        for &id in &history.output {
            *seen.entry(id).or_default() += 1;
        }
        let pairs = seen.into_iter().flat_map(|(id, n)| [id, n]);
        all.insert(item.row, pairs.collect());
    }
    all
}

/// Identifies a list by its address: rows of one request share a list, which is sent once.
pub(super) fn identity(list: &[TokenId]) -> (usize, usize) {
    (list.as_ptr().addr(), list.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_found_among_outputs() {
        assert_eq!(by_output(&[7, 2, 9]), [1, 0, 2]);
        assert_eq!(by_output(&[]), [0; 0]);
    }
}
