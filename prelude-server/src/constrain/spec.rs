//! The fields that constrain an answer.

use std::collections::BTreeMap;

use prelude_text::decide::compact_json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    config::Limits,
    error::ApiError,
    wire::{self, Text, Unknown},
};

/// Options of a choice.
const OPTIONS_MAX: usize = 1_024;

/// The fields that constrain an answer, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ConstraintFields<'a> {
    /// Text is the default. Not together with other constraints.
    #[serde(borrow)]
    response_format: Option<ResponseFormat<'a>>,
    /// The language that every answer belongs to.
    #[serde(borrow)]
    structured_outputs: Option<StructuredOutputs<'a>>,
}

/// A language, by exactly one of `choice`, `regex`, `json`, `json_object` and `grammar`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StructuredOutputs<'a> {
    /// 1 to 1,024 distinct texts.
    choice: Option<Vec<String>>,
    /// A regular expression that the whole answer matches.
    #[serde(borrow)]
    regex: Option<Text<'a>>,
    /// A JSON schema, or its text.
    #[schemars(with = "Option<wire::Json>")]
    json: Option<&'a RawValue>,
    /// Any JSON object.
    json_object: Option<bool>,
    /// A grammar in Lark's syntax.
    grammar: Option<Text<'a>>,
    /// JSON without white space between its parts.
    disable_any_whitespace: Option<bool>,
    /// A regular expression of what may stand between parts of JSON, besides nothing; by default
    /// a blank, or a line's end with up to 16 blanks of indentation.
    whitespace_pattern: Option<Text<'a>>,
    /// Only false is allowed: schemas are enforced as they are written.
    disable_additional_properties: Option<bool>,
    /// Has no effect: there is one implementation.
    #[expect(dead_code, reason = "clients of vLLM send it")]
    disable_fallback: Option<bool>,
}

/// The format of an answer, in OpenAI's shape.
#[derive(Debug, Deserialize, JsonSchema)]
struct ResponseFormat<'a> {
    r#type: FormatType,
    #[serde(borrow)]
    json_schema: Option<NamedSchema<'a>>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseFormatType")]
enum FormatType {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[expect(
    dead_code,
    reason = "a schema is enforced whole, whatever its name and asked to be strict or not"
)]
struct NamedSchema<'a> {
    name: Option<String>,
    description: Option<String>,
    /// Schemas are enforced in either case.
    strict: Option<bool>,
    #[serde(borrow)]
    #[schemars(with = "BTreeMap<String, Value>")]
    schema: &'a RawValue,
}

/// The bounds within which schemas are read.
pub(crate) struct Reading<'a> {
    /// Levels of nesting.
    pub(crate) depth: usize,
    /// Bounds on what clients may send.
    pub(crate) limits: &'a Limits,
    /// Takes room for values.
    pub(crate) room: wire::Room<'a>,
}

impl Reading<'_> {
    /// Refuses a schema by its length, before it is read.
    fn check(&self, schema: &str, param: &'static str) -> Result<(), ApiError> {
        if schema.len() <= self.limits.grammar_bytes {
            return Ok(());
        }
        // White space does not count.
        super::check_bytes(compact_json(schema).len(), self.limits, param)
    }
}

/// The constraint that a request puts on its answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    /// The field, for messages.
    pub(crate) param: &'static str,
    /// The language.
    pub(crate) language: Language,
}

/// A language of texts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Language {
    /// The texts are these options.
    Choice(Vec<String>),
    /// Whole texts that match.
    Regex(String),
    /// JSON that a schema describes.
    Json(Json),
    /// Texts that a Lark grammar derives.
    Lark(String),
    /// Calls of functions.
    Calls(Calls),
}

/// A schema and the white space between the parts of what it describes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Json {
    /// An object or a boolean.
    pub(crate) schema: Value,
    /// The white space between any two parts.
    pub(crate) whitespace: Whitespace,
}

