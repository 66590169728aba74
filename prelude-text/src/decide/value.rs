//! Texts and JSON of a request, and the ways in which decision models' prompts show them.

use std::{borrow::Cow, collections::HashMap, fmt};

use super::text::compact_json;
use crate::template::push_float;

/// A text, or JSON that stands for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextOrJson {
    /// The text; of JSON the compact form, which loses nothing.
    text: String,
    is_json: bool,
}

impl TextOrJson {
    /// No text.
    pub const EMPTY: Self = Self {
        text: String::new(),
        is_json: false,
    };

    /// Returns valid JSON as such: its first character decides what it is taken for, so that a string
    /// in it is shown with quotes.
    #[must_use]
    pub fn json(json: &str) -> Self {
        Self {
            text: compact_json(json),
            is_json: true,
        }
    }

    /// Returns the text; of JSON the compact form ([`compact_json`]).
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if there is no text.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns true if it is a list in JSON.
    #[must_use]
    pub fn is_list(&self) -> bool {
        self.is_json && self.text.starts_with('[')
    }

    /// Returns the text; of JSON what Python's `json.dumps` writes with `ensure_ascii=False`.
    #[must_use]
    pub fn spaced(&self) -> Cow<'_, str> {
        self.dumped(Separators {
            between: ", ",
            behind: ": ",
            sorted: false,
        })
    }

    /// Returns the text; of JSON a form without blanks and with keys in the order of their code points,
    /// numbers as Python writes them.
    #[must_use]
    pub fn canonical(&self) -> Cow<'_, str> {
        self.dumped(CANONICAL)
    }

    /// Returns the text; of JSON an outline: a line for each member and entry, indented by two blanks.
    #[must_use]
    pub fn outline(&self) -> Cow<'_, str> {
        match self.is_json {
            false => Cow::Borrowed(&self.text),
            true => {
                let mut out = String::new();
                outline(&mut out, &Json::of(&self.text), 0);
                Cow::Owned(out)
            }
        }
    }

    fn dumped(&self, separators: Separators) -> Cow<'_, str> {
        match self.is_json {
            false => Cow::Borrowed(&self.text),
            true => {
                let mut out = String::with_capacity(self.text.len());
                dump(&mut out, &Json::of(&self.text), separators);
                Cow::Owned(out)
            }
        }
    }
}

impl<T: Into<String>> From<T> for TextOrJson {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            is_json: false,
        }
    }
}

impl fmt::Display for TextOrJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What stands between the parts of JSON.
#[derive(Clone, Copy)]
struct Separators {
    between: &'static str,
    behind: &'static str,
    sorted: bool,
}

const CANONICAL: Separators = Separators {
    between: ",",
    behind: ":",
    sorted: true,
};

/// Returns `{"key":text,…}` in the canonical form, from texts and JSON; `None` is null.
#[must_use]
pub(super) fn canonical_object(members: &[(&str, Option<&TextOrJson>)]) -> String {
    let mut sorted = members.to_vec();
    sorted.sort_unstable_by_key(|(name, _)| *name);
    let mut out = String::from("{");
    for (i, (name, value)) in sorted.into_iter().enumerate() {
        out.push_str(if i == 0 { "" } else { "," });
        push_json_string(&mut out, name);
        out.push(':');
        match value {
            None => out.push_str("null"),
            Some(value) if value.is_json => out.push_str(&value.canonical()),
            Some(value) => push_json_string(&mut out, &value.text),
        }
    }
    out.push('}');
    out
}

