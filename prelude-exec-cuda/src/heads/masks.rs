//! Tokens that a sampling row may choose, as the two lists that the kernel takes: ids that are
//! allowed, and ids that are not.
//!
//! A constraint's set is sent as whichever list is shorter: inside a string of JSON nearly every
//! token may come, elsewhere a handful.

use std::{collections::BTreeMap, sync::Arc};

use prelude_core::{OutputHead, SampleHead, TokenId};
use prelude_models::step::{StepLayout, StepRow};

/// The lists of one row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Masks {
    /// The only ids that may be chosen, if present.
    pub(super) allowed: Option<Arc<[TokenId]>>,
    /// Ids that must not be chosen.
    pub(super) masked: Arc<[TokenId]>,
}

/// The lists of a step's sampling rows, by row.
pub(super) type AllMasks = BTreeMap<usize, Masks>;

/// Returns [`AllMasks`] of a step, for a vocabulary of `vocab` ids.
pub(super) fn masks(layout: &StepLayout, vocab: usize) -> AllMasks {
    let rows = layout.rows.iter().enumerate();
    let answered = rows.filter(|(_, row)| row.refused.is_none());
    let of = |(at, row): (usize, &StepRow)| match &row.head {
        OutputHead::Sample(head) => Some((at, Masks::new(head, vocab))),
        _ => None,
    };
    answered.filter_map(of).collect()
}

impl Masks {
    /// Waits for the constraint's tokens, if the row has one.
    fn new(head: &SampleHead, vocab: usize) -> Self {
        let params = &*head.sampling;
        let stops: Arc<[TokenId]> = match head.masks_stops() {
            true => Arc::clone(&params.stop_token_ids),
            false => Arc::from([]),
        };
        let listed = params.allowed_token_ids.as_ref();
        let with = |allowed, masked| Self { allowed, masked };
        let Some(mask) = &head.mask else {
            return with(listed.map(Arc::clone), stops);
        };
        let Some(set) = mask.wait() else {
            return with(Some(Arc::from([])), stops);
        };
        let ids = 0..u32::try_from(vocab).expect("token ids are 32-bit numbers");
        match listed {
            Some(list) => {
                let both = list.iter().copied().filter(|&id| set.contains(id));
                with(Some(both.collect()), stops)
            }
            None if 2 * set.len() <= vocab => {
                let inside = set.ids().filter(|id| ids.contains(id));
                with(Some(inside.collect()), stops)
            }
            None => {
                let outside = ids.filter(|&id| !set.contains(id));
                with(None, outside.chain(stops.iter().copied()).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prelude_core::{SamplingParams, TokenMask, TokenSet};

    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl TokenMask for Nothing {
        fn wait(&self) -> Option<&TokenSet> {
            None
        }
    }

    fn head(mask: Option<Arc<dyn TokenMask>>, allowed: Option<&[u32]>) -> SampleHead {
        SampleHead {
            sampling: Arc::new(SamplingParams {
                allowed_token_ids: allowed.map(Arc::from),
                stop_token_ids: Arc::from([7]),
                min_tokens: 1,
                ..SamplingParams::default()
            }),
            choice: 0,
            draws: 1,
            output_position: 0,
            top_logprobs: None,
            history: None,
            mask,
        }
    }

    #[test]
    fn the_shorter_list_is_sent() {
        let check = |head: &SampleHead, allowed: Option<&[u32]>, masked: &[u32]| {
            let masks = Masks::new(head, 10);
            assert_eq!(
                (masks.allowed.as_deref(), &*masks.masked),
                (allowed, masked)
            );
        };
        let set = |ids: &[u32]| -> Option<Arc<dyn TokenMask>> {
            Some(Arc::new(TokenSet::from_ids(ids.iter().copied(), 10)))
        };
        check(&head(None, None), None, &[7]);
        check(&head(None, Some(&[1, 2])), Some(&[1, 2]), &[7]);
        check(&head(set(&[1, 9]), None), Some(&[1, 9]), &[7]);
        check(
            &head(set(&[0, 1, 2, 3, 4, 6, 9]), None),
            None,
            &[5, 7, 8, 7],
        );
        check(
            &head(set(&[0, 1, 2, 3, 4]), Some(&[3, 5])),
            Some(&[3]),
            &[7],
        );
        check(&head(Some(Arc::new(Nothing)), None), Some(&[]), &[7]);
    }
}
