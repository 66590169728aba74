//! Tests that the same tokens give the same bits in every batch: invariant 8, on every path.
//!
//! The yardstick is a row's whole prompt alone in a step, on one thread.

use std::{cell::RefCell, sync::Arc};

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ExecutorError, ForwardBatch, Normalise,
    OneShotBatch, OutputHead, OutputRow, Pooling, Residency, RowOutput, SampleHead, SamplingParams,
    Segment, SegmentIdx, SeqId, StepId, TokenHead, TokenSource,
};
use prelude_models::{DType, Ops, QkNorm, TensorView, WeightLoader, step::StepLayout};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::{
    ComputePool, CpuConfig, CpuExecutor, CpuLoader, CpuOps,
    testing::{
        FP8_BLOCKS, FP8_MIXTURE, checkpoint, decode, executor, prompt, root_segment, run,
        run_oneshot, sample_head, small, variants, variants_of,
    },
};

mod forests;

use forests::tokens;
pub(crate) use forests::{Node, Row, forest, head, nodes, rows};

const BLOCK: u32 = 4;

/// Computes `tokens` into `blocks` in steps of `chunk` tokens.
fn prefill(executor: &mut CpuExecutor, tokens: &[u32], blocks: &[BlockId], chunk: usize) {
    let block = executor.capacity().block_size;
    for start in (0..tokens.len()).step_by(chunk) {
        let end = tokens.len().min(start + chunk);
        let (start, end) = (start as u32, end as u32);
        let first = start / block;
        let segment = Segment {
            context_len: start,
            cached: BlockSpan {
                start: 0,
                len: start.div_ceil(block),
            },
            residency: Residency::Keep(BlockSpan {
                start: first,
                len: end.div_ceil(block) - first,
            }),
            ..root_segment(0..end - start)
        };
        let batch = OneShotBatch {
            tokens: tokens[start as usize..end as usize].to_vec(),
            segments: vec![segment],
            rows: vec![],
            block_ids: blocks.to_vec(),
        };
        run_oneshot(executor, batch);
    }
}

/// Compares rows of the forest with each row's whole prompt alone.
fn check_forest(
    alone: &mut CpuExecutor,
    together: &mut CpuExecutor,
    (nodes, rows): (&[Node], &[Row]),
    (prefix, chunk): (&[u32], usize),
    beside: Option<u32>,
) -> Result<(), TestCaseError> {
    let blocks: Vec<BlockId> = (0..(prefix.len() as u32).div_ceil(BLOCK))
        .map(|i| BlockId(7 + 2 * i))
        .collect();
    prefill(together, prefix, &blocks, chunk);
    let (mut batch, paths) = forest(nodes, prefix, &blocks, 100);
    let mut expected = Vec::new();
    for row in rows {
        let node = row.node.index(nodes.len());
        let (positions, head) = head(row, &paths[node], prefix.len() as u32);
        let single = prompt(&paths[node], vec![(positions.clone(), head.clone())]);
        expected.extend(run_oneshot(alone, single));
        batch.rows.push(OutputRow {
            segment: SegmentIdx(u32::try_from(node).unwrap()),
            positions,
            head,
        });
    }
    let got = match beside {
        None => run_oneshot(together, batch),
        Some(token) => {
            // A decode row that continues the prefix in a block of its own copy.
            let copies: Vec<BlockId> = (0..=prefix.len() as u32 / BLOCK)
                .map(|i| BlockId(60 + i))
                .collect();
            prefill(together, prefix, &copies[..blocks.len()], 5);
            let output = run(
                together,
                ForwardBatch::Mixed {
                    oneshot: batch,
                    prefill: prompt(&[1, 2, 3], vec![]),
                    decode: decode(token, prefix.len() as u32, &copies),
                },
            );
            let whole = [prefix, &[token]].concat();
            let last = whole.len() as u32;
            let head = OutputHead::Sample(sample_head());
            let row = run_oneshot(alone, prompt(&whole, vec![(last - 1..last, head)]));
            prop_assert_eq!(&output.decode, &row);
            output.oneshot
        }
    };
    prop_assert_eq!(got, expected);
    Ok(())
}