/// White space between parts of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Whitespace {
    /// White space as formatters write it: nothing, a blank, or a line's end and an indentation. Without a
    /// bound, a model that likes line ends writes them until it may write no more.
    #[default]
    Formatted,
    /// There is no constraint.
    None,
    /// White space that matches this regular expression, or nothing.
    Pattern(String),
}

impl Whitespace {
    /// [`Whitespace::Formatted`] as a regular expression.
    const FORMATTED: &str = r"[ \t]|\r?\n[ \t]{0,16}";

    /// Returns the schema with this white space, as `llguidance` is told of it.
    pub(crate) fn within(&self, schema: Value) -> Value {
        let mut schema = match schema {
            Value::Bool(true) => serde_json::json!({}),
            schema => schema,
        };
        let options = match self {
            Self::Formatted => serde_json::json!({"whitespace_pattern": Self::FORMATTED}),
            Self::None => serde_json::json!({"whitespace_flexible": false}),
            Self::Pattern(regex) => serde_json::json!({"whitespace_pattern": regex}),
        };
        if let Value::Object(keywords) = &mut schema {
            keywords.insert(GUIDANCE.to_owned(), options);
        }
        schema
    }
}

/// The field of a pattern of white space.
pub(crate) const WHITESPACE_PATTERN: &str = "/structured_outputs/whitespace_pattern";

/// The schema keyword that tells `llguidance` about white space. Callers may not use it.
pub(crate) const GUIDANCE: &str = "x-guidance";

impl From<Value> for Language {
    fn from(schema: Value) -> Self {
        Self::Json(Json {
            schema,
            whitespace: Whitespace::default(),
        })
    }
}

/// A grammar of calls, and what of the request it was made from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Calls {
    /// The grammar in Lark's syntax.
    pub(crate) grammar: String,
    /// The functions' parameters, each with its field.
    pub(crate) schemas: Vec<(String, Value)>,
}

impl Ask {
    /// Returns the field that holds the language's text, if it is another.
    pub(crate) fn text_param(&self) -> &'static str {
        match self.language {
            Language::Calls(_) => "tools",
            _ => self.param,
        }
    }

    /// Returns the language of `structured_outputs` or `response_format`, at most one of them.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn new(
        fields: ConstraintFields<'_>,
        reading: &Reading<'_>,
    ) -> Result<Option<Self>, ApiError> {
        let mut asks = Vec::new();
        let mut whitespace = None;
        if let Some(mut own) = fields.structured_outputs {
            if own.disable_additional_properties == Some(true) {
                let param = "/structured_outputs/disable_additional_properties";
                return Err(ApiError::unsupported_parameter(param));
            }
            whitespace = own.whitespace()?;
            own.push_to(&mut asks, reading)?;
            // White space alone may be for a `response_format`.
            if asks.is_empty() && whitespace.is_none() {
                let must = "have one of `choice`, `regex`, `json`, `json_object` and `grammar`";
                return Err(ApiError::invalid_value("structured_outputs", must));
            }
        }
        if let Some(format) = fields.response_format {
            asks.extend(of_format(format, reading)?);
        }
        if asks.len() > 1 {
            let must = format!("not come together with `{}`", asks[0].param);
            return Err(ApiError::invalid_value(asks[1].param, must));
        }
        let mut ask = asks.pop();
        match (ask.as_mut().map(|ask| &mut ask.language), whitespace) {
            (Some(Language::Json(json)), Some(whitespace)) => json.whitespace = whitespace,
            (_, Some(Whitespace::Pattern(_))) => {
                let must = "be absent: no JSON is asked for";
                return Err(ApiError::invalid_value(WHITESPACE_PATTERN, must));
            }
            // Some clients send `disable_any_whitespace`, which is about JSON alone, with every
            // constraint.
            _ => {}
        }
        Ok(ask)
    }
}

