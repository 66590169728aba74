//! Bodies for every endpoint: whatever is sent is answered, or refused by name, and leaves nothing
//! behind.
#![no_main]

use std::{collections::BTreeSet, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use prelude_server_fuzz::{Asked, World};
use serde_json::Value;

static WORLDS: LazyLock<[World; 2]> = LazyLock::new(|| [World::open(), World::closed()]);

/// Names of all fields that the document has anywhere.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    fn gather(schema: &Value, names: &mut BTreeSet<String>) {
        if let Some(fields) = schema["properties"].as_object() {
            names.extend(fields.keys().cloned());
        }
        let children: Vec<&Value> = match schema {
            Value::Object(map) => map.values().collect(),
            Value::Array(list) => list.iter().collect(),
            _ => Vec::new(),
        };
        children.into_iter().for_each(|c| gather(c, names));
    }
    let mut names = BTreeSet::new();
    gather(&WORLDS[0].document, &mut names);
    names.into_iter().collect()
});

fuzz_target!(|input: (bool, Asked<'_>)| {
    let (is_open, asked) = input;
    let world = &WORLDS[usize::from(!is_open)];
    let (path, body) = asked.request(&NAMES);
    world.ask(path, body);
});
