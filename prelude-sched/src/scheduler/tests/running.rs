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

/// What the steps compute for each class comes to what its requests' texts have, token by token:
/// one-shot prompts have tokens below 500, prompts of generations have others.
#[test]
fn mixed_steps_count_each_class_apart() {
    let mut rig = Rig::small(16);
    for id in 0..4u32 {
        let (first, len) = (500 + 20 * id, 10 + id);
        let text = (first..first + len).collect();
        rig.submit(generate(u64::from(id), text, 3, 1));
        let text = (20 * id..20 * id + 13).collect();
        rig.submit(classify(u64::from(10 + id), text));
    }
    let counted = |rig: &Rig| {
        let stats = rig.scheduler.stats();
        [
            stats.oneshot_tokens,
            stats.prefill_tokens,
            stats.decode_tokens,
        ]
    };
    let (mut sum, mut mixed) = ([0; 3], 0);
    while let Some(batch) = rig.start() {
        let (oneshot, prefill, decode) = batch.parts();
        assert!(oneshot.tokens.iter().all(|&token| token < 500));
        assert!(prefill.tokens.iter().all(|&token| token >= 500));
        let parts = [
            oneshot.tokens.len() as u64,
            prefill.tokens.len() as u64,
            decode.rows.len() as u64,
        ];
        mixed += u32::from(parts[0] > 0 && parts[1] + parts[2] > 0);
        sum = [0, 1, 2].map(|class| sum[class] + parts[class]);
        assert_eq!(counted(&rig), sum);
        rig.finish_step();
    }
    assert!(mixed > 1, "{mixed} mixed steps");
    // The first of three tokens comes with the prompt.
    assert_eq!(sum, [4 * 13, 10 + 11 + 12 + 13, 4 * 2]);
    assert_eq!(rig.scheduler.stats().requests, 0);
}

/// Requests that differ in heads or in options are rows of the first step, all of them.
#[test]
fn all_heads_and_options_share_a_step() {
    let labels = |labels: &[u32], normalise| Head::LabelScores {
        labels: Arc::from(labels),
        normalise,
    };
    let embed = |pooling, dimensions| Head::Embed {
        pooling,
        normalise: true,
        dimensions,
    };
    let token = |temperature, top_logprobs| {
        let sampling = SamplingParams {
            temperature,
            ..SamplingParams::default()
        };
        Head::Generate(Generate {
            max_tokens: 1,
            n: 1,
            sampling: Arc::new(sampling),
            top_logprobs,
            constraint: None,
        })
    };
    let logprobs = |top| Head::PromptLogprobs {
        positions: 1..9,
        top,
    };
    let heads = [
        Head::Classify,
        labels(&[1, 2], Normalise::OverLabels),
        labels(&[3, 4, 5], Normalise::OverVocab),
        embed(Pooling::Last, None),
        embed(Pooling::Mean, Some(2)),
        token(0.0, None),
        token(0.7, Some(3)),
        logprobs(0),
        logprobs(2),
    ];
    let mut rig = Rig::small(128);
    for (id, head) in (0..).zip(&heads) {
        rig.submit(request(u64::from(id), prompt(id, 9), head.clone()));
    }
    let ForwardBatch::OneShot(first) = rig.step() else {
        panic!("one-shot work alone");
    };
    let said = |head: &OutputHead| match head {
        OutputHead::Sample(sample) => {
            format!(
                "token {} {:?}",
                sample.sampling.temperature, sample.top_logprobs
            )
        }
        OutputHead::LabelScores { labels, normalise } => format!("labels {labels:?} {normalise:?}"),
        OutputHead::Logprobs { targets, top } => format!("logprobs {} {top}", targets.len()),
        OutputHead::Embed {
            pooling,
            dimensions,
            ..
        } => format!("embed {pooling:?} {dimensions:?}"),
        other => format!("{other:?}"),
    };
    let mut rows: Vec<String> = first.rows.iter().map(|row| said(&row.head)).collect();
    rows.sort();
    let expected = [
        "Classify",
        "embed Last None",
        "embed Mean Some(2)",
        "labels [1, 2] OverLabels",
        "labels [3, 4, 5] OverVocab",
        "logprobs 8 0",
        "logprobs 8 2",
        "token 0 None",
        "token 0.7 Some(3)",
    ];
    assert_eq!(rows, expected);
    assert_eq!(rig.scheduler.stats().requests, 0, "all have their answers");
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
