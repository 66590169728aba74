//! Small requests that ask for much work: grammars, schemas and templates made to be expensive.

use std::io::Write as _;

use serde_json::{Value, json};

use crate::support::{Answer, Served, connect, request};

#[path = "schemas.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets' library exports it")]
mod schemas;

const MIB: u64 = 1 << 20;

/// Upper bound of the memory that one of them may take over what the idle server holds.
const GROWTH_MAX: u64 = 64 * MIB;

/// The end of a bomb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// 400 `grammar_too_complex`.
    TooComplex,
    /// 400 `grammar_error`: no grammar, or one that cannot be enforced.
    Wrong,
    /// The grammar is cheap, so the request is answered.
    Answer,
    /// Any of these: it depends on the model's vocabulary.
    Any,
}

use End::{Answer as Works, Any, TooComplex, Wrong};

fn regex(text: impl Into<String>) -> Value {
    json!({"structured_outputs": {"regex": text.into()}})
}

fn lark(text: impl Into<String>) -> Value {
    json!({"structured_outputs": {"grammar": text.into()}})
}

fn schema(schema: Value) -> Value {
    json!({"structured_outputs": {"json": schema}})
}

/// `f` of each number below `n`, joined.
fn each(n: usize, separator: &str, f: impl Fn(usize) -> String) -> String {
    (0..n).map(f).collect::<Vec<_>>().join(separator)
}

/// An object of `n` properties.
fn properties(n: usize) -> Value {
    (0..n).map(|i| (format!("p{i}"), json!({}))).collect()
}

fn regexes() -> Vec<(&'static str, End, Value)> {
    let alike = |i| format!("[a-{}]x{i}*y", char::from(b'c' + (i % 20) as u8));
    vec![
        (
            "optional atoms",
            TooComplex,
            regex("a?".repeat(30_000) + &"b".repeat(1_000)),
        ),
        ("a few optional atoms", Works, regex("a?".repeat(200) + "b")),
        ("word classes", TooComplex, regex("\\w".repeat(30_000))),
        (
            "folded classes",
            TooComplex,
            regex("(?i)".to_owned() + &"\\p{Lu}".repeat(10_000)),
        ),
        (
            "different classes",
            TooComplex,
            regex(each(6_000, "", |i| {
                format!("[\\p{{L}}{}]", char::from_u32(0x2190 + i as u32).unwrap())
            })),
        ),
        (
            "nested counts",
            Works,
            regex("((((a{1000}){1000}){1000}){1000}){1000}"),
        ),
        (
            "nested choices",
            Works,
            regex("((((a|b){0,1000}){0,1000}){0,1000}){0,1000}"),
        ),
        ("a long look back", Any, regex(".*a.{60000}")),
        (
            "optional prefixes",
            TooComplex,
            regex(each(6_000, "|", |i| format!("(a{i})?b"))),
        ),
        (
            "counts in a loop",
            TooComplex,
            regex(format!(
                "({})*",
                each(6_000, "|", |i| format!("a{{{}}}", i + 1))
            )),
        ),
        (
            "nested stars",
            Works,
            regex("(".repeat(90) + "a" + &")*".repeat(90)),
        ),
        (
            "overlapping branches",
            Any,
            regex(format!("({})*", each(4_000, "|", alike))),
        ),
        (
            "many words",
            Works,
            regex(each(2_500, "|", |i| format!("word {i} of the list"))),
        ),
    ]
}

