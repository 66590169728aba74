use serde_json::json;

use super::*;

fn render(source: &str, variables: Json) -> Result<String, TemplateError> {
    let Json::Object(kwargs) = variables else {
        panic!("variables are an object")
    };
    let tokens = [("bos_token", "<s>")];
    ChatTemplate::new(source, tokens)?.render(&ChatInputs {
        messages: &[json!({"role": "user", "content": "hi"})],
        tools: None,
        documents: None,
        add_generation_prompt: true,
        kwargs: &kwargs,
    })
}

fn check(source: &str, variables: Json, expected: &str) {
    assert_eq!(
        render(source, variables).as_deref(),
        Ok(expected),
        "{source}"
    );
}

#[test]
fn golden_renderings_match_byte_for_byte() {
    let golden: Json = serde_json::from_str(include_str!("../../tests/data/chat.json")).unwrap();
    let templates = golden["templates"].as_object().unwrap();
    let mut compared = 0;
    for (name, source) in templates {
        let template = ChatTemplate::new(source.as_str().unwrap(), []).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let kwargs = ["enable_thinking"]
                .into_iter()
                .filter_map(|key| Some((key.to_owned(), case.get(key)?.clone())))
                .collect();
            let rendered = template.render(&ChatInputs {
                messages: case["messages"].as_array().unwrap(),
                tools: case.get("tools").map(|t| t.as_array().unwrap().as_slice()),
                documents: None,
                add_generation_prompt: case.get("add_generation_prompt") == Some(&json!(true)),
                kwargs: &kwargs,
            });
            match case["rendered"].get(name) {
                Some(text) => {
                    assert_eq!(
                        rendered.as_deref(),
                        Ok(text.as_str().unwrap()),
                        "{}",
                        case["name"]
                    );
                    compared += 1;
                }
                // The reference failed on this case too.
                None => assert!(rendered.is_err(), "{}", case["name"]),
            }
        }
    }
    assert!(compared >= 35, "only {compared} renderings compared");
}

#[test]
fn golden_renderings_encode_to_the_recorded_ids() {
    let golden: Json = serde_json::from_str(include_str!("../../tests/data/chat.json")).unwrap();
    let tokenizer = crate::testing::DEMO_TOKENIZER;
    let tokenizer = fasttoken::Tokenizer::from_bytes(tokenizer).unwrap();
    let mut compared = 0;
    for case in golden["cases"].as_array().unwrap() {
        for (name, text) in case["rendered"].as_object().unwrap() {
            // The template writes the special tokens; the tokenizer must not add its own.
            let ids = tokenizer.encode(text.as_str().unwrap(), false);
            assert_eq!(json!(ids), case["ids"][name], "{}", case["name"]);
            compared += 1;
        }
    }
    assert!(compared >= 35, "only {compared} encodings compared");
}

#[test]
fn golden_copy_is_current() {
    // The crate is published without the workspace's golden folder.
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/chat.json");
    if let Ok(original) = std::fs::read_to_string(original) {
        assert_eq!(original, include_str!("../../tests/data/chat.json"));
    }
}

#[test]
fn python_idioms() {
    check(
        "{{ 'a' in x }}{{ 'b' in x }}",
        json!({"x": {"a": 1}}),
        "TrueFalse",
    );
    check(
        "{{ x[::-1][0] }}{{ x[-1] }}{{ x[1:]|length }}",
        json!({"x": [1, 2, 3]}),
        "332",
    );
    check(
        "{{ x.split('</think>')[-1].lstrip('\\n') }}",
        json!({"x": "a</think>\n\nb"}),
        "b",
    );
    check(
        "{{ x.startswith('a') and x.endswith('c') }}",
        json!({"x": "abc"}),
        "True",
    );
    check(
        "{{ x.upper() }}{{ x.strip() }}{{ x|trim }}",
        json!({"x": " a "}),
        " A aa",
    );
    check(
        "{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}",
        json!({"x": {"b": 1, "a": null}}),
        "b=1;a=None;",
    );
    check(
        "{{ x.get('a') }}{{ x.get('z', 'd') }}",
        json!({"x": {"a": 1}}),
        "1d",
    );
    check(
        "{{ x }} {{ y }} {{ z }}",
        json!({"x": 1.0, "y": true, "z": ["a'b", {"k": null}]}),
        "1.0 True [\"a'b\", {'k': None}]",
    );
    check(
        "{{ absent }}{{ absent is defined }}{{ x.absent is none }}",
        json!({"x": {}}),
        "FalseFalse",
    );
    check(
        "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
        json!({}),
        "3",
    );
    check(
        "{% if tools is none and documents is none %}{{ bos_token }}{% endif %}",
        json!({}),
        "<s>",
    );
    check(
        "{{ messages[0]['content'] + '!' }}{% if add_generation_prompt %}>{% endif %}\n",
        json!({}),
        "hi!>",
    );
    check(
        "a\n  {% if true %}\nb\n  {% endif %}\nc",
        json!({}),
        "a\nb\nc",
    );
    check(
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        json!({}),
        "01",
    );
}

