//! Tests of every path of this machine against recorded outputs of the reference implementation, on
//! short prompts. `tests/parity.rs` compares every array of every prompt on the default path.

use prelude_models::conformance::golden::{Allowed, Golden, GoldenComparison, folder};

use crate::{
    CpuConfig, CpuDtype,
    testing::{executor, prompt, run_oneshot, unquantised},
};

/// Largest difference of logits and log-probabilities in f32. Correct implementations differ by
/// up to 6e-5 (4e-4 with sharp weights and long prompts).
const F32_LOGITS: f64 = 2e-3;
/// Largest difference of components of vectors of length 1 in f32.
const F32_UNIT: f64 = 1e-5;

/// Tokens of the longest prompt run: two tiles of keys and a few more. Portable code is slow.
const MAX_LEN: usize = 130;

/// Checks prompts up to `max_len` tokens on every path.
fn check(name: &str, max_len: usize) {
    let golden = Golden::open(&folder(name)).unwrap();
    for (what, config) in unquantised() {
        let config = CpuConfig {
            max_step_tokens: 2048,
            max_context_len: (!golden.is_whole()).then_some(1024),
            ..config
        };
        let mut executor = executor(name, config, 2);
        let what = format!("{name}, {what}");
        let mut comparison = GoldenComparison::new(&golden);
        let mut compared = 0;
        for recorded in golden.prompts() {
            let tokens = &recorded.tokens;
            if tokens.len() > max_len {
                continue;
            }
            let outputs = comparison.outputs(tokens, true);
            let answers = run_oneshot(&mut executor, prompt(tokens, outputs));
            let added = comparison.add(&recorded, &answers);
            added.unwrap_or_else(|error| panic!("{what}: {error}"));
            compared += 1;
        }
        // Every model has hidden states, and all but bare bodies one more head.
        let [last, mean, lse, logprob, classes] = comparison.arrays().map(|(_, seen)| seen.count);
        assert!(last > 1000 && mean > 1000, "{what}");
        let heads = logprob.min(lse).max(classes);
        let is_embedder = name.ends_with("-embed") || name == "rand-qwen2-whole";
        assert!(compared > 10, "{what}: {compared} prompts");
        assert!(heads >= compared || is_embedder, "{what}");
        let allowed = |array: &str| {
            let bf16 = golden.allowed(array)?;
            let max = match array {
                "embed_last_normalised" | "embed_mean_normalised" => F32_UNIT,
                _ => F32_LOGITS,
            };
            Some(match executor.dtype() {
                CpuDtype::F32 => Allowed {
                    max,
                    mean: max / 10.0,
                },
                CpuDtype::Bf16 => bf16,
            })
        };
        let checked = comparison.check(allowed);
        checked.unwrap_or_else(|error| panic!("{what} {error}"));
    }
}

#[test]
fn demo_lm() {
    check("demo-lm", MAX_LEN);
}

#[test]
fn demo_classifier() {
    check("demo-classifier", MAX_LEN);
}

#[test]
fn untied_and_sharded() {
    check("rand-untied-sharded", MAX_LEN);
}

#[test]
fn yarn_and_one_class() {
    check("rand-yarn-reward", MAX_LEN);
}

#[test]
fn embedding_model() {
    check("rand-embed", MAX_LEN);
}

#[test]
fn three_classes_in_f16() {
    check("rand-cls3", MAX_LEN);
}

#[test]
fn llama_with_biases() {
    check("rand-llama", MAX_LEN);
}

#[test]
fn llama_classifier() {
    check("rand-llama-cls3", MAX_LEN);
}

#[test]
fn mistral_classifier() {
    check("rand-mistral-cls3", MAX_LEN);
}

#[test]
fn qwen2_tied() {
    check("rand-qwen2", MAX_LEN);
}

#[test]
fn qwen2_reward_model() {
    check("rand-qwen2-reward", MAX_LEN);
}

#[test]
fn qwen2_embedder_that_looks_ahead() {
    check("rand-qwen2-whole", MAX_LEN);
}

#[test]
fn gemma2_with_windows_and_caps() {
    check("rand-gemma2", MAX_LEN);
}

#[test]
fn gemma3_with_two_rotations() {
    check("rand-gemma3", MAX_LEN);
}

#[test]
fn gemma3_embedder_with_dense_modules() {
    check("rand-gemma3-embed", MAX_LEN);
}

#[test]
fn qwen3_classifier_of_tokens() {
    check("rand-qwen3-token4", MAX_LEN);
}

#[test]
fn qwen3_mixture_of_experts() {
    check("rand-qwen3-moe", MAX_LEN);
}

#[test]
fn granite_with_factors() {
    check("rand-granite", MAX_LEN);
}

#[test]
fn qwen3_in_fp8_with_blocks() {
    check("rand-fp8-block", MAX_LEN);
}

#[test]
fn llama_classifier_in_fp8() {
    check("rand-fp8-cls3", MAX_LEN);
}

#[test]
fn llama_of_a_gguf_file() {
    check("rand-gguf-llama", MAX_LEN);
}

#[test]
fn qwen2_of_a_gguf_file() {
    check("rand-gguf-qwen2", MAX_LEN);
}

#[test]
fn bert_with_token_types() {
    check("rand-bert-cls3", MAX_LEN);
}

#[test]
fn bert_cross_encoder() {
    check("rand-bert-rank", MAX_LEN);
}

#[test]
fn bert_embedding_model() {
    check("rand-bert-embed", MAX_LEN);
}

#[test]
fn roberta_classifier() {
    check("rand-roberta-cls2", MAX_LEN);
}

#[test]
fn xlm_roberta_cross_encoder() {
    check("rand-xlmr-rank", MAX_LEN);
}

#[test]
fn distilbert_classifier() {
    check("rand-distilbert-cls2", MAX_LEN);
}

#[test]
fn modernbert_classifier() {
    check("rand-modernbert-cls3", MAX_LEN);
}

#[test]
fn modernbert_cross_encoder_of_means() {
    check("rand-modernbert-rank", MAX_LEN);
}

#[test]
fn modernbert_embedding_model() {
    check("rand-modernbert-embed", MAX_LEN);
}

#[test]
fn modernbert_classifier_of_tokens() {
    check("rand-modernbert-token5", MAX_LEN);
}

#[test]
fn mpnet_embedding_model() {
    check("rand-mpnet-embed", MAX_LEN);
}

#[test]
fn mpnet_classifier() {
    check("rand-mpnet-cls2", MAX_LEN);
}

#[test]
fn bert_classifier_of_tokens() {
    check("rand-bert-token5", MAX_LEN);
}

#[test]
fn xlm_roberta_classifier_of_tokens() {
    check("rand-xlmr-token3", MAX_LEN);
}

#[test]
fn distilbert_cross_encoder() {
    check("rand-distilbert-rank", MAX_LEN);
}

#[test]
fn mpnet_classifier_of_tokens() {
    check("rand-mpnet-token3", MAX_LEN);
}

#[test]
fn modernbert_with_heads_of_16() {
    check("rand-modernbert-token3", MAX_LEN);
}

#[test]
fn distilbert_classifier_of_tokens() {
    check("rand-distilbert-token3", MAX_LEN);
}
