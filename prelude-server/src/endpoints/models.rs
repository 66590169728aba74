//! `/v1/models`: what is served.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    endpoint::{Call, Endpoint, Needs, Reply, json},
    error::ApiError,
    served_model::{ModelKind, ServedModel},
};

/// `GET /v1/models`.
pub(crate) const MODELS: Endpoint = Endpoint {
    group: "models",
    summary: "What is served",
    responses: json::<List<'static>>,
    needs: Needs::Models,
    ..Endpoint::get(&["/v1/models"], |call, _| Box::pin(async { list(call) }))
};

/// `GET /v1/models/*`.
pub(crate) const MODEL: Endpoint = Endpoint {
    group: "models",
    summary: "One of the served models",
    responses: json::<Described<'static>>,
    needs: Needs::Models,
    ..Endpoint::get(&["/v1/models/*"], |call, _| Box::pin(async { one(call) }))
};

/// All models, in two lists: OpenAI's, and the one System One clients read.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Models")]
pub(crate) struct List<'a> {
    object: &'static str,
    data: Vec<Described<'a>>,
    models: Vec<Brief<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Model")]
pub(crate) struct Described<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The served name, never a path.
    root: &'a str,
    parent: Option<&'a str>,
    max_model_len: u32,
    permission: [(); 0],
    kind: &'static str,
    tasks: Vec<&'static str>,
    /// The classes of a classifier of tokens, in the order of the numbers that `/pooling` gives each
    /// token.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a [String]>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BriefModel")]
struct Brief<'a> {
    name: &'a str,
    description: String,
    release_date: String,
}

/// Answers with all models.
///
/// # Errors
/// 503 while loading.
pub(crate) fn list(call: &Call) -> Result<Reply, ApiError> {
    call.app.model(None)?;
    let models = call.app.models();
    Ok(Reply::json(&List {
        object: "list",
        data: models
            .iter()
            .flat_map(|m| m.names().map(|name| describe(m, name)))
            .collect(),
        models: models
            .iter()
            .flat_map(|m| m.names().map(|name| brief(m, name)))
            .collect(),
    }))
}

/// Answers with one model.
///
/// # Errors
/// 404, 503 while loading.
pub(crate) fn one(call: &Call) -> Result<Reply, ApiError> {
    let name = percent_decode(call.tail.as_deref().unwrap_or_default());
    let model = call.app.model(Some(&name))?;
    Ok(Reply::json(&describe(model, &name)))
}

fn describe<'a>(model: &'a ServedModel, name: &'a str) -> Described<'a> {
    Described {
        id: name,
        object: "model",
        created: model.created,
        owned_by: "prelude",
        root: &model.name,
        parent: None,
        max_model_len: model.max_model_len,
        permission: [],
        kind: model.kind.as_str(),
        tasks: model.tasks.iter().map(|t| t.as_str()).collect(),
        labels: (model.kind == ModelKind::TokenClassifier).then_some(model.class_names()),
    }
}

fn brief<'a>(model: &'a ServedModel, name: &'a str) -> Brief<'a> {
    let context = model.max_model_len;
    Brief {
        name,
        description: format!("{} with a context of {context} tokens", model.kind.as_str()),
        release_date: date(model.created),
    }
}

/// Returns the day as `YYYY-MM-DD`.
fn date(unix_seconds: u64) -> String {
    i64::try_from(unix_seconds)
        .ok()
        .and_then(|s| jiff::Timestamp::from_second(s).ok())
        .map_or_else(String::new, |t| t.strftime("%Y-%m-%d").to_string())
}

/// Decodes a name, which may hold a `/` that clients send as `%2F`. What is not an escape stays as it
/// is.
fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escape = after.get(..2).filter(|_| byte == b'%');
        let decoded = escape
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match decoded {
            Some(decoded) => {
                out.push(decoded);
                rest = &after[2..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded() {
        let check = |text, expected| assert_eq!(percent_decode(text), expected);
        check("a/b", "a/b");
        check("a%2Fb%2f", "a/b/");
        check("100%", "100%");
        check("%zz%4", "%zz%4");
        check("%C3%A9", "é");
        check("%FF", "\u{fffd}");
    }

    #[test]
    fn seconds_become_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(1_790_000_000), "2026-09-21");
    }
}
