use prelude_router::{Prefix, Prompt, Root};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn key(path: &str, body: &Value) -> String {
    raw_key(path, body.to_string().as_bytes())
}

fn raw_key(path: &str, body: &[u8]) -> String {
    let mut key = Vec::new();
    Body::new(path, body).write_key(&mut key);
    String::from_utf8(key).unwrap()
}

#[test]
fn keys_follow_the_order_of_prompts() {
    let check = |path: &str, body: Value, expected: &str| {
        assert_eq!(key(path, &body), expected, "{path}");
    };
    check(
        "/v1/systemone",
        json!({"questions": {"a": {"type": "noul"}}, "state": "S\n\"é\"", "instructions": "I"}),
        "I\nS\n\"é\"\n{\"a\":{\"type\":\"noul\"}}\n",
    );
    check("/v1/decide", json!({"state": {"a": 1}}), "{\"a\":1}\n");
    check(
        "/v1/decisions",
        json!({"questions": [1], "input": [{"role": "user", "content": [{"text": "A"}, {"text": "B"}]}]}),
        "A\nB\n[1]\n",
    );
    check("/v1/decisions", json!({"input": "A"}), "A\n");
    check(
        "/v1/rerank",
        json!({"documents": ["D1", {"text": "D2"}], "query": "Q", "instruct": "I"}),
        "I\nQ\nD1\nD2\n",
    );
    check("/rerank", json!({"texts": ["T"], "query": "Q"}), "Q\nT\n");
    check(
        "/score",
        json!({"items": ["A", "B"], "query": "Q"}),
        "Q\nA\nB\n",
    );
    check(
        "/v1/score",
        json!({"items": ["A"], "query": "Q", "item_first": true}),
        "A\nQ\n",
    );
    check(
        "/v1/score",
        json!({"documents": ["D"], "queries": "Q", "instruction": "I"}),
        "I\nQ\nD\n",
    );
    check("/score", json!({"text_2": "D", "text_1": ["Q"]}), "Q\nD\n");
    check(
        "/classify",
        json!({"template": "Say\n{{ text }}\nWhich?", "input": ["A", "B"]}),
        "Say\nA\nB\n",
    );
    check("/v1/embeddings", json!({"input": [1, 2, 3]}), "[1,2,3]\n");
    check(
        "/v1/completions",
        json!({"prompt": ["P", "R"], "max_tokens": 3}),
        "P\nR\n",
    );
    check(
        "/team/v1/chat/completions?x=1",
        json!({
            "tools": [{"name": "f"}],
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": [{"type": "text", "text": "U"}]},
                {"role": "assistant", "content": null, "tool_calls": [1]},
            ],
        }),
        "system\nS\n[{\"name\":\"f\"}]\nuser\nU\nassistant\n[1]\n",
    );
    check("/elsewhere", json!({"state": "S"}), "{\"state\":\"S\"}");
}

#[test]
fn a_body_that_is_no_json_is_its_own_key() {
    for body in [
        "",
        "{",
        "[1]",
        "{\"state\": \"a\"",
        "{\"model\":1,\"model\":2}",
        "\u{0}",
    ] {
        let read = Body::new("/v1/systemone", body.as_bytes());
        assert_eq!((read.model(), read.user()), (None, None), "{body}");
        assert_eq!(raw_key("/v1/systemone", body.as_bytes()), body);
    }
    // Bytes that are no text pass as well.
    let mut key = Vec::new();
    Body::new("/v1/systemone", b"\xff\xfe").write_key(&mut key);
    assert_eq!(key, b"\xff\xfe");
}

