//! Whole models in the emulation: against recorded outputs of the reference implementation, and
//! against the CPU executor.

use std::sync::Arc;

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ForwardBatch, Normalise, OneShotBatch,
    OutputHead, OutputRow, Pooling, Residency, RowOutput, Segment, SegmentIdx, SeqId, StepId,
    TokenSource,
};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuDtype, CpuExecutor};
use prelude_models::conformance::{
    batches::{append, greedy, prompt, root},
    golden::{Allowed, Golden, GoldenComparison, GoldenPrompt, folder},
};

use crate::{
    CudaConfig, CudaExecutor, PromptAttention,
    testing::{BF16_MIXTURE, FP8_BLOCKS, FP8_MIXTURE, checkpoint, emulation, small},
};

/// Tokens of the longest prompt run: more than a tile of keys.
const MAX_LEN: usize = 70;
/// Tokens of all prompts run, in one step: the emulation takes a second for 128 of them.
const STEP_TOKENS: usize = 128;

/// Returns prompts of at most [`MAX_LEN`] tokens, as many as [`STEP_TOKENS`] hold.
pub(crate) fn short_prompts(golden: &Golden) -> Vec<GoldenPrompt> {
    let mut room = STEP_TOKENS;
    let mut prompts = golden.prompts();
    prompts.retain(|prompt| {
        let len = prompt.tokens.len();
        let fits = len <= MAX_LEN && len <= room;
        room -= if fits { len } else { 0 };
        fits
    });
    prompts
}

/// Returns a root that keeps its keys and values in blocks.
fn kept(tokens: std::ops::Range<u32>, blocks: BlockSpan) -> Segment {
    Segment {
        residency: Residency::Keep(blocks),
        ..root(tokens)
    }
}

pub(crate) fn run(executor: &mut dyn Executor, batch: ForwardBatch) -> prelude_core::StepOutput {
    executor.submit(StepId(0), batch).unwrap();
    let output = executor.collect(StepId(0)).unwrap();
    // As an engine does that has nothing else to do.
    while executor.prepare(true) {}
    output
}

pub(crate) fn executor(name: &str, config: &CudaConfig) -> Option<CudaExecutor> {
    let device = emulation()?;
    Some(CudaExecutor::emulated(&checkpoint(name), config, device).unwrap())
}

fn vocab_of(name: &str) -> u32 {
    u32::try_from(checkpoint(name).config().vocab_size).unwrap()
}

/// Checks a golden model's short prompts, all in one step.
pub(crate) fn check(name: &str) {
    check_within(name, false, |golden, array| golden.allowed(array));
}

/// Checks as [`check`] does, in fp8 or not, within other bounds.
pub(crate) fn check_within(
    name: &str,
    fp8: bool,
    allowed: impl Fn(&Golden, &str) -> Option<Allowed>,
) {
    let golden = Golden::open(&folder(name)).unwrap();
    let config = CudaConfig {
        deterministic: true,
        fp8,
        logits_rows_max: 128,
        chunk_tokens: 128,
        max_context_len: (!golden.is_whole()).then_some(1024),
        ..small()
    };
    let Some(mut executor) = executor(name, &config) else {
        return;
    };
    let mut comparison = GoldenComparison::new(&golden);
    let prompts = short_prompts(&golden);
    let mut batch = OneShotBatch::default();
    for recorded in &prompts {
        let tokens = &recorded.tokens;
        append(&mut batch, prompt(tokens, comparison.outputs(tokens, true)));
    }
    let results = run(&mut executor, ForwardBatch::OneShot(batch)).oneshot;
    let mut results = &results[..];
    for recorded in prompts {
        let outputs = comparison.outputs(&recorded.tokens, true).len();
        let (answers, others) = results.split_at(outputs);
        comparison.add(&recorded, answers).unwrap();
        results = others;
    }
    let [last, mean, lse, logprob, classes] = comparison.arrays().map(|(_, seen)| seen.count);
    assert!(last > 100 && mean > 100, "{name}");
    let heads = logprob.min(lse).max(classes);
    let is_embedder = name.ends_with("-embed") || name == "rand-qwen2-whole";
    assert!(heads > 2 || is_embedder, "{name}: {heads}");
    let checked = comparison.check(|array| allowed(&golden, array));
    for (array, seen, allowed) in checked.unwrap() {
        println!("{name} {array}: {}", seen.check(allowed).unwrap());
    }
}

