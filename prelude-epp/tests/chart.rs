//! The Helm chart: it renders, its objects fit each other and the program's flags, and the plain
//! manifests in `kubernetes/` are what it renders.
//!
//! Helm itself is not needed: the templates use so little of its language that [`render`] knows all
//! of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};
use yaml_rust2::{Yaml, YamlLoader};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/chart");
/// The chart's templates, in the order of the manifests.
const TEMPLATES: [&str; 4] = ["engines", "picker", "pool", "route"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(CHART).join(path)).unwrap()
}

/// Reads a document of YAML.
fn yaml(text: &str) -> Value {
    let documents = YamlLoader::load_from_str(text).unwrap();
    let [document] = &documents[..] else {
        panic!("{} documents in {text}", documents.len());
    };
    as_json(document)
}

fn as_json(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::String(text) => text.as_str().into(),
        Yaml::Integer(number) => (*number).into(),
        Yaml::Boolean(is_true) => (*is_true).into(),
        Yaml::Null => Value::Null,
        Yaml::Array(items) => items.iter().map(as_json).collect(),
        Yaml::Hash(fields) => {
            let field = |(key, value): (&Yaml, &Yaml)| {
                let key = key.as_str().expect("a key is a string");
                (key.to_owned(), as_json(value))
            };
            Value::Object(fields.iter().map(field).collect())
        }
        other => panic!("the chart has no {other:?}"),
    }
}

/// Returns the chart's values with those that an example needs.
fn values() -> Value {
    let mut values = yaml(&read("values.yaml"));
    values["image"] = json!("registry.example/prelude-epp:0.1.0");
    values["gateway"] = json!("gateway");
    values
}

/// Renders a template for the release `prelude`: names, values, `toJson`, `int64`, and parts that
/// are left out where a value is empty.
fn render(template: &str, values: &Value) -> String {
    let of = |path: &str| {
        let path = path.strip_prefix(".Values.").expect("a path of values");
        let found = path.split('.').fold(values, |value, key| &value[key]);
        assert!(!found.is_null(), "there is no value {path}");
        found
    };
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let (mut out, mut left_out) = (String::new(), false);
    for line in template.lines() {
        if let Some(condition) = line.strip_prefix("{{- if ") {
            left_out = of(condition.strip_suffix(" }}").unwrap()) == "";
            continue;
        }
        if line == "{{- end }}" {
            left_out = false;
            continue;
        }
        if left_out {
            continue;
        }
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("{{ ") {
            let (action, after) = after.split_once(" }}").unwrap();
            out.push_str(before);
            let words: Vec<&str> = action.split(' ').collect();
            out.push_str(&match words[..] {
                [".Release.Name"] => "prelude".to_owned(),
                [path] => plain(of(path)),
                [path, "|", "int64"] => of(path).as_u64().unwrap().to_string(),
                ["toJson", path] => of(path).to_string(),
                _ => panic!("the test does not know `{action}`"),
            });
            rest = after;
        }
        assert!(!rest.contains("{{"), "{line}");
        out.push_str(rest);
        out.push('\n');
    }
    out
}

/// Returns the chart's manifests as one file.
fn manifests(values: &Value) -> String {
    let of = |name: &&str| render(&read(&format!("templates/{name}.yaml")), values);
    let rendered: Vec<String> = TEMPLATES.iter().map(of).collect();
    let filled = rendered.into_iter().filter(|text| !text.is_empty());
    filled.collect::<Vec<_>>().join("---\n")
}

fn objects(manifests: &str) -> Vec<Value> {
    manifests.split("---\n").map(yaml).collect()
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    let found = objects.iter().find(is_it);
    found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

/// Returns true if the object has all labels of the selector.
fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().unwrap();
    !selector.is_empty() && selector.iter().all(|(key, value)| labels[key] == *value)
}

