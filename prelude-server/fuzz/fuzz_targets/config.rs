//! Configuration files and variables: settings or an error that says what is wrong, and a server
//! that runs with whatever settings were taken.
#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use prelude_server::Server;
use prelude_server_fuzz::World;

#[allow(
    dead_code,
    unused_imports,
    reason = "the program's, of which this is a part"
)]
#[path = "../../../prelude-cli/src/args.rs"]
mod args;
#[allow(
    dead_code,
    unused_imports,
    unfulfilled_lint_expectations,
    reason = "the program's, of which this is a part"
)]
#[path = "../../../prelude-cli/src/commands/mod.rs"]
mod commands;

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let name = format!("prelude-fuzz-config-{}.toml", std::process::id());
    std::env::temp_dir().join(name)
});

/// Every setting there is, a line each, with its table.
static SETTINGS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let all = toml::Table::try_from(commands::Settings::default()).expect("settings are a table");
    let mut lines = Vec::new();
    for (table, fields) in all {
        for (field, _) in fields.as_table().into_iter().flatten() {
            lines.push((table.clone(), field.clone()));
        }
    }
    lines
});

const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "-1",
    "3",
    "64",
    "1e9",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "0.0",
    "nan",
    "inf",
    "-0.5",
    "true",
    "false",
    "\"\"",
    "\"a\"",
    "[]",
    "[\"*\"]",
    "[\"https://a.example\"]",
    "{}",
    "\"qwen3\"",
    "\"hermes\"",
    "\"srjf\"",
    "\"laps\"",
    "\"f32\"",
    "\"127.0.0.1\"",
    "\"::\"",
    "429",
    "503",
    "0x7fff",
    "1979-05-27",
];

fuzz_target!(|input: (Vec<(u8, u8)>, Vec<(u8, u8)>, &str)| {
    let (lines, variables, more) = input;
    let setting = |(at, value): &(u8, u8)| {
        let (table, field) = &SETTINGS[usize::from(*at) % SETTINGS.len()];
        (table, field, VALUES[usize::from(*value) % VALUES.len()])
    };
    let mut text = String::new();
    for line in &lines {
        let (table, field, value) = setting(line);
        text += &format!("{table}.{field} = {value}\n");
    }
    text += more;
    fs::write(&*FILE, text).expect("a file can be written");
    let variables: Vec<_> = variables
        .iter()
        .map(|variable| {
            let (table, field, value) = setting(variable);
            let name = format!("{table}__{field}").to_ascii_uppercase();
            (name, value.to_owned())
        })
        .collect();
    let environment = commands::Environment {
        config: Some(FILE.clone()),
        variables,
        otel: Vec::new(),
    };
    let settings = match environment.settings(None) {
        Ok(settings) => settings,
        Err(failure) => {
            assert_eq!(failure.code(), commands::Code::Usage as u8);
            assert!(!failure.to_string().is_empty());
            return;
        }
    };
    // What is taken is printed so that it reads back.
    let printed = toml::to_string(&settings).expect("settings print");
    toml::from_str::<commands::Settings>(&printed).expect("printed settings read back");
    let mut config = settings.server_config();
    // Addresses of other machines are not ours to bind.
    (config.host, config.port) = ([127, 0, 0, 1].into(), 0);
    config.access_log = false;
    let options = settings.load_options(&args::ModelArgs::default());
    let Ok(world) = World::try_new(config, &options.engine) else {
        return;
    };
    let bound = world.runtime.block_on(Server::bind(&world.app));
    let server = world.runtime.spawn(bound.expect("a port is free").run());
    for path in ["/v1/completions", "/classify"] {
        let body = r#"{"prompt":"a","input":"a","max_tokens":3}"#;
        let answer = world.runtime.block_on(world.app.answer("POST", path, body));
        assert!(
            matches!(answer.status, 200 | 400 | 413 | 429)
                || answer.status == settings.server.overload_status,
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
    }
    server.abort();
});
