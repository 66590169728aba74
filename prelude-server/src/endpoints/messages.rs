//! Messages of a conversation: checked, and made what templates expect.

use serde_json::{Map, Value};

use crate::{error::ApiError, json::Fields};

const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// Takes `messages`: objects with a known role and content that is one string.
///
/// # Errors
/// 400 naming the message and what is wrong with it.
pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let value = fields
        .value("messages")?
        .ok_or_else(|| ApiError::missing_field("messages"))?;
    let Value::Array(mut messages) = value else {
        return Err(ApiError::invalid_type("messages", "a list of objects"));
    };
    if messages.is_empty() {
        return Err(ApiError::invalid_value("messages", "not be an empty list"));
    }
    for (index, message) in messages.iter_mut().enumerate() {
        check(message, &format!("/messages/{index}"))?;
    }
    Ok(messages)
}

fn check(message: &mut Value, pointer: &str) -> Result<(), ApiError> {
    let Value::Object(message) = message else {
        return Err(ApiError::invalid_type(pointer.to_owned(), "an object"));
    };
    let is_assistant = check_role(message, pointer)? == "assistant";
    let path = format!("{pointer}/content");
    match message.get_mut("content") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => {
            let text = join(parts, &path)?;
            message.insert("content".to_owned(), Value::String(text));
            Ok(())
        }
        // An assistant may have called tools and said nothing.
        None | Some(Value::Null) if is_assistant => Ok(()),
        None | Some(Value::Null) => Err(ApiError::missing_field(path)),
        Some(_) => Err(ApiError::invalid_type(path, "a string or a list of parts")),
    }
}

fn check_role<'m>(message: &'m mut Map<String, Value>, pointer: &str) -> Result<&'m str, ApiError> {
    let path = || format!("{pointer}/role");
    match message.get_mut("role") {
        None | Some(Value::Null) => Err(ApiError::missing_field(path())),
        Some(Value::String(role)) => {
            if role == "developer" {
                "system".clone_into(role);
            }
            if !ROLES.contains(&&**role) {
                let must = "be `system`, `developer`, `user`, `assistant` or `tool`";
                return Err(ApiError::invalid_value(path(), must));
            }
            Ok(role)
        }
        Some(_) => Err(ApiError::invalid_type(path(), "a string")),
    }
}

/// The text of parts, which are separated by a line break as other servers do it.
fn join(parts: &[Value], pointer: &str) -> Result<String, ApiError> {
    let text = |(index, part): (usize, &Value)| -> Result<String, ApiError> {
        let path = format!("{pointer}/{index}");
        match (part.get("type").and_then(Value::as_str), part.get("text")) {
            (Some("text" | "input_text"), Some(Value::String(text))) => Ok(text.clone()),
            (Some("text" | "input_text"), _) => {
                Err(ApiError::invalid_type(format!("{path}/text"), "a string"))
            }
            (Some(_), _) => Err(ApiError::unsupported_parameter(format!("{path}/type"))),
            (None, _) => Err(ApiError::missing_field(format!("{path}/type"))),
        }
    };
    let texts: Result<Vec<String>, ApiError> = parts.iter().enumerate().map(text).collect();
    Ok(texts?.join("\n"))
}

/// Cuts a rendered conversation where its final message's content ends, so that the model goes
/// on with it.
///
/// # Errors
/// 400 if the template did not render that content as it is.
pub(crate) fn cut_after_final(text: String, messages: &[Value]) -> Result<String, ApiError> {
    let content = messages
        .last()
        .and_then(|m| m.get("content"))
        .and_then(Value::as_str)
        .unwrap_or_default();
    // Templates may trim what they print.
    let at = match content.trim() {
        "" => None,
        trimmed => text.rfind(trimmed).map(|at| at + trimmed.len()),
    };
    let Some(trimmed_end) = at else {
        return Err(ApiError::template(
            "the final message cannot be continued: the template does not print its content",
        ));
    };
    // Blanks at the content's end are the beginning of what follows, if they were printed.
    let blanks = &content[content.trim_end().len()..];
    let end = if text[trimmed_end..].starts_with(blanks) {
        trimmed_end + blanks.len()
    } else {
        trimmed_end
    };
    let mut text = text;
    text.truncate(end);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: &str, expected: Result<&str, (&str, &str)>) {
        let body = format!(r#"{{"messages":{messages}}}"#);
        let found = take(&mut Fields::from_body(&body).unwrap());
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!(Value::from(found).to_string(), expected);
            }
            (Err(found), Err((reason, param))) => {
                assert_eq!((found.reason(), found.param()), (reason, Some(param)));
                assert_eq!(found.status(), 400);
            }
            (found, expected) => panic!("{messages}: {found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn messages_become_what_templates_expect() {
        check(
            r#"[{"role":"developer","content":"a"},{"role":"assistant","tool_calls":[]}]"#,
            Ok(r#"[{"role":"system","content":"a"},{"role":"assistant","tool_calls":[]}]"#),
        );
        check(
            r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]"#,
            Ok(r#"[{"role":"user","content":"a\nb"}]"#),
        );
    }

    #[test]
    fn messages_are_refused_by_name() {
        check("[]", Err(("invalid_value", "messages")));
        check("{}", Err(("invalid_type", "messages")));
        check("[1]", Err(("invalid_type", "/messages/0")));
        check("[{}]", Err(("missing_field", "/messages/0/role")));
        check(r#"[{"role":1}]"#, Err(("invalid_type", "/messages/0/role")));
        check(
            r#"[{"role":"king","content":""}]"#,
            Err(("invalid_value", "/messages/0/role")),
        );
        check(
            r#"[{"role":"user"}]"#,
            Err(("missing_field", "/messages/0/content")),
        );
        check(
            r#"[{"role":"user","content":1}]"#,
            Err(("invalid_type", "/messages/0/content")),
        );
        check(
            r#"[{"role":"user","content":[{"type":"image_url"}]}]"#,
            Err(("unsupported_parameter", "/messages/0/content/0/type")),
        );
        check(
            r#"[{"role":"user","content":[{"type":"text"}]}]"#,
            Err(("invalid_type", "/messages/0/content/0/text")),
        );
        check(
            r#"[{"role":"user","content":"a","content":"b"}]"#,
            Err(("duplicate_field", "/messages")),
        );
    }

    #[test]
    fn the_final_message_is_cut_at_its_end() {
        let check = |text: &str, content: &str, expected: Option<&str>| {
            let messages = [serde_json::json!({"role": "assistant", "content": content})];
            let found = cut_after_final(text.to_owned(), &messages);
            assert_eq!(found.ok().as_deref(), expected, "{content:?}");
        };
        check("<a>So <b>So far<end>", "So far", Some("<a>So <b>So far"));
        check("<a>So far <end>", " So far ", Some("<a>So far "));
        check("<a>So far<end>", " So far ", Some("<a>So far"));
        check("<a><end>", "", None);
        check("<a>hidden<end>", "text", None);
    }
}
