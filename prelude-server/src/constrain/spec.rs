//! The fields that constrain an answer, in all their spellings.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::ApiError,
    wire::{self, Text},
};

/// Options of a choice.
const OPTIONS_MAX: usize = 1_024;

/// The fields that constrain an answer, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ConstraintFields<'a> {
    /// Text is the default. Not together with other constraints.
    response_format: Option<ResponseFormat>,
    /// The language that every answer belongs to.
    #[serde(borrow)]
    structured_outputs: Option<StructuredOutputs<'a>>,
    /// Older name of `structured_outputs.choice`.
    guided_choice: Option<Vec<String>>,
    /// Older name of `structured_outputs.regex`.
    guided_regex: Option<Text<'a>>,
    /// Older name of `structured_outputs.json`.
    guided_json: Option<wire::Json>,
    /// Older name of `structured_outputs.json_object`.
    guided_json_object: Option<bool>,
    /// Older name of `structured_outputs.grammar`.
    guided_grammar: Option<Text<'a>>,
    /// Older name of `structured_outputs.whitespace_pattern`.
    guided_whitespace_pattern: Option<Text<'a>>,
}

/// A language: one of these.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StructuredOutputs<'a> {
    /// 2 to 1,024 distinct texts.
    choice: Option<Vec<String>>,
    /// A regular expression that the whole answer matches.
    #[serde(borrow)]
    regex: Option<Text<'a>>,
    /// A JSON schema, or its text.
    json: Option<wire::Json>,
    /// Any JSON object.
    json_object: Option<bool>,
    /// A grammar in Lark's syntax.
    grammar: Option<Text<'a>>,
    /// JSON without white space between its parts.
    disable_any_whitespace: Option<bool>,
    /// A regular expression of what may stand between parts of JSON, besides nothing; by default
    /// a blank, or a line's end with up to 16 blanks of indentation.
    whitespace_pattern: Option<Text<'a>>,
    /// Only false: schemas are enforced as they are written.
    disable_additional_properties: Option<bool>,
    /// Of no effect: there is one implementation.
    #[expect(dead_code, reason = "clients of vLLM send it")]
    disable_fallback: Option<bool>,
}

/// The format of an answer, in OpenAI's shape.
#[derive(Debug, Deserialize, JsonSchema)]
struct ResponseFormat {
    r#type: FormatType,
    json_schema: Option<NamedSchema>,
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
struct NamedSchema {
    name: Option<String>,
    description: Option<String>,
    /// Schemas are enforced in either case.
    strict: Option<bool>,
    #[schemars(with = "BTreeMap<String, Value>")]
    schema: wire::Json,
}

/// What a request asks of its answers.
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
    /// One of these.
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
    /// Between any two parts.
    pub(crate) whitespace: Whitespace,
}

/// White space between parts of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Whitespace {
    /// As formatters write it: nothing, a blank, or a line's end and an indentation. Without a
    /// bound, a model that likes line ends writes them until it may write no more.
    #[default]
    Formatted,
    /// None.
    None,
    /// What matches a regular expression, or nothing.
    Pattern {
        /// The expression.
        regex: String,
        /// The field that says it.
        param: &'static str,
    },
}

impl Whitespace {
    /// [`Whitespace::Formatted`] as a regular expression.
    const FORMATTED: &str = r"[ \t]|\r?\n[ \t]{0,16}";

    /// The schema with this white space, as `llguidance` is told of it.
    pub(crate) fn within(&self, schema: Value) -> Value {
        let mut schema = match schema {
            Value::Bool(true) => serde_json::json!({}),
            schema => schema,
        };
        let options = match self {
            Self::Formatted => serde_json::json!({"whitespace_pattern": Self::FORMATTED}),
            Self::None => serde_json::json!({"whitespace_flexible": false}),
            Self::Pattern { regex, .. } => serde_json::json!({"whitespace_pattern": regex}),
        };
        if let Value::Object(keywords) = &mut schema {
            keywords.insert(GUIDANCE.to_owned(), options);
        }
        schema
    }
}

