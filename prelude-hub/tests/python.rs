//! The cache is that of Python's `huggingface_hub`: each program reads what the other one wrote.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use prelude_hub::{Hub, HubConfig, Repo, Revision};
use stand_in::{Model, StandIn};

mod stand_in;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FILES: [&str; 3] = ["config.json", "1_Pooling/config.json", "model.safetensors"];

/// Returns an interpreter that has the library, or says that there is none.
fn python() -> Option<PathBuf> {
    let python = env::var_os("PRELUDE_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let import = Command::new(&python)
        .args(["-c", "import huggingface_hub"])
        .output();
    if import.is_ok_and(|import| import.status.success()) {
        return Some(python.into());
    }
    eprintln!("SKIPPED: {} has no huggingface_hub", python.display());
    None
}

/// Runs a program in Python and returns what it prints.
fn run(python: &Path, home: &Path, hub: &StandIn, offline: bool, program: &str) -> String {
    let mut command = Command::new(python);
    for (name, _) in env::vars() {
        if name.starts_with("HF_") || name.to_ascii_lowercase().ends_with("_proxy") {
            command.env_remove(name);
        }
    }
    let output = command
        .args(["-c", program])
        .env("HF_HOME", home)
        .env("HF_ENDPOINT", hub.endpoint())
        .env("HF_HUB_OFFLINE", if offline { "1" } else { "0" })
        .env("HF_HUB_DISABLE_XET", "1")
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

fn world(name: &str) -> (StandIn, PathBuf) {
    let hub = StandIn::start();
    let content = |path: &str| (path.to_owned(), format!("content of {path}").into_bytes());
    hub.serve(Model {
        name: "o/m".to_owned(),
        commit: COMMIT.to_owned(),
        files: FILES.map(content).into(),
        token: None,
    });
    let home = format!("prelude-hub-python-{}-{name}", std::process::id());
    (hub, env::temp_dir().join(home))
}

fn hub_of(home: &Path, stand_in: &StandIn, offline: bool) -> Hub {
    let variables = BTreeMap::from([
        ("HF_HOME", home.as_os_str().to_owned()),
        ("HF_ENDPOINT", stand_in.endpoint().into()),
        ("HF_HUB_OFFLINE", if offline { "1" } else { "0" }.into()),
    ]);
    Hub::new(HubConfig::from_variables(|name| variables.get(name).cloned()).unwrap()).unwrap()
}

#[test]
fn python_finds_what_prelude_downloaded() {
    let Some(python) = python() else { return };
    let (stand_in, home) = world("prelude");
    let repo: Repo = "o/m".parse().unwrap();
    let hub = hub_of(&home, &stand_in, false);
    let snapshot = hub.open(&repo, &Revision::default(), &|_| ()).unwrap();
    let connections = stand_in.connections();
    let printed = run(
        &python,
        &home,
        &stand_in,
        true,
        r#"
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
print(snapshot_download("o/m"))
for file in ["config.json", "1_Pooling/config.json", "model.safetensors"]:
    print(open(hf_hub_download("o/m", file)).read())
found = scan_cache_dir()
print([(repo.repo_id, repo.nb_files, sorted(repo.refs)) for repo in found.repos], found.warnings)
"#,
    );
    let mut expected = format!("{}\n", snapshot.folder.display());
    for file in FILES {
        expected.push_str(&format!("content of {file}\n"));
    }
    expected.push_str("[('o/m', 3, ['main'])] []\n");
    assert_eq!(printed, expected);
    assert_eq!(stand_in.connections(), connections);
    fs::remove_dir_all(&home).unwrap();
}

#[test]
fn prelude_finds_what_python_downloaded() {
    let Some(python) = python() else { return };
    let (stand_in, home) = world("python");
    run(
        &python,
        &home,
        &stand_in,
        false,
        r#"
from huggingface_hub import hf_hub_download
for file in ["config.json", "1_Pooling/config.json", "model.safetensors"]:
    hf_hub_download("o/m", file)
"#,
    );
    let repo: Repo = "o/m".parse().unwrap();
    let offline = hub_of(&home, &stand_in, true);
    let snapshot = offline.open(&repo, &Revision::default(), &|_| ()).unwrap();
    // Files that were fetched one by one: the cache does not say if they are all.
    assert!(snapshot.warning.unwrap().contains("no list"));
    for file in FILES {
        let read = fs::read_to_string(snapshot.folder.join(file)).unwrap();
        assert_eq!(read, format!("content of {file}"));
    }
    // One request makes sure, and fetches nothing again.
    let before = stand_in.log().len();
    let online = hub_of(&home, &stand_in, false);
    let again = online.open(&repo, &Revision::default(), &|_| ()).unwrap();
    assert_eq!((again.folder, again.warning), (snapshot.folder, None));
    assert_eq!(stand_in.log().len(), before + 1);
    fs::remove_dir_all(&home).unwrap();
}
