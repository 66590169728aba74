//! The command, as a user runs it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");

struct Run {
    code: i32,
    out: String,
    err: String,
}

/// Runs the command with `stdin`; `DEMO` stands for the demo's file.
fn run(arguments: &[&str], stdin: &[u8]) -> Run {
    let arguments = arguments
        .iter()
        .map(|a| if *a == "DEMO" { DEMO } else { a });
    let mut child = Command::new(env!("CARGO_BIN_EXE_fasttoken"))
        .args(arguments)
        .env_remove("FASTTOKEN_TOKENIZER")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut input = child.stdin.take().expect("a pipe");
    // A command that fails early closes its end.
    let _ = input.write_all(stdin);
    drop(input);
    let output = child.wait_with_output().expect("the command ends");
    Run {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn done(arguments: &[&str], stdin: &[u8]) -> String {
    let run = run(arguments, stdin);
    assert_eq!(run.code, 0, "{arguments:?}: {}", run.err);
    run.out
}

/// A file of this test process that goes with the value.
struct TextFile(PathBuf);

impl TextFile {
    fn new(name: &str, text: &[u8]) -> Self {
        let name = format!("fasttoken-cli-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("the temporary folder is writable");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for TextFile {
    fn drop(&mut self) {
        // A file left in the temporary folder does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn texts_go_to_ids_and_back() {
    let tokenizer = fasttoken::Tokenizer::from_file(DEMO).expect("the demo loads");
    let text = "Where is my card?<|im_end|>\n漢字 🙂\n";
    let ids = done(&["encode", "-t", "DEMO"], text.as_bytes());
    let expected: Vec<String> = tokenizer
        .encode(text, false)
        .iter()
        .map(u32::to_string)
        .collect();
    assert_eq!(ids, format!("{}\n", expected.join(" ")));
    assert_eq!(
        done(&["decode", "-t", "DEMO", "--join"], ids.as_bytes()),
        text
    );
    let skipped = done(&["decode", "-t", "DEMO", "-j", "-s"], ids.as_bytes());
    assert_eq!(skipped, text.replace("<|im_end|>", ""));

    let lines = done(&["encode", "-t", "DEMO", "--lines"], text.as_bytes());
    assert_eq!(lines.lines().count(), 2);
    assert_eq!(done(&["decode", "-t", "DEMO"], lines.as_bytes()), text);
    let folder = std::path::Path::new(DEMO).parent().expect("a folder");
    let folder = folder.to_str().expect("a plain path");
    assert_eq!(done(&["encode", "-t", folder], text.as_bytes()), ids);
}

#[test]
fn plain_and_limited_encoding() {
    let text = b"pay <|im_end|> now and then";
    let plain = done(&["encode", "-t", "DEMO", "--plain"], text);
    assert_ne!(plain, done(&["encode", "-t", "DEMO"], text));
    assert_eq!(
        done(&["decode", "-t", "DEMO", "-j", "-s"], plain.as_bytes()).as_bytes(),
        text
    );
    let three = done(&["encode", "-t", "DEMO", "-m", "3"], text);
    assert_eq!(three.split_whitespace().count(), 3);
}

#[test]
fn json_says_everything() {
    let out = done(
        &["encode", "-t", "DEMO", "--json", "--chars", "-l"],
        "漢 a\nb".as_bytes(),
    );
    let objects: Vec<serde_json::Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(objects.len(), 2);
    assert_eq!(
        objects[0]["offsets"].as_array().and_then(|o| o.last()),
        Some(&serde_json::json!([1, 3]))
    );
    assert_eq!(objects[1]["tokens"], serde_json::json!(["b"]));
}

#[test]
fn counts_add_up() {
    let (a, b) = (
        TextFile::new("a", b"one two\nthree"),
        TextFile::new("b", b""),
    );
    let out = done(&["count", "-t", "DEMO", a.path(), b.path()], b"");
    assert_eq!(out.lines().count(), 3, "{out}");
    let quiet = done(&["count", "-t", "DEMO", "-q", a.path(), b.path()], b"");
    let tokenizer = fasttoken::Tokenizer::from_file(DEMO).expect("the demo loads");
    let expected = tokenizer.count("one two\nthree", false);
    assert_eq!(quiet, format!("{expected}\n"));
    assert!(
        out.lines()
            .last()
            .is_some_and(|l| l.trim_start().starts_with(quiet.trim()))
    );
}

#[test]
fn bench_measures() {
    let text = TextFile::new("bench", "How do I top up my card?\n".repeat(500).as_bytes());
    let out = done(
        &["bench", "-t", "DEMO", "-r", "1", "-j", "2", text.path()],
        b"",
    );
    assert_eq!(out.lines().count(), 5, "{out}");
    assert!(out.contains("encode, 2 threads"), "{out}");
}

#[test]
fn an_image_does_what_its_json_does() {
    let compiled = TextFile::new("demo.ftk", b"an old file");
    let out = done(&["compile", "DEMO", "-o", compiled.path()], b"");
    assert!(out.starts_with(compiled.path()), "{out}");
    let text = "Where is my card?<|im_end|>".as_bytes();
    let expected = done(&["encode", "-t", "DEMO", "--json"], text);
    assert_eq!(
        done(&["encode", "-t", compiled.path(), "--json"], text),
        expected
    );
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/spm/bpe-bytes.model"
    );
    let compiled = TextFile::new("model.ftk", b"an old file");
    done(&["compile", model, "-o", compiled.path()], b"");
    assert_eq!(
        done(&["encode", "-t", compiled.path()], text),
        done(&["encode", "-t", model], text)
    );
    let damaged = TextFile::new("damaged.ftk", b"an old file");
    let run = run(&["encode", "-t", damaged.path()], text);
    assert_eq!(run.code, 1);
    assert!(run.err.contains(damaged.path()), "{}", run.err);
}

#[test]
fn mistakes_are_named() {
    let check = |arguments: &[&str], stdin: &[u8], code: i32, expected: &str| {
        let run = run(arguments, stdin);
        assert_eq!(run.code, code, "{arguments:?}: {}", run.err);
        assert!(run.err.contains(expected), "{arguments:?}: {}", run.err);
    };
    // Each part of a message is said once.
    let missing = run(&["encode", "-t", "/nonexistent.json"], b"");
    assert_eq!(
        missing.err,
        "fasttoken: cannot read /nonexistent.json: No such file or directory (os error 2)\n"
    );
    let empty = TextFile::new("empty", b"{}");
    let malformed = run(&["encode", "-t", empty.path()], b"").err;
    assert_eq!(malformed.matches("missing field").count(), 1, "{malformed}");
    check(&["encode"], b"", 2, "--tokenizer");
    check(
        &["encode", "-t", "/nonexistent.json"],
        b"",
        1,
        "cannot read /nonexistent.json",
    );
    check(
        &["encode", "-t", "DEMO", "/nonexistent"],
        b"",
        1,
        "cannot read /nonexistent",
    );
    check(
        &["encode", "-t", "DEMO"],
        b"ab\xFFcd",
        1,
        "standard input is not UTF-8: see byte 2",
    );
    check(
        &["decode", "-t", "DEMO"],
        b"1 2\nx",
        1,
        "line 2: \"x\" is not an id",
    );
    check(
        &["encode", "-t", "DEMO", "-p", "-s"],
        b"",
        2,
        "cannot be used with",
    );
    check(&["bench", "-t", "DEMO"], b"", 1, "no text to measure");
    check(
        &["compile", "DEMO", "-o", "/nonexistent/x"],
        b"",
        1,
        "cannot write /nonexistent/x",
    );
    let bad = TextFile::new("bad", b"{\"model\": {\"type\": \"WordLevel\"}}");
    check(&["count", "-t", bad.path()], b"", 1, "$.model.type");
    let help = run(&["--help"], b"");
    assert!(
        help.code == 0 && help.out.contains("Exit codes"),
        "{}",
        help.out
    );
}

#[cfg(feature = "reference")]
#[test]
fn check_compares_with_the_reference() {
    let text = "Where is my card?<|im_end|>\n漢字 🙂 e\u{301}\n";
    let out = done(&["check", "-t", "DEMO"], text.as_bytes());
    assert!(out.starts_with("equal: 1 texts, "), "{out}");
    let out = done(&["check", "-t", "DEMO", "--lines", "-s"], text.as_bytes());
    assert!(out.starts_with("equal: 2 texts, "), "{out}");
}

#[cfg(not(feature = "reference"))]
#[test]
fn check_says_how_to_get_the_reference() {
    let run = run(&["check", "-t", "DEMO"], b"text");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("--features reference"), "{}", run.err);
}
