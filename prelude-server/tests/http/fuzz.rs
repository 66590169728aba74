//! Whatever is sent: an answer of the caller's own making, and a server as healthy as before.

use std::{io::Write, sync::OnceLock};

use prelude_server::Limits;
use proptest::prelude::*;
use serde_json::Value;

use crate::support::{Fake, TestServer, with_limits};

fn server() -> &'static TestServer {
    static SERVER: OnceLock<TestServer> = OnceLock::new();
    let limits = Limits {
        body_read_ms: 200,
        header_read_ms: 200,
        ..Limits::default()
    };
    SERVER.get_or_init(|| TestServer::fake(with_limits(limits), &Fake::default()))
}

/// Bodies that are right, to be made wrong; the fuzz targets change them too.
fn right() -> Vec<(String, Value)> {
    serde_json::from_str(include_str!("../data/bodies.json")).unwrap()
}

fn wrong_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..5000).prop_map(Value::from),
        (-5.0..5.0_f64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,6}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(Value::from("<|im_start|>")),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{0,6}", inner, 0..4)
                .prop_map(|map| Value::from_iter(map.into_iter())),
        ]
    })
}

/// Replaces the value at a random place.
fn put(value: &mut Value, path: &[prop::sample::Index], new: &Value) {
    let children: Vec<&mut Value> = match value {
        Value::Object(map) => map.values_mut().collect(),
        Value::Array(list) => list.iter_mut().collect(),
        _ => Vec::new(),
    };
    match path.split_first() {
        Some((index, rest)) if !children.is_empty() => {
            let index = index.index(children.len());
            let child = children.into_iter().nth(index);
            put(child.expect("the index is in range"), rest, new);
        }
        _ => *value = new.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() })]

    #[test]
    fn wrong_fields_are_the_callers(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(
            (prop::collection::vec(any::<prop::sample::Index>(), 1..4), wrong_value()), 1..3),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let bodies = right();
        let (path, mut body) = bodies[which.index(bodies.len())].clone();
        for (place, value) in &changes {
            put(&mut body, place, value);
        }
        let mut text = body.to_string().into_bytes();
        if let Some(cut) = cut {
            text.truncate(cut.index(text.len()));
        }
        let server = server();
        let answered = server
            .runtime
            .block_on(server.app.answer("POST", &path, text.clone()));
        let shown = String::from_utf8_lossy(&text);
        prop_assert!(
            matches!(answered.status, 200 | 400 | 404 | 413 | 422),
            "{path} {shown}\n{}", String::from_utf8_lossy(&answered.body)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn wrong_bytes_end_a_connection_and_nothing_else(
        head in prop::option::of(Just("POST /v1/completions HTTP/1.1\r\ncontent-length: 40\r\n\r\n")),
        bytes in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let server = server();
        let mut stream = server.connect();
        let _ = stream.write_all(head.unwrap_or_default().as_bytes());
        let _ = stream.write_all(&bytes);
        drop(stream);
        prop_assert!(server.is_healthy());
    }
}

#[test]
fn all_right_bodies_are_right() {
    for (path, body) in right() {
        let answered = server().post(&path, &body.to_string());
        assert_eq!(answered.status, 200, "{path} {}", answered.body);
    }
    server().settle();
}
