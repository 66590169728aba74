//! The refusals that a client sees.

use prelude_router::RouteError;
use serde_json::json;
use thiserror::Error;

/// The reason why a request goes nowhere. A client gets it as an error in OpenAI's shape.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The router has no endpoint for it, or all have too much to do.
    #[error("no endpoint for this request: {0}")]
    Route(#[from] RouteError),
    /// The request's body is too long.
    #[error("the request's body has more than {most} bytes, which is the picker's limit")]
    BodyTooLarge {
        /// The limit.
        most: usize,
    },
    /// Too many bodies wait for their end.
    #[error(
        "the picker holds {held} bytes of request bodies, and {most} are allowed; try again in a \
         moment"
    )]
    BuffersFull {
        /// The bytes that it holds.
        held: usize,
        /// The limit.
        most: usize,
    },
}

impl Refusal {
    /// Returns the status of the response.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Route(RouteError::NoEndpoint { .. }) | Self::BuffersFull { .. } => 503,
            Self::Route(RouteError::Overloaded { .. } | RouteError::TooMany { .. }) => 429,
            Self::Route(_) => 500,
            Self::BodyTooLarge { .. } => 413,
        }
    }

    /// Returns true if the same request may be served a moment later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        [429, 503].contains(&self.status())
    }

    /// Returns a word for the reason, which programs compare.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Route(RouteError::NoEndpoint { .. }) => "no_endpoint",
            Self::Route(RouteError::Overloaded { .. }) => "overloaded",
            Self::Route(RouteError::TooMany { .. }) => "too_many_requests",
            Self::Route(_) => "internal_error",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BuffersFull { .. } => "buffers_full",
        }
    }

    /// Returns the body of the response.
    #[must_use]
    pub fn to_json(&self) -> String {
        let kind = match self.status() {
            413 => "PayloadTooLargeError",
            429 => "RateLimitError",
            503 => "ServiceUnavailableError",
            _ => "InternalServerError",
        };
        let error = json!({
            "message": self.to_string(),
            "type": kind,
            "param": null,
            "code": self.status(),
            "reason": self.reason(),
        });
        json!({ "error": error }).to_string()
    }
}