/// Checks an executor alone and one with blocks of `block_size` on every path of this machine; fewer
/// cases on the slow one.
fn check_paths(
    cases: u32,
    (name, block_size): (&str, u32),
    test: impl Fn(&mut CpuExecutor, &mut CpuExecutor, &mut TestRunner, &str),
) {
    for (what, config) in variants_of(name) {
        let slow = what.starts_with("scalar");
        let mut alone = executor(name, config.clone(), 1);
        // Another chunk length as well: layers then run in other pieces.
        let chunk_tokens = 24;
        let config = CpuConfig {
            chunk_tokens,
            block_size,
            ..config
        };
        let mut together = executor(name, config, 2);
        let mut runner = TestRunner::new_with_rng(
            ProptestConfig {
                cases: if slow { cases.div_ceil(6) } else { cases },
                failure_persistence: None,
                ..ProptestConfig::default()
            },
            prop::test_runner::TestRng::deterministic_rng(prop::test_runner::RngAlgorithm::ChaCha),
        );
        test(&mut alone, &mut together, &mut runner, &what);
    }
}

fn check_forests(name: &str, cases: u32) {
    let vocab = u32::try_from(checkpoint(name).config().vocab_size).unwrap();
    let known = move |tokens: &mut [u32]| tokens.iter_mut().for_each(|t| *t %= vocab);
    check_paths(cases, (name, BLOCK), |alone, together, runner, what| {
        let cell = RefCell::new((alone, together));
        let inputs = (
            nodes(),
            rows(),
            prop_oneof![Just(vec![]), tokens(1..30)],
            prop_oneof![Just(BLOCK as usize), 1usize..20],
            prop::option::of(0u32..4096),
        );
        runner
            .run(&inputs, |(mut nodes, rows, mut prefix, chunk, beside)| {
                nodes.iter_mut().for_each(|node| known(&mut node.tokens));
                known(&mut prefix);
                let beside = beside.map(|token| token % vocab);
                let (alone, together) = &mut *cell.borrow_mut();
                check_forest(alone, together, (&nodes, &rows), (&prefix, chunk), beside)
            })
            .unwrap_or_else(|e| panic!("{what}: {e}"));
    });
}

/// A row has the same bits in forests, with cached prefixes computed in chunks, with kept segments,
/// beside decode rows, and on two threads.
#[test]
fn rows_do_not_depend_on_their_batch() {
    check_forests("demo-lm", 24);
}

/// A model with heads of 24 in groups of four and an untied output head.
#[test]
fn rows_do_not_depend_on_their_batch_with_odd_shapes() {
    check_forests("rand-untied-sharded", 6);
}

/// A model without norms of queries and keys, and with biases of all products.
#[test]
fn rows_do_not_depend_on_their_batch_in_a_llama() {
    check_forests("rand-llama", 6);
}

/// Models with windows, bounds of scores and of logits, and norms after both halves of a layer.
#[test]
fn rows_do_not_depend_on_their_batch_in_a_gemma() {
    check_forests("rand-gemma2", 8);
    check_forests("rand-gemma3", 8);
}

/// A model with Granite's factors, and with a norm of the output head's own.
#[test]
fn rows_do_not_depend_on_their_batch_in_a_granite() {
    check_forests("rand-granite", 6);
}

/// A model that chooses experts for each token.
#[test]
fn rows_do_not_depend_on_their_batch_with_experts() {
    check_forests("rand-qwen3-moe", 6);
}

/// The same where experts are stored in fp8 with scales of blocks.
#[test]
fn nor_in_a_mixture_with_scales_of_blocks() {
    check_forests(FP8_MIXTURE, 2);
}

#[test]
fn rows_do_not_depend_on_their_batch_with_scales_of_blocks() {
    check_forests(FP8_BLOCKS, 2);
}

/// Two sequences decoded together from blocks against one-shot passes over ever longer prompts.
#[test]
fn decoding_equals_recomputing() {
    for name in ["demo-lm", "rand-gemma2", "rand-gemma3"] {
        decodes_as_it_recomputes(name, BLOCK, [13, 70]);
    }
    // Whole tiles of keys in blocks, which some products read where they are.
    decodes_as_it_recomputes("demo-lm", 16, [61, 150]);
    decodes_as_it_recomputes("rand-gemma3", 32, [61, 150]);
    decodes_as_it_recomputes("rand-llama", 128, [61, 150]);
    decodes_as_it_recomputes("rand-llama", 1, [13, 70]);
}

