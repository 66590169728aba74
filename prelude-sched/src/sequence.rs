//! Work that outlives a step: a generation, or a one-shot prompt computed in chunks.

use std::{ops::Range, sync::Arc, time::Duration};

use prelude_core::{
    BlockId, Generate, MatchState, Matcher, PenaltyHistory, RequestId, SampleHead, SeqId, StepId,
    Timestamp, TokenId, TokenMask, TokenSource,
};
use prelude_kv::{BlockHash, KvCache};

use crate::leader::{Held, Leaders};
use crate::length::length_of;

/// A sequence's progress and the blocks it holds.
///
/// ```text
/// positions  0 ....... computed ....... next ....... target
///            | in blocks, by | in blocks, by  | not planned
///            | complete steps| steps in flight|
/// ```
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) request: RequestId,
    pub(crate) row: u32,
    pub(crate) choice: u32,
    pub(crate) job: Job,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) prompt: Arc<[TokenId]>,
    pub(crate) output: Vec<TokenId>,
    pub(crate) state: SeqState,
    /// Grows with every preemption: results of steps planned before it are stale.
    pub(crate) epoch: u32,
    /// Smaller was admitted earlier; kept over preemptions.
    pub(crate) seniority: u64,
    /// Block table of positions from 0.
    pub(crate) blocks: Vec<BlockId>,
    /// Leading blocks that are in the trie.
    published: usize,
    /// Positions computed by completed steps.
    pub(crate) computed: u32,
    /// Positions before this one can serve a later row of its kind from the cache.
    reusable: u32,
    /// Hashes of the blocks that others may wait for, and the number of the first one's block.
    leading: Vec<BlockHash>,
    leading_from: usize,
    /// Decode rows in flight, and the step of the last one.
    pub(crate) in_flight: u32,
    pub(crate) last_step: StepId,
    /// The last step that has work of the sequence.
    pub(crate) planned_in: Option<StepId>,
    /// The time at which the sequence was admitted, or a chunk of its prompt was last planned.
    pub(crate) advanced: Timestamp,
    pub(crate) held: Held,
    /// The state of the sequence's constraint, from the sequence's admission on.
    constrained: Option<Constrained>,
    /// True if the step being planned leaves the sequence out: its next token mask is far from
    /// known.
    pub(crate) is_skipped: bool,
}

/// The state of a constrained generation.
#[derive(Debug)]
struct Constrained {
    matcher: Box<dyn Matcher>,
    mask: Arc<dyn TokenMask>,
    /// The time at which the mask was asked for.
    asked: Timestamp,
}

/// The wait of a sequence for its token mask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenWait {
    /// The time since the mask was asked for.
    pub(crate) since: Duration,
    /// The time until the mask is there, about.
    pub(crate) due: Duration,
}

/// The work of a sequence once its prompt is computed.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// The sequence generates.
    Decode(Generate),
    /// The sequence's row is answered: one-shot work too long for one step. Holds the position
    /// before which prompt tokens are scored already, if the row scores them.
    Chunked {
        /// First position whose hidden state is still needed.
        needed: u32,
    },
}

/// The state of a sequence. A finished one is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeqState {
    /// The sequence holds no blocks.
    Waiting,
    /// Positions before `next` are planned; it holds their blocks.
    Prefilling {
        /// First position not planned.
        next: u32,
    },
    /// The sequence's prompt is computed and each row makes one more token.
    Decoding,
}

impl Sequence {
    pub(crate) fn new(
        request: RequestId,
        row: u32,
        choice: u32,
        job: Job,
        salt: Option<Arc<str>>,
        prompt: Arc<[TokenId]>,
        seniority: u64,
    ) -> Self {
        // The last needed token is always computed, but a prompt that continues behind it reads it
        // from the cache.
        let reusable = match job {
            Job::Decode(_) => u32::MAX,
            Job::Chunked { needed } => needed + 1,
        };
        Self {
            request,
            row,
            choice,
            job,
            salt,
            prompt,
            output: Vec::new(),
            state: SeqState::Waiting,
            epoch: 0,
            seniority,
            blocks: Vec::new(),
            published: 0,
            computed: 0,
            reusable,
            leading: Vec::new(),
            leading_from: 0,
            in_flight: 0,
            last_step: StepId(0),
            planned_in: None,
            advanced: Timestamp::ZERO,
            held: Held::default(),
            constrained: None,
            is_skipped: false,
        }
    }

