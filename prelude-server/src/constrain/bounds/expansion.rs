//! A bound on what a schema becomes where its parts are intersected: the compiler copies a schema for
//! every reference with keywords beside it, and for every option that is intersected with it, before
//! it counts anything. A chain of forty such references would take more memory than there is.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::TooComplex;

/// Upper bound of the schemas that a schema becomes. Each takes about 400 bytes.
const SCHEMAS_MAX: u64 = 100_000;

/// Keywords that say nothing about values.
const SILENT: &[&str] = &[
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
    "x-guidance",
];

/// Checks what a schema becomes, definitions that nothing refers to included.
pub(super) fn check(root: &Value) -> Result<(), TooComplex> {
    let mut count = Count {
        root,
        known: HashMap::new(),
    };
    let mut all = count.schema(root, false).all;
    for keyword in ["$defs", "definitions"] {
        let named = root.get(keyword).and_then(Value::as_object);
        for schema in named.into_iter().flat_map(Map::values) {
            all = all.saturating_add(count.schema(schema, false).all);
        }
    }
    match all > SCHEMAS_MAX {
        true => Err(TooComplex),
        false => Ok(()),
    }
}

/// Upper bounds of what a schema becomes: options, the schemas of the largest of them and of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    options: u64,
    largest: u64,
    all: u64,
}

impl Size {
    const ONE: Self = Self {
        options: 1,
        largest: 1,
        all: 1,
    };

    /// Either of two.
    fn or(self, other: Self) -> Self {
        Self {
            options: self.options.saturating_add(other.options),
            largest: self.largest.max(other.largest),
            all: self.all.saturating_add(other.all),
        }
    }

    /// Both at once: every option of one with every option of the other.
    fn and(self, other: Self) -> Self {
        let options = self.options.saturating_mul(other.options);
        let largest = self.largest.saturating_add(other.largest);
        Self {
            options,
            largest,
            all: options.saturating_mul(largest),
        }
    }
}

struct Count<'a> {
    root: &'a Value,
    /// Sizes of what references lead to; those that are being found are one.
    known: HashMap<&'a str, Size>,
}

impl<'a> Count<'a> {
    /// Returns what a schema becomes; `meets` if it is intersected with another.
    fn schema(&mut self, schema: &'a Value, meets: bool) -> Size {
        let Value::Object(fields) = schema else {
            return Size::ONE;
        };
        let applied =
            |key: &str| matches!(key, "allOf" | "anyOf" | "oneOf" | "$ref" | "const" | "enum");
        let said = fields.keys().filter(|key| !SILENT.contains(&key.as_str()));
        let (parts, own): (Vec<&String>, Vec<&String>) = said.partition(|key| applied(key));
        let all_of = fields
            .get("allOf")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        let has_own = !own.is_empty();
        let meets = meets || parts.len() + usize::from(has_own) > 1 || all_of > 1;
        let mut size = has_own.then(|| self.own(fields, meets));
        let mut add = |part: Size| size = Some(size.map_or(part, |size| size.and(part)));
        let mut seen = HashSet::new();
        for (key, value) in fields.iter().filter(|(key, _)| applied(key)) {
            match (key.as_str(), value) {
                ("$ref", Value::String(to)) if meets => add(self.target(to)),
                ("allOf", Value::Array(parts)) => {
                    for part in parts {
                        let one = self.schema(part, meets);
                        // What is intersected with itself grows in options alone.
                        let again = reference(part).is_some_and(|to| !seen.insert(to));
                        add(match again {
                            true => Size { largest: 0, ..one },
                            false => one,
                        });
                    }
                }
                ("anyOf" | "oneOf", Value::Array(options)) => {
                    let sizes = options.iter().map(|option| self.schema(option, meets));
                    add(sizes.reduce(Size::or).unwrap_or(Size::ONE));
                }
                ("enum", Value::Array(options)) => {
                    add(options
                        .iter()
                        .map(literal)
                        .reduce(Size::or)
                        .unwrap_or(Size::ONE));
                }
                ("const", value) => add(literal(value)),
                _ => add(Size::ONE),
            }
        }
        size.unwrap_or(Size::ONE)
    }

