//! Behaviour one rule at a time. The simulator covers their combinations.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prelude_core::{
    Constraint, Executor, ExecutorError, Generate, NextTokens, Normalise, OutputHead, Pooling,
    Progress, PromptTree, RowSpec, SamplingParams, StepOutput, TokenId, TokenSet, TokenSource,
    Walk,
};

use super::*;
use crate::sim::SimExecutor;

const CAPACITY: Capacity = Capacity {
    block_size: 4,
    num_blocks: 64,
    max_step_tokens: 128,
    max_context_len: 128,
    vocab_size: 1000,
    pipeline_depth: 1,
};

/// A scheduler, the checking executor, and what came of it.
struct Rig {
    scheduler: Scheduler,
    executor: SimExecutor,
    running: VecDeque<StepId>,
    events: Vec<Event>,
    now: Timestamp,
}

impl Rig {
    fn new(config: SchedulerConfig, capacity: Capacity) -> Self {
        Self {
            scheduler: Scheduler::new(config, capacity).unwrap(),
            executor: SimExecutor::new(capacity),
            running: VecDeque::new(),
            events: Vec::new(),
            now: Timestamp::ZERO,
        }
    }

    /// With at most `tokens` in a step.
    fn small(tokens: u32) -> Self {
        Self::new(
            SchedulerConfig {
                max_batch_tokens: tokens,
                ..SchedulerConfig::default()
            },
            CAPACITY,
        )
    }

    fn submit(&mut self, request: Request) {
        self.scheduler.submit(self.now, request).unwrap();
        self.scheduler.check_invariants();
    }

    /// Plans and starts a step.
    fn start(&mut self) -> Option<ForwardBatch> {
        let (step, batch) = self.scheduler.next_batch(self.now, &mut self.events)?;
        self.executor.submit(step, batch.clone()).unwrap();
        self.running.push_back(step);
        self.scheduler.check_invariants();
        Some(batch)
    }

    fn finish_step(&mut self) {
        let step = self.running.pop_front().expect("a step runs");
        let output = self.executor.collect(step);
        self.complete(step, output);
    }

    fn complete(&mut self, step: StepId, output: Result<StepOutput, ExecutorError>) {
        self.scheduler
            .complete(self.now, step, output, &mut self.events)
            .unwrap();
        self.scheduler.check_invariants();
    }

    /// One whole step.
    fn step(&mut self) -> ForwardBatch {
        let batch = self.start().expect("something waits");
        self.finish_step();
        batch
    }

    /// Whole steps until nothing is left.
    fn drain(&mut self) -> Vec<ForwardBatch> {
        let mut batches = Vec::new();
        while let Some(batch) = self.start() {
            batches.push(batch);
            self.finish_step();
        }
        assert_eq!(self.scheduler.stats().requests, 0);
        assert_eq!(self.scheduler.stats().used_blocks, 0);
        batches
    }

    fn outcome(&self, id: u64) -> Option<&Outcome> {
        self.events.iter().find_map(|event| match event {
            Event::Finished {
                request, outcome, ..
            } if request.0 == id => Some(outcome),
            _ => None,
        })
    }

    fn usage(&self, id: u64) -> crate::Usage {
        let found = self.events.iter().find_map(|event| match event {
            Event::Finished { request, usage, .. } if request.0 == id => Some(*usage),
            _ => None,
        });
        found.expect("the request has finished")
    }

    /// Tokens of a choice.
    fn tokens(&self, id: u64, of: u32) -> Vec<u32> {
        let token = |event: &Event| match event {
            Event::Token {
                request,
                choice,
                token,
                ..
            } if request.0 == id && *choice == of => Some(token.token),
            _ => None,
        };
        self.events.iter().filter_map(token).collect()
    }

    /// Ids in order of finishing.
    fn order(&self) -> Vec<u64> {
        let finished = |event: &Event| match event {
            Event::Finished { request, .. } => Some(request.0),
            _ => None,
        };
        self.events.iter().filter_map(finished).collect()
    }
}

fn request(id: u64, prompt: Vec<u32>, head: Head) -> Request {
    let tree = PromptTree::single(prompt);
    let rows = vec![RowSpec {
        node: tree.last_node(),
        head,
    }];
    Request::new(RequestId(id), tree, rows, Timestamp::from_nanos(id))
}

fn classify(id: u64, prompt: Vec<u32>) -> Request {
    request(id, prompt, Head::Classify)
}

fn mean(id: u64, prompt: Vec<u32>) -> Request {
    request(
        id,
        prompt,
        Head::Embed {
            pooling: Pooling::Mean,
            normalise: false,
            dimensions: None,
        },
    )
}

fn generate(id: u64, prompt: Vec<u32>, max_tokens: u32, n: u32) -> Request {
    let sampling = Arc::new(SamplingParams {
        seed: id,
        ..SamplingParams::default()
    });
    request(
        id,
        prompt,
        Head::Generate(Generate {
            max_tokens,
            n,
            sampling,
            top_logprobs: None,
            constraint: None,
        }),
    )
}

/// A prompt of its own for each `id`.
fn prompt(id: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (id * 131 + i * 7) % 1000).collect()
}

fn suffixed(shared: &[u32], id: u32) -> Vec<u32> {
    [shared, &[id]].concat()
}