/// Returns the rows as bits, to be compared exactly.
fn bits(row: &RowOutput) -> String {
    // `Debug` prints the shortest digits that read back as the same f32.
    format!("{row:?}")
}

/// A prompt of 70 tokens has the same bits alone, in a tree with siblings, after cached blocks, in two
/// chunks of a longer step, and in two steps.
#[test]
fn a_row_has_the_same_bits_in_every_batch() {
    check_bits("demo-lm");
}

/// A model that chooses experts for each token.
#[test]
fn a_row_has_the_same_bits_with_experts() {
    check_bits("rand-qwen3-moe");
}

/// Products multiply rows rounded to fp8.
#[test]
fn a_row_has_the_same_bits_in_fp8() {
    check_bits_of("demo-lm", in_fp8());
}

/// Attention and products are the kernels for Hopper.
#[test]
fn a_row_has_the_same_bits_by_kernels_for_hopper() {
    let config = CudaConfig {
        hopper_products: true,
        prompt_attention: PromptAttention::Hopper,
        ..small()
    };
    check_bits_of("demo-lm", config);
}

/// Matrices have a scale for each block, and rows one for 128 elements.
#[test]
fn a_row_has_the_same_bits_with_scales_of_blocks() {
    check_bits_of(FP8_BLOCKS, in_fp8());
}

/// Mixtures whose experts are rounded, and whose experts have scales of blocks.
#[test]
fn a_row_has_the_same_bits_in_mixtures_in_fp8() {
    check_bits_of(BF16_MIXTURE, in_fp8());
    check_bits_of(FP8_MIXTURE, in_fp8());
}

/// The settings of a GPU of compute capability 9.0.
#[test]
fn a_row_has_the_same_bits_on_hopper() {
    check_bits_of(FP8_BLOCKS, on_hopper());
}

fn in_fp8() -> CudaConfig {
    CudaConfig {
        fp8: true,
        ..small()
    }
}

fn on_hopper() -> CudaConfig {
    CudaConfig {
        prompt_attention: PromptAttention::Hopper,
        ..in_fp8()
    }
}

fn check_bits(name: &str) {
    check_bits_of(name, small());
}