fn decodes_as_it_recomputes(name: &str, block: u32, lens: [usize; 2]) {
    let vocab = u32::try_from(checkpoint(name).config().vocab_size).unwrap();
    check_paths(1, (name, block), |alone, together, runner, what| {
        let mut texts = [(lens[0], 3), (lens[1], 9)].map(|(len, chunk)| {
            let tokens = (0..len).map(|_| runner.rng().random_range(0..vocab));
            (tokens.collect::<Vec<u32>>(), chunk)
        });
        let tables = [0u32, 100].map(|first| (first..first + 90).map(BlockId).collect::<Vec<_>>());
        for ((tokens, chunk), table) in texts.iter().zip(&tables) {
            let before = tokens.len() - 1;
            let blocks = &table[..before.div_ceil(block as usize)];
            prefill(together, &tokens[..before], blocks, *chunk);
        }
        for _ in 0..12 {
            let mut batch = DecodeBatch::EMPTY;
            for ((tokens, _), table) in texts.iter().zip(&tables) {
                let context_len = tokens.len() as u32 - 1;
                let len = context_len / block + 1;
                let start = batch.block_ids.len() as u32;
                batch.block_ids.extend(&table[..len as usize]);
                batch.rows.push(DecodeRow {
                    seq: SeqId(u64::from(start)),
                    token: TokenSource::Known(tokens[context_len as usize]),
                    context_len,
                    blocks: BlockSpan { start, len },
                    sample: sample_head(),
                });
            }
            let output = run(together, ForwardBatch::Decode(batch)).decode;
            for ((tokens, _), row) in texts.iter_mut().zip(output) {
                let len = tokens.len() as u32;
                let head = OutputHead::Sample(sample_head());
                let whole = run_oneshot(alone, prompt(tokens, vec![(len - 1..len, head)]));
                assert_eq!(whole[0], row, "{what}");
                let RowOutput::Sampled(sampled) = row else {
                    panic!("{what}: {row:?}");
                };
                tokens.push(sampled[0].token);
            }
        }
    });
}

/// Short texts behind a prompt that is cached, behind one that the step computes, and behind a part of
/// it: attention reads the keys that neighbours share once.
#[test]
fn texts_behind_shared_keys_get_the_bits_of_each_alone() {
    for name in ["demo-lm", "rand-llama", "rand-gemma2", "rand-gemma3"] {
        let block = 16;
        let vocab = u32::try_from(checkpoint(name).config().vocab_size).unwrap();
        check_paths(1, (name, block), |alone, together, runner, what| {
            let mut text = |len: usize| -> Vec<u32> {
                (0..len)
                    .map(|_| runner.rng().random_range(0..vocab))
                    .collect()
            };
            let (prefix, rest) = (text(150), text(70));
            let blocks: Vec<BlockId> = (0..10).map(BlockId).collect();
            prefill(together, &prefix, &blocks, 40);
            // Each segment: the cached tokens before it, its parent, and its own tokens.
            let mut segments = vec![(144_u32, None, [&prefix[144..], &rest].concat())];
            segments.extend((1..9).map(|len| (220, Some(0), text(len))));
            segments.extend([64, 144, 144, 64, 130].map(|cached| (cached, None, text(5))));
            let mut batch = OneShotBatch::EMPTY;
            let mut prompts = Vec::new();
            for (context_len, parent, tokens) in segments {
                let before = match parent {
                    Some(_) => [&prefix[..], &rest].concat(),
                    None => prefix[..context_len as usize].to_vec(),
                };
                let whole = [&before[..], &tokens].concat();
                let start = batch.tokens.len() as u32;
                let cached = match parent {
                    Some(_) => BlockSpan::EMPTY,
                    None => BlockSpan {
                        start: batch.block_ids.len() as u32,
                        len: context_len.div_ceil(block),
                    },
                };
                batch.block_ids.extend(&blocks[..cached.len as usize]);
                batch.rows.push(OutputRow {
                    segment: SegmentIdx(batch.segments.len() as u32),
                    positions: whole.len() as u32 - 1..whole.len() as u32,
                    head: OutputHead::Sample(sample_head()),
                });
                batch.segments.push(Segment {
                    tokens: start..start + tokens.len() as u32,
                    parent: parent.map(SegmentIdx),
                    context_len,
                    cached,
                    residency: Residency::Transient,
                });
                batch.tokens.extend(tokens);
                prompts.push(whole);
            }
            let rows = run_oneshot(together, batch);
            for (whole, row) in prompts.iter().zip(rows) {
                let len = whole.len() as u32;
                let head = OutputHead::Sample(sample_head());
                let expected = run_oneshot(alone, prompt(whole, vec![(len - 1..len, head)]));
                assert_eq!(expected[0], row, "{what}: {len} tokens");
            }
        });
    }
}