#[test]
fn every_template_is_rendered() {
    let mut found: Vec<String> = fs::read_dir(Path::new(CHART).join("templates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, TEMPLATES.map(|name| format!("{name}.yaml")));
    let chart = yaml(&read("Chart.yaml"));
    assert_eq!(chart["name"], env!("CARGO_PKG_NAME"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn plain_manifests_are_what_the_chart_renders() {
    let path = Path::new(CHART).with_file_name("kubernetes/prelude.yaml");
    let rendered = manifests(&values());
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let (_, kept) = kept.split_once("\n\n").unwrap_or_default();
    assert_eq!(kept, rendered, "{} must be:\n{rendered}", path.display());
}

#[test]
fn objects_name_each_other() {
    let objects = objects(&manifests(&values()));
    let picker = &object(&objects, "Deployment", "prelude-epp")["spec"];
    let labels = &picker["template"]["metadata"]["labels"];
    assert!(selects(&picker["selector"]["matchLabels"], labels));
    let container = &picker["template"]["spec"]["containers"][0];
    let port = &container["ports"][0]["containerPort"];
    for probe in ["readinessProbe", "livenessProbe"] {
        assert_eq!(container[probe]["grpc"]["port"], *port);
    }

    let service = &object(&objects, "Service", "prelude-epp")["spec"];
    assert!(selects(&service["selector"], labels));
    assert_eq!(service["ports"][0]["targetPort"], *port);

    let pool = object(&objects, "InferencePool", "prelude");
    assert_eq!(pool["apiVersion"], "inference.networking.k8s.io/v1");
    let pool = &pool["spec"];
    let reference = &pool["endpointPickerRef"];
    assert_eq!(reference["name"], "prelude-epp");
    assert_eq!(reference["port"]["number"], service["ports"][0]["port"]);

    let engines = &object(&objects, "Service", "prelude-engines")["spec"];
    assert_eq!(engines["clusterIP"], "None");
    assert_eq!(engines["selector"], pool["selector"]["matchLabels"]);
    let engine_port = &engines["ports"][0]["targetPort"];
    assert_eq!(pool["targetPorts"], json!([{ "number": engine_port }]));
    let command = container["command"].as_array().unwrap();
    let dns = format!("--dns=prelude-engines:{engine_port}");
    assert!(command.contains(&json!(dns)), "{command:?}");

    let route = &object(&objects, "HTTPRoute", "prelude")["spec"];
    let backend = &route["rules"][0]["backendRefs"][0];
    assert_eq!(backend["kind"], "InferencePool");
    assert_eq!(backend["name"], "prelude");
    assert_eq!(route["parentRefs"][0]["name"], "gateway");
}

#[test]
fn the_program_knows_the_flags() {
    let mut values = values();
    values["args"] = json!(["--log-picks"]);
    let objects = objects(&manifests(&values));
    let picker = &object(&objects, "Deployment", "prelude-epp")["spec"];
    let spec = &picker["template"]["spec"];
    let container = &spec["containers"][0];
    let lists = [&container["command"], &container["args"]];
    let words = lists.into_iter().flat_map(|list| list.as_array().unwrap());
    let words: Vec<&str> = words.map(|word| word.as_str().unwrap()).collect();
    assert_eq!(words[0], env!("CARGO_PKG_NAME"));
    // The first flag that it does not know is the last one: it has read those before.
    let output = Command::new(env!("CARGO_BIN_EXE_prelude-epp"))
        .args(&words[1..])
        .arg("--no-such-flag")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("'--no-such-flag'"), "{said}");
    // What drains has its time: 2 s and 60 s.
    assert!(spec["terminationGracePeriodSeconds"].as_u64().unwrap() > 62);
}

#[test]
fn without_a_gateway_there_is_no_route() {
    let mut values = values();
    values["gateway"] = json!("");
    let objects = objects(&manifests(&values));
    assert!(objects.iter().all(|object| object["kind"] != "HTTPRoute"));
    assert_eq!(objects.len(), 4);
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let is_valid = |values: &Value| jsonschema::is_valid(&schema, values);
    assert!(is_valid(&values()));
    // The chart's own lack an image, which must be given.
    assert!(!is_valid(&yaml(&read("values.yaml"))));
    let changes = [
        ("/image", json!("")),
        ("/engines/matchLabels", json!({})),
        ("/engines/port", json!(0)),
        (
            "/engines",
            json!({ "matchLabels": { "app": "a" }, "port": 1, "prot": 2 }),
        ),
        ("/kvTokens", json!("many")),
        ("/failureMode", json!("FailSometimes")),
        ("/args", json!("--log-picks")),
    ];
    for (pointer, value) in changes {
        let mut changed = values();
        *changed.pointer_mut(pointer).unwrap() = value;
        assert!(!is_valid(&changed), "{pointer}");
    }
}