#[test]
fn requests_of_a_step_share_their_prefix() {
    let mut rig = Rig::small(128);
    let shared = prompt(1, 32);
    for id in 0..64 {
        rig.submit(classify(u64::from(id), suffixed(&shared, id)));
    }
    let batch = rig.step();
    assert_eq!((batch.num_tokens(), batch.num_rows()), (32 + 64, 64));
    assert_eq!(batch.kind(), "oneshot");
    let usage = rig.usage(5);
    assert_eq!(
        (
            usage.prompt_tokens,
            usage.computed_tokens,
            usage.cached_tokens
        ),
        (33, 1, 0)
    );
    assert_eq!(rig.scheduler.stats().shared_tokens, 63 * 32);

    // The shared blocks are in the cache now; later rows compute their own token alone.
    rig.submit(classify(100, suffixed(&shared, 900)));
    assert_eq!(rig.step().num_tokens(), 1);
    assert_eq!(rig.usage(100).cached_tokens, 32);
}

/// A shared prefix that leaves no room in its step for those who share it, and a cache that is
/// full of what others left: each step would compute the prefix for one row.
#[test]
fn a_prefix_that_fills_its_step_is_kept_for_those_who_wait() {
    // The first row takes the whole step, or leaves too little for a second one.
    for (budget, requests) in [(33, 20), (34, 20), (33, 1)] {
        let mut rig = Rig::small(budget);
        for id in 0..8 {
            rig.submit(classify(id, prompt(50 + id as u32, 32)));
            rig.step();
        }
        assert_eq!(rig.scheduler.stats().free_blocks, 0);
        let shared = prompt(1, 30);
        let rows: Vec<_> = (0..20)
            .map(|id| [&shared[..], &[900 + id, 7, 8]].concat())
            .collect();
        if requests == 1 {
            let (tree, ends) = PromptTree::from_prompts(&rows).unwrap();
            let row = |node| RowSpec {
                node,
                head: Head::Classify,
            };
            let rows = ends.into_iter().map(row).collect();
            rig.submit(Request::new(RequestId(100), tree, rows, rig.now));
        } else {
            for (id, row) in rows.into_iter().enumerate() {
                rig.submit(classify(100 + id as u64, row));
            }
        }
        let batches = rig.drain();
        let computed: usize = batches.iter().map(ForwardBatch::num_tokens).sum();
        // What lies behind the last whole block is computed again in each of the later steps.
        assert!(
            computed <= 33 + 19 * 3 + 2 * batches.len(),
            "{computed} in {} steps of {budget}",
            batches.len()
        );
    }
}

#[test]
fn what_a_request_puts_into_the_cache_is_counted_once() {
    let mut rig = Rig::small(128);
    let written = |rig: &Rig, id| rig.usage(id).cache_write_tokens;
    let shared = prompt(1, 32);
    // Both compute the prefix at once: the first is charged for it, and each for whole blocks of
    // its own.
    rig.submit(classify(1, [&shared[..], &prompt(2, 9)].concat()));
    rig.submit(classify(2, [&shared[..], &prompt(3, 4)].concat()));
    rig.step();
    assert_eq!((written(&rig, 1), written(&rig, 2)), (32 + 8, 4));
    // What is there already is not written again.
    rig.submit(classify(3, [&shared[..], &prompt(2, 9)].concat()));
    rig.step();
    assert_eq!(written(&rig, 3), 0);
    // A generation writes what it reads and, in the end, what it says.
    rig.submit(generate(4, prompt(4, 10), 7, 1));
    rig.drain();
    assert_eq!(written(&rig, 4), 16);
    let total: u64 = (1..=4).map(|id| written(&rig, id)).sum();
    assert_eq!(total, 4 * rig.scheduler.stats().cached_blocks);
}

#[test]
fn what_is_ahead_is_what_has_to_be_computed() {
    let mut rig = Rig::small(32);
    let ahead = |rig: &Rig| rig.scheduler.stats().tokens_ahead;
    let shared = prompt(1, 30);
    rig.submit(classify(1, shared.clone()));
    assert_eq!(ahead(&rig), 30);
    rig.start().unwrap();
    // In flight, it is still ahead of whoever comes.
    assert_eq!(ahead(&rig), 30);
    rig.finish_step();
    assert_eq!(ahead(&rig), 0);
    // Seven blocks are cached.
    rig.submit(classify(2, [&shared[..], &prompt(2, 10)].concat()));
    assert_eq!(ahead(&rig), 40 - 28);
    let mut salted = classify(3, shared.clone());
    salted.cache_salt = Some("other".into());
    rig.submit(salted);
    rig.submit(mean(4, shared));
    assert_eq!(ahead(&rig), 12 + 30 + 30);
    rig.drain();
    assert_eq!(ahead(&rig), 0);
}

#[test]
fn what_is_ahead_of_a_begun_prompt_is_its_rest() {
    // A generation's prompt and a one-shot one, chunk by chunk.
    for head in ["generation", "one-shot"] {
        let mut rig = Rig::small(32);
        let long = match head {
            "generation" => generate(1, prompt(1, 100), 2, 1),
            _ => classify(1, prompt(1, 100)),
        };
        rig.submit(long);
        // Somebody else, or the one-shot prompt would get a step of its own.
        rig.submit(generate(2, prompt(2, 1), 20, 1));
        let mut ahead = 101;
        assert_eq!(rig.scheduler.stats().tokens_ahead, ahead, "{head}");
        while ahead > 0 {
            let batch = rig.start().unwrap();
            let decoded = decode_rows(&batch) as u64;
            // Decode rows are nobody's prompt.
            assert_eq!(rig.scheduler.stats().tokens_ahead, ahead, "{head}");
            ahead -= batch.num_tokens() as u64 - decoded;
            rig.finish_step();
            assert_eq!(rig.scheduler.stats().tokens_ahead, ahead, "{head}");
        }
        rig.drain();
        assert_eq!(rig.scheduler.stats().tokens_ahead, 0);
    }
}

