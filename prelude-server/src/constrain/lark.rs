//! Parts of Lark's syntax, as `llguidance` extends it, that are refused: it would be accepted and not
//! honoured, or would loosen the rules for schemas.

use serde_json::Value;

use super::spec::GUIDANCE;

/// Returns the rule that a grammar breaks. A text that is not a grammar is for the compiler to
/// refuse.
pub(super) fn refused(text: &str) -> Option<&'static str> {
    let mut refused = None;
    walk(text, |part| {
        refused = refused.or_else(|| match part {
            Part::Word("temperature", rest) if skipped(rest).starts_with('=') => {
                Some("not set `temperature`: sampling is the request's own")
            }
            Part::Value(value) if value.get(GUIDANCE).is_some() => {
                Some("not have the keyword `x-guidance`")
            }
            _ => None,
        });
    });
    refused
}

/// Returns the schemas that a grammar holds.
pub(super) fn schemas(text: &str) -> Vec<Value> {
    let mut schemas = Vec::new();
    walk(text, |part| {
        if let Part::Value(schema) = part {
            schemas.push(schema);
        }
    });
    schemas
}

/// A part of a grammar outside literals and comments.
enum Part<'a> {
    /// A word, and the text after it.
    Word(&'a str, &'a str),
    /// The JSON after a directive.
    Value(Value),
}

fn walk(text: &str, mut visit: impl FnMut(Part<'_>)) {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => quoted(rest, '"'),
            '#' => line(rest),
            '/' if rest.starts_with("//") => line(rest),
            '/' => quoted(rest, '/'),
            '<' => special(rest),
            '%' => {
                let (value, len) = directive(rest);
                value
                    .into_iter()
                    .for_each(|value| visit(Part::Value(value)));
                len
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                let len = word(rest);
                visit(Part::Word(&rest[..len], &rest[len..]));
                len
            }
            other => other.len_utf8(),
        };
        rest = &rest[len..];
    }
}

/// Returns the bytes of a literal that begins and ends with `quote`; of the quote alone if it has no
/// end.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text[1..].char_indices().find(|&(_, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(1, |(at, _)| at + 2)
}

fn line(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// Returns the bytes of `<name>`, or of `<`.
fn special(text: &str) -> usize {
    let end = text[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace());
    match end {
        Some(at) if at > 0 && text[1 + at..].starts_with('>') => at + 2,
        _ => 1,
    }
}

fn word(text: &str) -> usize {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    text.find(|c| !inside(c)).unwrap_or(text.len())
}

/// Skips blanks, line breaks and comments in front.
fn skipped(text: &str) -> &str {
    let text = text.trim_start();
    match text.starts_with('#') || text.starts_with("//") {
        true => skipped(&text[line(text)..]),
        false => text,
    }
}

/// Returns the JSON that follows `%name`, where the name says that some does, and the length of both.
fn directive(text: &str) -> (Option<Value>, usize) {
    let name = 1 + word(&text[1..]);
    if !matches!(&text[..name], "%json" | "%regex" | "%llguidance") {
        return (None, name);
    }
    let mut values = serde_json::Deserializer::from_str(&text[name..]).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => (Some(value), name + values.byte_offset()),
        _ => (None, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_would_not_be_honoured_are_found() {
        for text in [
            "start: a\na[temperature=0.5]: /x+/",
            "start: a\na[lazy, temperature = 1]: /x+/",
            "start: a\na[capture,// note\ntemperature // \"\n # more\n = 1]: /x+/",
            "start: /\\/\"/ a\na[temperature=0]: \"b\"",
            "start: <\"> a\na[temperature=0]: \"b\"",
            r#"start: %json {"x-guidance": {"lenient": true}}"#,
            r#"start: %json{"type":"null"} b
b: %json {"type": "string", "\u0078-guidance": {}}"#,
            r#"start: %lark { start: %json {"x-guidance":{}} }"#,
        ] {
            assert!(refused(text).is_some(), "{text}");
        }
    }

    #[test]
    fn texts_that_only_look_like_options_are_allowed() {
        for text in [
            "start: temperature\ntemperature: NUM \"=\" NUM",
            "start: \"[temperature=1]\" /temperature=/ // temperature=1\n# temperature=1",
            r#"start: "\"temperature=""#,
            r#"start: %json {"properties": {"x-guidance": {}, "temperature=": {}}}"#,
            r#"start: %json {"const": "x-guidance"} "%json" %json"#,
            "start: <temperature=1> \"é\" é \"",
            "",
        ] {
            assert_eq!(refused(text), None, "{text}");
        }
    }
}
