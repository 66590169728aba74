//! Objects in which, once a name is begun, none can follow: every name that their patterns allow is a
//! property's, and a name is not said twice. The compiler does not notice.

use serde_json::{Map, Value, json};

use super::place::Place;

/// Upper bound of the bytes of an object's names for which the question is asked.
const BYTES_MAX: usize = 4_096;

/// An object that may be one of these.
pub(super) struct Suspect {
    pub(super) place: String,
    /// A schema that cannot be met if it is.
    pub(super) other_names: Value,
}

/// Finds the objects of a schema that allow names of patterns alone, beside properties.
pub(super) fn suspects(schema: &Value) -> Vec<Suspect> {
    let mut suspects = Vec::new();
    visit(schema, &mut Vec::new(), &mut suspects);
    suspects
}

fn visit(value: &Value, way: &mut Vec<String>, suspects: &mut Vec<Suspect>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            suspects.extend(other_names(fields).map(|other_names| {
                let keyword = "patternProperties".to_owned();
                Suspect {
                    place: Place::of(way.iter().chain([&keyword])).to_string(),
                    other_names,
                }
            }));
            fields
                .iter()
                .map(|(name, value)| (name.clone(), value))
                .collect()
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.map(|(i, item)| (i.to_string(), item)).collect()
        }
        _ => return,
    };
    for (name, child) in children {
        way.push(name);
        visit(child, way, suspects);
        way.pop();
    }
}

/// Returns a schema of the names that an object's patterns allow besides those that it lists, if
/// there are no other names.
fn other_names(object: &Map<String, Value>) -> Option<Value> {
    let patterns = object.get("patternProperties")?.as_object()?;
    if object.get("additionalProperties") != Some(&Value::Bool(false)) || patterns.is_empty() {
        return None;
    }
    let listed = object.get("properties").and_then(Value::as_object);
    let required = object.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    let mut names: Vec<&str> = listed
        .into_iter()
        .flat_map(Map::keys)
        .map(String::as_str)
        .collect();
    names.extend(required);
    names.sort_unstable();
    names.dedup();
    let bytes: usize = names.iter().map(|name| name.len()).sum();
    if names.is_empty() || bytes > BYTES_MAX {
        return None;
    }
    let none_of = none_of(&names);
    let other = |pattern: &String| json!({"type": "string", "allOf": [{"pattern": pattern}, {"pattern": none_of}]});
    Some(json!({"anyOf": patterns.keys().map(other).collect::<Vec<_>>()}))
}

/// Returns a regular expression of all texts but `names`.
fn none_of(names: &[&str]) -> String {
    let escaped = |c: char| format!("\\x{{{:x}}}", u32::from(c));
    let mut options: Vec<String> = Vec::new();
    let mut prefixes: Vec<&str> = names
        .iter()
        .flat_map(|name| {
            name.char_indices()
                .map(|(at, _)| &name[..at])
                .chain([*name])
        })
        .collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    for prefix in prefixes {
        let text: String = prefix.chars().map(escaped).collect();
        let next = names
            .iter()
            .filter_map(|name| name.strip_prefix(prefix)?.chars().next());
        let mut next: Vec<char> = next.collect();
        next.sort_unstable();
        next.dedup();
        let next: String = next.into_iter().map(escaped).collect();
        let any = "(?s:.)";
        options.push(match next.is_empty() {
            true => format!("{text}{any}+"),
            false => format!("{text}[^{next}]{any}*"),
        });
        if !names.contains(&prefix) {
            options.push(text);
        }
    }
    format!("^({})$", options.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_no_names_are_matched() {
        let names = ["score", "scores", "é", "a|b"];
        let regex = regex::Regex::new(&none_of(&names)).unwrap();
        for name in names {
            assert!(!regex.is_match(name), "{name}");
        }
        for other in [
            "", "s", "scor", "scored", "scoresx", "x", "éé", "a", "a|", "a|b|", "\n",
        ] {
            assert!(regex.is_match(other), "{other:?}");
        }
    }

    #[test]
    fn only_objects_without_other_names_are_suspected() {
        let check = |schema: Value, places: &[&str]| {
            let found: Vec<String> = suspects(&schema).into_iter().map(|s| s.place).collect();
            assert_eq!(found, places, "{schema}");
        };
        let object = json!({"properties": {"a": {}}, "patternProperties": {"^a$": {}},
            "additionalProperties": false});
        check(object.clone(), &["`/patternProperties`"]);
        check(json!({"items": object}), &["`/items/patternProperties`"]);
        let mut open = object.clone();
        open["additionalProperties"] = json!(true);
        check(open, &[]);
        check(
            json!({"patternProperties": {"^a$": {}}, "additionalProperties": false}),
            &[],
        );
    }
}
