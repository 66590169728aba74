//! The consequences of a step's outcome.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use prelude_core::{
    Constraint, ExecutorError, Head, MatchState, RequestId, RowOutput, SampledToken,
    SamplingParams, StepId, StepOutput, Timestamp, TokenId,
};

use super::{Scheduler, Sequences, UnknownStep};
use crate::{
    Event, FinishReason, Outcome, StepTime,
    forest::{After, Kept},
    leader::Held,
    length::length_of,
    request::WaitingRow,
    row,
    sequence::{Job, SeqState, SeqTag, Sequence},
    shares::Waiting,
    step::{RowTag, Step},
};

impl Scheduler {
    /// Takes the outcome of a step and pushes what follows from it, in a deterministic order.
    ///
    /// Steps complete in order of submission; a failed one may complete before older ones (an
    /// executor may refuse it at once). The requests of a failed step end with
    /// [`Outcome::Failed`]; an output that does not match the batch counts as a failure. After
    /// [`ExecutorError::Lost`] every live request fails and no step is in flight any more.
    ///
    /// # Errors
    /// [`UnknownStep`]; nothing happened then.
    pub fn complete(
        &mut self,
        now: Timestamp,
        step: StepId,
        result: Result<StepOutput, ExecutorError>,
        events: &mut Vec<Event>,
    ) -> Result<(), UnknownStep> {
        let at = self
            .in_flight
            .iter()
            .position(|s| s.id == step)
            .ok_or(UnknownStep(step))?;
        if at > 0 && result.is_ok() {
            return Err(UnknownStep(step));
        }
        let step = self
            .in_flight
            .remove(at)
            .expect("`position` found the step");
        if result.is_ok() {
            let took = self.pace.note(step.planned, now, step.mask_wait);
            let waiting = Waiting {
                oneshot: self.oneshot.rows() > 0
                    || !self.passes.is_empty()
                    || self.running.len() > self.running_decode as usize
                    || self.preempted.len() > self.preempted_decode as usize,
                generations: self.running_decode + self.preempted_decode > 0
                    || self.decode.rows() > 0,
            };
            let work = step.slice.is_none().then_some(step.work);
            self.shares.note(work, now, took, waiting);
            match step.slice {
                Some(slice) => {
                    if let Some(size) = slice.size {
                        self.slice_times.note(size, took);
                    }
                }
                None => self.policy.completed(&StepTime {
                    step: step.id,
                    took,
                    prompt_tokens: step.work.prompt_tokens(),
                    decode_rows: length_of(step.decode.len()),
                }),
            }
        }
        match result.map(|output| (misfit(&step, &output), output)) {
            Ok((None, output)) => self.deliver(now, step, output, events),
            Ok((Some(what), _)) => {
                let why = format!("the executor's output does not match its batch: {what}");
                self.fail_step(now, step, &why, events);
            }
            Err(error @ ExecutorError::Step(_)) => {
                self.fail_step(now, step, &error.to_string(), events);
            }
            Err(error) => self.fail_all(now, step, &error.to_string(), events),
        }
        Ok(())
    }

    fn fail_step(&mut self, now: Timestamp, mut step: Step, why: &str, events: &mut Vec<Event>) {
        self.release_step(&mut step, false);
        let failed = || Outcome::Failed(why.to_owned());
        if let Some(slice) = step.slice
            && let Some(pass) = self.passes.iter().find(|pass| pass.id == slice.pass)
        {
            self.finish(now, pass.request, failed(), events);
        }
        for tag in &step.oneshot {
            if let RowTag::Row {
                request, serial, ..
            } = *tag
                && self
                    .requests
                    .get(&request)
                    .is_some_and(|live| live.serial == serial)
            {
                self.finish(now, request, failed(), events);
            }
        }
        let chunks = step.chunks.iter().map(|(tag, _)| tag);
        for tag in chunks.chain(&step.decode) {
            // The request ends also if the sequence was preempted meanwhile: the request had work
            // in the step.
            if let Some(request) = self.seqs.get(&tag.seq).map(|seq| seq.request) {
                self.finish(now, request, failed(), events);
            }
        }
    }

