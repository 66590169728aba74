//! Recorded outputs of the reference implementation, and answers compared with them.
//!
//! `golden/README.md` says how each file was made.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use prelude_core::{Normalise, OutputHead, Pooling, RowOutput, TokenHead};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::Error;

/// Factor on the reference's own largest bf16 error, within which results must stay.
const MAX_FACTOR: f64 = 2.0;
/// Factor on the reference's own mean bf16 error, within which results must stay.
const MEAN_FACTOR: f64 = 1.5;

/// Returns the folder in the sources with a model's recorded outputs.
#[must_use]
pub fn folder(name: &str) -> PathBuf {
    sources().join("golden").join(name)
}

/// Returns the folder in the sources with a model's checkpoint.
#[must_use]
pub fn model_folder(name: &str) -> PathBuf {
    match name.starts_with("demo-") {
        true => sources().join("prelude-server/demo").join(name),
        false => folder(name).join("model"),
    }
}

/// Returns the names of all models with recorded outputs in the sources, sorted.
///
/// # Panics
/// If fewer than six are there.
#[must_use]
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(sources().join("golden")).into_iter().flatten();
    let recorded = entries
        .flatten()
        .filter(|entry| entry.path().join("golden.json").exists());
    let mut names: Vec<_> = recorded
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    assert!(names.len() >= 6, "golden data is missing: {names:?}");
    names
}

fn sources() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The recorded outputs of one model.
#[derive(Debug)]
pub struct Golden {
    document: Value,
    bytes: Vec<u8>,
}

/// A prompt whose outputs were recorded.
#[derive(Clone, Debug)]
pub struct GoldenPrompt {
    /// The prompt's row in arrays with a row for each prompt.
    pub index: usize,
    /// Row of the prompt's first token in arrays with a row for each token.
    pub offset: usize,
    /// Token ids.
    pub tokens: Vec<u32>,
}

impl Golden {
    /// Reads `golden.json` and `golden.safetensors` of a folder.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Json`].
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let read = |name| {
            let path = folder.join(name);
            fs::read(&path).map_err(|source| Error::Io { path, source })
        };
        let document = serde_json::from_slice(&read("golden.json")?);
        Ok(Self {
            document: document.map_err(|error| Error::Json {
                file: "golden.json".to_owned(),
                what: error.to_string(),
            })?,
            bytes: read("golden.safetensors")?,
        })
    }

    /// Returns the content of `golden.json`.
    #[must_use]
    pub const fn document(&self) -> &Value {
        &self.document
    }

    /// Returns true if attention sees whole prompts.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.document["attention"] == "full"
    }

    /// Returns true if modules `Dense` follow a pooling, so that a token's vector is no embedding.
    #[must_use]
    pub fn has_dense_modules(&self) -> bool {
        self.document["dense"] == true
    }

    /// Returns true if classes are read from the mean of a prompt's hidden states.
    #[must_use]
    pub fn has_mean_classes(&self) -> bool {
        self.document["class_pooling"] == "mean"
    }

    fn words<T>(
        &self,
        name: &str,
        dtype: Dtype,
        read: fn([u8; 4]) -> T,
    ) -> Option<(Vec<T>, usize)> {
        let file = SafeTensors::deserialize(&self.bytes).ok()?;
        let tensor = file.tensor(name).ok().filter(|t| t.dtype() == dtype)?;
        let words = tensor.data().as_chunks::<4>().0.iter().copied();
        Some((
            words.map(read).collect(),
            tensor.shape()[1..].iter().product(),
        ))
    }

    /// Returns an array of f32 and the width of its rows, if the model has the array.
    #[must_use]
    pub fn f32(&self, name: &str) -> Option<(Vec<f32>, usize)> {
        self.words(name, Dtype::F32, f32::from_le_bytes)
    }

    /// Returns an array of ids and the width of its rows, if the model has the array.
    #[must_use]
    pub fn i32(&self, name: &str) -> Option<(Vec<i32>, usize)> {
        self.words(name, Dtype::I32, i32::from_le_bytes)
    }

    /// Returns all prompts, none if the file has no or damaged ones.
    #[must_use]
    pub fn prompts(&self) -> Vec<GoldenPrompt> {
        let ids = |name| Some(self.words(name, Dtype::I32, u32::from_le_bytes)?.0);
        let (Some(tokens), Some(offsets)) = (ids("tokens"), ids("offsets")) else {
            return Vec::new();
        };
        let ranges = offsets.windows(2).map(|w| w[0] as usize..w[1] as usize);
        let prompts = ranges.enumerate().filter_map(|(index, range)| {
            Some(GoldenPrompt {
                index,
                offset: range.start,
                tokens: tokens.get(range)?.to_vec(),
            })
        });
        prompts.collect()
    }

    /// Returns the largest and the mean difference between the reference's own f32 and bf16 runs.
    #[must_use]
    pub fn bf16_error(&self, array: &str) -> Option<(f64, f64)> {
        let observed = &self.document["tolerances"]["f32 against bf16"][array];
        let number = |key: &str| observed[key].as_f64();
        Some((number("max")?, number("mean")?))
    }

    /// Returns how far results in bf16 may be off: twice the largest and 1.5 times the mean
    /// difference that the reference itself shows. Correct programs order their roundings
    /// differently, so none can be held to another's bits.
    #[must_use]
    pub fn allowed(&self, array: &str) -> Option<Allowed> {
        let (max, mean) = self.bf16_error(array)?;
        Some(Allowed::from_observed(max, mean))
    }
}

