//! A picker in this process, and a proxy that talks to it as Envoy does.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use prelude_epp::{
    Config, Picker,
    exchange::{DESTINATION, NAMESPACE},
    proto::{
        BodyMode, HeaderMap, HeaderValue, HealthCheckRequest, HealthCheckResponse, HttpBody,
        HttpHeaders, HttpTrailers, ImmediateResponse, Kind, Metadata, Mutation, ProcessingRequest,
        ProcessingResponse, ProtocolConfiguration, RequestPart, ResponsePart, Struct,
    },
    server::{Limits, ProstCodec, serve},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{
    Status, Streaming,
    client::Grpc,
    transport::{Channel, Endpoint},
};

/// Far more than anything here takes: a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two modes of bodies: the request's and the response's.
pub(crate) type Modes = (BodyMode, BodyMode);
/// The modes of the extension's gateways.
pub(crate) const FULL: Modes = (BodyMode::FullDuplexStreamed, BodyMode::FullDuplexStreamed);

/// A picker that serves.
pub(crate) struct Served {
    pub(crate) picker: Arc<Picker>,
    channel: Channel,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
}

/// Returns the address of an engine that is never connected to.
pub(crate) fn engine(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 8000))
}

/// Returns knobs under which engines are healthy at once.
pub(crate) fn config() -> Config {
    Config {
        probes: false,
        ..Config::default()
    }
}

/// Serves a picker with so many engines.
pub(crate) async fn picker(config: Config, engines: u8) -> Served {
    let picker = Arc::new(Picker::new(config, None).unwrap());
    let engines = (1..=engines).map(|n| (engine(n), None));
    picker.replace(0, engines).unwrap();
    picker.set_known();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let stopped = async {
        // It goes on if the sender is dropped.
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let served = Arc::clone(&picker);
    let server = tokio::spawn(serve(served, listener, Limits::default(), stopped));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    Served {
        picker,
        channel: endpoint.connect().await.unwrap(),
        stop: Some(stop),
        server,
    }
}

impl Served {
    /// Tells the server to stop.
    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.server.is_finished()
    }

    pub(crate) async fn wait_for_end(self) {
        let Self {
            channel, server, ..
        } = self;
        let ended = timeout(PATIENCE, server).await;
        ended.expect("the server goes on").unwrap();
        drop(channel);
    }

    /// Asks for the health of a service.
    pub(crate) async fn health(&self, service: &str) -> Result<i32, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let service = service.to_owned();
        let question = tonic::Request::new(HealthCheckRequest { service });
        let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let answer = grpc.unary(question, path, codec).await?;
        Ok(answer.into_inner().status)
    }

    /// Begins an exchange.
    pub(crate) async fn exchange(&self, modes: Modes) -> Exchange {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let (send, messages) = mpsc::channel(64);
        let messages = tonic::Request::new(ReceiverStream::new(messages));
        let path = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
        let path = http::uri::PathAndQuery::from_static(path);
        let answers = grpc.streaming(messages, path, ProstCodec::default()).await;
        Exchange {
            send,
            answers: answers.unwrap().into_inner(),
            modes: Some(modes),
            metadata: None,
        }
    }

    /// Waits until no request is under way.
    pub(crate) async fn wait_until_idle(&self) {
        self.wait_until(|picker| picker.in_flight() == 0).await;
    }

    /// Waits until the picker is as it should be.
    pub(crate) async fn wait_until(&self, is_so: impl Fn(&Picker) -> bool) {
        let wait = async {
            while !is_so(&self.picker) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let came = timeout(PATIENCE, wait).await;
        came.expect("the picker does not come to be as it should");
    }
}

/// An exchange, as a proxy sees it.
pub(crate) struct Exchange {
    send: mpsc::Sender<ProcessingRequest>,
    answers: Streaming<ProcessingResponse>,
    modes: Option<Modes>,
    pub(crate) metadata: Option<Metadata>,
}

/// Returns metadata with one field.
pub(crate) fn metadata(namespace: &str, name: &str, value: Kind) -> Metadata {
    let filter_metadata = [(namespace.to_owned(), Struct::of(name, value))];
    Metadata {
        filter_metadata: filter_metadata.into(),
    }
}

/// Returns headers.
pub(crate) fn headers(list: &[(&'static str, &str)], end_of_stream: bool) -> HttpHeaders {
    let one = |(name, value): &(&'static str, &str)| HeaderValue::new(name, value.to_string());
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: list.iter().map(one).collect(),
        }),
        end_of_stream,
    }
}

impl Exchange {
    /// Sends a part of the exchange.
    pub(crate) async fn send(&mut self, part: RequestPart) {
        let modes = self.modes.take();
        let message = ProcessingRequest {
            request: Some(part),
            metadata_context: self.metadata.clone(),
            protocol_config: modes.map(|(request, response)| ProtocolConfiguration {
                request_body_mode: request.into(),
                response_body_mode: response.into(),
            }),
            observability_mode: false,
        };
        self.send
            .send(message)
            .await
            .expect("the picker has ended the stream");
    }

