//! Python's methods of texts, lists and dictionaries, which Jinja2 gives to templates. What is not
//! here is minijinja-contrib's.

use std::ops::Range;

use minijinja::{Error, ErrorKind, State, Value, value::ValueKind};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python::{Args, Tuple, check_size, fail, python_str};

/// Longest text that a width may ask for.
pub(super) const WIDTH_MAX: i64 = 10_000;

/// Calls a method of a value that has none of its own.
pub(super) fn call(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let found = match value.kind() {
        ValueKind::String => of_text(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Map => of_dictionary(value, method, args)?,
        ValueKind::Seq | ValueKind::Iterable => of_list(value, method, args)?,
        _ => None,
    };
    if let Some(found) = found {
        return Ok(found);
    }
    let called = match value.kind() {
        ValueKind::Undefined => Err(ErrorKind::UnknownMethod.into()),
        _ => unknown_method_callback(state, value, method, args),
    };
    called.map_err(|error| match error.kind() {
        ErrorKind::UnknownMethod => {
            let of = name_of(value.kind());
            let what = format!("unknown method `{method}` of {of}");
            Error::new(ErrorKind::UnknownMethod, what)
        }
        _ => error,
    })
}

const fn name_of(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Undefined => "an undefined value",
        ValueKind::None => "none",
        ValueKind::Bool => "a boolean",
        ValueKind::Number => "a number",
        ValueKind::String => "a string",
        ValueKind::Seq | ValueKind::Iterable => "a list",
        ValueKind::Map => "a dictionary",
        _ => "a value",
    }
}

fn of_dictionary(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let none: &[&str] = &[];
    Ok(Some(match method {
        "items" => {
            Args::new(args, none)?;
            pairs(value)?
        }
        "copy" => {
            Args::new(args, none)?;
            value.clone()
        }
        _ => return Ok(None),
    }))
}

/// Returns the list of keys and values.
pub(super) fn pairs(map: &Value) -> Result<Value, Error> {
    let pair = |key: Value| {
        let value = map.get_item(&key).unwrap_or_default();
        Value::from_object(Tuple(vec![key, value]))
    };
    Ok(Value::from(map.try_iter()?.map(pair).collect::<Vec<_>>()))
}

fn of_list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "count" => {
            let wanted = Args::new(args, &["value"])?.need("value")?;
            Value::from(value.try_iter()?.filter(|item| *item == wanted).count())
        }
        "index" => {
            let wanted = Args::new(args, &["value"])?.need("value")?;
            let at = value.try_iter()?.position(|item| item == wanted);
            Value::from(at.ok_or_else(|| fail("`index` of a value that the list has not"))?)
        }
        "copy" => value.clone(),
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => {
            return Err(fail(format!(
                "`{method}` changes a list: templates change nothing"
            )));
        }
        _ => return Ok(None),
    }))
}

/// True of what Python's `strip` takes away.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Returns the text without blanks, or without `chars`, at the ends that are named.
pub(super) fn stripped(text: &str, chars: Option<&str>, start: bool, end: bool) -> Value {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start {
        text.trim_start_matches(goes)
    } else {
        text
    };
    Value::from(if end {
        text.trim_end_matches(goes)
    } else {
        text
    })
}

/// Texts of methods that ask about every letter, and say no of none.
fn all(text: &str, is: impl Fn(char) -> bool) -> Value {
    Value::from(!text.is_empty() && text.chars().all(is))
}

