//! The messages of Envoy's external processing that an endpoint picker needs.
//!
//! They are written by hand: a handful of messages of `envoy.service.ext_proc.v3` with the field
//! numbers of Envoy 1.40, of which a picker uses few. Decoding skips all other fields.

mod health;
mod structs;

use std::collections::BTreeMap;

use bytes::Bytes;

pub use health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
pub use structs::{Kind, ListValue, Struct, Value};

/// A message from the proxy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessingRequest {
    /// The part of the HTTP exchange that the message brings.
    #[prost(oneof = "RequestPart", tags = "2, 3, 4, 5, 6, 7")]
    pub request: Option<RequestPart>,
    /// The namespaces of dynamic metadata that the proxy forwards.
    #[prost(message, optional, tag = "8")]
    pub metadata_context: Option<Metadata>,
    /// True if the proxy only shows the exchange and reads no answer.
    #[prost(bool, tag = "10")]
    pub observability_mode: bool,
    /// The modes of the bodies, in the first message of a stream.
    #[prost(message, optional, tag = "11")]
    pub protocol_config: Option<ProtocolConfiguration>,
}

/// A part of an HTTP exchange.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum RequestPart {
    /// The headers of the request.
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    /// The headers of the response.
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    /// A piece of the request's body.
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    /// A piece of the response's body.
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    /// The trailers of the request, which end it.
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    /// The trailers of the response, which end it.
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// The modes in which the proxy sends bodies.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProtocolConfiguration {
    /// The mode of the request's body.
    #[prost(enumeration = "BodyMode", tag = "1")]
    pub request_body_mode: i32,
    /// The mode of the response's body.
    #[prost(enumeration = "BodyMode", tag = "2")]
    pub response_body_mode: i32,
}

/// The mode in which a body is sent to the picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum BodyMode {
    /// The picker does not see the body.
    None = 0,
    /// The picker sees each piece, and the proxy keeps it until it is answered.
    Streamed = 1,
    /// The proxy keeps the whole body, and the picker sees it in one message.
    Buffered = 2,
    /// The body is sent as with `Buffered`, but only as much of it as the proxy's buffer has room
    /// for.
    BufferedPartial = 3,
    /// The picker is given the body, and the proxy sends on what the picker gives back.
    FullDuplexStreamed = 4,
}

/// Dynamic metadata by namespace.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Metadata {
    /// The namespaces.
    #[prost(btree_map = "string, message", tag = "1")]
    pub filter_metadata: BTreeMap<String, Struct>,
}

/// Headers of a request or a response.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpHeaders {
    /// The headers.
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    /// True if neither a body nor trailers follow.
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

/// A piece of a body.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpBody {
    /// The body's bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// True if nothing follows.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// Trailers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpTrailers {
    /// The trailers.
    #[prost(message, optional, tag = "1")]
    pub trailers: Option<HeaderMap>,
}

/// A list of headers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderMap {
    /// The headers in their order.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// A header. Names are ASCII, and read as bytes because that copies nothing.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValue {
    /// The name in lower case.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value as text, which current proxies leave empty.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

/// A message to the proxy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessingResponse {
    /// The answer.
    #[prost(oneof = "ResponsePart", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub response: Option<ResponsePart>,
    /// Metadata for the proxy, by namespace.
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<Struct>,
}

/// The answer to a part of an HTTP exchange.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ResponsePart {
    /// The answer to the headers of the request.
    #[prost(message, tag = "1")]
    RequestHeaders(CommonAnswer),
    /// The answer to the headers of the response.
    #[prost(message, tag = "2")]
    ResponseHeaders(CommonAnswer),
    /// The answer to the request's body.
    #[prost(message, tag = "3")]
    RequestBody(CommonAnswer),
    /// The answer to the response's body.
    #[prost(message, tag = "4")]
    ResponseBody(CommonAnswer),
    /// The answer to the trailers of the request.
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersAnswer),
    /// The answer to the trailers of the response.
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersAnswer),
    /// A response to the client in place of the server's.
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// An answer to headers or to a body: Envoy's `HeadersResponse` and `BodyResponse`, which have the
/// same field.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommonAnswer {
    /// The changes.
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

/// An answer to trailers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrailersAnswer {}