/// Several rows of a head, or of different heads, at one position agree.
#[test]
fn heads_agree_with_each_other() {
    check_paths(1, ("demo-lm", BLOCK), |alone, _, _, what| {
        let path: Vec<u32> = (0..50).map(|i| i * 79 % 4096).collect();
        let labels: Arc<[u32]> = Arc::from((0..200).map(|i| i * 20).collect::<Vec<u32>>());
        let scores = |normalise| {
            let labels = Arc::clone(&labels);
            (49..50, OutputHead::LabelScores { labels, normalise })
        };
        let mut head = sample_head();
        head.top_logprobs = Some(4096);
        let targets = path[1..].iter().copied().chain([40]).collect();
        let rows = vec![
            scores(Normalise::OverLabels),
            scores(Normalise::OverVocab),
            (49..50, OutputHead::Sample(head)),
            (0..50, OutputHead::Logprobs { targets, top: 5 }),
        ];
        let rows = run_oneshot(alone, prompt(&path, rows));
        let [
            RowOutput::LabelScores(over_labels),
            RowOutput::LabelScores(over_vocab),
            RowOutput::Sampled(sampled),
            RowOutput::Logprobs { entries, .. },
        ] = &rows[..]
        else {
            panic!("{what}: {rows:?}");
        };
        assert_eq!(over_labels.logits, over_vocab.logits, "{what}");
        assert_eq!(over_labels.log_sum_exp, None);
        let sampled = &sampled[0];
        assert_eq!(sampled.logprob, Some(sampled.top[0].logprob));
        assert_eq!(sampled.token, sampled.top[0].token);
        assert_eq!(sampled.top[..5], entries[49].top);
        let of = |id: u32| sampled.top.iter().find(|t| t.token == id).unwrap().logprob;
        assert_eq!(of(40).to_bits(), entries[49].logprob.to_bits());
        let lse = over_vocab.log_sum_exp.unwrap();
        for (&label, logit) in labels.iter().zip(&over_vocab.logits) {
            assert!((of(label) - (logit - lse)).abs() < 1e-5, "{what}");
        }
    });
}

/// Two executors on two threads take turns on one pool and do not disturb each other.
#[test]
fn executors_share_a_pool() {
    let pool = Arc::new(ComputePool::new(2));
    std::thread::scope(|scope| {
        for name in ["demo-lm", "rand-untied-sharded"] {
            let pool = Arc::clone(&pool);
            scope.spawn(move || {
                let mut alone = executor(name, small(), 1);
                let mut shared = CpuExecutor::new(&checkpoint(name), small(), pool).unwrap();
                for len in (1..200).step_by(9) {
                    let tokens: Vec<u32> = (0..len).map(|i| i * 97 % 4096).collect();
                    let head = OutputHead::Sample(sample_head());
                    let batch = prompt(&tokens, vec![(len - 1..len, head)]);
                    let expected = run_oneshot(&mut alone, batch.clone());
                    assert_eq!(run_oneshot(&mut shared, batch), expected, "{name} {len}");
                }
            });
        }
    });
}