#[test]
fn what_is_ahead_of_a_begun_ranking_is_its_rest() {
    let mut rig = Rig::small(32);
    // Ten documents of ten tokens behind a query of eight.
    let query = prompt(1, 8);
    let documents: Vec<Vec<u32>> = (0..10)
        .map(|id| [&query[..], &prompt(id + 2, 10)].concat())
        .collect();
    let prompts: Vec<&[u32]> = documents.iter().map(|d| &**d).collect();
    let (tree, nodes) = PromptTree::from_prompts(&prompts).unwrap();
    let row = |node| RowSpec {
        node,
        head: Head::Classify,
    };
    let rows = nodes.into_iter().map(row).collect();
    let mut ahead = 8 + 10 * 10;
    rig.submit(Request::new(RequestId(1), tree, rows, Timestamp::ZERO));
    while ahead > 0 {
        assert_eq!(rig.scheduler.stats().tokens_ahead, ahead);
        ahead -= rig.step().num_tokens() as u64;
    }
    assert_eq!(rig.scheduler.stats().tokens_ahead, 0);
    rig.drain();
}

#[test]
fn salts_share_neither_step_nor_cache() {
    let mut rig = Rig::small(128);
    let salted = |id, salt: &str| {
        let mut request = classify(id, prompt(1, 20));
        request.cache_salt = Some(Arc::from(salt));
        request
    };
    rig.submit(salted(1, "a"));
    rig.submit(salted(2, "b"));
    rig.submit(classify(3, prompt(1, 20)));
    assert_eq!(rig.step().num_tokens(), 60);
    rig.submit(salted(4, "c"));
    rig.submit(salted(5, "a"));
    assert_eq!(rig.step().num_tokens(), 20 + 4);
}

#[test]
fn a_long_prompt_runs_alone_in_one_step_or_else_in_chunks() {
    let check = |others: u64, max_step_tokens, expected: &[usize]| {
        let capacity = Capacity {
            max_step_tokens,
            ..CAPACITY
        };
        let config = SchedulerConfig {
            max_batch_tokens: 20,
            ..SchedulerConfig::default()
        };
        let mut rig = Rig::new(config, capacity);
        rig.submit(classify(0, prompt(1, 50)));
        (0..others).for_each(|id| rig.submit(classify(id + 1, prompt(9, 1))));
        let tokens: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
        assert_eq!(
            tokens, expected,
            "{others} others, {max_step_tokens} tokens a step"
        );
        assert_eq!(rig.usage(0).computed_tokens, 50);
    };
    check(0, 128, &[50]);
    check(1, 128, &[20, 20, 11]);
    check(0, 40, &[20, 20, 10]);
}

#[test]
fn scored_prompts_come_in_pieces_in_order() {
    let mut rig = Rig::small(16);
    let head = Head::PromptLogprobs {
        positions: 5..40,
        top: 0,
    };
    rig.submit(request(0, prompt(1, 40), head));
    rig.submit(classify(1, prompt(2, 3)));
    rig.drain();
    let mut scored = Vec::new();
    for event in &rig.events {
        if let Event::Output {
            output:
                prelude_core::RowOutput::Logprobs {
                    first_position,
                    entries,
                },
            ..
        } = event
        {
            scored.push((*first_position, entries.len()));
        }
    }
    assert_eq!(scored, [(5, 12), (17, 16), (33, 7)]);
}

#[test]
fn mean_pooling_is_never_split_nor_cached() {
    let mut rig = Rig::small(16);
    rig.submit(generate(0, prompt(2, 4), 20, 1));
    rig.step();
    rig.submit(mean(1, prompt(1, 40)));
    rig.submit(mean(2, prompt(1, 40)));
    let sizes: Vec<usize> = (0..4).map(|_| rig.step().num_tokens()).collect();
    // Long steps alternate with steps for those who run.
    assert_eq!(sizes, [40, 1, 40, 1]);
    assert_eq!(
        (rig.usage(1).computed_tokens, rig.usage(2).computed_tokens),
        (40, 40)
    );
    let too_long = rig.scheduler.submit(rig.now, mean(3, prompt(1, 128)));
    assert_eq!(too_long, Ok(()), "as long as a step");
    let capacity = Capacity {
        max_step_tokens: 64,
        ..CAPACITY
    };
    let error = Rig::new(SchedulerConfig::default(), capacity)
        .scheduler
        .submit(Timestamp::ZERO, mean(3, prompt(1, 65)))
        .unwrap_err();
    assert_eq!(
        error,
        Reject::TooLongToPool {
            row: 0,
            prompt: 65,
            limit: 64
        }
    );
}

#[test]
fn long_rows_do_not_keep_a_generation_from_starting() {
    let mut rig = Rig::small(16);
    for id in 0..8 {
        rig.submit(mean(id, prompt(1, 40)));
    }
    rig.step();
    // Nothing runs now, but something waits to.
    rig.submit(generate(9, prompt(2, 4), 2, 1));
    let sizes: Vec<usize> = (0..3).map(|_| rig.step().num_tokens()).collect();
    assert_eq!(sizes, [4, 40, 1], "shared steps come in between");
    assert_eq!(rig.outcome(9), Some(&Outcome::Done));
    rig.drain();
}

