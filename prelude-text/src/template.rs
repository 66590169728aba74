//! Chat templates: messages to prompt text, as the model's own template says.
//!
//! Published templates are written for Jinja2 under Python. This module renders them with minijinja
//! and Python's conventions: block trimming, Python string methods, `None`/`True` and float spellings,
//! `raise_exception`, `strftime_now` (UTC), and a `tojson` that writes what `json.dumps` with
//! `ensure_ascii=False` writes. The work a template may do is bounded by fuel.

use std::{
    fmt::Write as _,
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use minijinja::{
    Environment, Error, ErrorKind, Output, State, Value, escape_formatter,
    value::{Kwargs, ValueKind},
};
use serde_json::{Map, Value as Json};
use thiserror::Error as ThisError;

mod content;

/// The number of instructions that a rendering may execute. All renderings of a template that comes
/// with a request may together execute about as many, since the request decides how many renderings
/// there are. A long chat (10,000 messages through a template of a hundred instructions) needs a
/// tenth of them; executing all of them takes well under a second.
const FUEL: u64 = 10_000_000;

pub(crate) const NAME: &str = "template";

/// A compiled chat template together with the special tokens it may print.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    /// The bounds of a template that came with a request.
    bounds: Option<Bounds>,
    /// True if the template reads contents of messages as lists of parts alone.
    reads_parts: bool,
}

/// The bounds of a template that came with a request.
#[derive(Debug)]
struct Bounds {
    /// Upper bound of the bytes of one rendering.
    bytes: usize,
    /// The number of instructions that all renderings have executed.
    spent: AtomicU64,
}

/// The input of a chat template.
#[derive(Clone, Copy, Debug)]
pub struct ChatInputs<'a> {
    /// The messages, as JSON objects.
    pub messages: &'a [Json],
    /// The functions that the model may call; the template sees `none` if there are none.
    pub tools: Option<&'a [Json]>,
    /// The documents for retrieval templates; the template sees `none` if there are none.
    pub documents: Option<&'a [Json]>,
    /// True if the prompt ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`, which cannot replace the other fields.
    pub kwargs: &'a Map<String, Json>,
}

/// The reason why a template gave no prompt.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is not a template.
    #[error("the chat template does not parse: line {line}: {what}")]
    Syntax {
        /// Line of the source, from 1.
        line: usize,
        /// The problem in this line.
        what: String,
    },
    /// The template itself refused the messages.
    #[error("the chat template refused the messages: {0}")]
    Raised(String),
    /// The template could not cope with the messages.
    #[error("the chat template failed on these messages: line {line}: {what}")]
    Failed {
        /// Line of the source, from 1.
        line: usize,
        /// The problem in this line.
        what: String,
    },
    /// The template ran out of fuel.
    #[error("the chat template did not finish within its limit of {FUEL} instructions")]
    TooCostly,
    /// The template printed too much.
    #[error("the chat template prints more than {0} bytes")]
    TooLong(usize),
}

/// The message of `raise_exception`, which is found in the error's chain of causes.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles `source`. `special_tokens` (`bos_token`, `eos_token`, ..) become variables.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new<'a>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, TemplateError> {
        let mut env = environment(FUEL);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.set_formatter(format_as_python);
        env.add_filter("tojson", tojson);
        env.add_filter("string", |value: &Value| python_str(value));
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", strftime_now);
        for (name, token) in special_tokens {
            env.add_global(name.to_owned(), Value::from(token));
        }
        add_template(&mut env, source)?;
        Ok(Self {
            env,
            source: source.to_owned(),
            bounds: None,
            reads_parts: false,
        }
        .with_content_form())
    }

    /// Compiles a template of one request for the same model. The template may print at most
    /// `max_bytes` in one rendering, and its renderings share one limit of instructions.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn replaced(&self, source: &str, max_bytes: usize) -> Result<Self, TemplateError> {
        let mut env = self.env.clone();
        add_template(&mut env, source)?;
        Ok(Self {
            env,
            source: source.to_owned(),
            bounds: Some(Bounds {
                bytes: max_bytes,
                spent: AtomicU64::new(0),
            }),
            reads_parts: false,
        }
        .with_content_form())
    }

    fn with_content_form(mut self) -> Self {
        self.reads_parts = self.needs_parts();
        self
    }

    /// Returns the template's source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a prompt. Special tokens in it are text until it is encoded. Contents that are strings
    /// are shown to the template as lists of one part where it reads nothing else.
    ///
    /// # Errors
    /// [`TemplateError`], never [`TemplateError::Syntax`]. Its message names the template's line,
    /// and nothing of the messages except what the template itself raised.
    pub fn render(&self, inputs: &ChatInputs<'_>) -> Result<String, TemplateError> {
        // The reference passes `None` for absent tools and documents, and templates ask both
        // `if tools` and `if tools is not none`.
        let or_none = |list: Option<&[Json]>| match list {
            Some(list) => Value::from_serialize(list),
            None => Value::from(()),
        };
        let messages = match self.reads_parts {
            true => Value::from_serialize(content::with_parts(inputs.messages)),
            false => Value::from_serialize(inputs.messages),
        };
        let fixed = [
            ("messages", messages),
            ("tools", or_none(inputs.tools)),
            ("documents", or_none(inputs.documents)),
            (
                "add_generation_prompt",
                Value::from(inputs.add_generation_prompt),
            ),
        ];
        let kwargs = inputs
            .kwargs
            .iter()
            .filter(|(name, _)| fixed.iter().all(|(taken, _)| taken != name))
            .map(|(name, value)| (name.as_str(), Value::from_serialize(value)));
        let context: Value = kwargs.chain(fixed.iter().cloned()).collect();
        let template = self
            .env
            .get_template(NAME)
            .expect("`new` added the template under this name");
        let Some(bounds) = &self.bounds else {
            return template.render(context).map_err(|e| classify(&e));
        };
        // The last rendering may begin with little left and execute as much as any other.
        if bounds.spent.load(Ordering::Relaxed) >= FUEL {
            return Err(TemplateError::TooCostly);
        }
        let mut out = Bounded {
            text: Vec::new(),
            room: bounds.bytes,
            is_full: false,
        };
        match template.render_captured_to(context, &mut out) {
            Ok(rendered) => {
                let fuel = rendered.state().fuel_levels();
                let (spent, _) = fuel.expect("fuel was set in `new`");
                bounds.spent.fetch_add(spent, Ordering::Relaxed);
                drop(rendered);
                Ok(String::from_utf8(out.text).expect("templates print text"))
            }
            Err(_) if out.is_full => Err(TemplateError::TooLong(bounds.bytes)),
            Err(error) => Err(classify(&error)),
        }
    }
}