/// The way in which results differ from the recorded outputs.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(String);

impl From<&str> for Mismatch {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// The largest and the mean difference between results and recorded numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Differences {
    /// The largest difference.
    pub max: f64,
    /// Number of numbers compared.
    pub count: usize,
    sum: f64,
}

/// Upper bounds of [`Differences`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowed {
    /// Bound of the largest difference.
    pub max: f64,
    /// Bound of the mean difference.
    pub mean: f64,
}

impl Allowed {
    /// Returns the bounds of results in bf16 from the error that the reference itself shows there.
    #[must_use]
    pub fn from_observed(max: f64, mean: f64) -> Self {
        Self {
            max: MAX_FACTOR * max,
            mean: MEAN_FACTOR * mean,
        }
    }
}

impl Differences {
    /// Compares two lists, number by number.
    ///
    /// # Errors
    /// If their lengths differ, or a difference is infinite or not a number.
    pub fn add(&mut self, got: &[f32], expected: &[f32]) -> Result<(), Mismatch> {
        if got.len() != expected.len() {
            let (got, expected) = (got.len(), expected.len());
            return Err(Mismatch(format!("{got} numbers instead of {expected}")));
        }
        for (i, (&a, &b)) in got.iter().zip(expected).enumerate() {
            let difference = f64::from(a - b).abs();
            if !difference.is_finite() {
                return Err(Mismatch(format!("number {i} is {a} and should be {b}")));
            }
            self.max = self.max.max(difference);
            self.sum += difference;
            self.count += 1;
        }
        Ok(())
    }

    /// Returns the mean difference; 0 if nothing was compared.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// Describes the differences, if they are within the bounds.
    ///
    /// # Errors
    /// The same text, if they are not; or if nothing was compared.
    pub fn check(&self, allowed: Allowed) -> Result<String, Mismatch> {
        if self.count == 0 {
            return Err("nothing was compared".into());
        }
        let text = format!(
            "max {:.2e} of {:.2e}, mean {:.2e} of {:.2e}, {} numbers",
            self.max,
            allowed.max,
            self.mean(),
            allowed.mean,
            self.count
        );
        match self.max <= allowed.max && self.mean() <= allowed.mean {
            true => Ok(text),
            false => Err(Mismatch(text)),
        }
    }
}

/// Answers to a model's prompts, compared with the recorded outputs.
#[derive(Debug)]
pub struct GoldenComparison<'g> {
    golden: &'g Golden,
    has_classes: bool,
    /// Class logits of all prompts' tokens, of a classifier of tokens.
    token_classes: Option<Vec<f32>>,
    /// True if classes are read at the first token, which sees all others.
    is_whole: bool,
    /// Log-probabilities of all prompts' tokens, of a language model.
    logprobs: Option<Vec<f32>>,
    last: Differences,
    mean: Differences,
    lse: Differences,
    logprob: Differences,
    classes: Differences,
}

impl<'g> GoldenComparison<'g> {
    /// Returns a comparison with nothing compared yet.
    #[must_use]
    pub fn new(golden: &'g Golden) -> Self {
        let none = Differences::default();
        Self {
            golden,
            has_classes: golden.f32("f32.cls_logits").is_some(),
            token_classes: golden.f32("f32.tok_logits").map(|(values, _)| values),
            is_whole: golden.is_whole(),
            logprobs: golden.f32("f32.logprob").map(|(values, _)| values),
            last: none,
            mean: none,
            lse: none,
            logprob: none,
            classes: none,
        }
    }