/// Computes attention of 40 tokens where the value of token 20 is `value` in one component.
fn attend_with(value: f32, config: &CpuConfig) -> Vec<f32> {
    let checkpoint = checkpoint("demo-lm");
    let model = checkpoint.config();
    let (dtype, backend) = config.choose(model).unwrap();
    let pool = Arc::new(ComputePool::new(2));
    let mut loader = CpuLoader::new(Arc::clone(&pool), (dtype, backend), config.quantization);
    let shape = model.attn_shape();
    let ones: Vec<u8> = 1f32.to_le_bytes().repeat(shape.head_dim);
    let ones = TensorView {
        dtype: DType::F32,
        shape: vec![shape.head_dim],
        bytes: &ones,
    };
    let norm = loader.vector("norm", &ones).unwrap();
    let rope = loader
        .rope(&vec![0.1; shape.head_dim / 2], 1.0, 64)
        .unwrap();
    let arena_len = 1 << 16;
    let mut ops = CpuOps::new(model, config, (dtype, backend), 4, arena_len, pool).unwrap();
    let mut layout = StepLayout::default();
    let batch = prompt(&[1; 40], vec![]);
    layout
        .rebuild(ForwardBatch::OneShot(batch), BLOCK, |_, _| None)
        .unwrap();
    ops.begin(&layout);
    let mut qkv = ops.alloc(40, shape.qkv_width()).unwrap();
    let mut out = ops.alloc(40, shape.out_width()).unwrap();
    for (i, x) in ops.arena.write(&qkv).iter_mut().enumerate() {
        *x = (i as f32 * 0.7).sin();
    }
    ops.arena.write(&qkv)[21 * shape.qkv_width() - 3] = value;
    ops.qk_norm_rope_store(
        &layout,
        0,
        0..40,
        shape,
        Some(QkNorm {
            q: &norm,
            k: &norm,
            eps: 1e-6,
        }),
        Some(&rope),
        &mut qkv,
    )
    .unwrap();
    ops.attention(&layout, 0, 0..40, shape, &qkv, &mut out)
        .unwrap();
    ops.arena.read(&out).to_vec()
}

/// A value that is not finite reaches the queries that see it, and no others.
#[test]
fn infinities_do_not_spread() {
    for (what, config) in variants() {
        let fine = attend_with(0.5, &config);
        let width = fine.len() / 40;
        for value in [f32::NAN, f32::INFINITY] {
            let broken = attend_with(value, &config);
            assert_eq!(broken[..20 * width], fine[..20 * width], "{what}");
            // The heads that read the broken key-value head, the second of two.
            for row in broken[20 * width..].chunks_exact(width) {
                assert!(row[..width / 2].iter().all(|x| x.is_finite()), "{what}");
                assert!(row[width / 2..].iter().all(|x| x.is_nan()), "{what}");
            }
        }
    }
}

