//! The output that a row computes, and the positions of its prompt that it reads.

use std::{ops::Range, sync::Arc};

use prelude_core::{Attention, Head, OutputHead, PenaltyHistory, Pooling, RowOutput, SampleHead};

use crate::prompts::PromptTokens;

/// Returns true if the hidden states of all positions must be computed by one step.
pub(crate) fn is_whole(head: &Head, attention: Attention) -> bool {
    attention == Attention::Full || reads_first(head)
}

/// Returns true if the head makes one vector of hidden states that begin with the first position's.
const fn reads_first(head: &Head) -> bool {
    matches!(
        head,
        Head::Embed {
            pooling: Pooling::First | Pooling::Mean,
            ..
        }
    )
}

/// Returns true if the head reads the hidden states of all positions and makes one vector of them.
const fn pools_all(head: &Head) -> bool {
    matches!(
        head,
        Head::Embed {
            pooling: Pooling::Mean,
            ..
        }
    )
}

/// Returns the number of positions of a prompt of `len` tokens whose hidden states the head reads.
pub(crate) fn num_outputs(head: &Head, len: u32) -> u32 {
    match head {
        Head::PromptLogprobs { positions, .. } => positions.end - positions.start,
        Head::Tokens(_) => len,
        Head::States { positions } => positions.len().try_into().unwrap_or(u32::MAX),
        _ if pools_all(head) => len,
        _ => 1,
    }
}

/// Returns the first position whose hidden state the head needs, for a prompt of `len` tokens.
/// Positions before it may come from the cache.
pub(crate) fn first_needed(head: &Head, len: u32) -> u32 {
    match head {
        Head::PromptLogprobs { positions, .. } => positions.start - 1,
        Head::Tokens(_) => 0,
        Head::States { positions } => positions[0],
        _ if reads_first(head) => 0,
        _ => len - 1,
    }
}

/// Returns the output that a step reads off the positions `computed` of a prompt, if any.
pub(crate) fn output_of(
    head: &Head,
    prompt: &impl PromptTokens,
    computed: &Range<u32>,
    attention: Attention,
) -> Option<(Range<u32>, OutputHead)> {
    let len = prompt.count();
    if let Head::PromptLogprobs { positions, top } = head {
        // The token at position p is scored by the hidden state at p - 1.
        let start = computed.start.max(positions.start - 1);
        let end = computed.end.min(positions.end - 1);
        return (start < end).then(|| {
            let targets = prompt.copy(start + 1..end + 1);
            (start..end, OutputHead::Logprobs { targets, top: *top })
        });
    }
    if let Head::Tokens(head) = head {
        // The range is empty if this chunk only computes again what was answered before.
        let answers = !computed.is_empty();
        return answers.then(|| (computed.clone(), OutputHead::Tokens(*head)));
    }
    if let Head::States { positions } = head {
        return states_of(positions, computed);
    }
    if computed.end < len {
        return None;
    }
    let last = len - 1..len;
    Some(match head {
        Head::Generate(g) => {
            let history = g.sampling.needs_history().then(|| PenaltyHistory {
                prompt: prompt.to_whole(),
                output: Vec::new(),
            });
            let sample = SampleHead {
                sampling: g.sampling.clone(),
                choice: 0,
                draws: g.n,
                output_position: 0,
                top_logprobs: g.top_logprobs,
                history,
                mask: g.constraint.as_ref().map(|c| c.start().next()),
            };
            (last, OutputHead::Sample(sample))
        }
        Head::LabelScores { labels, normalise } => (
            last,
            OutputHead::LabelScores {
                labels: labels.clone(),
                normalise: *normalise,
            },
        ),
        Head::Embed {
            pooling,
            normalise,
            dimensions,
        } => {
            let positions = match pooling {
                Pooling::First => 0..1,
                Pooling::Last => last,
                Pooling::Mean => 0..len,
            };
            let (pooling, normalise, dimensions) = (*pooling, *normalise, *dimensions);
            (
                positions,
                OutputHead::Embed {
                    pooling,
                    normalise,
                    dimensions,
                },
            )
        }
        Head::Classify => match attention {
            Attention::Causal => (last, OutputHead::Classify),
            Attention::Full => (0..1, OutputHead::Classify),
        },
        _ => unreachable!("answered above"),
    })
}

/// Returns the states that a step reads of those at `positions`, if it computes any.
fn states_of(positions: &[u32], computed: &Range<u32>) -> Option<(Range<u32>, OutputHead)> {
    let at = positions.iter().copied();
    let at: Arc<[u32]> = at.filter(|position| computed.contains(position)).collect();
    let span = *at.first()?..at.last()? + 1;
    Some((span, OutputHead::States(at)))
}

