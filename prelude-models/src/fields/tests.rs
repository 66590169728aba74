use std::path::Path;

use serde_json::json;

use super::*;

#[test]
fn every_field_has_one_row() {
    let mut seen = std::collections::BTreeSet::new();
    for field in all() {
        for name in field.names {
            assert!(seen.insert((field.file, *name)), "{}: {name}", field.file);
        }
        if let Effect::Refused(allowed) = field.effect {
            for text in allowed {
                serde_json::from_str::<Value>(text).expect(text);
            }
        }
    }
}

#[test]
fn refusals_and_warnings_name_the_field() {
    let check = |document: Value, expected: Result<&str, &str>| {
        let found = check("config.json", document.as_object().unwrap());
        match (found, expected) {
            (Ok(warnings), Ok("")) => assert!(warnings.is_empty(), "{warnings:?}"),
            (Ok(warnings), Ok(part)) => {
                let all = warnings.join("\n");
                assert!(all.contains(part), "{document}: {all}");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, _) => panic!("{document}: {found:?}"),
        }
    };
    check(json!({"use_mrope": false, "hidden_act": null}), Ok(""));
    let mrope = "config.json: `use_mrope` of true (only false: a position is one number)";
    check(json!({"use_mrope": true}), Err(mrope));
    check(json!({"partial_rotary_factor": 1.0}), Ok(""));
    check(json!({"compression_config": {}}), Err("quantised"));
    check(json!({"top_k": 3, "num_beams": 4}), Ok(""));
    check(json!({"zeta": 1, "alpha": null}), Ok("passes over: `zeta`"));
    check(json!({"auto_map": {}}), Ok("`auto_map` is passed over"));
}

/// The page of the guide that is made of the table.
fn page() -> String {
    let mut page = String::new();
    let mut file = "";
    for field in all() {
        if field.file != file {
            file = field.file;
            page.push_str(&format!(
                "\n### `{file}`\n\n| fields | effect | |\n| --- | --- | --- |\n"
            ));
        }
        let names: Vec<String> = field.names.iter().map(|n| format!("`{n}`")).collect();
        let effect = match field.effect {
            Effect::Obeyed => "obeyed".to_owned(),
            Effect::Refused([]) => "refused".to_owned(),
            Effect::Refused(allowed) => {
                let allowed: Vec<String> = allowed.iter().map(|a| format!("`{a}`")).collect();
                format!("refused, but for {}", allowed.join(" and "))
            }
            Effect::Checked => "refused unless".to_owned(),
            Effect::NoEffect => "no effect".to_owned(),
            Effect::Warned => "no effect, with a warning".to_owned(),
        };
        let (names, note) = (names.join(", "), field.note);
        page.push_str(&format!("| {names} | {effect} | {note} |\n"));
    }
    page
}

/// The guide says what loading does. `PRELUDE_BLESS=1` writes the page.
#[test]
fn the_guide_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/checkpoints.md");
    if !path.parent().unwrap().is_dir() {
        eprintln!("SKIPPED: docs/ is not here; it is part of the workspace");
        return;
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let marker = "\n## All fields\n";
    let (before, found) = text.split_once(marker).unwrap();
    let expected = page();
    if std::env::var_os("PRELUDE_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{marker}{expected}")).unwrap();
    } else {
        assert_eq!(found, expected, "write it with PRELUDE_BLESS=1");
    }
}