impl StructuredOutputs<'_> {
    /// Takes the white space asked for, at most one kind.
    fn whitespace(&mut self) -> Result<Option<Whitespace>, ApiError> {
        let none = self.disable_any_whitespace.unwrap_or(false);
        match (none, self.whitespace_pattern.take()) {
            (true, Some(_)) => {
                let must = "not come together with `disable_any_whitespace`";
                Err(ApiError::invalid_value(WHITESPACE_PATTERN, must))
            }
            (true, None) => Ok(Some(Whitespace::None)),
            (false, pattern) => Ok(pattern.map(|Text(p)| Whitespace::Pattern(p.into_owned()))),
        }
    }

    /// Appends the languages that are given.
    fn push_to(self, asks: &mut Vec<Ask>, reading: &Reading<'_>) -> Result<(), ApiError> {
        let mut push = |param, language| asks.push(Ask { param, language });
        if let Some(options) = self.choice {
            let param = "/structured_outputs/choice";
            push(param, Language::Choice(checked(options, param)?));
        }
        if let Some(Text(regex)) = self.regex {
            let language = Language::Regex(regex.into_owned());
            push("/structured_outputs/regex", language);
        }
        if let Some(schema) = self.json {
            let param = "/structured_outputs/json";
            push(param, schema_of(schema.get(), param, reading)?.into());
        }
        if self.json_object == Some(true) {
            push("/structured_outputs/json_object", any_object().into());
        }
        if let Some(Text(text)) = self.grammar {
            let language = Language::Lark(text.into_owned());
            push("/structured_outputs/grammar", language);
        }
        Ok(())
    }
}

fn checked(options: Vec<String>, param: &'static str) -> Result<Vec<String>, ApiError> {
    let mut sorted: Vec<&String> = options.iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    let distinct = sorted.len() == options.len();
    if !(1..=OPTIONS_MAX).contains(&options.len())
        || !distinct
        || options.iter().any(String::is_empty)
    {
        let must = format!("be 1 to {OPTIONS_MAX} distinct strings, none of them empty");
        return Err(ApiError::invalid_value(param, must));
    }
    Ok(options)
}

/// Reads a schema, which may come as JSON or as the text of JSON.
fn schema_of(raw: &str, param: &'static str, reading: &Reading<'_>) -> Result<Value, ApiError> {
    let value = if raw.starts_with('"') {
        let Text(text) = wire::from_raw(raw, param, &mut Unknown::default())?;
        reading.check(&text, param)?;
        wire::parse_text(&text, reading.depth, param, reading.room)?
    } else {
        reading.check(raw, param)?;
        wire::from_raw(raw, param, &mut Unknown::default())?
    };
    match value.0 {
        value @ (Value::Object(_) | Value::Bool(_)) => Ok(value),
        _ => Err(ApiError::invalid_type(param, "a JSON schema: an object")),
    }
}

fn any_object() -> Value {
    serde_json::json!({"type": "object"})
}