/// Creates an environment with the block trimming of published templates, without HTML escapes, in
/// which a rendering may execute `fuel` instructions.
pub(crate) fn environment(fuel: u64) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_fuel(Some(fuel));
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env
}

/// Compiles `source` as the template [`NAME`] of `env`.
pub(crate) fn add_template(
    env: &mut Environment<'static>,
    source: &str,
) -> Result<(), TemplateError> {
    env.add_template_owned(NAME, source.to_owned())
        .map_err(|e| TemplateError::Syntax {
            line: e.line().unwrap_or(0),
            what: e
                .detail()
                .map_or_else(|| e.kind().to_string(), str::to_owned),
        })
}

/// A writer of text of at most as many bytes as there is room for.
struct Bounded {
    text: Vec<u8>,
    room: usize,
    /// True if a write did not fit.
    is_full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.room {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.room -= bytes.len();
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn classify(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(Raised(message)) = at.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        cause = at.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooCostly;
    }
    TemplateError::Failed {
        line: error.line().unwrap_or(0),
        what: error.kind().to_string(),
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now)
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "unknown strftime directive"))
}

fn format_as_python(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => escape_formatter(out, state, value),
        _ => out.write_str(&python_str(value)).map_err(Error::from),
    }
}

/// Returns the text that Python's `str()` gives.
fn python_str(value: &Value) -> String {
    match value.as_str() {
        Some(s) => s.to_owned(),
        None if value.is_undefined() => String::new(),
        None => {
            let mut out = String::new();
            python_repr(&mut out, value);
            out
        }
    }
}

/// Appends the text that Python's `repr()` gives for the values that JSON has.
fn python_repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => push_number(out, value),
        ValueKind::String => push_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                python_repr(out, &item);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                python_repr(out, &key);
                out.push_str(": ");
                python_repr(out, &value.get_item(&key).unwrap_or_default());
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// Appends a string as Python quotes it: in single quotes, unless that needs more escapes.
fn push_quoted(out: &mut String, s: &str) {
    let quote = if s.contains('\'') && !s.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn push_number(out: &mut String, value: &Value) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
    } else {
        let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        push_float(out, number);
    }
}

/// Appends a float as Python spells it: the shortest digits that read back as the same number, in
/// exponent form from 1e16 on and below 1e-4.
fn push_float(out: &mut String, number: f64) {
    if !number.is_finite() {
        out.push_str(match number {
            f64::INFINITY => "Infinity",
            f64::NEG_INFINITY => "-Infinity",
            _ => "NaN",
        });
        return;
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        // Rust writes 1.5e-7, Python 1.5e-07: at least two digits and a sign.
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').expect("`{:e}` writes an e");
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        let _ = write!(out, "{digits}e{sign}{exponent:0>2}");
    } else {
        let _ = write!(out, "{number:?}");
    }
}

/// Returns `json.dumps(value, ensure_ascii=False)`, with the keywords that templates use.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    // Templates written for plain Jinja2 say `ensure_ascii=False`, which is what this does.
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    if ensure_ascii == Some(true) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson(ensure_ascii=true) is not supported",
        ));
    }
    kwargs.assert_all_used()?;
    let mut writer = JsonWriter {
        out: String::new(),
        indent,
        sort_keys: sort_keys.unwrap_or(false),
    };
    writer.push(value, 0)?;
    Ok(writer.out)
}