fn check_bits_of(name: &str, config: CudaConfig) {
    let config = CudaConfig {
        deterministic: true,
        ..config
    };
    let Some(mut executor) = executor(name, &config) else {
        return;
    };
    let vocab = vocab_of(name);
    let tokens: Vec<u32> = (0..70).map(|i| (i * 997 + 31) % vocab).collect();
    let heads = |from: u32| {
        let labels: Arc<[u32]> = [7, vocab - 96, 9].into();
        let normalise = Normalise::OverVocab;
        let embed = OutputHead::Embed {
            pooling: Pooling::Last,
            normalise: true,
            dimensions: Some(40),
        };
        let sample = OutputHead::Sample(greedy(Some(3)));
        let scores = OutputHead::LabelScores { labels, normalise };
        [embed, scores, sample].map(|head| (from..from + 1, head))
    };
    let rows = |segment: u32| {
        heads(69).map(|(positions, head)| OutputRow {
            segment: SegmentIdx(segment),
            positions,
            head,
        })
    };
    let mut results = |batch: OneShotBatch| -> Vec<String> {
        let rows = run(&mut executor, ForwardBatch::OneShot(batch)).oneshot;
        rows.iter().rev().take(3).rev().map(bits).collect()
    };
    let alone = results(prompt(&tokens, heads(69).to_vec()));
    assert!(alone.iter().all(|row| !row.contains("Failed")), "{alone:?}");

    // With every position read, so that no row leaves the last layer early.
    let embed = OutputHead::Embed {
        pooling: Pooling::Mean,
        normalise: false,
        dimensions: None,
    };
    let all = std::iter::once((0..70, embed)).chain(heads(69)).collect();
    assert_eq!(results(prompt(&tokens, all)), alone, "with every position");

    // As a tree: 30 shared tokens, a sibling, then the rest of ours. 100 tokens: two chunks.
    let child = |tokens, context_len| Segment {
        parent: Some(SegmentIdx(0)),
        context_len,
        ..root(tokens)
    };
    let mut tree = OneShotBatch {
        tokens: tokens[..30].to_vec(),
        segments: vec![root(0..30), child(30..60, 30), child(60..100, 30)],
        rows: rows(2).to_vec(),
        block_ids: vec![],
    };
    tree.tokens.extend((500..530).map(|token| token % vocab));
    tree.tokens.extend(&tokens[30..]);
    assert_eq!(results(tree), alone, "in a tree");

    // In two steps: 40 tokens kept in blocks, the last of them partly; then the rest.
    let blocks: Vec<BlockId> = [9, 3, 30].map(BlockId).to_vec();
    let all = BlockSpan { start: 0, len: 3 };
    let first = OneShotBatch {
        tokens: tokens[..40].to_vec(),
        segments: vec![kept(0..40, all)],
        rows: vec![],
        block_ids: blocks.clone(),
    };
    results(first);
    let second = OneShotBatch {
        tokens: tokens[40..].to_vec(),
        segments: vec![Segment {
            context_len: 40,
            cached: all,
            ..root(0..30)
        }],
        rows: rows(0).to_vec(),
        block_ids: blocks,
    };
    assert_eq!(results(second.clone()), alone, "behind cached blocks");

    // Among others, over an edge between chunks.
    let mut crowd = prompt(&(100..150).collect::<Vec<_>>(), vec![]);
    append(&mut crowd, second);
    append(&mut crowd, prompt(&tokens, heads(69).to_vec()));
    assert_eq!(results(crowd), alone, "in a crowd");
}

/// Steps of equal shapes and other contents: launched one by one, and run as what was captured
/// behind that, have the bits that they have without padding.
#[test]
fn captured_steps_have_the_same_bits() {
    check_captured("demo-lm");
}

/// Later steps of a captured shape choose other experts than the captured step.
#[test]
fn captured_steps_have_the_same_bits_with_experts() {
    check_captured("rand-qwen3-moe");
}

#[test]
fn captured_steps_have_the_same_bits_in_fp8() {
    check_captured_of("demo-lm", in_fp8());
}

#[test]
fn captured_steps_have_the_same_bits_with_scales_of_blocks() {
    check_captured_of(FP8_BLOCKS, in_fp8());
}

#[test]
fn captured_steps_have_the_same_bits_in_mixtures_in_fp8() {
    check_captured_of(BF16_MIXTURE, in_fp8());
    check_captured_of(FP8_MIXTURE, in_fp8());
}

/// The captured launches have tensor maps, and more tiles than a step.
#[test]
fn captured_steps_have_the_same_bits_on_hopper() {
    check_captured_of(FP8_BLOCKS, on_hopper());
}

fn check_captured(name: &str) {
    check_captured_of(name, small());
}

