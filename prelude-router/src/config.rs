//! Knobs of a router and what they cost.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::service::FitConfig;

/// Knobs of a [`crate::Router`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterConfig {
    /// The routing policy (default E2).
    pub policy: PolicyConfig,
    /// Tokens of a granule (default 64), 1 to 65,536, a multiple of the engines' block size.
    /// Prompts share whole granules only: fewer tokens find more that is shared, and take more
    /// memory and time.
    pub granule_tokens: u32,
    /// Most nodes of the prefix index (default 4,194,304), at least 16; some 150 bytes each.
    /// Beyond it, what was used least lately is forgotten.
    pub max_nodes: u32,
    /// Most requests under way (default 1,048,576). Beyond it, requests are refused: endpoints
    /// that never say that they have finished would fill the memory.
    pub max_in_flight: u32,
    /// Milliseconds after which a request that was not reported as finished counts as finished
    /// (default 600,000).
    pub request_timeout_ms: u64,
    /// Milliseconds of outstanding work that each endpoint must have before requests that may be
    /// shed are refused (default none: none ever is).
    pub shed_ms: Option<u64>,
    /// Fitting of service times to what finished requests took (default on); none keeps what
    /// endpoints said when they joined.
    pub fit: Option<FitConfig>,
    /// Endpoints named beside the one picked, in order, for a gateway to try (default 2).
    pub fallbacks: u8,
    /// The seed of choices between equals and of the keys of hash tables (default 0). The same seed and
    /// the same calls give the same picks.
    pub seed: u64,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            policy: PolicyConfig::default(),
            granule_tokens: 64,
            max_nodes: 1 << 22,
            max_in_flight: 1 << 20,
            request_timeout_ms: 600_000,
            shed_ms: None,
            fit: Some(FitConfig::default()),
            fallbacks: 2,
            seed: 0,
        }
    }
}

/// The routing policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PolicyConfig {
    /// Preble's E2: to the endpoint that caches the prompt, or where it costs least.
    E2(E2Config),
    /// Round robin: one endpoint after the other.
    RoundRobin,
    /// Requests go to the endpoint with the fewest requests under way.
    LeastOutstanding,
    /// The endpoint is chosen by the beginning of the prompt, on a ring of hashes with bounded
    /// loads.
    PrefixHash(PrefixHashConfig),
    /// Requests go to the endpoint that caches most of the prompt, unless loads differ too much: what
    /// the Rust routers of SGLang and vLLM do.
    CacheAware(CacheAwareConfig),
    /// The endpoint to which the request costs least: outstanding work and the uncached part of the prompt.
    MinCost,
    /// Each user is bound to one endpoint, in turn (the set-up of the PrefillOnly paper, §7).
    UserSticky(UserStickyConfig),
    /// LAPS's pools: requests with few uncached tokens to some endpoints, all others to the rest.
    Laps(LapsConfig),
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self::E2(E2Config::default())
    }
}

/// Knobs of E2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct E2Config {
    /// Milliseconds of the window in which load is counted, `H` (default 180,000). Longer is
    /// steadier and notices changes later.
    pub window_ms: u64,
    /// Most requests of the window (default 1,048,576); beyond it, the oldest leave it early.
    pub max_window_requests: u32,
    /// Share of decoding in an endpoint's load above which it attracts prompts that no endpoint
    /// caches, `R_imb` (default 0.7): decoding leaves arithmetic units idle that prefills use.
    /// Prompts that themselves decode more than that are not attracted.
    pub decode_ratio: f64,
    /// The load that is weighed (default the work under way).
    pub load: E2Load,
    /// Ratio of what a prompt costs at the endpoint that caches it to what it costs elsewhere, the
    /// computing anew included, beyond which it goes elsewhere (default 2), at least 1; none never
    /// leaves. Lower copies popular prefixes sooner, and finds less in caches.
    pub leave_ratio: Option<f64>,
}

/// The load of an endpoint that E2 weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum E2Load {
    /// The work of the requests that are under way: it follows an endpoint that is slow, and needs
    /// to be told when requests end.
    #[default]
    UnderWay,
    /// The work of the window's requests, ended or not, as in the paper.
    Window,
}

