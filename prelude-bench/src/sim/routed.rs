//! The policies of `prelude-router` before modelled engines.

use anyhow::{Context as _, Result};
use prelude_core::{Fitted, RequestId, Sample, ServiceTime, Timestamp};
use prelude_router::{
    EndpointId, EndpointSpec, Finish, PolicyConfig, Prefix, Prompt, Root, RouteRequest, Router,
    RouterConfig,
};

use super::{Arrival, EngineConfig, EngineModel, Piece, Record, Route, TARGET};
use crate::random::Random;

/// Generations that an engine runs at once when their share of its time is told.
const DECODE_ROWS: u32 = 16;
/// Tokens of each of them.
const DECODE_CONTEXT: u32 = 2048;
/// The longest prompt of the profile, and the step between its lengths.
const LONGEST: u32 = 16_384;
const GRID: usize = 1024;

/// A router that the engines have joined, in order.
#[derive(Debug)]
pub struct Routed {
    router: Router,
    granule_tokens: u32,
}

impl Routed {
    /// Returns a router of this policy before engines of a kind. Each coefficient of the service time
    /// that it believes of an engine is too high or too low by the part `time_error`, as the seed says.
    ///
    /// # Errors
    /// If the policy cannot run, or no service time fits the engines.
    pub fn new(
        policy: PolicyConfig,
        engines: usize,
        config: &EngineConfig,
        seed: u64,
        time_error: f64,
    ) -> Result<Self> {
        let router = RouterConfig {
            policy,
            seed,
            // Nothing is lost in a simulation, and engines in overload take hours.
            request_timeout_ms: 30_000_000_000,
            // A request's first token comes from steps that others had a part in: nothing that
            // tells how long it takes alone.
            fit: None,
            ..RouterConfig::default()
        };
        let service = service(&config.model)?;
        let mut random = Random::far(seed);
        let granule_tokens = router.granule_tokens;
        let mut router = Router::new(router)?;
        for _ in 0..engines {
            let spec = EndpointSpec {
                kv_capacity_tokens: config.kv_tokens,
                service: astray(service, time_error, &mut random),
                pool: None,
            };
            router.join(Timestamp::ZERO, spec)?;
        }
        Ok(Self {
            router,
            granule_tokens,
        })
    }
}

impl Route for Routed {
    fn route(
        &mut self,
        now: Timestamp,
        request: usize,
        arrival: &Arrival,
        tokens: &[u32],
    ) -> Result<usize> {
        let root = Root(u64::from(arrival.root));
        let prefix = Prefix::new(root, Prompt::Tokens(tokens), self.granule_tokens);
        let request = RouteRequest {
            id: RequestId(request as u64),
            prefix: &prefix,
            // Callers know that they ask for one token, and not how many of several will come.
            max_output_tokens: (arrival.output_tokens == 1).then_some(1),
            user: Some(u64::from(arrival.user)),
            sheddable: false,
            subset: None,
            deadline: Some(now.saturating_add(TARGET)),
        };
        let pick = self.router.route(now, &request).context("routing")?;
        let EndpointId(engine) = pick.endpoint;
        Ok(engine as usize)
    }

    fn finished(&mut self, now: Timestamp, _: usize, record: &Record) {
        let finish = Finish {
            output_tokens: Some(u32::try_from(record.output_tokens).unwrap_or(u32::MAX)),
            first_token: Some(record.first_token),
            prefill: None,
        };
        self.router
            .finished(now, RequestId(record.request as u64), finish);
    }

    fn refused(&mut self, now: Timestamp, _: usize, request: usize) {
        self.router
            .finished(now, RequestId(request as u64), Finish::default());
    }
}

/// Returns the service time of an engine: that of its profile, or what fits to what a published model
/// says of one prompt alone, as an engine would be profiled at start.
fn service(model: &EngineModel) -> Result<ServiceTime> {
    if let Some(measured) = model.service() {
        return Ok(measured);
    }
    let lens = (GRID as u32..=LONGEST).step_by(GRID);
    let pairs = lens.flat_map(|n| (0..n).step_by(GRID).map(move |cached| (n - cached, n)));
    let samples: Vec<Sample> = pairs
        .map(|(missed, tokens)| Sample {
            batch: 1,
            computed: missed,
            cached: tokens - missed,
            ms: prefill_ms(model, missed, tokens),
        })
        .collect();
    let fitted = Fitted::of(&samples, &[]).context("the engine's service time")?;
    let piece = Piece::decode(DECODE_CONTEXT);
    let step = model.iteration((0..DECODE_ROWS).map(|_| piece));
    Ok(ServiceTime {
        floor_ms: prefill_ms(model, 1, 1),
        decode_ms: step.as_secs_f64() * 1e3 / f64::from(DECODE_ROWS),
        ..fitted.service
    })
}

