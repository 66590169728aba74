//! Filters, tests and functions where Jinja2's differ from minijinja's, and those that it has not.

use minijinja::{
    Environment, Error, ErrorKind, Value,
    value::{Rest, ValueKind},
};

use super::{
    Raised, methods, percent,
    python::{self, Args, Tuple, fail, python_repr, python_str},
    rewrite::{MOD, SLICE, TUPLE},
};

/// Puts everything that templates expect of transformers' Jinja2 into an environment.
pub(super) fn extend(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(python::format_as_python);
    env.add_filter("tojson", python::tojson);
    env.add_filter("string", string);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("join", join);
    env.add_filter("sum", sum);
    env.add_filter("items", items);
    env.add_filter("dictsort", dictsort);
    env.add_filter("trim", trim);
    env.add_filter("replace", replace);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("format", percent::format);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("round", round);
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
    env.add_filter("wordcount", |value: &Value| {
        Ok::<_, Error>(python_str(value)?.split_whitespace().count())
    });
    env.add_filter("first", first);
    env.add_filter("last", last);
    env.add_filter("min", |values: &Value, args: Rest<Value>| {
        extreme(values, &args, false)
    });
    env.add_filter("max", |values: &Value, args: Rest<Value>| {
        extreme(values, &args, true)
    });
    env.add_filter("indent", indent);
    env.add_filter("center", center);
    env.add_filter("striptags", minijinja_contrib::filters::striptags);
    env.add_filter("pprint", |value: &Value| {
        let mut out = String::new();
        python_repr(&mut out, value)?;
        Ok::<_, Error>(out)
    });
    env.add_filter(MOD, percent::modulo);
    env.add_filter(SLICE, sliced);
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", |value: &Value| is_sequence(value));
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    env.add_function(TUPLE, |values: Rest<Value>| {
        Value::from_object(Tuple(values.0))
    });
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_function("cycler", |items: Rest<Value>| {
        minijinja_contrib::globals::cycler(items.0)
    });
    env.add_function("joiner", minijinja_contrib::globals::joiner);
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now).map_err(|_| fail("unknown strftime directive"))
}

fn string(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => python_str(value).map(Value::from),
    }
}

/// The length of what is not defined is 0, as Jinja2 has it.
fn length(value: &Value) -> Result<usize, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(0),
        ValueKind::Iterable => Ok(value.try_iter()?.count()),
        _ => value
            .len()
            .ok_or_else(|| fail("a length of a value that has none")),
    }
}

/// Returns an item's attribute: `a.b`, or a number in a list.
fn attribute(item: &Value, path: &Value) -> Value {
    let Some(path) = path.as_str() else {
        return item.get_item(path).unwrap_or_default();
    };
    let step = |value: Value, name: &str| match name.parse::<usize>() {
        Ok(at) => value.get_item(&Value::from(at)).unwrap_or_default(),
        Err(_) => value.get_attr(name).unwrap_or_default(),
    };
    path.split('.').fold(item.clone(), step)
}

fn attributes(
    values: &Value,
    args: &Args<'_>,
) -> Result<impl Iterator<Item = Value> + use<>, Error> {
    let path = args.get("attribute");
    let item = move |item: Value| match &path {
        Some(path) => attribute(&item, path),
        None => item,
    };
    Ok(values.try_iter()?.map(item))
}

fn join(values: &Value, args: Rest<Value>) -> Result<String, Error> {
    let args = Args::new(&args, &["d", "attribute"])?;
    let between = args.get("d").map(|d| python_str(&d)).transpose()?;
    let between = between.unwrap_or_default();
    let mut out = String::new();
    for (i, item) in attributes(values, &args)?.enumerate() {
        if i > 0 {
            out.push_str(&between);
        }
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => out.push_str(&python_str(&item)?),
        }
        python::check_size("join", out.len())?;
    }
    Ok(out)
}

