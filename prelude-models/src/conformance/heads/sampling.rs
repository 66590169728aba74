//! Heads that draw tokens.

use std::sync::Arc;

use prelude_core::{OutputHead, PenaltyHistory, RowOutput, SampleHead, SamplingParams};

use super::{
    Heads, SIGMAS, TWINS, check_logprob, check_top, greedy_with_top, id, idx, only, row, sample,
    sampled,
};
use crate::{
    conformance::{ConformanceDevice, Spec, VOCAB},
    naive,
};

impl Heads {
    pub(super) fn greedy<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        const TOKENS: usize = 65;
        let h = self.hidden(TOKENS);
        let rows = (0..TOKENS).map(|t| row(t..t + 1, greedy_with_top(4)));
        let got = self.rows(open, &h, rows.collect());
        for (t, got) in got.iter().enumerate() {
            let logits = self.logits(&h, t);
            let [token] = sampled(got) else {
                panic!("one draw gives one token, not {got:?}");
            };
            let what = format!("greedy, token {t}");
            let best = logits.z[logits.best(|_| true)];
            assert!(
                logits.z[idx(token.token)] >= best - logits.slack(),
                "{what}: {} is not the likeliest",
                token.token
            );
            let logprob = token.logprob.expect("log-probabilities were asked for");
            check_logprob(&what, token.token, logprob, &logits);
            check_top(&what, &token.top, 4, &logits);
            assert_eq!(token.top[0].token, token.token, "{what}: greedy is the top");
        }
        let tie = &sampled(&got[0])[0];
        assert_eq!(idx(tie.token), TWINS.0, "ties take the smallest id");
        let top: Vec<usize> = tie.top.iter().map(|t| idx(t.token)).take(2).collect();
        assert_eq!(top, [TWINS.0, TWINS.1], "ties are listed by id");
        // Without being asked for, nothing is reported.
        let plain = OutputHead::Sample(sample(SamplingParams::default()));
        let got = self.rows(open, &h, vec![row(3..4, plain)]);
        let token = &sampled(&got[0])[0];
        assert!(token.logprob.is_none() && token.top.is_empty());
    }

    pub(super) fn masks_and_penalties<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        let h = self.hidden(2);
        let raw = self.logits(&h, 1);
        let order = {
            let mut ids: Vec<usize> = (0..VOCAB).collect();
            ids.sort_by(|&a, &b| raw.z[b].total_cmp(&raw.z[a]));
            ids
        };
        let (first, second, last) = (id(order[0]), id(order[1]), id(order[VOCAB - 1]));
        let most: Vec<u32> = order[1..].iter().map(|&i| id(i)).collect();
        let mut cases = mask_cases([first, second, last], &most);
        cases.extend(rule_cases([first, second, last]));
        assert!(
            raw.z[order[0]] - raw.z[order[1]] > raw.slack()
                && raw.z[order[1]] - raw.z[order[2]] > raw.slack(),
            "the case has near ties"
        );
        let rows = cases
            .iter()
            .map(|(_, head, _)| row(1..2, OutputHead::Sample(head.clone())));
        let got = self.rows(open, &h, rows.collect());
        for ((what, _, expected), got) in cases.iter().zip(&got) {
            assert_eq!(sampled(got)[0].token, *expected, "{what}");
        }
        self.nothing_is_allowed(open, &h, first);
    }

    /// Checks that a row without a token to choose says so, and that the row beside it is answered.
    fn nothing_is_allowed<D: ConformanceDevice>(
        &self,
        open: &impl Fn(&Spec) -> D,
        h: &[f32],
        first: u32,
    ) {
        let stopped = SampleHead {
            mask: only(&[first]),
            ..sample(SamplingParams {
                stop_token_ids: Arc::from([first]),
                min_tokens: 1,
                ..SamplingParams::default()
            })
        };
        let heads = [only(&[]), None].map(|mask| SampleHead {
            mask,
            ..sample(SamplingParams::default())
        });
        let [empty, plain] = heads;
        let rows = [stopped, empty, plain].map(|head| row(1..2, OutputHead::Sample(head)));
        let got = self.rows(open, h, rows.to_vec());
        assert_eq!(got[..2], [RowOutput::NoToken, RowOutput::NoToken]);
        assert_eq!(sampled(&got[2])[0].token, first);
    }

    /// Frequencies are those of the softmax; draws repeat, and do not depend on how they are
    /// grouped into rows or on what else is in the step.
    pub(super) fn draws<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        const DRAWS: u32 = 3000;
        let h = self.hidden(3);
        let logits = self.logits(&h, 2);
        let allowed = [3u32, 40, 41, 330];
        let sampling = SamplingParams {
            temperature: 2.0,
            allowed_token_ids: Some(Arc::from(allowed)),
            seed: 0x5eed,
            ..SamplingParams::default()
        };
        let head = |choice, draws| {
            OutputHead::Sample(SampleHead {
                choice,
                draws,
                output_position: 7,
                ..sample(sampling.clone())
            })
        };
        let greedy = || row(1..2, greedy_with_top(0));
        let together = self.rows(open, &h, vec![greedy(), row(2..3, head(0, DRAWS))]);
        let again = self.rows(
            open,
            &h,
            vec![
                row(2..3, head(100, 50)),
                row(2..3, head(2, 1)),
                row(2..3, head(0, 2)),
                greedy(),
            ],
        );
        let tokens =
            |output: &RowOutput| -> Vec<u32> { sampled(output).iter().map(|t| t.token).collect() };
        let all = tokens(&together[1]);
        assert_eq!(all.len(), DRAWS as usize);
        assert_eq!(tokens(&again[0]), all[100..150], "draws 100.. alone");
        assert_eq!(tokens(&again[1]), all[2..3], "draw 2 alone");
        assert_eq!(tokens(&again[2]), all[..2], "draws ..2 alone");
        let z: Vec<f64> = allowed.iter().map(|&t| logits.z[idx(t)] / 2.0).collect();
        let lse = naive::log_sum_exp(&z);
        for (&token, z) in allowed.iter().zip(&z) {
            let p = (z - lse).exp();
            let n = f64::from(DRAWS);
            let drawn = all.iter().filter(|&&t| t == token).count() as f64;
            let sigma = (n * p * (1.0 - p)).sqrt();
            assert!(
                (drawn - n * p).abs() <= SIGMAS * sigma,
                "token {token}: {drawn} of {n} draws at probability {p:.4}"
            );
        }
    }
}