/// Batches that break a rule are refused, and the executor goes on.
#[test]
fn malformed_batches_are_refused() {
    let mut executor = executor("demo-lm", small(), 1);
    let head = |change: &dyn Fn(&mut SamplingParams)| {
        let mut sampling = SamplingParams::default();
        change(&mut sampling);
        let sampling = Arc::new(sampling);
        OutputHead::Sample(SampleHead {
            sampling,
            ..sample_head()
        })
    };
    let labels = |ids: &[u32]| OutputHead::LabelScores {
        labels: Arc::from(ids),
        normalise: Normalise::OverLabels,
    };
    let embed = |dimensions| OutputHead::Embed {
        pooling: Pooling::Last,
        normalise: false,
        dimensions,
    };
    let heads = [
        (head(&|p| p.temperature = f32::NAN), "sampling parameter"),
        (
            head(&|p| p.allowed_token_ids = Some(Arc::from([4096]))),
            "sampling parameter",
        ),
        (labels(&[1, 4096]), "outside the vocabulary"),
        (
            OutputHead::Logprobs {
                targets: vec![9999],
                top: 1,
            },
            "outside the vocabulary",
        ),
        (embed(Some(193)), "more dimensions"),
        (embed(Some(0)), "0 dimensions"),
    ];
    // A wrong head fails its row alone.
    let alone = run_oneshot(&mut executor, prompt(&[1, 2], vec![(1..2, embed(None))]));
    for (head, why) in heads {
        let rows = vec![(1..2, head), (1..2, embed(None))];
        let rows = run_oneshot(&mut executor, prompt(&[1, 2], rows));
        assert!(
            matches!(rows[0], RowOutput::Failed(message) if message.contains(why)),
            "{why}: {:?}",
            rows[0]
        );
        assert_eq!(rows[1..], alone);
    }
    let no_labels = prompt(&[1, 2], vec![(1..2, labels(&[]))]);
    let mut refused = vec![(ForwardBatch::OneShot(no_labels), "labels")];
    let oneshot = |change: &dyn Fn(&mut OneShotBatch)| {
        let mut batch = prompt(&[1, 2], vec![(1..2, embed(None))]);
        change(&mut batch);
        ForwardBatch::OneShot(batch)
    };
    refused.extend([
        (oneshot(&|b| b.tokens[0] = 4096), "outside the vocabulary"),
        (oneshot(&|b| b.rows[0].positions = 2..3), "positions beyond"),
        (oneshot(&|b| b.segments[0].context_len = 3), "cached blocks"),
        (
            ForwardBatch::OneShot(prompt(&[1; 600], vec![])),
            "step limit of 512",
        ),
        (
            ForwardBatch::Decode(decode(1, 3, &[BlockId(256)])),
            "outside the pool",
        ),
    ]);
    for (batch, why) in refused {
        match executor.submit(StepId(0), batch) {
            Err(ExecutorError::Step(message)) => assert!(message.contains(why), "{message}"),
            other => panic!("{why}: {other:?}"),
        }
    }
    // A head that the model lacks fails its row alone.
    let good = prompt(
        &[1, 2],
        vec![(1..2, OutputHead::Classify), (1..2, embed(None))],
    );
    let rows = run_oneshot(&mut executor, good);
    assert!(matches!(
        rows[..],
        [RowOutput::Failed(_), RowOutput::Embedding(_)]
    ));
    // Out of order.
    let batch = ForwardBatch::OneShot(OneShotBatch::EMPTY);
    executor.submit(StepId(5), batch.clone()).unwrap();
    assert!(executor.submit(StepId(6), batch).is_err());
    assert!(executor.collect(StepId(4)).is_err());
    assert_eq!(executor.collect(StepId(5)).unwrap().step, StepId(5));
}

/// A table of rotations that no system can provide is an error.
#[test]
fn rotations_beyond_memory_are_refused() {
    let config = small();
    let model = checkpoint("demo-lm");
    let (dtype, backend) = config.choose(model.config()).unwrap();
    let mut loader = CpuLoader::new(Arc::new(ComputePool::new(1)), (dtype, backend), None);
    for positions in [usize::MAX, usize::MAX / 64] {
        let error = loader.rope(&[0.1; 16], 1.0, positions).unwrap_err();
        assert!(error.to_string().contains("max_context_len"), "{error}");
    }
}

/// A model that does not fit is refused before loading, with the numbers.
#[test]
fn memory_is_planned() {
    let load = |config: CpuConfig| {
        CpuExecutor::new(
            &checkpoint("demo-lm"),
            config,
            Arc::new(ComputePool::new(1)),
        )
    };
    let plan = load(small()).unwrap().memory();
    // 3 layers, 256 blocks of 4, 2 heads of 32, keys and values, bf16 (the demo's type).
    assert_eq!(plan.kv_bytes, 3 * 256 * 4 * 2 * 32 * 2 * 2);
    let limited = |memory_limit_bytes| {
        load(CpuConfig {
            memory_limit_bytes: Some(memory_limit_bytes),
            ..small()
        })
    };
    assert!(limited(plan.total_bytes()).is_ok());
    let error = limited(plan.total_bytes() - 1).unwrap_err();
    assert!(matches!(error, crate::Error::Memory { .. }));
    let message = error.to_string();
    assert!(message.contains(&plan.kv_bytes.to_string()), "{message}");
    // Blocks are in host memory already.
    let error = load(CpuConfig {
        host_bytes: 1 << 20,
        ..small()
    });
    let message = error.unwrap_err().to_string();
    assert!(message.contains("host_bytes"), "{message}");
}

