//! Bounds on a schema, checked before the library reads it.

use llguidance::{derivre::RegexBuilder, regex_to_lark};
use serde_json::Value;

use super::{
    TooComplex, expansion,
    widths::{Kinds, PAIRS_MAX, Widths},
};

/// Upper bound of the names of properties in a schema, and in one object of it: the compiler takes
/// time quadratic in the latter.
const NAMES_MAX: usize = 2_048;
const NAMES_OF_ONE_MAX: usize = 1_024;

/// Upper bound of the patterns of property names in a schema, which are compared pair by pair.
const NAME_PATTERNS_MAX: usize = 24;

/// Upper bound of the least common multiple of a schema's divisors, in units of their last decimal
/// place, and of their decimal places.
const DIVISOR_MAX: u64 = 400_000_000;
const DIVISOR_PLACES_MAX: u32 = 8;

/// Checks a schema before the library reads it: the names of its properties, whose patterns are
/// compared with each other and with names, and the numbers that others are to be multiples of.
pub(crate) fn check_schema(schema: &Value) -> Result<(), TooComplex> {
    expansion::check(schema)?;
    let mut survey = Survey::default();
    survey.visit(schema)?;
    if survey.names > NAMES_MAX || survey.patterns.len() > NAME_PATTERNS_MAX {
        return Err(TooComplex);
    }
    check_multiples(&survey.divisors, survey.meets)?;
    let kinds = Kinds::new();
    for pattern in survey.patterns {
        let mut builder = RegexBuilder::new();
        let pattern = regex_to_lark(pattern, "dw");
        // The compiler refuses a pattern that is no regular expression.
        let Ok(root) = builder.mk_regex_for_serach(&pattern) else {
            continue;
        };
        let widths = Widths::of(builder.exprset(), &kinds)?;
        let own = widths.reach(root);
        if own.saturating_mul(own) > PAIRS_MAX {
            return Err(TooComplex);
        }
    }
    Ok(())
}

/// The parts of a schema that are bounded.
#[derive(Default)]
struct Survey<'a> {
    names: usize,
    patterns: Vec<&'a str>,
    divisors: Vec<f64>,
    /// Schemas are intersected: their divisors may meet, and one with itself.
    meets: bool,
}

impl<'a> Survey<'a> {
    fn visit(&mut self, schema: &'a Value) -> Result<(), TooComplex> {
        match schema {
            Value::Object(fields) => {
                for (key, value) in fields {
                    self.note(key, value)?;
                    self.visit(value)?;
                }
                Ok(())
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.visit(item)),
            _ => Ok(()),
        }
    }

    fn note(&mut self, key: &str, value: &'a Value) -> Result<(), TooComplex> {
        self.meets |= MEETING.contains(&key);
        match (key, value) {
            ("patternProperties", Value::Object(named)) => {
                self.patterns.extend(named.keys().map(String::as_str));
            }
            ("properties", Value::Object(named)) => {
                if named.len() > NAMES_OF_ONE_MAX {
                    return Err(TooComplex);
                }
                self.names += named.len();
            }
            ("multipleOf", Value::Number(divisor)) => {
                self.divisors.extend(divisor.as_f64());
            }
            _ => {}
        }
        Ok(())
    }
}

/// Keywords that intersect schemas with others.
const MEETING: &[&str] = &["allOf", "anyOf", "oneOf", "$ref", "patternProperties"];

/// Checks that the library's 32 bits hold what it computes: the least common multiple of all
/// divisors, ten times and a digit; and where schemas meet (`meets`), that multiple's product with
/// any of them.
fn check_multiples(divisors: &[f64], meets: bool) -> Result<(), TooComplex> {
    // The compiler discards signs, and refuses zero.
    let positive = divisors.iter().map(|divisor| divisor.abs());
    let decimals: Vec<(u64, u32)> = positive
        .filter(|&divisor| divisor > 0.0)
        .map(|divisor| decimal(divisor).ok_or(TooComplex))
        .collect::<Result<_, _>>()?;
    let places = decimals.iter().map(|&(_, places)| places).max();
    let places = places.unwrap_or(0);
    let (mut multiple, mut largest) = (1u64, 1u64);
    for (digits, own) in decimals {
        let digits = digits.saturating_mul(10u64.pow(places - own));
        multiple = (multiple / gcd(multiple, digits)).saturating_mul(digits);
        largest = largest.max(digits);
        if multiple > DIVISOR_MAX {
            return Err(TooComplex);
        }
    }
    let factor = if meets { largest } else { 1 };
    let step = 10 * multiple + 9 * 10u64.pow(places);
    match step.max(multiple.saturating_mul(factor)) > u64::from(u32::MAX) {
        true => Err(TooComplex),
        false => Ok(()),
    }
}

/// Returns the digits of a positive number, and how many of them are decimal places, if they are
/// few.
fn decimal(number: f64) -> Option<(u64, u32)> {
    // The shortest digits that read as this number, without an exponent.
    let text = format!("{number}");
    let (whole, places) = text.split_once('.').unwrap_or((&text, ""));
    let digits = format!("{whole}{places}").parse().ok()?;
    let places = u32::try_from(places.len()).ok()?;
    (places <= DIVISOR_PLACES_MAX && digits <= DIVISOR_MAX).then_some((digits, places))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn divisors_have_a_bound() {
        let check_at = |divisors: &[f64], meets: bool, expected: bool| {
            let found = check_multiples(divisors, meets).is_ok();
            assert_eq!(found, expected, "{divisors:?} {meets}");
        };
        let check = |divisors: &[f64], expected: bool| check_at(divisors, false, expected);
        check(&[], true);
        check(&[0.01, 0.07, 0.5, 3.0, 7.0], true);
        check(&[999_983.0], true);
        check(&[999_983.0, 999_979.0], false);
        check(&[1e-9], false);
        check(&[1e12], false);
        check(&[0.0, -1.0], true);
        // Signs are discarded.
        check(&[-1e-12], false);
        // Ten times the multiple, and a digit of eight decimal places, need more than 32 bits.
        check(&[3.999_999_99], false);
        check(&[399_999_999.0], true);
        // So does the product of two, of which the library takes the common multiple.
        check(&[60_000.0, 80_000.0], true);
        check_at(&[60_000.0, 80_000.0], true, false);
        check_at(&[100_000.0], true, false);
        check_at(&[100_000.0], false, true);
        check_at(&[0.01, 0.05, 7.0], true, true);
    }

    #[test]
    fn schemas_are_surveyed_at_any_depth() {
        let named = |n: usize| -> Value { (0..n).map(|i| (format!("{i}"), json!({}))).collect() };
        let check = |schema: Value, expected: bool| {
            let found = check_schema(&json!({"anyOf": [{"items": schema}]}));
            assert_eq!(found.is_ok(), expected);
        };
        check(json!({"properties": named(1_024)}), true);
        check(json!({"properties": named(1_025)}), false);
        let twice = |n| json!({"properties": named(n), "items": {"properties": named(n)}});
        check(twice(1_024), true);
        check(
            json!({"allOf": [twice(1_000), {"properties": named(100)}]}),
            false,
        );
        check(json!({"patternProperties": named(24)}), true);
        check(json!({"patternProperties": named(25)}), false);
        check(json!({"patternProperties": {"a?".repeat(600): {}}}), false);
        check(json!({"multipleOf": 1e-12}), false);
    }
}
