//! Bodies that are right, made wrong.

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// Bodies that are right, each with its path; tests of the server hold that they are.
static RIGHT: LazyLock<Vec<(String, Value)>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../tests/data/bodies.json")).expect("a list of pairs")
});

/// Words that mean something to some endpoint, or to what it calls.
const WORDS: &[&str] = &[
    "",
    "a",
    "fake",
    "classes",
    "auto",
    "required",
    "none",
    "user",
    "system",
    "assistant",
    "tool",
    "developer",
    "function",
    "text",
    "input_text",
    "json_object",
    "json_schema",
    "left",
    "right",
    "base64",
    "float",
    "embed",
    "classify",
    "token_embed",
    "token_classify",
    "noul",
    "choice",
    "score",
    "predicate",
    "drop",
    "finish",
    "query",
    "document",
    "[ab]+",
    "(",
    "a{1000}",
    "x*",
    "start: \"a\" start | \"b\"",
    "start: /a+/",
    "{{ text }}",
    "{{ messages }}",
    "{% for i in range(9) %}a{% endfor %}",
    "{{ raise_exception('a') }}",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|endoftext|>",
    "\u{feff}",
    "\u{0}",
    "\u{301}",
    "🙂",
    "漢字",
    "a b c d e f g h i j k l m n o p",
    "-1",
    "1e999",
];

/// Numbers at the edges of what fields hold.
const NUMBERS: &[f64] = &[
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    1e-300,
    1e300,
    0.5,
    255.0,
    256.0,
    257.0,
    4095.0,
    4096.0,
    65_536.0,
    2_147_483_647.0,
    2_147_483_648.0,
    4_294_967_295.0,
    4_294_967_296.0,
    9.3e18,
    -9.3e18,
    1.9e19,
];

/// A value to put somewhere.
#[derive(Arbitrary, Debug)]
pub enum Leaf<'a> {
    Null,
    Bool(bool),
    Small(i8),
    Whole(i64),
    Large(u64),
    Edge(u8),
    Real(f64),
    Word(u8),
    Text(&'a str),
    Long(u8, u16),
    /// A field that another of the right bodies has at its top, by number.
    Borrowed(u8, u8),
    List(Vec<Leaf<'a>>),
    Object(Vec<(Name<'a>, Leaf<'a>)>),
    /// Levels of nesting.
    Deep(u8, bool),
}

/// A key: one that some schema has, or any.
#[derive(Arbitrary, Debug)]
pub enum Name<'a> {
    Known(u16),
    Any(&'a str),
}

/// A change of a body at one place.
#[derive(Arbitrary, Debug)]
pub enum Change<'a> {
    Set(Leaf<'a>),
    Insert(Name<'a>, Leaf<'a>),
    Remove(u8),
    Repeat(u8),
}

/// A body for some endpoint.
#[derive(Arbitrary, Debug)]
pub enum Asked<'a> {
    /// A valid body, changed at places that are found by going down from the top.
    Changed {
        which: u8,
        elsewhere: Option<u8>,
        changes: Vec<(Vec<u8>, Change<'a>)>,
        cut: Option<u16>,
    },
    /// Any bytes.
    Raw(u8, &'a [u8]),
}

impl Asked<'_> {
    /// Returns the path and the bytes.
    pub fn request(&self, names: &[String]) -> (&'static str, Vec<u8>) {
        let of = |which: u8| &RIGHT[usize::from(which) % RIGHT.len()];
        match self {
            Self::Raw(which, bytes) => (&of(*which).0, bytes.to_vec()),
            Self::Changed {
                which,
                elsewhere,
                changes,
                cut,
            } => {
                let (path, body) = of(*which);
                let path = elsewhere.map_or(path, |which| &of(which).0);
                let mut body = body.clone();
                for (place, change) in changes {
                    apply(&mut body, place, change, names);
                }
                let mut bytes = body.to_string().into_bytes();
                if let Some(cut) = cut {
                    bytes.truncate(usize::from(*cut) % (bytes.len() + 1));
                }
                (path, bytes)
            }
        }
    }
}

fn apply(value: &mut Value, place: &[u8], change: &Change<'_>, names: &[String]) {
    let step = |len: usize| Some((usize::from(*place.first()?).checked_rem(len)?, &place[1..]));
    let down = match value {
        Value::Object(map) => step(map.len()).and_then(|(at, rest)| {
            let child = map.values_mut().nth(at)?;
            Some((child, rest))
        }),
        Value::Array(list) => step(list.len()).map(|(at, rest)| (&mut list[at], rest)),
        _ => None,
    };
    if let Some((child, rest)) = down {
        return apply(child, rest, change, names);
    }
    match (change, value) {
        (Change::Insert(name, leaf), Value::Object(map)) => {
            map.insert(name.get(names), leaf.value(names));
        }
        (Change::Insert(_, leaf), Value::Array(list)) => list.push(leaf.value(names)),
        (Change::Set(leaf) | Change::Insert(_, leaf), value) => *value = leaf.value(names),
        (Change::Remove(at), Value::Object(map)) => {
            let key = map.keys().nth(usize::from(*at) % map.len().max(1)).cloned();
            key.and_then(|key| map.shift_remove(&key));
        }
        (Change::Remove(at), Value::Array(list)) if !list.is_empty() => {
            list.remove(usize::from(*at) % list.len());
        }
        (Change::Repeat(times), Value::Array(list)) if !list.is_empty() => {
            let first = list[0].clone();
            list.extend(std::iter::repeat_n(first, usize::from(*times)));
        }
        (Change::Repeat(times), value) => {
            *value = Value::Array(vec![value.take(); usize::from(*times)]);
        }
        (Change::Remove(_), value) => *value = Value::Null,
    }
}

impl Name<'_> {
    fn get(&self, names: &[String]) -> String {
        match self {
            Self::Any(text) => (*text).to_owned(),
            Self::Known(at) => names[usize::from(*at) % names.len()].clone(),
        }
    }
}

