//! The answers of the model that the simulator imagines: a function of the prefix alone.

use std::{ops::Range, sync::Arc};

use prelude_core::{
    Attention, Generate, Head, LabelScores, MatchState, OutputHead, Pooling, PositionLogprobs,
    Request, RowOutput, SampleHead, SampledToken, TokenId,
};

use super::random::mix;
use crate::{FinishReason, row};

/// The state of the imagined model after no tokens.
pub(super) const START: u64 = 0x5eed;

/// Returns the state after one more token.
pub(super) const fn after(state: u64, token: TokenId) -> u64 {
    mix(state, token as u64 + 1)
}

/// Returns the state after all of `tokens`.
pub(super) fn after_all(tokens: &[TokenId]) -> u64 {
    tokens
        .iter()
        .fold(START, |state, &token| after(state, token))
}

/// Returns the output that a head reads off the states at its positions, all in order.
pub(super) fn read_head(
    head: &OutputHead,
    states: &[u64],
    positions: &Range<u32>,
    vocab_size: u32,
) -> RowOutput {
    let last = *states.last().expect("a row has a position");
    // A model now and then computes something that is not finite.
    if mix(last, 0xbad).is_multiple_of(499) {
        return RowOutput::Failed("not finite");
    }
    match head {
        OutputHead::Sample(sample) => {
            let choices = sample.choice..sample.choice + sample.draws;
            let drawn: Option<_> = choices.map(|c| draw(sample, c, last, vocab_size)).collect();
            drawn.map_or(RowOutput::NoToken, RowOutput::Sampled)
        }
        OutputHead::LabelScores { labels, normalise } => RowOutput::LabelScores(LabelScores {
            logits: labels.iter().map(|&l| number(last, u64::from(l))).collect(),
            log_sum_exp: (*normalise == prelude_core::Normalise::OverVocab)
                .then(|| number(last, u64::MAX)),
        }),
        OutputHead::Logprobs { targets, .. } => RowOutput::Logprobs {
            first_position: positions.start + 1,
            entries: targets
                .iter()
                .zip(states)
                .map(|(&token, &state)| PositionLogprobs {
                    token,
                    logprob: number(state, u64::from(token)),
                    rank: 1,
                    top: Vec::new(),
                })
                .collect(),
        },
        OutputHead::Embed { pooling, .. } => RowOutput::Embedding(match pooling {
            Pooling::First => vec![number(states[0], 6)],
            Pooling::Last => vec![number(last, 1)],
            Pooling::Mean => vec![number(states.iter().fold(0, |a, &b| mix(a, b)), 2)],
        }),
        OutputHead::Classify => RowOutput::Classes(vec![number(last, 3), number(last, 4)]),
        OutputHead::Tokens(_) => RowOutput::Tokens {
            first_position: positions.start,
            rows: states.iter().map(|&s| vec![number(s, 5)]).collect(),
        },
        OutputHead::States(at) => RowOutput::Tokens {
            first_position: positions.start,
            rows: { at.iter() }
                .map(|at| vec![number(states[(at - positions.start) as usize], 7)])
                .collect(),
        },
    }
}

fn draw(sample: &SampleHead, choice: u32, state: u64, vocab_size: u32) -> Option<SampledToken> {
    let params = &sample.sampling;
    let counter = (u64::from(choice) << 32) | u64::from(sample.output_position);
    let word = mix(mix(state, params.seed), counter);
    let first = (word % u64::from(vocab_size)) as u32;
    let mask = sample.mask.as_ref().map(|mask| mask.wait());
    let allowed = |token: &u32| {
        !(sample.masks_stops() && params.stop_token_ids.contains(token))
            && mask.is_none_or(|set| set.is_some_and(|set| set.contains(*token)))
    };
    let token = (0..vocab_size)
        .map(|i| (first + i) % vocab_size)
        .find(allowed)?;
    let logprob = sample.top_logprobs.map(|_| number(state, u64::from(token)));
    Some(SampledToken {
        token,
        logprob,
        top: Vec::new(),
    })
}

/// Returns a number that every f32 holds exactly.
fn number(state: u64, salt: u64) -> f32 {
    (mix(state, salt) >> 44) as f32
}

/// Everything that a request is answered, by row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// A generation's choices: tokens, and how each ended (`None`: it failed).
    Choices(Vec<(Vec<SampledToken>, Option<FinishReason>)>),
    /// Any other head's answer, pieces put together.
    Output(RowOutput),
}

/// Runs one request alone, token by token, without blocks, batches or caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Twin {
    /// Ids are below this.
    pub(crate) vocab_size: u32,
    /// The attention of the model.
    pub(crate) attention: Attention,
}

impl Twin {
    /// Returns the answer that every row of a request must get.
    #[must_use]
    pub(crate) fn answers(&self, request: &Request) -> Vec<Answer> {
        request
            .rows
            .iter()
            .map(|spec| {
                let prompt = request.tree.prompt(spec.node);
                match &spec.head {
                    Head::Generate(g) => Answer::Choices(
                        (0..g.n)
                            .map(|choice| self.generate(&prompt, g, choice))
                            .collect(),
                    ),
                    head => Answer::Output(self.read(&prompt, head)),
                }
            })
            .collect()
    }

    fn read(&self, prompt: &[TokenId], head: &Head) -> RowOutput {
        let states: Vec<u64> = prompt
            .iter()
            .scan(START, |state, &token| {
                *state = after(*state, token);
                Some(*state)
            })
            .collect();
        let len = prompt.len() as u32;
        let (positions, head) = row::output_of(
            head,
            &Arc::<[TokenId]>::from(prompt),
            &(0..len),
            self.attention,
        )
        .expect("a whole prompt is answered");
        let states = &states[positions.start as usize..positions.end as usize];
        read_head(&head, states, &positions, self.vocab_size)
    }

    fn generate(
        &self,
        prompt: &[TokenId],
        generate: &Generate,
        choice: u32,
    ) -> (Vec<SampledToken>, Option<FinishReason>) {
        let params = &generate.sampling;
        // A walk of its own for each token.
        let walk_over = |tokens: &[SampledToken]| {
            let mut walk = generate.constraint.as_ref()?.start();
            let progress = tokens.iter().map(|token| walk.take(token.token)).last();
            Some((walk, progress.unwrap_or(MatchState::Open)))
        };
        let mut state = after_all(prompt);
        let mut tokens = Vec::new();
        for output_position in 0..generate.max_tokens {
            let sample = SampleHead {
                sampling: params.clone(),
                choice,
                draws: 1,
                output_position,
                top_logprobs: generate.top_logprobs,
                history: None,
                mask: walk_over(&tokens).map(|(mut walk, _)| walk.next()),
            };
            let last = OutputHead::Sample(sample);
            let token = match read_head(&last, &[state], &(0..1), self.vocab_size) {
                RowOutput::Sampled(mut one) => one.remove(0),
                RowOutput::NoToken => return (tokens, Some(FinishReason::NoToken)),
                _ => return (tokens, None),
            };
            let id = token.token;
            state = after(state, id);
            tokens.push(token);
            if output_position >= params.min_tokens && params.stop_token_ids.contains(&id) {
                return (tokens, Some(FinishReason::Stop { token: id }));
            }
            if let Some((_, MatchState::Complete)) = walk_over(&tokens) {
                return (tokens, Some(FinishReason::Complete));
            }
        }
        (tokens, Some(FinishReason::Length))
    }
}
