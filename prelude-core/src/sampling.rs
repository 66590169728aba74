//! The rules by which a token is chosen from logits.

use std::sync::Arc;

use crate::TokenId;

/// Sampling parameters of one row, in the order in which they apply: penalties and bias, allowed
/// tokens (those of a constraint too), temperature, top-k, top-p, min-p, draw. The CPU executor's
/// definition is normative.
///
/// A draw depends on `(seed, choice, output position, logits)` and on nothing else, so a seed
/// repeats its text in any batch.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy (ties take the smallest id).
    pub temperature: f32,
    /// Keep the fewest most likely tokens whose probabilities sum to at least this; 1 is off.
    pub top_p: f32,
    /// Keep this many most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keep tokens at least this fraction as likely as the likeliest; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of tokens in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Key of the counter-based generator.
    pub seed: u64,
    /// Added to the logits of these ids.
    pub logit_bias: Arc<[(TokenId, f32)]>,
    /// The only ids that may be chosen, if present: all other ids are masked.
    pub allowed_token_ids: Option<Arc<[TokenId]>>,
    /// Ids that end the sequence: the end tokens (unless ignored) and the caller's own.
    pub stop_token_ids: Arc<[TokenId]>,
    /// Stop ids are masked until this many tokens were generated.
    pub min_tokens: u32,
}

impl Default for SamplingParams {
    /// Returns greedy parameters, without masks, penalties or stop ids.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            logit_bias: Arc::from([]),
            allowed_token_ids: None,
            stop_token_ids: Arc::from([]),
            min_tokens: 0,
        }
    }
}

impl SamplingParams {
    /// Returns whether the tokens seen so far change the logits, so that a row needs its history.
    #[must_use]
    pub fn needs_history(&self) -> bool {
        // Exact comparisons: these are the neutral values themselves, not results.
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Returns the first field out of range, as `(name, what it must be)`.
    #[must_use]
    pub fn first_invalid(&self, vocab_size: u32) -> Option<(&'static str, &'static str)> {
        let in_vocab = |id: &TokenId| *id < vocab_size;
        let checks = [
            (
                "temperature",
                "finite and at least 0",
                self.temperature.is_finite() && self.temperature >= 0.0,
            ),
            ("top_p", "in (0, 1]", self.top_p > 0.0 && self.top_p <= 1.0),
            ("min_p", "in [0, 1]", (0.0..=1.0).contains(&self.min_p)),
            (
                "repetition_penalty",
                "finite and above 0",
                self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
            ),
            (
                "presence_penalty",
                "in [-2, 2]",
                (-2.0..=2.0).contains(&self.presence_penalty),
            ),
            (
                "frequency_penalty",
                "in [-2, 2]",
                (-2.0..=2.0).contains(&self.frequency_penalty),
            ),
            (
                "logit_bias",
                "pairs of an id in the vocabulary and a number in [-100, 100]",
                self.logit_bias
                    .iter()
                    .all(|(id, b)| in_vocab(id) && (-100.0..=100.0).contains(b)),
            ),
            (
                "allowed_token_ids",
                "a non-empty list of ids in the vocabulary",
                self.allowed_token_ids
                    .as_ref()
                    .is_none_or(|ids| !ids.is_empty() && ids.iter().all(in_vocab)),
            ),
            (
                "stop_token_ids",
                "ids in the vocabulary",
                self.stop_token_ids.iter().all(in_vocab),
            ),
        ];
        checks
            .into_iter()
            .find(|(_, _, ok)| !ok)
            .map(|(name, must, _)| (name, must))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut SamplingParams), expected: Option<&str>) {
        let mut params = SamplingParams::default();
        change(&mut params);
        assert_eq!(params.first_invalid(100).map(|(name, _)| name), expected);
    }

    #[test]
    fn names_the_first_field_out_of_range() {
        check(|_| (), None);
        check(|p| p.temperature = f32::NAN, Some("temperature"));
        check(|p| p.temperature = -1.0, Some("temperature"));
        check(|p| p.top_p = 0.0, Some("top_p"));
        check(|p| p.min_p = 1.5, Some("min_p"));
        check(|p| p.repetition_penalty = 0.0, Some("repetition_penalty"));
        check(
            |p| p.logit_bias = Arc::from([(100, 1.0)]),
            Some("logit_bias"),
        );
        check(
            |p| p.allowed_token_ids = Some(Arc::from([])),
            Some("allowed_token_ids"),
        );
        check(
            |p| p.stop_token_ids = Arc::from([100]),
            Some("stop_token_ids"),
        );
    }
}