    /// Returns what the keywords become that are about one type each.
    fn own(&mut self, fields: &'a Map<String, Value>, meets: bool) -> Size {
        let (mut inside, mut names, mut others) = (0_u64, 0_u64, 0_u64);
        let has_names = fields.contains_key("properties");
        for (key, value) in fields {
            match (key.as_str(), value) {
                ("properties", Value::Object(named)) => {
                    names = names.saturating_add(named.len() as u64);
                    for schema in named.values() {
                        inside = inside.saturating_add(self.schema(schema, false).all);
                    }
                }
                ("prefixItems" | "items", Value::Array(items)) => {
                    names = names.saturating_add(items.len() as u64);
                    for schema in items {
                        inside = inside.saturating_add(self.schema(schema, false).all);
                    }
                }
                ("patternProperties", Value::Object(named)) => {
                    for schema in named.values() {
                        others = others.saturating_add(self.schema(schema, meets || has_names).all);
                    }
                }
                ("items" | "additionalItems" | "additionalProperties", schema) => {
                    others = others.saturating_add(self.schema(schema, meets).all);
                }
                _ => {}
            }
        }
        let has_patterns = fields.contains_key("patternProperties");
        // What is said of other names is copied for names that others list.
        let copies = if has_patterns { 1 + names } else { 1 };
        let largest = inside
            .saturating_add(others.saturating_mul(copies))
            .saturating_add(1);
        let options = match fields.get("type") {
            Some(Value::Array(types)) => types.len() as u64,
            Some(_) => 1,
            None => 6,
        };
        Size {
            options,
            largest,
            all: largest.saturating_add(options),
        }
    }

    /// Returns what a reference leads to, of which a copy is made.
    fn target(&mut self, to: &'a str) -> Size {
        if let Some(&size) = self.known.get(to) {
            return size;
        }
        self.known.insert(to, Size::ONE);
        let pointer = to.strip_prefix('#').unwrap_or(to);
        let target = self.root.pointer(pointer);
        let size = target.map_or(Size::ONE, |target| self.schema(target, true));
        self.known.insert(to, size);
        size
    }
}

/// Returns where a schema leads that is a reference alone.
fn reference(schema: &Value) -> Option<&str> {
    let fields = schema.as_object().filter(|fields| fields.len() == 1)?;
    fields.get("$ref")?.as_str()
}

/// Returns what a constant becomes.
fn literal(value: &Value) -> Size {
    let inside = match value {
        Value::Array(items) => items.iter().map(|item| literal(item).all).sum(),
        Value::Object(fields) => fields.values().map(|field| literal(field).all).sum(),
        _ => 0,
    };
    let all = 1 + inside;
    Size {
        options: 1,
        largest: all,
        all,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chain(n: usize, link: impl Fn(Value) -> Value) -> Value {
        let mut defs: Map<String, Value> = (0..n)
            .map(|i| {
                let next = json!({"$ref": format!("#/$defs/{}", i + 1)});
                (i.to_string(), link(next))
            })
            .collect();
        defs.insert(n.to_string(), json!({"type": "string"}));
        json!({"$ref": "#/$defs/0", "$defs": defs})
    }

    #[test]
    fn copies_are_counted() {
        let check = |schema: Value, expected: bool| {
            assert_eq!(check(&schema).is_ok(), expected, "{schema:.200}");
        };
        check(json!(true), true);
        check(json!({"$ref": "#"}), true);
        // References alone are no copies.
        check(chain(1_200, |next| next), true);
        check(
            chain(40, |next| json!({"properties": {"x": next, "y": next}})),
            true,
        );
        check(chain(40, |next| json!({"allOf": [next, next]})), true);
        // With keywords beside them they are.
        let copied = |next: Value| {
            let mut beside = json!({"type": "object"});
            beside["$ref"] = next["$ref"].clone();
            json!({"type": "object", "properties": {"x": beside, "y": beside}})
        };
        check(chain(8, copied), true);
        check(chain(18, copied), false);
        check(chain(60, copied), false);
        // Options are, too, if something is beside them.
        let words: Vec<String> = (0..2_500).map(|i| i.to_string()).collect();
        check(json!({"type": "string", "enum": words}), true);
        check(json!({"allOf": [{"enum": words}, {"enum": words}]}), false);
        let many: Map<String, Value> = (0..800)
            .map(|i| (i.to_string(), json!({"type": "null"})))
            .collect();
        let either: Vec<Value> = (0..400).map(|_| json!({"required": ["b"]})).collect();
        check(
            json!({"properties": {"a": {"properties": many}}, "anyOf": either}),
            false,
        );
        check(json!({"anyOf": either}), true);
    }
}
