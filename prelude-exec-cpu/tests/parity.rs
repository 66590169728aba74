//! Parity with Hugging Face transformers: every golden array of every golden model, through the
//! executor, in f32, in bf16 and with weights in int8 and fp8. `cargo xtask parity` runs it and shows
//! the table.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of a test fail by panicking, like the test"
)]

mod support;

use std::sync::Arc;

use prelude_core::{
    Attention, Normalise, OutputHead, Pooling, RowOutput, SampleHead, SamplingParams, TokenHead,
};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuDtype, CpuExecutor, Quantization};
use prelude_models::{Checkpoint, ModelKind};
use support::{
    driver::{Driver, Want},
    golden::{self, Golden},
    table::{Allowed, HEADER, Line},
};

/// f32, logits and log-probabilities. Correct f32 programs differ by up to 6e-5 here and 4e-4
/// with sharper weights; typical mistakes by 0.1 and more.
const F32_LOGITS: Allowed = Allowed {
    max: 2e-3,
    mean: Some(1e-4),
};
/// f32, probabilities.
const F32_PROBABILITIES: Allowed = Allowed {
    max: 5e-4,
    mean: None,
};
/// f32, components of unit embeddings.
const F32_UNIT: Allowed = Allowed {
    max: 1e-5,
    mean: None,
};
/// Frequencies: two f32 roundings of numbers up to 1.
const FREQUENCIES: Allowed = Allowed {
    max: 1.2e-7,
    mean: None,
};
/// bf16: multiples of what the reference's own f32 and bf16 runs differ by. Correct bf16 programs
/// order their roundings differently, so none can be held to another's bits.
const BF16_MAX: f64 = 2.0;
const BF16_MEAN: f64 = 1.5;
/// int8: multiples of the same. A byte has about as many bits as a bf16 number's mantissa, but
/// shares its scale with others, most of which are smaller. The largest multiples seen are 6.2 and
/// 4.4.
const INT8_MAX: f64 = 8.0;
const INT8_MEAN: f64 = 6.0;
/// fp8: the same; e4m3 has four bits less than bf16. The largest multiples seen are 25.9 and 18.0, of
/// random models; of trained ones 8.7 and 9.9.
const FP8_MAX: f64 = 32.0;
const FP8_MEAN: f64 = 24.0;

/// Tokens of a step: prompts reach 1500, and several batches per model are wanted.
const MAX_STEP_TOKENS: u32 = 2048;
/// Blocks for 28 prompts of up to 300 tokens and their 32 new ones.
const NUM_BLOCKS: u32 = 1024;
const GREEDY_TOKENS: usize = 32;
/// Tokens listed beside each log-probability.
const TOP: u32 = 5;
/// Entries of `last_top_ids`, and how many of them the stated bf16 tolerance covers.
const TOP_STORED: usize = 50;
const TOP_STATED: usize = 20;

/// Line of the table, pooling, whether of length 1, array.
const EMBEDDINGS: [(&str, Pooling, bool, &str); 4] = [
    ("embed_last, unit", Pooling::Last, true, "embed_last"),
    ("embed_mean, unit", Pooling::Mean, true, "embed_mean"),
    ("embed_last", Pooling::Last, false, "embed_last"),
    ("embed_mean", Pooling::Mean, false, "embed_mean"),
];
/// The index of the results of a prompt's other heads: label scores or classes; a token;
/// log-probabilities, if the prompt has more than one token.
const FIRST: usize = EMBEDDINGS.len();
const SAMPLE: usize = FIRST + 1;
const LOGPROBS: usize = FIRST + 2;

