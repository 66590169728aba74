//! The answers that a proxy gets.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{DESTINATION, NAMESPACE};
use crate::{
    proto::{
        AppendAction, BodyMutation, CommonAnswer, CommonResponse, HeaderMutation, HeaderValue,
        HeaderValueOption, HttpStatus, ImmediateResponse, Kind, Mutation, ProcessingResponse,
        ResponsePart, StreamedBodyResponse, Struct, TrailersAnswer,
    },
    refusal::Refusal,
};

/// Upper bound of a piece of a body that is given back: below the 64 KiB that Envoy recommends.
pub(super) const PIECE_BYTES: usize = 62_000;

/// A side of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

/// The message whose answer carries the pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Headers,
    Body,
}

fn answer(part: ResponsePart) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(part),
        dynamic_metadata: None,
    }
}

/// Returns a header that replaces any of its name.
///
/// Only `raw_value` is read by Envoy, and `append_action` by other proxies.
fn header(name: &'static str, value: impl Into<Bytes>) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue::new(name, value)),
        append_action: AppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

/// Returns the answer that names the endpoints, in a header and in metadata.
pub(super) fn pick(answered: Message, addresses: String) -> ProcessingResponse {
    let common = CommonAnswer {
        response: Some(CommonResponse {
            header_mutation: Some(HeaderMutation {
                set_headers: vec![header(DESTINATION, addresses.clone())],
                remove_headers: Vec::new(),
            }),
            // Proxies ignore the field where no header is changed.
            clear_route_cache: true,
            body_mutation: None,
        }),
    };
    let fields = Struct::of(DESTINATION, Kind::String(addresses));
    ProcessingResponse {
        response: Some(match answered {
            Message::Headers => ResponsePart::RequestHeaders(common),
            Message::Body => ResponsePart::RequestBody(common),
        }),
        dynamic_metadata: Some(Struct::of(NAMESPACE, Kind::Struct(fields))),
    }
}

fn unchanged() -> CommonAnswer {
    CommonAnswer {
        response: Some(CommonResponse::default()),
    }
}

/// Returns the answer that leaves the headers of the request as they are.
pub(super) fn unchanged_request_headers() -> ProcessingResponse {
    answer(ResponsePart::RequestHeaders(unchanged()))
}

/// Returns the answer that leaves the headers of the response as they are.
pub(super) fn unchanged_response_headers() -> ProcessingResponse {
    answer(ResponsePart::ResponseHeaders(unchanged()))
}

/// Returns the answer that leaves a body as it is, where the proxy keeps it.
pub(super) fn unchanged_body(side: Side) -> ProcessingResponse {
    answer(match side {
        Side::Request => ResponsePart::RequestBody(unchanged()),
        Side::Response => ResponsePart::ResponseBody(unchanged()),
    })
}

/// Returns the answer to trailers, which stay as they are.
pub(super) fn trailers(side: Side) -> ProcessingResponse {
    answer(match side {
        Side::Request => ResponsePart::RequestTrailers(TrailersAnswer {}),
        Side::Response => ResponsePart::ResponseTrailers(TrailersAnswer {}),
    })
}

/// Gives a piece of a body back, in as many answers as it takes; an empty one in one answer.
pub(super) fn give_back(
    side: Side,
    body: &Bytes,
    ends: bool,
    answers: &mut VecDeque<ProcessingResponse>,
) {
    let mut at = 0;
    loop {
        let end = body.len().min(at + PIECE_BYTES);
        let piece = StreamedBodyResponse {
            body: body.slice(at..end),
            end_of_stream: ends && end == body.len(),
        };
        let common = CommonAnswer {
            response: Some(CommonResponse {
                body_mutation: Some(BodyMutation {
                    mutation: Some(Mutation::Streamed(piece)),
                }),
                ..CommonResponse::default()
            }),
        };
        answers.push_back(answer(match side {
            Side::Request => ResponsePart::RequestBody(common),
            Side::Response => ResponsePart::ResponseBody(common),
        }));
        at = end;
        if at == body.len() {
            return;
        }
    }
}

/// Returns the response that a client gets in place of a server's.
pub(super) fn refusal(refusal: &Refusal) -> ProcessingResponse {
    let mut set_headers = vec![header("content-type", "application/json")];
    if refusal.is_temporary() {
        set_headers.push(header("retry-after", "1"));
    }
    answer(ResponsePart::Immediate(ImmediateResponse {
        status: Some(HttpStatus {
            code: refusal.status().into(),
        }),
        headers: Some(HeaderMutation {
            set_headers,
            remove_headers: Vec::new(),
        }),
        body: refusal.to_json().into(),
        details: refusal.reason().to_owned(),
    }))
}
