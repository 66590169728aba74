//! JSON as prompt text: compact, with keys and numbers as the caller wrote them.

/// Rewrites valid JSON without white space between tokens. Numbers keep their spelling; strings
/// are written with as few escapes as JSON allows, so that `\u00e9` reads as `é`.
#[must_use]
pub fn compact_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find(['"', ' ', '\n', '\r', '\t']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with('"') {
            let len = string_len(rest);
            push_string(&mut out, &rest[..len]);
            rest = &rest[len..];
        } else {
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

/// Returns the length of the string literal that `json` starts with, both quotes included.
fn string_len(json: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in json.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    json.len()
}

fn push_string(out: &mut String, literal: &str) {
    if !literal.contains('\\') {
        out.push_str(literal);
        return;
    }
    match serde_json::from_str::<String>(literal) {
        Ok(text) => {
            out.push_str(&serde_json::to_string(&text).expect("a string always has a JSON form"));
        }
        // An escape of half a surrogate pair has no text; it stays as it was written.
        Err(_) => out.push_str(literal),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn json_is_compacted() {
        let check = |json: &str, expected: &str| assert_eq!(compact_json(json), expected);
        check(
            r#" { "b" : 1.50 , "a" : [ 1e5, -0 ] } "#,
            r#"{"b":1.50,"a":[1e5,-0]}"#,
        );
        check(
            r#"{"k":"a b\n \"c\" \u00e9 \/ \\"}"#,
            "{\"k\":\"a b\\n \\\"c\\\" é / \\\\\"}",
        );
        check(r#"["\ud83d\ude00", "\ud83d"]"#, "[\"😀\",\"\\ud83d\"]");
        check(
            "123456789012345678901234567890",
            "123456789012345678901234567890",
        );
        check("[]", "[]");
        check("null", "null");
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(serde_json::Value::String),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::vec((".*", inner), 0..4).prop_map(|entries| {
                    serde_json::Value::Object(entries.into_iter().collect())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn keeps_the_value_and_is_as_short_as_serde_json(value in json()) {
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(compact_json(&pretty), value.to_string());
        }
    }
}
