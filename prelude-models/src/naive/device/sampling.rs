//! Sampling and log-probabilities of the device in f64.

use prelude_core::{PositionLogprobs, RowOutput, SampleHead, SampledToken, TokenLogprob, TokenSet};

use super::{Fault, NaiveOps};
use crate::naive;

impl NaiveOps {
    /// Returns the ids by falling logit, ties by id.
    pub(super) fn ranked(&self, z: &[f64]) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..z.len() as u32).collect();
        if self.has(Fault::TiesTakeTheLargestId) {
            ids.reverse();
        }
        ids.sort_by(|&a, &b| z[b as usize].total_cmp(&z[a as usize]));
        ids
    }

    pub(super) fn top(&self, z: &[f64], n: u32) -> Vec<TokenLogprob> {
        let lse = naive::log_sum_exp(z);
        let ids = self.ranked(z).into_iter().take(n as usize);
        ids.map(|token| TokenLogprob {
            token,
            logprob: (z[token as usize] - lse) as f32,
        })
        .collect()
    }

    pub(super) fn entry(&self, token: u32, top: u32, z: &[f64]) -> PositionLogprobs {
        let own = z[token as usize];
        let rank = if self.has(Fault::RankCountsTies) {
            z.iter().filter(|&&other| other >= own).count()
        } else {
            1 + z.iter().filter(|&&other| other > own).count()
        };
        PositionLogprobs {
            token,
            logprob: (own - naive::log_sum_exp(z)) as f32,
            rank: rank as u32,
            top: self.top(z, top),
        }
    }

    pub(super) fn sample(&self, head: &SampleHead, raw: &[f64]) -> RowOutput {
        let (p, z) = (&head.sampling, self.adjusted(head, raw));
        let mut ids = self.ranked(&z);
        ids.retain(|&id| z[id as usize] > f64::NEG_INFINITY);
        if ids.is_empty() {
            return RowOutput::NoToken;
        }
        let greedy = p.temperature == 0.0;
        if greedy {
            ids.truncate(1);
        }
        let temperature = if greedy {
            1.0
        } else {
            f64::from(p.temperature)
        };
        let scaled = |id: u32| z[id as usize] / temperature;
        let lse = naive::log_sum_exp(&ids.iter().map(|&id| scaled(id)).collect::<Vec<_>>());
        let probability = |id: u32| (scaled(id) - lse).exp();
        if p.top_k > 0 {
            ids.truncate(p.top_k as usize);
        }
        let mut sum = 0.0;
        let nucleus = ids.iter().take_while(|&&id| {
            let before = sum;
            sum += probability(id);
            before < f64::from(p.top_p)
        });
        let kept = nucleus.count().max(1);
        ids.truncate(kept);
        let least = probability(ids[0]) * f64::from(p.min_p);
        ids.retain(|&id| probability(id) >= least);
        let total: f64 = ids.iter().map(|&id| probability(id)).sum();
        let tokens = (head.choice..head.choice + head.draws)
            .map(|choice| {
                let choice = if self.has(Fault::IgnoresChoice) {
                    0
                } else {
                    choice
                };
                let mut left = total * uniform(p.seed, choice, head.output_position);
                let drawn = ids.iter().find(|&&id| {
                    left -= probability(id);
                    left < 0.0
                });
                let token = *drawn.unwrap_or(&ids[ids.len() - 1]);
                let logprob = raw[token as usize] - naive::log_sum_exp(raw);
                SampledToken {
                    token,
                    logprob: head.top_logprobs.map(|_| logprob as f32),
                    top: self.top(raw, head.top_logprobs.unwrap_or(0)),
                }
            })
            .collect();
        RowOutput::Sampled(tokens)
    }

    /// Returns the logits after penalties, bias and masks.
    pub(super) fn adjusted(&self, head: &SampleHead, raw: &[f64]) -> Vec<f64> {
        let p = &head.sampling;
        let mut z = raw.to_vec();
        if let Some(history) = &head.history {
            for (id, z) in (0u32..).zip(&mut z) {
                let in_output = history.output.iter().filter(|&&t| t == id).count() as f64;
                if in_output > 0.0 || history.prompt.contains(&id) {
                    let r = f64::from(p.repetition_penalty);
                    *z = if *z > 0.0 { *z / r } else { *z * r };
                }
                if in_output > 0.0 {
                    *z -= f64::from(p.presence_penalty);
                    *z -= f64::from(p.frequency_penalty) * in_output;
                }
            }
        }
        let masked = p.allowed_token_ids.is_some();
        if masked || !self.has(Fault::BiasOnlyIfMasked) {
            for &(id, bias) in &*p.logit_bias {
                z[id as usize] += f64::from(bias);
            }
        }
        let nothing = TokenSet::default();
        let mask = head.mask.as_ref();
        let mask = mask.filter(|_| !self.has(Fault::IgnoresConstraint));
        let mask = mask.map(|mask| mask.wait().unwrap_or(&nothing));
        let allowed = |id: u32| {
            p.allowed_token_ids
                .as_ref()
                .is_none_or(|ids| ids.contains(&id))
                && mask.is_none_or(|mask| mask.contains(id))
                && !(head.masks_stops() && p.stop_token_ids.contains(&id))
        };
        for (id, z) in (0u32..).zip(&mut z) {
            if !allowed(id) {
                *z = f64::NEG_INFINITY;
            }
        }
        z
    }
}

/// Returns a number in `0..1` that depends on its arguments alone.
fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    let mut z = seed ^ (u64::from(choice) << 32 | u64::from(position));
    for _ in 0..2 {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    (z >> 11) as f64 / (1u64 << 53) as f64
}