/// Returns Python's `value[start:stop:step]` of a text, a list or a tuple.
fn sliced(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let int = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => i64::try_from(value.clone())
            .map(Some)
            .map_err(|_| fail("a place in a slice is no integer")),
    };
    let (start, stop, step) = (int(start)?, int(stop)?, int(step)?.unwrap_or(1));
    if step == 0 {
        return Err(fail("the step of a slice is 0"));
    }
    let places = |count: usize| {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let (low, high) = if step > 0 {
            (0, count)
        } else {
            (-1, count - 1)
        };
        let bounded = |at: Option<i64>, missing: i64| match at {
            None => missing,
            Some(at) if at < 0 => at.saturating_add(count).clamp(low, high),
            Some(at) => at.min(high),
        };
        let (first, end) = match step > 0 {
            true => (bounded(start, low), bounded(stop, high)),
            false => (bounded(start, high), bounded(stop, low)),
        };
        let next = move |at: &i64| at.checked_add(step);
        std::iter::successors(Some(first), next)
            .take_while(move |at| if step > 0 { *at < end } else { *at > end })
            .filter_map(|at| usize::try_from(at).ok())
    };
    if let Some(text) = value.as_str() {
        let letters: Vec<char> = text.chars().collect();
        let taken = places(letters.len()).map(|at| letters[at]);
        return Ok(Value::from(taken.collect::<String>()));
    }
    let items: Vec<Value> = match value.kind() {
        ValueKind::Undefined | ValueKind::None => Vec::new(),
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.collect(),
        kind => return Err(fail(format!("a value of type {kind} cannot be sliced"))),
    };
    let taken: Vec<Value> = places(items.len()).map(|at| items[at].clone()).collect();
    Ok(match value.downcast_object_ref::<Tuple>() {
        Some(_) => Value::from_object(Tuple(taken)),
        None => Value::from(taken),
    })
}

fn sum(values: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args, &["attribute", "start"])?;
    let mut sum = args.get("start").unwrap_or_else(|| Value::from(0));
    for item in attributes(values, &args)? {
        let int = |value: &Value| i64::try_from(value.clone()).ok();
        let float = |value: &Value| f64::try_from(value.clone()).ok();
        let whole = int(&sum)
            .zip(int(&item))
            .filter(|_| sum.is_integer() && item.is_integer());
        sum = match (
            whole.and_then(|(a, b)| a.checked_add(b)),
            float(&sum),
            float(&item),
        ) {
            (Some(sum), ..) => Value::from(sum),
            (None, Some(a), Some(b)) => Value::from(a + b),
            _ => return Err(fail("`sum` of what are no numbers")),
        };
    }
    Ok(sum)
}

fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => methods::pairs(value),
        _ => Err(fail("`items` of what is no dictionary")),
    }
}

fn dictsort(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args, &["case_sensitive", "by", "reverse"])?;
    if value.kind() != ValueKind::Map {
        return Err(fail("`dictsort` of what is no dictionary"));
    }
    let by = usize::from(args.text("by")?.as_deref() == Some("value"));
    let folds = !args.is_true("case_sensitive");
    let key = |pair: &Value| {
        let key = pair.get_item_by_index(by).unwrap_or_default();
        match key.as_str() {
            Some(text) if folds => Value::from(text.to_lowercase()),
            _ => key,
        }
    };
    let mut pairs: Vec<Value> = methods::pairs(value)?.try_iter()?.collect();
    pairs.sort_by_cached_key(key);
    if args.is_true("reverse") {
        // Equal ones keep their order.
        pairs.reverse();
        pairs.sort_by_cached_key(|pair| std::cmp::Reverse(key(pair)));
    }
    Ok(Value::from(pairs))
}

fn trim(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let chars = Args::new(&args, &["chars"])?.text("chars")?;
    let trimmed = |text: &str| methods::stripped(text, chars.as_deref(), true, true);
    Ok(match value.as_str() {
        Some(text) => trimmed(text),
        None => trimmed(&python_str(value)?),
    })
}

fn replace(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let args = Args::new(&args, &["old", "new", "count"])?;
    let text = |name: &str| python_str(&args.need(name)?);
    let count = args
        .int("count")?
        .and_then(|count| usize::try_from(count).ok());
    methods::replaced(&python_str(value)?, &text("old")?, &text("new")?, count)
}

fn default(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args, &["default_value", "boolean"])?;
    if value.is_undefined() || (args.is_true("boolean") && !value.is_true()) {
        return Ok(args
            .given("default_value")
            .unwrap_or_else(|| Value::from("")));
    }
    Ok(value.clone())
}

