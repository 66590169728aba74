//! The user's guide and the first page: every block of shell, Python and settings is run, against
//! servers started as the pages say, and what is shown behind it is compared with what it printed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

/// The setting under which programs of the guide run: f32 gives the shown digits on all machines,
/// where kinds of processors round bfloat16 differently. The guide says so.
const IN_F32: (&str, &str) = ("PRELUDE_EXECUTOR__DTYPE", "f32");

/// The difference that is allowed beyond rounding to the digits that are shown: processors add
/// f32 numbers in different orders.
const SLACK: f64 = 5e-5;

/// Returns whether a number rounds to the one that is shown, within [`SLACK`].
fn is_shown(shown: &str, found: f64) -> bool {
    let digits = shown.split_once('.').map_or(0, |(_, digits)| digits.len());
    let half = 0.5 * 0.1f64.powi(i32::try_from(digits).unwrap());
    (shown.parse::<f64>().unwrap() - found).abs() <= half + SLACK
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_prelude");

/// A server of the guide's; ends with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Runs `prelude serve` with these arguments, in the workspace's folder.
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .current_dir(workspace())
            .env(IN_F32.0, IN_F32.1)
            .args(["serve", "--port", "0"])
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        let address = loop {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended: {seen}");
            if let Some((_, rest)) = line.split_once("http://")
                && line.starts_with("ready")
            {
                break rest.split(' ').next().unwrap().to_owned();
            }
            seen.push_str(&line);
        };
        // A full pipe would block its log.
        std::thread::spawn(move || said.read_to_string(&mut String::new()));
        Self { child, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is left to do if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A fenced block: its language, its text, and the line it begins on.
struct Block {
    language: String,
    text: String,
    line: usize,
    /// True if only blank lines are between the block before it and this one.
    follows: bool,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut open, mut follows) = (None, false);
    for (number, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block {
                    language: language.to_owned(),
                    text: String::new(),
                    line: number + 1,
                    follows,
                });
            }
            (Some(_), Some(_)) => {
                blocks.extend(open.take());
                follows = true;
            }
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) if line.trim().is_empty() => {}
            (None, None) => follows = false,
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Starts the servers that blocks of the console show, each under the address that it listens at
/// there: what is typed in a terminal of its own, which is nothing but a server.
fn servers(pages: &[(String, String)]) -> Vec<(String, Server)> {
    let mut servers: Vec<(String, Server)> = Vec::new();
    let all = pages.iter().flat_map(|(_, page)| blocks(page));
    for block in all.filter(|block| block.language == "console") {
        let typed = block.text.trim().strip_prefix("$ ");
        let typed = typed.unwrap_or_else(|| panic!("line {}: no prompt", block.line));
        let mut args: Vec<&str> = match typed {
            "cargo run --release" => Vec::new(),
            _ => typed
                .strip_prefix("prelude serve ")
                .unwrap()
                .split(' ')
                .collect(),
        };
        let port = args.iter().position(|&arg| arg == "--port").map(|at| {
            args.remove(at);
            args.remove(at)
        });
        let shown = format!("localhost:{}", port.unwrap_or("8000"));
        if servers.iter().all(|(known, _)| *known != shown) {
            servers.push((shown, Server::start(&args)));
        }
    }
    servers
}

/// Returns true if a program is installed.
fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    let command = command.arg("--version").stdout(Stdio::null());
    command.status().is_ok_and(|s| s.success())
}

/// Runs a block and returns what it printed.
fn run(
    program: &str,
    block: &Block,
    folder: &Path,
    servers: &[(String, Server)],
    at: &str,
) -> String {
    let mut text = block.text.replace("127.0.0.1:", "localhost:");
    for (shown, server) in servers {
        text = text.replace(shown, &server.address);
    }
    if at.starts_with("README.md") {
        // It shows no answers to compare with: not to be refused is what is left to check.
        text = text.replace("curl -s ", "curl -sS --fail-with-body ");
    }
    let own = Path::new(PROGRAM).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths(std::iter::once(own.to_owned()).chain(std::env::split_paths(&path)));
    let output = Command::new(program)
        .args(["-c", &text])
        .current_dir(folder)
        .env("PATH", path.unwrap())
        .env(IN_F32.0, IN_F32.1)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{at}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that the output shown is a part of the output that came.
fn compare(shown: &Value, found: &Value, at: &str) {
    match (shown, found) {
        (Value::String(text), _) if text == "..." => {}
        (Value::Object(shown), Value::Object(found)) => {
            for (name, shown) in shown {
                let found = found.get(name);
                compare(
                    shown,
                    found.unwrap_or(&Value::Null),
                    &format!("{at}/{name}"),
                );
            }
        }
        (Value::Array(shown), Value::Array(found)) => {
            assert_eq!(shown.len(), found.len(), "{at}");
            for (index, (shown, found)) in shown.iter().zip(found).enumerate() {
                compare(shown, found, &format!("{at}/{index}"));
            }
        }
        (Value::Number(shown), Value::Number(found)) if shown.is_f64() || found.is_f64() => {
            let (shown, found) = (shown.to_string(), found.as_f64().unwrap());
            let is_shown = is_shown(&shown, found);
            assert!(is_shown, "{at}: {found}, shown {shown}");
        }
        (shown, found) => assert_eq!(shown, found, "{at}"),
    }
}

/// Word by word, numbers with a fraction as far as digits are shown.
fn compare_text(shown: &str, found: &str, at: &str) {
    let words =
        |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let (shown_words, found_words) = (words(shown), words(found));
    let same = |(a, b): (&String, &String)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(shown), Ok(found)) if shown.fract() != 0.0 || found.fract() != 0.0 => {
            is_shown(a, found)
        }
        _ => a == b,
    };
    let all =
        shown_words.len() == found_words.len() && shown_words.iter().zip(&found_words).all(same);
    assert!(all, "{at}: printed\n{found}\nshown is\n{shown}");
}

