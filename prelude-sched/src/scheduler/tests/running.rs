//! Sequences that run: aborts, preemption, running ahead, order, fairness.

use super::*;

#[test]
fn an_abort_in_flight_frees_everything_once() {
    for depth in [1, 2] {
        let mut rig = Rig::new(
            SchedulerConfig::default(),
            Capacity {
                pipeline_depth: depth,
                passes: None,
                host_blocks: 0,
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

/// The second prompt fits the eight blocks that are left, but the first generation grows.
#[test]
fn admission_leaves_running_sequences_blocks_to_grow_into() {
    let capacity = Capacity {
        num_blocks: 10,
        max_context_len: 40,
        ..CAPACITY
    };
    let mut rig = Rig::new(SchedulerConfig::default(), capacity);
    rig.submit(generate(0, prompt(0, 8), 12, 1));
    rig.step();
    rig.submit(generate(1, prompt(1, 28), 6, 1));
    rig.drain();
    assert_eq!(rig.scheduler.stats().preemptions, 0);
    assert_eq!(rig.order(), [0, 1]);
}

#[test]
fn run_ahead_knows_when_to_stop() {
    let mut rig = Rig::new(
        SchedulerConfig::default(),
        Capacity {
            pipeline_depth: 2,
            passes: None,
            host_blocks: 0,
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
fn no_class_starves_the_other() {
    // Prompts of generations without end, against rows that take nearly a whole step.
    let config = SchedulerConfig {
        max_batch_tokens: Some(16),
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
