//! The methods of the two gRPC services.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
};

use http::{Request, Response};
use hyper::body::Incoming;
use tonic::{
    Status, Streaming,
    body::Body,
    server::{Grpc, StreamingService, UnaryService},
};

use super::{codec::ProstCodec, conversation::Conversation};
use crate::{
    picker::Picker,
    proto::{
        HealthCheckRequest, HealthCheckResponse, ProcessingRequest, ProcessingResponse,
        ServingStatus,
    },
};

/// The name of the external processor's service, under which its health is asked for.
const PROCESSOR: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

/// Answers a request.
pub(super) async fn answer(
    picker: Arc<Picker>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let response = match request.uri().path() {
        "/envoy.service.ext_proc.v3.ExternalProcessor/Process" => {
            // A buffered body comes in one message, and is refused here only if it is far longer
            // than what gets 413.
            let most = picker.config.max_body_bytes.saturating_mul(2);
            let most = most.saturating_add(1 << 20);
            let grpc = Grpc::new(ProstCodec::default());
            let mut grpc = grpc.max_decoding_message_size(most);
            grpc.streaming(Process(picker), request).await
        }
        "/grpc.health.v1.Health/Check" => {
            let mut grpc = Grpc::new(ProstCodec::default());
            grpc.unary(Check(picker), request).await
        }
        path => Status::unimplemented(format!("there is no method {path}")).into_http(),
    };
    Ok(response)
}

/// The method `Process`.
struct Process(Arc<Picker>);

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = Conversation<Streaming<ProcessingRequest>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let answers = Conversation::new(&self.0, request.into_inner());
        ready(Ok(tonic::Response::new(answers)))
    }
}

/// The method `Check`.
struct Check(Arc<Picker>);

impl UnaryService<HealthCheckRequest> for Check {
    type Response = HealthCheckResponse;
    type Future = Ready<Result<tonic::Response<HealthCheckResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<HealthCheckRequest>) -> Self::Future {
        ready(health(&self.0, &request.into_inner().service).map(tonic::Response::new))
    }
}

/// Returns the health of a service. The program is alive if it answers at all; exchanges are welcome
/// if endpoints are known and the program is not about to end.
fn health(picker: &Picker, service: &str) -> Result<HealthCheckResponse, Status> {
    let is_serving = match service {
        "liveness" => true,
        "" | "readiness" | PROCESSOR => picker.is_ready(),
        _ => return Err(Status::not_found(format!("there is no service {service}"))),
    };
    let status = match is_serving {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    };
    let status = status.into();
    Ok(HealthCheckResponse { status })
}
