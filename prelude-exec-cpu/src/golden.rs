//! Every path of this machine against recorded outputs of the reference implementation, on short
//! prompts. `tests/parity.rs` compares every array of every prompt on the default path.

use prelude_core::{Normalise, OutputHead, Pooling, RowOutput, TokenHead};
use safetensors::SafeTensors;

use crate::{
    CpuConfig, CpuDtype,
    testing::{executor, prompt, run_oneshot, variants},
};

/// Largest difference of logits and log-probabilities in f32. Correct implementations differ by
/// up to 6e-5 (4e-4 with sharp weights and long prompts).
const F32_LOGITS: f32 = 2e-3;
/// The same for components of vectors of length 1.
const F32_UNIT: f32 = 1e-5;

/// Tokens of the longest prompt run: two tiles of keys and a few more. Portable code is slow.
const MAX_LEN: usize = 130;

struct Golden {
    bytes: Vec<u8>,
    /// Largest difference of f32 and bf16 in the reference implementation, by array.
    document: serde_json::Value,
}

impl Golden {
    fn open(name: &str) -> Self {
        let folder = format!("{}/../golden/{name}", env!("CARGO_MANIFEST_DIR"));
        let json = std::fs::read(format!("{folder}/golden.json")).unwrap();
        Self {
            bytes: std::fs::read(format!("{folder}/golden.safetensors")).unwrap(),
            document: serde_json::from_slice(&json).unwrap(),
        }
    }

    fn words<T>(&self, name: &str, read: fn([u8; 4]) -> T) -> Option<Vec<T>> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).ok()?;
        let words = tensor.data().as_chunks::<4>().0.iter().copied();
        Some(words.map(read).collect())
    }

    fn f32(&self, name: &str) -> Option<Vec<f32>> {
        self.words(&format!("f32.{name}"), f32::from_le_bytes)
    }

    fn prompts(&self) -> Vec<(usize, Vec<u32>)> {
        let tokens = self.words("tokens", u32::from_le_bytes).unwrap();
        let offsets = self.words("offsets", u32::from_le_bytes).unwrap();
        offsets
            .windows(2)
            .map(|w| (w[0] as usize, tokens[w[0] as usize..w[1] as usize].to_vec()))
            .collect()
    }
}

/// Largest and mean difference seen, against what is allowed.
#[derive(Default)]
struct Differences {
    max: f32,
    sum: f64,
    count: usize,
}

impl Differences {
    fn add(&mut self, got: &[f32], expected: &[f32]) {
        assert_eq!(got.len(), expected.len());
        for (a, b) in got.iter().zip(expected) {
            let difference = (a - b).abs();
            assert!(difference.is_finite(), "{a} {b}");
            self.max = self.max.max(difference);
            self.sum += f64::from(difference);
            self.count += 1;
        }
    }

    /// In bf16: twice the largest and 1.5 times the mean that the reference implementation shows
    /// between its own f32 and bf16.
    fn check(&self, what: &str, dtype: CpuDtype, golden: &Golden, array: &str, f32_max: f32) {
        if self.count == 0 {
            return;
        }
        let mean = (self.sum / self.count as f64) as f32;
        let observed = &golden.document["tolerances"]["f32 against bf16"][array];
        let number = |key: &str| observed[key].as_f64().unwrap() as f32;
        let (max, mean_max) = match dtype {
            CpuDtype::F32 => (f32_max, f32_max / 10.0),
            CpuDtype::Bf16 => (2.0 * number("max"), 1.5 * number("mean")),
        };
        assert!(
            self.max <= max && mean <= mean_max,
            "{what} {array}: max {} of {max}, mean {mean} of {mean_max}",
            self.max
        );
    }
}

fn unit(v: &[f32]) -> Vec<f32> {
    let length = v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    v.iter().map(|&x| (f64::from(x) / length) as f32).collect()
}

