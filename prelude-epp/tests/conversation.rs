//! The conversation with a proxy over gRPC, in every mode and every way to end.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod proxy;

use std::time::Duration;

use prelude_epp::{
    Config,
    exchange::{NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE},
    picker::Health,
    proto::{BodyMode, Kind, ListValue, ResponsePart, Value},
};
use prelude_router::RouterConfig;

use self::proxy::{FULL, config, engine, metadata, picker};

const JSON: &str = r#"{"state": "Where is my card?", "questions": {"a": {"type": "noul"}}}"#;

#[tokio::test]
async fn a_full_duplex_exchange_gets_a_pick_and_its_body_back() {
    let served = picker(config(), 3).await;
    let mut exchange = served.exchange(FULL).await;
    exchange.post("/v1/systemone", &[]).await;
    exchange.body(&JSON[..20], false).await;
    exchange.body(&JSON[20..], false).await;
    exchange.body("", true).await;
    let endpoints = exchange.pick(false).await;
    assert_eq!(endpoints.len(), 3, "the pick and two fallbacks");
    let (body, _) = exchange.given_back(true, None).await;
    assert_eq!(body, JSON);
    assert_eq!(served.picker.in_flight(), 1);
    assert_eq!(served.picker.buffered_bytes(), 0);
    // A second end was seen with some versions of Envoy.
    exchange.body("", true).await;
    exchange.response(&[], false).await;
    let answer = exchange.answer().await;
    assert!(matches!(
        answer.response,
        Some(ResponsePart::ResponseHeaders(_))
    ));
    exchange.response_body("data: 1\n\n", false).await;
    assert_eq!(exchange.given_back(false, Some(9)).await.0, "data: 1\n\n");
    assert_eq!(served.picker.in_flight(), 1);
    exchange.response_body("", true).await;
    assert_eq!(exchange.given_back(false, None).await.0, "");
    assert_eq!(served.picker.in_flight(), 0);
    exchange.close().await;
}

#[tokio::test]
async fn long_bodies_come_back_in_pieces() {
    let served = picker(config(), 1).await;
    let mut exchange = served.exchange(FULL).await;
    let long: String = (0..400_000)
        .map(|n| char::from(b'a' + (n % 26) as u8))
        .collect();
    exchange.post("/v1/completions", &[]).await;
    exchange.body(long[..250_000].to_owned(), false).await;
    exchange.body(long[250_000..].to_owned(), true).await;
    exchange.pick(false).await;
    let (body, pieces) = exchange.given_back(true, None).await;
    assert_eq!(body, long);
    assert_eq!(pieces, 5 + 3);
    exchange.response(&[], false).await;
    exchange.answer().await;
    exchange.response_body(long.clone(), true).await;
    assert_eq!(exchange.given_back(false, None).await.0, long);
    exchange.close().await;
}

#[tokio::test]
async fn requests_without_a_body() {
    let served = picker(config(), 1).await;
    for mode in [
        BodyMode::FullDuplexStreamed,
        BodyMode::Buffered,
        BodyMode::Streamed,
        BodyMode::None,
    ] {
        let mut exchange = served.exchange((mode, BodyMode::FullDuplexStreamed)).await;
        exchange.get("/v1/models").await;
        assert_eq!(exchange.pick(false).await, ["10.0.0.1:8000"]);
        exchange.response(&[], true).await;
        exchange.answer().await;
        assert_eq!(served.picker.in_flight(), 0);
        exchange.close().await;
    }
}

#[tokio::test]
async fn an_empty_body_has_one_answer() {
    let served = picker(config(), 1).await;
    let mut exchange = served.exchange(FULL).await;
    exchange.post("/v1/completions", &[]).await;
    exchange.body("", true).await;
    exchange.pick(false).await;
    assert_eq!(exchange.given_back(true, None).await, ("".into(), 1));
    exchange.close().await;
    served.wait_until_idle().await;
}

#[tokio::test]
async fn trailers_end_a_request_and_a_response() {
    let served = picker(config(), 1).await;
    let mut exchange = served.exchange(FULL).await;
    exchange.post("/v1/completions", &[]).await;
    exchange.body(JSON, false).await;
    exchange.trailers().await;
    exchange.pick(false).await;
    let (body, pieces) = exchange.given_back(true, Some(JSON.len())).await;
    assert_eq!((body, pieces), (JSON.into(), 1));
    let answer = exchange.answer().await;
    assert!(matches!(
        answer.response,
        Some(ResponsePart::RequestTrailers(_))
    ));
    exchange.response(&[], false).await;
    exchange.answer().await;
    assert_eq!(served.picker.in_flight(), 1);
    exchange.response_trailers().await;
    let answer = exchange.answer().await;
    assert!(matches!(
        answer.response,
        Some(ResponsePart::ResponseTrailers(_))
    ));
    assert_eq!(served.picker.in_flight(), 0);
    exchange.close().await;
}