#[test]
fn golden_models() {
    let pool = Arc::new(ComputePool::for_machine());
    let goldens = golden::all();
    assert!(goldens.len() >= 6, "golden data is missing");
    let mut lines = Vec::new();
    for golden in &goldens {
        let checkpoint = Checkpoint::open(&golden.model).unwrap();
        for arithmetic in Arithmetic::ALL {
            let (dtype, quantization) = match arithmetic {
                Arithmetic::F32 => (CpuDtype::F32, None),
                Arithmetic::Bf16 => (CpuDtype::Bf16, None),
                Arithmetic::Int8 => (CpuDtype::Bf16, Some(Quantization::Int8)),
                Arithmetic::Fp8 => (CpuDtype::Bf16, Some(Quantization::Fp8)),
            };
            let is_decoder = checkpoint.config().encoder.is_none();
            if arithmetic == Arithmetic::Fp8 && !is_decoder {
                continue; // It is refused.
            }
            let config = CpuConfig {
                dtype: Some(dtype),
                quantization,
                max_step_tokens: MAX_STEP_TOKENS,
                num_blocks: Some(NUM_BLOCKS),
                ..CpuConfig::default()
            };
            let mut executor = CpuExecutor::new(&checkpoint, config, Arc::clone(&pool)).unwrap();
            let mut parity = Parity {
                golden,
                checkpoint: &checkpoint,
                arithmetic,
                lines: &mut lines,
            };
            parity.run(&mut Driver::new(&mut executor));
        }
    }
    println!("{HEADER}");
    for line in &lines {
        println!("{line}");
    }
    let failed: Vec<_> = lines.iter().filter(|line| !line.passes()).collect();
    println!("{} arrays, {} failed", lines.len(), failed.len());
    assert!(failed.is_empty(), "see the table above");
}

/// The arithmetic of a model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arithmetic {
    F32,
    Bf16,
    /// int8 weights and inputs of products, everything else as in bf16.
    Int8,
    /// fp8 weights and inputs of products but those of heads, everything else as in bf16.
    Fp8,
}

impl Arithmetic {
    const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Int8, Self::Fp8];
}

/// One model in one arithmetic.
struct Parity<'a> {
    golden: &'a Golden,
    checkpoint: &'a Checkpoint,
    arithmetic: Arithmetic,
    lines: &'a mut Vec<Line>,
}