fn of_format(format: ResponseFormat<'_>, reading: &Reading<'_>) -> Result<Option<Ask>, ApiError> {
    match (format.r#type, format.json_schema) {
        (FormatType::Text, _) => Ok(None),
        (FormatType::JsonObject, _) => Ok(Some(Ask {
            param: "response_format",
            language: any_object().into(),
        })),
        (FormatType::JsonSchema, None) => {
            Err(ApiError::missing_field("/response_format/json_schema"))
        }
        (FormatType::JsonSchema, Some(named)) => {
            let param = "/response_format/json_schema/schema";
            let schema = named.schema.get();
            reading.check(schema, param)?;
            let schema: wire::Json = wire::from_raw(schema, param, &mut Unknown::default())?;
            match schema.0 {
                schema @ Value::Object(_) => Ok(Some(Ask {
                    param,
                    language: schema.into(),
                })),
                Value::Null => Err(ApiError::missing_field(param)),
                _ => Err(ApiError::invalid_type(param, "an object")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Fields;

    fn check(body: &str, expected: Result<Option<(&str, Language)>, &str>) {
        let mut fields = Fields::from_body(body).unwrap();
        let limits = Limits {
            grammar_bytes: 100,
            ..Limits::default()
        };
        let reading = Reading {
            depth: 64,
            limits: &limits,
            room: &|_| Ok(()),
        };
        let found = fields.group().and_then(|fields| Ask::new(fields, &reading));
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let found = found.map(|ask| (ask.param, ask.language));
                assert_eq!(found, expected, "{body}");
            }
            (Err(found), Err(param)) => {
                assert_eq!(
                    (found.status(), found.param()),
                    (400, Some(param)),
                    "{body}"
                );
            }
            (found, expected) => panic!("{body}: {found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn every_spelling_is_one_language() {
        let regex = || Language::Regex("a+".to_owned());
        check("{}", Ok(None));
        check(
            r#"{"structured_outputs":{"regex":"a+"}}"#,
            Ok(Some(("/structured_outputs/regex", regex()))),
        );
        check(
            r#"{"structured_outputs":{"json":"{\"type\":\"null\"}"}}"#,
            Ok(Some((
                "/structured_outputs/json",
                serde_json::json!({"type": "null"}).into(),
            ))),
        );
        check(
            r#"{"structured_outputs":{"json_object":true}}"#,
            Ok(Some((
                "/structured_outputs/json_object",
                any_object().into(),
            ))),
        );
        check(
            r#"{"response_format":{"type":"json_object"}}"#,
            Ok(Some(("response_format", any_object().into()))),
        );
        check(
            r#"{"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{}}}}"#,
            Ok(Some((
                "/response_format/json_schema/schema",
                serde_json::json!({}).into(),
            ))),
        );
        // White space does not count among the 100 bytes.
        let blanks = " ".repeat(100);
        check(
            &format!(r#"{{"structured_outputs":{{"json":{{{blanks}"type":"null"}}}}}}"#),
            Ok(Some((
                "/structured_outputs/json",
                serde_json::json!({"type": "null"}).into(),
            ))),
        );
        check(r#"{"response_format":{"type":"text"}}"#, Ok(None));
        check(
            r#"{"structured_outputs":{"choice":["b","a"]}}"#,
            Ok(Some((
                "/structured_outputs/choice",
                Language::Choice(vec!["b".into(), "a".into()]),
            ))),
        );
        check(
            r#"{"structured_outputs":{"choice":["a"]}}"#,
            Ok(Some((
                "/structured_outputs/choice",
                Language::Choice(vec!["a".into()]),
            ))),
        );
    }

    #[test]
    fn wrong_fields_are_refused_by_name() {
        check(r#"{"structured_outputs":{}}"#, Err("structured_outputs"));
        let long = format!(r#"{{"a":"{}"}}"#, "b".repeat(100));
        for schema in [long.clone(), Value::from(long).to_string()] {
            let json = format!(r#"{{"structured_outputs":{{"json":{schema}}}}}"#);
            check(&json, Err("/structured_outputs/json"));
        }
        check(
            r#"{"structured_outputs":{"regex":"a","choice":["a","b"]}}"#,
            Err("/structured_outputs/regex"),
        );
        check(
            r#"{"structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"}}"#,
            Err("response_format"),
        );
        check(
            r#"{"structured_outputs":{"regexp":"a"}}"#,
            Err("/structured_outputs/regexp"),
        );
        check(
            r#"{"structured_outputs":{"choice":[]}}"#,
            Err("/structured_outputs/choice"),
        );
        check(
            r#"{"structured_outputs":{"choice":["a","a"]}}"#,
            Err("/structured_outputs/choice"),
        );
        check(
            r#"{"structured_outputs":{"choice":["a",""]}}"#,
            Err("/structured_outputs/choice"),
        );
        check(
            r#"{"structured_outputs":{"json":3}}"#,
            Err("/structured_outputs/json"),
        );
        check(
            r#"{"structured_outputs":{"json":"{"}}"#,
            Err("/structured_outputs/json"),
        );
        check(
            r#"{"response_format":{"type":"xml"}}"#,
            Err("/response_format/type"),
        );
        check(
            r#"{"response_format":{"type":"json_schema","json_schema":{"name":"n"}}}"#,
            Err("/response_format/json_schema/schema"),
        );
    }
}
