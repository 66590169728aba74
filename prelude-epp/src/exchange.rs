//! An HTTP exchange: what the proxy shows of it, and the answers to that.
//!
//! Plain code without a clock and without I/O: messages in, answers out. The order of answers is
//! what Envoy asks for in each mode of the request's body:
//!
//! | mode | the pick is made | and goes into |
//! | --- | --- | --- |
//! | full duplex | at the end of the body, or when it is late | the answer to the headers; then the body is given back |
//! | buffered | when the body comes, in one message | the answer to the body, which stays as it is |
//! | streamed, none | at the headers, without a prefix | the answer to the headers |

mod answers;
mod body_buffer;
mod request_head;

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;

use self::{
    answers::{Message, Side},
    body_buffer::BodyBuffer,
    request_head::RequestHead,
};
use crate::{
    body::{Body, user_number},
    log,
    picker::{Asked, Charge, Picker, Subset},
    proto::{
        BodyMode, HttpBody, HttpHeaders, Kind, Metadata, ProcessingRequest, ProcessingResponse,
        ProtocolConfiguration, RequestPart,
    },
    refusal::Refusal,
};

/// The header, and the field of metadata, that names the endpoint picked.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The field of metadata that names the endpoint which served.
pub const SERVED: &str = "x-gateway-destination-endpoint-served";
/// The field of metadata that names the endpoints a request may go to.
pub const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// The namespace of metadata for load balancing.
pub const NAMESPACE: &str = "envoy.lb";
/// The namespace of metadata with the subset.
pub const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";

/// The state of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The request's headers have not come.
    Headers,
    /// The request's body is coming.
    Body,
    /// An endpoint was picked before the body ended, and the rest of the body passes through.
    Passing,
    /// An endpoint was picked, and the body has ended.
    Decided,
    /// The request was refused.
    Refused,
}

/// An HTTP exchange.
#[derive(Debug)]
pub struct Exchange {
    picker: Arc<Picker>,
    phase: Phase,
    request_mode: BodyMode,
    response_mode: BodyMode,
    head: RequestHead,
    body: BodyBuffer,
    charge: Option<Charge>,
    max_output_tokens: Option<u32>,
    answers: VecDeque<ProcessingResponse>,
}

impl Exchange {
    /// Returns an exchange of which nothing is known yet.
    #[must_use]
    pub fn new(picker: &Arc<Picker>) -> Self {
        Self {
            picker: Arc::clone(picker),
            phase: Phase::Headers,
            request_mode: BodyMode::FullDuplexStreamed,
            response_mode: BodyMode::FullDuplexStreamed,
            head: RequestHead::default(),
            body: BodyBuffer::new(picker),
            charge: None,
            max_output_tokens: None,
            answers: VecDeque::new(),
        }
    }

    /// Returns the next answer for the proxy.
    pub fn next_answer(&mut self) -> Option<ProcessingResponse> {
        self.answers.pop_front()
    }

    /// Returns true while the pick waits for a body that has no other deadline.
    #[must_use]
    pub fn waits_for_body(&self) -> bool {
        self.phase == Phase::Body && self.request_mode == BodyMode::FullDuplexStreamed
    }

    /// Takes a message of the proxy.
    pub fn on(&mut self, message: ProcessingRequest) {
        if message.observability_mode {
            // The proxy reads no answer, and its request goes somewhere else.
            return;
        }
        if let Some(config) = &message.protocol_config {
            self.set_modes(config);
        }
        let metadata = message.metadata_context.as_ref();
        match message.request {
            Some(RequestPart::RequestHeaders(headers)) => self.on_request(&headers, metadata),
            Some(RequestPart::RequestBody(body)) => self.on_request_body(body),
            Some(RequestPart::RequestTrailers(_)) => self.on_request_trailers(),
            Some(RequestPart::ResponseHeaders(headers)) => self.on_response(&headers, metadata),
            Some(RequestPart::ResponseBody(body)) => self.on_response_body(body),
            Some(RequestPart::ResponseTrailers(_)) => {
                self.charge = None;
                self.answers.push_back(answers::trailers(Side::Response));
            }
            // A part that this version does not know has no answer that it could give.
            None => {}
        }
    }

    /// Takes note that the body is late: the pick is made by what has come.
    pub fn on_late_body(&mut self) {
        if !self.waits_for_body() {
            return;
        }
        if self.picker.config.log_picks {
            let came = self.body.len();
            log::line(format_args!(
                "body late path={} bytes={came}: picked by what has come",
                self.head.path
            ));
        }
        if self.decide(Message::Headers) {
            self.give_back(false);
            self.phase = Phase::Passing;
        }
    }

    fn set_modes(&mut self, config: &ProtocolConfiguration) {
        self.request_mode = config.request_body_mode();
        self.response_mode = config.response_body_mode();
    }

    fn on_request(&mut self, headers: &HttpHeaders, metadata: Option<&Metadata>) {
        if self.phase != Phase::Headers {
            return;
        }
        self.head = RequestHead::new(headers, subset(metadata));
        let comes_later = !headers.end_of_stream
            && match self.request_mode {
                BodyMode::FullDuplexStreamed => true,
                BodyMode::Buffered | BodyMode::BufferedPartial => {
                    // The proxy keeps the body back until its headers are answered.
                    self.answers.push_back(answers::unchanged_request_headers());
                    true
                }
                BodyMode::None | BodyMode::Streamed => false,
            };
        if comes_later {
            self.phase = Phase::Body;
        } else if self.decide(Message::Headers) {
            self.phase = match headers.end_of_stream {
                true => Phase::Decided,
                false => Phase::Passing,
            };
        }
    }

