//! Python's `%`: formats in printf's manner, and the rest of a division.

use minijinja::{
    Error, FormatStyle, Value, format_filter,
    value::{Rest, ValueKind},
};

use super::{
    methods,
    python::{Tuple, check_size, fail, python_repr, python_str},
};

/// Formats a text: the filter `format`.
pub(super) fn format(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    printf(&python_str(value)?, &args)
}

/// Returns Python's `%`: of texts a format, of numbers the rest with the divisor's sign.
pub(super) fn modulo(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(format) = left.as_str() {
        let text = match right.downcast_object_ref::<Tuple>() {
            Some(tuple) => printf(format, &tuple.0),
            None => printf(format, std::slice::from_ref(right)),
        };
        return text.map(Value::from);
    }
    let int = |value: &Value| i128::try_from(value.clone()).ok();
    if let (Some(a), Some(b)) = (int(left), int(right)) {
        let rest = a
            .checked_rem(b)
            .ok_or_else(|| fail("a rest of a division by zero"))?;
        let rest = if rest != 0 && (rest < 0) != (b < 0) {
            rest + b
        } else {
            rest
        };
        return Ok(i64::try_from(rest).map_or_else(|_| Value::from(rest), Value::from));
    }
    let float = |value: &Value| f64::try_from(value.clone()).ok();
    match (float(left), float(right)) {
        (Some(a), Some(b)) if b != 0.0 => {
            let rest = a % b;
            let rest = if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
                rest + b
            } else {
                rest
            };
            Ok(Value::from(rest))
        }
        _ => Err(fail("operator % needs a string or numbers")),
    }
}

/// Returns the text of printf's manner, as Python writes it.
fn printf(format: &str, args: &[Value]) -> Result<String, Error> {
    methods::check_widths(format)?;
    let named = args.last().filter(|value| value.kind() == ValueKind::Map);
    let mut places = args.iter();
    let mut out = String::new();
    let mut rest = format;
    let mut is_named = false;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let (name, spec) = match after.strip_prefix('(').and_then(|of| of.split_once(')')) {
            Some((name, spec)) => (Some(name), spec),
            None => (None, after),
        };
        let Some((at, letter)) = spec
            .char_indices()
            .find(|(_, c)| c.is_alphabetic() || *c == '%')
        else {
            return Err(fail("a format ends in the middle of a place"));
        };
        let flags = &spec[..at];
        rest = &spec[at + letter.len_utf8()..];
        if letter == '%' {
            out.push('%');
            continue;
        }
        let value = match name {
            Some(name) => {
                is_named = true;
                named
                    .and_then(|map| map.get_attr(name).ok())
                    .filter(|v| !v.is_undefined())
            }
            None => places.next().cloned(),
        };
        let value = value.ok_or_else(|| fail("a format has more places than arguments"))?;
        out.push_str(&place(flags, letter, &value)?);
        check_size("%", out.len())?;
    }
    out.push_str(rest);
    let is_left = places.len() > usize::from(named.is_some());
    if !is_named && (is_left || (places.len() > 0 && named.is_none())) {
        return Err(fail("a format has fewer places than arguments"));
    }
    Ok(out)
}

/// Returns the text of one place of a format.
fn place(flags: &str, letter: char, value: &Value) -> Result<String, Error> {
    let (letter, value) = match letter {
        's' => ('s', Value::from(python_str(value)?)),
        'r' | 'a' => {
            let mut text = String::new();
            python_repr(&mut text, value)?;
            ('s', Value::from(text))
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let whole = match value.is_integer() {
                true => value.clone(),
                false if value.kind() == ValueKind::Bool => Value::from(i64::from(value.is_true())),
                false => {
                    let number = f64::try_from(value.clone());
                    let number = number.map_err(|_| fail("a format needs a number"))?;
                    Value::from(number.trunc() as i64)
                }
            };
            (
                if matches!(letter, 'i' | 'u') {
                    'd'
                } else {
                    letter
                },
                whole,
            )
        }
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' => {
            let number = f64::try_from(value.clone());
            (
                letter,
                Value::from(number.map_err(|_| fail("a format needs a number"))?),
            )
        }
        'c' => ('c', value.clone()),
        _ => return Err(fail(format!("unknown format `%{letter}`"))),
    };
    if flags.is_empty()
        && let Some(text) = value.as_str()
    {
        return Ok(text.to_owned());
    }
    format_filter(FormatStyle::Printf, &format!("%{flags}{letter}"), &[value])
}