fn int(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args, &["default", "base"])?;
    let base = args
        .int("base")?
        .and_then(|base| u32::try_from(base).ok())
        .unwrap_or(10);
    let whole = |number: f64| (number.is_finite()).then(|| Value::from(number.trunc() as i64));
    let digits = |text: &str| match (base, text.get(..2)) {
        (16, Some("0x" | "0X")) | (8, Some("0o" | "0O")) | (2, Some("0b" | "0B")) => {
            text[2..].to_owned()
        }
        _ => text.to_owned(),
    };
    let found = match value.as_str().map(str::trim) {
        Some(text) if (2..=36).contains(&base) => i64::from_str_radix(&digits(text), base)
            .ok()
            .map(Value::from)
            .or_else(|| whole(text.parse().ok()?)),
        None if value.is_integer() => Some(value.clone()),
        None if value.kind() == ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        _ => f64::try_from(value.clone()).ok().and_then(whole),
    };
    let found = found.or_else(|| args.given("default"));
    Ok(found.unwrap_or_else(|| Value::from(0)))
}

fn float(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args, &["default"])?;
    let found = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    };
    let found = found.map(Value::from).or_else(|| args.given("default"));
    Ok(found.unwrap_or_else(|| Value::from(0.0)))
}

/// Rounds to the nearest even digit, as Python does.
fn round(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args, &["precision", "method"])?;
    let precision = args.int("precision")?.unwrap_or_default().clamp(-300, 300);
    let number = f64::try_from(value.clone()).map_err(|_| fail("`round` of what is no number"))?;
    let scale = 10f64.powi(i32::try_from(precision).unwrap_or_default());
    let rounded = match args.text("method")?.as_deref() {
        Some("ceil") => (number * scale).ceil() / scale,
        Some("floor") => (number * scale).floor() / scale,
        _ if precision >= 0 => {
            // Formatting rounds the exact number, which a product is not.
            let digits = usize::try_from(precision).unwrap_or_default();
            format!("{number:.digits$}").parse().unwrap_or(number)
        }
        _ => (number * scale).round_ties_even() / scale,
    };
    // Jinja2 keeps integers where it rounds in the common way.
    let stays = value.is_integer() && args.get("method").is_none();
    Ok(match stays {
        true if precision >= 0 => value.clone(),
        true => Value::from(rounded as i64),
        false => Value::from(rounded),
    })
}

fn first(values: &Value) -> Result<Value, Error> {
    Ok(values.try_iter()?.next().unwrap_or_default())
}

fn last(values: &Value) -> Result<Value, Error> {
    Ok(values.try_iter()?.last().unwrap_or_default())
}

/// Returns the smallest or the largest value, of equal ones the first.
fn extreme(values: &Value, args: &[Value], largest: bool) -> Result<Value, Error> {
    let args = Args::new(args, &["case_sensitive", "attribute"])?;
    let folds = !args.is_true("case_sensitive");
    let path = args.get("attribute");
    let key = |item: &Value| {
        let key = path
            .as_ref()
            .map_or_else(|| item.clone(), |path| attribute(item, path));
        match key.as_str() {
            Some(text) if folds => Value::from(text.to_lowercase()),
            _ => key,
        }
    };
    let mut found: Option<(Value, Value)> = None;
    for item in values.try_iter()? {
        let of = key(&item);
        let is_better = |(best, _): &(Value, Value)| if largest { of > *best } else { of < *best };
        if found.as_ref().is_none_or(is_better) {
            found = Some((of, item));
        }
    }
    Ok(found.map(|(_, item)| item).unwrap_or_default())
}

fn indent(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let args = Args::new(&args, &["width", "first", "blank"])?;
    let step = match args.get("width") {
        Some(width) if width.as_str().is_some() => python_str(&width)?,
        _ => {
            let width = args.int("width")?.unwrap_or(4).clamp(0, python::INDENT_MAX);
            " ".repeat(usize::try_from(width).unwrap_or_default())
        }
    };
    let text = python_str(value)? + "\n";
    let mut out = String::new();
    for (i, line) in methods::lines(&text, false).into_iter().enumerate() {
        let (is_first, blank) = (i == 0, args.is_true("blank"));
        out.push_str(if is_first { "" } else { "\n" });
        let is_indented = match is_first {
            true => args.is_true("first"),
            false => blank || !line.is_empty(),
        };
        out.push_str(if is_indented { &step } else { "" });
        out.push_str(line);
        python::check_size("indent", out.len())?;
    }
    Ok(out)
}

fn center(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let width = Args::new(&args, &["width"])?.int("width")?.unwrap_or(80);
    methods::padded(&python_str(value)?, "center", &[Value::from(width)])
}

fn escape(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for c in python_str(value)?.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// True of what has a length and items: texts and dictionaries too.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Iterable | Map | Undefined)
}
