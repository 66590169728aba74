//! The headers that a pick reads, and those of a response from which the router learns.

use std::time::Duration;

use prelude_router::Finish;

use crate::{
    log,
    picker::{Picked, Subset},
    proto::HttpHeaders,
};

/// The header with the objective of a request.
const OBJECTIVE: &str = "x-gateway-inference-objective";
/// The header with the name by which requests share fairly: the user, for policies that know one.
const FAIRNESS_ID: &str = "x-gateway-inference-fairness-id";
/// The header with the milliseconds until the first token is due. Servers of Prelude obey it.
const SLO_TTFT: &str = "x-slo-ttft-ms";
/// The header with the milliseconds that each further token may take.
const SLO_TPOT: &str = "x-slo-tpot-ms";

/// The headers of a request, as far as a pick reads them.
#[derive(Debug, Default)]
pub(super) struct RequestHead {
    pub(super) path: String,
    pub(super) subset: Option<Subset>,
    pub(super) fairness_id: Option<String>,
    objective: Option<String>,
    /// Deadlines pass to the server unchanged. The router reads the first one.
    slo_ttft_ms: Option<f64>,
    slo_tpot_ms: Option<f64>,
}

impl RequestHead {
    pub(super) fn new(headers: &HttpHeaders, subset: Option<Subset>) -> Self {
        let get = |name| headers.headers.as_ref().and_then(|map| map.get(name));
        let own = |name| get(name).map(str::to_owned);
        let ms = |name| get(name).and_then(|text| text.trim().parse().ok());
        Self {
            path: own(":path").unwrap_or_default(),
            subset,
            fairness_id: own(FAIRNESS_ID),
            objective: own(OBJECTIVE),
            slo_ttft_ms: ms(SLO_TTFT),
            slo_tpot_ms: ms(SLO_TPOT),
        }
    }

    /// Returns true if the request may be refused when all engines have too much to do.
    pub(super) fn is_sheddable(&self, objectives: Option<&[String]>) -> bool {
        objectives.is_none_or(|some| {
            let own = self.objective.as_ref();
            own.is_some_and(|own| some.contains(own))
        })
    }

    /// Returns the time within which the first token is due, if the client says so.
    pub(super) fn first_token_within(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.slo_ttft_ms? / 1e3).ok()
    }

    /// Logs the pick for the request.
    pub(super) fn log_pick(&self, picked: &Picked) {
        log::line(format_args!(
            "pick path={} to={} reason={:?} cached={}/{} objective={:?} slo_ttft_ms={:?} \
             slo_tpot_ms={:?}",
            self.path,
            picked.addresses,
            picked.reason,
            picked.cached_tokens,
            picked.prompt_tokens,
            self.objective,
            self.slo_ttft_ms,
            self.slo_tpot_ms,
        ));
    }
}

/// Reads how long a server of Prelude computed a request, if one pass over its prompt answered it.
pub(super) fn finish(headers: &HttpHeaders) -> Finish {
    let get = |name| headers.headers.as_ref().and_then(|map| map.get(name));
    let time = |name| {
        let ms: f64 = get(name)?.parse().ok()?;
        Duration::try_from_secs_f64(ms / 1e3).ok()
    };
    let is_one_shot = get("x-prelude-class") == Some("oneshot");
    let cached = get("x-prelude-cached-tokens").and_then(|text| text.parse().ok());
    let prefill = time("x-prelude-exec-ms").zip(cached);
    Finish {
        output_tokens: None,
        first_token: None,
        prefill: prefill.filter(|_| is_one_shot),
    }
}
