//! The part of a schema that keeps it from being compiled, found by compiling its parts.

use serde_json::{Map, Value};

use super::place::Place;

/// Upper bound of the compiles that a search takes.
const TRIES_MAX: u32 = 200;

/// Keywords whose values are schemas by name, a list of schemas, and a schema.
const NAMED: &[&str] = &["$defs", "definitions", "properties", "patternProperties"];
const LISTED: &[&str] = &["allOf", "anyOf", "oneOf", "prefixItems", "items"];
const SINGLE: &[&str] = &["items", "additionalItems", "additionalProperties"];

/// Keywords that a part needs of the whole.
const SHARED: &[&str] = &["$schema", "$defs", "definitions"];

/// A part at fault.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Culprit {
    /// The keyword without which the schema around it can be compiled, if there is one.
    pub(super) keyword: Option<String>,
    /// The names that lead to the schema, from the root.
    pub(super) path: Vec<String>,
}

impl Culprit {
    /// Returns the place of the schema.
    pub(super) fn place(&self) -> Place {
        Place::of(&self.path)
    }

    /// Returns the rule that the schema breaks, with the place of the culprit.
    pub(super) fn must(&self) -> String {
        let place = Place::of(self.path.iter().chain(&self.keyword));
        match &self.keyword {
            Some(keyword) => format!("{}, at {place}", rule(keyword)),
            None => format!("be satisfiable, every keyword of it enforceable, at {place}"),
        }
    }
}

/// Returns the rule for a keyword's value.
fn rule(keyword: &str) -> String {
    let value = match keyword {
        "format" => {
            "is one of date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid and uri"
        }
        "pattern" => {
            "is a regular expression without look-around, back-references and inner anchors"
        }
        "patternProperties" => {
            "has regular expressions without look-around, of which no two fit one name"
        }
        "$ref" => "leads to a schema in this one, and not back to itself",
        "oneOf" => "has options of which no value fits two",
        _ => "can be enforced, and met together with the keywords beside it",
    };
    let keyword: String = keyword.chars().take(64).collect();
    format!("have a `{keyword}` that {value}")
}

/// Finds the culprit in a schema that fails.
pub(super) fn find(root: &Value, fails: impl FnMut(Value) -> bool) -> Option<Culprit> {
    let root = root.as_object()?;
    let mut search = Search {
        root,
        fails,
        tries: 0,
    };
    Some(search.within(root, Vec::new(), 0))
}

struct Search<'a, F> {
    root: &'a Map<String, Value>,
    /// Compiles a schema, and returns true if that fails.
    fails: F,
    tries: u32,
}

impl<'a, F: FnMut(Value) -> bool> Search<'a, F> {
    /// Finds the culprit within a schema that fails, to which `path` leads.
    fn within(&mut self, schema: &'a Map<String, Value>, path: Vec<String>, depth: u32) -> Culprit {
        let part = match depth < TRIES_MAX {
            true => self.part(schema),
            false => None,
        };
        if let Some((part, way)) = part {
            return self.within(part, [path, way].concat(), depth + 1);
        }
        // Without its type, a schema allows what the other keywords say nothing about.
        let (last, first): (Vec<&String>, _) = schema.keys().partition(|key| *key == "type");
        let keyword = first.into_iter().chain(last).find(|keyword| {
            let mut without = self.alone(schema);
            without.shift_remove(*keyword);
            !SHARED.contains(&keyword.as_str()) && self.fails(without) == Some(false)
        });
        // The fault may be where a reference leads.
        if depth < TRIES_MAX
            && keyword.is_some_and(|keyword| keyword == "$ref")
            && let Some((target, way)) = self.target(schema)
            && way != path
            && self.fails(self.alone(target)) == Some(true)
        {
            return self.within(target, way, depth + 1);
        }
        Culprit {
            keyword: keyword.cloned(),
            path,
        }
    }

    /// Returns a part of a schema that fails on its own, if possible one without which the rest does
    /// not, and the way to it.
    fn part(&mut self, schema: &'a Map<String, Value>) -> Option<Part<'a>> {
        let mut first = None;
        for (part, way) in parts(schema) {
            if !stands_alone(part) || self.fails(self.alone(part)) != Some(true) {
                continue;
            }
            let mut rest = self.alone(schema);
            if let Some(place) = rest.get_mut(&way[0]) {
                let place = match way.get(1) {
                    Some(name) => place.pointer_mut(&format!("/{}", escaped(name))),
                    None => Some(place),
                };
                place.into_iter().for_each(|part| *part = Value::Bool(true));
            }
            if self.fails(rest) == Some(false) {
                return Some((part, way));
            }
            first.get_or_insert((part, way));
        }
        first
    }

    /// Compiles a schema. `None` once there were too many.
    fn fails(&mut self, schema: Map<String, Value>) -> Option<bool> {
        self.tries += 1;
        (self.tries <= TRIES_MAX).then(|| (self.fails)(Value::Object(schema)))
    }

    /// Returns a part as a schema of its own.
    fn alone(&self, part: &Map<String, Value>) -> Map<String, Value> {
        let mut alone = part.clone();
        for shared in SHARED {
            if let Some(value) = self.root.get(*shared) {
                alone.entry(*shared).or_insert_with(|| value.clone());
            }
        }
        alone
    }

    /// Returns the schema that the `$ref` of a schema leads to, and the way to it.
    fn target(&self, schema: &Map<String, Value>) -> Option<Part<'a>> {
        let pointer = schema.get("$ref")?.as_str()?.strip_prefix("#/")?;
        let way: Vec<String> = pointer
            .split('/')
            .map(|name| name.replace("~1", "/").replace("~0", "~"))
            .collect();
        let (first, rest) = way.split_first()?;
        let target = rest
            .iter()
            .try_fold(self.root.get(first)?, |at, name| match at {
                Value::Array(items) => items.get(name.parse::<usize>().ok()?),
                _ => at.get(name),
            });
        Some((target?.as_object()?, way))
    }
}