fn check_captured_of(name: &str, config: CudaConfig) {
    let vocab = vocab_of(name);
    let plain = CudaConfig {
        chunk_tokens: 128,
        ..config
    };
    let padding = CudaConfig {
        graph_tokens: 100,
        ..plain.clone()
    };
    let Some(mut eager) = executor(name, &plain) else {
        return;
    };
    let Some(mut graphs) = executor(name, &padding) else {
        return;
    };
    for i in 0..5u32 {
        // 17 to 21 tokens: 24. With one or two rows of heads, which are launched behind.
        let tokens: Vec<u32> = (0..17 + i).map(|t| (t * 57 + i * 131) % vocab).collect();
        let last = 16 + i;
        let scores = OutputHead::LabelScores {
            labels: [i, vocab - 96, 9].into(),
            normalise: Normalise::OverVocab,
        };
        let sample = OutputHead::Sample(greedy(Some(3)));
        let mut rows = vec![(last..last + 1, scores)];
        if i % 2 == 1 {
            rows.push((last..last + 1, sample));
        }
        let mut batch = prompt(&tokens, rows);
        if i == 3 {
            // Another shape in between.
            append(&mut batch, prompt(&tokens, vec![]));
        }
        let batch = ForwardBatch::OneShot(batch);
        let [a, b] = [&mut eager, &mut graphs].map(|e| run(e, batch.clone()).oneshot);
        let bits = |rows: &[RowOutput]| rows.iter().map(bits).collect::<Vec<_>>();
        assert_eq!(bits(&a), bits(&b), "step {i}");
        assert!(bits(&a).iter().all(|row| !row.contains("Failed")));
    }
    let stats = graphs.graphs();
    // The first use of each shape kernel by kernel, all others as what was captured behind it.
    assert_eq!((stats.eager, stats.captures, stats.replays), (2, 2, 3));
    assert_eq!(stats.kept, 2);
    assert_eq!(stats.padding, 7 + 6 + 5 + (48 - 40) + 3);
    // Decode rows whose contexts grow, over the edge of a block.
    let (expected, _) = generate(&mut eager, vocab, 6);
    let (texts, _) = generate(&mut graphs, vocab, 6);
    assert_eq!(texts, expected);
    // The first of the text's steps has a shape of its own.
    assert_eq!(graphs.graphs().replays, 3 + 5);
    assert_eq!(eager.graphs().replays, 0);
}

/// Sequences of [`FILLED`] tokens in blocks of their own.
const SEQUENCES: u32 = 12;
const FILLED: u32 = 20;

/// Fills the blocks of the sequences.
fn fill(executor: &mut dyn Executor, vocab: u32) {
    let mut batch = OneShotBatch::default();
    for seq in 0..SEQUENCES {
        append(
            &mut batch,
            OneShotBatch {
                tokens: (0..FILLED).map(|t| (t * 91 + seq * 17) % vocab).collect(),
                segments: vec![kept(0..FILLED, BlockSpan { start: 0, len: 2 })],
                rows: vec![],
                block_ids: [2 * seq, 2 * seq + 1].map(BlockId).to_vec(),
            },
        );
    }
    run(executor, ForwardBatch::OneShot(batch));
}

/// Returns a token for each of the first sequences, beside prompts.
fn beside(prompts: OneShotBatch, sequences: u32) -> ForwardBatch {
    let rows = (0..sequences).map(|seq| DecodeRow {
        seq: SeqId(u64::from(seq)),
        token: TokenSource::Known(seq + 3),
        context_len: FILLED,
        blocks: BlockSpan {
            start: 2 * seq,
            len: 2,
        },
        sample: greedy(Some(2)),
    });
    ForwardBatch::Mixed {
        oneshot: prompts,
        prefill: OneShotBatch::EMPTY,
        decode: DecodeBatch {
            rows: rows.collect(),
            block_ids: (0..2 * sequences).map(BlockId).collect(),
        },
    }
}

