//! `/health`, `/ping`, `/ready`, `/live`, `/version`: whether work should be sent here.

use serde_json::json;

use super::{Call, Reply};
use crate::error::ApiError;

/// In service or not, in the status alone.
pub(crate) fn health(call: &Call) -> Result<Reply, ApiError> {
    call.app.healthy()?;
    Ok(Reply::Empty)
}

/// The same, with what is served.
pub(crate) fn ready(call: &Call) -> Result<Reply, ApiError> {
    call.app.healthy()?;
    let (queue_rows, ..) = call.app.admission.reserved();
    Ok(Reply::json(&json!({
        "status": "ready",
        "model": call.app.model(None)?.name,
        "queue_rows": queue_rows,
    })))
}

/// Whether restarting the process would help: only a lost engine says no.
pub(crate) fn live(call: &Call) -> Result<Reply, ApiError> {
    if call.app.engine_lost() {
        return Err(ApiError::engine_dead());
    }
    Ok(Reply::Empty)
}

/// What runs here.
pub(crate) fn version() -> Reply {
    Reply::json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": option_env!("PRELUDE_COMMIT"),
        "features": Vec::<&str>::new(),
    }))
}