    /// Starts to match the constraint, if there is one and it was not started. The first token mask
    /// can be computed beside the prompt from here on.
    pub(crate) fn start_constraint(&mut self, now: Timestamp) {
        if let (None, Job::Decode(generate)) = (&self.constrained, &self.job)
            && let Some(constraint) = &generate.constraint
        {
            let mut matcher = constraint.start();
            let mask = matcher.next();
            self.constrained = Some(Constrained {
                matcher,
                mask,
                asked: now,
            });
        }
    }

    /// Advances the constraint by a token and returns whether the text is complete.
    pub(crate) fn advance_constraint(&mut self, token: TokenId) -> MatchState {
        let constrained = self.constrained.as_mut();
        constrained.map_or(MatchState::Open, |c| c.matcher.take(token))
    }

    /// Asks for the next token mask, which is computed beside the work of other rows.
    pub(crate) fn request_mask(&mut self, now: Timestamp) {
        if let Some(constrained) = &mut self.constrained {
            constrained.mask = constrained.matcher.next();
            constrained.asked = now;
        }
    }

    /// Returns how long the sequence waits for its token mask, if that is longer than `hidden`.
    pub(crate) fn mask_wait(&self, now: Timestamp, hidden: Duration) -> Option<TokenWait> {
        let Constrained { mask, asked, .. } = self.constrained.as_ref()?;
        let due = mask.due_in();
        let since = now.saturating_since(*asked);
        (due > hidden).then_some(TokenWait { since, due })
    }

    /// Returns the number of known tokens: prompt and output.
    pub(crate) fn len(&self) -> u32 {
        length_of(self.prompt.len() + self.output.len())
    }

    /// Returns whether the sequence was preempted since it was admitted first.
    pub(crate) const fn was_admitted(&self) -> bool {
        self.epoch > 0
    }

    pub(crate) const fn is_decode(&self) -> bool {
        matches!(self.job, Job::Decode(_))
    }

    /// Appends the known tokens at `positions` to `out`.
    pub(crate) fn tokens_into(&self, positions: &Range<usize>, out: &mut Vec<TokenId>) {
        let prompt = self.prompt.len();
        let cut = |r: Range<usize>, len: usize| r.start.min(len)..r.end.min(len);
        out.extend_from_slice(&self.prompt[cut(positions.clone(), prompt)]);
        let after = positions.start.saturating_sub(prompt)..positions.end.saturating_sub(prompt);
        out.extend_from_slice(&self.output[cut(after, self.output.len())]);
    }

    /// Returns the number of known tokens that have to be computed and are in no step yet.
    pub(crate) fn unplanned(&self) -> u32 {
        match self.state {
            SeqState::Waiting => self.len(),
            SeqState::Prefilling { next } => self.len() - next,
            SeqState::Decoding => 0,
        }
    }

    /// Returns the begin of the next chunk of its prompt, if one is left for the step being
    /// planned.
    pub(crate) fn next_chunk(&self) -> Option<u32> {
        match self.state {
            SeqState::Prefilling { next } if next < self.chunk_limit() => Some(next),
            _ => None,
        }
    }

    /// Returns the position at which chunks of the step being planned have to end: the last token
    /// is sampled from.
    pub(crate) fn chunk_limit(&self) -> u32 {
        self.len() - u32::from(self.is_skipped)
    }

    /// Returns all that must be computed before the next row: after a preemption the output so far
    /// is part of the prompt.
    pub(crate) fn target_tokens(&self) -> Arc<[TokenId]> {
        if self.output.is_empty() {
            return self.prompt.clone();
        }
        let mut tokens = Vec::new();
        self.tokens_into(&(0..self.len() as usize), &mut tokens);
        tokens.into()
    }

    /// Returns the most tokens that may come from the cache: the last must be computed, and so must
    /// what the row still reads hidden states of.
    pub(crate) fn match_limit(&self) -> u32 {
        match self.job {
            Job::Decode(_) => self.len() - 1,
            Job::Chunked { needed } => needed.min(self.len() - 1),
        }
    }