/// Changes of headers or of a body.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommonResponse {
    /// The changes of headers.
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    /// The change of the body.
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
    /// True if the proxy must choose the route again.
    #[prost(bool, tag = "5")]
    pub clear_route_cache: bool,
}

/// Changes of headers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderMutation {
    /// The headers to set.
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
    /// The headers to remove.
    #[prost(string, repeated, tag = "2")]
    pub remove_headers: Vec<String>,
}

/// A header to set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValueOption {
    /// The header.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// The treatment of a header that is there already.
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub append_action: i32,
}

/// The treatment of a header that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AppendAction {
    /// The header's old value stays beside the new one.
    AppendIfExistsOrAdd = 0,
    /// The old value stays.
    AddIfAbsent = 1,
    /// The new value stays.
    OverwriteIfExistsOrAdd = 2,
    /// The new one stays if there was one.
    OverwriteIfExists = 3,
}

/// A change of a body.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BodyMutation {
    /// The change.
    #[prost(oneof = "Mutation", tags = "3")]
    pub mutation: Option<Mutation>,
}

/// The kinds of changes of a body.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Mutation {
    /// A piece of the body that the proxy sends on, in the full-duplex mode.
    #[prost(message, tag = "3")]
    Streamed(StreamedBodyResponse),
}

/// A piece of a body that the proxy sends on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamedBodyResponse {
    /// The piece's bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// True if nothing follows.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// A response to the client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImmediateResponse {
    /// The status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// The headers.
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    /// The body.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// The reason, for the proxy's log.
    #[prost(string, tag = "5")]
    pub details: String,
}

/// A status of HTTP.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpStatus {
    /// The status's number.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

impl HeaderMap {
    /// Returns the value of the first header of this name, which is in lower case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let header = { self.headers.iter() }.find(|header| header.key == name.as_bytes())?;
        std::str::from_utf8(header.bytes()).ok()
    }
}

impl HeaderValue {
    /// Returns a header.
    pub fn new(name: &'static str, value: impl Into<Bytes>) -> Self {
        Self {
            key: Bytes::from_static(name.as_bytes()),
            value: Bytes::new(),
            raw_value: value.into(),
        }
    }

    /// Returns the value, in whichever field it came.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self.raw_value.is_empty() {
            true => &self.value,
            false => &self.raw_value,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// Bytes of a message with fields that this crate does not know, put together by hand.
    #[test]
    fn wire_form() {
        let wire: &[u8] = &[
            0x12, 0x10, // request_headers, 16 bytes
            0x0a, 0x0c, // headers, 12 bytes
            0x0a, 0x0a, 0x0a, 0x01, b'k', 0x1a, 0x01, b'v', 0x22, 0x02, 9,
            9, // one, and field 4
            0x18, 0x01, // end_of_stream
            0x5a, 0x06, 0x08, 0x04, 0x10, 0x04, 0x18, 0x01, // modes 4 and 4, and field 3
            0xfa, 0x06, 0x01, 0x00, // field 111
        ];
        let message = ProcessingRequest::decode(wire).unwrap();
        let Some(RequestPart::RequestHeaders(headers)) = message.request else {
            panic!("{message:?}");
        };
        assert!(headers.end_of_stream);
        assert_eq!(headers.headers.unwrap().get("k"), Some("v"));
        let modes = message.protocol_config.unwrap();
        assert_eq!(modes.request_body_mode(), BodyMode::FullDuplexStreamed);
        assert_eq!(modes.response_body_mode(), BodyMode::FullDuplexStreamed);
    }

    #[test]
    fn answers_in_wire_form() {
        let answer = ProcessingResponse {
            response: Some(ResponsePart::RequestBody(CommonAnswer {
                response: Some(CommonResponse {
                    body_mutation: Some(BodyMutation {
                        mutation: Some(Mutation::Streamed(StreamedBodyResponse {
                            body: Bytes::from_static(b"ab"),
                            end_of_stream: true,
                        })),
                    }),
                    ..CommonResponse::default()
                }),
            })),
            dynamic_metadata: None,
        };
        let wire = [
            0x1a, 0x0c, 0x0a, 0x0a, 0x1a, 0x08, 0x1a, 0x06, 0x0a, 2, b'a', b'b', 0x10, 1,
        ];
        assert_eq!(answer.encode_to_vec(), wire);
    }
}
