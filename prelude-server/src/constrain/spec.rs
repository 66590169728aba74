//! The fields that constrain an answer, in all their spellings.

use std::borrow::Cow;

use serde_json::Value;

use crate::{
    error::ApiError,
    json::{self, Fields},
};

/// Options of a choice.
const OPTIONS_MAX: usize = 1_024;

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

    /// Takes `structured_outputs`, its older spellings and `response_format`, at most one of them.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn take(fields: &mut Fields<'_>, depth: usize) -> Result<Option<Self>, ApiError> {
        let mut asks = Vec::new();
        let mut spaces = Spaces::default();
        if let Some(mut own) = fields.object("structured_outputs")? {
            let names = [
                ("choice", "/structured_outputs/choice"),
                ("regex", "/structured_outputs/regex"),
                ("json", "/structured_outputs/json"),
                ("json_object", "/structured_outputs/json_object"),
                ("grammar", "/structured_outputs/grammar"),
            ];
            let before = asks.len();
            take_each(&mut own, names, depth, &mut asks)?;
            own.refuse("structural_tag", &[])?;
            if own.bool("disable_any_whitespace")?.unwrap_or(false) {
                let param = "/structured_outputs/disable_any_whitespace";
                spaces.push(Whitespace::None, param)?;
            }
            spaces.take(
                &mut own,
                "whitespace_pattern",
                "/structured_outputs/whitespace_pattern",
            )?;
            own.refuse("disable_additional_properties", &["false"])?;
            own.refuse("disable_fallback", &["true", "false"])?;
            if let Some((unknown, _)) = own.rest().next() {
                let must = "be absent: it is none of `choice`, `regex`, `json`, `json_object` and \
                            `grammar`";
                return Err(ApiError::invalid_value(own.path(unknown), must));
            }
            // White space alone may be for a `response_format`.
            if asks.len() == before && spaces.0.is_none() {
                let must = "have one of `choice`, `regex`, `json`, `json_object` and `grammar`";
                return Err(ApiError::invalid_value("structured_outputs", must));
            }
        }
        let older = [
            ("guided_choice", "guided_choice"),
            ("guided_regex", "guided_regex"),
            ("guided_json", "guided_json"),
            ("guided_json_object", "guided_json_object"),
            ("guided_grammar", "guided_grammar"),
        ];
        take_each(fields, older, depth, &mut asks)?;
        let param = "guided_whitespace_pattern";
        spaces.take(fields, param, param)?;
        asks.extend(response_format(fields)?);
        if asks.len() > 1 {
            let must = format!("not come together with `{}`", asks[0].param);
            return Err(ApiError::invalid_value(asks[1].param, must));
        }
        let mut ask = asks.pop();
        spaces.apply(ask.as_mut())?;
        Ok(ask)
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

    /// Takes the field `name`, a regular expression, which messages call `param`.
    fn take(
        &mut self,
        fields: &mut Fields<'_>,
        name: &'static str,
        param: &'static str,
    ) -> Result<(), ApiError> {
        match fields.string(name)?.map(Cow::into_owned) {
            Some(regex) => self.push(Whitespace::Pattern { regex, param }, param),
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

/// Takes choice, regular expression, schema, any object, and grammar by these names.
fn take_each(
    fields: &mut Fields<'_>,
    names: [(&'static str, &'static str); 5],
    depth: usize,
    asks: &mut Vec<Ask>,
) -> Result<(), ApiError> {
    let mut push = |param, language| asks.push(Ask { param, language });
    let [choice, regex, schema, object, grammar] = names;
    let must = "a list of strings";
    if let Some(options) = fields.get::<Vec<String>>(choice.0, must)? {
        push(choice.1, Language::Choice(checked(options, choice.1)?));
    }
    if let Some(regex_text) = fields.string(regex.0)? {
        push(regex.1, Language::Regex(regex_text.into_owned()));
    }
    if let Some(value) = fields.value(schema.0)? {
        push(schema.1, schema_of(value, schema.1, depth)?.into());
    }
    if fields.bool(object.0)?.unwrap_or(false) {
        push(object.1, any_object().into());
    }
    if let Some(text) = fields.string(grammar.0)? {
        push(grammar.1, Language::Lark(text.into_owned()));
    }
    Ok(())
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
        Value::String(text) => {
            let text = json::check_text(text.as_bytes(), depth).map_err(|e| e.with_param(param))?;
            json::value(text, param).map_err(|e| e.with_param(param))?
        }
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

fn response_format(fields: &mut Fields<'_>) -> Result<Option<Ask>, ApiError> {
    let Some(mut format) = fields.object("response_format")? else {
        return Ok(None);
    };
    let ask = format_of(&mut format)?;
    fields.unknown.add(&format);
    Ok(ask)
}

fn format_of(format: &mut Fields<'_>) -> Result<Option<Ask>, ApiError> {
    let kind = format.string("type")?;
    match kind.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Ask {
            param: "response_format",
            language: any_object().into(),
        })),
        Some("json_schema") => {
            let param = "/response_format/json_schema/schema";
            let mut body = format
                .object("json_schema")?
                .ok_or_else(|| ApiError::missing_field("/response_format/json_schema"))?;
            body.ignore("name");
            body.ignore("description");
            // A schema is enforced whole, asked to be strict or not.
            let _ = body.bool("strict")?;
            let schema = body
                .value("schema")?
                .ok_or_else(|| ApiError::missing_field(param))?;
            format.unknown.add(&body);
            match schema {
                Value::Object(_) => Ok(Some(Ask {
                    param,
                    language: schema.into(),
                })),
                _ => Err(ApiError::invalid_type(param, "an object")),
            }
        }
        None => Err(ApiError::missing_field("/response_format/type")),
        Some(_) => {
            let must = "be `text`, `json_object` or `json_schema`";
            Err(ApiError::invalid_value("/response_format/type", must))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: Result<Option<(&str, Language)>, &str>) {
        let mut fields = Fields::from_body(body).unwrap();
        let found = Ask::take(&mut fields, 64);
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