/// Prompts of an encoder in one step, in any number and on any number of threads, get the bits that
/// each gets alone: with token types, and where attention depends on distances.
#[test]
fn whole_prompts_get_the_bits_of_each_alone() {
    prompts_get_the_bits_of_each_alone("rand-bert-cls3", 620, 12);
    prompts_get_the_bits_of_each_alone("rand-modernbert-cls3", 330, 8);
    prompts_get_the_bits_of_each_alone("rand-modernbert-rank", 330, 8);
    prompts_get_the_bits_of_each_alone("rand-mpnet-cls2", 310, 8);
    prompts_get_the_bits_of_each_alone("rand-gemma3-embed", 288, 8);
}

fn prompts_get_the_bits_of_each_alone(model: &str, num_ids: u32, cases: u32) {
    let prompt_of = prop::collection::vec(0..num_ids, 1..100);
    let strategy = (prop::collection::vec(prompt_of, 1..7), 1usize..5);
    for (what, config) in variants_of(model) {
        let config = CpuConfig {
            max_context_len: None,
            max_step_tokens: 700,
            chunk_tokens: 1,
            ..config
        };
        let alone = RefCell::new(executor(model, config.clone(), 1));
        let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
        let outcome = runner.run(&strategy, |(prompts, threads)| {
            let mut together = executor(model, config.clone(), threads);
            let mut batch = OneShotBatch::EMPTY;
            let mut expected = Vec::new();
            for tokens in &prompts {
                let len = u32::try_from(tokens.len()).unwrap();
                let embed = OutputHead::Embed {
                    pooling: Pooling::Mean,
                    normalise: true,
                    dimensions: None,
                };
                let mut heads = vec![(0..len, embed)];
                if !model.ends_with("-embed") {
                    heads.push((0..1, OutputHead::Classify));
                }
                // Tokens have no classes of means.
                if model.contains("-cls") {
                    heads.push((0..len, OutputHead::Tokens(TokenHead::Classify)));
                }
                let start = u32::try_from(batch.tokens.len()).unwrap();
                let segment = SegmentIdx(u32::try_from(batch.segments.len()).unwrap());
                batch.tokens.extend_from_slice(tokens);
                batch.segments.push(Segment {
                    tokens: start..start + len,
                    parent: None,
                    context_len: 0,
                    cached: BlockSpan::EMPTY,
                    residency: Residency::Transient,
                });
                let rows = heads.iter().cloned();
                batch.rows.extend(rows.map(|(positions, head)| OutputRow {
                    segment,
                    positions,
                    head,
                }));
                expected.extend(run_oneshot(&mut alone.borrow_mut(), prompt(tokens, heads)));
            }
            prop_assert_eq!(run_oneshot(&mut together, batch), expected);
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{model}, {what}: {error}"));
    }
}

/// A mean has classes, and the tokens that it is made of have none.
#[test]
fn tokens_have_no_classes_of_means() {
    let mut encoder = executor("rand-modernbert-rank", CpuConfig::default(), 1);
    let outputs = vec![
        (0..3, OutputHead::Tokens(TokenHead::Classify)),
        (0..1, OutputHead::Classify),
    ];
    let rows = run_oneshot(&mut encoder, prompt(&[1, 2, 3], outputs));
    let [RowOutput::Failed(why), RowOutput::Classes(_)] = rows[..] else {
        panic!("{rows:?}");
    };
    assert!(why.contains("whole texts"), "{why}");
}

/// A prompt tree is no batch of such a model.
#[test]
fn shared_prompts_of_an_encoder_are_refused() {
    let mut encoder = executor("rand-bert-cls3", CpuConfig::default(), 1);
    assert_eq!(encoder.capacity().num_blocks, 1);
    assert_eq!(encoder.capacity().passes, None);
    let mut batch = prompt(&[1, 2, 3], vec![(0..1, OutputHead::Classify)]);
    batch.tokens.push(4);
    batch.segments.push(Segment {
        tokens: 3..4,
        parent: Some(SegmentIdx(0)),
        context_len: 3,
        cached: BlockSpan::EMPTY,
        residency: Residency::Transient,
    });
    let error = encoder.submit(StepId(0), ForwardBatch::OneShot(batch));
    let Err(ExecutorError::Step(error)) = error else {
        panic!("{error:?}")
    };
    assert!(error.contains("attention sees whole prompts"), "{error}");
}