/// Returns a service time of which each coefficient is too high or too low by this part.
fn astray(service: ServiceTime, error: f64, random: &mut Random) -> ServiceTime {
    let mut off = |ms: f64| match random.below(2) {
        0 => ms * (1.0 - error),
        _ => ms * (1.0 + error),
    };
    ServiceTime {
        floor_ms: off(service.floor_ms),
        base_ms: off(service.base_ms),
        per_token_ms: off(service.per_token_ms),
        per_pair_ms: off(service.per_pair_ms),
        decode_ms: off(service.decode_ms),
        per_cached_ms: off(service.per_cached_ms),
    }
}

/// Returns the time that a request takes on an engine with an empty cache and nothing else to do, in milliseconds.
pub(super) fn alone_ms(model: &EngineModel, arrival: &Arrival) -> f64 {
    let tokens = arrival.prompt.len();
    let decode = (1..arrival.output_tokens).map(|n| {
        let piece = Piece::decode(tokens + n);
        model.iteration(std::iter::once(piece)).as_secs_f64()
    });
    prefill_ms(model, tokens, tokens) + 1e3 * decode.sum::<f64>()
}

/// Returns the time for the last `missed` tokens of a prompt, in chunks, on an idle engine.
fn prefill_ms(model: &EngineModel, missed: u32, tokens: u32) -> f64 {
    let chunk = model.chunk_tokens();
    let starts = (tokens - missed..tokens).step_by(chunk as usize);
    let steps = starts.map(|start| {
        let context = tokens.min(start + chunk);
        let piece = Piece::prompt(context - start, context);
        model.iteration(std::iter::once(piece)).as_secs_f64()
    });
    1e3 * steps.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Preset;

    #[test]
    fn each_coefficient_is_off_by_as_much() {
        let service = ServiceTime::default();
        assert_eq!(astray(service, 0.0, &mut Random::far(1)), service);
        let mut random = Random::far(1);
        let mut seen = [false; 2];
        for _ in 0..20 {
            let ratio = astray(service, 0.3, &mut random).per_token_ms / service.per_token_ms;
            let is_high = ratio > 1.0;
            let expected = if is_high { 1.3 } else { 0.7 };
            assert!((ratio - expected).abs() < 1e-9, "{ratio}");
            seen[usize::from(is_high)] = true;
        }
        assert_eq!(seen, [true; 2]);
    }

    #[test]
    fn a_request_alone_takes_what_its_steps_take() {
        let arrival = Arrival {
            at: Timestamp::ZERO,
            prompt: super::super::Prompt::new([super::super::Run {
                stream: 1,
                start: 0,
                len: 1000,
            }]),
            output_tokens: 2,
            key: 0,
            user: 0,
            root: 0,
        };
        let pieces = [(512, 512), (488, 1000), (1, 1001)];
        let steps = pieces.map(|(new, context)| {
            let piece = std::iter::once(Piece::prompt(new, context));
            Preset::Mistral7bA6000.iteration(piece).as_secs_f64()
        });
        let ms = alone_ms(&Preset::Mistral7bA6000.into(), &arrival);
        assert!((ms - 1e3 * steps.iter().sum::<f64>()).abs() < 1e-6, "{ms}");
    }

    /// The form that service times have cannot follow all of a preset: attention to a prompt's own
    /// tokens is half as much as to cached ones, and iterations have steps and edges.
    #[test]
    fn a_profile_says_about_what_the_engines_take() {
        for preset in [Preset::Mistral7bA6000, Preset::Llama70bH100x2] {
            let model = &EngineModel::from(preset);
            let service = service(model).expect("the grid tells everything apart");
            let mut ratios = Vec::new();
            for tokens in (2048..=LONGEST).step_by(2048) {
                for missed in (1024..=tokens).step_by(1024) {
                    let said = service.prefill_ms(missed, tokens);
                    ratios.push(said / prefill_ms(model, missed, tokens));
                }
            }
            ratios.sort_by(f64::total_cmp);
            let [least, median, most] =
                [0, ratios.len() / 2, ratios.len() - 1].map(|at| ratios[at]);
            assert!((median - 1.0).abs() < 0.05, "{median}: {preset:?}");
            assert!(least > 0.65 && most < 1.5, "{least} to {most}: {preset:?}");
        }
    }
}
