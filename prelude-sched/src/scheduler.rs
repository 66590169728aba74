//! The state machine.

use std::collections::{BTreeMap, VecDeque};

use prelude_core::{
    Capacity, ExecutionClass, ExecutorError, ForwardBatch, Head, OneShotBatch, OutputHead,
    OutputRow, Pooling, Request, RequestId, Residency, RowOutput, SampleHead, Segment, SegmentIdx,
    StepId, StepOutput, Timestamp,
};
use thiserror::Error;

use crate::{
    ConfigError, Event, FinishReason, Outcome, Reject, SchedulerConfig, SchedulerStats, Usage,
};

/// A step was completed that is not in flight, or not the oldest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("step {0} is not the oldest step in flight")]
pub struct UnknownStep(pub StepId);

/// First version: one-shot requests one row at a time, without sharing or caching.
pub struct Scheduler {
    config: SchedulerConfig,
    capacity: Capacity,
    requests: BTreeMap<RequestId, (Request, Usage)>,
    waiting: VecDeque<(RequestId, u32)>,
    in_flight: VecDeque<(StepId, RequestId, u32)>,
    next_step: u64,
}

impl Scheduler {
    /// A scheduler for an executor of this capacity.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field out of range.
    pub fn new(config: SchedulerConfig, capacity: Capacity) -> Result<Self, ConfigError> {
        config.validate(&capacity)?;
        let _ = config.policy.build();
        Ok(Self {
            config,
            capacity,
            requests: BTreeMap::new(),
            waiting: VecDeque::new(),
            in_flight: VecDeque::new(),
            next_step: 0,
        })
    }

    /// Admits a request, or says why not.
    ///
    /// # Errors
    /// [`Reject`]; nothing of the request remains.
    pub fn submit(&mut self, _now: Timestamp, request: Request) -> Result<(), Reject> {
        request.validate(self.capacity.vocab_size, self.capacity.max_context_len)?;
        if self.requests.contains_key(&request.id) {
            return Err(Reject::DuplicateId(request.id));
        }
        if request.class() == ExecutionClass::Decode {
            return Err(Reject::NeverFits {
                row: 0,
                needed: 1,
                available: 0,
            });
        }
        let limit = u64::from(self.config.max_queued_rows);
        let (rows, queued) = (request.rows.len() as u64, self.waiting.len() as u64);
        if rows + queued > limit {
            return Err(Reject::QueueFullRows {
                rows,
                queued,
                limit,
            });
        }
        for row in 0..request.rows.len() {
            self.waiting
                .push_back((request.id, u32::try_from(row).expect("bounded above")));
        }
        let usage = Usage {
            prompt_tokens: request.prompt_tokens(),
            ..Usage::default()
        };
        self.requests.insert(request.id, (request, usage));
        Ok(())
    }

    /// Gives a request up, wherever it is. Returns whether it was live; if so, its `Finished`
    /// event is pushed to `events`. Nothing happens for an unknown or finished id.
    pub fn abort(&mut self, _now: Timestamp, id: RequestId, events: &mut Vec<Event>) -> bool {
        self.finish(id, Outcome::Aborted, events)
    }

