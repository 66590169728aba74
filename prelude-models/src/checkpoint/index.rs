//! `model.safetensors.index.json`: which shard holds which tensor.

use std::{
    collections::BTreeMap,
    path::{Component, Path},
};

use crate::{Error, json};

/// Reads the shard file of each tensor by its name, every file name a plain one.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<BTreeMap<String, String>, Error> {
    let wrong = |what: String| Error::Index {
        file: file.to_owned(),
        what,
    };
    let document = json::object(file, bytes)?;
    let map = document
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| wrong("has no object `weight_map`".to_owned()))?;
    if map.is_empty() {
        return Err(wrong("`weight_map` is empty".to_owned()));
    }
    map.iter()
        .map(|(tensor, shard)| {
            let shard = shard
                .as_str()
                .filter(|name| is_plain(name))
                .ok_or_else(|| {
                    wrong(format!(
                        "tensor {tensor:?} is mapped to {shard}, which is not the name of a file beside the index"
                    ))
                })?;
            Ok((tensor.clone(), shard.to_owned()))
        })
        .collect()
}

/// Returns true if `name` is a file of the same folder: an index must not reach outside it.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let one = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(_)), None)
    );
    one && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(index: &str, expected: Result<usize, &str>) {
        match (parse("index.json", index.as_bytes()), expected) {
            (Ok(map), Ok(n)) => assert_eq!(map.len(), n),
            (Err(error), Err(part)) => {
                let error = error.to_string();
                assert!(error.contains(part), "{error}");
            }
            (got, expected) => panic!("{index}: {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn indices_are_checked() {
        check(r#"{"weight_map":{"a":"1.safetensors"}}"#, Ok(1));
        check(r#"{"metadata":{},"weight_map":{"a":"x","b":"x"}}"#, Ok(2));
        check("{", Err("not a usable JSON document"));
        check("[]", Err("not a usable JSON document"));
        check("{}", Err("has no object"));
        check(r#"{"weight_map":{}}"#, Err("empty"));
        check(r#"{"weight_map":{"a":3}}"#, Err("not the name of a file"));
        for outside in ["../x", "/etc/passwd", "..", ".", "", "a/b", "a\\\\b", "c:x"] {
            check(
                &format!(r#"{{"weight_map":{{"a":"{outside}"}}}}"#),
                Err("not the name of a file"),
            );
        }
    }
}
