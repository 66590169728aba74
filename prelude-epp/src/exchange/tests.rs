use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::{
    Config,
    proto::{HttpTrailers, Mutation, ResponsePart},
};

/// A thing that happens to an exchange.
#[derive(Clone, Debug)]
enum Event {
    RequestHeaders(bool),
    RequestBody(Vec<u8>, bool),
    RequestTrailers,
    Late,
    ResponseHeaders(bool),
    ResponseBody(Vec<u8>, bool),
    ResponseTrailers,
}

fn event() -> impl Strategy<Value = Event> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        any::<bool>().prop_map(Event::RequestHeaders),
        (bytes(), prop::bool::weighted(0.2)).prop_map(|(b, end)| Event::RequestBody(b, end)),
        Just(Event::RequestTrailers),
        Just(Event::Late),
        any::<bool>().prop_map(Event::ResponseHeaders),
        (bytes(), prop::bool::weighted(0.2)).prop_map(|(b, end)| Event::ResponseBody(b, end)),
        Just(Event::ResponseTrailers),
    ]
}

fn mode() -> impl Strategy<Value = BodyMode> {
    (0..5).prop_map(|mode| BodyMode::try_from(mode).unwrap())
}

fn picker(engines: u8) -> Arc<Picker> {
    let config = Config {
        probes: false,
        max_body_bytes: 60,
        max_buffered_bytes: 50,
        ..Config::default()
    };
    let picker = Arc::new(Picker::new(config, None).unwrap());
    let address = |n| (SocketAddr::from(([10, 0, 0, n], 80)), None);
    picker.replace(0, (1..=engines).map(address)).unwrap();
    picker
}

fn part(event: &Event) -> Option<RequestPart> {
    let headers = |end_of_stream| HttpHeaders {
        headers: None,
        end_of_stream,
    };
    let body = |bytes: &[u8], end_of_stream| HttpBody {
        body: Bytes::copy_from_slice(bytes),
        end_of_stream,
    };
    Some(match event {
        Event::RequestHeaders(end) => RequestPart::RequestHeaders(headers(*end)),
        Event::RequestBody(bytes, end) => RequestPart::RequestBody(body(bytes, *end)),
        Event::RequestTrailers => RequestPart::RequestTrailers(HttpTrailers::default()),
        Event::ResponseHeaders(end) => RequestPart::ResponseHeaders(headers(*end)),
        Event::ResponseBody(bytes, end) => RequestPart::ResponseBody(body(bytes, *end)),
        Event::ResponseTrailers => RequestPart::ResponseTrailers(HttpTrailers::default()),
        Event::Late => return None,
    })
}

/// The bytes that an answer gives back of the request's body.
fn given_back(answer: &ProcessingResponse) -> Option<(&[u8], bool)> {
    let Some(ResponsePart::RequestBody(common)) = &answer.response else {
        return None;
    };
    let mutation = common.response.as_ref()?.body_mutation.as_ref()?;
    let Some(Mutation::Streamed(piece)) = &mutation.mutation else {
        return None;
    };
    Some((&piece.body, piece.end_of_stream))
}

proptest! {
    /// Whatever comes in whatever order: one pick or one refusal at most, nothing is held back that
    /// was given, and nothing stays charged or reserved when the exchange is dropped.
    #[test]
    fn any_conversation_adds_up(
        modes in (mode(), mode()), events in prop::collection::vec(event(), 0..20), engines in 0u8..3,
    ) {
        let picker = picker(engines);
        let mut exchange = Exchange::new(&picker);
        exchange.set_modes(&ProtocolConfiguration {
            request_body_mode: modes.0.into(),
            response_body_mode: modes.1.into(),
        });
        let mut answers = Vec::new();
        for event in &events {
            match part(event) {
                Some(part) => exchange.on(ProcessingRequest {
                    request: Some(part),
                    ..ProcessingRequest::default()
                }),
                None => exchange.on_late_body(),
            }
            answers.extend(std::iter::from_fn(|| exchange.next_answer()));
        }
        let picks = answers.iter().filter(|a| a.dynamic_metadata.is_some()).count();
        let is_refusal = |a: &&ProcessingResponse| {
            matches!(a.response, Some(ResponsePart::Immediate(_)))
        };
        let refusals = answers.iter().filter(is_refusal).count();
        prop_assert!(picks + refusals <= 1, "{answers:?}");
        prop_assert!(engines > 0 || picks == 0);
        prop_assert!(picker.in_flight() <= picks);
        let ends = answers.iter().filter_map(given_back).filter(|(_, end)| *end).count();
        prop_assert!(ends <= 1);
        drop(exchange);
        prop_assert_eq!(picker.buffered_bytes(), 0);
        let is_hidden = modes.1 == BodyMode::None;
        prop_assert!(is_hidden || picker.in_flight() == 0);
    }

    /// In full duplex a body that was cut anywhere, and is late anywhere, comes back as it was sent.
    #[test]
    fn bodies_come_back_as_they_were_sent(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..5),
        late in 0usize..6, by_trailers: bool,
    ) {
        let picker = picker(1);
        let mut exchange = Exchange::new(&picker);
        let mut events = vec![Event::RequestHeaders(false)];
        let last = pieces.len() - 1;
        let piece = |(at, bytes): (usize, &Vec<u8>)| {
            Event::RequestBody(bytes.clone(), at == last && !by_trailers)
        };
        events.extend(pieces.iter().enumerate().map(piece));
        if by_trailers {
            events.push(Event::RequestTrailers);
        }
        let (mut body, mut ends) = (Vec::new(), 0);
        for (at, event) in events.iter().enumerate() {
            exchange.on(ProcessingRequest {
                request: part(event),
                ..ProcessingRequest::default()
            });
            if at == late {
                exchange.on_late_body();
            }
            while let Some(answer) = exchange.next_answer() {
                if let Some((bytes, end)) = given_back(&answer) {
                    body.extend_from_slice(bytes);
                    ends += usize::from(end);
                }
            }
        }
        prop_assert_eq!(body, pieces.concat());
        prop_assert_eq!(ends, usize::from(!by_trailers));
    }
}