    fn on_request_body(&mut self, body: HttpBody) {
        match self.phase {
            Phase::Body => {
                if let Err(refusal) = self.body.push(body.body) {
                    return self.refuse(&refusal);
                }
                if self.request_mode == BodyMode::FullDuplexStreamed {
                    if body.end_of_stream {
                        self.finish_body(true);
                    }
                } else if self.decide(Message::Body) {
                    // The whole body was one message; trailers may follow.
                    self.phase = Phase::Decided;
                    self.body.take();
                }
            }
            Phase::Passing => {
                let full_duplex = self.request_mode == BodyMode::FullDuplexStreamed;
                let end = body.end_of_stream;
                match full_duplex {
                    true => answers::give_back(Side::Request, &body.body, end, &mut self.answers),
                    false => self
                        .answers
                        .push_back(answers::unchanged_body(Side::Request)),
                }
                if end {
                    self.phase = Phase::Decided;
                }
            }
            // After a refusal pieces are under way; after the end some proxies send another one.
            Phase::Headers | Phase::Decided | Phase::Refused => {}
        }
    }

    fn on_request_trailers(&mut self) {
        match self.phase {
            Phase::Headers | Phase::Refused => return,
            Phase::Body if self.request_mode == BodyMode::FullDuplexStreamed => {
                self.finish_body(false);
            }
            // The proxy had no body to buffer, and its headers are answered: there is no place for
            // a pick, and the proxy's own choice holds.
            Phase::Body | Phase::Passing | Phase::Decided => {}
        }
        if self.phase != Phase::Refused {
            self.phase = Phase::Decided;
            self.answers.push_back(answers::trailers(Side::Request));
        }
    }

    /// Decides once the whole body is there, and gives it back.
    fn finish_body(&mut self, ends: bool) {
        if self.decide(Message::Headers) {
            self.give_back(ends);
            self.phase = Phase::Decided;
        }
    }

    /// Gives the body back that was collected.
    fn give_back(&mut self, ends: bool) {
        let chunks = self.body.take();
        let last = chunks.len().saturating_sub(1);
        for (at, chunk) in chunks.iter().enumerate() {
            let ends = ends && at == last;
            answers::give_back(Side::Request, chunk, ends, &mut self.answers);
        }
        if chunks.is_empty() && ends {
            answers::give_back(Side::Request, &Bytes::new(), true, &mut self.answers);
        }
    }

    /// Picks an engine, and answers the message that the proxy waits for. Returns false if the request
    /// was refused.
    fn decide(&mut self, answered: Message) -> bool {
        let bytes = self.body.joined();
        let body = Body::new(&self.head.path, &bytes);
        let prefix = self.picker.prefix(&body);
        let max_output_tokens = body.max_output_tokens();
        let asked = Asked {
            max_output_tokens,
            user: body
                .user()
                .or_else(|| self.head.fairness_id.as_deref().map(user_number)),
            sheddable: self
                .head
                .is_sheddable(self.picker.config.sheddable.as_deref()),
            subset: self.head.subset.as_ref(),
            first_token_within: self.head.first_token_within(),
        };
        match self.picker.pick(&prefix, &asked) {
            Ok(picked) => {
                if self.picker.config.log_picks {
                    self.head.log_pick(&picked);
                }
                self.max_output_tokens = max_output_tokens;
                self.charge = Some(Charge::new(&self.picker, picked.id));
                self.answers
                    .push_back(answers::pick(answered, picked.addresses));
                true
            }
            Err(refusal) => {
                self.refuse(&refusal);
                false
            }
        }
    }

    fn refuse(&mut self, refusal: &Refusal) {
        self.phase = Phase::Refused;
        self.body.take();
        self.answers.push_back(answers::refusal(refusal));
        if self.picker.config.log_picks {
            log::line(format_args!(
                "refused path={} status={} {refusal}",
                self.head.path,
                refusal.status()
            ));
        }
    }

    fn on_response(&mut self, headers: &HttpHeaders, metadata: Option<&Metadata>) {
        let served = field(metadata, NAMESPACE, SERVED);
        let served = served.and_then(|kind| kind.strings().next()?.parse::<SocketAddr>().ok());
        if let Some(charge) = &mut self.charge {
            if let Some(served) = served {
                charge.served(served);
            }
            charge.answered(request_head::finish(headers));
        }
        let ends = headers.end_of_stream;
        if ends || self.response_mode == BodyMode::None {
            // Without the response's body the picker does not see its end.
            match self.charge.take() {
                Some(charge) if !ends => charge.end_unseen(self.max_output_tokens),
                _ => {}
            }
        }
        self.answers
            .push_back(answers::unchanged_response_headers());
    }

    fn on_response_body(&mut self, body: HttpBody) {
        if body.end_of_stream {
            self.charge = None;
        }
        match self.response_mode {
            BodyMode::FullDuplexStreamed => {
                let end = body.end_of_stream;
                answers::give_back(Side::Response, &body.body, end, &mut self.answers);
            }
            _ => self
                .answers
                .push_back(answers::unchanged_body(Side::Response)),
        }
    }

    /// Returns the time that a body may take.
    #[must_use]
    pub fn body_timeout(&self) -> Duration {
        self.picker.config.body_timeout
    }
}

/// Returns a field of metadata.
fn field<'a>(metadata: Option<&'a Metadata>, namespace: &str, name: &str) -> Option<&'a Kind> {
    metadata?.filter_metadata.get(namespace)?.get(name)
}

/// Returns the endpoints that the proxy allows, if it names some.
fn subset(metadata: Option<&Metadata>) -> Option<Subset> {
    let names = field(metadata, SUBSET_NAMESPACE, SUBSET)?;
    Some(names.strings().collect())
}

#[cfg(test)]
mod tests;