fn schemas() -> Vec<(&'static str, End, Value)> {
    let chain = |n: usize, link: &dyn Fn(Value) -> Value| {
        let mut defs: serde_json::Map<String, Value> = (0..n)
            .map(|i| {
                (
                    format!("a{i}"),
                    link(json!({"$ref": format!("#/$defs/a{}", i + 1)})),
                )
            })
            .collect();
        defs.insert(format!("a{n}"), json!({"type": "string"}));
        schema(json!({"$defs": defs, "$ref": "#/$defs/a0"}))
    };
    let words: Vec<String> = (0..2_500)
        .map(|i| format!("word {i} of the list"))
        .collect();
    let short: Vec<String> = (0..3_000).map(|i| format!("i{i}")).collect();
    let branch = |digit| format!("^(a|b(0|1)*{digit}(0|1){{40}}x)$");
    let patterns = |n: usize| -> Value {
        (0..n)
            .map(|i| (format!("^a{i}.*b.*c$"), json!({})))
            .collect()
    };
    let named: Value = [("a?".repeat(20_000), json!({}))].into_iter().collect();
    let either: Vec<Value> = (0..100)
        .map(|i| json!({"required": [format!("p{i}")]}))
        .collect();
    let choices: Vec<Value> = (0..20)
        .map(|_| {
            json!({"anyOf": (0..40).map(|i| json!({"properties": {format!("p{i}"): {"type":
            "string"}}})).collect::<Vec<_>>()})
        })
        .collect();
    vec![
        (
            "a long chain of references",
            Works,
            chain(1_200, &|next| next),
        ),
        (
            "doubling references",
            Works,
            chain(40, &|next| json!({"allOf": [next, next]})),
        ),
        (
            "objects of references",
            Works,
            chain(
                300,
                &|next| json!({"type": "object", "properties": {"x": next, "y": next}}),
            ),
        ),
        (
            "copies of copies",
            TooComplex,
            chain(24, &|next| {
                let mut beside = json!({"type": "object"});
                beside["$ref"] = next["$ref"].clone();
                json!({"type": "object", "properties": {"x": beside, "y": beside}})
            }),
        ),
        (
            "copies for options",
            TooComplex,
            schema(json!({"properties": {"a": {"properties": properties(800)}},
                "anyOf": vec![json!({"required": ["b"]}); 400]})),
        ),
        ("a reference to itself", Wrong, schema(json!({"$ref": "#"}))),
        ("a large enumeration", Works, schema(json!({"enum": words}))),
        (
            "two enumerations",
            TooComplex,
            schema(json!({"allOf": [{"enum": short}, {"enum": short}]})),
        ),
        (
            "many properties",
            TooComplex,
            schema(json!({"properties": properties(6_000)})),
        ),
        (
            "properties in branches",
            TooComplex,
            schema(json!({"type": "object", "properties": properties(100), "anyOf": either})),
        ),
        (
            "branches of branches",
            TooComplex,
            schema(json!({"allOf": choices})),
        ),
        (
            "patterns of names",
            TooComplex,
            schema(json!({"patternProperties": patterns(300)})),
        ),
        (
            "a dear pattern of names",
            TooComplex,
            schema(json!({"properties": {"aaaa": {}}, "patternProperties": named})),
        ),
        (
            "an intersection behind a branch",
            Any,
            schema(json!({"type": "string",
                "allOf": [{"pattern": branch(0)}, {"pattern": branch(1)}]})),
        ),
        (
            "multiples in a range",
            TooComplex,
            schema(
                json!({"type": "integer", "multipleOf": 999_983, "minimum": -1e15,
                "maximum": 1e15}),
            ),
        ),
        (
            "common multiples",
            TooComplex,
            schema(json!({"allOf": [{"type": "integer", "multipleOf": 999_983},
                {"type": "integer", "multipleOf": 999_979}]})),
        ),
        (
            "long arrays of long arrays",
            Any,
            schema(
                json!({"type": "array", "minItems": 999_999, "maxItems": 1_000_000,
                "items": {"type": "array", "maxItems": 1_000_000}}),
            ),
        ),
        (
            "long strings",
            Any,
            schema(json!({"type": "string", "minLength": 3_000_000, "maxLength": 4_000_000})),
        ),
    ]
}

