//! Values as Python writes them: the text of `{{ value }}`, which is `str()`'s, and the filter `tojson`,
//! which is `json.dumps`.

use std::fmt::Write as _;

use minijinja::{
    Error, ErrorKind, Output, State, Value, escape_formatter,
    value::{Kwargs, ValueKind},
};

/// Writes what `{{ value }}` prints.
pub(super) fn format_as_python(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => escape_formatter(out, state, value),
        _ => out.write_str(&python_str(value)).map_err(Error::from),
    }
}

/// Returns the text that Python's `str()` gives.
pub(super) fn python_str(value: &Value) -> String {
    match value.as_str() {
        Some(s) => s.to_owned(),
        None if value.is_undefined() => String::new(),
        None => {
            let mut out = String::new();
            python_repr(&mut out, value);
            out
        }
    }
}

/// Appends the text that Python's `repr()` gives for the values that JSON has.
fn python_repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => push_number(out, value),
        ValueKind::String => push_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                python_repr(out, &item);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                python_repr(out, &key);
                out.push_str(": ");
                python_repr(out, &value.get_item(&key).unwrap_or_default());
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
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
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn push_number(out: &mut String, value: &Value) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
    } else {
        let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        push_float(out, number);
    }
}

/// Appends a float as Python spells it: the shortest digits that read back as the same number, in
/// exponent form from 1e16 on and below 1e-4.
fn push_float(out: &mut String, number: f64) {
    if !number.is_finite() {
        out.push_str(match number {
            f64::INFINITY => "Infinity",
            f64::NEG_INFINITY => "-Infinity",
            _ => "NaN",
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

/// Returns `json.dumps(value, ensure_ascii=False)`, with the keywords that templates use.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    // Templates written for plain Jinja2 say `ensure_ascii=False`, which is what this does.
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    if ensure_ascii == Some(true) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson(ensure_ascii=true) is not supported",
        ));
    }
    kwargs.assert_all_used()?;
    let mut writer = JsonWriter {
        out: String::new(),
        indent,
        sort_keys: sort_keys.unwrap_or(false),
    };
    writer.push(value, 0)?;
    Ok(writer.out)
}

struct JsonWriter {
    out: String,
    indent: Option<usize>,
    sort_keys: bool,
}

impl JsonWriter {
    fn push(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => push_number(&mut self.out, value),
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
                    writer.push_string(&python_str(key));
                    writer.out.push_str(": ");
                    writer.push(&value.get_item(key)?, depth)
                })?;
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    "the value has no JSON form",
                ));
            }
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
                (None, _) => self.out.push_str(", "),
                (Some(_), 0) => self.break_line(depth + 1),
                (Some(_), _) => {
                    self.out.push(',');
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
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn push_string(&mut self, s: &str) {
        // The two agree on strings: short escapes where JSON has them, \u00xx for other control
        // characters, everything else as it is.
        let quoted = serde_json::to_string(s).expect("a string always has a JSON form");
        self.out.push_str(&quoted);
    }
}
