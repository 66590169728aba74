//! Models whose attention sees whole prompts, in the emulation: against recorded outputs of the
//! reference implementation, and the same prompts in any company.

use prelude_core::{
    BlockSpan, Executor as _, ExecutorError, ForwardBatch, OneShotBatch, OutputHead, Pooling,
    Residency, RowOutput, Segment, SegmentIdx, StepId, TokenHead,
};
use prelude_models::{
    QuestionType,
    conformance::{
        batches::{append, prompt},
        golden,
    },
};
use serde_json::Value;

use crate::{
    CudaConfig, CudaExecutor,
    end_to_end::check,
    testing::{checkpoint, emulation, small},
};

/// Returns a small executor; its chunks hold the longest prompt of the model, 160 tokens, so that a
/// step of more has several.
fn config() -> CudaConfig {
    CudaConfig {
        deterministic: true,
        max_context_len: None,
        ..small()
    }
}

fn executor(name: &str, config: &CudaConfig) -> Option<CudaExecutor> {
    let device = emulation()?;
    Some(CudaExecutor::emulated(&checkpoint(name), config, device).unwrap())
}

fn run(executor: &mut CudaExecutor, batch: OneShotBatch) -> Vec<RowOutput> {
    let batch = ForwardBatch::OneShot(batch);
    executor.submit(StepId(0), batch).unwrap();
    let rows = executor.collect(StepId(0)).unwrap().oneshot;
    // As an engine does that has nothing else to do.
    while executor.prepare(true) {}
    rows
}

fn embed(pooling: Pooling) -> OutputHead {
    OutputHead::Embed {
        pooling,
        normalise: true,
        dimensions: None,
    }
}

/// Returns the ids of a prompt, below `num_ids`.
fn ids(len: u32, seed: u32, num_ids: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 57 + seed * 131) % num_ids).collect()
}

/// Returns the rows as bits, to be compared exactly: `Debug` prints the shortest digits that read
/// back as the same f32.
fn bits(rows: &[RowOutput]) -> Vec<String> {
    rows.iter().map(|row| format!("{row:?}")).collect()
}

#[test]
fn bert_cross_encoder() {
    check("rand-bert-rank");
}

#[test]
fn bert_embedding_model() {
    check("rand-bert-embed");
}

#[test]
fn xlm_roberta_cross_encoder() {
    check("rand-xlmr-rank");
}

#[test]
fn distilbert_cross_encoder() {
    check("rand-distilbert-rank");
}

#[test]
fn mpnet_classifier_of_tokens() {
    check("rand-mpnet-token3");
}

#[test]
fn modernbert_cross_encoder_of_means() {
    check("rand-modernbert-rank");
}

#[test]
fn modernbert_classifier_of_tokens() {
    check("rand-modernbert-token3");
}

#[test]
fn qwen2_that_looks_ahead() {
    check("rand-qwen2-whole");
}

#[test]
fn gemma3_embedder_with_dense_modules() {
    check("rand-gemma3-embed");
}

/// Prompts in one step of several chunks, in another order, get the bits that each gets alone; also
/// where few tokens are read, so that the last layer ends early for all others.
#[test]
fn whole_prompts_get_the_bits_of_each_alone() {
    for (model, num_ids) in [
        ("rand-bert-rank", 600),
        ("rand-modernbert-rank", 330),
        ("rand-mpnet-token3", 310),
        ("rand-gemma3-embed", 288),
    ] {
        let Some(mut executor) = executor(model, &config()) else {
            return;
        };
        let heads = |len: u32| {
            let mut heads = vec![(0..1, embed(Pooling::First))];
            if len % 2 == 1 {
                heads.push((0..len, embed(Pooling::Mean)));
            }
            match model {
                "rand-gemma3-embed" => {}
                "rand-mpnet-token3" => {
                    let classes = OutputHead::Tokens(TokenHead::Classify);
                    heads.push((len - 1..len, classes));
                }
                _ => heads.push((0..1, OutputHead::Classify)),
            }
            heads
        };
        let lens = [1, 64, 70, 17, 130, 33];
        let prompts: Vec<_> = (0..)
            .zip(lens)
            .map(|(seed, len)| prompt(&ids(len, seed, num_ids), heads(len)))
            .collect();
        let alone: Vec<_> = prompts
            .iter()
            .map(|prompt| bits(&run(&mut executor, prompt.clone())))
            .collect();
        assert!(!alone.concat().iter().any(|row| row.contains("Failed")));
        for order in [[0, 1, 2, 3, 4, 5], [4, 2, 5, 0, 3, 1]] {
            let mut together = OneShotBatch::EMPTY;
            for i in order {
                append(&mut together, prompts[i].clone());
            }
            let expected: Vec<_> = order.iter().flat_map(|&i| alone[i].clone()).collect();
            let got = bits(&run(&mut executor, together));
            assert_eq!(got, expected, "{model}, {order:?}");
        }
    }
}