    /// Returns what to compute for a prompt, with the positions that each result reads: all that
    /// the model's heads give. `each_token` adds vectors and classes of every token.
    ///
    /// # Panics
    /// If the prompt has no tokens, or 2³².
    #[must_use]
    pub fn outputs(&self, tokens: &[u32], each_token: bool) -> Vec<(Range<u32>, OutputHead)> {
        let len = u32::try_from(tokens.len()).expect("a prompt's length fits u32");
        let last = len - 1..len;
        let embed = |pooling| OutputHead::Embed {
            pooling,
            normalise: true,
            dimensions: None,
        };
        let mut outputs = vec![
            (last.clone(), embed(Pooling::Last)),
            (0..len, embed(Pooling::Mean)),
        ];
        if each_token && !self.golden.has_dense_modules() {
            let head = TokenHead::Embed {
                normalise: false,
                dimensions: None,
            };
            outputs.push((0..len, OutputHead::Tokens(head)));
        }
        if self.logprobs.is_some() {
            let scores = OutputHead::LabelScores {
                labels: [7, 200, 9].into(),
                normalise: Normalise::OverVocab,
            };
            outputs.push((last, scores));
            if len > 1 {
                let targets = tokens[1..].to_vec();
                outputs.push((0..len - 1, OutputHead::Logprobs { targets, top: 5 }));
            }
        } else if self.has_classes {
            let read = if self.is_whole { 0..1 } else { last };
            outputs.push((read, OutputHead::Classify));
            if each_token && !self.golden.has_mean_classes() {
                outputs.push((0..len, OutputHead::Tokens(TokenHead::Classify)));
            }
        } else if self.token_classes.is_some() {
            outputs.push((0..len, OutputHead::Tokens(TokenHead::Classify)));
        }
        outputs
    }

    /// Compares the answers to [`GoldenComparison::outputs`] of a prompt, in the same order.
    ///
    /// # Errors
    /// If an answer is missing, is of another kind, or has another shape.
    pub fn add(&mut self, prompt: &GoldenPrompt, answers: &[RowOutput]) -> Result<(), Mismatch> {
        let wanted = self.outputs(&prompt.tokens, false).len();
        if answers.len() < wanted {
            let answers = answers.len();
            return Err(Mismatch(format!("{answers} answers for {wanted} outputs")));
        }
        let tokens = prompt.tokens.len();
        let has_vectors = answers.len() > wanted;
        for (i, answer) in answers.iter().enumerate() {
            match answer {
                RowOutput::Embedding(v) if i == 0 => {
                    let expected = self.row("embed_last", prompt, v.len())?;
                    self.last.add(v, &unit(&expected))?;
                }
                RowOutput::Embedding(v) => {
                    let expected = self.row("embed_mean", prompt, v.len())?;
                    self.mean.add(v, &unit(&expected))?;
                }
                RowOutput::Tokens { rows, .. } if rows.len() != tokens => {
                    let rows = rows.len();
                    return Err(Mismatch(format!("{rows} rows for {tokens} tokens")));
                }
                RowOutput::Tokens { rows, .. } if i == 2 && has_vectors => {
                    self.add_vectors(prompt, rows)?;
                }
                RowOutput::Tokens { rows, .. } if self.token_classes.is_some() => {
                    self.add_token_classes(prompt, rows)?;
                }
                RowOutput::Tokens { rows, .. } => {
                    let read = if self.is_whole { 0 } else { tokens - 1 };
                    self.add_classes(prompt, &rows[read])?;
                }
                RowOutput::Classes(logits) => self.add_classes(prompt, logits)?,
                RowOutput::LabelScores(scores) => {
                    let lse = scores.log_sum_exp.ok_or("scores without their sum")?;
                    let expected = self.row("last_lse", prompt, 1)?;
                    self.lse.add(&[lse], &expected)?;
                }
                RowOutput::Logprobs { entries, .. } => {
                    let got: Vec<f32> = entries.iter().map(|entry| entry.logprob).collect();
                    let all = self.logprobs.as_ref().ok_or("no `logprob`")?;
                    let first = prompt.offset + 1;
                    let expected = all.get(first..first + got.len());
                    self.logprob
                        .add(&got, expected.ok_or("a short `logprob`")?)?;
                }
                other => return Err(Mismatch(format!("an unexpected answer: {other:?}"))),
            }
        }
        Ok(())
    }

    /// Compares the mean of a prompt's token vectors, and the last of them, with the recorded
    /// embeddings.
    fn add_vectors(&mut self, prompt: &GoldenPrompt, rows: &[Vec<f32>]) -> Result<(), Mismatch> {
        let width = rows[0].len();
        let sum = |at: usize| rows.iter().map(|row| row[at]).sum::<f32>();
        let average: Vec<f32> = (0..width).map(|at| sum(at) / rows.len() as f32).collect();
        let expected = self.row("embed_mean", prompt, width)?;
        self.mean.add(&unit(&average), &unit(&expected))?;
        let expected = self.row("embed_last", prompt, width)?;
        self.last
            .add(&unit(&rows[rows.len() - 1]), &unit(&expected))
    }

