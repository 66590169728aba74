//! The numbers of a schema, checked before anything computes with them.

use serde_json::{Number, Value};

use super::place::Place;

/// Upper bound of a schema's numbers, on either side of zero: the largest whole number that a double
/// tells from both of its neighbours. The compiler computes with doubles, so that beyond it answers
/// would be other numbers than those asked for, and at the end of 64 bits it calls itself without end.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// Upper bound of the decimal places of a schema's numbers. The compiler calls itself for each of them.
const PLACES_MAX: usize = 100;

/// Keywords whose values are numbers, or may be.
const KEYWORDS: &[&str] = &[
    "const",
    "enum",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "default",
    "examples",
];

/// Checks every number in a schema, wherever it stands: a reference may make a schema of any part.
///
/// # Errors
/// The rule that the first wrong number breaks.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut place = Place::default();
    visit(schema, &mut place).map_err(|must| {
        let keyword = place.keyword(KEYWORDS);
        let within = keyword.map_or_else(String::new, |keyword| format!(" in `{keyword}`"));
        format!("{must}{within}, at {place}")
    })
}

/// Visits the numbers in a value. At an error, `place` is the number's.
fn visit(value: &Value, place: &mut Place) -> Result<(), String> {
    match value {
        Value::Number(number) => fault(number).map_or(Ok(()), Err),
        Value::Object(fields) => fields
            .iter()
            .try_for_each(|(key, value)| place.within(key, |place| visit(value, place))),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(i, item)| place.within(&i.to_string(), |place| visit(item, place))),
        _ => Ok(()),
    }
}

/// Returns the rule that a number breaks, if it does.
fn fault(number: &Number) -> Option<String> {
    let is_near = match (number.as_i64(), number.as_f64()) {
        (Some(whole), _) => whole.unsigned_abs() <= NUMBER_MAX,
        (None, Some(real)) => real.abs() <= NUMBER_MAX as f64,
        (None, None) => false,
    };
    if !is_near {
        return Some(format!("have numbers of at most {NUMBER_MAX} (2^53 - 1)"));
    }
    let places = places(number);
    (places > PLACES_MAX).then(|| format!("have numbers of at most {PLACES_MAX} decimal places"))
}

/// Returns the decimal places of a number, written without an exponent.
fn places(number: &Number) -> usize {
    match number.as_f64() {
        Some(real) if !number.is_i64() => format!("{real}")
            .split_once('.')
            .map_or(0, |(_, places)| places.len()),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(schema: &str, expected: Option<&str>) {
        let value = serde_json::from_str(schema).unwrap();
        let found = check(&value).err();
        match expected {
            None => assert_eq!(found, None, "{schema}"),
            Some(end) => {
                let found = found.unwrap_or_else(|| panic!("{schema} is allowed"));
                assert!(found.ends_with(end), "{schema}: {found}");
            }
        }
    }

    #[test]
    fn numbers_that_are_not_kept_exactly_are_found_by_place() {
        for number in [
            "0",
            "-0",
            "9007199254740991",
            "-9007199254740991",
            "1e-7",
            "0.1",
            "1e15",
        ] {
            check_one(&format!(r#"{{"const": {number}}}"#), None);
        }
        for number in [
            "9007199254740992",
            "9007199254740993.0",
            "-9007199254740993",
            "1234567890123456789",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551615",
            "1e19",
            "-1e308",
            "5e-324",
        ] {
            check_one(
                &format!(r#"{{"const": {number}}}"#),
                Some("in `const`, at `/const`"),
            );
        }
    }

    #[test]
    fn numbers_are_found_anywhere() {
        check_one(
            r#"{"$defs": {"a": {"items": [{"enum": [1, {"b": [1e20]}]}]}}}"#,
            Some("in `enum`, at `/$defs/a/items/0/enum/1/b/0`"),
        );
        // A reference may lead to where no schema is expected.
        check_one(
            r#"{"x/~y": {"minimum": -1e30}}"#,
            Some("at `/x~1~0y/minimum`"),
        );
        check_one(
            r#"{"properties": {"minimum": {"maximum": 1e30}}}"#,
            Some("in `maximum`, at `/properties/minimum/maximum`"),
        );
        check_one("{}", None);
        check_one("true", None);
    }
}
