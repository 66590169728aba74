//! Reading of one tool call.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A tool call, as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The name of the function.
    pub name: String,
    /// The function's arguments: the text of a JSON object.
    pub arguments: String,
}

/// The result of reading the inside of a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Call(ToolCall),
    /// The text may become a call when more of it comes: the end tag was inside of a string.
    Unfinished,
    IllFormed,
}

#[derive(Deserialize)]
struct Written<'a> {
    name: String,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

/// Reads the inside of a block.
pub(super) fn read(body: &str) -> Body {
    let written: Written<'_> = match serde_json::from_str(body) {
        Ok(written) => written,
        Err(error) if error.is_eof() => return Body::Unfinished,
        Err(_) => return Body::IllFormed,
    };
    let arguments = written.arguments.map_or("{}", RawValue::get);
    match arguments.starts_with('{') && !written.name.is_empty() {
        true => Body::Call(ToolCall {
            name: written.name,
            arguments: arguments.to_owned(),
        }),
        false => Body::IllFormed,
    }
}

/// Reads a call from the inside of a block whose end is missing. Returns `None` if the name of the
/// function is not known yet. Arguments that are cut off are returned as the cut text.
pub(super) fn read_cut(body: &str) -> Option<ToolCall> {
    let mut rest = body.trim_start().strip_prefix('{')?;
    let (mut name, mut arguments) = (None, String::new());
    while let Some((key, after)) = value(rest) {
        let Some(behind) = after.trim_start().strip_prefix(':') else {
            break;
        };
        rest = behind.trim_start();
        let found = value(rest);
        match (serde_json::from_str::<String>(key).ok()?.as_str(), found) {
            ("name", Some((text, _))) => name = Some(serde_json::from_str(text).ok()?),
            ("arguments", _) if !rest.is_empty() && !rest.starts_with('{') => return None,
            ("arguments", Some((text, _))) => text.clone_into(&mut arguments),
            ("arguments", None) => rest.clone_into(&mut arguments),
            _ => {}
        }
        let Some((_, after)) = found else { break };
        let Some(next) = after.trim_start().strip_prefix(',') else {
            break;
        };
        rest = next;
    }
    let name: String = name?;
    (!name.is_empty()).then_some(ToolCall { name, arguments })
}

/// Returns the whole JSON value that a text begins with, and the text after it.
fn value(text: &str) -> Option<(&str, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let value = values.next()?.ok()?.get();
    Some((value, &text[values.byte_offset()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_block_is_as_much_of_a_call() {
        let check = |body: &str, expected: Option<(&str, &str)>| {
            let found = read_cut(body);
            let found = found.as_ref().map(|c| (&*c.name, &*c.arguments));
            assert_eq!(found, expected, "{body}");
        };
        let whole = r#"{"name": "f", "arguments": {"a": [1, "}"]}}"#;
        check(whole, Some(("f", r#"{"a": [1, "}"]}"#)));
        let begins = whole.find("{\"a\"").unwrap();
        for at in 0..whole.len() {
            let arguments = &whole[begins.min(at)..at.min(whole.len() - 1)];
            let is_named = at >= whole.find(',').unwrap();
            check(&whole[..at], is_named.then_some(("f", arguments)));
        }
        check(r#"{"name":"f"}\n</tool_c"#, Some(("f", "")));
        check(
            r#"{"arguments":{"a":1},"name":"f""#,
            Some(("f", r#"{"a":1}"#)),
        );
        check(r#"{"arguments":{"a":1"#, None);
        check(r#"{"name":"f","arguments":[1"#, None);
        check(r#"{"name":"","arguments":{"#, None);
        check(r#"{"name":1,"arguments":{"#, None);
        check("f(1", None);
        check("", None);
    }

    #[test]
    fn a_block_is_a_call_or_not() {
        let call = |name: &str, arguments: &str| {
            Body::Call(ToolCall {
                name: name.to_owned(),
                arguments: arguments.to_owned(),
            })
        };
        let check = |body: &str, expected: Body| assert_eq!(read(body), expected, "{body}");
        check(
            "\n{\"name\": \"f\", \"arguments\": {\"a\": 1.50}}\n",
            call("f", "{\"a\": 1.50}"),
        );
        check(r#"{"arguments":{},"name":"f","id":3}"#, call("f", "{}"));
        check(r#"{"name":"f"}"#, call("f", "{}"));
        check(r#"{"name":"f","arguments":{"#, Body::Unfinished);
        check("", Body::Unfinished);
        check(r#"{"name":"f","arguments":[]}"#, Body::IllFormed);
        check(r#"{"name":"","arguments":{}}"#, Body::IllFormed);
        check(r#"{"name":1,"arguments":{}}"#, Body::IllFormed);
        check(r#"{"arguments":{}}"#, Body::IllFormed);
        check("f(1)", Body::IllFormed);
        check(r#"{"name":"f"} {"#, Body::IllFormed);
    }
}