/// Prompts up to `max_len` tokens on every path.
fn check(name: &str, max_len: usize) {
    let golden = Golden::open(name);
    for (what, config) in variants() {
        let config = CpuConfig {
            max_step_tokens: 2048,
            max_context_len: Some(2048),
            ..config
        };
        let mut executor = executor(name, config, 2);
        let what = format!("{name}, {what}");
        let vocabulary = golden.f32("logprob");
        let [mut logprobs, mut lse, mut classes, mut last, mut mean] =
            std::array::from_fn(|_| Differences::default());
        for (p, (offset, tokens)) in golden.prompts().into_iter().enumerate() {
            let len = u32::try_from(tokens.len()).unwrap();
            if tokens.len() > max_len {
                continue;
            }
            let embed = |pooling| OutputHead::Embed {
                pooling,
                normalise: true,
                dimensions: None,
            };
            let of_tokens = OutputHead::Tokens(TokenHead::Embed {
                normalise: false,
                dimensions: None,
            });
            let mut rows = vec![
                (len - 1..len, embed(Pooling::Last)),
                (0..len, embed(Pooling::Mean)),
                (0..len, of_tokens),
            ];
            if vocabulary.is_some() {
                let normalise = Normalise::OverVocab;
                let labels = [7].into();
                rows.push((len - 1..len, OutputHead::LabelScores { labels, normalise }));
                if len > 1 {
                    let targets = tokens[1..].to_vec();
                    rows.push((0..len - 1, OutputHead::Logprobs { targets, top: 5 }));
                }
            } else if golden.f32("cls_logits").is_some() {
                rows.push((len - 1..len, OutputHead::Classify));
                rows.push((0..len, OutputHead::Tokens(TokenHead::Classify)));
            }
            for (i, row) in run_oneshot(&mut executor, prompt(&tokens, rows))
                .into_iter()
                .enumerate()
            {
                let at = |array: &str, width: usize| {
                    golden.f32(array).unwrap()[p * width..][..width].to_vec()
                };
                match row {
                    RowOutput::Embedding(v) if i == 0 => {
                        last.add(&v, &unit(&at("embed_last", v.len())));
                    }
                    RowOutput::Embedding(v) => mean.add(&v, &unit(&at("embed_mean", v.len()))),
                    // The reference's mean over all tokens and its last token.
                    RowOutput::Tokens { rows, .. } if i == 2 => {
                        let states = tokens.len() as f32;
                        let sum = |at| rows.iter().map(|row: &Vec<f32>| row[at]).sum::<f32>();
                        let width = rows[0].len();
                        let average: Vec<f32> = (0..width).map(|at| sum(at) / states).collect();
                        mean.add(&unit(&average), &unit(&at("embed_mean", width)));
                        last.add(&unit(rows.last().unwrap()), &unit(&at("embed_last", width)));
                        assert_eq!(rows.len(), tokens.len(), "{what}");
                    }
                    RowOutput::Tokens { rows, .. } => {
                        let logits = rows.last().unwrap();
                        classes.add(logits, &at("cls_logits", logits.len()));
                        assert_eq!(rows.len(), tokens.len(), "{what}");
                    }
                    RowOutput::LabelScores(scores) => {
                        lse.add(&[scores.log_sum_exp.unwrap()], &at("last_lse", 1));
                    }
                    RowOutput::Classes(logits) => {
                        classes.add(&logits, &at("cls_logits", logits.len()));
                    }
                    RowOutput::Logprobs { entries, .. } => {
                        let got: Vec<f32> = entries.iter().map(|e| e.logprob).collect();
                        let all = vocabulary.as_ref().unwrap();
                        logprobs.add(&got, &all[offset + 1..][..got.len()]);
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
        }
        // Every model has hidden states, and all but bare bodies one more head.
        assert!(last.count > 1000 && mean.count > 1000, "{what}");
        let heads = logprobs.count.min(lse.count).max(classes.count);
        assert!(heads > 50 || name == "rand-embed", "{what}");
        let dtype = executor.dtype();
        logprobs.check(&what, dtype, &golden, "logprob", F32_LOGITS);
        lse.check(&what, dtype, &golden, "last_lse", F32_LOGITS);
        classes.check(&what, dtype, &golden, "cls_logits", F32_LOGITS);
        last.check(&what, dtype, &golden, "embed_last_normalised", F32_UNIT);
        mean.check(&what, dtype, &golden, "embed_mean_normalised", F32_UNIT);
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