/// A schema, and the names that lead to it.
type Part<'a> = (&'a Map<String, Value>, Vec<String>);

/// Returns the schemas right inside a schema, those that others refer to first.
fn parts(schema: &Map<String, Value>) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    for keyword in NAMED {
        let named = schema.get(*keyword).and_then(Value::as_object);
        for (name, value) in named.into_iter().flatten() {
            parts.extend(
                value
                    .as_object()
                    .map(|part| (part, vec![(*keyword).to_owned(), name.clone()])),
            );
        }
    }
    for keyword in LISTED {
        let listed = schema.get(*keyword).and_then(Value::as_array);
        for (i, value) in listed.into_iter().flatten().enumerate() {
            parts.extend(
                value
                    .as_object()
                    .map(|part| (part, vec![(*keyword).to_owned(), i.to_string()])),
            );
        }
    }
    for keyword in SINGLE {
        let single = schema.get(*keyword).and_then(Value::as_object);
        parts.extend(single.map(|part| (part, vec![(*keyword).to_owned()])));
    }
    parts
}

/// Returns true if a schema means the same outside its document, which shares its definitions.
fn stands_alone(schema: &Map<String, Value>) -> bool {
    schema
        .iter()
        .all(|(key, value)| match (key.as_str(), value) {
            ("$ref", Value::String(to)) => {
                to.starts_with("#/$defs/")
                    || to.starts_with("#/definitions/")
                    || !to.starts_with('#')
            }
            _ => stands_alone_within(value),
        })
}

fn stands_alone_within(value: &Value) -> bool {
    match value {
        Value::Object(schema) => stands_alone(schema),
        Value::Array(items) => items.iter().all(stands_alone_within),
        _ => true,
    }
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns true if a schema has a format `wrong`, or a reference to nothing, where references
    /// are followed.
    fn is_wrong(schema: &Value, root: &Value) -> bool {
        match schema {
            Value::Object(fields) => fields.iter().any(|(key, value)| match key.as_str() {
                "$defs" => false,
                "format" => value == "wrong",
                "$ref" => {
                    let to = value.as_str().unwrap().trim_start_matches('#');
                    root.pointer(to).is_none_or(|target| is_wrong(target, root))
                }
                _ => is_wrong(value, root),
            }),
            Value::Array(items) => items.iter().any(|item| is_wrong(item, root)),
            _ => false,
        }
    }

    fn check(schema: Value, expected: &str) {
        let found = find(&schema, |schema| is_wrong(&schema, &schema)).unwrap();
        let names: Vec<String> = found.path.into_iter().chain(found.keyword).collect();
        assert_eq!(names.join("/"), expected, "{schema}");
    }

    #[test]
    fn the_innermost_part_at_fault_is_found() {
        let wrong = || json!({"type": "string", "format": "wrong"});
        check(wrong(), "format");
        check(
            json!({"properties": {"a": {}, "b": {"items": wrong()}}, "required": ["a"]}),
            "properties/b/items/format",
        );
        check(
            json!({"anyOf": [{}, {"oneOf": [wrong()]}]}),
            "anyOf/1/oneOf/0/format",
        );
        check(json!({"items": {"$ref": "#/$defs/none"}}), "items/$ref");
        check(
            json!({"items": {"$ref": "#/$defs/a"}, "$defs": {
                "unused": wrong(), "a": {"items": {"$ref": "#/$defs/b"}}, "b": wrong()}}),
            "$defs/b/format",
        );
    }

    #[test]
    fn a_search_has_an_end() {
        let many: Value = (0..2_000).map(|i| (format!("{i}"), json!({}))).collect();
        let schema = json!({"properties": many, "format": "wrong"});
        let mut tries = 0;
        let found = find(&schema, |schema| {
            tries += 1;
            is_wrong(&schema, &schema)
        });
        assert!(found.is_some());
        assert_eq!(tries, TRIES_MAX);
        // One that does not fail at all names the whole.
        let found = find(&json!({"type": "null"}), |_| false).unwrap();
        assert_eq!(found.path, Vec::<String>::new());
    }
}