#[cfg(feature = "llguidance")]
impl Whitespace {
    /// The field that holds its pattern.
    pub(crate) fn param(&self) -> Option<&'static str> {
        match self {
            Self::Pattern { param, .. } => Some(param),
            _ => None,
        }
    }
}

/// Where a schema tells `llguidance` how to write what it describes. Callers may not.
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
    /// In Lark's syntax.
    pub(crate) grammar: String,
    /// By field: the schemas in it, for messages.
    pub(crate) schemas: Vec<(String, Value)>,
}

impl Ask {
    /// The field that holds the language's text, if it is another.
    pub(crate) fn text_param(&self) -> &'static str {
        match self.language {
            Language::Calls(_) => "tools",
            _ => self.param,
        }
    }

    /// Returns the language of `structured_outputs`, its older spellings or `response_format`, at
    /// most one of them.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn new(
        fields: ConstraintFields<'_>,
        depth: usize,
    ) -> Result<Option<Self>, ApiError> {
        let mut asks = Vec::new();
        let mut spaces = Spaces::default();
        if let Some(own) = fields.structured_outputs {
            if own.disable_additional_properties == Some(true) {
                let param = "/structured_outputs/disable_additional_properties";
                return Err(ApiError::unsupported_parameter(param));
            }
            let languages = Languages {
                choice: ("/structured_outputs/choice", own.choice),
                regex: ("/structured_outputs/regex", own.regex),
                json: ("/structured_outputs/json", own.json),
                json_object: ("/structured_outputs/json_object", own.json_object),
                grammar: ("/structured_outputs/grammar", own.grammar),
            };
            languages.push_to(&mut asks, depth)?;
            if own.disable_any_whitespace.unwrap_or(false) {
                let param = "/structured_outputs/disable_any_whitespace";
                spaces.push(Whitespace::None, param)?;
            }
            let pattern = own.whitespace_pattern;
            spaces.push_pattern(pattern, "/structured_outputs/whitespace_pattern")?;
            // White space alone may be for a `response_format`.
            if asks.is_empty() && spaces.0.is_none() {
                let must = "have one of `choice`, `regex`, `json`, `json_object` and `grammar`";
                return Err(ApiError::invalid_value("structured_outputs", must));
            }
        }
        let older = Languages {
            choice: ("guided_choice", fields.guided_choice),
            regex: ("guided_regex", fields.guided_regex),
            json: ("guided_json", fields.guided_json),
            json_object: ("guided_json_object", fields.guided_json_object),
            grammar: ("guided_grammar", fields.guided_grammar),
        };
        older.push_to(&mut asks, depth)?;
        spaces.push_pattern(
            fields.guided_whitespace_pattern,
            "guided_whitespace_pattern",
        )?;
        if let Some(format) = fields.response_format {
            asks.extend(of_format(format)?);
        }
        if asks.len() > 1 {
            let must = format!("not come together with `{}`", asks[0].param);
            return Err(ApiError::invalid_value(asks[1].param, must));
        }
        let mut ask = asks.pop();
        spaces.apply(ask.as_mut())?;
        Ok(ask)
    }
}

