//! The program as people run it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
};

fn prelude(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prelude"));
    for name in [
        "PRELUDE_LIMITS__ROWS",
        "PRELUDE_CONFIG",
        "PRELUDE_API_KEY",
        "PRELUDE_API_KEY_FILE",
    ] {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str], input: &str) -> Output {
    let mut command = prelude(args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

fn check(args: &[&str], input: &str, code: i32, out: &str, err: &str) {
    let output = run(args, input);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        output.status.code(),
        Some(code),
        "{args:?}: {stdout}{stderr}"
    );
    assert!(stdout.contains(out), "{args:?} printed {stdout:?}");
    assert!(stderr.contains(err), "{args:?} said {stderr:?}");
}

/// 300 labels of a few tokens are over a thousand rows for each text.
#[test]
fn many_labels_and_many_texts() {
    let labels: Vec<String> = (0..300).map(|i| format!("label number {i}")).collect();
    let texts = "Where is my card?\n".repeat(12);
    let output = run(&["classify", "--labels", &labels.join(",")], &texts);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 12);
}

#[test]
fn one_answer_without_a_server() {
    check(
        &["classify", "Where is my card?"],
        "",
        0,
        "card_arrival\tWhere is my card?\n",
        "",
    );
    check(
        &["classify", "--jsonl"],
        "\"Where is my card?\"\n",
        0,
        "card_arrival",
        "",
    );
    check(
        &[
            "classify",
            "--labels",
            "card,cash",
            "--template",
            "{{ text }}\\nWhich topic?",
            "Where is my card?",
        ],
        "",
        0,
        "\tcard\t",
        "",
    );
    check(
        &["classify", "--format", "json", "x"],
        "",
        0,
        "\"object\":\"list\"",
        "",
    );
    check(
        &["complete", "--chat", "Where is my card?"],
        "",
        0,
        "card_arrival\n",
        "",
    );
    let demo = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../prelude-server/demo/demo-lm"
    );
    check(
        &["complete", demo, "--chat", "-p", "Where is my card?"],
        "",
        0,
        "card_arrival\n",
        "",
    );
    check(
        &["complete", "-m", demo, "-p", "Where is", "-p", "my card"],
        "",
        0,
        "\n",
        "",
    );
    check(
        &["complete", demo, "-m", demo, "-p", "x"],
        "",
        2,
        "",
        "give the model once",
    );
    check(
        &["complete", "nowhere", "-p", "x"],
        "",
        3,
        "",
        "cannot be loaded",
    );
    check(
        &["tokenize", "Where is my card?"],
        "",
        0,
        "660 \"Where\"",
        "",
    );
    let ranked = [
        "rerank",
        "--query",
        "Where is my card?",
        "--top-n",
        "1",
        "a",
        "b",
    ];
    check(&ranked, "", 0, "0.", "");
    let vector = run(&["embed", "a", "b"], "");
    let vector = String::from_utf8_lossy(&vector.stdout).into_owned();
    let widths: Vec<usize> = vector.lines().map(|l| l.split(' ').count()).collect();
    assert!(
        widths.len() == 2 && widths[0] > 1 && widths[0] == widths[1],
        "{vector}"
    );
    let request = r#"{"state":"s","questions":{"q":{"type":"noul"}}}"#;
    check(&["decide", "-"], request, 0, "q\t", "");
}