/// A value of JSON, with numbers as they are spelt.
enum Json<'a> {
    /// `null`, `true` or `false`.
    Word(&'a str),
    Number(&'a str),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    /// The members, each name once: the last of equal names wins, at the place of the first.
    Object(Vec<(Cow<'a, str>, Self)>),
}

impl<'a> Json<'a> {
    /// Reads compact JSON, which is valid.
    fn of(compact: &'a str) -> Self {
        Self::read(&mut { compact })
    }

    fn read(rest: &mut &'a str) -> Self {
        match rest.bytes().next() {
            Some(b'"') => Self::Text(read_string(rest)),
            Some(b'[') => {
                let mut items = Vec::new();
                while !take(rest, &['[', ','], ']') {
                    items.push(Self::read(rest));
                }
                Self::List(items)
            }
            Some(b'{') => {
                let mut members: Vec<(Cow<'a, str>, Self)> = Vec::new();
                let mut places: HashMap<Cow<'a, str>, usize> = HashMap::new();
                while !take(rest, &['{', ','], '}') {
                    let name = read_string(rest);
                    *rest = rest.strip_prefix(':').unwrap_or(rest);
                    let value = Self::read(rest);
                    match places.get(&name) {
                        Some(&place) => members[place].1 = value,
                        None => {
                            places.insert(name.clone(), members.len());
                            members.push((name, value));
                        }
                    }
                }
                Self::Object(members)
            }
            _ => {
                let end = rest.find([',', ']', '}']).unwrap_or(rest.len());
                let (word, behind) = rest.split_at(end);
                *rest = behind;
                match word.starts_with(|c: char| c.is_ascii_alphabetic()) {
                    true => Self::Word(word),
                    false => Self::Number(word),
                }
            }
        }
    }
}

/// Takes what stands before an entry, or the end of all entries; true at the end.
fn take(rest: &mut &str, before: &[char], end: char) -> bool {
    if let Some(behind) = rest.strip_prefix(before) {
        // An empty list or object ends where its first entry would begin.
        match behind.strip_prefix(end) {
            None => {
                *rest = behind;
                return false;
            }
            Some(behind) => *rest = behind,
        }
        return true;
    }
    *rest = rest.strip_prefix(end).unwrap_or_default();
    true
}

fn read_string<'a>(rest: &mut &'a str) -> Cow<'a, str> {
    let (mut escaped, mut has_escapes) = (false, false);
    let is_end = |byte: u8| match byte {
        _ if escaped => {
            escaped = false;
            false
        }
        b'\\' => {
            (escaped, has_escapes) = (true, true);
            false
        }
        byte => byte == b'"',
    };
    let len = rest
        .bytes()
        .skip(1)
        .position(is_end)
        .map_or(rest.len(), |at| at + 2);
    let (literal, behind) = rest.split_at(len);
    *rest = behind;
    let inner = literal.trim_start_matches('"');
    let inner = inner.strip_suffix('"').unwrap_or(inner);
    match has_escapes {
        false => Cow::Borrowed(&literal[1..len.max(2) - 1]),
        // Half a surrogate pair has no text; its escape stays as it was written.
        true => Cow::Owned(serde_json::from_str(literal).unwrap_or_else(|_| inner.to_owned())),
    }
}

fn dump(out: &mut String, json: &Json<'_>, separators: Separators) {
    match json {
        Json::Word(word) => out.push_str(word),
        Json::Number(number) => push_number(out, number, &["Infinity", "-Infinity", "NaN"]),
        Json::Text(text) => push_json_string(out, text),
        Json::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { separators.between });
                dump(out, item, separators);
            }
            out.push(']');
        }
        Json::Object(members) => {
            let mut order: Vec<_> = members.iter().collect();
            if separators.sorted {
                // By code points, which is the order of UTF-8's bytes.
                order.sort_by(|a, b| a.0.cmp(&b.0));
            }
            out.push('{');
            for (i, (name, value)) in order.into_iter().enumerate() {
                out.push_str(if i == 0 { "" } else { separators.between });
                push_json_string(out, name);
                out.push_str(separators.behind);
                dump(out, value, separators);
            }
            out.push('}');
        }
    }
}

/// Appends a value at a depth of an outline.
fn outline(out: &mut String, json: &Json<'_>, depth: usize) {
    let pad = "  ".repeat(depth);
    match json {
        Json::Word("true") => out.push_str("True"),
        Json::Word("false") => out.push_str("False"),
        Json::Word(_) => {}
        Json::Number(number) => push_number(out, number, &["inf", "-inf", "nan"]),
        Json::Text(text) => out.push_str(text),
        Json::List(items) => {
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "\n" });
                out.push_str(&pad);
                out.push_str("- ");
                let mut inner = String::new();
                outline(&mut inner, item, depth + 1);
                out.push_str(inner.trim_start());
            }
        }
        Json::Object(members) => {
            for (i, (name, value)) in members.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "\n" });
                out.push_str(&pad);
                out.push_str(name);
                let is_nested = matches!(value, Json::List(_) | Json::Object(_));
                out.push_str(if is_nested { ":\n" } else { ": " });
                outline(out, value, depth + 1);
            }
        }
    }
}