    /// Takes over a match, and announces the blocks it will compute to others if `leads`.
    pub(crate) fn admit(
        &mut self,
        blocks: Vec<BlockId>,
        hash: BlockHash,
        tokens: &[TokenId],
        block_size: usize,
        leads: bool,
        leaders: &mut Leaders,
    ) {
        self.published = blocks.len();
        self.leading_from = blocks.len();
        let start = blocks.len() * block_size;
        self.blocks = blocks;
        self.computed = length_of(start);
        self.state = SeqState::Prefilling {
            next: self.computed,
        };
        if leads {
            let end = tokens.len().min(self.reusable as usize).max(start);
            self.leading = hash.blocks(&tokens[start..end], block_size).collect();
            leaders.add_all(&self.leading);
        }
    }

    /// Publishes the whole blocks that completed steps have computed and that can serve others.
    /// Returns how many tokens the cache did not have before.
    pub(crate) fn publish(&mut self, cache: &mut KvCache, leaders: &mut Leaders) -> u64 {
        self.publish_until(self.reusable, cache, leaders)
    }

    /// Does what [`Self::publish`] does, with blocks that only this sequence can use when it
    /// resumes.
    pub(crate) fn publish_all(&mut self, cache: &mut KvCache, leaders: &mut Leaders) -> u64 {
        self.publish_until(u32::MAX, cache, leaders)
    }

    fn publish_until(&mut self, end: u32, cache: &mut KvCache, leaders: &mut Leaders) -> u64 {
        let before = cache.published_blocks();
        let block_size = cache.block_size();
        let whole = (self.computed.min(end) as usize / block_size).min(self.blocks.len());
        if whole > self.published {
            let mut tokens = Vec::new();
            self.tokens_into(
                &(self.published * block_size..whole * block_size),
                &mut tokens,
            );
            let parent = self.published.checked_sub(1).map(|last| self.blocks[last]);
            let new = &mut self.blocks[self.published..whole];
            self.published += cache.publish(self.salt.as_ref(), parent, &tokens, new);
        }
        // Requests that wait for these blocks find them now, or never will (a hash collision).
        let done = whole
            .saturating_sub(self.leading_from)
            .min(self.leading.len());
        self.leading
            .drain(..done)
            .for_each(|hash| leaders.remove(hash));
        self.leading_from += done;
        (cache.published_blocks() - before) * block_size as u64
    }

    /// Gives all blocks back.
    pub(crate) fn vacate(&mut self, cache: &mut KvCache, leaders: &mut Leaders) {
        self.leading.drain(..).for_each(|hash| leaders.remove(hash));
        cache.release_all(std::mem::take(&mut self.blocks));
        self.published = 0;
        self.computed = 0;
        self.in_flight = 0;
        self.state = SeqState::Waiting;
        self.epoch += 1;
    }

    /// Returns whether a decode row can be planned: the token it runs is known or will be when the
    /// row runs, and it is not certain to be the last.
    pub(crate) fn can_decode(&self, depth: u32) -> bool {
        let Job::Decode(generate) = &self.job else {
            return false;
        };
        let made = length_of(self.output.len()).saturating_add(self.in_flight);
        self.state == SeqState::Decoding
            && !self.is_skipped
            && (self.in_flight == 0
                || (self.in_flight < depth
                    && !generate.sampling.needs_history()
                    && generate.constraint.is_none()
                    && made < generate.max_tokens))
    }

    /// Returns the position of the next decode row's token.
    pub(crate) fn decode_position(&self) -> u32 {
        self.len() - 1 + self.in_flight
    }

    pub(crate) fn decode_source(&self) -> TokenSource {
        if self.in_flight > 0 {
            TokenSource::Sampled(self.last_step)
        } else {
            let last = self.output.last().or_else(|| self.prompt.last());
            TokenSource::Known(*last.expect("a prompt is not empty"))
        }
    }

    /// Returns the rules by which the next token is sampled.
    pub(crate) fn sample_head(&self, generate: &Generate) -> SampleHead {
        let history = generate.sampling.needs_history().then(|| PenaltyHistory {
            prompt: self.prompt.clone(),
            output: self.output.clone(),
        });
        SampleHead {
            sampling: generate.sampling.clone(),
            choice: self.choice,
            draws: 1,
            output_position: length_of(self.output.len()) + self.in_flight,
            top_logprobs: generate.top_logprobs,
            history,
            mask: self.constrained.as_ref().map(|c| Arc::clone(&c.mask)),
        }
    }

    #[cfg(test)]
    pub(crate) const fn published(&self) -> usize {
        self.published
    }
}

/// A sequence as a step remembers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeqTag {
    pub(crate) seq: SeqId,
    pub(crate) epoch: u32,
}
