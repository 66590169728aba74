//! Third-party clients, unmodified, against the release server on the demo models.
//!
//! Each file in `prelude-server/clients` that begins with a `requires:` line is one client: it
//! names the packages, which are installed into a folder under `target/clients`, and asserts
//! values. Where packages cannot be had the client says SKIP; `PRELUDE_REQUIRE_CLIENTS=1` makes
//! that a failure.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use prelude_measure::server::Server;

use crate::{
    demo, files,
    packages::{self, Environment},
    run::{program, root},
};

/// The key of the server that has one.
const KEY: &str = "a-key-for-clients";

/// The context of `demo-lm` for clients: one of them asks about 255 described options at once.
const CONTEXT: u32 = 16_384;

/// A client: a script and the packages it runs with.
struct Client {
    name: String,
    script: PathBuf,
    requires: Vec<String>,
    is_node: bool,
}

/// Runs the named clients, or all. Returns what to show.
pub(crate) fn run(names: &[String]) -> Result<String> {
    let clients = all()?;
    for name in names {
        ensure!(
            clients.iter().any(|c| c.name == *name),
            "no client `{name}`; there are: {}",
            clients
                .iter()
                .map(|c| &*c.name)
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    demo::build()?;
    let work = files::target().join("clients");
    fs::create_dir_all(&work)?;
    let model = long_model(&work)?;
    let key_file = work.join("keys");
    fs::write(&key_file, KEY)?;
    let port = free_ports()?;
    let (maps, arrays) = (work.join("maps.toml"), work.join("arrays.toml"));
    fs::write(&maps, settings([port, port + 1], "maps", "full"))?;
    fs::write(&arrays, settings([port + 2, port + 4], "arrays", "demo"))?;
    let demo = demo::start(&["--config".as_ref(), arrays.as_os_str()])?;
    let full = demo::start(&[
        model.as_os_str(),
        "--config".as_ref(),
        maps.as_os_str(),
        "--served-model-name=demo-lm".as_ref(),
        "--dtype=f32".as_ref(),
        "--pooling=last".as_ref(),
        "--rerank-template=qwen3".as_ref(),
        "--api-key-file".as_ref(),
        key_file.as_os_str(),
    ])?;
    let (mut passed, mut skipped, mut failed) = (0, Vec::new(), Vec::new());
    for client in &clients {
        if !names.is_empty() && !names.contains(&client.name) {
            continue;
        }
        println!("\n--- {} ({}) ---", client.name, client.requires.join(", "));
        match install(client, &work) {
            Err(why) => {
                println!("SKIP {}: {why:#}", client.name);
                skipped.push(client.name.clone());
                continue;
            }
            Ok(home) => match ask(client, &home, [&demo, &full], &model, port) {
                Ok(()) => {
                    println!("pass");
                    passed += 1;
                }
                Err(why) => {
                    println!("FAIL {}: {why:#}", client.name);
                    failed.push(client.name.clone());
                }
            },
        }
    }
    let is_strict = std::env::var_os("PRELUDE_REQUIRE_CLIENTS").is_some_and(|v| v == "1");
    if is_strict {
        failed.append(&mut skipped);
    }
    if !failed.is_empty() {
        bail!("clients failed: {}", failed.join(", "));
    }
    let mut note = format!("{passed} clients pass");
    if !skipped.is_empty() {
        note = format!(
            "{note}; SKIP (not installable here): {}",
            skipped.join(", ")
        );
    }
    Ok(note)
}

/// Returns every script that says what it requires, by name.
fn all() -> Result<Vec<Client>> {
    let folder = root().join("prelude-server/clients");
    let mut clients = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let script = entry?.path();
        let is_node = match script.extension().and_then(|e| e.to_str()) {
            Some("py") => false,
            Some("mjs") => true,
            _ => continue,
        };
        let text = fs::read_to_string(&script)?;
        let first = text.lines().next().unwrap_or_default();
        let Some((_, requires)) = first.split_once("requires: ") else {
            continue;
        };
        let name = script
            .file_stem()
            .context("a script has a name")?
            .to_string_lossy()
            .into_owned();
        clients.push(Client {
            name,
            requires: requires.split_whitespace().map(str::to_owned).collect(),
            script,
            is_node,
        });
    }
    clients.sort_by(|a, b| a.name.cmp(&b.name));
    ensure!(!clients.is_empty(), "no client in {}", folder.display());
    Ok(clients)
}

/// Returns a copy of `demo-lm` whose configuration allows [`CONTEXT`] tokens.
fn long_model(work: &Path) -> Result<PathBuf> {
    let (from, to) = (
        root().join("prelude-server/demo/demo-lm"),
        work.join("model"),
    );
    files::copy_folder(&from, &to, |_| true)?;
    // The smaller of the two is the context.
    for (file, field) in [
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ] {
        let path = to.join(file);
        let mut document: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        document[field] = CONTEXT.into();
        fs::write(&path, document.to_string())?;
    }
    Ok(to)
}

/// Returns the client's own folder with its packages in it.
fn install(client: &Client, work: &Path) -> Result<PathBuf> {
    let home = work.join(&client.name);
    match client.is_node {
        true => packages::npm(&home, &client.requires)?,
        false => drop(Environment::with(home.clone(), &client.requires)?),
    }
    Ok(home)
}

/// The number of ports for KV events in a row: one for the full server's model and two for the demo
/// models, and as many for replay.
const EVENT_PORTS: u16 = 6;

/// Returns the first of free ports in a row.
fn free_ports() -> Result<u16> {
    for _ in 0..1_000 {
        let first = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        let end = first.checked_add(EVENT_PORTS);
        if end.is_some_and(|end| (first..end).all(is_free)) {
            return Ok(first);
        }
    }
    bail!("no {EVENT_PORTS} free ports in a row")
}

/// Returns the settings of a server that publishes events from a port on, and replays from another.
fn settings(ports: [u16; 2], format: &str, server: &str) -> String {
    let [events, replay] = ports.map(address);
    format!(
        "[kv_events]\nendpoint = '{events}'\nreplay_endpoint = '{replay}'\nformat = '{format}'\n\
         topic = 'kv@{server}@{{model}}'\n",
    )
}

fn address(port: u16) -> String {
    format!("tcp://127.0.0.1:{port}")
}

fn ask(
    client: &Client,
    home: &Path,
    [demo, full]: [&Server; 2],
    model: &Path,
    port: u16,
) -> Result<()> {
    let command = if client.is_node {
        // Node looks for packages beside the script.
        let script = home.join("client.mjs");
        fs::copy(&client.script, &script)?;
        let own = home.join("node_modules/node/bin/node");
        let node = if own.is_file() { own } else { "node".into() };
        program(node).args([script])
    } else {
        // No bytecode beside the sources.
        let python = program(home.join("bin/python")).args(["-B"]);
        python.args([&client.script])
    };
    command
        .folder(client.script.parent().context("a script has a folder")?)
        .env("PRELUDE_URL", format!("http://{}", demo.address))
        .env("PRELUDE_FULL_URL", format!("http://{}", full.address))
        .env("PRELUDE_KEY", KEY)
        .env("PRELUDE_MODEL_DIR", model)
        .env("PRELUDE_KV_MAPS", address(port))
        .env("PRELUDE_KV_MAPS_REPLAY", address(port + 1))
        .env("PRELUDE_KV_ARRAYS", address(port + 2))
        .env("PRELUDE_KV_ARRAYS_REPLAY", address(port + 4))
        .env("PRELUDE_PROGRAM", files::target().join("release/prelude"))
        // Programs of the client's own, before those of the machine.
        .env("PRELUDE_CLIENT_BIN", home.join("bin"))
        .env("HF_HUB_OFFLINE", "1")
        .env("HF_HOME", home.join("hub"))
        .env("TOKENIZERS_PARALLELISM", "false")
        .run()
}
