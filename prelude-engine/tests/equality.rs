//! The engine's central promise: a row's answer is that of its whole prompt run alone, bit for
//! bit, whatever it shares a step with, however it is chunked, and wherever its prefix comes from.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use prelude_core::{
    Generate, Head, Normalise, Pooling, PromptTree, RowOutput, RowSpec, SamplingParams, TokenId,
};
use prelude_engine::{
    Answer, CollectedRow, EngineConfig, EngineHandle, RequestSpec, ScheduledEngine, SchedulerConfig,
};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuDtype, CpuExecutor};
use prelude_sched::{LapsConfig, PolicyConfig};
use proptest::prelude::*;

/// The settings of an engine.
#[derive(Clone, Copy, Debug)]
struct Setup {
    caching: bool,
    block_size: u32,
    num_blocks: u32,
    max_batch_tokens: u32,
    chunk_tokens: u32,
    threads: usize,
    dtype: CpuDtype,
    /// Length-aware prefill: prompts paused and cut smaller than steps ask for.
    laps: bool,
}

/// The plainest way to run a row: nothing shared, nothing cached, nothing chunked.
const ALONE: Setup = Setup {
    caching: false,
    block_size: 16,
    num_blocks: 64,
    max_batch_tokens: 512,
    chunk_tokens: 512,
    threads: 1,
    dtype: CpuDtype::F32,
    laps: false,
};

fn engine(setup: Setup) -> ScheduledEngine {
    let executor_config = CpuConfig {
        dtype: Some(setup.dtype),
        block_size: setup.block_size,
        num_blocks: Some(setup.num_blocks),
        max_step_tokens: 512,
        chunk_tokens: setup.chunk_tokens,
        ..CpuConfig::default()
    };
    let pool = Arc::new(ComputePool::new(setup.threads));
    let executor = CpuExecutor::new(&support::checkpoint(7), executor_config, pool).unwrap();
    let scheduler = SchedulerConfig {
        enable_prefix_caching: setup.caching,
        max_batch_tokens: Some(setup.max_batch_tokens),
        policy: if setup.laps {
            PolicyConfig::Laps
        } else {
            PolicyConfig::Fcfs
        },
        laps: LapsConfig {
            boundary_tokens: 12,
            chunk_tokens: 24,
            ..LapsConfig::default()
        },
        ..SchedulerConfig::default()
    };
    let config = EngineConfig {
        scheduler,
        ..EngineConfig::default()
    };
    ScheduledEngine::spawn("equality", config, Box::new(executor)).unwrap()
}

/// Rows of one request: whole prompts and what to compute.
type Rows = Vec<(Vec<TokenId>, Head)>;

fn spec(rows: &Rows) -> RequestSpec {
    let prompts: Vec<&[TokenId]> = rows.iter().map(|(p, _)| &p[..]).collect();
    let (tree, ends) = PromptTree::from_prompts(&prompts).unwrap();
    let rows = rows.iter().zip(ends);
    let rows = rows
        .map(|((_, head), node)| RowSpec {
            node,
            head: head.clone(),
        })
        .collect();
    RequestSpec::new(tree, rows)
}

fn submit_all(handle: &EngineHandle, requests: &[Rows]) -> Vec<Answer> {
    requests
        .iter()
        .map(|rows| handle.submit(spec(rows)).unwrap())
        .collect()
}

/// Floats as bits, so that equal means equal.
fn bits(row: &CollectedRow) -> String {
    let f = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    match row {
        CollectedRow::Output(RowOutput::Classes(v) | RowOutput::Embedding(v)) => {
            format!("{:?}", f(v))
        }
        CollectedRow::Output(RowOutput::LabelScores(s)) => {
            format!("{:?} {:?}", f(&s.logits), s.log_sum_exp.map(f32::to_bits))
        }
        CollectedRow::Output(RowOutput::Logprobs {
            first_position,
            entries,
        }) => {
            let mut text = format!("{first_position}");
            for e in entries {
                let top: Vec<_> = e
                    .top
                    .iter()
                    .map(|t| (t.token, t.logprob.to_bits()))
                    .collect();
                text += &format!(" {}:{}:{}:{top:?}", e.token, e.logprob.to_bits(), e.rank);
            }
            text
        }
        CollectedRow::Output(other) => panic!("unexpected output {other:?}"),
        CollectedRow::Generated(choices) => {
            let mut text = String::new();
            for choice in choices {
                for t in &choice.tokens {
                    let top: Vec<_> = t
                        .top
                        .iter()
                        .map(|t| (t.token, t.logprob.to_bits()))
                        .collect();
                    text += &format!("{}:{:?}:{top:?} ", t.token, t.logprob.map(f32::to_bits));
                }
                text += &format!("{:?};", choice.finish);
            }
            text
        }
    }
}