/// Steps of one shape and other contents: launched one by one, and run as what was captured behind
/// that, have the bits that they have without padding.
#[test]
fn captured_steps_have_the_same_bits() {
    for (model, num_ids) in [
        ("rand-bert-rank", 600),
        ("rand-modernbert-rank", 330),
        ("rand-gemma3-embed", 288),
    ] {
        let padding = CudaConfig {
            graph_tokens: 100,
            ..config()
        };
        let Some(mut eager) = executor(model, &config()) else {
            return;
        };
        let Some(mut graphs) = executor(model, &padding) else {
            return;
        };
        for i in 0..4u32 {
            // 33 to 36 tokens: 48.
            let head = match model {
                "rand-gemma3-embed" => embed(Pooling::Last),
                _ => OutputHead::Classify,
            };
            let heads = vec![(0..1, head)];
            let mut batch = prompt(&ids(17 + i, i, num_ids), heads.clone());
            append(&mut batch, prompt(&ids(16, 9 - i, num_ids), heads));
            let [a, b] = [&mut eager, &mut graphs].map(|of| bits(&run(of, batch.clone())));
            assert_eq!(a, b, "{model}, step {i}");
            assert!(!a.concat().contains("Failed"), "{a:?}");
        }
        let stats = graphs.graphs();
        assert_eq!((stats.eager, stats.captures, stats.replays), (1, 1, 3));
        assert_eq!(stats.padding, 15 + 14 + 13 + 12);
    }
}

/// Graphs that are captured at start, before any prompt.
#[test]
fn graphs_of_the_start_give_the_same_bits() {
    for model in [
        "rand-bert-rank",
        "rand-modernbert-rank",
        "rand-gemma3-embed",
    ] {
        let start = CudaConfig {
            graph_tokens: 3,
            graph_start_ms: u32::MAX,
            ..config()
        };
        let Some(mut eager) = executor(model, &config()) else {
            return;
        };
        let Some(mut graphs) = executor(model, &start) else {
            return;
        };
        assert_eq!(graphs.graphs().captures, 3);
        let head = match model {
            "rand-gemma3-embed" => embed(Pooling::Last),
            _ => OutputHead::Classify,
        };
        let batch = prompt(&ids(3, 5, 288), vec![(0..1, head)]);
        let [a, b] = [&mut eager, &mut graphs].map(|of| bits(&run(of, batch.clone())));
        assert_eq!(a, b, "{model}");
        assert_eq!(graphs.graphs().replays, 1);
    }
}

/// Nothing is taken for keys and values, and no logits of a vocabulary are kept room for.
#[test]
fn an_encoder_has_no_kv_blocks() {
    let config = CudaConfig {
        num_blocks: None,
        kv_bytes: Some(1 << 30),
        host_bytes: 1 << 30,
        ..config()
    };
    let checkpoint = checkpoint("rand-bert-rank");
    let (executor, _) = CudaExecutor::recording(&checkpoint, &config).unwrap();
    let memory = executor.memory();
    assert_eq!(
        (memory.kv_bytes, memory.host_bytes, memory.pass_bytes),
        (0, 0, 0)
    );
    let capacity = executor.capacity();
    assert_eq!(
        (capacity.num_blocks, capacity.host_blocks, capacity.passes),
        (1, 0, None)
    );
    // Ids of both types of tokens.
    assert_eq!(capacity.vocab_size, 600);
    assert_eq!(capacity.max_context_len, 160);
}

/// A mean has classes, and the tokens that it is made of have none.
#[test]
fn tokens_have_no_classes_of_means() {
    let Some(mut executor) = executor("rand-modernbert-rank", &config()) else {
        return;
    };
    let outputs = vec![
        (0..3, OutputHead::Tokens(TokenHead::Classify)),
        (0..1, OutputHead::Classify),
    ];
    let rows = run(&mut executor, prompt(&[1, 2, 3], outputs));
    let [RowOutput::Failed(why), RowOutput::Classes(_)] = rows[..] else {
        panic!("{rows:?}");
    };
    assert!(why.contains("whole texts"), "{why}");
}

