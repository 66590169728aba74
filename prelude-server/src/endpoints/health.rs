//! `/health`, `/ping`, `/ready`, `/live`, `/version`: whether work should be sent here.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::{
    admission::time_for,
    endpoint::{Access, Call, Endpoint, Reply, json},
    error::ApiError,
    executor,
    served_model::ServedModel,
};

/// `GET /health`.
pub(crate) const HEALTH: Endpoint = Endpoint {
    group: "state",
    summary: "Whether work is accepted",
    access: Access::Open,
    ..Endpoint::get(&["/health", "/ping"], |call, _| {
        Box::pin(async { health(call) })
    })
};

/// `GET /ready`.
pub(crate) const READY: Endpoint = Endpoint {
    group: "state",
    summary: "Whether work is accepted, with what is served",
    responses: json::<Readiness<'static>>,
    access: Access::Open,
    ..Endpoint::get(&["/ready"], |call, _| Box::pin(async { ready(call) }))
};

/// `GET /live`.
pub(crate) const LIVE: Endpoint = Endpoint {
    group: "state",
    summary: "Whether the process is worth keeping",
    access: Access::Open,
    ..Endpoint::get(&["/live"], |call, _| Box::pin(async { live(call) }))
};

/// `GET /version`.
pub(crate) const VERSION: Endpoint = Endpoint {
    group: "state",
    summary: "What runs here",
    responses: json::<Version>,
    access: Access::Open,
    ..Endpoint::get(&["/version"], |_, _| Box::pin(async { Ok(version()) }))
};

#[derive(Serialize, JsonSchema)]
pub(crate) struct Readiness<'a> {
    status: &'static str,
    model: &'a str,
    queue_rows: u64,
    /// The wait of the first model, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ms: Option<f64>,
    /// All models, in the order in which they were given.
    models: Vec<ReadyModel<'a>>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct ReadyModel<'a> {
    id: &'a str,
    /// Milliseconds until a prompt submitted now would be computed, as far as the time of steps is
    /// known: by a profile, or after a second of steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ms: Option<f64>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Version {
    version: &'static str,
    commit: Option<&'static str>,
    features: &'static [&'static str],
}

/// Answers whether the server is in service, in the status alone.
pub(crate) fn health(call: &Call) -> Result<Reply, ApiError> {
    call.app.healthy()?;
    Ok(Reply::Empty)
}

/// Answers whether the server is in service, with what is served, or how far its download is.
pub(crate) fn ready(call: &Call) -> Result<Reply, ApiError> {
    call.app
        .healthy()
        .map_err(|error| match call.app.download() {
            Some(progress) => error.with_detail(json!({ "download": progress })),
            None => error,
        })?;
    let (queue_rows, ..) = call.app.admission.reserved();
    let first = call.app.model(None)?;
    let models = call.app.models().iter();
    Ok(Reply::json(&Readiness {
        status: "ready",
        model: &first.name,
        queue_rows,
        wait_ms: wait_ms(first),
        models: models
            .map(|model| ReadyModel {
                id: &model.name,
                wait_ms: wait_ms(model),
            })
            .collect(),
    }))
}

/// Returns the milliseconds until a prompt submitted now would be computed, if they are known.
fn wait_ms(model: &ServedModel) -> Option<f64> {
    let rate = model.engine.prompt_tokens_per_second();
    let wait = rate.map(|_| time_for(model.engine.tokens_ahead(), rate));
    wait.map(|wait| wait.as_secs_f64() * 1e3)
}

/// Says if restarting the process would help: a lost engine and damaged weights fail this probe.
pub(crate) fn live(call: &Call) -> Result<Reply, ApiError> {
    if let Some(error) = call.app.damaged() {
        return Err(error);
    }
    if call.app.engine_lost() {
        return Err(ApiError::engine_dead());
    }
    Ok(Reply::Empty)
}

/// Answers with the version of the program.
pub(crate) fn version() -> Reply {
    Reply::json(&Version {
        version: env!("CARGO_PKG_VERSION"),
        // The environment variable is set where the program is built, or by the build script.
        commit: option_env!("PRELUDE_COMMIT").filter(|commit| !commit.is_empty()),
        features: executor::FEATURES,
    })
}
