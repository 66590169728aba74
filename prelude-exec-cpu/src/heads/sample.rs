//! Sampling, from logits to tokens: the definition that other executors follow.
//!
//! In this order:
//!
//! 1. Repetition penalty: the logit of each token in prompt or output, once, is divided by it if
//!    positive and multiplied by it otherwise.
//! 2. Of each token in the output: `frequency_penalty · occurrences` and `presence_penalty` are
//!    subtracted.
//! 3. `logit_bias` is added, entry by entry.
//! 4. Tokens that are not allowed, by the list or by the constraint, and stop ids while [`SampleHead::masks_stops`], become -∞.
//! 5. At temperature 0 the largest logit wins, ties the smaller id. Otherwise token i weighs
//!    `w_i = floor(2^40 · e^((l_i - max) / temperature))`, an integer, so that no sum of weights
//!    depends on its order. A weight of 0 is out.
//! 6. Top-k keeps the k largest logits, ties by smaller id.
//! 7. Top-p keeps the fewest of the largest logits whose weights sum to at least
//!    `ceil(top_p · Σ w)`, ties by smaller id.
//! 8. Min-p keeps `w_i ≥ min_p · 2^40`.
//! 9. A draw is 64 random bits r of Philox4x32-10 (key: seed, counter: output position, choice):
//!    the first token in order of id at which the running sum of weights exceeds
//!    `floor(r · Σ w / 2^64)`.

use std::cmp::Ordering;

use prelude_core::{PenaltyHistory, RowOutput, SampleHead, SamplingParams, TokenId, TokenSet};

use super::philox;
use crate::kernels::{Supported, simd};

/// A weight of 1: fixed point with 40 fraction bits leaves room for 2^24 tokens in a u64.
const ONE: f64 = (1u64 << 40) as f64;

/// First look of top-p: almost always enough, and cheap to sort.
const TOP_P_GUESS: usize = 256;

/// The bit of [`Scratch::seen`] that says that a token is in prompt or output.
const SEEN: u32 = 1 << 31;

/// Buffers of one worker.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    logits: Vec<f32>,
    weights: Vec<f32>,
    /// Occurrences in the output, and [`SEEN`]. All zero between calls.
    seen: Vec<u32>,
    candidates: Vec<Candidate>,
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: TokenId,
    logit: f32,
    /// The candidate's own weight until [`accumulate`]d, then the sum with the weights before it.
    weight: u64,
}

/// Returns the bytes of [`Scratch`].
pub(crate) const fn scratch_bytes(vocab: usize) -> usize {
    vocab * (3 * size_of::<f32>() + size_of::<Candidate>())
}

impl Scratch {
    /// Draws `head.draws` tokens from finite `logits` with the given maximum. An error is what
    /// the row gets where no token can be chosen.
    pub(crate) fn sample(
        &mut self,
        isa: Supported,
        logits: &[f32],
        max: f32,
        head: &SampleHead,
    ) -> Result<Vec<TokenId>, RowOutput> {
        let params = &*head.sampling;
        let mask = match &head.mask {
            None => None,
            Some(mask) => Some(mask.wait().ok_or(RowOutput::NoToken)?),
        };
        let changed = changes_logits(head);
        let max = if changed {
            self.logits.clear();
            self.logits.extend_from_slice(logits);
            self.change_logits(head, mask);
            // Masked tokens are -∞, so only the maximum is of use.
            simd::max_finite(isa, &self.logits).0
        } else {
            max
        };
        if max == f32::NEG_INFINITY {
            return Err(RowOutput::NoToken);
        }
        if !max.is_finite() {
            return Err(RowOutput::Failed(super::NOT_FINITE));
        }
        let logits = if changed { &self.logits } else { logits };
        if params.temperature == 0.0 {
            let best = logits
                .iter()
                .position(|&x| x == max)
                .expect("the maximum is one of the logits");
            return Ok(vec![best as TokenId; head.draws as usize]);
        }
        self.weights.clear();
        self.weights.extend_from_slice(logits);
        simd::soften(isa, &mut self.weights, max, params.temperature);
        self.candidates.clear();
        let weighted = self.weights.iter().zip(logits).zip(0..);
        self.candidates
            .extend(weighted.filter_map(|((&weight, &logit), id)| {
                let weight = (f64::from(weight) * ONE) as u64;
                (weight > 0).then_some(Candidate { id, logit, weight })
            }));
        filter(&mut self.candidates, params);
        accumulate(&mut self.candidates);
        let choices = (0..head.draws).map(|i| head.choice.wrapping_add(i));
        Ok(choices
            .map(|choice| {
                let random = philox::draw(params.seed, head.output_position, choice);
                pick(&self.candidates, random)
            })
            .collect())
    }