    /// The next step to run, if there is anything to run and fewer steps are in flight than the
    /// executor takes. Pushes what happens to requests on the way (deadlines, preemptions).
    pub fn next_batch(
        &mut self,
        _now: Timestamp,
        _events: &mut Vec<Event>,
    ) -> Option<(StepId, ForwardBatch)> {
        if self.in_flight.len() >= self.capacity.pipeline_depth as usize {
            return None;
        }
        let (id, row) = self.waiting.pop_front()?;
        let request = &self.requests[&id].0;
        let spec = &request.rows[row as usize];
        let tokens = request.tree.prompt(spec.node);
        let len = request.tree.prompt_len(spec.node);
        let mut positions = len - 1..len;
        let head = match &spec.head {
            Head::Generate(g) => OutputHead::Sample(SampleHead {
                sampling: g.sampling.clone(),
                choice: 0,
                draws: g.n,
                output_position: 0,
                top_logprobs: g.top_logprobs,
                history: None,
            }),
            Head::LabelScores { labels, normalise } => OutputHead::LabelScores {
                labels: labels.clone(),
                normalise: *normalise,
            },
            Head::PromptLogprobs {
                positions: scored,
                top,
            } => {
                positions = scored.start - 1..scored.end - 1;
                let targets = tokens[scored.start as usize..scored.end as usize].to_vec();
                OutputHead::Logprobs { targets, top: *top }
            }
            Head::Embed {
                pooling,
                normalise,
                dimensions,
            } => {
                if *pooling == Pooling::Mean {
                    positions = 0..len;
                }
                OutputHead::Embed {
                    pooling: *pooling,
                    normalise: *normalise,
                    dimensions: *dimensions,
                }
            }
            Head::Classify => OutputHead::Classify,
        };
        let batch = OneShotBatch {
            tokens,
            segments: vec![Segment {
                tokens: 0..len,
                parent: None,
                context_len: 0,
                cached: prelude_core::BlockSpan::EMPTY,
                residency: Residency::Transient,
            }],
            rows: vec![OutputRow {
                segment: SegmentIdx(0),
                positions,
                head,
            }],
            block_ids: Vec::new(),
        };
        let step = StepId(self.next_step);
        self.next_step += 1;
        self.in_flight.push_back((step, id, row));
        Some((step, ForwardBatch::OneShot(batch)))
    }

    /// Takes the outcome of a step and pushes what follows from it, in a deterministic order.
    ///
    /// Steps complete in order of submission; a failed one may complete before older ones (an
    /// executor may refuse it at once). After [`ExecutorError::Lost`] every live request fails
    /// and no step is in flight any more.
    ///
    /// # Errors
    /// [`UnknownStep`]; nothing happened then.
    pub fn complete(
        &mut self,
        _now: Timestamp,
        step: StepId,
        result: Result<StepOutput, ExecutorError>,
        events: &mut Vec<Event>,
    ) -> Result<(), UnknownStep> {
        let at = self
            .in_flight
            .iter()
            .position(|s| s.0 == step)
            .ok_or(UnknownStep(step))?;
        let (_, id, row) = self.in_flight.remove(at).ok_or(UnknownStep(step))?;
        let output = match result {
            Ok(mut output) => output.oneshot.pop(),
            Err(error) => {
                self.finish(id, Outcome::Failed(error.to_string()), events);
                return Ok(());
            }
        };
        let (true, Some(output)) = (self.requests.contains_key(&id), output) else {
            return Ok(());
        };
        match output {
            RowOutput::Sampled(tokens) => {
                for (choice, token) in (0..).zip(tokens) {
                    events.push(Event::Token {
                        request: id,
                        row,
                        choice,
                        token,
                    });
                    let reason = FinishReason::Length;
                    events.push(Event::RowFinished {
                        request: id,
                        row,
                        choice,
                        reason,
                    });
                }
            }
            output => events.push(Event::Output {
                request: id,
                row,
                output,
            }),
        }
        if row as usize + 1 == self.requests[&id].0.rows.len() {
            self.finish(id, Outcome::Done, events);
        }
        Ok(())
    }

    /// When [`Self::next_batch`] should be called even if nothing else happens: the next deadline
    /// of a request that has not started.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    /// Gauges and counters.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            requests: self.requests.len() as u64,
            ..SchedulerStats::default()
        }
    }

    fn finish(&mut self, id: RequestId, outcome: Outcome, events: &mut Vec<Event>) -> bool {
        let Some((_, usage)) = self.requests.remove(&id) else {
            return false;
        };
        self.waiting.retain(|w| w.0 != id);
        events.push(Event::Finished {
            request: id,
            outcome,
            usage,
        });
        true
    }
}