#[tokio::test]
async fn a_buffered_body_carries_the_pick() {
    let served = picker(config(), 2).await;
    for mode in [BodyMode::Buffered, BodyMode::BufferedPartial] {
        let mut exchange = served.exchange((mode, BodyMode::Buffered)).await;
        exchange.post("/v1/completions", &[]).await;
        let answer = exchange.answer().await;
        let Some(ResponsePart::RequestHeaders(common)) = answer.response else {
            panic!("{answer:?}");
        };
        assert_eq!(common.response, Some(Default::default()));
        assert_eq!(answer.dynamic_metadata, None);
        // With trailers to come, the message does not say that it is the last.
        exchange.body(JSON, mode == BodyMode::Buffered).await;
        assert_eq!(exchange.pick(true).await.len(), 2);
        assert_eq!(served.picker.buffered_bytes(), 0);
        if mode == BodyMode::BufferedPartial {
            exchange.trailers().await;
            exchange.answer().await;
        }
        exchange.response(&[], false).await;
        exchange.answer().await;
        exchange.response_body("a", true).await;
        let answer = exchange.answer().await;
        let Some(ResponsePart::ResponseBody(common)) = answer.response else {
            panic!("{answer:?}");
        };
        assert_eq!(common.response, Some(Default::default()));
        exchange.close().await;
        served.wait_until_idle().await;
    }
}

#[tokio::test]
async fn a_streamed_body_is_picked_for_at_its_headers() {
    let served = picker(config(), 1).await;
    let mut exchange = served
        .exchange((BodyMode::Streamed, BodyMode::Streamed))
        .await;
    exchange.post("/v1/completions", &[]).await;
    exchange.pick(false).await;
    for end in [false, true] {
        exchange.body("ab", end).await;
        let answer = exchange.answer().await;
        let Some(ResponsePart::RequestBody(common)) = answer.response else {
            panic!("{answer:?}");
        };
        assert_eq!(common.response, Some(Default::default()));
    }
    exchange.close().await;
    served.wait_until_idle().await;
}