impl Default for E2Config {
    fn default() -> Self {
        Self {
            window_ms: 180_000,
            max_window_requests: 1 << 20,
            decode_ratio: 0.7,
            load: E2Load::UnderWay,
            leave_ratio: Some(2.0),
        }
    }
}

/// Knobs of routing by a hash of the beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrefixHashConfig {
    /// Tokens of the beginning (default 512).
    pub tokens: u32,
    /// Requests under way at an endpoint, as a ratio to the mean, beyond which it is passed over
    /// (default 1.25), at least 1.
    pub load_bound: f64,
    /// Points of each endpoint on the ring (default 64), 1 to 4,096.
    pub points: u32,
}

impl Default for PrefixHashConfig {
    fn default() -> Self {
        Self {
            tokens: 512,
            load_bound: 1.25,
            points: 64,
        }
    }
}

/// Knobs of [`PolicyConfig::CacheAware`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheAwareConfig {
    /// Share of a prompt that must match for going there (default 0.3).
    pub match_ratio: f64,
    /// Difference of requests under way beyond which the shortest queue is taken (default 64)...
    pub balance_abs: u64,
    /// ...if their ratio is beyond this as well (default 1.5).
    pub balance_rel: f64,
    /// Tokens of prompts that are remembered of each endpoint (default 16,777,216, as many as
    /// the 67,108,864 characters of SGLang's router); beyond it, what was used least lately is
    /// forgotten. Far more than a cache holds: the sizes of trees that are full are equal, and
    /// tell nothing.
    pub max_tree_tokens: u64,
}

impl Default for CacheAwareConfig {
    fn default() -> Self {
        Self {
            match_ratio: 0.3,
            balance_abs: 64,
            balance_rel: 1.5,
            max_tree_tokens: 1 << 24,
        }
    }
}

/// Knobs of [`PolicyConfig::UserSticky`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserStickyConfig {
    /// Most users that are remembered (default 1,048,576); beyond it, the one who came first is
    /// forgotten.
    pub max_users: u32,
}

impl Default for UserStickyConfig {
    fn default() -> Self {
        Self { max_users: 1 << 20 }
    }
}

/// Knobs of [`PolicyConfig::Laps`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LapsConfig {
    /// Uncached tokens up to which a request is short (default 256): about as many as an engine
    /// computes in hardly more time than one.
    pub short_tokens: u32,
    /// Milliseconds within which the first token of a request is due that has no deadline (default
    /// 400). Backlogs are measured by it, too.
    pub target_ms: u64,
    /// Milliseconds of a control period (default 1,000): then the pools' pressures are compared.
    pub period_ms: u64,
    /// Milliseconds between two moves of endpoints (default 10,000). Fewer follow the load sooner,
    /// and back and forth.
    pub cool_down_ms: u64,
    /// Part by which a pool's pressure must exceed the other's for an endpoint to move (default
    /// 0.2).
    pub hysteresis: f64,
    /// Healthy endpoints that a pool keeps (default 1), at least 1.
    pub min_endpoints: u32,
}

impl Default for LapsConfig {
    fn default() -> Self {
        Self {
            short_tokens: 256,
            target_ms: 400,
            period_ms: 1_000,
            cool_down_ms: 10_000,
            hysteresis: 0.2,
            min_endpoints: 1,
        }
    }
}

/// A knob that is set to what no router can run with.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{field} is {value}, and must be {must}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The field, from the outermost table on.
    pub field: &'static str,
    /// The value that was set.
    pub value: String,
    /// The allowed values.
    pub must: &'static str,
}

/// A field with its value, whether that is allowed, and the allowed values.
type Check = (&'static str, String, bool, &'static str);

fn check(field: &'static str, value: impl ToString, is_fine: bool, must: &'static str) -> Check {
    (field, value.to_string(), is_fine, must)
}

fn positive(field: &'static str, value: u32) -> Check {
    check(field, value, value > 0, "at least 1")
}

fn share(field: &'static str, value: f64) -> Check {
    check(field, value, (0.0..=1.0).contains(&value), "from 0 to 1")
}

fn ratio(field: &'static str, value: f64) -> Check {
    let is_fine = value.is_finite() && value >= 1.0;
    check(field, value, is_fine, "at least 1")
}

/// Milliseconds that no setting may exceed: a year.
const YEAR_MS: u64 = 31_536_000_000;

