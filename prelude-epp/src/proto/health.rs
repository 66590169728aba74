//! The messages of `grpc.health.v1`.

/// A question about the health of a service.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckRequest {
    /// The service's name; empty for the whole server.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// The health of a service.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckResponse {
    /// The status.
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// The status of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    /// The status is not known.
    Unknown = 0,
    /// The service answers.
    Serving = 1,
    /// The service does not answer.
    NotServing = 2,
}