/// The proxy ends the stream once the response's headers are answered, and nothing tells when the
/// response ends.
#[tokio::test]
async fn responses_whose_body_is_hidden() {
    let served = picker(config(), 1).await;
    let modes = (BodyMode::FullDuplexStreamed, BodyMode::None);
    for (path, body, left) in [
        ("/v1/systemone", JSON, 0),
        ("/v1/chat/completions", "{\"max_tokens\":100000}", 1),
    ] {
        let mut exchange = served.exchange(modes).await;
        exchange.post(path, &[]).await;
        exchange.body(body, true).await;
        exchange.pick(false).await;
        exchange.given_back(true, None).await;
        exchange.response(&[], false).await;
        exchange.answer().await;
        exchange.close().await;
        assert_eq!(served.picker.in_flight(), left, "{path}");
    }
    // A short generation counts as ended a moment later, at the next pick.
    let mut exchange = served.exchange(modes).await;
    exchange.post("/v1/completions", &[]).await;
    exchange.body("{\"max_tokens\":2}", true).await;
    exchange.pick(false).await;
    exchange.given_back(true, None).await;
    exchange.response(&[], false).await;
    exchange.answer().await;
    exchange.close().await;
    let ended = async {
        loop {
            let mut other = served.exchange(modes).await;
            other.get("/").await;
            other.pick(false).await;
            other.response(&[], true).await;
            other.answer().await;
            if served.picker.in_flight() == 1 {
                return;
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await;
    ended.expect("a short generation is still charged");
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused() {
    let served = picker(
        Config {
            max_body_bytes: 10,
            ..config()
        },
        1,
    )
    .await;
    for mode in [BodyMode::FullDuplexStreamed, BodyMode::Buffered] {
        let mut exchange = served.exchange((mode, mode)).await;
        exchange.post("/v1/completions", &[]).await;
        if mode == BodyMode::Buffered {
            exchange.answer().await;
            exchange.body("12345678901", true).await;
        } else {
            exchange.body("1234567890", false).await;
            exchange.body("1", false).await;
        }
        let (response, json) = exchange.refusal().await;
        assert_eq!(response.status.unwrap().code, 413);
        assert_eq!(json["error"]["reason"], "body_too_large");
        // Pieces that were on their way already.
        exchange.body("2", true).await;
        exchange.trailers().await;
        exchange.close().await;
        assert_eq!(served.picker.in_flight(), 0);
        assert_eq!(served.picker.buffered_bytes(), 0);
    }
}

#[tokio::test]
async fn all_bodies_together_have_a_bound() {
    let served = picker(
        Config {
            max_buffered_bytes: 10,
            ..config()
        },
        1,
    )
    .await;
    let mut first = served.exchange(FULL).await;
    first.post("/v1/completions", &[]).await;
    first.body("123456", false).await;
    served
        .wait_until(|picker| picker.buffered_bytes() == 6)
        .await;
    let mut second = served.exchange(FULL).await;
    second.post("/v1/completions", &[]).await;
    second.body("12345", false).await;
    let (response, json) = second.refusal().await;
    assert_eq!(response.status.unwrap().code, 503);
    assert_eq!(json["error"]["reason"], "buffers_full");
    first.body("1234", true).await;
    first.pick(false).await;
    assert_eq!(served.picker.buffered_bytes(), 0);
    // A reset gives its room back too.
    let mut third = served.exchange(FULL).await;
    third.post("/v1/completions", &[]).await;
    third.body("1234567890", false).await;
    served
        .wait_until(|picker| picker.buffered_bytes() == 10)
        .await;
    drop(third);
    served
        .wait_until(|picker| picker.buffered_bytes() == 0)
        .await;
}

#[tokio::test]
async fn a_late_body_is_picked_for_by_what_has_come() {
    let served = picker(
        Config {
            body_timeout: Duration::from_millis(50),
            ..config()
        },
        1,
    )
    .await;
    let mut exchange = served.exchange(FULL).await;
    exchange.post("/v1/completions", &[]).await;
    exchange.body("abc", false).await;
    // No end comes, and the answer does.
    exchange.pick(false).await;
    assert_eq!(exchange.given_back(true, Some(3)).await.0, "abc");
    exchange.body("def", false).await;
    assert_eq!(exchange.given_back(true, Some(3)).await.0, "def");
    exchange.body("g", true).await;
    assert_eq!(exchange.given_back(true, None).await.0, "g");
    exchange.close().await;
    // A body of which nothing comes.
    let mut silent = served.exchange(FULL).await;
    silent.post("/v1/completions", &[]).await;
    silent.pick(false).await;
    silent.trailers().await;
    let answer = silent.answer().await;
    assert!(matches!(
        answer.response,
        Some(ResponsePart::RequestTrailers(_))
    ));
    silent.close().await;
    served.wait_until_idle().await;
}

#[tokio::test]
async fn without_a_healthy_endpoint_there_is_503() {
    let none = picker(config(), 0).await;
    let unhealthy = picker(config(), 2).await;
    for n in 1..=2 {
        assert!(unhealthy.picker.set_health(engine(n), Health::Refusing));
    }
    for served in [none, unhealthy] {
        let mut exchange = served.exchange(FULL).await;
        exchange.get("/v1/models").await;
        let (response, json) = exchange.refusal().await;
        assert_eq!(response.status.unwrap().code, 503);
        assert_eq!(json["error"]["reason"], "no_endpoint");
        let set = response.headers.unwrap().set_headers;
        let names: Vec<_> = set.iter().map(|o| o.header.clone().unwrap()).collect();
        assert_eq!(names[0].raw_value, "application/json");
        assert_eq!(
            (&names[1].key[..], &names[1].raw_value[..]),
            (&b"retry-after"[..], &b"1"[..])
        );
        exchange.close().await;
    }
}

#[tokio::test]
async fn a_sheddable_request_gets_429() {
    let router = RouterConfig {
        shed_ms: Some(1),
        ..RouterConfig::default()
    };
    let served = picker(
        Config {
            router,
            sheddable: Some(vec!["batch".to_owned()]),
            ..config()
        },
        1,
    )
    .await;
    let header = "x-gateway-inference-objective";
    let mut first = served.exchange(FULL).await;
    first.post("/v1/completions", &[(header, "batch")]).await;
    first.body(JSON, true).await;
    first.pick(false).await;
    for (objective, sheds) in [("batch", true), ("live", false)] {
        let mut exchange = served.exchange(FULL).await;
        exchange
            .post("/v1/completions", &[(header, objective)])
            .await;
        exchange.body(JSON, true).await;
        if sheds {
            let (response, json) = exchange.refusal().await;
            assert_eq!(response.status.unwrap().code, 429);
            assert_eq!(json["error"]["reason"], "overloaded");
        } else {
            exchange.pick(false).await;
        }
    }
}

#[tokio::test]
async fn a_subset_is_obeyed() {
    let served = picker(config(), 3).await;
    let text = |names: &str| Kind::String(names.to_owned());
    let list = |names: &[&str]| {
        let value = |name: &&str| Value {
            kind: Some(Kind::String(name.to_string())),
        };
        Kind::List(ListValue {
            values: names.iter().map(value).collect(),
        })
    };
    for (hint, expected) in [
        (text("10.0.0.2:8000"), vec!["10.0.0.2:8000"]),
        (text("10.0.0.9:8000, 10.0.0.2:8000"), vec!["10.0.0.2:8000"]),
        (text("10.0.0.3"), vec!["10.0.0.3:8000"]),
        (list(&["10.0.0.1:8000", "nonsense"]), vec!["10.0.0.1:8000"]),
        (list(&["10.0.0.1:8001"]), vec![]),
        (list(&[]), vec![]),
        (text(""), vec![]),
    ] {
        let mut exchange = served.exchange(FULL).await;
        exchange.metadata = Some(metadata(SUBSET_NAMESPACE, SUBSET, hint.clone()));
        exchange.get("/v1/models").await;
        if expected.is_empty() {
            let (response, _) = exchange.refusal().await;
            assert_eq!(response.status.unwrap().code, 503, "{hint:?}");
        } else {
            assert_eq!(exchange.pick(false).await, expected, "{hint:?}");
        }
    }
}

#[tokio::test]
async fn the_endpoint_that_served_is_charged() {
    let served = picker(config(), 2).await;
    let mut exchange = served.exchange(FULL).await;
    exchange.get("/v1/models").await;
    let endpoints = exchange.pick(false).await;
    let requests = |address: &str| {
        let members = served.picker.members();
        let member = members.iter().find(|m| m.address.to_string() == address);
        member.unwrap().requests
    };
    assert_eq!((requests(&endpoints[0]), requests(&endpoints[1])), (1, 0));
    exchange.metadata = Some(metadata(
        NAMESPACE,
        SERVED,
        Kind::String(endpoints[1].clone()),
    ));
    exchange
        .response(&[("x-prelude-queue-ms", "1.5")], false)
        .await;
    exchange.answer().await;
    assert_eq!((requests(&endpoints[0]), requests(&endpoints[1])), (0, 1));
    drop(exchange);
    served.wait_until_idle().await;
}

#[tokio::test]
async fn a_reset_ends_a_request() {
    let served = picker(config(), 1).await;
    for _ in 0..20 {
        let mut exchange = served.exchange(FULL).await;
        exchange.post("/v1/completions", &[]).await;
        exchange.body(JSON, true).await;
        exchange.pick(false).await;
        assert!(served.picker.in_flight() > 0);
        drop(exchange);
    }
    served.wait_until_idle().await;
}

#[tokio::test]
async fn prompts_that_share_a_state_go_together() {
    let served = picker(config(), 4).await;
    let ask = async |state: &str, question: &str| {
        let body = serde_json::json!({"questions": {question: {}}, "state": state}).to_string();
        let mut exchange = served.exchange(FULL).await;
        exchange.post("/v1/systemone", &[]).await;
        exchange.body(body, true).await;
        let first = exchange.pick(false).await.swap_remove(0);
        exchange.given_back(true, None).await;
        exchange.response(&[], true).await;
        exchange.answer().await;
        first
    };
    let mut used = std::collections::BTreeSet::new();
    for n in 0..8 {
        let state = format!("{n}: {}", "the message of a customer ".repeat(40));
        let first = ask(&state, "a").await;
        for question in ["b", "c", "d"] {
            assert_eq!(ask(&state, question).await, first, "{n} {question}");
        }
        used.insert(first);
    }
    assert!(used.len() > 1, "other states go elsewhere: {used:?}");
}

#[tokio::test]
async fn a_server_that_stops_finishes_its_exchanges() {
    let mut served = picker(config(), 1).await;
    let mut exchange = served.exchange(FULL).await;
    exchange.get("/v1/models").await;
    exchange.pick(false).await;
    served.stop();
    // The proxy is told to open no more exchanges, and this one goes on.
    exchange.response(&[], false).await;
    exchange.answer().await;
    assert!(!served.has_ended());
    exchange.response_body("a", true).await;
    exchange.given_back(false, None).await;
    exchange.close().await;
    served.wait_for_end().await;
}

#[tokio::test]
async fn health_has_names() {
    let served = picker(config(), 1).await;
    let processor = "envoy.service.ext_proc.v3.ExternalProcessor";
    for service in ["", "liveness", "readiness", processor] {
        assert_eq!(served.health(service).await.unwrap(), 1, "{service}");
    }
    let unknown = served.health("else").await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    served.picker.drain();
    for (service, expected) in [("", 2), ("liveness", 1), ("readiness", 2), (processor, 2)] {
        assert_eq!(served.health(service).await.unwrap(), expected, "{service}");
    }
}
