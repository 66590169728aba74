//! Values as Python writes them: the text of `{{ value }}`, which is `str()`'s, and the filter `tojson`,
//! which is `json.dumps`.

use std::{fmt::Write as _, sync::Arc};

use minijinja::{
    Error, ErrorKind, Output, State, Value, escape_formatter,
    value::{Enumerator, Object, Rest, ValueKind},
};
use thiserror::Error as ThisError;

/// A tuple: a list that prints in round brackets.
#[derive(Debug)]
pub(super) struct Tuple(pub(super) Vec<Value>);

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> minijinja::value::ObjectRepr {
        minijinja::value::ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

/// A failure whose words hold nothing of the messages, so that they may be shown.
#[derive(Debug, ThisError)]
#[error("{0}")]
pub(super) struct Explained(pub(super) String);

/// Returns an error that is shown as `what`, which holds nothing of the messages.
pub(super) fn fail(what: impl Into<String>) -> Error {
    let what = what.into();
    Error::new(ErrorKind::InvalidOperation, what.clone()).with_source(Explained(what))
}

/// Arguments of a call, by place or by name.
pub(super) struct Args<'a> {
    list: &'a [Value],
    named: Option<&'a Value>,
    names: &'a [&'a str],
}

impl<'a> Args<'a> {
    /// Takes arguments of these names, in this order.
    pub(super) fn new(values: &'a [Value], names: &'a [&'a str]) -> Result<Self, Error> {
        let (list, named) = match values.split_last() {
            Some((last, list)) if last.is_kwargs() => (list, Some(last)),
            _ => (values, None),
        };
        if list.len() > names.len() {
            let what = format!("{} arguments, where there are {}", list.len(), names.len());
            return Err(fail(what));
        }
        for name in named.into_iter().flat_map(Value::try_iter).flatten() {
            let name = name.as_str().unwrap_or_default();
            if !names.contains(&name) {
                return Err(fail(format!("there is no argument `{name}`")));
            }
        }
        Ok(Self { list, named, names })
    }

    /// Returns an argument that was given.
    pub(super) fn given(&self, name: &str) -> Option<Value> {
        let by_place = self.names.iter().position(|known| *known == name);
        let by_place = by_place.and_then(|at| self.list.get(at)).cloned();
        let by_name = || self.named?.get_attr(name).ok();
        by_place
            .or_else(by_name)
            .filter(|found| !found.is_undefined())
    }

    /// Returns an argument that was given, and is not none.
    pub(super) fn get(&self, name: &str) -> Option<Value> {
        self.given(name).filter(|found| !found.is_none())
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Error> {
        let text = |value: Value| match value.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(fail(format!("argument `{name}` is no string"))),
        };
        self.get(name).map(text).transpose()
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, Error> {
        let int = |value: Value| {
            let int = i64::try_from(value);
            int.map_err(|_| fail(format!("argument `{name}` is no integer")))
        };
        self.get(name).map(int).transpose()
    }

    pub(super) fn need(&self, name: &str) -> Result<Value, Error> {
        let missing = || fail(format!("argument `{name}` is missing"));
        self.get(name).ok_or_else(missing)
    }

    pub(super) fn need_text(&self, name: &str) -> Result<String, Error> {
        let missing = || fail(format!("argument `{name}` is missing"));
        self.text(name)?.ok_or_else(missing)
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.is_true())
    }
}

/// Writes what `{{ value }}` prints.
pub(super) fn format_as_python(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => escape_formatter(out, state, value),
        _ => out.write_str(&python_str(value)?).map_err(Error::from),
    }
}

/// Most bytes of a text that one function makes. A few short values suffice to ask for more: a list of
/// lists that are one, or a long text between the letters of another.
pub(super) const TEXT_MAX: usize = 64 << 20;

/// Fails if a text of so many bytes, which the function `name` makes, is too long.
pub(super) fn check_size(name: &str, bytes: usize) -> Result<(), Error> {
    match bytes > TEXT_MAX {
        true => Err(fail(format!("`{name}` gives more than {TEXT_MAX} bytes"))),
        false => Ok(()),
    }
}

/// Returns the text that Python's `str()` gives.
pub(super) fn python_str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(s) => Ok(s.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => {
            let mut out = String::new();
            python_repr(&mut out, value)?;
            Ok(out)
        }
    }
}

