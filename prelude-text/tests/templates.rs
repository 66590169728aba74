//! Templates in the manner of published ones, rendered as Jinja2 does where transformers sets it up.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use prelude_text::template::{ChatInputs, ChatTemplate};
use serde_json::{Map, Value, json};

/// Made by `golden/tools/make_template_corpus.py`.
fn corpus() -> Value {
    serde_json::from_str(include_str!("data/templates.json")).unwrap()
}

/// Where this renders something else on purpose: the construct, the reason, and what is rendered.
const DIFFERENT: &[(&str, &str, Option<&str>)] = &[
    (
        "{{ 2 ** -1 }}",
        "minijinja's powers are those of whole numbers",
        None,
    ),
    ("{{ +n }}", "minijinja's grammar has no sign +", None),
    (
        "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}",
        "minijinja's macros take the arguments that they name",
        None,
    ),
    (
        "{% for x in no %}{% endfor %}",
        "minijinja walks over none as over nothing",
        Some(""),
    ),
    (
        "{{ range(2) }}",
        "a range prints as the list that it is",
        Some("[0, 1]"),
    ),
];

fn compiled(corpus: &Value, source: &str) -> Result<ChatTemplate, String> {
    let tokens = corpus["tokens"].as_object().unwrap();
    let tokens = tokens
        .iter()
        .map(|(n, t)| (n.as_str(), t.as_str().unwrap()));
    ChatTemplate::new(source, tokens).map_err(|e| e.to_string())
}

fn rendered(
    template: &ChatTemplate,
    case: &Value,
    kwargs: &Map<String, Value>,
) -> Result<String, String> {
    let list = |name: &str| case.get(name).map(|l| l.as_array().unwrap().as_slice());
    let inputs = ChatInputs {
        messages: list("messages").unwrap_or_default(),
        tools: list("tools"),
        documents: list("documents"),
        add_generation_prompt: case.get("add_generation_prompt") == Some(&json!(true)),
        kwargs,
    };
    template.render(&inputs).map_err(|e| e.to_string())
}

/// Adds a line to `wrong` if the two differ.
fn compare(what: &str, found: Result<String, String>, expected: &Value, wrong: &mut Vec<String>) {
    if found.as_deref().ok() != expected.as_str() {
        wrong.push(format!("{what}\n  here {found:?}\n  not  {expected}"));
    }
}

#[test]
fn constructs_render_as_with_jinja2() {
    let corpus = corpus();
    let variables = corpus["variables"].as_object().unwrap();
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for construct in corpus["constructs"].as_array().unwrap() {
        let source = construct["source"].as_str().unwrap();
        let template = compiled(&corpus, source);
        let found = template.and_then(|template| rendered(&template, &json!({}), variables));
        match DIFFERENT.iter().find(|(known, ..)| *known == source) {
            Some((.., expected)) => {
                assert_eq!(found.as_deref().ok(), *expected, "{source}");
                assert_ne!(*expected, construct["rendered"].as_str(), "{source}");
            }
            None => compare(source, found, &construct["rendered"], &mut wrong),
        }
        compared += 1;
    }
    assert!(
        wrong.is_empty(),
        "{} of {compared}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(compared > 500, "{compared}");
}

#[test]
fn templates_render_as_with_jinja2() {
    let corpus = corpus();
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for template in corpus["templates"].as_array().unwrap() {
        let (name, source) = (&template["name"], template["source"].as_str().unwrap());
        let compiled = compiled(&corpus, source);
        let cases = corpus["cases"].as_array().unwrap().iter();
        for (case, expected) in cases.zip(template["rendered"].as_array().unwrap()) {
            let kwargs = case.as_object().unwrap().iter();
            let kwargs = kwargs.filter(|(key, _)| *key == "enable_thinking");
            let kwargs = kwargs
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            let found = match &compiled {
                Ok(template) => rendered(template, case, &kwargs),
                Err(error) => Err(error.clone()),
            };
            compare(
                &format!("{name}, {}", case["name"]),
                found,
                expected,
                &mut wrong,
            );
            compared += 1;
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {compared}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(compared > 400, "{compared}");
}
