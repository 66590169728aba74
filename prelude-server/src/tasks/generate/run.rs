//! A generation request on its way through the engine: rows out, events in.

use std::{ops::Range, sync::Arc};

use prelude_core::{
    Generate, Head, PositionLogprobs, PromptTree, RowOutput, RowSpec, SampledToken, TokenId,
};
use prelude_engine::{Answer, AnswerEvent, Event, Outcome, Usage};

use super::{Choice, Params, Printer};
use crate::{
    admission::{LOGPROB_BYTES, Stage},
    config,
    endpoint::Call,
    error::ApiError,
    reject,
    served_model::ServedModel,
    tasks::submit::{self, Ask, UsageBody},
};

/// About how many bytes of text a generated token has.
const TOKEN_BYTES: u64 = 8;

/// A prompt and what is wanted of it.
#[derive(Clone)]
pub(crate) struct Job {
    /// The prompt.
    pub(crate) ids: Vec<TokenId>,
    /// Most tokens to generate; 0 generates none.
    pub(crate) max_tokens: u32,
}

/// The reports that rows make beside tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// Likeliest tokens beside each generated token, if log-probabilities are wanted.
    pub(crate) generated_top: Option<u32>,
    /// Likeliest tokens beside each prompt token, if their log-probabilities are wanted.
    pub(crate) prompt_top: Option<u32>,
    /// Positions of the prompt to score; all but the first if absent.
    pub(crate) prompt_range: Option<Range<u32>>,
}

/// A prompt and what is known of it by now.
pub(crate) struct PromptState {
    /// The prompt.
    pub(crate) ids: Vec<TokenId>,
    /// Positions that are scored; empty if none are.
    pub(crate) positions: Range<u32>,
    /// The scores of these positions so far.
    pub(crate) scored: Vec<PositionLogprobs>,
}

impl PromptState {
    /// Returns true if every score has come.
    pub(crate) fn is_scored(&self) -> bool {
        self.scored.len() == self.positions.len()
    }
}

/// The purpose of a row of the request.
#[derive(Clone, Copy, Debug)]
enum RowKind {
    /// Continues this prompt.
    Generate(usize),
    /// Scores this prompt.
    Score(usize),
}

/// A generation request. Dropping it aborts what the engine still does for it.
pub(crate) struct Run {
    pub(crate) call: Arc<Call>,
    pub(crate) model: Arc<ServedModel>,
    pub(crate) params: Params,
    /// The prompts, in the order of the request.
    pub(crate) prompts: Vec<PromptState>,
    /// `n` per prompt, in order.
    pub(crate) choices: Vec<Choice>,
    /// The usage, once the engine has finished.
    pub(crate) usage: Option<Usage>,
    rows: Vec<RowKind>,
    /// `None` if there was nothing to compute, and at the end.
    answer: Option<Answer>,
    /// An event that has come and has not been applied.
    early: Option<AnswerEvent>,
    /// The rest has been given up: every text has ended at a stop string.
    aborted: bool,
    /// Sums over `prompts` and `choices`, kept because a stream may print them on every chunk.
    prompt_tokens: u64,
    generated: u64,
}