impl Leaf<'_> {
    /// Returns the value that it stands for.
    pub fn value(&self, names: &[String]) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(b) => (*b).into(),
            Self::Small(n) => (*n).into(),
            Self::Whole(n) => (*n).into(),
            Self::Large(n) => (*n).into(),
            Self::Edge(at) => {
                let number = NUMBERS[usize::from(*at) % NUMBERS.len()];
                // Whole numbers are written as such: fields tell them from others.
                match number.fract() == 0.0 && number.abs() < 9e18 {
                    true => (number as i64).into(),
                    false => number.into(),
                }
            }
            Self::Real(n) => (*n).into(),
            Self::Word(at) => WORDS[usize::from(*at) % WORDS.len()].into(),
            Self::Text(text) => (*text).into(),
            Self::Long(at, times) => {
                let word = WORDS[usize::from(*at) % WORDS.len()];
                word.repeat(usize::from(*times) % 1_024).into()
            }
            Self::Borrowed(which, at) => {
                let (_, body) = &RIGHT[usize::from(*which) % RIGHT.len()];
                let fields = body.as_object().map(Map::values);
                let at = usize::from(*at) % body.as_object().map_or(1, Map::len);
                let value = fields.and_then(|mut fields| fields.nth(at));
                value.cloned().unwrap_or(Value::Null)
            }
            Self::List(items) => items.iter().map(|i| i.value(names)).collect(),
            Self::Object(fields) => {
                let pairs = fields.iter().map(|(k, v)| (k.get(names), v.value(names)));
                pairs.collect::<Map<_, _>>().into()
            }
            Self::Deep(levels, is_object) => {
                (0..*levels % 96).fold(Value::Null, |inner, _| match is_object {
                    true => Map::from_iter([("a".to_owned(), inner)]).into(),
                    false => vec![inner].into(),
                })
            }
        }
    }
}