#[test]
fn fields_beside_the_key() {
    let body = json!({
        "model": "a\"b", "cache_salt": "s", "user": "u", "prompt": "p", "max_tokens": 7,
    });
    let text = body.to_string();
    let read = Body::new("/v1/completions", text.as_bytes());
    assert_eq!(read.model().as_deref(), Some("a\"b"));
    assert_eq!(read.cache_salt().as_deref(), Some("s"));
    assert_eq!(read.user(), Some(user_number("\"u\"")));
    assert_eq!(read.max_output_tokens(), Some(7));
    let most = |path, text: &str| Body::new(path, text.as_bytes()).max_output_tokens();
    assert_eq!(most("/v1/completions", "{}"), Some(16));
    assert_eq!(most("/v1/chat/completions", "{}"), None);
    assert_eq!(
        most(
            "/v1/chat/completions",
            r#"{"max_tokens":1,"max_completion_tokens":2}"#
        ),
        Some(2)
    );
    assert_eq!(most("/v1/rerank", r#"{"max_tokens":9}"#), Some(1));
    assert_eq!(most("/v1/chat/completions", r#"{"max_tokens":-3}"#), None);
}

/// Returns the hashes of prefixes, in granules of 32 bytes.
fn hashes(path: &str, body: &str) -> Vec<u64> {
    let mut hasher = ByteHasher::new(Root::new("m", None, "bytes", None), 8);
    Body::new(path, body.as_bytes()).write_key(&mut hasher);
    hasher.finish().hashes().to_vec()
}

/// Makes a body of what prompts share and of what only one has.
type MakeBody = fn(&str, &str) -> Value;

/// The path of an endpoint, and a body with something that prompts share and something else.
fn bodies() -> [(&'static str, MakeBody); 8] {
    [
        (
            "/v1/systemone",
            |shared, own| json!({"questions": {own: {"type": "noul"}}, "state": shared}),
        ),
        (
            "/v1/decisions",
            |shared, own| json!({"questions": [own], "input": shared}),
        ),
        (
            "/classify",
            |shared, own| json!({"input": own, "template": format!("{shared}{{{{ text }}}}")}),
        ),
        (
            "/v1/rerank",
            |shared, own| json!({"documents": [own], "query": shared}),
        ),
        (
            "/v1/score",
            |shared, own| json!({"items": [own], "query": shared}),
        ),
        (
            "/v1/embeddings",
            |shared, own| json!({"input": [shared, own]}),
        ),
        (
            "/v1/completions",
            |shared, own| json!({"prompt": format!("{shared}{own}")}),
        ),
        ("/v1/chat/completions", |shared, own| {
            json!({"messages": [
                {"role": "system", "content": shared}, {"role": "user", "content": own},
            ]})
        }),
    ]
}

proptest! {
    /// Escapes stand for what `serde_json` says, in each of the two ways to write a string.
    #[test]
    fn strings_are_decoded(text in ".{0,40}", ascii in any::<bool>()) {
        let mut json = serde_json::to_string(&text).unwrap();
        if ascii {
            let escape = |c: char| -> String {
                match c.is_ascii() {
                    true => c.to_string(),
                    false => c.encode_utf16(&mut [0; 2]).iter().map(|u| format!("\\u{u:04x}")).collect(),
                }
            };
            json = json.chars().map(escape).collect();
        }
        prop_assert_eq!(&serde_json::from_str::<String>(&json).unwrap(), &text);
        let raw = raw_key("/v1/completions", format!("{{\"prompt\":{json}}}").as_bytes());
        prop_assert_eq!(raw, format!("{text}\n"));
    }

    /// The keys of two prompts share exactly as much of their beginnings as the prompts do.
    #[test]
    fn shared_beginnings_are_shared(
        shared in "[ab{} \"\\\\\n\u{e9}]{40,200}", own in "[xy]{33,40}", other in "[vw]{33,40}",
    ) {
        // `{{` ends the head of a template.
        let shared = shared.replace("{{", "{ ");
        let shared = shared.trim_end_matches('{');
        for (path, body) in bodies() {
            let [a, b] = [&own, &other].map(|own| hashes(path, &body(shared, own).to_string()));
            let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            prop_assert!(same >= shared.len() / 32, "{path}: {same}");
            prop_assert!(same < a.len() && same < b.len(), "{path}");
        }
    }

    /// Nothing that comes as a body is refused, and its key is what its prefix is made of.
    #[test]
    fn any_body_has_a_key(mut bytes in prop::collection::vec(any::<u8>(), 0..60), cut in 0usize..400) {
        let whole = bodies()[7].1("shared", "own").to_string();
        let cut = &whole.as_bytes()[..cut.min(whole.len())];
        for path in ["/v1/chat/completions", "/score", "/"] {
            for body in [&bytes[..], cut] {
                let mut key = Vec::new();
                Body::new(path, body).write_key(&mut key);
                let mut hasher = ByteHasher::new(Root(1), 2);
                Body::new(path, body).write_key(&mut hasher);
                prop_assert_eq!(hasher.finish(), Prefix::new(Root(1), Prompt::Bytes(&key), 2));
            }
        }
        bytes.insert(0, b'{');
        let _ = Body::new("/classify", &bytes).max_output_tokens();
    }
}