/// A step in the graph of another that has room for more tiles, spans and decode rows.
#[test]
fn a_larger_graph_gives_the_same_bits() {
    let name = "demo-lm";
    let vocab = vocab_of(name);
    let plain = CudaConfig {
        chunk_tokens: 128,
        // Else the algorithm of a product depends on its number of rows, which a larger graph has more of.
        deterministic: true,
        ..small()
    };
    let padding = CudaConfig {
        graph_tokens: 100,
        ..plain.clone()
    };
    let Some(mut eager) = executor(name, &plain) else {
        return;
    };
    let Some(mut graphs) = executor(name, &padding) else {
        return;
    };
    fill(&mut eager, vocab);
    fill(&mut graphs, vocab);
    let ids = |n: u32, seed: u32| (0..n).map(|t| (t * 57 + seed) % vocab).collect::<Vec<_>>();
    // Six prompts and all sequences: 30 tokens.
    let mut crowd = OneShotBatch::default();
    (0..6).for_each(|i| append(&mut crowd, prompt(&ids(3, i), vec![])));
    // One prompt and three sequences, as many tokens, and most of them are read.
    let mean = OutputHead::Embed {
        pooling: Pooling::Mean,
        normalise: true,
        dimensions: None,
    };
    let few = prompt(&ids(24, 70), vec![(0..24, mean)]);
    for (prompts, sequences) in [(crowd, SEQUENCES), (few.clone(), 3), (few, 4)] {
        let batch = beside(prompts, sequences);
        let [a, b] = [&mut eager, &mut graphs].map(|e| {
            let output = run(e, batch.clone());
            let rows = output.oneshot.iter().chain(&output.decode);
            rows.map(bits).collect::<Vec<_>>()
        });
        assert_eq!(a, b, "{sequences} sequences");
        assert!(!a.concat().contains("Failed"), "{a:?}");
    }
    let stats = graphs.graphs();
    // The blocks were filled by a step of several chunks.
    assert_eq!((stats.eager, stats.captures, stats.replays), (2, 1, 2));
}

/// Graphs that are captured at start, before any step: what they run has the same bits.
#[test]
fn graphs_of_the_start_give_the_same_bits() {
    let name = "demo-lm";
    let vocab = vocab_of(name);
    for deterministic in [false, true] {
        let plain = CudaConfig {
            deterministic,
            ..small()
        };
        let start = CudaConfig {
            graph_tokens: 3,
            graph_start_ms: u32::MAX,
            ..plain.clone()
        };
        let Some(mut eager) = executor(name, &plain) else {
            return;
        };
        let Some(mut graphs) = executor(name, &start) else {
            return;
        };
        // Up to three rows, of one split and of several, and prompts of up to three tokens. Where
        // rows are segments, contexts are all the same, and one row is one prompt of one token.
        let kept = if deterministic { 5 } else { 9 };
        assert_eq!(graphs.graphs().captures, kept);
        let (expected, _) = generate(&mut eager, vocab, 4);
        let (texts, _) = generate(&mut graphs, vocab, 4);
        assert_eq!(texts, expected);
        let stats = graphs.graphs();
        assert_eq!((stats.captures, stats.replays), (kept, 4));
        assert_eq!(stats.eager, 1, "the prompts are longer");
    }
}