/// A name, a head, and the token that it must choose.
type SampleCase = (&'static str, SampleHead, u32);

/// Parameters that differ from the default as `change` says.
fn params(change: impl FnOnce(&mut SamplingParams)) -> SampleHead {
    let mut params = SamplingParams::default();
    change(&mut params);
    sample(params)
}

/// Masks and biases, given the likeliest, the second and the unlikeliest token. Gaps between logits
/// are of order 0.1 here, biases far larger. `most`: all tokens but the likeliest.
fn mask_cases([first, second, last]: [u32; 3], most: &[u32]) -> Vec<SampleCase> {
    let allow = |ids: &[u32]| params(|p| p.allowed_token_ids = Some(Arc::from(ids)));
    let bias = |id, bias| params(|p| p.logit_bias = Arc::from([(id, bias)]));
    let mask = |ids: &[u32], head: SampleHead| SampleHead {
        mask: only(ids),
        ..head
    };
    let plain = || params(|_| ());
    vec![
        ("plain", plain(), first),
        ("allowed ids", allow(&[last, second]), second),
        ("bias", bias(last, 100.0), last),
        ("a constraint", mask(&[last, second], plain()), second),
        (
            "a constraint that allows nearly all",
            mask(most, plain()),
            second,
        ),
        (
            "a constraint and allowed ids",
            mask(&[first, last], allow(&[last, second])),
            last,
        ),
        ("bias against", bias(first, -100.0), second),
    ]
}

/// Returns cases of stop tokens, penalties and cuts, given the likeliest, the second and the
/// unlikeliest token. Penalties are far larger than gaps between logits.
fn rule_cases([first, second, _]: [u32; 3]) -> Vec<SampleCase> {
    let stops = |output_position| SampleHead {
        output_position,
        ..params(|p| {
            p.stop_token_ids = Arc::from([first]);
            p.min_tokens = 2;
        })
    };
    let after = |prompt: &[u32], output: &[u32], change: fn(&mut SamplingParams)| SampleHead {
        history: Some(PenaltyHistory {
            prompt: Arc::from(prompt),
            output: output.to_vec(),
        }),
        ..params(change)
    };
    let hot = |cut: fn(&mut SamplingParams)| {
        params(|p| {
            p.temperature = 5.0;
            cut(p);
        })
    };
    vec![
        ("stop ids before min_tokens", stops(1), second),
        ("stop ids from min_tokens on", stops(2), first),
        (
            "repetition penalty, prompt",
            after(&[first], &[], |p| p.repetition_penalty = 50.0),
            second,
        ),
        (
            "presence penalty ignores the prompt",
            after(&[first], &[], |p| p.presence_penalty = 2.0),
            first,
        ),
        (
            "frequency penalty counts",
            after(&[], &[first; 9], |p| p.frequency_penalty = 2.0),
            second,
        ),
        ("top_k of one", hot(|p| p.top_k = 1), first),
        ("the smallest nucleus", hot(|p| p.top_p = 1e-6), first),
        ("min_p of one", hot(|p| p.min_p = 1.0), first),
    ]
}