    /// Does steps 1 to 4.
    fn change_logits(&mut self, head: &SampleHead, mask: Option<&TokenSet>) {
        let params = &*head.sampling;
        if let Some(history) = &head.history {
            self.penalise(params, history);
        }
        for &(id, bias) in &*params.logit_bias {
            self.logits[id as usize] += bias;
        }
        if let Some(allowed) = &params.allowed_token_ids {
            self.weights.clear();
            let kept = allowed.iter().map(|&id| self.logits[id as usize]);
            self.weights.extend(kept);
            self.logits.fill(f32::NEG_INFINITY);
            for (&id, &logit) in allowed.iter().zip(&self.weights) {
                self.logits[id as usize] = logit;
            }
        }
        if let Some(mask) = mask {
            for (id, logit) in (0..).zip(&mut self.logits) {
                if !mask.contains(id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if head.masks_stops() {
            for &id in &*params.stop_token_ids {
                self.logits[id as usize] = f32::NEG_INFINITY;
            }
        }
    }

    fn penalise(&mut self, params: &SamplingParams, history: &PenaltyHistory) {
        self.seen.resize(self.logits.len(), 0);
        for &id in &*history.prompt {
            self.seen[id as usize] |= SEEN;
        }
        for &id in &history.output {
            let seen = &mut self.seen[id as usize];
            *seen = (*seen | SEEN) + 1;
        }
        for &id in history.prompt.iter().chain(&history.output) {
            let seen = std::mem::take(&mut self.seen[id as usize]);
            if seen == 0 {
                continue;
            }
            let logit = &mut self.logits[id as usize];
            *logit = if *logit > 0.0 {
                *logit / params.repetition_penalty
            } else {
                *logit * params.repetition_penalty
            };
            let occurrences = seen & !SEEN;
            if occurrences > 0 {
                *logit -= params.frequency_penalty * occurrences as f32;
                *logit -= params.presence_penalty;
            }
        }
    }
}

/// Returns true if steps 1 to 4 change anything.
fn changes_logits(head: &SampleHead) -> bool {
    let params = &head.sampling;
    head.history.is_some()
        || !params.logit_bias.is_empty()
        || params.allowed_token_ids.is_some()
        || head.mask.is_some()
        || head.masks_stops() && !params.stop_token_ids.is_empty()
}

/// Orders the largest logit first, then the smaller id.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit
        .partial_cmp(&a.logit)
        .expect("logits were checked to be finite")
        .then(a.id.cmp(&b.id))
}

fn sum(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|c| c.weight).sum()
}

/// Does steps 6 to 8; leaves the candidates in order of id.
fn filter(candidates: &mut Vec<Candidate>, params: &SamplingParams) {
    let k = params.top_k as usize;
    let ranked = k > 0 && k < candidates.len() || params.top_p < 1.0;
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, order);
        candidates.truncate(k);
    }
    if params.top_p < 1.0 {
        keep_top_p(candidates, params.top_p);
    }
    if params.min_p > 0.0 {
        let least = f64::from(params.min_p) * ONE;
        candidates.retain(|c| c.weight as f64 >= least);
    }
    if ranked {
        candidates.sort_unstable_by_key(|c| c.id);
    }
}

/// Does step 7. Selects ever larger heads of the order until one holds enough, then sorts that.
fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f32) {
    let enough = (f64::from(top_p) * sum(candidates) as f64).ceil() as u64;
    let mut guess = TOP_P_GUESS;
    while guess < candidates.len() {
        candidates.select_nth_unstable_by(guess - 1, order);
        if sum(&candidates[..guess]) >= enough {
            break;
        }
        guess *= 8;
    }
    candidates.truncate(guess);
    candidates.sort_unstable_by(order);
    let mut running = 0;
    let last = candidates.iter().position(|c| {
        running += c.weight;
        running >= enough
    });
    // `None` only if rounding lifted `enough` above the sum: then all candidates are kept.
    if let Some(last) = last {
        candidates.truncate(last + 1);
    }
}