    /// Fails all requests: the executor is gone, and nothing that is in flight will come back.
    fn fail_all(&mut self, now: Timestamp, step: Step, why: &str, events: &mut Vec<Event>) {
        self.in_flight.push_front(step);
        for mut step in std::mem::take(&mut self.in_flight) {
            self.release_step(&mut step, false);
        }
        let mut ids: Vec<RequestId> = self.requests.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.finish(now, id, Outcome::Failed(why.to_owned()), events);
        }
    }

    fn deliver(
        &mut self,
        now: Timestamp,
        mut step: Step,
        output: StepOutput,
        events: &mut Vec<Event>,
    ) {
        for (tag, end) in std::mem::take(&mut step.chunks) {
            if let Some(seq) = current(&mut self.seqs, tag) {
                seq.computed = end;
                if self.config.enable_prefix_caching {
                    let request = seq.request;
                    let written = seq.publish(&mut self.cache, &mut self.leaders);
                    self.note_written(request, written);
                }
            }
        }
        self.release_step(&mut step, true);
        let mut lone = LoneTokens::default();
        let has_company = step.oneshot.len() > 1 && step.slice.is_none();
        for (tag, output) in step.oneshot.into_iter().zip(output.oneshot) {
            match tag {
                RowTag::Row {
                    request,
                    serial,
                    row,
                    cached,
                    computed,
                } => {
                    if self
                        .requests
                        .get(&request)
                        .is_some_and(|live| live.serial == serial)
                    {
                        if has_company && matches!(output, RowOutput::NoRoom(_)) {
                            self.plan_again(request, row, cached, computed);
                            continue;
                        }
                        self.answer_row(request, row, output, &mut lone, events);
                        self.answered(now, request, events);
                    }
                }
                RowTag::Chunk(tag) => self.answer_chunk(now, tag, output, &mut lone, events),
            }
        }
        for (tag, output) in step.prefill.into_iter().zip(output.prefill) {
            let begin = |seq: &mut Sequence| seq.state = SeqState::Decoding;
            self.take_token(now, tag, begin, output, events);
        }
        for (tag, output) in step.decode.into_iter().zip(output.decode) {
            let go_on = |seq: &mut Sequence| {
                seq.in_flight -= 1;
                // The row ran the last known token.
                seq.computed = seq.len();
            };
            self.take_token(now, tag, go_on, output, events);
        }
    }

    /// Puts a row back into the queue whose output had no room in its step. The request is not
    /// charged for that step.
    fn plan_again(&mut self, request: RequestId, row: u32, cached: u32, computed: u32) {
        let live = self
            .requests
            .get_mut(&request)
            .expect("the caller looked the request up");
        live.usage.cached_tokens -= u64::from(cached);
        live.usage.computed_tokens -= u64::from(computed);
        live.oneshot.push_front(WaitingRow {
            row,
            held: Held::default(),
            is_lone: true,
        });
        self.counters.rows_without_room += 1;
        self.requeue(request);
    }

    /// Publishes what the step kept, if it succeeded, and lets go of all its blocks.
    fn release_step(&mut self, step: &mut Step, publish: bool) {
        let Kept {
            segments,
            mut blocks,
            hashes,
            tokens,
        } = std::mem::take(&mut step.kept);
        let block_size = self.cache.block_size();
        // By segment: how many of its blocks are in the trie.
        let mut published: Vec<usize> = Vec::with_capacity(segments.len());
        for (kept, owner) in segments.iter().zip(&step.owners) {
            let parent = match kept.after {
                After::Cached(block) => Some(block),
                // A parent that is not wholly in the trie has no children there.
                After::Segment(above) => {
                    let Range { start, end } = segments[above].blocks;
                    (published[above] == end - start).then(|| Some(blocks[end - 1]))
                }
            };
            let before = self.cache.published_blocks();
            let Range { start, end } = kept.blocks;
            let n = match parent {
                Some(parent) if publish => self.cache.publish(
                    kept.salt.as_ref(),
                    parent,
                    &tokens[start * block_size..end * block_size],
                    &mut blocks[start..end],
                ),
                _ => 0,
            };
            published.push(n);
            let new = self.cache.published_blocks() - before;
            if let RowTag::Row {
                request, serial, ..
            } = *owner
                && let Some(live) = self.requests.get_mut(&request)
                && live.serial == serial
            {
                live.usage.cache_write_tokens += new * block_size as u64;
            }
        }
        hashes.iter().for_each(|&hash| self.leaders.remove(hash));
        self.cache.release_all(blocks);
        self.cache.release_all(std::mem::take(&mut step.pins));
    }

    /// Reports the whole answer of a one-shot row.
    fn answer_row(
        &mut self,
        request: RequestId,
        row: u32,
        output: RowOutput,
        lone: &mut LoneTokens,
        events: &mut Vec<Event>,
    ) {
        let live = self
            .requests
            .get_mut(&request)
            .expect("the caller looked the request up");
        let output = checked(live.head(row), output);
        match (live.head(row), output) {
            (Head::Generate(g), RowOutput::Sampled(tokens)) => {
                let sampling = g.sampling.clone();
                let constraint = g.constraint.clone();
                live.usage.output_tokens += tokens.len() as u64;
                for (choice, token) in (0..).zip(tokens) {
                    // The output budget is one token, so the generation is over, whatever the token
                    // is.
                    let complete = || {
                        let constraint = constraint.as_ref()?;
                        lone.complete(constraint, token.token)
                            .then_some(FinishReason::Complete)
                    };
                    let reason = stop_reason(&sampling, &token, 0)
                        .or_else(complete)
                        .unwrap_or(FinishReason::Length);
                    events.push(Event::Token {
                        request,
                        row,
                        choice,
                        token,
                    });
                    events.push(Event::RowFinished {
                        request,
                        row,
                        choice,
                        reason,
                    });
                }
            }
            (Head::Generate(g), RowOutput::NoToken) => {
                events.extend((0..g.n).map(|choice| Event::RowFinished {
                    request,
                    row,
                    choice,
                    reason: FinishReason::NoToken,
                }));
            }
            (_, output) => events.push(Event::Output {
                request,
                row,
                output,
            }),
        }
    }

    /// Reports a chunked row's answer, or a piece of it.
    fn answer_chunk(
        &mut self,
        now: Timestamp,
        tag: SeqTag,
        output: RowOutput,
        lone: &mut LoneTokens,
        events: &mut Vec<Event>,
    ) {
        let Some(seq) = current(&mut self.seqs, tag) else {
            return;
        };
        let (request, row) = (seq.request, seq.row);
        let live = &self.requests[&request];
        // The position at which an answer that comes in pieces ends.
        let end = match (live.head(row), &output) {
            (Head::PromptLogprobs { positions, .. }, RowOutput::Logprobs { .. }) => {
                Some(positions.end - 1)
            }
            (Head::Tokens(_), RowOutput::Tokens { .. }) => Some(live.prompt_len(row)),
            (Head::States { positions }, RowOutput::Tokens { .. }) => {
                positions.last().map(|last| last + 1)
            }
            _ => None,
        };
        // `computed` was moved to the chunk's end before.
        let is_last = end.is_none_or(|end| seq.computed >= end);
        if end.is_some() {
            seq.job = Job::Chunked {
                needed: seq.computed,
            };
        }
        self.answer_row(request, row, output, lone, events);
        if is_last {
            self.end_sequence(now, tag, events);
        }
    }

    /// Notes by `ran` that a sequence's row ran, appends the generated token, and ends the sequence
    /// if it was the last; nothing of a sequence that is gone or was preempted since.
    fn take_token(
        &mut self,
        now: Timestamp,
        tag: SeqTag,
        ran: impl FnOnce(&mut Sequence),
        output: RowOutput,
        events: &mut Vec<Event>,
    ) {
        let Some(seq) = current(&mut self.seqs, tag) else {
            return;
        };
        ran(seq);
        let (request, row, choice) = (seq.request, seq.row, seq.choice);
        let Job::Decode(generate) = &seq.job else {
            unreachable!("only generations take tokens");
        };
        let token = match output {
            RowOutput::Sampled(mut tokens) if tokens.len() == 1 => tokens.remove(0),
            RowOutput::NoToken => {
                events.push(Event::RowFinished {
                    request,
                    row,
                    choice,
                    reason: FinishReason::NoToken,
                });
                return self.end_sequence(now, tag, events);
            }
            RowOutput::Failed(why) | RowOutput::NoRoom(why) => {
                let output = RowOutput::Failed(why);
                events.push(Event::Output {
                    request,
                    row,
                    output,
                });
                return self.end_sequence(now, tag, events);
            }
            _ => {
                let output = RowOutput::Failed(WRONG_KIND);
                events.push(Event::Output {
                    request,
                    row,
                    output,
                });
                return self.end_sequence(now, tag, events);
            }
        };
        let made = length_of(seq.output.len());
        let length = (made + 1 >= generate.max_tokens).then_some(FinishReason::Length);
        let stop = stop_reason(&generate.sampling, &token, made);
        let complete = match stop {
            None => (seq.advance_constraint(token.token) == MatchState::Complete)
                .then_some(FinishReason::Complete),
            Some(_) => None,
        };
        let reason = stop.or(complete).or(length);
        if reason.is_none() {
            seq.request_mask(now);
        }
        seq.output.push(token.token);
        events.push(Event::Token {
            request,
            row,
            choice,
            token,
        });
        if let Some(reason) = reason {
            events.push(Event::RowFinished {
                request,
                row,
                choice,
                reason,
            });
            self.end_sequence(now, tag, events);
        }
    }

    fn end_sequence(&mut self, now: Timestamp, tag: SeqTag, events: &mut Vec<Event>) {
        let request = self.seqs[&tag.seq].request;
        let (written, made) = self.remove_sequence(tag.seq, true);
        let live = self
            .requests
            .get_mut(&request)
            .expect("a sequence's request is live");
        live.seqs.remove(&tag.seq);
        // Counted here and not with each token: a step would look up the request of each sequence.
        live.usage.output_tokens += made;
        live.usage.cache_write_tokens += written;
        self.answered(now, request, events);
    }

    fn answered(&mut self, now: Timestamp, request: RequestId, events: &mut Vec<Event>) {
        let live = self
            .requests
            .get_mut(&request)
            .expect("it was answered just now");
        live.unanswered -= 1;
        if live.unanswered == 0 {
            self.finish(now, request, Outcome::Done, events);
        }
    }
}