impl Parity<'_> {
    fn run(&mut self, driver: &mut Driver<'_>) {
        self.frequencies();
        // Every prompt runs once, with all its heads.
        let results = driver.oneshot(&self.golden.prompts, |p| self.wants(p));
        self.embeddings(&results);
        match self.checkpoint.kind() {
            ModelKind::CausalLm => {
                self.logprobs(&results);
                self.last_logits(&results);
                self.greedy(driver);
            }
            ModelKind::SequenceClassification { .. } => self.classes(&results),
            ModelKind::TokenClassification { .. } => self.token_classes(&results),
            ModelKind::Embedding { .. } => {}
        }
    }

    /// Returns what to compute for a prompt: first [`EMBEDDINGS`], then what the model's head
    /// gives.
    fn wants(&self, p: usize) -> Vec<Want> {
        let ids = &self.golden.prompts[p];
        let len = ids.len() as u32;
        let last = len - 1..len;
        let mut wants: Vec<Want> = EMBEDDINGS
            .iter()
            .map(|&(_, pooling, normalise, _)| {
                let positions = match pooling {
                    Pooling::First => 0..1,
                    Pooling::Last => last.clone(),
                    Pooling::Mean => 0..len,
                };
                let head = OutputHead::Embed {
                    pooling,
                    normalise,
                    dimensions: None,
                };
                (positions, head)
            })
            .collect();
        match self.checkpoint.kind() {
            ModelKind::CausalLm => {
                wants.push((last.clone(), self.label_scores(p)));
                wants.push((last, self.sample()));
                if len > 1 {
                    let head = OutputHead::Logprobs {
                        targets: ids[1..].to_vec(),
                        top: TOP,
                    };
                    wants.push((0..len - 1, head));
                }
            }
            ModelKind::SequenceClassification { .. } => {
                let read = match self.checkpoint.config().attention {
                    Attention::Causal => last,
                    Attention::Full => 0..1,
                };
                wants.push((read, OutputHead::Classify));
            }
            ModelKind::TokenClassification { .. } => {
                wants.push((0..len, OutputHead::Tokens(TokenHead::Classify)));
            }
            ModelKind::Embedding { .. } => {}
        }
        wants
    }

    fn is_f32(&self) -> bool {
        self.arithmetic == Arithmetic::F32
    }

    /// Returns the number of `last_top_ids` that are compared.
    fn compared(&self) -> usize {
        if self.is_f32() {
            TOP_STORED
        } else {
            TOP_STATED
        }
    }

    /// Returns the logits of the reference's likeliest tokens, of "yes" and of "no".
    fn label_scores(&self, p: usize) -> OutputHead {
        let (top_ids, width) = self.golden.ids("f32.last_top_ids");
        assert_eq!(width, TOP_STORED);
        let top = top_ids[p * width..][..self.compared()].iter();
        let yes_no = self.golden.list("yes_no_ids");
        let labels = top
            .map(|&id| id as u32)
            .chain(yes_no.iter().map(|&id| id as u32));
        OutputHead::LabelScores {
            labels: labels.collect(),
            normalise: Normalise::OverVocab,
        }
    }

    /// Returns a head that lists the likeliest tokens as the executor ranks them.
    fn sample(&self) -> OutputHead {
        OutputHead::Sample(SampleHead {
            sampling: Arc::new(SamplingParams::default()),
            choice: 0,
            draws: 1,
            output_position: 0,
            top_logprobs: Some(self.compared() as u32),
            history: None,
            mask: None,
        })
    }

    /// Returns the largest difference of an array: in f32 as given, else by the golden's entry for
    /// bf16.
    fn allowed(&self, f32: Allowed, entry: &str) -> Allowed {
        let (max_factor, mean_factor) = match self.arithmetic {
            Arithmetic::F32 => return f32,
            Arithmetic::Bf16 => (BF16_MAX, BF16_MEAN),
            Arithmetic::Int8 => (INT8_MAX, INT8_MEAN),
            Arithmetic::Fp8 => (FP8_MAX, FP8_MEAN),
        };
        let (max, mean) = self.golden.noise(entry);
        Allowed {
            max: max_factor * max,
            mean: Some(mean_factor * mean),
        }
    }

    fn line(&self, array: &'static str, f32: Allowed, entry: &str) -> Line {
        Line {
            model: self.golden.name.clone(),
            dtype: match self.arithmetic {
                Arithmetic::F32 => "f32",
                Arithmetic::Bf16 => "bf16",
                Arithmetic::Int8 => "int8",
                Arithmetic::Fp8 => "fp8",
            },
            array,
            values: 0,
            max: 0.0,
            mean: 0.0,
            differences: Vec::new(),
            allowed: self.allowed(f32, entry),
        }
    }

    fn frequencies(&mut self) {
        if !self.is_f32() {
            return; // They are f32 in every precision.
        }
        let config = self.checkpoint.config();
        if config.encoder.is_some() {
            return; // Positions are rows of a table.
        }
        let mut line = self.line("rope.inv_freq", FREQUENCIES, "");
        let (expected, _) = self.golden.f32("rope.inv_freq");
        let got = config.rope.inv_freq(config.head_dim);
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(expected) {
            line.add(f64::from(*got), f64::from(expected));
        }
        line.add(
            f64::from(config.rope.attention_scaling()),
            self.golden.attention_scaling(),
        );
        self.lines.push(line);
    }

    fn embeddings(&mut self, results: &[Vec<RowOutput>]) {
        for (a, &(array, _, unit, name)) in EMBEDDINGS.iter().enumerate() {
            let entry = if unit {
                format!("{name}_normalised")
            } else {
                name.to_owned()
            };
            let mut line = self.line(array, F32_UNIT, &entry);
            let (expected, width) = self.golden.f32(&format!("f32.{name}"));
            for (rows, expected) in results.iter().zip(expected.chunks_exact(width)) {
                let RowOutput::Embedding(got) = &rows[a] else {
                    panic!("a vector, not {:?}", rows[a]);
                };
                assert_eq!(got.len(), width);
                let norm = expected.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
                let norm = norm.sqrt();
                // In f32 the demand is on unit vectors, so others are measured against their norm.
                let (got_scale, scale) = match (unit, !self.is_f32()) {
                    (true, _) => (1.0, norm),
                    (false, false) => (norm, norm),
                    (false, true) => (1.0, 1.0),
                };
                for (got, expected) in got.iter().zip(expected) {
                    line.add(f64::from(*got) / got_scale, f64::from(*expected) / scale);
                }
            }
            self.lines.push(line);
        }
    }

    fn logprobs(&mut self, results: &[Vec<RowOutput>]) {
        const WIDTH: usize = TOP as usize;
        let mut line = self.line("logprob", F32_LOGITS, "logprob");
        let mut top_line = self.line("top_logprobs", F32_LOGITS, "logprob");
        let (expected, _) = self.golden.f32("f32.logprob");
        let (top, width) = self.golden.f32("f32.top_logprobs");
        assert_eq!(width, WIDTH);
        for (p, rows) in results.iter().enumerate() {
            let Some(row) = rows.get(LOGPROBS) else {
                continue; // One token has nothing before it.
            };
            let RowOutput::Logprobs {
                first_position: 1,
                entries,
            } = row
            else {
                panic!("log-probabilities from position 1, not {row:?}");
            };
            assert_eq!(entries.len(), self.golden.prompts[p].len() - 1);
            for (entry, at) in entries.iter().zip(self.golden.offsets[p] + 1..) {
                line.add(f64::from(entry.logprob), f64::from(expected[at]));
                assert_eq!(entry.top.len(), WIDTH);
                // By rank, not by id: neighbours may be closer than the tolerance.
                for (t, expected) in entry.top.iter().zip(&top[at * WIDTH..]) {
                    top_line.add(f64::from(t.logprob), f64::from(*expected));
                }
            }
        }
        self.lines.extend([line, top_line]);
    }

    fn last_logits(&mut self, results: &[Vec<RowOutput>]) {
        let (width, compared) = (TOP_STORED, self.compared());
        let mut logits_line = self.line("last_top_logits", F32_LOGITS, "last_logit_top20");
        let mut ranked_line = self.line("last_top, by rank", F32_LOGITS, "last_logit_top20");
        let mut lse_line = self.line("last_lse", F32_LOGITS, "last_lse");
        let mut yes_no_line = self.line("yes_no logits", F32_LOGITS, "yes_no_logit");
        let mut p_yes_line = self.line("p(yes)", F32_PROBABILITIES, "p_yes");
        let (top, _) = self.golden.f32("f32.last_top_logits");
        let (lse, _) = self.golden.f32("f32.last_lse");
        let (expected_yes_no, _) = self.golden.f32("f32.yes_no");
        for (p, rows) in results.iter().enumerate() {
            let (RowOutput::LabelScores(scores), RowOutput::Sampled(sampled)) =
                (&rows[FIRST], &rows[SAMPLE])
            else {
                panic!("label scores and a token, not {rows:?}");
            };
            let got: Vec<f64> = scores.logits.iter().map(|&z| f64::from(z)).collect();
            let expected = &top[p * width..][..compared];
            let got_lse = f64::from(scores.log_sum_exp.unwrap());
            lse_line.add(got_lse, f64::from(lse[p]));
            assert_eq!(sampled[0].top.len(), compared);
            for (i, &expected) in expected.iter().enumerate() {
                logits_line.add(got[i], f64::from(expected));
                let ranked = f64::from(sampled[0].top[i].logprob) + got_lse;
                ranked_line.add(ranked, f64::from(expected));
            }
            let (yes, no) = (got[compared], got[compared + 1]);
            let expected = &expected_yes_no[p * 3..][..3];
            yes_no_line.add(yes, f64::from(expected[0]));
            yes_no_line.add(no, f64::from(expected[1]));
            p_yes_line.add(1.0 / (1.0 + (no - yes).exp()), f64::from(expected[2]));
        }
        self.lines
            .extend([logits_line, ranked_line, lse_line, yes_no_line, p_yes_line]);
    }

    /// Text up to the first place where two tokens are about equally likely: beyond it, correct
    /// programs may differ.
    fn greedy(&mut self, driver: &mut Driver<'_>) {
        let (expected, width) = self.golden.ids("f32.greedy");
        let (logprobs, _) = self.golden.f32("f32.greedy_logprob");
        let (margins, _) = self.golden.f32("f32.greedy_margin");
        assert_eq!(width, GREEDY_TOKENS);
        let which = self.golden.list("greedy_prompts");
        let prompts: Vec<&[u32]> = which
            .iter()
            .map(|&p| self.golden.prompts[p].as_slice())
            .collect();
        let stops = &self.checkpoint.generation().eos_token_ids;
        let expected_stops = self.golden.list("eos_token_ids");
        assert!(stops.iter().map(|&id| id as usize).eq(expected_stops));
        let got = driver.greedy(&prompts, GREEDY_TOKENS, stops);
        let near_tie = self.allowed(F32_LOGITS, "last_logit_top20").max;
        // A token that differs counts 1, and none may.
        let none = Allowed {
            max: 0.0,
            mean: None,
        };
        let mut tokens_line = self.line("greedy tokens", none, "logprob");
        tokens_line.allowed = none;
        let mut line = self.line("greedy_logprob", F32_LOGITS, "logprob");
        for (g, got) in got.iter().enumerate() {
            for i in 0..GREEDY_TOKENS {
                let at = g * GREEDY_TOKENS + i;
                if expected[at] == -1 {
                    // The reference stopped, so nothing may follow.
                    tokens_line.add(f64::from(u8::from(got.len() > i)), 0.0);
                    break;
                }
                if f64::from(margins[at]) < near_tie {
                    break;
                }
                let same = got.get(i).is_some_and(|&(id, _)| id as i32 == expected[at]);
                tokens_line.add(f64::from(u8::from(!same)), 0.0);
                if !same {
                    break;
                }
                line.add(f64::from(got[i].1), f64::from(logprobs[at]));
            }
        }
        // Where the least rounding leads to other experts, int8 leaves no token that is sure, and fp8
        // few elsewhere.
        let is_rounded = matches!(self.arithmetic, Arithmetic::Int8 | Arithmetic::Fp8);
        if tokens_line.values > 0 || !is_rounded {
            self.lines.extend([tokens_line, line]);
        }
    }

    fn token_classes(&mut self, results: &[Vec<RowOutput>]) {
        let mut line = self.line("tok_logits", F32_LOGITS, "tok_logits");
        let (logits, width) = self.golden.f32("f32.tok_logits");
        for (p, rows) in results.iter().enumerate() {
            let RowOutput::Tokens { rows, .. } = &rows[FIRST] else {
                panic!("class logits of tokens, not {:?}", rows[FIRST]);
            };
            assert_eq!(rows.len(), self.golden.prompts[p].len());
            let expected = logits.chunks_exact(width).skip(self.golden.offsets[p]);
            for (got, expected) in rows.iter().zip(expected) {
                assert_eq!(got.len(), width);
                for (got, expected) in got.iter().zip(expected) {
                    line.add(f64::from(*got), f64::from(*expected));
                }
            }
        }
        self.lines.push(line);
    }

    fn classes(&mut self, results: &[Vec<RowOutput>]) {
        let mut logits_line = self.line("cls_logits", F32_LOGITS, "cls_logits");
        let mut probs_line = self.line("cls_probs", F32_PROBABILITIES, "cls_probs");
        let (logits, width) = self.golden.f32("f32.cls_logits");
        let (probs, _) = self.golden.f32("f32.cls_probs");
        let classes = |p: usize| -> Vec<f64> {
            let RowOutput::Classes(got) = &results[p][FIRST] else {
                panic!("class logits, not {:?}", results[p][FIRST]);
            };
            assert_eq!(got.len(), width);
            got.iter().map(|&z| f64::from(z)).collect()
        };
        for p in 0..results.len() {
            let got = classes(p);
            for (i, (z, probability)) in got.iter().zip(probabilities(&got)).enumerate() {
                logits_line.add(*z, f64::from(logits[p * width + i]));
                probs_line.add(probability, f64::from(probs[p * width + i]));
            }
        }
        self.lines.extend([logits_line, probs_line]);
        // The reference's public forward on a padded batch: another way to the same numbers.
        if self.is_f32() && self.golden.has("f32.padded_cls_logits") {
            let mut line = self.line("padded_cls_logits", F32_LOGITS, "");
            let (expected, _) = self.golden.f32("f32.padded_cls_logits");
            let padded = self.golden.list("padded_prompts");
            for (p, expected) in padded.into_iter().zip(expected.chunks_exact(width)) {
                for (got, expected) in classes(p).iter().zip(expected) {
                    line.add(*got, f64::from(*expected));
                }
            }
            self.lines.push(line);
        }
    }
}

/// Returns the softmax, or the sigmoid of a single logit.
fn probabilities(z: &[f64]) -> Vec<f64> {
    if let [z] = z {
        return vec![1.0 / (1.0 + (-z).exp())];
    }
    let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = z.iter().map(|z| (z - top).exp()).sum();
    z.iter().map(|z| (z - top).exp() / sum).collect()
}
