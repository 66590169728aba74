use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;

#[derive(Debug, Deserialize)]
struct Inner<'a> {
    #[serde(borrow)]
    s: Option<Text<'a>>,
    n: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    Left,
    Right,
}

#[derive(Debug, Deserialize)]
struct Group<'a> {
    #[serde(borrow)]
    s: Option<Text<'a>>,
    raw: Option<&'a RawValue>,
    i: Option<Int<0, 9>>,
    b: Option<bool>,
    f: Option<f64>,
    v: Option<Json>,
    ids: Option<Vec<u32>>,
    texts: Option<OneOrMany<Text<'a>>>,
    side: Option<Side>,
    o: Option<Vec<Inner<'a>>>,
}

fn read(body: &str) -> Result<(Group<'_>, Fields<'_>), ApiError> {
    let mut fields = Fields::from_body(body)?;
    Ok((fields.group()?, fields))
}

fn check(body: &str, reason: &str, param: &str, message_has: &str) {
    let error = read(body).expect_err(body);
    assert_eq!(
        (error.reason(), error.param()),
        (reason, Some(param)),
        "{error}"
    );
    assert!(error.message().contains(message_has), "{body}: {error}");
}

#[test]
fn a_group_takes_its_fields_and_leaves_the_rest() {
    let body = r#"{"s":"a","raw":{"x": 1.50},"i":3,"b":true,"f":2,"v":[{"a":1}],"side":"left",
        "ids":[1,2],"texts":["a","b\n"],"o":[{"n":1,"s":"é","x":0,"y":[]}],"t":1,"w":null}"#;
    let (group, fields) = read(body).unwrap();
    assert!(matches!(group.s, Some(Text(Cow::Borrowed("a")))));
    assert_eq!(group.raw.unwrap().get(), r#"{"x": 1.50}"#);
    assert_eq!(group.i.unwrap().count(), 3);
    assert_eq!((group.b, group.f), (Some(true), Some(2.0)));
    assert_eq!(group.v.unwrap().0.to_string(), r#"[{"a":1}]"#);
    assert_eq!(group.ids, Some(vec![1, 2]));
    assert_eq!(group.texts.unwrap().into_vec()[1].0, "b\n");
    assert!(matches!(group.side, Some(Side::Left)));
    let inner = &group.o.unwrap()[0];
    assert_eq!((inner.n, &*inner.s.as_ref().unwrap().0), (1, "é"));
    assert_eq!(fields.unknown.count, 2);
    assert_eq!(fields.unknown.first.as_deref(), Some("/o/0/x"));
    let rest: Vec<_> = fields.rest().map(|(name, _)| name).collect();
    assert_eq!(rest, ["t", "w"]);
    let (group, _) = read(r#"{"s":null,"side":null}"#).unwrap();
    assert!(group.s.is_none() && group.side.is_none());
}

#[test]
fn a_mistake_is_named_with_its_place() {
    check(r#"{"i":1.0}"#, "invalid_type", "i", "must be an integer");
    check(r#"{"i":"1"}"#, "invalid_type", "i", "must be an integer");
    check(r#"{"i":10}"#, "invalid_value", "i", "must be from 0 to 9");
    check(r#"{"b":1}"#, "invalid_type", "b", "must be true or false");
    check(r#"{"f":"x"}"#, "invalid_type", "f", "must be a number");
    check(r#"{"s":3}"#, "invalid_type", "s", "must be a string");
    check(r#"{"s":"\ud800"}"#, "invalid_value", "s", "surrogate pair");
    check(r#"{"s":"\udc00"}"#, "invalid_value", "s", "surrogate pair");
    check(
        r#"{"s":"\ud800\u0041"}"#,
        "invalid_value",
        "s",
        "surrogate pair",
    );
    check(r#"{"ids":{}}"#, "invalid_type", "ids", "must be a list");
    let range = "must be an integer from 0 to 4294967295";
    check(r#"{"ids":[1,-1]}"#, "invalid_type", "/ids/1", range);
    check(r#"{"ids":[1.5]}"#, "invalid_type", "/ids/0", "an integer");
    check(
        r#"{"texts":3}"#,
        "invalid_type",
        "texts",
        "a string or a list",
    );
    check(
        r#"{"texts":["a",3]}"#,
        "invalid_type",
        "/texts/1",
        "must be a string",
    );
    assert_eq!(
        read(r#"{"texts":["a",3]}"#).unwrap_err().message(),
        "field `/texts/1` must be a string"
    );
    check(
        r#"{"side":"up"}"#,
        "invalid_value",
        "side",
        r#"must be "left" or "right""#,
    );
    check(
        r#"{"v":[{"a":1,"a":2}]}"#,
        "duplicate_field",
        "/v/0",
        "same name",
    );
    check(r#"{"o":[{"n":1},3]}"#, "invalid_type", "/o/1", "an object");
    check(
        r#"{"o":[{"s":"a"}]}"#,
        "missing_field",
        "/o/0/n",
        "required",
    );
    check(
        r#"{"o":[{"n":1,"n":2}]}"#,
        "duplicate_field",
        "/o/0",
        "same name",
    );
    let secret = r#"{"i":"what a client wrote"}"#;
    assert!(!read(secret).unwrap_err().message().contains("client"));
}