/// An encoder has no words to draw or to score: such a row fails, and no other.
#[test]
fn an_encoder_has_no_vocabulary_head() {
    let Some(mut executor) = executor("rand-bert-rank", &config()) else {
        return;
    };
    let labels = OutputHead::LabelScores {
        labels: [1, 2].into(),
        normalise: prelude_core::Normalise::OverVocab,
    };
    let rows = vec![(2..3, labels), (0..1, OutputHead::Classify)];
    let rows = run(&mut executor, prompt(&[1, 2, 3], rows));
    assert!(
        matches!(rows[..], [RowOutput::Failed(_), RowOutput::Classes(_)]),
        "{rows:?}"
    );
}

/// A prompt tree is no batch of such a model.
#[test]
fn shared_prompts_of_an_encoder_are_refused() {
    let checkpoint = checkpoint("rand-bert-rank");
    let (mut executor, _) = CudaExecutor::recording(&checkpoint, &config()).unwrap();
    let mut batch = prompt(&[1, 2, 3], vec![(0..1, OutputHead::Classify)]);
    batch.tokens.push(4);
    batch.segments.push(Segment {
        tokens: 3..4,
        parent: Some(SegmentIdx(0)),
        context_len: 3,
        cached: BlockSpan::EMPTY,
        residency: Residency::Transient,
    });
    let error = executor.submit(StepId(0), ForwardBatch::OneShot(batch));
    let Err(ExecutorError::Step(error)) = error else {
        panic!("{error:?}")
    };
    assert!(error.contains("attention sees whole prompts"), "{error}");
}

/// Decision models against the answers of their authors: states in bfloat16, heads in f32. Rows of one
/// step, of questions of all types, have the bits that each has alone.
#[test]
fn decision_models() {
    for name in ["laya", "kev-qwen3"] {
        let Some(mut executor) = executor(&format!("decision/{name}"), &config()) else {
            return;
        };
        let checkpoint = checkpoint(&format!("decision/{name}"));
        let decision = checkpoint.decision().unwrap();
        let words = checkpoint.config().vocab_size as u32;
        let file = golden::folder(&format!("decision/{name}")).join("golden.json");
        let golden: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let mut alone = Vec::new();
        let mut together = OneShotBatch::EMPTY;
        for case in &golden["cases"].as_array().unwrap()[..5] {
            for (id, asked) in case["prompts"].as_object().unwrap() {
                let numbers = |list: &Value| -> Vec<u32> {
                    let list = list.as_array().unwrap().iter();
                    list.map(|n| u32::try_from(n.as_u64().unwrap()).unwrap())
                        .collect()
                };
                let expected = &case["answers"][id];
                let kinds = ["choice", "score", "noul"];
                let kind = kinds
                    .iter()
                    .position(|kind| expected["type"] == *kind)
                    .unwrap();
                let step = if name == "laya" {
                    words * kind as u32
                } else {
                    0
                };
                let tokens: Vec<u32> = numbers(&asked["tokens"])
                    .iter()
                    .map(|id| id + step)
                    .collect();
                // A chunk holds no longer prompt, and a step no more tokens than these.
                if tokens.len() > 150 || together.tokens.len() + tokens.len() > 500 {
                    continue;
                }
                let mut at = numbers(&asked["options"]);
                let n = at.len();
                at.extend(asked["query"].as_u64().map(|at| at as u32));
                let span = at[0]..at[at.len() - 1] + 1;
                let batch = prompt(&tokens, vec![(span, OutputHead::States(at.into()))]);
                let rows = run(&mut executor, batch.clone());
                append(&mut together, batch);
                let RowOutput::Tokens { rows: states, .. } = &rows[0] else {
                    panic!("{rows:?}");
                };
                let question = [
                    QuestionType::Choice,
                    QuestionType::Score,
                    QuestionType::Noul,
                ][kind];
                let found = decision.probabilities(question, (n, 1.0), states);
                let expected = expected["probabilities"].as_object().unwrap().values();
                for (found, expected) in found.iter().zip(expected) {
                    let expected = expected.as_f64().unwrap();
                    let what = format!("{name}, {id}: {found}, recorded {expected}");
                    assert!((found - expected).abs() < 0.05, "{what}");
                }
                alone.extend(bits(&rows));
            }
        }
        assert!(alone.len() > 5, "{name}");
        assert_eq!(bits(&run(&mut executor, together)), alone, "{name}");
    }
}