/// Checks a file in TOML: settings, or words of typed questions, which begin with their name.
fn check_settings(text: &str, folder: &Path, at: &str) {
    let file = folder.join("settings.toml");
    std::fs::write(&file, text).unwrap();
    let is_wording = text.starts_with("name = ");
    let flag = if is_wording {
        "--decide-format"
    } else {
        "--config"
    };
    let output = Command::new(PROGRAM)
        .args(["serve", "--print-config", flag])
        .arg(&file)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{at}: {errors}");
    if is_wording {
        return;
    }
    let found: toml::Table = toml::from_str(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let shown: toml::Table = toml::from_str(text).unwrap();
    compare_settings(&shown, &found, at);
}

/// Every setting that is shown is there; tables may have others, too.
fn compare_settings(shown: &toml::Table, found: &toml::Table, at: &str) {
    for (name, value) in shown {
        let at = format!("{at}: {name}");
        match (value, found.get(name)) {
            (toml::Value::Table(shown), Some(toml::Value::Table(found))) => {
                compare_settings(shown, found, &at);
            }
            (value, found) => assert_eq!(found, Some(value), "{at}"),
        }
    }
}

#[test]
fn every_snippet_of_the_guide_runs_and_prints_what_it_shows() {
    let docs = workspace().join("docs");
    if !docs.is_dir() {
        eprintln!("SKIPPED: docs/ is not here; it is part of the workspace");
        return;
    }
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&docs)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    paths.sort();
    paths.push(workspace().join("README.md"));
    let page = |path: &PathBuf| {
        let name = path
            .strip_prefix(workspace())
            .unwrap()
            .display()
            .to_string();
        (name, std::fs::read_to_string(path).unwrap())
    };
    let pages: Vec<(String, String)> = paths.iter().map(page).collect();
    let servers = servers(&pages);
    let folder = std::env::temp_dir().join(format!("prelude-guide-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (shell, python) = (has("bash") && has("curl"), has("python3"));
    if !shell {
        eprintln!("SKIPPED: blocks of shell; bash or curl is not here");
    }
    if !python {
        eprintln!("SKIPPED: blocks of Python; python3 is not here");
    }
    let (mut ran, mut compared) = (0, 0);
    for (name, page) in &pages {
        let mut printed: Option<String> = None;
        for block in blocks(page) {
            let at = format!("{name}:{}", block.line);
            let program = match &*block.language {
                // How this test, and the server that it asks, came to be.
                "sh" if block.text.starts_with("cargo ") => continue,
                // They need the Python module: its tests run them (`python/tests/test_guide.py`).
                "python" if name == "docs/python.md" => {
                    printed = None;
                    continue;
                }
                "sh" if shell => "bash",
                "python" if python => "python3",
                "sh" | "python" => {
                    printed = None;
                    continue;
                }
                "toml" => {
                    check_settings(&block.text, &folder, &at);
                    ran += 1;
                    continue;
                }
                // They run already.
                "console" => continue,
                // `cargo xtask ci --only package` builds and runs them outside the repository.
                "manifest" => continue,
                "rust" => {
                    let example = workspace().join("prelude-server/examples/own_endpoint.rs");
                    assert_eq!(
                        block.text,
                        std::fs::read_to_string(example).unwrap(),
                        "{at}"
                    );
                    continue;
                }
                "json" | "text" => {
                    assert!(block.follows, "{at}: shown behind nothing");
                    let Some(found) = printed.take() else {
                        continue;
                    };
                    if block.language == "text" {
                        compare_text(&block.text, &found, &at);
                    } else {
                        let shown = serde_json::from_str(&block.text).expect(&at);
                        let found = serde_json::from_str(&found).expect(&found);
                        compare(&shown, &found, &at);
                    }
                    compared += 1;
                    continue;
                }
                other => panic!("{at}: nobody runs {other:?}"),
            };
            printed = Some(run(program, &block, &folder, &servers, &at));
            ran += 1;
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    if shell && python {
        assert!(ran > 20 && compared > 20, "{ran} run, {compared} compared");
    }
}

#[test]
fn a_wrong_page_is_noticed() {
    let wrong = |shown: &str, found: &str| {
        let (shown, found) = (
            serde_json::from_str(shown).unwrap(),
            serde_json::from_str(found).unwrap(),
        );
        std::panic::catch_unwind(|| compare(&shown, &found, "")).is_err()
    };
    assert!(!wrong(
        r#"{"a": [1, 0.5], "b": "..."}"#,
        r#"{"a": [1, 0.501], "b": 3, "c": 1}"#
    ));
    assert!(wrong(r#"{"a": 1}"#, r#"{"a": 2}"#));
    assert!(wrong(r#"{"a": 0.5}"#, r#"{"a": 0.6}"#));
    assert!(is_shown("0.327", 0.3265) && is_shown("0.327", 0.3275));
    assert!(!is_shown("0.327", 0.32639));
    assert!(wrong(r#"{"a": [1]}"#, r#"{"a": [1, 2]}"#));
    assert!(wrong(r#"{"a": 1}"#, "{}"));
    let page = blocks("```sh\na\n```\n\n```json\n1\n```\ntext\n```json\n2\n```\n");
    let follows: Vec<bool> = page.iter().map(|b| b.follows).collect();
    assert_eq!(follows, [false, true, false]);
}