/// Types what the help of each command shows into a shell, where the files are that it names.
#[test]
fn examples_of_the_help_work() {
    let folder = std::env::temp_dir().join(format!("prelude-help-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("messages.txt"), "Where is my card?\nA refund\n").unwrap();
    let line = r#"{"custom_id": "a", "url": "/classify", "body": {"input": "a"}}"#;
    std::fs::write(folder.join("requests.jsonl"), line).unwrap();
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../prelude-server/demo/demo-lm"
    );
    std::os::unix::fs::symlink(model, folder.join("Qwen3-0.6B")).unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_prelude"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let commands = [
        "serve",
        "classify",
        "complete",
        "embed",
        "rerank",
        "decide",
        "run-batch",
        "tokenize",
    ];
    for command in commands {
        let help = run(&[command, "--help"], "").stdout;
        let help = String::from_utf8(help).unwrap();
        // Two blanks begin an example, and what is behind two more explains it; what is piped
        // goes on to the end.
        let typed: Vec<String> = match help.split_once("  echo ") {
            Some((_, rest)) => vec![format!("echo {rest}")],
            None => help
                .lines()
                .filter_map(|line| line.strip_prefix("  prelude "))
                .map(|rest| format!("prelude {}", rest.split("  ").next().unwrap()))
                .collect(),
        };
        assert!(!typed.is_empty(), "{command} shows nothing: {help}");
        for typed in typed {
            if command == "serve" && !typed.contains("--print-config") {
                continue;
            }
            let shell = Command::new("sh")
                .args(["-c", &typed])
                .current_dir(&folder)
                .env("PATH", &path)
                .stdin(Stdio::null())
                .output();
            let output = shell.unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{typed}: {errors}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn exit_codes() {
    check(&["classify"], "", 2, "", "no texts");
    check(&["sing"], "", 2, "", "unrecognized");
    check(
        &["serve", "/no/such/folder", "--port", "0"],
        "",
        3,
        "",
        "is not a folder",
    );
    check(
        &["classify", "--model", env!("CARGO_MANIFEST_DIR"), "x"],
        "",
        3,
        "",
        "has no tokenizer.json",
    );
    let demo = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../prelude-server/demo/demo-classifier"
    );
    for command in ["classify", "embed", "tokenize", "complete"] {
        check(&[command, demo, "x"], "", 2, "", "name the model with -m");
    }
    check(&["pull", "no-owner"], "", 2, "", "OWNER/MODEL");
    check(&["decide", "-"], "{}", 1, "", "field `state` is required");
    check(
        &[
            "classify",
            "--kind",
            "lm",
            "-m",
            concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../prelude-server/demo/demo-classifier"
            ),
            "x",
        ],
        "",
        2,
        "",
        "of kind classifier",
    );
    check(&["--help"], "", 0, "prelude classify", "");
    let named = ["serve", "--print-config", "--host", "localhost"];
    check(&named, "", 0, "host = \"127.0.0.1\"", "");
    // Whatever else is wrong: here the port is taken.
    if !cfg!(feature = "cuda") {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let cuda = ["serve", "--device", "cuda", "--port", &port];
        check(
            &cuda,
            "",
            2,
            "",
            "error: this program was built without CUDA",
        );
    }
    check(
        &["serve", "--print-config", "--port", "7"],
        "",
        0,
        "port = 7",
        "",
    );
}

/// A server, and what it says on stderr.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(args: &[&str]) -> Self {
        let mut child = prelude(args).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = lines
            .find_map(|line| line.unwrap().strip_prefix("ready: ").map(str::to_owned))
            .unwrap();
        // A writer must find a reader.
        std::thread::spawn(move || lines.for_each(drop));
        let address = ready.split("http://").nth(1).unwrap();
        let address = address.split(' ').next().unwrap().to_owned();
        Self { child, address }
    }

    fn get(&self, path: &str, header: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\n{header}connection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_serves_until_it_is_told_to_stop() {
    let mut server = Served::start(&["serve", "--port", "0"]);
    assert!(server.get("/v1/models", "").contains("demo-classifier"));
    // The port is taken now, and the message says what to do.
    let port = server.address.rsplit(':').next().unwrap().to_owned();
    check(
        &["serve", "--port", &port],
        "",
        1,
        "",
        "choose another one:   prelude serve --port",
    );
    let pid = server.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn keys_protect() {
    let folder = std::env::temp_dir().join(format!("prelude-cli-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let keys = folder.join("keys");
    std::fs::write(&keys, "# mine\nsecret\n").unwrap();
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../prelude-server/demo/demo-classifier"
    );
    let server = Served::start(&[
        "serve",
        model,
        "--served-model-name",
        "intents",
        "intents-2",
        "--log-level",
        "error",
        "--policy",
        "fcfs",
        "--port",
        "0",
        "--api-key-file",
        keys.to_str().unwrap(),
    ]);
    assert!(server.get("/v1/models", "").starts_with("HTTP/1.1 401"));
    let answer = server.get("/v1/models", "authorization: Bearer secret\r\n");
    for name in ["intents", "intents-2"] {
        assert!(answer.contains(&format!("\"id\":\"{name}\"")), "{answer}");
    }
    let other = server.get("/v1/models/intents-2", "authorization: Bearer secret\r\n");
    assert!(other.contains("\"root\":\"intents\""), "{other}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Settings and keys are read from files alone: opening a pipe would wait for its other end.
#[test]
fn settings_and_keys_are_no_pipes() {
    let name = format!("prelude-cli-pipe-{}", std::process::id());
    let pipe = std::env::temp_dir().join(name);
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for place in [pipe.to_str().unwrap(), "/dev/zero"] {
        for flag in ["--config", "--api-key-file"] {
            let (sender, receiver) = std::sync::mpsc::channel();
            let args = ["serve", flag, place].map(str::to_owned);
            std::thread::spawn(move || {
                let args = args.each_ref().map(String::as_str);
                sender.send(run(&args, ""))
            });
            let output = receiver.recv_timeout(std::time::Duration::from_secs(60));
            let output = output.expect("the program ends");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(
                said.contains(place) && said.contains("not a regular file"),
                "{said}"
            );
        }
    }
    std::fs::remove_file(&pipe).unwrap();
}

/// Lines that are answered, refused and never run; a torn output that is taken up again.
#[test]
fn a_file_of_requests() {
    let folder = std::env::temp_dir().join(format!("prelude-batch-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (input, output) = (path("in.jsonl"), path("out.jsonl"));
    let line = |id: &str, url: &str, body: &str| {
        format!(
            "{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"{url}\",\"body\":{body}}}\n"
        )
    };
    let lines = [
        line("z", "/classify", r#"{"input":"Where is my card?"}"#),
        line(
            "a",
            "/v1/completions",
            r#"{"prompt":"Where is my","max_tokens":1,"temperature":0}"#,
        ),
        "not json\n".to_owned(),
        "\n".to_owned(),
        line("a", "/classify", r#"{"input":"x"}"#),
        line("u", "/health", "{}"),
        line("s", "/v1/completions", r#"{"prompt":"a","stream":true}"#),
        line("r", "/v1/completions", r#"{"prompt":""}"#),
        line(
            "last",
            "/v1/systemone",
            r#"{"state":"s","questions":{"q":{"type":"noul"}}}"#,
        ),
    ];
    std::fs::write(&input, lines.concat()).unwrap();
    let batch = ["run-batch", "-i", &input, "-o", &output, "--ordered"];
    check(&batch, "", 2, "", "3 answered, 1 refused, 4 never ran");
    let text = std::fs::read_to_string(&output).unwrap();
    let read = |line: &str| -> serde_json::Value { serde_json::from_str(line).unwrap() };
    let found: Vec<_> = text.lines().map(read).collect();
    let brief = |line: &serde_json::Value| {
        let custom_id = line["custom_id"].as_str().unwrap_or("-").to_owned();
        assert!(line["id"].as_str().unwrap().starts_with("batch_req_"));
        let code = line["error"]["code"].as_str().map(str::to_owned);
        let status = line["response"]["status_code"].as_u64();
        (
            custom_id,
            code.unwrap_or_else(|| status.unwrap().to_string()),
        )
    };
    let brief: Vec<_> = found.iter().map(brief).collect();
    let expected = [
        ("z", "200"),
        ("a", "200"),
        ("-", "invalid_json"),
        ("a", "duplicate_custom_id"),
        ("u", "unknown_url"),
        ("s", "stream"),
        ("r", "400"),
        ("last", "200"),
    ];
    assert_eq!(
        brief,
        expected.map(|(id, how)| (id.to_owned(), how.to_owned()))
    );
    assert_eq!(
        found[0]["response"]["body"]["data"][0]["label"],
        "card_arrival"
    );
    assert!(found[7]["response"]["body"]["answers"]["q"]["noul"].is_f64());
    assert_eq!(found[6]["response"]["body"]["error"]["param"], "prompt");

    // Torn in the middle of the last line, and taken up again: two of eight are asked again.
    let cut: Vec<&str> = text.lines().collect();
    let torn = format!("{}\n{}", cut[0], &cut[1][..20]);
    std::fs::write(&output, torn).unwrap();
    let good = [&lines[0], &lines[1], &lines[8]]
        .map(String::as_str)
        .concat();
    std::fs::write(&input, good).unwrap();
    let again = [
        "run-batch",
        "-i",
        &input,
        "-o",
        &output,
        "--resume",
        "--window",
        "1",
    ];
    check(
        &again,
        "",
        0,
        "",
        "2 answered, 0 refused, 0 never ran, 1 were there",
    );
    let text = std::fs::read_to_string(&output).unwrap();
    let ids: Vec<_> = text.lines().map(|l| read(l)["custom_id"].clone()).collect();
    assert_eq!(ids, ["z", "a", "last"]);
    check(
        &["run-batch", "-i", "/no/such/file", "-o", "-"],
        "",
        1,
        "",
        "/no/such/file",
    );
    check(
        &["run-batch", "-i", "-", "-o", "-"],
        &lines[0],
        0,
        "card_arrival",
        "1 answered",
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_environment_sets_what_files_set() {
    let run = |name: &str, value: &str| {
        let mut command = prelude(&["serve", "--print-config"]);
        command.env(name, value).output().unwrap()
    };
    let output = run("PRELUDE_LIMITS__ROWS", "77");
    assert!(String::from_utf8_lossy(&output.stdout).contains("rows = 77"));
    let output = run("PRELUDE_LIMITS__RAWS", "77");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("PRELUDE_LIMITS__RAWS"));
}

/// A variable that the program does not know is most likely a misspelt one.
#[test]
fn unknown_variables_are_refused_with_the_nearest_known_one() {
    let refused = |name: &str, nearest: &str| {
        let mut command = prelude(&["serve", "--print-config"]);
        let output = command.env(name, "2").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains(name) && said.contains(nearest), "{said}");
    };
    refused("PRELUDE_LIMITS_ROWS", "PRELUDE_LIMITS__ROWS");
    refused("PRELUDE_APIKEY", "PRELUDE_API_KEY");
    refused("PRELUDE_SERVER_PORT", "PRELUDE_SERVER__PORT");
    refused("PRELUDE_FOO", "PRELUDE_");
}

/// A setting that no scheduler can run with is the user's mistake, and not the model's.
#[test]
fn a_setting_out_of_range_is_a_wrong_usage() {
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../prelude-server/demo/demo-lm"
    );
    let output = run(&["serve", model, "--max-num-seqs", "0", "--port", "0"], "");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let expected = "max_num_seqs is 0, but must be at least 1";
    assert!(said.contains(expected), "{said}");
}

/// A secret that a deployment failed to fill in must not open the server.
#[test]
fn an_empty_key_does_not_open_the_server() {
    let refused = |args: &[&str], variable: Option<(&str, &str)>| {
        let mut command = prelude(&["serve", "--print-config"]);
        command.args(args).envs(variable);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?} {variable:?}: {said}"
        );
        assert!(said.contains("empty"), "{said}");
    };
    refused(&[], Some(("PRELUDE_API_KEY", "")));
    refused(&[], Some(("PRELUDE_API_KEY", " \n")));
    refused(&[], Some(("PRELUDE_API_KEY_FILE", "")));
    refused(&["--api-key", ""], None);
    // A key of the flags is above the environment.
    let mut command = prelude(&["serve", "--print-config", "--api-key", "secret"]);
    let output = command.env("PRELUDE_API_KEY", "").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Two texts are two rows, of which one is allowed.
#[test]
fn the_environment_sets_all_commands() {
    let refused = |args: &[&str], input: &str| {
        let mut command = prelude(args);
        command.env("PRELUDE_LIMITS__ROWS", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let line = r#"{"custom_id":"a","url":"/classify","body":{"input":["a","b"]}}"#;
    let (code, answers) = refused(&["run-batch", "-i", "-", "-o", "-"], line);
    assert_eq!(code, Some(2));
    assert!(answers.contains("too_many_rows"), "{answers}");
    let question = r#"{"state":"s","questions":{"q":{"type":"noul"},"r":{"type":"noul"}}}"#;
    assert_eq!(refused(&["decide", "-"], question).0, Some(1));
}

#[test]
fn a_batch_destroys_no_file() {
    let folder = std::env::temp_dir().join(format!("prelude-keep-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (input, output) = (path("in.jsonl"), path("out.jsonl"));
    let line = "{\"custom_id\":\"a\",\"url\":\"/classify\",\"body\":{\"input\":\"x\"}}\n";
    std::fs::write(&input, line).unwrap();
    let foreign = "my notes\nare not answers\n";
    std::fs::write(&output, foreign).unwrap();
    let refused = |output: &str, more: &[&str], err: &str| {
        let args = [&["run-batch", "-i", &input, "-o", output], more].concat();
        check(&args, "", 1, "", err);
    };
    // Another name of the same file is the same file.
    std::os::unix::fs::symlink(&input, path("link")).unwrap();
    refused(&input, &[], "it is the input");
    refused(&path("link"), &["--resume"], "it is the input");
    refused(&output, &["--resume"], "line 1");
    refused(&output, &["--model", "/no/such/model"], "/no/such/model");
    assert_eq!(std::fs::read_to_string(&input).unwrap(), line);
    assert_eq!(std::fs::read_to_string(&output).unwrap(), foreign);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Measures the demo classifier, and serves it by what was found.
#[test]
fn a_profile_is_measured_and_obeyed() {
    let folder = std::env::temp_dir().join(format!("prelude-profiled-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let file = path("profile.json");
    let demo = |name: &str| {
        format!(
            "{}/../prelude-server/demo/{name}",
            env!("CARGO_MANIFEST_DIR")
        )
    };
    let classifier = demo("demo-classifier");
    let profile = ["profile", &classifier, "--seconds", "2", "-o", &file];
    check(&profile, "", 0, "per_token_ms", "prelude serve --profile");
    let text = std::fs::read_to_string(&file).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["model"], "demo-classifier");
    assert!(found["prefill"].as_array().unwrap().len() > 10, "{text}");
    assert_eq!(found["decode"].as_array().unwrap().len(), 0);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);

    // The wait is known before anything was served: of the model that was measured, not of another.
    let serve = |model: &[&str]| {
        let flags = ["--profile", &file, "--policy", "srjf", "--port", "0"];
        Served::start(&[&["serve"], model, &flags].concat())
    };
    let ready = serve(&[&classifier]).get("/ready", "");
    assert!(ready.contains("\"wait_ms\":0.0"), "{ready}");
    let both = serve(&[]).get("/ready", "");
    let models = r#""models":[{"id":"demo-lm"},{"id":"demo-classifier","wait_ms":0.0}]"#;
    assert!(both.contains(models), "{both}");

    let refused = |model: &[&str], file: &str, code: i32, parts: [&str; 2]| {
        let args = [&["serve"], model, &["--profile", file, "--port", "0"]].concat();
        let output = run(&args, "");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    };
    let other = demo("demo-lm");
    refused(&[&other], &file, 2, ["`demo-classifier`", "`demo-lm`"]);
    let changed = |name: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        std::fs::write(path(name), text.replace(from, to)).unwrap();
        path(name)
    };
    let elsewhere = changed("elsewhere.json", "\"cpu ", "\"cuda ");
    refused(&[&classifier], &elsewhere, 2, ["executor `cuda ", "`cpu "]);
    let nowhere = changed("nowhere.json", "\"demo-classifier\"", "\"x\"");
    refused(&[], &nowhere, 2, ["`x`", "`demo-lm` or `demo-classifier`"]);
    let unknown = changed("unknown.json", "\"version\"", "\"extra\": 1, \"version\"");
    refused(&[], &unknown, 2, ["unknown.json", "unknown field `extra`"]);
    let torn = path("torn.json");
    std::fs::write(&torn, &text[..text.len() / 2]).unwrap();
    refused(&[], &torn, 2, ["torn.json", "EOF"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A language model's generations are measured too, within the time that was given.
#[test]
fn generations_are_measured_in_the_time_given() {
    let folder = std::env::temp_dir().join(format!("prelude-decoded-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("profile.json").to_str().unwrap().to_owned();
    check(
        &["profile", "--seconds", "1", "-o", &file],
        "",
        0,
        "generations",
        "wrote",
    );
    let text = std::fs::read_to_string(&file).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(!found["decode"].as_array().unwrap().is_empty(), "{text}");
    let nowhere = folder
        .join("none/profile.json")
        .to_str()
        .unwrap()
        .to_owned();
    let write = ["profile", "--seconds", "1", "-o", &nowhere];
    check(&write, "", 2, "", "there is no folder");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The commands that `prelude --help` lists.
fn commands() -> Vec<String> {
    let help = run(&["--help"], "");
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let list = list.lines().take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| {
        let name = line.strip_prefix("  ").filter(|l| !l.starts_with(' '))?;
        name.split(' ').next().map(str::to_owned)
    });
    let names: Vec<String> = names.filter(|name| name != "help").collect();
    assert!(
        names.len() >= 13 && names.contains(&"run-batch".to_owned()),
        "{names:?}"
    );
    names
}

#[test]
fn shells_complete_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell], "");
        assert!(output.status.success(), "{shell}");
        let text = String::from_utf8(output.stdout).unwrap();
        for name in commands() {
            assert!(text.contains(&name), "{shell} does not know {name}");
        }
        // A flag of one command.
        assert!(text.contains("max-num-seqs"), "{shell}");
    }
    check(&["completions", "dos"], "", 2, "", "possible values: bash");
}

/// bash itself reads the completions and completes by them.
#[test]
fn bash_completes() {
    let script = r#"
        source /dev/stdin
        complete -p prelude
        COMP_WORDS=(prelude ser); COMP_CWORD=1
        _prelude prelude ser prelude
        echo "${COMPREPLY[@]}"
    "#;
    let completions = run(&["completions", "bash"], "").stdout;
    let shell = Command::new("bash")
        .args(["--norc", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut shell) = shell else {
        eprintln!("SKIP: there is no bash");
        return;
    };
    shell.stdin.take().unwrap().write_all(&completions).unwrap();
    let output = shell.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("-F _prelude"), "{text}");
    assert_eq!(text.lines().last(), Some("serve"), "{text}");
}

#[test]
fn every_command_has_a_man_page() {
    let folder = std::env::temp_dir().join(format!("prelude-man-{}", std::process::id()));
    let path = folder.join("man1");
    check(&["man", path.to_str().unwrap()], "", 0, "", "prelude.1");
    let page = |name: &str| {
        let file = path.join(format!("{name}.1"));
        std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    };
    let all = page("prelude");
    for name in commands() {
        // In roff a hyphen may be written `\\-`.
        assert!(
            all.replace("\\-", "-").contains(&name),
            "prelude.1 does not name {name}"
        );
        let own = page(&format!("prelude-{name}"));
        assert!(
            own.starts_with(".ie") && own.contains(".SH SYNOPSIS"),
            "{name}"
        );
    }
    assert!(page("prelude-serve").contains("max\\-num\\-seqs"));
    // A file is in the way.
    let file = folder.join("file");
    std::fs::write(&file, "").unwrap();
    check(
        &["man", file.to_str().unwrap()],
        "",
        1,
        "",
        "cannot write man pages into",
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