/// Returns whether an executor's answer is of the kind that the head asked for, so that a defective
/// executor fails a row and not the scheduler.
pub(crate) fn answers(head: &Head, output: &RowOutput) -> bool {
    match (head, output) {
        (_, RowOutput::Failed(_))
        | (Head::Generate(_), RowOutput::NoToken)
        | (Head::LabelScores { .. }, RowOutput::LabelScores(_))
        | (Head::PromptLogprobs { .. }, RowOutput::Logprobs { .. })
        | (Head::Embed { .. }, RowOutput::Embedding(_))
        | (Head::Classify, RowOutput::Classes(_))
        | (Head::Tokens(_) | Head::States { .. }, RowOutput::Tokens { .. }) => true,
        (Head::Generate(g), RowOutput::Sampled(tokens)) => tokens.len() == g.n as usize,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use prelude_core::{TokenHead, TokenId};

    use super::*;

    fn logprobs(positions: Range<u32>) -> Head {
        Head::PromptLogprobs { positions, top: 0 }
    }

    #[test]
    fn scored_tokens_are_split_over_chunks() {
        let prompt: Arc<[TokenId]> = Arc::from([10, 11, 12, 13, 14, 15]);
        let check = |scored, computed, expected: Option<(Range<u32>, Vec<TokenId>)>| {
            let got = output_of(&logprobs(scored), &prompt, &computed, Attention::Causal).map(
                |(at, head)| {
                    let OutputHead::Logprobs { targets, .. } = head else {
                        panic!("wrong head")
                    };
                    (at, targets)
                },
            );
            assert_eq!(got, expected);
        };
        check(1..6, 0..6, Some((0..5, vec![11, 12, 13, 14, 15])));
        check(2..5, 0..6, Some((1..4, vec![12, 13, 14])));
        check(2..5, 0..2, Some((1..2, vec![12])));
        check(2..5, 2..6, Some((2..4, vec![13, 14])));
        check(2..3, 2..6, None);
        check(5..6, 0..4, None);
    }

    #[test]
    fn each_chunk_answers_for_its_tokens() {
        let prompt: Arc<[TokenId]> = Arc::from([10, 11, 12, 13]);
        let head = Head::Tokens(TokenHead::Classify);
        assert!(output_of(&head, &prompt, &(2..2), Attention::Causal).is_none());
        for computed in [0..4, 0..2, 2..4] {
            let (positions, head) =
                output_of(&head, &prompt, &computed, Attention::Causal).unwrap();
            assert_eq!(positions, computed);
            assert!(matches!(head, OutputHead::Tokens(TokenHead::Classify)));
        }
    }

    #[test]
    fn states_are_answered_by_the_chunk_that_computes_them() {
        let prompt: Arc<[TokenId]> = Arc::from([10, 11, 12, 13, 14]);
        let head = Head::States {
            positions: Arc::from([1, 3]),
        };
        let check = |computed, expected: Option<(Range<u32>, &[u32])>| {
            let got = output_of(&head, &prompt, &computed, Attention::Causal);
            let got = got.map(|(span, head)| match head {
                OutputHead::States(at) => (span, at.to_vec()),
                other => panic!("{other:?}"),
            });
            assert_eq!(got, expected.map(|(span, at)| (span, at.to_vec())));
        };
        check(0..5, Some((1..4, &[1, 3])));
        check(1..3, Some((1..2, &[1])));
        check(2..4, Some((3..4, &[3])));
        check(4..5, None);
        assert_eq!((num_outputs(&head, 5), first_needed(&head, 5)), (2, 1));
    }

    #[test]
    fn classes_are_read_at_the_first_token_that_sees_all() {
        let prompt: Arc<[TokenId]> = Arc::from([10, 11, 12, 13]);
        let read = |attention| {
            output_of(&Head::Classify, &prompt, &(3..4), attention)
                .unwrap()
                .0
        };
        assert_eq!(read(Attention::Causal), 3..4);
        assert_eq!(read(Attention::Full), 0..1);
        assert!(is_whole(&Head::Classify, Attention::Full));
        assert!(!is_whole(&Head::Classify, Attention::Causal));
    }

    #[test]
    fn the_cache_may_serve_what_the_head_does_not_need() {
        assert_eq!(first_needed(&Head::Classify, 9), 8);
        assert_eq!(first_needed(&logprobs(3..5), 9), 2);
        let embed = |pooling| Head::Embed {
            pooling,
            normalise: false,
            dimensions: None,
        };
        assert_eq!(first_needed(&embed(Pooling::Last), 9), 8);
        assert_eq!(first_needed(&embed(Pooling::Mean), 9), 0);
        assert_eq!(first_needed(&embed(Pooling::First), 9), 0);
        assert_eq!(first_needed(&Head::Tokens(TokenHead::Classify), 9), 0);
    }
}