    fn add_classes(&mut self, prompt: &GoldenPrompt, logits: &[f32]) -> Result<(), Mismatch> {
        let expected = self.row("cls_logits", prompt, logits.len())?;
        self.classes.add(logits, &expected)
    }

    fn add_token_classes(
        &mut self,
        prompt: &GoldenPrompt,
        rows: &[Vec<f32>],
    ) -> Result<(), Mismatch> {
        let all = self.token_classes.as_ref().ok_or("no `tok_logits`")?;
        for (at, row) in (prompt.offset..).zip(rows) {
            let expected = all.get(at * row.len()..(at + 1) * row.len());
            let expected = expected.ok_or("a short `tok_logits`")?;
            self.classes.add(row, expected)?;
        }
        Ok(())
    }

    /// Returns a prompt's row of an array whose rows are `width` wide.
    fn row(&self, array: &str, prompt: &GoldenPrompt, width: usize) -> Result<Vec<f32>, Mismatch> {
        let all = self.golden.f32(&format!("f32.{array}"));
        let (all, _) = all.ok_or_else(|| Mismatch(format!("no `{array}`")))?;
        let row = all.get(prompt.index * width..(prompt.index + 1) * width);
        Ok(row
            .ok_or_else(|| Mismatch(format!("a short `{array}`")))?
            .to_vec())
    }

    /// Returns the differences of each array, by the array's name among the tolerances.
    #[must_use]
    pub const fn arrays(&self) -> [(&'static str, Differences); 5] {
        [
            ("embed_last_normalised", self.last),
            ("embed_mean_normalised", self.mean),
            ("last_lse", self.lse),
            ("logprob", self.logprob),
            (self.class_array(), self.classes),
        ]
    }

    const fn class_array(&self) -> &'static str {
        match self.token_classes {
            Some(_) => "tok_logits",
            None => "cls_logits",
        }
    }

    /// Checks every array against `allowed`, which returns the bounds of the arrays that the model
    /// has. Returns the differences and bounds of those.
    ///
    /// # Errors
    /// If an array is off, if one with bounds was not compared, or one without bounds was.
    pub fn check(
        &self,
        allowed: impl Fn(&str) -> Option<Allowed>,
    ) -> Result<Vec<(&'static str, Differences, Allowed)>, Mismatch> {
        let mut checked = Vec::new();
        for (array, differences) in self.arrays() {
            let Some(allowed) = allowed(array) else {
                if differences.count > 0 {
                    return Err(Mismatch(format!("{array} has no tolerance")));
                }
                continue;
            };
            let within = differences.check(allowed);
            within.map_err(|error| Mismatch(format!("{array}: {error}")))?;
            checked.push((array, differences, allowed));
        }
        match checked.is_empty() {
            true => Err("nothing was compared".into()),
            false => Ok(checked),
        }
    }
}

/// Returns `v` scaled to length 1, as embeddings are.
fn unit(v: &[f32]) -> Vec<f32> {
    let length = v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    v.iter().map(|&x| (f64::from(x) / length) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_largest_and_mean_count() {
        let mut seen = Differences::default();
        let allowed = |max, mean| Allowed { max, mean };
        assert!(seen.check(allowed(1.0, 1.0)).is_err(), "nothing compared");
        seen.add(&[1.0, 2.0, 3.0], &[1.0, 2.0, 2.0]).unwrap();
        assert!(seen.check(allowed(1.0, 0.4)).is_ok());
        assert!(seen.check(allowed(0.9, 0.4)).is_err());
        assert!(seen.check(allowed(1.0, 0.3)).is_err());
        assert!(seen.add(&[f32::NAN], &[1.0]).is_err());
        assert!(seen.add(&[1.0], &[f32::NAN]).is_err());
        assert!(seen.add(&[1.0], &[]).is_err());
    }

    #[test]
    fn missing_and_strange_answers_are_errors() {
        let golden = Golden::open(&folder("demo-lm")).unwrap();
        let prompt = &golden.prompts()[0];
        let mut comparison = GoldenComparison::new(&golden);
        assert!(comparison.check(|array| golden.allowed(array)).is_err());
        assert!(comparison.add(prompt, &[]).is_err());
        let failed = vec![RowOutput::Failed("no room"); 5];
        assert!(comparison.add(prompt, &failed).is_err());
    }
}