impl RouterConfig {
    /// Checks that a router can run with it.
    ///
    /// # Errors
    /// Names the first knob that it cannot run with.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (granule, timeout) = (self.granule_tokens, self.request_timeout_ms);
        let is_granule = (1..=65_536).contains(&granule);
        let is_time = (1..=YEAR_MS).contains(&timeout);
        let has_room = self.max_nodes >= 16;
        let mut checks = vec![
            check("granule_tokens", granule, is_granule, "from 1 to 65536"),
            check("max_nodes", self.max_nodes, has_room, "at least 16"),
            positive("max_in_flight", self.max_in_flight),
            check("request_timeout_ms", timeout, is_time, "from 1 to a year"),
        ];
        if let Some(fit) = &self.fit {
            let (weight, [low, high]) = (fit.forgetting, fit.clamp);
            let is_weight = weight > 0.5 && weight < 1.0;
            let is_clamp = (0.0..=1.0).contains(&low) && (1.0..=1e3).contains(&high);
            let (clamp, must) = (
                format!("[{low}, {high}]"),
                "from 0 to 1, and from 1 to 1000",
            );
            checks.extend([
                check("fit.forgetting", weight, is_weight, "above 0.5 and below 1"),
                check("fit.clamp", clamp, is_clamp, must),
            ]);
        }
        checks.extend(self.policy.checks());
        match checks.into_iter().find(|(.., is_fine, _)| !is_fine) {
            Some((field, value, _, must)) => Err(ConfigError { field, value, must }),
            None => Ok(()),
        }
    }
}

impl PolicyConfig {
    fn checks(&self) -> Vec<Check> {
        match self {
            Self::E2(config) => {
                let window = config.window_ms;
                let is_time = (2..=YEAR_MS).contains(&window);
                let mut checks = vec![
                    check("policy.e2.window_ms", window, is_time, "from 2 to a year"),
                    positive("policy.e2.max_window_requests", config.max_window_requests),
                    share("policy.e2.decode_ratio", config.decode_ratio),
                ];
                if let Some(leave) = config.leave_ratio {
                    checks.push(ratio("policy.e2.leave_ratio", leave));
                }
                checks
            }
            Self::PrefixHash(config) => {
                let (field, points) = ("policy.prefix_hash.points", config.points);
                let is_fine = (1..=4096).contains(&points);
                vec![
                    ratio("policy.prefix_hash.load_bound", config.load_bound),
                    check(field, points, is_fine, "from 1 to 4096"),
                ]
            }
            Self::CacheAware(config) => vec![
                share("policy.cache_aware.match_ratio", config.match_ratio),
                ratio("policy.cache_aware.balance_rel", config.balance_rel),
            ],
            Self::UserSticky(config) => {
                vec![positive("policy.user_sticky.max_users", config.max_users)]
            }
            Self::Laps(config) => {
                let time = |field, ms: u64| {
                    check(field, ms, (1..=YEAR_MS).contains(&ms), "from 1 to a year")
                };
                let hysteresis = config.hysteresis;
                let is_fine = (0.0..=1000.0).contains(&hysteresis);
                let field = "policy.laps.hysteresis";
                vec![
                    time("policy.laps.target_ms", config.target_ms),
                    time("policy.laps.period_ms", config.period_ms),
                    time("policy.laps.cool_down_ms", config.cool_down_ms),
                    check(field, hysteresis, is_fine, "from 0 to 1000"),
                    positive("policy.laps.min_endpoints", config.min_endpoints),
                ]
            }
            Self::RoundRobin | Self::LeastOutstanding | Self::MinCost => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_fine_and_nonsense_is_named() {
        assert_eq!(RouterConfig::default().validate(), Ok(()));
        let e2 = |e2| RouterConfig {
            policy: PolicyConfig::E2(e2),
            ..RouterConfig::default()
        };
        let bad = e2(E2Config {
            decode_ratio: f64::NAN,
            ..E2Config::default()
        });
        let error = bad.validate().expect_err("not a ratio");
        assert_eq!(
            error.to_string(),
            "policy.e2.decode_ratio is NaN, and must be from 0 to 1"
        );
        let bad = RouterConfig {
            max_nodes: 3,
            ..RouterConfig::default()
        };
        assert_eq!(bad.validate().expect_err("too few").field, "max_nodes");
    }
}