/// Returns true if all letters that have a case have this one, and one has.
fn cased(text: &str, is: fn(char) -> bool, other: fn(char) -> bool) -> Value {
    Value::from(text.contains(is) && !text.contains(other))
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let none: &[&str] = &[];
    let plain = || Args::new(args, none).map(drop);
    let found = match method {
        "isdigit" | "isdecimal" | "isnumeric" => {
            plain()?;
            all(text, char::is_numeric)
        }
        "isalpha" => {
            plain()?;
            all(text, char::is_alphabetic)
        }
        "isalnum" => {
            plain()?;
            all(text, char::is_alphanumeric)
        }
        "isspace" => {
            plain()?;
            all(text, is_space)
        }
        "islower" => {
            plain()?;
            cased(text, char::is_lowercase, char::is_uppercase)
        }
        "isupper" => {
            plain()?;
            cased(text, char::is_uppercase, char::is_lowercase)
        }
        "swapcase" => {
            plain()?;
            let swapped = text.chars().map(|c| match c.is_lowercase() {
                true => c.to_uppercase().to_string(),
                false => c.to_lowercase().to_string(),
            });
            Value::from(swapped.collect::<String>())
        }
        "startswith" | "endswith" => begins_or_ends(text, args, method == "endswith")?,
        "strip" | "lstrip" | "rstrip" => {
            let chars = Args::new(args, &["chars"])?.text("chars")?;
            stripped(
                text,
                chars.as_deref(),
                method != "rstrip",
                method != "lstrip",
            )
        }
        "split" | "rsplit" => split(text, args, method == "rsplit")?,
        "splitlines" => {
            let args = Args::new(args, &["keepends"])?;
            Value::from_iter(lines(text, args.is_true("keepends")))
        }
        "partition" | "rpartition" => partition(text, args, method == "rpartition")?,
        "removeprefix" | "removesuffix" => {
            let affix = Args::new(args, &["affix"])?.need_text("affix")?;
            let rest = match method {
                "removeprefix" => text.strip_prefix(&*affix),
                _ => text.strip_suffix(&*affix),
            };
            Value::from(rest.unwrap_or(text))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, method, args)?,
        "replace" => {
            let args = Args::new(args, &["old", "new", "count"])?;
            let (old, new) = (args.need_text("old")?, args.need_text("new")?);
            let count = args
                .int("count")?
                .and_then(|count| usize::try_from(count).ok());
            Value::from(replaced(text, &old, &new, count)?)
        }
        "zfill" | "ljust" | "rjust" | "center" => padded(text, method, args)?,
        "join" => joined(text, args)?,
        "format" => formatted(text, args)?,
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// Returns the texts of a list with `between` between them: the method `join`.
fn joined(between: &str, args: &[Value]) -> Result<Value, Error> {
    let list = Args::new(args, &["iterable"])?.need("iterable")?;
    let texts: Result<Vec<String>, Error> =
        list.try_iter()?.map(|item| python_str(&item)).collect();
    let texts = texts?;
    let gaps = between.len().saturating_mul(texts.len().saturating_sub(1));
    let bytes: usize = texts.iter().map(String::len).sum();
    check_size("join", bytes.saturating_add(gaps))?;
    Ok(Value::from(texts.join(between)))
}

/// Returns the text with `new` in the place of `old`, in the first `count` places.
pub(super) fn replaced(
    text: &str,
    old: &str,
    new: &str,
    count: Option<usize>,
) -> Result<String, Error> {
    let places = text.matches(old).take(count.unwrap_or(usize::MAX)).count();
    let grows = new.len().saturating_sub(old.len()).saturating_mul(places);
    check_size("replace", text.len().saturating_add(grows))?;
    Ok(text.replacen(old, new, places))
}

fn split(text: &str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let args = Args::new(args, &["sep", "maxsplit"])?;
    let separator = args.text("sep")?;
    let most = args
        .int("maxsplit")?
        .and_then(|most| usize::try_from(most).ok());
    let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match separator.as_deref() {
        Some("") => return Err(fail("`split` needs a separator that is not empty")),
        Some(by) if from_end => text.rsplitn(most, by).collect(),
        Some(by) => text.splitn(most, by).collect(),
        None => words(text, most, from_end),
    };
    if from_end {
        parts.reverse();
    }
    Ok(Value::from_iter(parts))
}

/// Returns the words of a text, the last of `most` with all that follows it.
fn words(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = match from_end {
            true => rest.trim_end_matches(is_space),
            false => rest.trim_start_matches(is_space),
        };
        if rest.is_empty() {
            return words;
        }
        let cut = match from_end {
            _ if words.len() + 1 == most => None,
            true => rest.rsplit_once(is_space).map(|(rest, word)| (word, rest)),
            false => rest.split_once(is_space),
        };
        let (word, left) = cut.unwrap_or((rest, ""));
        words.push(word);
        rest = left;
    }
}

pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    const ENDS: [char; 10] = [
        '\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}',
    ];
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ENDS) {
        let end = match rest[at..].chars().next() {
            Some('\r') if rest[at + 1..].starts_with('\n') => at + 2,
            first => at + first.map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keep { end } else { at }]);
        rest = &rest[end..];
    }
    lines.extend((!rest.is_empty()).then_some(rest));
    lines
}

fn partition(text: &str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let by = Args::new(args, &["sep"])?.need_text("sep")?;
    if by.is_empty() {
        return Err(fail("`partition` needs a separator that is not empty"));
    }
    let parts = match from_end {
        true => match text.rsplit_once(&*by) {
            Some((before, after)) => [before, &by, after],
            None => ["", "", text],
        },
        false => match text.split_once(&*by) {
            Some((before, after)) => [before, &by, after],
            None => [text, "", ""],
        },
    };
    Ok(Value::from_object(Tuple(parts.map(Value::from).to_vec())))
}