/// Remembers whether texts of one token are complete, by constraint and token: a matcher may be
/// expensive, and the draws of a step repeat each other.
#[derive(Default)]
struct LoneTokens {
    /// The constraints are kept, so that no other comes to lie in the same place.
    known: Vec<(Arc<dyn Constraint>, BTreeMap<TokenId, bool>)>,
}

impl LoneTokens {
    fn complete(&mut self, constraint: &Arc<dyn Constraint>, token: TokenId) -> bool {
        let same = |known: &Arc<dyn Constraint>| Arc::ptr_eq(known, constraint);
        let at = match self.known.iter().rposition(|(known, _)| same(known)) {
            Some(at) => at,
            None => {
                self.known.push((Arc::clone(constraint), BTreeMap::new()));
                self.known.len() - 1
            }
        };
        let tokens = &mut self.known[at].1;
        let walk = || constraint.start().take(token) == MatchState::Complete;
        *tokens.entry(token).or_insert_with(walk)
    }
}

const WRONG_KIND: &str = "the executor answered with another kind of output";

/// Returns the sequence of a tag, unless it is gone or was preempted since.
fn current(seqs: &mut Sequences, tag: SeqTag) -> Option<&mut Sequence> {
    seqs.get_mut(&tag.seq).filter(|seq| seq.epoch == tag.epoch)
}

/// Returns the part of an output that does not match its step.
fn misfit(step: &Step, output: &StepOutput) -> Option<&'static str> {
    [
        ("step id", output.step == step.id),
        ("one-shot rows", output.oneshot.len() == step.oneshot.len()),
        ("prefill rows", output.prefill.len() == step.prefill.len()),
        ("decode rows", output.decode.len() == step.decode.len()),
    ]
    .into_iter()
    .find_map(|(what, fits)| (!fits).then_some(what))
}

fn checked(head: &Head, output: RowOutput) -> RowOutput {
    match output {
        RowOutput::NoRoom(why) => RowOutput::Failed(why),
        output if row::answers(head, &output) => output,
        _ => RowOutput::Failed(WRONG_KIND),
    }
}

/// Returns whether a token, the `made`-th of its generation from 0, is a stop id that counts.
fn stop_reason(
    sampling: &Arc<SamplingParams>,
    token: &SampledToken,
    made: u32,
) -> Option<FinishReason> {
    let token = token.token;
    (made >= sampling.min_tokens && sampling.stop_token_ids.contains(&token))
        .then_some(FinishReason::Stop { token })
}