/// Generates greedy text row by row behind prompts of two lengths prefilled in one step; returns
/// the tokens of the last steps, and the smallest lead of the chosen token over the next.
fn generate(executor: &mut dyn Executor, vocab: u32, steps: usize) -> (Vec<Vec<u32>>, f32) {
    let prompts = [20u32, 37].map(|n| (0..n).map(|i| (i * 73 + n) % vocab).collect::<Vec<u32>>());
    let blocks = |r: u32| (0..4).map(|b| BlockId(r * 8 + b)).collect::<Vec<_>>();
    let mut batch = OneShotBatch::default();
    for (r, tokens) in prompts.iter().enumerate() {
        let len = u32::try_from(tokens.len()).unwrap();
        let blocks_of_prompt = BlockSpan {
            start: 0,
            len: len.div_ceil(16),
        };
        append(
            &mut batch,
            OneShotBatch {
                tokens: tokens.clone(),
                segments: vec![kept(0..len, blocks_of_prompt)],
                rows: vec![OutputRow {
                    segment: SegmentIdx(0),
                    positions: len - 1..len,
                    head: OutputHead::Sample(greedy(Some(2))),
                }],
                block_ids: blocks(u32::try_from(r).unwrap()),
            },
        );
    }
    let step = ForwardBatch::Mixed {
        oneshot: OneShotBatch::EMPTY,
        prefill: batch,
        decode: DecodeBatch::EMPTY,
    };
    let mut outputs = run(executor, step).prefill;
    let mut texts = vec![Vec::new(); 2];
    let mut lead = f32::INFINITY;
    for _ in 0..steps {
        let mut decode = DecodeBatch::EMPTY;
        for (r, output) in outputs.iter().enumerate() {
            let RowOutput::Sampled(tokens) = output else {
                panic!("{output:?}");
            };
            let top = &tokens[0].top;
            assert_eq!(top[0].token, tokens[0].token, "greedy takes the likeliest");
            lead = lead.min(top[0].logprob - top[1].logprob);
            let context_len = u32::try_from(prompts[r].len() + texts[r].len()).unwrap();
            texts[r].push(tokens[0].token);
            let row = u32::try_from(r).unwrap();
            decode.rows.push(DecodeRow {
                seq: SeqId(u64::from(row)),
                token: TokenSource::Known(tokens[0].token),
                context_len,
                blocks: BlockSpan {
                    start: row * 4,
                    len: context_len / 16 + 1,
                },
                sample: greedy(Some(2)),
            });
            decode.block_ids.extend(blocks(row));
        }
        outputs = run(executor, ForwardBatch::Decode(decode)).decode;
    }
    (texts, lead)
}

/// Greedy text of the demo model by both attention paths, against the CPU executor's.
#[test]
fn greedy_text_is_the_cpu_executors() {
    let cpu = CpuConfig {
        num_blocks: Some(64),
        max_context_len: Some(1024),
        dtype: Some(CpuDtype::Bf16),
        ..CpuConfig::default()
    };
    let pool = Arc::new(ComputePool::new(1));
    let mut cpu = CpuExecutor::new(&checkpoint("demo-lm"), cpu, pool).unwrap();
    let (expected, lead) = generate(&mut cpu, 4096, 4);
    // The two executors' log-probabilities of this model differ by up to 0.05; a closer race
    // could be decided either way. Greater leads make the comparison mean something.
    assert!(
        lead > 0.1,
        "choose other prompts: a lead of {lead} is a near tie"
    );
    for deterministic in [true, false] {
        let config = CudaConfig {
            deterministic,
            ..small()
        };
        let Some(mut executor) = executor("demo-lm", &config) else {
            return;
        };
        let (texts, _) = generate(&mut executor, 4096, 4);
        assert_eq!(texts, expected, "deterministic: {deterministic}");
    }
}

#[test]
fn demo_lm() {
    check("demo-lm");
}

#[test]
fn demo_classifier() {
    check("demo-classifier");
}

#[test]
fn untied_and_sharded() {
    check("rand-untied-sharded");
}

#[test]
fn yarn_and_one_class() {
    check("rand-yarn-reward");
}

#[test]
fn embedding_model() {
    check("rand-embed");
}

#[test]
fn three_classes_in_f16() {
    check("rand-cls3");
}

#[test]
fn llama_with_biases() {
    check("rand-llama");
}

#[test]
fn llama_classifier() {
    check("rand-llama-cls3");
}

#[test]
fn mistral_classifier() {
    check("rand-mistral-cls3");
}

#[test]
fn qwen2_tied() {
    check("rand-qwen2");
}

#[test]
fn granite_with_factors() {
    check("rand-granite");
}

#[test]
fn qwen3_mixture_of_experts() {
    check("rand-qwen3-moe");
}

#[test]
fn gemma2_with_windows_and_caps() {
    check("rand-gemma2");
}

#[test]
fn gemma3_with_two_rotations() {
    check("rand-gemma3");
}

#[test]
fn qwen3_classifier_of_tokens() {
    check("rand-qwen3-token4");
}

#[test]
fn qwen2_reward_model() {
    check("rand-qwen2-reward");
}