fn grammars() -> Vec<(&'static str, End, Value)> {
    let tree = |n: usize, leaf: &str, link: &dyn Fn(usize) -> String| {
        let rules = each(n, "\n", |i| format!("A{i}: {}", link(i + 1)));
        lark(format!("start: A0\n{rules}\nA{n}: {leaf}"))
    };
    let branches = |k: u8| {
        let branch = |j: usize| {
            let (last, word) = (char::from(b'b' + (j % 24) as u8), char::from(b'a' + k));
            format!("[a-{last}]{word}{j}")
        };
        format!("/x({})/", each(200, "|", branch))
    };
    let wide: Vec<String> = (0..6).map(branches).collect();
    vec![
        (
            "doubling terminals",
            TooComplex,
            tree(60, "\"y\"", &|i| format!("A{i} A{i}")),
        ),
        (
            "doubling options",
            TooComplex,
            tree(15, "/a?/", &|i| format!("A{i} A{i}")),
        ),
        (
            "counted terminals",
            Any,
            tree(15, "/a|ab|b/", &|i| format!("A{i}{{0,1000}}")),
        ),
        (
            "wide intersections",
            TooComplex,
            lark(format!("start: T\nT: {}", wide.join(" & "))),
        ),
        (
            "a search behind a branch",
            Any,
            lark("start: T\nT: /a|b(0|1)*0(0|1){40}x/ & /a|b(0|1)*1(0|1){40}x/"),
        ),
        (
            "negations",
            Any,
            lark("start: T\nT: ~/.*a.{30}/ & ~/.*b.{30}/ & /(a|b)*/"),
        ),
        (
            "recursion",
            Any,
            lark("start: start start start | \"a\" | "),
        ),
        (
            "a deep ambiguous grammar",
            Any,
            lark(format!(
                "start: a0\n{}\na1500: \"y\"",
                each(1_500, "\n", |i| format!("a{i}: a{0} a{0} | \"x\"", i + 1))
            )),
        ),
        (
            "counted rules",
            Any,
            lark("start: a{1,100000}\na: b{1,100000}\nb: \"x\" | \"y\" b"),
        ),
        (
            "many words",
            Any,
            lark(format!(
                "start: {}",
                each(6_000, " | ", |i| format!("\"k{i}\""))
            )),
        ),
        (
            "classes in a schema in a grammar",
            TooComplex,
            lark(format!(
                "start: %json {{\"type\": \"string\", \"pattern\": \"{}\"}}",
                "\\\\p{L}".repeat(5_000)
            )),
        ),
    ]
}

/// Schemas with numbers at edges, in every place where one may come in. A stack that overflows ends
/// the server's process, which the next request notices.
#[test]
fn numbers_at_edges_end_no_process() {
    let server = Served::start(&[]);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut answered = [0_u32; 2];
    for n in 0..1_500 {
        let bytes: Vec<u8> = (0..48)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[3]
            })
            .collect();
        let (path, body) = schemas::request(&bytes);
        let mut stream = connect(&server.address).unwrap();
        stream.write_all(request(path, &body).as_bytes()).unwrap();
        let answer = Answer::read(&mut stream);
        let status = answer.map(|answer| answer.status);
        let status = status.unwrap_or_else(|| panic!("the server is gone after {n}: {body}"));
        assert!(matches!(status, 200 | 400), "{status}: {body}");
        answered[usize::from(status == 200)] += 1;
    }
    // Of both enough for the test to mean something.
    assert!(answered.iter().all(|&n| n > 100), "{answered:?}");
    benign(&server, 1_000);
    server.settle();
}

/// Sends a bomb and says what became of it, and how many bytes the server held more at the peak.
fn set_off(server: &Served, path: &str, fields: &Value) -> (Answer, u64) {
    let before = server.resident();
    server.forget_peak();
    let answer = post(&server.address, path, fields);
    (answer, server.peak().saturating_sub(before))
}