/// Appends a number as Python writes what it reads of it: integers as they are, others by the shortest
/// digits.
fn push_number(out: &mut String, number: &str, words: &[&str; 3]) {
    match number.contains(['.', 'e', 'E']) {
        true => push_float(out, number.parse().unwrap_or(f64::NAN), words),
        false if number == "-0" => out.push('0'),
        false => out.push_str(number),
    }
}

fn push_json_string(out: &mut String, text: &str) {
    out.push_str(&serde_json::to_string(text).expect("a string always has a JSON form"));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As `json.dumps(json.loads(x), ensure_ascii=False)` of Python 3.12 prints them.
    #[test]
    fn json_is_shown_as_python_does() {
        let check = |json: &str, spaced: &str, canonical: &str| {
            let value = TextOrJson::json(json);
            assert_eq!(value.spaced(), spaced);
            assert_eq!(value.canonical(), canonical);
        };
        check(
            r#"{"b": [1, 2.50, 1e16, 1E2, -0, -0.0, 1e-5], "a": {"z": null, "é": true}}"#,
            r#"{"b": [1, 2.5, 1e+16, 100.0, 0, -0.0, 1e-05], "a": {"z": null, "é": true}}"#,
            r#"{"a":{"z":null,"é":true},"b":[1,2.5,1e+16,100.0,0,-0.0,1e-05]}"#,
        );
        check("[]", "[]", "[]");
        check("[{}, [], [[]]]", "[{}, [], [[]]]", "[{},[],[[]]]");
        check(
            r#"["\u00e9\/\u0001\u2028\n", 123456789012345678901234567890]"#,
            "[\"é/\\u0001\u{2028}\\n\", 123456789012345678901234567890]",
            "[\"é/\\u0001\u{2028}\\n\",123456789012345678901234567890]",
        );
        check(
            r#"{"k":1,"l":2,"k":3}"#,
            r#"{"k": 3, "l": 2}"#,
            r#"{"k":3,"l":2}"#,
        );
        check(
            r#"["a\"b", "", "\\"]"#,
            r#"["a\"b", "", "\\"]"#,
            r#"["a\"b","","\\"]"#,
        );
        check("[1e400]", "[Infinity]", "[Infinity]");
        let text = TextOrJson::from("{\"a\": 1}");
        assert_eq!(text.spaced(), "{\"a\": 1}");
    }

    #[test]
    fn outlines_have_a_line_for_each_part() {
        let check = |json: &str, expected: &str| {
            assert_eq!(TextOrJson::json(json).outline(), expected);
        };
        check(
            r#"{"a": "x", "b": [1, [true, null]], "c": {"d": 2.50, "e": {}}}"#,
            "a: x\nb:\n  - 1\n  - - True\n    - \nc:\n  d: 2.5\n  e:\n",
        );
        check(r#"[{"k": "v", "w": 1}, "t"]"#, "- k: v\n  w: 1\n- t");
        assert_eq!(TextOrJson::from(" t ").outline(), " t ");
    }

    #[test]
    fn objects_of_texts_and_json_are_canonical() {
        let (key, description) = (
            TextOrJson::from("a\n"),
            TextOrJson::json(r#"{"y": 1, "x": 2}"#),
        );
        assert_eq!(
            canonical_object(&[("key", Some(&key)), ("description", Some(&description))]),
            r#"{"description":{"x":2,"y":1},"key":"a\n"}"#
        );
        assert_eq!(
            canonical_object(&[("description", None)]),
            r#"{"description":null}"#
        );
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(serde_json::Value::String),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::vec((".*", inner), 0..5).prop_map(|entries| {
                    serde_json::Value::Object(entries.into_iter().collect())
                }),
            ]
        })
    }

    proptest! {
        /// What is shown reads as the same value, and the canonical form of equal values is equal.
        #[test]
        fn shown_json_keeps_the_value(value in json()) {
            let given = TextOrJson::json(&value.to_string());
            for shown in [given.spaced(), given.canonical()] {
                prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&shown).unwrap(), &value);
            }
            let again = TextOrJson::json(&given.spaced());
            prop_assert_eq!(again.canonical(), given.canonical());
        }
    }
}
