//! Knobs of a picker and what they cost.

use std::time::Duration;

use prelude_core::ServiceTime;
use prelude_router::RouterConfig;

/// Knobs of a [`Picker`](crate::Picker) and its exchanges.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The router's knobs.
    pub router: RouterConfig,
    /// The service time of engines (default an A6000's with 7 billion parameters); a profile has
    /// that of an engine that was measured.
    pub service: ServiceTime,
    /// Tokens that the KV cache of an engine holds, where its line does not say (default 200,000).
    pub kv_tokens: u64,
    /// True if an engine gets requests only once a probe found it healthy (default).
    pub probes: bool,
    /// Upper bound of a request's body in bytes (default 10 MiB): a longer one gets 413.
    pub max_body_bytes: usize,
    /// Upper bound of the bytes of all bodies that wait for their end (default 1 GiB): a request
    /// beyond it gets 503.
    pub max_buffered_bytes: usize,
    /// The time that a body may take to arrive (default 10 s). Then the pick is made by what has
    /// come, and the rest passes through: nothing else would end the wait.
    pub body_timeout: Duration,
    /// The objectives whose requests may be refused when all engines have too much to do: values
    /// of the header `x-gateway-inference-objective`. None: those of all requests.
    pub sheddable: Option<Vec<String>>,
    /// True if each pick is logged (default false).
    pub log_picks: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            router: RouterConfig::default(),
            service: ServiceTime::default(),
            kv_tokens: 200_000,
            probes: true,
            max_body_bytes: 10 << 20,
            max_buffered_bytes: 1 << 30,
            body_timeout: Duration::from_secs(10),
            sheddable: None,
            log_picks: false,
        }
    }
}
