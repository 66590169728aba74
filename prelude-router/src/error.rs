//! The reasons why a request goes nowhere.

use prelude_core::RequestId;
use thiserror::Error;

use crate::endpoint::EndpointId;

/// The reason why a request goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RouteError {
    /// There is no endpoint that the request may go to. A gateway answers 503.
    #[error("none of {endpoints} endpoints is healthy and allowed for this request")]
    NoEndpoint {
        /// The number of endpoints.
        endpoints: usize,
    },
    /// All endpoints have too much to do, and the request may be shed. A gateway answers 429.
    #[error("each endpoint has {least_ms} ms or more to do, and {shed_ms} ms are allowed")]
    Overloaded {
        /// The work of the endpoint with the least.
        least_ms: u64,
        /// The limit.
        shed_ms: u64,
    },
    /// Too many requests are under way. A gateway answers 429.
    #[error("{most} requests are under way, which is as many as are allowed")]
    TooMany {
        /// The number that is allowed.
        most: u32,
    },
    /// The request's prompt was hashed in granules of another size than the router's.
    #[error("the prompt's granules have {granule} tokens, and the router's {own}")]
    Granule {
        /// Tokens of the prompt's.
        granule: u32,
        /// Tokens of the router's.
        own: u32,
    },
    /// A request of this name is under way already.
    #[error("request {0} is under way already")]
    Duplicate(RequestId),
}

/// An endpoint that is not one of the router's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("there is no endpoint {0}")]
pub struct UnknownEndpoint(pub EndpointId);