struct JsonWriter {
    out: String,
    indent: Option<usize>,
    sort_keys: bool,
}

impl JsonWriter {
    fn push(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => push_number(&mut self.out, value),
            ValueKind::String => self.push_string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.push_group(b"[]", &items, depth, |writer, item, depth| {
                    writer.push(item, depth)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.push_group(b"{}", &keys, depth, |writer, key, depth| {
                    writer.push_string(&python_str(key));
                    writer.out.push_str(": ");
                    writer.push(&value.get_item(key)?, depth)
                })?;
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    "the value has no JSON form",
                ));
            }
        }
        Ok(())
    }

    fn push_group(
        &mut self,
        brackets: &[u8; 2],
        items: &[Value],
        depth: usize,
        mut push_item: impl FnMut(&mut Self, &Value, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(char::from(brackets[0]));
        for (i, item) in items.iter().enumerate() {
            match (self.indent, i) {
                (None, 0) => {}
                (None, _) => self.out.push_str(", "),
                (Some(_), 0) => self.break_line(depth + 1),
                (Some(_), _) => {
                    self.out.push(',');
                    self.break_line(depth + 1);
                }
            }
            push_item(self, item, depth + 1)?;
        }
        if !items.is_empty() {
            self.break_line(depth);
        }
        self.out.push(char::from(brackets[1]));
        Ok(())
    }

    fn break_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn push_string(&mut self, s: &str) {
        // The two agree on strings: short escapes where JSON has them, \u00xx for other control
        // characters, everything else as it is.
        let quoted = serde_json::to_string(s).expect("a string always has a JSON form");
        self.out.push_str(&quoted);
    }
}

/// Returns the template variables for prompts whose first token is the answer.
pub fn no_thinking() -> Map<String, Json> {
    Map::from_iter([("enable_thinking".to_owned(), Json::Bool(false))])
}

#[cfg(test)]
mod tests {
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
    fn renderings_of_a_request_share_their_instructions() {
        let long = "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}";
        let own = ChatTemplate::new(long, []).unwrap();
        let of_request = own.replaced(long, 100).unwrap();
        let inputs = ChatInputs {
            messages: &[],
            tools: None,
            documents: None,
            add_generation_prompt: false,
            kwargs: &Map::new(),
        };
        let rendered = |template: &ChatTemplate| -> usize {
            let renderings = (0..30).map(|_| template.render(&inputs));
            renderings.take_while(Result::is_ok).count()
        };
        assert!((1..=10).contains(&rendered(&of_request)));
        assert_eq!(of_request.render(&inputs), Err(TemplateError::TooCostly));
        // The model's own is the operator's, and each rendering has its limit.
        assert_eq!(rendered(&own), 30);
    }

    #[test]
    fn golden_renderings_match_byte_for_byte() {
        let golden: Json = serde_json::from_str(include_str!("../tests/data/chat.json")).unwrap();
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
        let golden: Json = serde_json::from_str(include_str!("../tests/data/chat.json")).unwrap();
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
            assert_eq!(original, include_str!("../tests/data/chat.json"));
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
                what: "invalid operation".into(),
            },
        );
        check(
            "{{ absent.field }}",
            TemplateError::Failed {
                line: 1,
                what: "undefined value".into(),
            },
        );
        check(
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            TemplateError::TooCostly,
        );
        assert!(matches!(
            ChatTemplate::new("a\n{% if %}", []),
            Err(TemplateError::Syntax { line: 2, .. })
        ));
    }

    /// A template that a request brings: the model's special tokens, its own source, a bound.
    #[test]
    fn replaced_templates_print_at_most_so_much() {
        let own = ChatTemplate::new("{{ bos_token }}own", [("bos_token", "<s>")]).unwrap();
        let render = |source: &str| {
            own.replaced(source, 100)?.render(&ChatInputs {
                messages: &[],
                tools: None,
                documents: None,
                add_generation_prompt: true,
                kwargs: &Map::new(),
            })
        };
        assert_eq!(render("{{ bos_token }}{{ 'a' * 97 }}").unwrap().len(), 100);
        let long = render("{{ bos_token }}{{ 'a' * 98 }}");
        assert_eq!(long, Err(TemplateError::TooLong(100)));
        let looped = render("{% for i in range(99) %}{{ i }}{% endfor %}");
        assert_eq!(looped, Err(TemplateError::TooLong(100)));
        let raised = render("{{ 'a' * 100 }}{{ raise_exception('no') }}");
        assert_eq!(raised, Err(TemplateError::Raised("no".into())));
        assert!(matches!(
            render("{% if %}"),
            Err(TemplateError::Syntax { .. })
        ));
    }

    #[test]
    fn strftime_now_prints_the_year() {
        let year = render("{{ strftime_now('%Y') }}", json!({})).unwrap();
        assert!(year.parse::<u32>().unwrap() >= 2025, "{year}");
    }
}