/// Appends the text that Python's `repr()` gives for the values that JSON has.
pub(super) fn python_repr(out: &mut String, value: &Value) -> Result<(), Error> {
    check_size("str", out.len())?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => push_number(out, value, &NUMBERS),
        ValueKind::String => push_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.downcast_object_ref::<Tuple>();
            out.push(if tuple.is_some() { '(' } else { '[' });
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                python_repr(out, &item)?;
            }
            out.push_str(match tuple.map(|tuple| tuple.0.len()) {
                None => "]",
                Some(1) => ",)",
                Some(_) => ")",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                python_repr(out, &key)?;
                out.push_str(": ");
                python_repr(out, &value.get_item(&key).unwrap_or_default())?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
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
            c if c.is_ascii_control() || ('\u{80}'..='\u{a0}').contains(&c) || c == '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// The words for infinity, minus infinity and not a number, of `str()` and of `json.dumps`.
const NUMBERS: [&str; 3] = ["inf", "-inf", "nan"];
const JSON_NUMBERS: [&str; 3] = ["Infinity", "-Infinity", "NaN"];

fn push_number(out: &mut String, value: &Value, words: &[&str; 3]) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
    } else {
        let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        push_float(out, number, words);
    }
}

/// Appends a float as Python spells it: the shortest digits that read back as the same number, in
/// exponent form from 1e16 on and below 1e-4.
pub(crate) fn push_float(
    out: &mut String,
    number: f64,
    [infinity, minus_infinity, nan]: &[&str; 3],
) {
    if !number.is_finite() {
        out.push_str(match number {
            f64::INFINITY => infinity,
            f64::NEG_INFINITY => minus_infinity,
            _ => nan,
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

/// Returns `json.dumps(value)` with transformers' defaults.
pub(super) fn tojson(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let args = Args::new(&args, &names)?;
    let indent = args.get("indent").map(|indent| match indent.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let width = i64::try_from(indent)
                .unwrap_or_default()
                .clamp(0, INDENT_MAX);
            " ".repeat(usize::try_from(width).unwrap_or_default())
        }
    });
    let separators: Vec<Value> = match args.get("separators") {
        None => Vec::new(),
        Some(pair) => pair.try_iter()?.collect(),
    };
    let separators: Vec<&str> = separators.iter().filter_map(Value::as_str).collect();
    let (between, behind) = match separators[..] {
        [between, behind] => (between, behind),
        // As Python does, no blank before a line's end.
        [] => (if indent.is_some() { "," } else { ", " }, ": "),
        _ => return Err(fail("`separators` of `tojson` are two strings")),
    };
    let mut writer = JsonWriter {
        out: String::new(),
        indent: indent.as_deref(),
        between,
        behind,
        sort_keys: args.is_true("sort_keys"),
        ensure_ascii: args.is_true("ensure_ascii"),
    };
    writer.push(value, 0)?;
    Ok(writer.out)
}

/// Most blanks of one step of an indentation.
pub(super) const INDENT_MAX: i64 = 64;
/// Deepest JSON that is written: far above what a request may nest.
const DEPTH_MAX: usize = 200;

struct JsonWriter<'a> {
    out: String,
    indent: Option<&'a str>,
    between: &'a str,
    behind: &'a str,
    sort_keys: bool,
    ensure_ascii: bool,
}

impl JsonWriter<'_> {
    fn push(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(fail(format!(
                "`tojson` of a value deeper than {DEPTH_MAX} levels"
            )));
        }
        check_size("tojson", self.out.len())?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => push_number(&mut self.out, value, &JSON_NUMBERS),
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
                    writer.push_key(key)?;
                    writer.out.push_str(writer.behind);
                    writer.push(&value.get_item(key)?, depth)
                })?;
            }
            ValueKind::Undefined => return Err(fail("`tojson` of an undefined value")),
            _ => return Err(fail("`tojson` of a value that has no JSON form")),
        }
        Ok(())
    }

    /// Writes a key: what is no text becomes one.
    fn push_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::None => self.out.push_str("\"null\""),
            ValueKind::Bool => {
                let word = if key.is_true() {
                    "\"true\""
                } else {
                    "\"false\""
                };
                self.out.push_str(word);
            }
            _ => self.push_string(&python_str(key)?),
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
                (None, _) => self.out.push_str(self.between),
                (Some(_), 0) => self.break_line(depth + 1),
                (Some(_), _) => {
                    self.out.push_str(self.between);
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
            self.out.extend(std::iter::repeat_n(indent, depth));
        }
    }

    fn push_string(&mut self, s: &str) {
        // The two agree on strings: short escapes where JSON has them, \u00xx for other control
        // characters, everything else as it is.
        let quoted = serde_json::to_string(s).expect("a string always has a JSON form");
        if !self.ensure_ascii || quoted.is_ascii() {
            self.out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                self.out.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(self.out, "\\u{unit:04x}");
            }
        }
    }
}