#[test]
fn tojson_is_python_json_dumps() {
    let value = json!({"z": [1, 1.5, 1.0, 1e22, 1e-7, -0.0], "a": "<é> & 'q' \"d\" \u{1}\u{7f}\n", "n": null, "b": true});
    let expected = "{\"z\": [1, 1.5, 1.0, 1e+22, 1e-07, -0.0], \"a\": \"<é> & 'q' \\\"d\\\" \\u0001\u{7f}\\n\", \"n\": null, \"b\": true}";
    check("{{ x|tojson }}", json!({"x": value}), expected);
    check(
        "{{ x|tojson(indent=2) }}",
        json!({"x": {"a": [1, {}], "b": []}}),
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}",
    );
    check(
        "{{ x|tojson(sort_keys=true) }}",
        json!({"x": {"b": 1, "a": 2}}),
        "{\"a\": 2, \"b\": 1}",
    );
    check(
        "{{ x|tojson }}",
        json!({"x": [u64::MAX, i64::MIN, 123456789012345.6, 1e16, 0.0001]}),
        "[18446744073709551615, -9223372036854775808, 123456789012345.6, 1e+16, 0.0001]",
    );
}

#[test]
fn kwargs_cannot_replace_the_messages() {
    check(
        "{{ messages[0].content }}",
        json!({"messages": [{"content": "forged"}]}),
        "hi",
    );
}

#[test]
fn failures_are_typed() {
    let check = |source: &str, expected: TemplateError| {
        assert_eq!(
            render(source, json!({"x": null})),
            Err(expected),
            "{source}"
        );
    };
    check(
        "\n{{ raise_exception('roles must alternate') }}",
        TemplateError::Raised("roles must alternate".into()),
    );
    check(
        "\n\n{{ 'a' + x }}",
        TemplateError::Failed {
            line: 3,
            what: "tried to use + operator on unsupported types string and none".into(),
        },
    );
    check(
        "{{ absent.field }}",
        TemplateError::Failed {
            line: 1,
            what: "undefined value".into(),
        },
    );
    for (source, what) in [
        (
            "\n{{ 'a'.rstrips() }}",
            "unknown method `rstrips` of a string",
        ),
        (
            "\n{{ [].pop() }}",
            "`pop` changes a list: templates change nothing",
        ),
        ("\n{{ x.get('a') }}", "unknown method `get` of none"),
        (
            "\n{{ x|nosuch }}",
            "unknown filter: filter nosuch is unknown",
        ),
        (
            "\n{{ x is nosuch }}",
            "unknown test: test nosuch is unknown",
        ),
        ("\n{{ nosuch() }}", "unknown function: nosuch is unknown"),
        ("\n{{ 'a'.split(1) }}", "argument `sep` is no string"),
        ("\n{{ 'a'.split(by='b') }}", "there is no argument `by`"),
        (
            "\n{{ 'secret'.index('z') }}",
            "`index` of a text that is not there",
        ),
        (
            "\n{{ '%s' % () }}",
            "a format has more places than arguments",
        ),
        (
            "\n{{ '%99999999s' % 1 }}",
            "a format has a width of more than four digits",
        ),
        ("\n{{ 'a'.ljust(10 ** 9) }}", "a width is more than 10000"),
        ("\n{{ nothing|tojson }}", "`tojson` of an undefined value"),
        (
            "{% set t = namespace(a='aaaaaaaaa') %}{% for i in range(9) %}\n\
             {% set t.a = t.a|join(t.a) %}{% endfor %}",
            "`join` gives more than 67108864 bytes",
        ),
        (
            "{% set t = namespace(a=['a']) %}{% for i in range(40) %}\
             {% set t.a = [t.a, t.a] %}{% endfor %}\n{{ t.a }}",
            "`str` gives more than 67108864 bytes",
        ),
        (
            "{% set t = namespace(a=['a']) %}{% for i in range(40) %}\
             {% set t.a = [t.a, t.a] %}{% endfor %}\n{{ t.a|tojson }}",
            "`tojson` gives more than 67108864 bytes",
        ),
    ] {
        let what = what.to_owned();
        check(source, TemplateError::Failed { line: 2, what });
    }
    check(
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        TemplateError::TooCostly,
    );
    assert!(matches!(
        ChatTemplate::new("a\n{% if %}", []),
        Err(TemplateError::Syntax { line: 2, .. })
    ));
}

#[test]
fn strftime_now_prints_the_year() {
    let year = render("{{ strftime_now('%Y') }}", json!({})).unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2025, "{year}");
}