/// Turns weights into running sums, once for all draws.
fn accumulate(candidates: &mut [Candidate]) {
    let mut running = 0;
    for candidate in candidates {
        running += candidate.weight;
        candidate.weight = running;
    }
}

/// Does step 9, on running sums.
fn pick(candidates: &[Candidate], random: u64) -> TokenId {
    let total = candidates.last().map_or(0, |last| last.weight);
    let at = ((u128::from(random) * u128::from(total)) >> 64) as u64;
    // The index is below the length, since the point is below the total.
    candidates[candidates.partition_point(|c| c.weight <= at)].id
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use proptest::prelude::*;

    use super::*;
    use crate::Isa;

    fn head(change: impl FnOnce(&mut SamplingParams)) -> SampleHead {
        let mut sampling = SamplingParams::default();
        change(&mut sampling);
        SampleHead {
            sampling: Arc::new(sampling),
            choice: 0,
            draws: 1,
            output_position: 0,
            top_logprobs: None,
            history: None,
            mask: None,
        }
    }

    fn run(logits: &[f32], head: &SampleHead) -> Result<Vec<u32>, RowOutput> {
        let isa = Supported::new(Isa::best()).unwrap();
        let (max, _) = simd::max_finite(isa, logits);
        Scratch::default().sample(isa, logits, max, head)
    }

    fn check(logits: &[f32], head: &SampleHead, expected: u32) {
        assert_eq!(run(logits, head), Ok(vec![expected]));
    }

    #[test]
    fn greedy_with_masks_and_penalties() {
        let logits = [1.0, 3.0, 3.0, -2.0, 2.5];
        check(&logits, &head(|_| ()), 1);
        check(&logits, &head(|p| p.logit_bias = Arc::from([(3, 9.0)])), 3);
        let allowed = |ids: &[u32]| Some(Arc::from(ids));
        check(
            &logits,
            &head(|p| p.allowed_token_ids = allowed(&[0, 4])),
            4,
        );
        let stops = |p: &mut SamplingParams| {
            p.stop_token_ids = Arc::from([1, 2]);
            p.min_tokens = 2;
        };
        let mut late = head(stops);
        check(&logits, &late, 4);
        late.output_position = 2;
        check(&logits, &late, 1);
        let none = head(|p| {
            stops(p);
            p.allowed_token_ids = allowed(&[1]);
        });
        assert_eq!(run(&logits, &none), Err(RowOutput::NoToken));

        // A constraint's tokens are those of the list and of the set.
        let mut constrained = head(|p| p.allowed_token_ids = allowed(&[0, 2, 3]));
        let set = |ids: &[u32]| Some(Arc::new(TokenSet::from_ids(ids.iter().copied(), 5)) as _);
        constrained.mask = set(&[0, 1, 3, 4]);
        check(&logits, &constrained, 0);
        constrained.mask = set(&[1, 4]);
        assert_eq!(run(&logits, &constrained), Err(RowOutput::NoToken));

        let history = |prompt: &[u32], output: &[u32]| {
            Some(PenaltyHistory {
                prompt: Arc::from(prompt),
                output: output.to_vec(),
            })
        };
        let mut repeated = head(|p| p.repetition_penalty = 1.5);
        repeated.history = history(&[1, 1], &[2]);
        check(&logits, &repeated, 4);
        // Twice 0.3 brings token 1 to 2.4; a prompt token is not charged.
        let mut frequent = head(|p| p.frequency_penalty = 0.3);
        frequent.history = history(&[2], &[1, 1]);
        check(&logits, &frequent, 2);
        frequent.history = history(&[], &[1, 1, 2]);
        check(&logits, &frequent, 2);
        frequent.history = history(&[], &[1, 1, 2, 2]);
        check(&logits, &frequent, 4);
    }

    #[test]
    fn a_seed_repeats_and_choices_differ() {
        let logits = vec![0.0; 1000];
        let mut many = head(|p| {
            p.temperature = 1.0;
            p.seed = 7;
        });
        many.draws = 8;
        let tokens = run(&logits, &many).unwrap();
        assert!(tokens.iter().collect::<BTreeSet<_>>().len() > 5);
        for (i, &token) in tokens.iter().enumerate() {
            let mut one = many.clone();
            (one.choice, one.draws) = (i as u32, 1);
            check(&logits, &one, token);
        }
    }

    #[test]
    fn frequencies_follow_probabilities() {
        let logits = [0.0, 1.0, 2.0, -1.0];
        let mut many = head(|p| p.temperature = 0.7);
        many.draws = 20_000;
        let tokens = run(&logits, &many).unwrap();
        let total: f64 = logits.iter().map(|&x| (f64::from(x) / 0.7).exp()).sum();
        for (id, &logit) in logits.iter().enumerate() {
            let share = tokens.iter().filter(|&&t| t as usize == id).count() as f64 / 20_000.0;
            let exact = (f64::from(logit) / 0.7).exp() / total;
            // Four standard deviations of a share of 20,000.
            assert!((share - exact).abs() < 0.015, "{id}: {share} {exact}");
        }
    }

    /// Performs the same steps with a full sort.
    fn kept_naively(logits: &[f32], params: &SamplingParams) -> BTreeSet<u32> {
        let isa = Supported::new(Isa::Scalar).unwrap();
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut weights = logits.to_vec();
        simd::soften(isa, &mut weights, max, params.temperature);
        let mut all: Vec<(f32, u32, u64)> = (0..logits.len())
            .map(|i| (logits[i], i as u32, (f64::from(weights[i]) * ONE) as u64))
            .filter(|c| c.2 > 0)
            .collect();
        all.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
        if params.top_k > 0 {
            all.truncate(params.top_k as usize);
        }
        if params.top_p < 1.0 {
            let total: u64 = all.iter().map(|c| c.2).sum();
            let enough = (f64::from(params.top_p) * total as f64).ceil() as u64;
            let mut running = 0;
            all.retain(|c| {
                let before = running;
                running += c.2;
                before < enough
            });
        }
        all.retain(|c| c.2 as f64 >= f64::from(params.min_p) * ONE);
        all.into_iter().map(|c| c.1).collect()
    }

    /// Picks a token by the definition, word for word.
    fn pick_naively(weights: &[u64], random: u64) -> TokenId {
        let total: u64 = weights.iter().sum();
        let at = ((u128::from(random) * u128::from(total)) >> 64) as u64;
        let mut running = 0;
        let first = weights.iter().position(|weight| {
            running += weight;
            running > at
        });
        first.unwrap() as u32
    }

    proptest! {
        #[test]
        fn draws_are_those_of_a_scan(
            weights in prop::collection::vec(1u64..1 << 40, 1..50),
            randoms in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], 1..20),
        ) {
            let mut candidates: Vec<Candidate> = weights
                .iter()
                .zip(0..)
                .map(|(&weight, id)| Candidate { id, logit: 0.0, weight })
                .collect();
            accumulate(&mut candidates);
            for random in randoms {
                prop_assert_eq!(pick(&candidates, random), pick_naively(&weights, random));
            }
        }

        #[test]
        fn filters_keep_what_a_sort_keeps(
            logits in prop::collection::vec((-40i32..40).prop_map(|x| x as f32 / 8.0), 1..1500),
            top_k in prop_oneof![Just(0u32), 1..40u32, 200..900u32],
            top_p in prop_oneof![Just(1.0f32), 0.05..1.0f32],
            min_p in prop_oneof![Just(0.0f32), 0.0..1.0f32],
            temperature in 0.1f32..4.0,
        ) {
            let head = head(|p| {
                (p.temperature, p.top_k, p.top_p, p.min_p) = (temperature, top_k, top_p, min_p);
            });
            let isa = Supported::new(Isa::best()).unwrap();
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut scratch = Scratch::default();
            let token = scratch.sample(isa, &logits, max, &head).unwrap()[0];
            let kept: BTreeSet<u32> = scratch.candidates.iter().map(|c| c.id).collect();
            prop_assert_eq!(&kept, &kept_naively(&logits, &head.sampling));
            prop_assert!(kept.contains(&token));
            prop_assert!(scratch.candidates.is_sorted_by_key(|c| c.id));
        }
    }
}