/// The languages of one spelling, each with the field that messages name.
struct Languages<'a> {
    choice: (&'static str, Option<Vec<String>>),
    regex: (&'static str, Option<Text<'a>>),
    json: (&'static str, Option<wire::Json>),
    json_object: (&'static str, Option<bool>),
    grammar: (&'static str, Option<Text<'a>>),
}

impl Languages<'_> {
    /// Appends those that are given.
    fn push_to(self, asks: &mut Vec<Ask>, depth: usize) -> Result<(), ApiError> {
        let mut push = |param, language| asks.push(Ask { param, language });
        if let (param, Some(options)) = self.choice {
            push(param, Language::Choice(checked(options, param)?));
        }
        if let (param, Some(Text(regex))) = self.regex {
            push(param, Language::Regex(regex.into_owned()));
        }
        if let (param, Some(wire::Json(value))) = self.json {
            push(param, schema_of(value, param, depth)?.into());
        }
        if let (param, Some(true)) = self.json_object {
            push(param, any_object().into());
        }
        if let (param, Some(Text(text))) = self.grammar {
            push(param, Language::Lark(text.into_owned()));
        }
        Ok(())
    }
}

/// The white space asked for, and the field that does.
#[derive(Default)]
struct Spaces(Option<(Whitespace, &'static str)>);

impl Spaces {
    fn push(&mut self, whitespace: Whitespace, param: &'static str) -> Result<(), ApiError> {
        match &self.0 {
            Some((_, other)) => {
                let must = format!("not come together with `{other}`");
                Err(ApiError::invalid_value(param, must))
            }
            None => {
                self.0 = Some((whitespace, param));
                Ok(())
            }
        }
    }

    /// Adds a regular expression, which messages call `param`, if there is one.
    fn push_pattern(
        &mut self,
        pattern: Option<Text<'_>>,
        param: &'static str,
    ) -> Result<(), ApiError> {
        match pattern {
            Some(Text(regex)) => {
                let regex = regex.into_owned();
                self.push(Whitespace::Pattern { regex, param }, param)
            }
            None => Ok(()),
        }
    }

    /// Sets the white space of the JSON asked for, which a pattern must have.
    fn apply(self, ask: Option<&mut Ask>) -> Result<(), ApiError> {
        match (ask.map(|ask| &mut ask.language), self.0) {
            (Some(Language::Json(json)), Some((whitespace, _))) => json.whitespace = whitespace,
            (_, Some((Whitespace::Pattern { .. }, param))) => {
                let must = "be absent: no JSON is asked for";
                return Err(ApiError::invalid_value(param, must));
            }
            // Some clients send the flag, which is about JSON alone, with everything.
            _ => {}
        }
        Ok(())
    }
}

fn checked(options: Vec<String>, param: &'static str) -> Result<Vec<String>, ApiError> {
    let mut sorted: Vec<&String> = options.iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    let distinct = sorted.len() == options.len();
    if !(2..=OPTIONS_MAX).contains(&options.len())
        || !distinct
        || options.iter().any(String::is_empty)
    {
        let must = format!("be 2 to {OPTIONS_MAX} distinct strings, none of them empty");
        return Err(ApiError::invalid_value(param, must));
    }
    Ok(options)
}

/// A schema, or the text of one.
fn schema_of(value: Value, param: &'static str, depth: usize) -> Result<Value, ApiError> {
    let value = match value {
        Value::String(text) => wire::parse_text(&text, depth, param)?.0,
        value => value,
    };
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value),
        _ => Err(ApiError::invalid_type(param, "a JSON schema: an object")),
    }
}

fn any_object() -> Value {
    serde_json::json!({"type": "object"})
}

fn of_format(format: ResponseFormat) -> Result<Option<Ask>, ApiError> {
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
            match named.schema.0 {
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
        let found = fields.group().and_then(|fields| Ask::new(fields, 64));
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
            r#"{"guided_regex":"a+"}"#,
            Ok(Some(("guided_regex", regex()))),
        );
        check(
            r#"{"guided_json":"{\"type\":\"null\"}"}"#,
            Ok(Some((
                "guided_json",
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
        check(r#"{"response_format":{"type":"text"}}"#, Ok(None));
        check(
            r#"{"guided_choice":["b","a"]}"#,
            Ok(Some((
                "guided_choice",
                Language::Choice(vec!["b".into(), "a".into()]),
            ))),
        );
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_name() {
        check(r#"{"structured_outputs":{}}"#, Err("structured_outputs"));
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
        check(r#"{"guided_choice":["a"]}"#, Err("guided_choice"));
        check(r#"{"guided_choice":["a","a"]}"#, Err("guided_choice"));
        check(r#"{"guided_choice":["a",""]}"#, Err("guided_choice"));
        check(r#"{"guided_json":3}"#, Err("guided_json"));
        check(r#"{"guided_json":"{"}"#, Err("guided_json"));
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
