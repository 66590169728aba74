//! Bodies made to be expensive or broken, and bodies that are small on the wire and large in memory.

use serde_json::{Value, json};

use super::bodies::job;
use crate::load::{Job, NUMBER};

/// Bytes of a swollen body: a little less than a server takes.
const SWOLLEN_BYTES: usize = 9_500_000;

/// Returns one body of each kind; each has a place for its number, so that no remembered refusal
/// makes it cheap.
pub(super) fn bodies(model: &str) -> Vec<Job> {
    let completion = "/v1/completions";
    let constrained = |constraint: Value| {
        let body = json!({"model": model, "prompt": "x", "max_tokens": 4,
            "structured_outputs": constraint});
        job(completion, body.to_string())
    };
    let properties: Value = (0..6_000).map(|i| (format!("p{i}"), json!({}))).collect();
    let values: Vec<String> = (0..3_000).map(|i| format!("i{i}{NUMBER}")).collect();
    let text = |unit: &str| unit.repeat(2_000_000 / unit.len()) + NUMBER;
    let optional = format!("{NUMBER}{}{}", "a?".repeat(30_000), "b".repeat(1_000));
    let nested = format!("{NUMBER}((((a|b){{0,1000}}){{0,1000}}){{0,1000}}){{0,1000}}");
    let grammar = format!("start: A{{1,100000}} \"{NUMBER}\"\nA: /(a|ab|b){{1,1000}}/");
    let marks = json!({"model": model, "prompt": text("a\u{323}\u{301}"), "max_tokens": 1});
    let joiners = json!({"input": text("\u{200d}")});
    let brackets = format!("{}{NUMBER}{}", "[".repeat(50_000), "]".repeat(50_000));
    let infinite =
        format!("{{\"model\": \"{model}\", \"prompt\": \"{NUMBER}\", \"max_tokens\": 1e400}}");
    let cut = format!(
        "{{\"model\": \"{model}\", \"messages\": [{{\"role\": \"user\", \"content\": \"{NUMBER}"
    );
    let many = json!({"model": model, "input": vec![NUMBER; 5_000]});
    vec![
        constrained(json!({"regex": optional})),
        constrained(json!({"regex": nested})),
        constrained(json!({"regex": format!("{NUMBER}{}", "\\w".repeat(30_000))})),
        constrained(json!({"json": {"properties": properties, "title": NUMBER}})),
        constrained(json!({"json": {"allOf": [{"enum": values}, {"enum": values}]}})),
        constrained(json!({"grammar": grammar})),
        job(completion, marks.to_string()),
        job("/classify", joiners.to_string()),
        job(completion, brackets),
        job(completion, infinite),
        job("/v1/chat/completions", cut),
        job("/v1/embeddings", many.to_string()),
    ]
}

/// Returns the bodies of this name, or one of each, that become trees of values.
pub(super) fn swollen(name: &str) -> Vec<Job> {
    let list = |value: &str| {
        let count = SWOLLEN_BYTES / (value.len() + 1);
        format!("[{}]", vec![value; count].join(","))
    };
    let messages = r#""messages": [{"role": "user", "content": "a"}], "max_tokens": 1"#;
    let tools = || {
        let objects = list(r#"{"":0}"#);
        format!(
            r#"{messages}, "tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"x": {objects}}}}}}}]"#
        )
    };
    let body = |name: &str| match name {
        "tools" | "tokenize" => tools(),
        "forced" => tools() + r#", "tool_choice": "required""#,
        "schema" => {
            let values = (0..SWOLLEN_BYTES / 11).map(|i| format!("\"e{i:07}\""));
            let values = values.collect::<Vec<_>>().join(",");
            format!(
                r#"{messages}, "response_format": {{"type": "json_schema", "json_schema": {{"name": "n", "schema": {{"enum": [{values}]}}}}}}"#
            )
        }
        "member" => format!(
            r#""messages": [{{"role": "user", "content": "a", "x": {}}}], "max_tokens": 1"#,
            list(r#"{"":0}"#)
        ),
        "numbers" => format!(r#"{messages}, "documents": {}"#, list("0")),
        _ => format!(r#""messages": {}"#, list("0")),
    };
    const NAMES: [&str; 7] = [
        "tools", "tokenize", "forced", "schema", "member", "numbers", "messages",
    ];
    let names = NAMES.into_iter().filter(|of| name == "all" || *of == name);
    let path = |name: &str| match name {
        "tokenize" => "/tokenize",
        _ => "/v1/chat/completions",
    };
    let jobs = names.map(|name| job(path(name), format!("{{{}}}", body(name))));
    jobs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Jobs;

    #[test]
    fn every_body_has_a_place_for_its_number() {
        let jobs = bodies("m");
        let count = jobs.len();
        assert_eq!(Jobs::numbered(jobs, 1).first(usize::MAX).len(), count);
    }

    #[test]
    fn swollen_bodies_are_json_of_their_size() {
        let all = swollen("all");
        assert_eq!(all.len(), 7);
        for job in all {
            let size = job.body.len();
            assert!(
                (SWOLLEN_BYTES / 100 * 99..10 << 20).contains(&size),
                "{size}"
            );
            let read = serde_json::from_slice::<serde::de::IgnoredAny>(&job.body);
            assert!(read.is_ok(), "{read:?}");
        }
    }
}