#[test]
fn a_small_share_of_a_small_step_is_a_share() {
    let config = SchedulerConfig {
        max_batch_tokens: 16,
        oneshot_share_percent: 1,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    rig.submit(classify(0, prompt(1, 60)));
    // A prompt to be computed waits at every step.
    let mut id = 1;
    while rig.outcome(0).is_none() {
        assert!(id < 400, "the chunked row never ends");
        while rig.scheduler.stats().waiting_decode_seqs < 2 {
            rig.submit(generate(id, prompt(2 + id as u32 % 50, 40), 2, 1));
            id += 1;
        }
        rig.step();
    }
    rig.drain();
}

#[test]
fn choices_share_their_prompt_once_it_is_computed() {
    let mut rig = Rig::small(128);
    rig.submit(generate(7, prompt(1, 50), 3, 4));
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    // The first choice computes all 50; the others find 48 of them, and go on beside it.
    assert_eq!(sizes, [50, 1 + 3 * 2, 4, 3]);
    let usage = rig.usage(7);
    assert_eq!(
        (usage.prompt_tokens, usage.computed_tokens),
        (50, 50 + 3 * 2)
    );
    assert_eq!(usage.output_tokens, 12);
    let all: Vec<Vec<u32>> = (0..4).map(|choice| rig.tokens(7, choice)).collect();
    assert!(all.iter().all(|tokens| tokens.len() == 3) && all[0] != all[1]);
}

#[test]
fn a_peer_waits_for_its_leader_but_not_for_ever() {
    let check = |defer_max, expected: &[usize]| {
        let capacity = Capacity {
            pipeline_depth: 2,
            ..CAPACITY
        };
        let mut rig = Rig::new(
            SchedulerConfig {
                defer_max,
                ..SchedulerConfig::default()
            },
            capacity,
        );
        rig.submit(classify(0, prompt(1, 21)));
        let first = rig.start().unwrap();
        // The same prefix, while its blocks are being computed; and something to do meanwhile.
        rig.submit(classify(1, suffixed(&prompt(1, 21), 5)));
        rig.submit(generate(2, prompt(3, 4), 9, 1));
        let second = rig.start().unwrap();
        rig.finish_step();
        rig.finish_step();
        let third = rig.step();
        let sizes = [first, second, third].map(|batch| batch.num_tokens());
        assert_eq!(sizes, expected);
    };
    check(2, &[21, 4, 1 + 2]);
    check(0, &[21, 4 + 22, 1]);
}

#[test]
fn an_abort_in_flight_frees_everything_once() {
    for depth in [1, 2] {
        let mut rig = Rig::new(
            SchedulerConfig::default(),
            Capacity {
                pipeline_depth: depth,
                ..CAPACITY
            },
        );
        rig.submit(generate(0, prompt(1, 10), 50, 2));
        rig.submit(classify(1, prompt(2, 10)));
        rig.step();
        while rig.start().is_some() {}
        let mut events = Vec::new();
        assert!(rig.scheduler.abort(rig.now, RequestId(0), &mut events));
        assert!(!rig.scheduler.abort(rig.now, RequestId(0), &mut events));
        assert!(!rig.scheduler.abort(rig.now, RequestId(99), &mut events));
        assert_eq!(events.len(), 1);
        rig.scheduler.check_invariants();
        rig.events.clear();
        while !rig.running.is_empty() {
            rig.finish_step();
        }
        assert_eq!(rig.events, [], "nothing is said of it any more");
        assert_eq!(rig.scheduler.stats().used_blocks, 0);
        assert!(rig.start().is_none());
    }
}

#[test]
fn the_youngest_loses_its_blocks_and_nothing_else() {
    let capacity = Capacity {
        num_blocks: 10,
        max_context_len: 40,
        ..CAPACITY
    };
    let alone = |id| {
        let mut rig = Rig::new(SchedulerConfig::default(), capacity);
        rig.submit(generate(id, prompt(id as u32, 8), 30, 1));
        rig.drain();
        rig.tokens(id, 0)
    };
    let mut rig = Rig::new(SchedulerConfig::default(), capacity);
    rig.submit(generate(0, prompt(0, 8), 30, 1));
    rig.submit(generate(1, prompt(1, 8), 30, 1));
    rig.drain();
    let preempted: Vec<RequestId> = rig
        .events
        .iter()
        .filter_map(|e| {
            if let Event::Preempted { request } = e {
                Some(*request)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(preempted, [RequestId(1)]);
    assert_eq!(rig.order(), [0, 1]);
    assert_eq!((rig.tokens(0, 0), rig.tokens(1, 0)), (alone(0), alone(1)));
    assert!(rig.usage(1).computed_tokens > 8, "it was computed again");
}

#[test]
fn run_ahead_knows_when_to_stop() {
    let mut rig = Rig::new(
        SchedulerConfig::default(),
        Capacity {
            pipeline_depth: 2,
            ..CAPACITY
        },
    );
    rig.submit(generate(0, prompt(0, 5), 4, 1));
    rig.step();
    let mut sources = Vec::new();
    while !rig.running.is_empty() || sources.is_empty() {
        while let Some(ForwardBatch::Decode(batch)) = rig.start() {
            let row = &batch.rows[0];
            let ahead = matches!(row.token, TokenSource::Sampled(_));
            sources.push((row.context_len, row.sample.output_position, ahead));
        }
        rig.finish_step();
    }
    // One token came with the prompt; the fourth is the last.
    assert_eq!(sources, [(5, 1, false), (6, 2, true), (7, 3, true)]);
    assert_eq!(rig.tokens(0, 0).len(), 4);
    assert_eq!(rig.outcome(0), Some(&Outcome::Done));
}

#[test]
fn draws_of_one_row_end_at_once() {
    let mut rig = Rig::small(64);
    rig.submit(generate(0, prompt(0, 9), 1, 5));
    let batch = rig.step();
    assert_eq!((batch.num_tokens(), batch.num_rows()), (9, 1));
    let ends = rig.events.iter().filter(|e| {
        matches!(
            e,
            Event::RowFinished {
                reason: crate::FinishReason::Length,
                ..
            }
        )
    });
    assert_eq!(ends.count(), 5);
    assert_eq!(rig.usage(0).output_tokens, 5);
}

#[test]
fn lower_priority_values_run_first() {
    let mut rig = Rig::small(16);
    for (id, priority) in [(0, 1), (1, 0), (2, 0), (3, -1)] {
        let mut request = classify(id, prompt(id as u32, 16));
        request.priority = priority;
        rig.submit(request);
    }
    rig.drain();
    assert_eq!(rig.order(), [3, 1, 2, 0]);
}

#[test]
fn queues_are_bounded_in_rows_and_tokens() {
    let config = SchedulerConfig {
        max_queued_rows: 4,
        max_queued_tokens: 50,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    let mut check = |request: Request, expected: Result<(), &str>| {
        let got = rig
            .scheduler
            .submit(rig.now, request)
            .map_err(|e| e.to_string());
        assert_eq!(got, expected.map_err(str::to_owned));
        rig.scheduler.check_invariants();
    };
    check(
        generate(0, prompt(0, 9), 1, 5),
        Err("the request's 5 rows exceed the queue's limit of 4"),
    );
    check(
        classify(0, prompt(0, 51)),
        Err("the request's 51 prompt tokens exceed the queue's limit of 50"),
    );
    check(generate(0, prompt(0, 10), 9, 3), Ok(()));
    check(classify(0, prompt(0, 9)), Err("request id 0 is in use"));
    check(
        generate(1, prompt(0, 9), 1, 2),
        Err("queue full: 2 rows beside 3 queued exceed the limit of 4"),
    );
    check(
        classify(1, prompt(0, 41)),
        Err("queue full: 41 prompt tokens beside 10 queued exceed the limit of 50"),
    );
    check(classify(1, prompt(0, 1)), Ok(()));
    // What has started does not wait any more.
    rig.step();
    rig.step();
    assert_eq!(
        (
            rig.scheduler.stats().queued_rows,
            rig.scheduler.stats().queued_tokens
        ),
        (0, 0)
    );
    assert_eq!(rig.scheduler.stats().requests, 1);
}

#[test]
fn what_can_never_fit_is_refused() {
    let capacity = Capacity {
        num_blocks: 4,
        max_step_tokens: 20,
        ..CAPACITY
    };
    let mut rig = Rig::new(SchedulerConfig::default(), capacity);
    let mut check = |request: Request, needed: Option<u64>| {
        let expected = match needed {
            Some(needed) => Err(Reject::NeverFits {
                row: 0,
                needed,
                available: 4,
            }),
            None => Ok(()),
        };
        assert_eq!(rig.scheduler.submit(rig.now, request), expected);
    };
    // 16 positions; the last token needs none.
    check(generate(0, prompt(0, 10), 7, 1), None);
    check(generate(1, prompt(0, 10), 8, 1), Some(5));
    // One step holds it without any block.
    check(classify(2, prompt(0, 20)), None);
    check(classify(3, prompt(0, 21)), Some(6));
    rig.drain();
    assert_eq!(
        (rig.outcome(0), rig.outcome(2)),
        (Some(&Outcome::Done), Some(&Outcome::Done))
    );
}

#[test]
fn deadlines_drop_what_has_not_started() {
    let mut rig = Rig::small(16);
    let due = |id, ns| {
        let mut request = classify(id, prompt(id as u32, 16));
        request.deadline = Some(Timestamp::from_nanos(ns));
        request
    };
    rig.submit(due(0, 100));
    rig.submit(due(1, 200));
    rig.submit(due(2, 150));
    assert_eq!(
        rig.scheduler.next_deadline(),
        Some(Timestamp::from_nanos(100))
    );
    rig.start();
    assert_eq!(
        rig.scheduler.next_deadline(),
        Some(Timestamp::from_nanos(150))
    );
    rig.now = Timestamp::from_nanos(170);
    rig.finish_step();
    rig.step();
    assert_eq!(rig.order(), [0, 2, 1]);
    assert_eq!(rig.outcome(2), Some(&Outcome::DeadlineExpired));
    assert_eq!(rig.usage(2).queue_time, Duration::from_nanos(168));
    assert_eq!(rig.scheduler.next_deadline(), None);
    let late = rig.scheduler.submit(rig.now, due(3, 160)).unwrap_err();
    assert_eq!(
        late.to_string(),
        "the deadline passed 10 ns before the request was submitted"
    );
}

#[test]
fn who_may_be_late_is_not_dropped() {
    let mut rig = Rig::small(16);
    let may_be_late = |id| {
        let mut request = classify(id, prompt(id as u32, 16));
        request.deadline = Some(Timestamp::from_nanos(100));
        request.on_deadline = prelude_core::OnDeadline::Finish;
        request
    };
    rig.submit(may_be_late(0));
    rig.submit(may_be_late(1));
    assert_eq!(rig.scheduler.next_deadline(), None);
    rig.start();
    rig.now = Timestamp::from_nanos(500);
    rig.submit(may_be_late(2));
    rig.finish_step();
    rig.step();
    rig.step();
    for id in 0..3 {
        assert_eq!(rig.outcome(id), Some(&Outcome::Done), "{id}");
    }
}

#[test]
fn a_failed_step_fails_its_requests_only() {
    let mut rig = Rig::new(
        SchedulerConfig {
            max_batch_tokens: 16,
            ..SchedulerConfig::default()
        },
        Capacity {
            pipeline_depth: 2,
            ..CAPACITY
        },
    );
    rig.submit(classify(0, prompt(0, 16)));
    rig.submit(classify(1, prompt(1, 16)));
    rig.submit(classify(2, prompt(2, 16)));
    rig.start();
    rig.start();
    let (first, second) = (rig.running[0], rig.running[1]);
    let output = rig.executor.collect(first).unwrap();
    assert_eq!(
        rig.scheduler
            .complete(rig.now, second, Ok(output.clone()), &mut rig.events),
        Err(UnknownStep(second)),
        "steps complete in order"
    );
    // A failure may come first.
    rig.complete(second, Err(ExecutorError::Step("overheated".to_owned())));
    assert_eq!(
        rig.outcome(1),
        Some(&Outcome::Failed("step failed: overheated".to_owned()))
    );
    rig.complete(first, Ok(output));
    assert_eq!(rig.outcome(0), Some(&Outcome::Done));
    // An output that is not this step's is a failure too.
    let (third, _) = rig.scheduler.next_batch(rig.now, &mut rig.events).unwrap();
    rig.complete(
        third,
        Ok(StepOutput {
            step: third,
            ..StepOutput::default()
        }),
    );
    let Some(Outcome::Failed(why)) = rig.outcome(2) else {
        panic!("it must fail")
    };
    assert_eq!(
        why,
        "the executor's output does not match its batch: one-shot rows"
    );
}

#[test]
fn a_lost_executor_ends_everything() {
    let mut rig = Rig::small(16);
    rig.submit(classify(0, prompt(0, 16)));
    rig.submit(generate(1, prompt(1, 16), 4, 1));
    rig.start();
    rig.complete(StepId(0), Err(ExecutorError::Lost("unplugged".to_owned())));
    let lost = Outcome::Failed("device lost: unplugged".to_owned());
    assert_eq!((rig.outcome(0), rig.outcome(1)), (Some(&lost), Some(&lost)));
    assert_eq!(rig.scheduler.stats().used_blocks, 0);
    assert!(rig.start().is_none());
}

#[test]
fn neither_class_starves_the_other() {
    // Prompts of generations without end, against rows that take nearly a whole step.
    let config = SchedulerConfig {
        max_batch_tokens: 16,
        max_num_seqs: 2,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    for round in 0..60u32 {
        if rig.scheduler.stats().waiting_decode_seqs < 4 {
            rig.submit(generate(u64::from(1000 + round), prompt(round, 64), 2, 1));
        }
        if rig.scheduler.stats().waiting_oneshot_rows < 4 {
            rig.submit(classify(u64::from(round), prompt(500 + round, 13)));
        }
        rig.step();
    }
    let done = rig.order();
    let rows = done.iter().filter(|&&id| id < 1000).count();
    let generations = done.len() - rows;
    // Half of 60 steps of 16 tokens is 480: about 36 rows of 13 tokens, or 7 prompts of 64.
    assert!((20..=40).contains(&rows), "{rows} rows");
    assert!((5..=11).contains(&generations), "{generations} generations");
}

#[test]
fn label_scores_and_generations_live_in_one_request() {
    let mut rig = Rig::small(64);
    let (tree, nodes) =
        PromptTree::from_prompts(&[prompt(1, 20), suffixed(&prompt(1, 20), 3)]).unwrap();
    let labels = Head::LabelScores {
        labels: Arc::from([1, 2]),
        normalise: Normalise::OverLabels,
    };
    let sampling = Arc::new(SamplingParams::default());
    let decode = |max_tokens| {
        Head::Generate(Generate {
            max_tokens,
            n: 1,
            sampling: sampling.clone(),
            top_logprobs: None,
            constraint: None,
        })
    };
    let rows = vec![
        RowSpec {
            node: nodes[0],
            head: labels,
        },
        RowSpec {
            node: nodes[1],
            head: decode(3),
        },
        RowSpec {
            node: nodes[1],
            head: decode(1),
        },
    ];
    rig.submit(Request::new(RequestId(0), tree, rows, Timestamp::ZERO));
    rig.drain();
    assert_eq!(rig.outcome(0), Some(&Outcome::Done));
    assert_eq!(rig.tokens(0, 0).len(), 4, "three of row 1 and one of row 2");
    assert!(
        rig.events
            .iter()
            .any(|e| matches!(e, Event::Output { row: 0, .. }))
    );
}

#[test]
fn without_a_cache_nothing_is_kept_but_the_answers() {
    let config = SchedulerConfig {
        enable_prefix_caching: false,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    for id in 0..3 {
        rig.submit(classify(id, prompt(1, 20)));
        rig.drain();
        assert_eq!(rig.usage(id).computed_tokens, 20);
    }
    assert_eq!(rig.scheduler.stats().free_blocks, 64);
}

#[test]
fn a_bad_config_is_refused() {
    let config = SchedulerConfig {
        max_batch_tokens: 0,
        ..SchedulerConfig::default()
    };
    assert!(Scheduler::new(config, CAPACITY).is_err());
}

/// Shortest remaining prompt first, asked anew before every step (the order of `PrefillOnly` §6),
/// one request a step.
struct ShortestFirst;

impl SchedulerPolicy for ShortestFirst {
    fn plan(&mut self, view: &QueueView<'_>, _budget: StepBudget) -> Plan {
        let uncached = |w: &&crate::Waiting| {
            let size = view.next_prompt(w.request).expect("it waits");
            (size.tokens - size.cached, w.arrival)
        };
        let next = view.oneshot().min_by_key(uncached);
        let grant = |w: &crate::Waiting| crate::Grant {
            request: w.request,
            tokens: u32::MAX,
        };
        Plan {
            oneshot: next.map(grant).into_iter().collect(),
            decode: Vec::new(),
        }
    }
}

/// A and D share a prefix, B and C another, there is room for one, and A < C < B < D: an order
/// that looks at the cache before every step hits twice.
#[test]
fn a_policy_can_follow_the_cache() {
    let config = SchedulerConfig {
        keep_shared_min_rows: 1,
        ..SchedulerConfig::default()
    };
    let capacity = Capacity {
        num_blocks: 4,
        ..CAPACITY
    };
    let scheduler = Scheduler::with_policy(config, capacity, Box::new(ShortestFirst)).unwrap();
    let mut rig = Rig {
        scheduler,
        ..Rig::new(SchedulerConfig::default(), capacity)
    };
    let of = |prefix: u32, len: usize| {
        [prompt(prefix, 16), prompt(50 + len as u32, len as u32)].concat()
    };
    let [a, b, c, d] = [of(1, 1), of(2, 3), of(2, 2), of(1, 4)];
    for (id, prompt) in [a, b, c, d].into_iter().enumerate() {
        rig.submit(classify(id as u64, prompt));
    }
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    assert_eq!(rig.order(), [0, 3, 2, 1]);
    assert_eq!(sizes, [17, 4, 18, 3]);
}

/// Any text, of which the tokens that may come next are due when somebody says so.
#[derive(Clone, Debug)]
struct Anything {
    due_us: Arc<AtomicU64>,
    set: TokenSet,
    taken: Arc<AtomicU64>,
}

impl Anything {
    fn new() -> Self {
        Self {
            due_us: Arc::default(),
            set: TokenSet::all(CAPACITY.vocab_size),
            taken: Arc::default(),
        }
    }

    fn set_near(&self, near: bool) {
        self.set_due_ms(if near { 0 } else { 3_600_000 });
    }

    fn set_due_ms(&self, ms: u64) {
        self.due_us.store(1_000 * ms, Ordering::Relaxed);
    }

    fn constrain(&self, mut request: Request) -> Request {
        for row in &mut request.rows {
            if let Head::Generate(generate) = &mut row.head {
                generate.constraint = Some(Arc::new(self.clone()));
            }
        }
        request
    }
}

impl Constraint for Anything {
    fn start(&self) -> Box<dyn Walk> {
        Box::new(self.clone())
    }
}

impl Walk for Anything {
    fn next(&mut self) -> Arc<dyn NextTokens> {
        Arc::new(self.clone())
    }

    fn take(&mut self, _: TokenId) -> Progress {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Progress::Open
    }
}

impl NextTokens for Anything {
    fn wait(&self) -> Option<&TokenSet> {
        Some(&self.set)
    }

    fn due_in(&self) -> Duration {
        Duration::from_micros(self.due_us.load(Ordering::Relaxed))
    }
}

fn decode_rows(batch: &ForwardBatch) -> usize {
    batch.parts().2.rows.len()
}

#[test]
fn a_step_goes_without_rows_whose_tokens_are_far_from_known() {
    let mut rig = Rig::small(128);
    let mask = Anything::new();
    rig.submit(mask.constrain(generate(1, prompt(1, 8), 6, 3)));
    rig.submit(generate(2, prompt(2, 8), 12, 1));
    rig.step();
    // The choices found the prompt in the cache, if they were not in the first step.
    while !rig.step().parts().1.rows.is_empty() {}
    assert_eq!(decode_rows(&rig.step()), 4);
    mask.set_near(false);
    let before = rig.tokens(1, 0).len();
    for _ in 0..4 {
        assert_eq!(decode_rows(&rig.step()), 1, "the free one goes on alone");
    }
    assert_eq!(rig.tokens(1, 0).len(), before);
    mask.set_near(true);
    assert_eq!(decode_rows(&rig.step()), 4);
    rig.drain();
    // Sitting out changes nothing of what is said.
    let mut undisturbed = Rig::small(128);
    undisturbed.submit(Anything::new().constrain(generate(1, prompt(1, 8), 6, 3)));
    undisturbed.drain();
    for choice in 0..3 {
        assert_eq!(rig.tokens(1, choice), undisturbed.tokens(1, choice));
    }
}

#[test]
fn alone_rows_wait_for_the_oldest_and_no_longer() {
    let mut rig = Rig::small(128);
    // Older first.
    let masks = [10, 5, 20].map(|due| (due, Anything::new()));
    for (id, (_, mask)) in (1..).zip(&masks) {
        rig.submit(mask.constrain(generate(id, prompt(id as u32, 8), 6, 1)));
    }
    assert_eq!(rig.step().parts().1.rows.len(), 3);
    for (due, mask) in &masks {
        mask.set_due_ms(*due);
    }
    let said = |rig: &Rig| [1, 2, 3].map(|id| rig.tokens(id, 0).len());
    assert_eq!(decode_rows(&rig.step()), 2);
    assert_eq!(said(&rig), [2, 2, 1]);
    masks[1].1.set_due_ms(11);
    assert_eq!(decode_rows(&rig.step()), 1);
    assert_eq!(said(&rig), [3, 2, 1]);
    rig.drain();
    assert_eq!(said(&rig), [6, 6, 6]);
}

/// One whole step that takes `ms`.
fn step_of(rig: &mut Rig, ms: u64) -> ForwardBatch {
    let batch = rig.start().expect("something waits");
    rig.now = Timestamp::from_nanos(rig.now.as_nanos() + ms * 1_000_000);
    rig.finish_step();
    batch
}

#[test]
fn a_step_counts_on_masks_that_it_hides() {
    let mut rig = Rig::small(128);
    let mask = Anything::new();
    rig.submit(mask.constrain(generate(1, prompt(1, 8), 30, 3)));
    rig.submit(generate(2, prompt(2, 8), 60, 1));
    step_of(&mut rig, 100);
    while !step_of(&mut rig, 100).parts().1.rows.is_empty() {}
    // Every mask is queued when a step is planned, and far before that step is over.
    mask.set_due_ms(60);
    for _ in 0..10 {
        assert_eq!(decode_rows(&step_of(&mut rig, 100)), 4);
    }
    mask.set_due_ms(90);
    assert_eq!(decode_rows(&step_of(&mut rig, 100)), 1);
    // After one short step, masks have no longer than that.
    step_of(&mut rig, 20);
    mask.set_due_ms(60);
    assert_eq!(decode_rows(&step_of(&mut rig, 20)), 1);
    mask.set_due_ms(15);
    assert_eq!(decode_rows(&step_of(&mut rig, 20)), 4);
    rig.drain();
}

#[test]
fn rows_without_company_share_the_steps_that_hide_their_masks() {
    let mut rig = Rig::small(128);
    let mask = Anything::new();
    rig.submit(mask.constrain(generate(1, prompt(1, 8), 20, 3)));
    step_of(&mut rig, 100);
    while !step_of(&mut rig, 100).parts().1.rows.is_empty() {}
    mask.set_due_ms(60);
    for _ in 0..10 {
        assert_eq!(decode_rows(&step_of(&mut rig, 100)), 3);
    }
    rig.drain();
}

fn masks(batch: &ForwardBatch) -> usize {
    let (_, prefill, decode) = batch.parts();
    let first = prefill.rows.iter().filter_map(|row| match &row.head {
        OutputHead::Sample(head) => head.mask.as_ref(),
        _ => None,
    });
    let later = decode
        .rows
        .iter()
        .filter_map(|row| row.sample.mask.as_ref());
    first.chain(later).count()
}

#[test]
fn who_resumes_is_sampled_when_its_tokens_are_known() {
    let capacity = Capacity {
        num_blocks: 12,
        max_context_len: 48,
        ..CAPACITY
    };
    let mask = Anything::new();
    let constrained = || mask.constrain(generate(2, prompt(2, 8), 30, 1));
    // What is left in the cache or not, in whole steps or in chunks of at most five tokens.
    for (enable_prefix_caching, prefill_chunk_tokens) in
        [(false, 512), (true, 512), (false, 5), (true, 5)]
    {
        let config = SchedulerConfig {
            enable_prefix_caching,
            prefill_chunk_tokens,
            ..SchedulerConfig::default()
        };
        let mut undisturbed = Rig::new(config.clone(), capacity);
        undisturbed.submit(constrained());
        undisturbed.drain();
        let mut rig = Rig::new(config, capacity);
        rig.submit(generate(0, prompt(0, 8), 20, 1));
        rig.submit(generate(1, prompt(1, 8), 12, 1));
        rig.submit(constrained());
        while rig.scheduler.stats().preemptions == 0 {
            rig.step();
        }
        mask.set_near(false);
        let mut resumed = 0;
        while rig.outcome(0).is_none() {
            let batch = rig.step();
            assert_eq!(masks(&batch), 0, "the others do not wait for it");
            resumed += batch.parts().1.tokens.len();
        }
        assert!(resumed > 0, "all but its last token is computed meanwhile");
        // Nobody else is there.
        let batch = rig.step();
        assert_eq!((masks(&batch), batch.num_tokens()), (1, 1));
        mask.set_near(true);
        rig.drain();
        assert_eq!(rig.tokens(2, 0), undisturbed.tokens(2, 0));
    }
}

#[test]
fn who_sits_out_loses_patience_and_is_waited_for() {
    let mut rig = Rig::small(128);
    let mask = Anything::new();
    rig.submit(mask.constrain(generate(1, prompt(1, 8), 6, 2)));
    rig.submit(generate(2, prompt(2, 8), 40, 1));
    rig.step();
    while !rig.step().parts().1.rows.is_empty() {}
    mask.set_near(false);
    assert_eq!(decode_rows(&rig.step()), 1);
    let patience = u64::from(SchedulerConfig::default().mask_patience_ms);
    rig.now = Timestamp::from_nanos(rig.now.as_nanos() + patience * 1_000_000);
    let before = rig.tokens(1, 0).len();
    // One of the two in each step, each with its own patience.
    assert_eq!(decode_rows(&rig.step()), 2);
    assert_eq!(decode_rows(&rig.step()), 2);
    assert_eq!(decode_rows(&rig.step()), 1);
    let after = (rig.tokens(1, 0).len(), rig.tokens(1, 1).len());
    assert_eq!(after.0, before + 1);
    mask.set_near(true);
    rig.drain();
    assert_eq!(rig.outcome(1), Some(&Outcome::Done));
}

#[test]
fn equal_draws_walk_a_constraint_once() {
    let mut rig = Rig::small(128);
    let mask = Anything {
        set: TokenSet::from_ids(0..4, CAPACITY.vocab_size),
        ..Anything::new()
    };
    let constraint: Arc<dyn Constraint> = Arc::new(mask.clone());
    let mut request = generate(1, prompt(1, 8), 1, 64);
    // Two rows under one constraint.
    request.rows.push(request.rows[0].clone());
    for row in &mut request.rows {
        if let Head::Generate(generate) = &mut row.head {
            generate.constraint = Some(Arc::clone(&constraint));
        }
    }
    rig.submit(request);
    rig.drain();
    let mut drawn = Vec::new();
    for event in &rig.events {
        if let Event::Token { token, .. } = event {
            drawn.push(token.token);
        }
    }
    assert_eq!(drawn.len(), 128);
    drawn.sort_unstable();
    drawn.dedup();
    assert!(drawn.len() <= 4, "{drawn:?}");
    assert_eq!(mask.taken.load(Ordering::Relaxed), drawn.len() as u64);
}
