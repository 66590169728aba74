//! Trials of a release's files: on a path without Rust, with an empty home.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{COMPLETIONS, MAN};
use crate::{
    demo, files,
    packages::{Environment, no_python},
    python,
    run::program,
};

/// The folders in which a machine without Rust finds its programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Installs a wheel into an environment of its own and asks the server; seconds from its start to
/// the first answer.
pub(super) fn wheel(wheel: &Path) -> Result<f64> {
    let folder = empty("wheel")?;
    let home = folder.join("home");
    fs::create_dir(&home)?;
    let environment = Environment::make(folder.join("environment"))?;
    environment.install_wheel(wheel)?;
    module(&environment.bin("python"), &home)?;
    ask(&environment.bin("prelude-serve"), &home)
}

/// Asks the module of a wheel, without any other package.
fn module(python: &Path, home: &Path) -> Result<()> {
    const SCRIPT: &str = "
import prelude_serve
with prelude_serve.LLM('demo-classifier') as llm:
    found = llm.ask('/classify', {'input': 'Where is my card?'})
assert found['data'][0]['label'] == 'card_arrival', found
";
    let status = Command::new(python)
        .args(["-B", "-c", SCRIPT])
        .env_clear()
        .env("HOME", home)
        .status()
        .context("cannot start Python")?;
    ensure!(status.success(), "the Python module does not answer");
    Ok(())
}

/// Unpacks an archive and asks the server in it; seconds from its start to the first answer.
pub(super) fn archive(archive: &Path, name: &str) -> Result<f64> {
    let folder = empty("archive")?;
    let home = folder.join("home");
    fs::create_dir(&home)?;
    program("tar")
        .args([
            "-xzf".as_ref(),
            archive.as_os_str(),
            "-C".as_ref(),
            folder.as_os_str(),
        ])
        .args(["--strip-components=1"])
        .run()?;
    manuals(&folder, name)?;
    ask(&folder.join(name), &home)
}

/// Installs the tokenizer's wheel into an environment of its own and runs the tests that need
/// nothing else. Returns what to show.
pub(super) fn tokenizer(wheel: &Path) -> Result<String> {
    if let Some(why) = no_python() {
        return Ok(format!("SKIP trying the tokenizer's wheel: {why}"));
    }
    let environment = Environment::make(empty("tokenizer")?.join("environment"))?;
    environment.install_wheel(wheel)?;
    python::test(&environment, python::PACKAGE, "test_module.py")?;
    Ok("the tokenizer's wheel passes the tests that need no other package".to_owned())
}

/// Checks that completions and a man page name every command of the unpacked program.
fn manuals(folder: &Path, name: &str) -> Result<()> {
    let help = program(folder.join(name)).args(["--help"]).output()?;
    let (_, commands) = help.split_once("Commands:\n").context("no commands")?;
    let lines = commands.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| {
        let line = line.strip_prefix("  ").filter(|l| !l.starts_with(' '))?;
        line.split(' ').next().filter(|&command| command != "help")
    });
    let mut texts = Vec::new();
    for (_, file) in COMPLETIONS {
        let text = fs::read_to_string(folder.join(file)).with_context(|| file.to_owned())?;
        texts.push((file, text));
    }
    for command in names {
        let page = folder.join(MAN).join(format!("{name}-{command}.1"));
        ensure!(page.is_file(), "there is no {}", page.display());
        for (file, text) in &texts {
            ensure!(text.contains(command), "{file} does not know {command}");
        }
    }
    Ok(())
}

fn empty(name: &str) -> Result<PathBuf> {
    let folder = files::target().join("release-trial").join(name);
    files::remove(&folder)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

fn ask(program: &Path, home: &Path) -> Result<f64> {
    let cargo = Command::new("sh")
        .args(["-c", "command -v cargo"])
        .env("PATH", PATH)
        .output()?;
    ensure!(
        !cargo.status.success(),
        "there is a cargo in {PATH}, so this shows nothing"
    );
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).env("HOME", home);
    demo::ask(&demo::start_program(
        command.args(["serve", "--port", "0"]),
    )?)
}
