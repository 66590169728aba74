//! Answers to the same rows in other company: the same bits, or each kind of answer within a bound
//! of its own.

use anyhow::{Context as _, Result, bail, ensure};
use prelude_core::{LabelScores, RowOutput};
use prelude_models::conformance::golden::Differences;

use crate::batches::sampled;

/// Returns the bits of results as text: `Debug` prints the shortest digits that read back as the
/// same f32.
pub(crate) fn bits(rows: &[RowOutput]) -> Vec<String> {
    rows.iter().map(|row| format!("{row:?}")).collect()
}

/// Checks for equal bits if they are promised; else that each kind of answer is within its own
/// bound.
pub(crate) fn same(got: &[RowOutput], alone: &[RowOutput], promised: bool) -> Result<String> {
    if bits(got) == bits(alone) {
        return Ok("equal bits".to_owned());
    }
    match (close(got, alone), promised) {
        (Ok(text), true) => bail!("other bits, if close: {text}"),
        (Err(error), true) => Err(error.context("other bits")),
        (result, false) => result,
    }
}

/// Least cosine of two embeddings of the same tokens: unrelated ones are near 0, and bf16 through
/// 28 layers of these models leaves 0.998.
const COSINE_MIN: f64 = 0.99;
/// Largest mean difference of logits, as a share of their spread: one rounding to bf16 differs in
/// each of 28 layers. Unrelated logits differ by 1.1 times their spread.
const LOGITS_MEAN: f64 = 0.1;
/// The largest difference of any two logits, as a share of their spread.
const LOGITS_MAX: f64 = 0.75;

/// Differences that products by other algorithms explain, by the kind of answer.
fn close(got: &[RowOutput], alone: &[RowOutput]) -> Result<String> {
    ensure!(
        got.len() == alone.len(),
        "{} rows, not {}",
        got.len(),
        alone.len()
    );
    let mut texts = Vec::new();
    // How far off logits were seen to be, which says what a near tie is.
    let mut off = None;
    for (got, alone) in got.iter().zip(alone) {
        texts.push(match (got, alone) {
            (RowOutput::Embedding(got), RowOutput::Embedding(alone)) => embeddings(got, alone)?,
            (RowOutput::LabelScores(got), RowOutput::LabelScores(alone)) => {
                let (text, largest) = logits(got, alone)?;
                off = Some(largest);
                text
            }
            (RowOutput::Sampled(_), RowOutput::Sampled(_)) => {
                let off = off.context("no logits before a token")?;
                choices(sampled(got)?, sampled(alone)?, off)?
            }
            _ => bail!("{got:?} where {alone:?} was expected"),
        });
    }
    Ok(texts.join("; "))
}

fn embeddings(got: &[f32], alone: &[f32]) -> Result<String> {
    ensure!(got.len() == alone.len(), "an embedding of another size");
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    let cosine = dot(got, alone) / (dot(got, got) * dot(alone, alone)).sqrt();
    let text = format!("cosine {cosine:.5}");
    // Not a number is not enough either.
    ensure!(cosine >= COSINE_MIN, "{text}, not {COSINE_MIN}");
    Ok(text)
}

/// Compares logits and returns the verdict in words and the largest difference.
fn logits(got: &LabelScores, alone: &LabelScores) -> Result<(String, f64)> {
    let all = |scores: &LabelScores| -> Vec<f32> {
        let logits = scores.logits.iter().copied();
        logits.chain(scores.log_sum_exp).collect()
    };
    let mut seen = Differences::default();
    seen.add(&all(got), &all(alone))?;
    let spread = spread(&alone.logits);
    let text = format!(
        "logits max {:.2e}, mean {:.2e} of a spread of {spread:.2e}",
        seen.max,
        seen.mean()
    );
    ensure!(
        seen.max <= LOGITS_MAX * spread && seen.mean() <= LOGITS_MEAN * spread,
        "{text}"
    );
    Ok((text, seen.max))
}

/// Returns the standard deviation of some values.
pub(crate) fn spread(values: &[f32]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares = values.iter().map(|&x| (f64::from(x) - mean).powi(2));
    (squares.sum::<f64>() / n).sqrt()
}

/// Compares tokens with their leads. Logits that are each `off` by as much, and a little more
/// elsewhere in the vocabulary, may turn a lead of twice that around.
fn choices(got: (u32, Option<f32>), alone: (u32, Option<f32>), off: f64) -> Result<String> {
    let lead = f64::from(alone.1.context("no second token")?);
    let near = 4.0 * off;
    if got.0 == alone.0 {
        return Ok("same token".to_owned());
    }
    let text = format!(
        "token {} and not {}, which leads by {lead:.3}",
        got.0, alone.0
    );
    ensure!(lead < near, "{text}, more than a near tie of {near:.3}");
    Ok(format!("{text}, a near tie"))
}