impl Run {
    /// Submits the jobs as one request. Lengths and ranges have been checked.
    ///
    /// # Errors
    /// 400, 429, 503: whatever keeps the request from the engine.
    pub(crate) async fn start(
        ask: &Ask<'_>,
        params: Params,
        jobs: Vec<Job>,
        report: &Report,
    ) -> Result<Self, ApiError> {
        let (call, model) = (ask.call, ask.model);
        let mut rows = Vec::new();
        let mut kinds = Vec::new();
        let mut choices = Vec::new();
        let mut prompts = Vec::with_capacity(jobs.len());
        let mut max_tokens = Vec::with_capacity(jobs.len());
        for job in jobs {
            prompts.push(PromptState {
                positions: scored_positions(&job.ids, report),
                scored: Vec::new(),
                ids: job.ids,
            });
            max_tokens.push(job.max_tokens);
        }
        let ids: Vec<&[TokenId]> = prompts.iter().map(|p| &*p.ids).collect();
        let (tree, nodes) = PromptTree::from_prompts(&ids)
            .map_err(|_| ApiError::invalid_value("prompt", "have tokens, and fewer than 2^32"))?;
        for (index, ((prompt, node), max_tokens)) in
            prompts.iter().zip(nodes).zip(max_tokens).enumerate()
        {
            if max_tokens > 0 {
                choices.extend((0..params.n).map(|_| Choice::new(&params, model)));
                kinds.push(RowKind::Generate(index));
                let head = generate_head(&params, max_tokens, report);
                rows.push(RowSpec { node, head });
            } else {
                choices.extend((0..params.n).map(|_| Choice::empty(&params, model)));
            }
            call.app
                .metrics
                .generation(&model.name, params.n, max_tokens);
            if !prompt.positions.is_empty() {
                kinds.push(RowKind::Score(index));
                let head = Head::PromptLogprobs {
                    positions: prompt.positions.clone(),
                    top: report.prompt_top.unwrap_or(0),
                };
                rows.push(RowSpec { node, head });
            }
        }
        let prompt_tokens = prompts.iter().map(|p| p.ids.len() as u64).sum();
        let mut run = Self {
            call: Arc::clone(call),
            model: Arc::clone(model),
            params,
            prompts,
            choices,
            usage: None,
            rows: kinds,
            answer: None,
            early: None,
            aborted: false,
            prompt_tokens,
            generated: 0,
        };
        if rows.is_empty() {
            // There is nothing to compute: no tokens, no scores.
            call.note(|seen| {
                seen.model = call.app.place_of(model);
                seen.class = Some(prelude_core::ExecutionClass::OneShot);
                seen.prompt_tokens = prompt_tokens;
            });
        } else {
            let answer = submit::submit(ask, tree, rows, prompt_tokens).await?;
            run.answer = Some(answer);
        }
        Ok(run)
    }

    /// Waits for events and applies all that have come. False once there are no more.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// The request failed; nothing of it is to be used then.
    pub(crate) async fn advance(&mut self) -> Result<bool, ApiError> {
        let Some(answer) = self.answer.as_mut() else {
            return Ok(false);
        };
        // Cancelled while it waits, nothing is lost: what has come is kept before the next wait.
        if self.early.is_none() {
            let event = answer.next().await;
            self.early = Some(event.unwrap_or(AnswerEvent::EngineStopped));
        }
        // What a step did to the request came in one message: the rest is here too, for one write.
        let mut event = self.early.take().expect("the event was put there above");
        let mut answer = self
            .answer
            .take()
            .expect("the answer was there before the wait, which leaves it in place");
        self.call.reservation.reach(Stage::Started);
        loop {
            if self.apply(event)? {
                return Ok(false);
            }
            match answer.try_next() {
                Some(next) => event = next,
                None => break,
            }
        }
        if !self.aborted && self.is_settled() {
            // The engine may not know that the text is over: it has no stop strings. It is told,
            // and says what it used.
            answer.abort();
            self.aborted = true;
        }
        self.answer = Some(answer);
        Ok(true)
    }

    /// Applies one event. True if it was the last.
    fn apply(&mut self, event: AnswerEvent) -> Result<bool, ApiError> {
        let call = Arc::clone(&self.call);
        match event {
            AnswerEvent::Event(Event::Token {
                row, choice, token, ..
            }) => self.push(row, choice, token),
            AnswerEvent::Event(Event::RowFinished {
                row,
                choice,
                reason,
                ..
            }) => {
                let index = self.choice_index(row, choice);
                self.choices[index].finish(reason, &self.model, &self.params)?;
            }
            AnswerEvent::Event(Event::Output { row, output, .. }) => match output {
                RowOutput::Logprobs { entries, .. } => self.score(row, entries),
                RowOutput::Failed(why) => return Err(call.failed(why)),
                _ => return Err(call.failed("an output of another kind")),
            },
            AnswerEvent::Event(Event::Finished { outcome, usage, .. }) => {
                self.usage = Some(usage);
                call.note(|seen| seen.usage = Some(usage));
                return match outcome {
                    Outcome::Aborted if self.aborted => Ok(true),
                    Outcome::DeadlineExpired => Err(call.late()),
                    Outcome::Failed(why) => Err(call.failed(&why)),
                    outcome => match reject::of_outcome(&outcome, &call.request_id) {
                        Some(error) => Err(error),
                        None => Ok(true),
                    },
                };
            }
            AnswerEvent::Event(Event::Preempted { .. }) => {}
            AnswerEvent::Rejected(reject) => {
                return Err(reject::of_reject(&reject, &call));
            }
            _ => return Err(ApiError::engine_dead()),
        }
        Ok(false)
    }