fn post(address: &str, path: &str, fields: &Value) -> Answer {
    let mut body = match path {
        "/v1/chat/completions" => json!({"messages": [{"role": "user", "content": "a"}]}),
        _ => json!({"prompt": "x"}),
    };
    body["max_tokens"] = json!(4);
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    let mut stream = connect(address).unwrap();
    let bytes = request(path, &body.to_string());
    stream.write_all(bytes.as_bytes()).unwrap();
    Answer::read(&mut stream).expect("an answer")
}

/// A benign grammar that the server has not seen is compiled and obeyed, whatever came before it.
fn benign(server: &Served, n: usize) {
    let pattern = json!({"prompt": "x", "max_tokens": 8, "temperature": 0,
        "structured_outputs": {"regex": format!("[a-c]{{2}}{n}")}});
    let answer = server.post("/v1/completions", &pattern.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = answer.json()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(&text[2..], n.to_string());
}

fn check(server: &Served, corpus: &[(&str, End, Value)]) {
    benign(server, 1_000);
    let mut wrong = Vec::new();
    for (n, (name, expected, fields)) in corpus.iter().enumerate() {
        let (answer, grown) = set_off(server, "/v1/completions", fields);
        let end = match answer.status {
            200 => Works,
            _ => match &*answer.reason() {
                // Found while compiling, or while answering.
                "grammar_too_complex" | "constraint_dead_end" => TooComplex,
                "grammar_error" => Wrong,
                _ => panic!("{name}: {answer:?}"),
            },
        };
        if (*expected != Any && end != *expected) || grown > GROWTH_MAX {
            wrong.push(format!("{name}: {end:?}, {} MiB", grown / MIB));
        }
        benign(server, 2_000 + n);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.settle();
}

#[test]
fn regular_expressions() {
    check(&Served::start(&[]), &regexes());
}

#[test]
fn schemas_of_all_shapes() {
    check(&Served::start(&[]), &schemas());
}

#[test]
fn context_free_grammars() {
    check(&Served::start(&[]), &grammars());
}

/// Tools are schemas too, in a grammar of the server's own.
#[test]
fn schemas_of_tools_are_bounded() {
    let server = Served::start(&[]);
    benign(&server, 1_000);
    let tool = |parameters: &Value| {
        json!({"type": "function", "function": {"name": "f",
        "parameters": parameters}})
    };
    let bombs = [
        json!({"type": "object", "properties": properties(6_000)}),
        json!({"type": "object", "properties": {"a": {"type": "string",
            "pattern": "a?".repeat(20_000)}}}),
        json!({"type": "object", "patternProperties": {"a?".repeat(20_000): {}},
            "properties": {"aaaa": {}}}),
        json!({"type": "object", "properties": {"a": {"type": "string",
            "pattern": "\\p{L}".repeat(8_000)}}}),
    ];
    for (n, parameters) in bombs.iter().enumerate() {
        let fields = json!({"tools": [tool(parameters)], "tool_choice": "required"});
        let (answer, grown) = set_off(&server, "/v1/chat/completions", &fields);
        assert_eq!(
            (answer.status, &*answer.reason()),
            (400, "grammar_too_complex"),
            "{n}"
        );
        assert!(grown <= GROWTH_MAX, "{n}: {} MiB", grown / MIB);
        benign(&server, 2_000 + n);
    }
    server.settle();
}

/// While clients send nothing but bombs, another one's grammars are still compiled.
#[test]
fn bombs_at_once_do_not_keep_others_out() {
    let server = Served::start(&[]);
    benign(&server, 1_000);
    std::thread::scope(|scope| {
        for n in 0..6 {
            let bomb = regex(format!("{}{n}", "a?".repeat(30_000)));
            let address = &server.address;
            scope.spawn(move || {
                for _ in 0..5 {
                    let answer = post(address, "/v1/completions", &bomb);
                    assert_eq!(answer.reason(), "grammar_too_complex");
                }
            });
        }
        for n in 0..20 {
            benign(&server, 2_000 + n);
        }
    });
    server.settle();
}
