//! One call of a tool.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A call, as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    /// The function.
    pub(crate) name: String,
    /// Its arguments: the text of a JSON object.
    pub(crate) arguments: String,
}

/// What the inside of a block is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Call(ToolCall),
    /// It may become a call when more comes: the end tag was inside a string.
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

#[cfg(test)]
mod tests {
    use super::*;

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