/// Returns the bytes from argument `start` to `end`, which count letters, from the end below zero.
fn range(text: &str, args: &Args<'_>) -> Result<Range<usize>, Error> {
    let len = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { (len() + at).max(0) } else { at };
    let byte = |at: i64| {
        let at = usize::try_from(at).unwrap_or_default();
        let found = text.char_indices().nth(at);
        found.map_or(text.len(), |(byte, _)| byte)
    };
    let start = args.int("start")?.map_or(0, |at| byte(place(at)));
    let end = args.int("end")?.map_or(text.len(), |at| byte(place(at)));
    Ok(start..end.max(start))
}

fn begins_or_ends(text: &str, args: &[Value], ends: bool) -> Result<Value, Error> {
    let args = Args::new(args, &["affix", "start", "end"])?;
    let inside = &text[range(text, &args)?];
    let affix = args.need("affix")?;
    let is = |affix: &Value| {
        let affix = affix.as_str();
        let affix = affix.ok_or_else(|| fail("an affix is no string"))?;
        Ok(if ends {
            inside.ends_with(affix)
        } else {
            inside.starts_with(affix)
        })
    };
    if affix.as_str().is_some() {
        return is(&affix).map(Value::from);
    }
    for affix in affix.try_iter()? {
        if is(&affix)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

/// Places are counted in letters.
fn search(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new(args, &["sub", "start", "end"])?;
    let wanted = args.need_text("sub")?;
    let Range { start, end } = range(text, &args)?;
    let inside = &text[start..end];
    let at = match method {
        "count" => {
            let count = match wanted.is_empty() {
                true => inside.chars().count() + 1,
                false => inside.matches(&*wanted).count(),
            };
            return Ok(Value::from(count));
        }
        "find" | "index" => inside.find(&*wanted),
        _ => inside.rfind(&*wanted),
    };
    match at {
        Some(at) => Ok(Value::from(text[..start + at].chars().count())),
        None if method.ends_with("index") => {
            Err(fail(format!("`{method}` of a text that is not there")))
        }
        None => Ok(Value::from(-1)),
    }
}

pub(super) fn padded(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new(args, &["width", "fillchar"])?;
    let width = args
        .int("width")?
        .ok_or_else(|| fail("a width is missing"))?;
    if width > WIDTH_MAX {
        return Err(fail(format!("a width is more than {WIDTH_MAX}")));
    }
    let fill = args.text("fillchar")?.unwrap_or_else(|| " ".to_owned());
    let missing = usize::try_from(width).unwrap_or_default();
    let missing = missing.saturating_sub(text.chars().count());
    let (before, after) = match method {
        "ljust" => (0, missing),
        "center" => {
            // Python puts the odd one on the left where the width is odd.
            let odd = missing & usize::try_from(width).unwrap_or_default() & 1;
            (missing / 2 + odd, missing - missing / 2 - odd)
        }
        _ => (missing, 0),
    };
    check_size(
        method,
        text.len()
            .saturating_add(fill.len().saturating_mul(missing)),
    )?;
    if method == "zfill" {
        let sign = text.len() - text.trim_start_matches(['+', '-']).len();
        let (sign, digits) = text.split_at(sign.min(1));
        return Ok(Value::from([sign, &"0".repeat(missing), digits].concat()));
    }
    Ok(Value::from(
        [&fill.repeat(before), text, &fill.repeat(after)].concat(),
    ))
}

/// Returns `str.format`'s text.
fn formatted(text: &str, args: &[Value]) -> Result<Value, Error> {
    check_widths(text)?;
    // `{}` is what `str()` says; numbers and fields of objects are the engine's.
    let shown = |value: &Value| match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Seq | ValueKind::Iterable => {
            python_str(value).map(Value::from)
        }
        ValueKind::Map if !value.is_kwargs() && !text.contains("[") => {
            python_str(value).map(Value::from)
        }
        _ => Ok(value.clone()),
    };
    let args: Vec<Value> = args.iter().map(shown).collect::<Result<_, Error>>()?;
    let style = minijinja::FormatStyle::StrFormat;
    minijinja::format_filter(style, text, &args).map(Value::from)
}

/// Checks that no number in a format is a width that would fill the memory.
pub(super) fn check_widths(format: &str) -> Result<(), Error> {
    let digits = format.split(|c: char| !c.is_ascii_digit());
    match digits.map(str::len).max() {
        Some(5..) if format.contains(['{', '%']) => {
            Err(fail("a format has a width of more than four digits"))
        }
        _ => Ok(()),
    }
}