#[cfg(test)]
mod tests {
    use prelude_core::{SampledToken, TokenLogprob};

    use super::*;
    use crate::batches::mix;

    /// Returns numbers around 0 that depend on a seed, with a spread of about `size`.
    fn noise(seed: u64, len: usize, size: f32) -> Vec<f32> {
        let at = |i| (mix(seed * 1_000_003 + i as u64) >> 40) as f32 / 16_777_216.0;
        (0..len)
            .map(|i| (at(i) - 0.5) * 12f32.sqrt() * size)
            .collect()
    }

    fn moved(values: &[f32], seed: u64, size: f32) -> Vec<f32> {
        let noise = noise(seed, values.len(), size);
        values.iter().zip(noise).map(|(x, d)| x + d).collect()
    }

    fn embedding(seed: u64) -> RowOutput {
        RowOutput::Embedding(noise(seed, 256, 0.06))
    }

    fn labels(logits: Vec<f32>, log_sum_exp: f32) -> RowOutput {
        RowOutput::LabelScores(LabelScores {
            logits,
            log_sum_exp: Some(log_sum_exp),
        })
    }

    fn token(token: u32, lead: f32) -> RowOutput {
        let top = [(token, -1.0), (9, -1.0 - lead)];
        RowOutput::Sampled(vec![SampledToken {
            token,
            logprob: Some(-1.0),
            top: top
                .map(|(token, logprob)| TokenLogprob { token, logprob })
                .to_vec(),
        }])
    }

    fn alone() -> Vec<RowOutput> {
        vec![embedding(1), labels(noise(2, 48, 4.0), 12.0), token(5, 3.0)]
    }

    fn check(change: impl FnOnce(&mut Vec<RowOutput>)) -> Result<String> {
        let mut got = alone();
        change(&mut got);
        same(&got, &alone(), false)
    }

    fn fault(change: impl FnOnce(&mut Vec<RowOutput>), expected: &str) {
        let error = format!("{:#}", check(change).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn each_kind_of_answer_has_a_bound_of_its_own() {
        assert_eq!(check(|_| ()).unwrap(), "equal bits");
        let text = check(|rows| {
            rows[0] = RowOutput::Embedding(moved(&noise(1, 256, 0.06), 7, 0.002));
            rows[1] = labels(moved(&noise(2, 48, 4.0), 8, 0.1), 12.05);
        });
        let text = text.unwrap();
        assert!(text.contains("cosine 0.99") && text.ends_with("same token"));
        // Two unrelated embeddings differ by less than 0.5 everywhere.
        fault(|rows| rows[0] = embedding(3), "cosine");
        fault(
            |rows| rows[0] = RowOutput::Embedding(moved(&noise(1, 256, 0.06), 7, 0.012)),
            "not 0.99",
        );
        fault(
            |rows| rows[0] = RowOutput::Embedding(vec![0.0; 256]),
            "cosine NaN",
        );
        fault(
            |rows| rows[1] = labels(noise(4, 48, 4.0), 12.0),
            "of a spread",
        );
        fault(
            |rows| rows[1] = labels(moved(&noise(2, 48, 4.0), 8, 0.8), 12.0),
            "of a spread",
        );
        fault(
            |rows| rows[1] = labels(noise(2, 48, 4.0), 16.0),
            "of a spread",
        );
        fault(|rows| drop(rows.pop()), "2 rows");
        fault(|rows| rows.swap(0, 1), "was expected");
    }

    #[test]
    fn tokens_are_equal_but_for_near_ties() {
        // Logits with the same bits leave no doubt.
        fault(|rows| rows[2] = token(6, 3.0), "more than a near tie");
        let off = |rows: &mut Vec<RowOutput>| {
            let mut logits = noise(2, 48, 4.0);
            logits[3] += 0.8;
            rows[1] = labels(logits, 12.0);
            rows[2] = token(6, 0.1);
        };
        assert!(check(off).unwrap().ends_with("a near tie"));
        assert!(choices((6, None), (5, Some(3.3)), 0.8).is_err());
    }

    #[test]
    fn promised_bits_are_no_matter_of_bounds() {
        let mut got = alone();
        let RowOutput::Embedding(values) = &mut got[0] else {
            unreachable!("the first is an embedding")
        };
        values[0] += 1e-6;
        let error = same(&got, &alone(), true).unwrap_err().to_string();
        assert!(error.contains("other bits"), "{error}");
        same(&got, &alone(), false).unwrap();
    }
}
