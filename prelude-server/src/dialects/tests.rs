use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::*;
use crate::{
    endpoint::{Asked, Endpoint},
    openapi::right,
    routes::ENDPOINTS,
    testing::{ask_strictly, every_task},
};

fn asked() -> impl Iterator<Item = (&'static Endpoint, &'static Asked)> {
    let of = |endpoint: &'static Endpoint| endpoint.requests.iter().map(move |r| (endpoint, r));
    ENDPOINTS.iter().flat_map(move |endpoint| of(endpoint))
}

/// Returns the fields that the request's type has.
fn own(body: &Asked) -> BTreeSet<String> {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let schema = (body.schema)(&mut settings.into_generator());
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.unwrap().keys().cloned().collect()
}

fn rows(body: &Asked) -> impl Iterator<Item = (&'static str, &'static Field)> {
    let rows = body.tables.iter().flat_map(|table| table.fields);
    rows.flat_map(|row| row.names.iter().map(move |name| (*name, row)))
}

#[test]
fn a_request_has_the_fields_that_its_tables_say_it_obeys() {
    let mut bodies = 0;
    for (endpoint, body) in asked() {
        let mut seen = BTreeSet::new();
        let mut obeyed = BTreeSet::new();
        for (name, row) in rows(body) {
            assert!(seen.insert(name), "{endpoint:?}: {name} has two rows");
            match row.effect {
                Effect::Obeyed | Effect::Cut => drop(obeyed.insert(name.to_owned())),
                Effect::Refused(neutral) | Effect::Foreign(neutral) => {
                    for text in neutral {
                        serde_json::from_str::<Value>(text).expect(text);
                    }
                }
                Effect::NoEffect => {}
            }
        }
        assert_eq!(own(body), obeyed, "{endpoint:?}: type, and tables");
        bodies += 1;
    }
    assert!(bodies > 15, "{bodies}");
}

/// Each field that is not obeyed, in a request that is right without it.
#[test]
fn every_other_field_is_refused_by_name_or_passed_over() {
    let mut checked = 0;
    for (endpoint, body) in asked() {
        let path = endpoint.route();
        let of_body = |request: &Value| {
            let fields = own(body);
            let object = request.as_object().unwrap();
            object.keys().all(|name| fields.contains(name))
        };
        let request = right(endpoint).into_iter().find(of_body).expect(path);
        let ask = |name: &str, value: Value| {
            let mut request = request.clone();
            request[name] = value;
            ask_strictly(every_task(), path, &request)
        };
        let (status, plain) = ask_strictly(every_task(), path, &request);
        assert_eq!(status, 200, "{path} {request}: {plain}");
        for (name, row) in rows(body) {
            let odd = || json!({"no": [{"such": "value"}]});
            match row.effect {
                Effect::Obeyed | Effect::Cut => continue,
                Effect::NoEffect => assert_eq!(ask(name, odd()).0, 200, "{path} {name}"),
                Effect::Refused(neutral) | Effect::Foreign(neutral) => {
                    let (refused, answer) = ask(name, odd());
                    let text = answer.to_string();
                    assert!(matches!(refused, 400 | 422), "{path} {name}: {text}");
                    let named = text.contains(&format!("`{name}`")) && text.contains("supported");
                    assert!(named, "{path} {name}: {text}");
                    for value in neutral.iter().chain(&["null"]) {
                        let value = serde_json::from_str(value).unwrap();
                        let (found, answer) = ask(name, value);
                        assert_eq!(found, 200, "{path} {name}: {answer}");
                    }
                }
            }
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked}");
}

/// The page of the guide that is made of the tables.
fn page() -> String {
    let link = |title: &str| {
        let anchor = title
            .to_lowercase()
            .replace(' ', "-")
            .replace([',', '\''], "");
        format!("[{title}](#{anchor})")
    };
    let mut page = "\n| route | fields |\n| --- | --- |\n".to_owned();
    let mut tables = BTreeMap::new();
    let mut sections = String::new();
    for (endpoint, body) in asked() {
        let paths: Vec<_> = endpoint.paths.iter().map(|p| format!("`{p}`")).collect();
        let links: Vec<_> = body.tables.iter().map(|t| link(t.title)).collect();
        page.push_str(&format!(
            "| {} | {} |\n",
            paths.join(", "),
            links.join(" · ")
        ));
        for table in body.tables {
            if tables.insert(table.title, table.fields.as_ptr()).is_none() {
                sections.push_str(&section(table));
            }
        }
    }
    page + &sections
}

fn section(table: &Table) -> String {
    let title = table.title;
    let head = "| fields | of | effect | |\n| --- | --- | --- | --- |\n";
    let mut section = format!("\n### {title}\n\n{head}");
    for row in table.fields {
        let names: Vec<_> = row.names.iter().map(|name| format!("`{name}`")).collect();
        let effect = match row.effect {
            Effect::Obeyed => "obeyed".to_owned(),
            Effect::Cut => "obeyed: cuts".to_owned(),
            Effect::NoEffect => "no effect".to_owned(),
            Effect::Refused([]) | Effect::Foreign([]) => "refused".to_owned(),
            Effect::Refused(neutral) | Effect::Foreign(neutral) => {
                let neutral: Vec<_> = neutral.iter().map(|value| format!("`{value}`")).collect();
                format!("refused, but for {}", neutral.join(" and "))
            }
        };
        let (names, of, note) = (names.join(", "), row.of, row.note);
        section.push_str(&format!("| {names} | {of} | {effect} | {note} |\n"));
    }
    section
}

/// The guide says what requests do. `PRELUDE_BLESS=1` writes the page.
#[test]
fn the_guide_has_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fields.md");
    if !path.parent().unwrap().is_dir() {
        eprintln!("SKIPPED: docs/ is not here; it is part of the workspace");
        return;
    }
    let text = fs::read_to_string(&path).unwrap();
    let marker = "\n## All fields\n";
    let (before, found) = text.split_once(marker).unwrap();
    let expected = page();
    if std::env::var_os("PRELUDE_BLESS").is_some() {
        fs::write(&path, format!("{before}{marker}{expected}")).unwrap();
    } else {
        assert_eq!(found, expected, "write it with PRELUDE_BLESS=1");
    }
}