    pub(crate) async fn post(&mut self, path: &str, more: &[(&'static str, &str)]) {
        let head = [(":method", "POST"), (":path", path)];
        let head = [&head, more].concat();
        self.send(RequestPart::RequestHeaders(headers(&head, false)))
            .await;
    }

    pub(crate) async fn get(&mut self, path: &str) {
        let head = [(":method", "GET"), (":path", path)];
        self.send(RequestPart::RequestHeaders(headers(&head, true)))
            .await;
    }

    pub(crate) async fn body(&mut self, body: impl Into<Bytes>, end_of_stream: bool) {
        let body = body.into();
        let body = HttpBody {
            body,
            end_of_stream,
        };
        self.send(RequestPart::RequestBody(body)).await;
    }

    pub(crate) async fn trailers(&mut self) {
        self.send(RequestPart::RequestTrailers(HttpTrailers::default()))
            .await;
    }

    pub(crate) async fn response(&mut self, more: &[(&'static str, &str)], end_of_stream: bool) {
        let head = [&[(":status", "200")], more].concat();
        self.send(RequestPart::ResponseHeaders(headers(&head, end_of_stream)))
            .await;
    }

    pub(crate) async fn response_body(&mut self, body: impl Into<Bytes>, end_of_stream: bool) {
        let body = body.into();
        let body = HttpBody {
            body,
            end_of_stream,
        };
        self.send(RequestPart::ResponseBody(body)).await;
    }

    pub(crate) async fn response_trailers(&mut self) {
        self.send(RequestPart::ResponseTrailers(HttpTrailers::default()))
            .await;
    }

    /// Returns the next answer.
    pub(crate) async fn answer(&mut self) -> ProcessingResponse {
        let answer = timeout(PATIENCE, self.answers.next()).await;
        let answer = answer.expect("no answer came");
        answer.expect("the stream has ended").unwrap()
    }

    /// Returns the endpoints of an answer that carries the pick, to headers or to a body.
    pub(crate) async fn pick(&mut self, in_body: bool) -> Vec<String> {
        let answer = self.answer().await;
        let common = match (answer.response, in_body) {
            (Some(ResponsePart::RequestHeaders(common)), false) => common,
            (Some(ResponsePart::RequestBody(common)), true) => common,
            (other, _) => panic!("{other:?}"),
        };
        let common = common.response.unwrap();
        assert!(common.clear_route_cache && common.body_mutation.is_none());
        let set = common.header_mutation.unwrap().set_headers;
        let [option] = &set[..] else {
            panic!("{set:?}");
        };
        assert_eq!(option.append_action, 2);
        let header = option.header.as_ref().unwrap();
        assert_eq!(header.key, DESTINATION);
        assert!(header.value.is_empty(), "only raw_value is read");
        let metadata = answer.dynamic_metadata.unwrap();
        let Some(Kind::Struct(fields)) = metadata.get(NAMESPACE) else {
            panic!("{metadata:?}");
        };
        let text = std::str::from_utf8(&header.raw_value).unwrap();
        assert_eq!(
            fields.get(DESTINATION),
            Some(&Kind::String(text.to_owned()))
        );
        text.split(',').map(str::to_owned).collect()
    }

    /// Returns a body that is given back: its pieces, up to the end or up to so many bytes.
    pub(crate) async fn given_back(
        &mut self,
        of_request: bool,
        until: Option<usize>,
    ) -> (Bytes, usize) {
        let (mut body, mut pieces) = (Vec::new(), 0);
        loop {
            let answer = self.answer().await;
            let common = match (answer.response, of_request) {
                (Some(ResponsePart::RequestBody(common)), true) => common,
                (Some(ResponsePart::ResponseBody(common)), false) => common,
                (other, _) => panic!("{other:?}"),
            };
            let mutation = common.response.unwrap().body_mutation.unwrap().mutation;
            let Some(Mutation::Streamed(piece)) = mutation else {
                panic!("{mutation:?}");
            };
            assert!(piece.body.len() <= 62_000);
            body.extend_from_slice(&piece.body);
            pieces += 1;
            match until {
                None if piece.end_of_stream => return (body.into(), pieces),
                None => {}
                Some(bytes) => {
                    assert!(!piece.end_of_stream);
                    if body.len() >= bytes {
                        return (body.into(), pieces);
                    }
                }
            }
        }
    }

    /// Returns the refusal that comes next.
    pub(crate) async fn refusal(&mut self) -> (ImmediateResponse, serde_json::Value) {
        let answer = self.answer().await;
        let Some(ResponsePart::Immediate(response)) = answer.response else {
            panic!("{answer:?}");
        };
        let json: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
        let status = response.status.clone().unwrap().code;
        assert_eq!(json["error"]["code"], status);
        assert!(json["error"]["message"].is_string() && json["error"]["type"].is_string());
        (response, json)
    }

    /// Ends the proxy's side, and checks that the picker says nothing more.
    pub(crate) async fn close(self) {
        let Self {
            send, mut answers, ..
        } = self;
        drop(send);
        let end = timeout(PATIENCE, answers.next())
            .await
            .expect("no end came");
        assert!(end.is_none(), "{end:?}");
    }
}