/// Runs every row as a request of its own, one after another.
fn alone(requests: &[Rows], dtype: CpuDtype) -> Vec<Vec<String>> {
    let engine = engine(Setup { dtype, ..ALONE });
    let handle = engine.handle();
    let run = |row: &(Vec<TokenId>, Head)| {
        let answer = handle
            .submit(spec(&vec![row.clone()]))
            .unwrap()
            .blocking_collect()
            .unwrap();
        bits(&answer.rows[0])
    };
    requests
        .iter()
        .map(|rows| rows.iter().map(run).collect())
        .collect()
}

fn check(setup: Setup, requests: &[Rows]) -> Result<(), TestCaseError> {
    let expected = alone(requests, setup.dtype);
    let engine = engine(setup);
    let handle = engine.handle();
    // The second round finds in the cache what the first one left there.
    for round in 0..2 {
        let answers = submit_all(&handle, requests);
        for (request, (answer, expected)) in answers.into_iter().zip(&expected).enumerate() {
            let got = answer
                .blocking_collect()
                .expect("every request has an answer");
            for (row, (got, expected)) in got.rows.iter().zip(expected).enumerate() {
                prop_assert_eq!(
                    &bits(got),
                    expected,
                    "round {} request {} row {}: {:?}",
                    round,
                    request,
                    row,
                    &requests[request][row]
                );
            }
        }
    }
    let stats = handle.snapshot().scheduler;
    prop_assert_eq!(
        (stats.requests, stats.queued_rows, stats.used_blocks),
        (0, 0, 0)
    );
    Ok(())
}

fn head() -> impl Strategy<Value = Head> {
    let sampling = (0.0f32..1.5, 0u64..9, 0u32..3, 0.5f32..1.0).prop_map(|(t, seed, kind, p)| {
        let temperature = if t < 0.5 { 0.0 } else { t };
        let penalty = if kind == 2 { 1.3 } else { 1.0 };
        Arc::new(SamplingParams {
            temperature,
            seed,
            top_p: p,
            top_k: if kind == 1 { 5 } else { 0 },
            repetition_penalty: penalty,
            stop_token_ids: Arc::from([3]),
            ..SamplingParams::default()
        })
    });
    prop_oneof![
        (1u32..12, 1u32..4, sampling, prop::option::of(0u32..3)).prop_map(
            |(max_tokens, n, sampling, top_logprobs)| Head::Generate(Generate {
                max_tokens,
                n,
                sampling,
                top_logprobs,
                constraint: None,
            })
        ),
        (
            prop::collection::vec(0..support::VOCAB, 1..5),
            any::<bool>()
        )
            .prop_map(|(labels, vocab)| Head::LabelScores {
                labels: labels.into(),
                normalise: if vocab {
                    Normalise::OverVocab
                } else {
                    Normalise::OverLabels
                },
            }),
        // Cut to the prompt's length below.
        (1u32..20, 0u32..3).prop_map(|(from, top)| Head::PromptLogprobs {
            positions: from..u32::MAX,
            top
        }),
        (any::<bool>(), any::<bool>()).prop_map(|(mean, normalise)| Head::Embed {
            pooling: if mean { Pooling::Mean } else { Pooling::Last },
            normalise,
            dimensions: None,
        }),
    ]
}

/// Returns prompts made of a few long pieces, so that they share prefixes of every kind of length.
fn rows() -> impl Strategy<Value = Rows> {
    let piece = (0u32..4, 1u32..40)
        .prop_map(|(which, len)| (0..len).map(move |i| (i * (which + 2) + which) % support::VOCAB));
    let prompt = prop::collection::vec(piece, 1..4)
        .prop_map(|pieces| pieces.into_iter().flatten().collect::<Vec<TokenId>>());
    prop::collection::vec((prompt, head()), 1..8).prop_map(|mut rows| {
        for (prompt, head) in &mut rows {
            if let Head::PromptLogprobs { positions, .. } = head {
                let len = u32::try_from(prompt.len()).unwrap();
                if len == 1 {
                    prompt.push(1);
                }
                let end = len.max(2);
                *positions = positions.start.min(end - 1)..end;
            }
        }
        rows
    })
}

