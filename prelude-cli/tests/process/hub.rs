//! Models by their names, from a stand-in of the Hugging Face Hub.

use std::{
    fs,
    io::{BufRead as _, BufReader, Lines, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use serde_json::Value;

use crate::{
    stand_in::{Fault, Model, StandIn},
    support::{Answer, connect, request, wait_for},
};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WEIGHTS: &str =
    "/bank/demo-lm/resolve/0123456789abcdef0123456789abcdef01234567/model.safetensors";
const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// A stand-in that has the demo language model under the name `bank/demo-lm`, and an empty cache.
struct World {
    hub: StandIn,
    home: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        // What cannot be removed lies in the system's folder for such things.
        let _ = fs::remove_dir_all(&self.home);
    }
}

impl World {
    fn new(name: &str) -> Self {
        let hub = StandIn::start();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../prelude-server/demo/demo-lm");
        let read = |file: &str| (file.to_owned(), fs::read(folder.join(file)).unwrap());
        hub.serve(Model {
            name: "bank/demo-lm".to_owned(),
            commit: COMMIT.to_owned(),
            files: FILES.into_iter().map(read).collect(),
            token: None,
        });
        let home = format!("prelude-server-hub-{}-{name}", std::process::id());
        Self {
            hub,
            home: std::env::temp_dir().join(home),
        }
    }

    /// Returns the program with this world's Hub and cache in its environment.
    fn prelude(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_prelude"));
        for (name, _) in std::env::vars() {
            let is_foreign = ["PRELUDE_", "HF_", "HUGGING"]
                .iter()
                .any(|p| name.starts_with(p));
            if is_foreign || name.to_ascii_lowercase().ends_with("_proxy") {
                command.env_remove(name);
            }
        }
        command.env("HF_HOME", &self.home);
        command.env("HF_ENDPOINT", self.hub.endpoint());
        command.args(args).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.prelude(args).output().unwrap()
    }

    fn serve(&self, variables: &[(&str, &str)]) -> Serving {
        let mut command = self.prelude(&["serve", "bank/demo-lm", "--port", "0"]);
        command.args(["--drain-delay", "0"]);
        command.envs(variables.iter().copied());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Serving { child, lines }
    }

    /// Returns the requests of files, each with its range, in the order of their paths.
    fn files(&self) -> Vec<(String, Option<String>)> {
        let prefix = format!("GET /bank/demo-lm/resolve/{COMMIT}/");
        let log = self.hub.log().into_iter();
        let file = log.filter_map(|a| Some((a.what.strip_prefix(&prefix)?.to_owned(), a.range)));
        let mut files: Vec<_> = file.collect();
        files.sort();
        files
    }

    /// Returns the bytes of the weights that have arrived in the cache without being complete.
    fn arrived(&self) -> u64 {
        let blobs = self.home.join("hub/models--bank--demo-lm/blobs");
        let entries = fs::read_dir(blobs).into_iter().flatten().flatten();
        let is_part = |e: &fs::DirEntry| e.file_name().to_string_lossy().ends_with(".incomplete");
        // A part may be whole, and have its own name, by the time that it is looked at.
        entries
            .filter(is_part)
            .filter_map(|e| Some(e.metadata().ok()?.len()))
            .sum()
    }
}

struct Serving {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Nothing is left to do if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    /// Waits for a line that begins so, and returns the address in it.
    fn address(&mut self, beginning: &str) -> String {
        loop {
            let line = self.lines.next().unwrap().unwrap();
            if line.starts_with(beginning) {
                let address = line.split("http://").nth(1).unwrap();
                return address.split([' ', ';']).next().unwrap().to_owned();
            }
        }
    }
}

fn get(address: &str, path: &str) -> Answer {
    let mut stream = connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    Answer::read(&mut stream).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_model_is_served_by_its_name_and_ready_tells_the_download() {
    let world = World::new("serve");
    world.hub.fail(WEIGHTS, [Fault::Hold(1_000)]);
    let mut serving = world.serve(&[]);
    let address = serving.address("listening on ");
    // All but the weights arrive, and a part of these.
    let mut body = Value::Null;
    wait_for(|| {
        let answer = get(&address, "/ready");
        assert_eq!(answer.status, 503, "{answer:?}");
        body = serde_json::from_str(&answer.body).unwrap();
        match (&body["detail"]["download"]["files"], world.arrived()) {
            (Value::Number(n), 1_000) if n.as_u64() == Some(4) => Ok(()),
            _ => Err(body.to_string()),
        }
    });
    let download = &body["detail"]["download"];
    assert_eq!(download["files_total"], 5);
    assert!(
        download["bytes"].as_u64() < download["bytes_total"].as_u64(),
        "{body}"
    );
    let message = body["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("the model is being downloaded: 4 of 5 files"),
        "{message}"
    );
    let mut stream = connect(&address).unwrap();
    let asked = request("/v1/completions", r#"{"prompt": "Where", "max_tokens": 1}"#);
    stream.write_all(asked.as_bytes()).unwrap();
    let refused = Answer::read(&mut stream).unwrap();
    assert_eq!(refused.status, 503);
    assert!(
        refused.body.contains(r#""reason":"loading""#),
        "{refused:?}"
    );

    world.hub.release();
    assert_eq!(serving.address("ready: bank/demo-lm (lm)"), address);
    assert!(
        get(&address, "/ready")
            .body
            .contains(r#""model":"bank/demo-lm""#)
    );
    drop(serving);
    let once = FILES.map(|file| (file.to_owned(), None));
    assert_eq!(world.files(), once);

    // From the cache, by a server that may open no connection, and by one that may.
    let connections = world.hub.connections();
    for offline in ["1", "0"] {
        let mut serving = world.serve(&[("HF_HUB_OFFLINE", offline)]);
        let address = serving.address("ready: bank/demo-lm (lm)");
        assert_eq!(get(&address, "/ready").status, 200);
    }
    assert_eq!(world.hub.connections(), connections);
}

#[test]
fn a_server_stops_while_it_downloads_and_a_pull_goes_on() {
    let world = World::new("stop");
    world.hub.fail(WEIGHTS, [Fault::Hold(1_000)]);
    let mut serving = world.serve(&[]);
    let _address = serving.address("listening on ");
    wait_for(|| match world.arrived() {
        1_000 => Ok(()),
        other => Err(format!("{other} bytes")),
    });
    let pid = serving.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));

    let pulled = world.run(&["pull", "bank/demo-lm"]);
    assert_eq!(pulled.status.code(), Some(0), "{}", text(&pulled.stderr));
    let folder = world
        .home
        .join(format!("hub/models--bank--demo-lm/snapshots/{COMMIT}"));
    assert_eq!(text(&pulled.stdout), format!("{}\n", folder.display()));
    let mut expected: Vec<_> = FILES.map(|file| (file.to_owned(), None)).into();
    expected.push((
        "model.safetensors".to_owned(),
        Some("bytes=1000-".to_owned()),
    ));
    expected.sort();
    let mut files = world.files();
    // The server may have been stopped before it had asked for all small files.
    files.dedup();
    assert_eq!(files, expected);

    let answered = world.run(&[
        "complete",
        "bank/demo-lm",
        "--chat",
        "-p",
        "Where is my card?",
    ]);
    assert_eq!(
        text(&answered.stdout),
        "card_arrival\n",
        "{}",
        text(&answered.stderr)
    );
}

/// A folder of an adapter that replaces the head alone, by zeros, and a base on the Hub.
#[test]
fn an_adapter_may_have_its_base_on_the_hub() {
    let world = World::new("adapter");
    let folder = world.home.join("adapter");
    fs::create_dir_all(&folder).unwrap();
    let bytes = 2 * 192 * 4;
    let header = format!(
        r#"{{"base_model.model.score.weight":{{"dtype":"F32","shape":[2,192],"data_offsets":[0,{bytes}]}}}}"#
    );
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(header.as_bytes());
    weights.resize(weights.len() + bytes, 0);
    fs::write(folder.join("adapter_model.safetensors"), weights).unwrap();
    let config = r#"{"peft_type": "LORA", "task_type": "SEQ_CLS", "modules_to_save": ["score"],
        "base_model_name_or_path": "bank/demo-lm"}"#;
    fs::write(folder.join("adapter_config.json"), config).unwrap();
    let folder = folder.to_str().unwrap();
    let told = world.run(&["classify", "-m", folder, "card"]);
    let said = text(&told.stderr);
    assert_eq!(told.status.code(), Some(3), "{said}");
    assert!(
        said.contains("\"bank/demo-lm\"") && said.contains("--base"),
        "{said}"
    );
    let answered = world.run(&["classify", "-m", folder, "--base", "bank/demo-lm", "card"]);
    let said = text(&answered.stderr);
    assert_eq!(text(&answered.stdout), "0.500\tLABEL_0\tcard\n", "{said}");
}

#[test]
fn refusals_end_the_program_with_what_to_do() {
    let world = World::new("refusals");
    let check = |args: &[&str], offline: &str, code: i32, expected: &[&str]| {
        let output = world
            .prelude(args)
            .env("HF_HUB_OFFLINE", offline)
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        for part in expected {
            assert!(said.contains(part), "{args:?}: {said}");
        }
    };
    check(&["pull", "bank/none"], "", 3, &["status 401", "HF_TOKEN"]);
    check(
        &["serve", "bank/none", "--port", "0"],
        "",
        3,
        &["is not a folder here", "HF_TOKEN"],
    );
    check(
        &["pull", "bank/demo-lm", "--revision", "v2"],
        "",
        3,
        &["no revision v2"],
    );
    let connections = world.hub.connections();
    check(
        &["pull", "none"],
        "",
        2,
        &["it has no owner", "OWNER/MODEL"],
    );
    check(
        &["pull", "bank/demo-lm", "--revision", "../x"],
        "",
        2,
        &["not a revision"],
    );
    check(
        &["classify", "-m", "no-folder", "x"],
        "",
        3,
        &["is not a folder"],
    );
    check(
        &["classify", "-m", ".", "--revision", "v2", "x"],
        "",
        2,
        &["--revision v2"],
    );
    for command in ["pull", "serve", "profile"] {
        check(&[command, "bank/demo-lm"], "1", 3, &["HF_HUB_OFFLINE"]);
    }
    assert_eq!(world.hub.connections(), connections);
}

#[test]
fn a_model_that_is_not_served_is_refused_before_its_weights() {
    let world = World::new("unserved");
    let serve = |config: &str, beside: &str| {
        let file = |path: &str, bytes: &str| (path.to_owned(), bytes.as_bytes().to_vec());
        world.hub.serve(Model {
            name: "bank/demo-lm".to_owned(),
            commit: COMMIT.to_owned(),
            files: [
                file("config.json", config),
                file("model.safetensors", "never read"),
                file("tokenizer.json", "{}"),
                file(beside, "never read"),
            ]
            .into(),
            token: None,
        });
    };
    let refused = |expected: &str| {
        let served = world.run(&["serve", "bank/demo-lm", "--port", "0"]);
        let said = text(&served.stderr);
        assert_eq!(served.status.code(), Some(3), "{said}");
        assert!(said.contains("bank/demo-lm is not downloaded"), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../prelude-server/demo/demo-lm");
    let llama = fs::read_to_string(demo.join("config.json")).unwrap();
    serve(&llama, "readout.safetensors");
    refused("has readout.safetensors, the head of a decision model");
    let t5 = r#"{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}"#;
    serve(t5, "README.md");
    refused("T5ForConditionalGeneration");
    assert_eq!(world.files(), vec![("config.json".to_owned(), None); 2]);

    let pulled = world.run(&["pull", "bank/demo-lm"]);
    let said = text(&pulled.stderr);
    assert_eq!(pulled.status.code(), Some(0), "{said}");
    assert!(said.contains("does not serve the model"), "{said}");
    assert_eq!(world.files().len(), 4);
}

#[test]
fn a_hub_that_does_not_answer_is_named_after_a_second() {
    let world = World::new("silent");
    let description = "/api/models/bank/demo-lm/revision/main?blobs=true";
    world.hub.fail(description, [Fault::Hold(0)]);
    let mut child = world
        .prelude(&["pull", "bank/demo-lm"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let expected = format!("asking {} about bank/demo-lm", world.hub.endpoint());
    assert!(first.starts_with(&expected), "{first}");
    world.hub.release();
    assert!(child.wait().unwrap().success());
}