    fn push(&mut self, row: u32, choice: u32, token: SampledToken) {
        let index = self.choice_index(row, choice);
        let choice = &mut self.choices[index];
        let before = choice.generated;
        choice.push(token, &self.model, &self.params);
        self.generated += choice.generated - before;
    }

    fn choice_index(&self, row: u32, choice: u32) -> usize {
        let (RowKind::Generate(prompt) | RowKind::Score(prompt)) = self.rows[row as usize];
        prompt * self.params.n as usize + choice as usize
    }

    fn score(&mut self, row: u32, entries: Vec<PositionLogprobs>) {
        let (RowKind::Generate(prompt) | RowKind::Score(prompt)) = self.rows[row as usize];
        let scored = &mut self.prompts[prompt].scored;
        if scored.is_empty() {
            *scored = entries;
        } else {
            scored.extend(entries);
        }
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// The same as of [`Run::advance`].
    pub(crate) async fn complete(&mut self) -> Result<(), ApiError> {
        while self.advance().await? {}
        Ok(())
    }

    /// Waits for the first events, at most as long as headers may wait for them.
    ///
    /// # Errors
    /// The same as of [`Run::advance`].
    pub(crate) async fn begin(&mut self) -> Result<(), ApiError> {
        let wait = config::ms(self.call.app.config.limits.first_event_ms);
        match tokio::time::timeout(wait, self.advance()).await {
            Ok(first) => first.map(|_| ()),
            // The stream begins without a first event and reports what happens later.
            Err(_) => Ok(()),
        }
    }

    /// Returns true if the engine has more to say about the request.
    pub(crate) fn is_waiting(&self) -> bool {
        self.answer.is_some()
    }

    /// Returns true if nothing more can come that the answer needs.
    fn is_settled(&self) -> bool {
        self.choices.iter().all(|c| c.finish.is_some())
            && self.prompts.iter().all(PromptState::is_scored)
    }

    /// Returns the prompt that a choice continues.
    pub(crate) fn prompt_of(&self, choice: usize) -> &PromptState {
        &self.prompts[choice / self.params.n as usize]
    }

    /// Returns about how many bytes of answer were generated beyond those for which room was taken.
    pub(crate) fn answer_bytes(&self) -> u64 {
        let entries = self.choices.iter().flat_map(|choice| &choice.tokens);
        let entries: usize = entries.map(|record| 1 + record.token.top.len()).sum();
        entries as u64 * LOGPROB_BYTES + self.generated * TOKEN_BYTES
    }

    /// Returns the token counts by now.
    pub(crate) fn usage_body(&self) -> UsageBody {
        UsageBody::new(self.prompt_tokens, self.generated, self.usage.as_ref())
    }

    /// Returns the printer of the answer's tokens.
    pub(crate) fn printer(&self) -> Printer<'_> {
        Printer {
            model: &self.model,
            as_ids: self.params.tokens_as_ids,
        }
    }
}

/// Returns the head that generates up to `max_tokens` tokens for each of the request's `n` choices.
fn generate_head(params: &Params, max_tokens: u32, report: &Report) -> Head {
    Head::Generate(Generate {
        max_tokens: params.budget(max_tokens),
        n: params.n,
        sampling: Arc::clone(&params.sampling),
        top_logprobs: report.generated_top,
        constraint: { params.constrained.as_ref() }.map(|c| Arc::clone(&c.constraint)),
    })
}

/// Returns the positions of a prompt that are scored. Ranges have been checked.
fn scored_positions(ids: &[TokenId], report: &Report) -> Range<u32> {
    if report.prompt_top.is_none() {
        return 0..0;
    }
    let len = u32::try_from(ids.len()).expect("`check_length` bounds the prompt by the context");
    // Position 0 has no tokens before it and so no score.
    match &report.prompt_range {
        None => 1..len.max(1),
        Some(range) => range.start.max(1)..range.end.max(1),
    }
}