fn setup() -> impl Strategy<Value = Setup> {
    (
        any::<bool>(),
        prop::sample::select(vec![4u32, 16]),
        prop::sample::select(vec![16u32, 40, 512]),
        prop::sample::select(vec![8u32, 33, 512]),
        1usize..3,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(caching, block_size, max_batch_tokens, chunk_tokens, threads, tight, bf16, laps)| {
                // Tight: the longest prompt (120 + 12 tokens) fits, and little else: eviction,
                // preemption, recomputation.
                let tokens = if tight { 144 } else { 2048 };
                Setup {
                    caching,
                    block_size,
                    num_blocks: tokens / block_size,
                    max_batch_tokens,
                    chunk_tokens,
                    threads,
                    dtype: if bf16 { CpuDtype::Bf16 } else { CpuDtype::F32 },
                    laps,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn company_does_not_matter(setup in setup(), requests in prop::collection::vec(rows(), 1..7)) {
        check(setup, &requests)?;
    }
}

/// The property above covers preemption only if pools are tight enough for it: here one must
/// happen, and must not show.
#[test]
fn preemption_does_not_show() {
    let sampling = Arc::new(SamplingParams {
        temperature: 0.8,
        seed: 5,
        ..Default::default()
    });
    let generate = |max_tokens| {
        let sampling = Arc::clone(&sampling);
        Head::Generate(Generate {
            max_tokens,
            n: 1,
            sampling,
            top_logprobs: Some(2),
            constraint: None,
        })
    };
    let prompt = |first: u32| {
        (0..40u32)
            .map(|i| (i * 3 + first) % support::VOCAB)
            .collect::<Vec<_>>()
    };
    let requests: Vec<Rows> = (0..3).map(|i| vec![(prompt(i), generate(60))]).collect();
    let expected = alone(&requests, CpuDtype::F32);
    // Room for one whole sequence and a half.
    let engine = engine(Setup {
        caching: true,
        block_size: 4,
        num_blocks: 40,
        ..ALONE
    });
    let handle = engine.handle();
    for (answer, expected) in submit_all(&handle, &requests).into_iter().zip(expected) {
        let answer = answer.blocking_collect().unwrap();
        assert_eq!(bits(&answer.rows[0]), expected[0]);
    }
    assert!(
        handle.snapshot().scheduler.preemptions > 0,
        "the pool was not tight"
    );
}

/// Two generations of one prompt, one after the other, and what each part of the engine did for
/// them: the answers are those of prompts that run alone.
#[test]
fn queue_tree_pool_chunks_and_decoding_make_the_answer_of_a_prompt_alone() {
    let generate = Head::Generate(Generate {
        max_tokens: 4,
        n: 1,
        sampling: Arc::default(),
        top_logprobs: Some(2),
        constraint: None,
    });
    let prompt: Vec<TokenId> = (0..40).map(|i| (i * 3 + 1) % support::VOCAB).collect();
    let requests = vec![vec![(prompt, generate)]; 2];
    let expected = alone(&requests, CpuDtype::F32);
    let engine = engine(Setup {
        caching: true,
        block_size: 4,
        max_batch_tokens: 16,
        ..ALONE
    });
    let handle = engine.handle();
    let mut computed = Vec::new();
    for (rows, expected) in requests.iter().zip(&expected) {
        let answer = handle.submit(spec(rows)).unwrap();
        let answer = answer.blocking_collect().unwrap();
        assert_eq!(bits(&answer.rows[0]), expected[0]);
        computed.push(answer.usage.computed_tokens);
    }
    // Chunks and decoding; the tree has nine of the second prompt's ten blocks.
    let steps = handle.recent_steps();
    let steps: Vec<_> = { steps.iter() }
        .map(|step| (step.prefill_tokens, step.decode_rows))
        .collect();
    let decoding = [(0, 1); 3];
    let chunks: &[_] = &[(16, 0), (16, 0), (8, 0)];
    assert_eq!(steps, [chunks, &decoding, &[(4, 0)], &decoding].concat());
    assert_eq!(computed, [40, 4]);
    let snapshot = handle.snapshot();
    let stats = snapshot.scheduler;
    assert_eq!(
        (stats.prefix_query_tokens, stats.prefix_hit_tokens),
        (80, 36)
    );
    // Both went through the queue; the pool has what the tree keeps, and all else is free.
    let [_, decode] = &snapshot.classes;
    assert_eq!(decode.queue_time.count(), 2);
    assert_eq!((stats.requests, stats.used_blocks), (0, 0));
    assert_eq!((stats.cached_blocks, stats.free_blocks), (10, 54));
}

#[test]
fn one_shared_prompt_and_64_suffixes_compute_the_shared_tokens_once() {
    let shared: Vec<TokenId> = (0..100).map(|i| (i * 7 + 1) % support::VOCAB).collect();
    let labels = Head::LabelScores {
        labels: Arc::from([5, 9]),
        normalise: Normalise::OverVocab,
    };
    let rows: Rows = (0..64u32)
        .map(|i| {
            let mut prompt = shared.clone();
            prompt.extend([i % support::VOCAB, 60 - i / support::VOCAB]);
            (prompt, labels.clone())
        })
        .collect();
    let expected = alone(std::slice::from_ref(&rows), CpuDtype::F32);
    for caching in [false, true] {
        let engine = engine(Setup { caching, ..ALONE });
        let handle = engine.handle();
        let answer = handle
            .submit(spec(&rows))
            .unwrap()
            .blocking_collect()
            .unwrap();
        let got: Vec<_> = answer.rows.iter().map(bits).collect();
        assert_eq!(got, expected[0]);
        let distinct = spec(&rows).tree.distinct_tokens();
        assert_eq!(answer.usage.prompt_tokens, 64 * 102);
        assert_eq!(answer.usage.computed_tokens, distinct as u64);
        let steps: usize = handle.recent_steps().iter().map(|s| s.oneshot_tokens).sum();
        assert_eq!(steps, distinct, "the step report agrees");
    }
}
