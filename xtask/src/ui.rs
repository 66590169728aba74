//! `cargo xtask ui`: the page at `/ui` in Chromium, against the demo server, by keyboard alone. The
//! checks are `xtask/ui/check_page.py`, which drives Chromium by playwright's library. What is missing
//! here is said aloud.

use std::fs;

use anyhow::{Context as _, Result};
use prelude_measure::process::find;

use crate::{
    demo, files,
    packages::{self, Environment},
    run::program,
};

/// The names of Chromium.
const CHROMIUM: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// The library, from PyPI. It brings no browser.
const PLAYWRIGHT: &str = "playwright==1.65.2";

/// The checker of accessibility, from npm.
const AXE: &str = "axe-core@4.14.1";

/// The key of the server that has one.
const KEY: &str = "a-key-for-the-page";

/// Runs all checks; returns what to show: done, or why it was skipped.
pub(crate) fn run() -> Result<String> {
    let Some(chromium) = find(&CHROMIUM) else {
        return Ok("SKIP ui: no Chromium (apt-get install chromium)".to_owned());
    };
    if let Some(why) = packages::no_python() {
        return Ok(format!("SKIP ui: {why}"));
    }
    let work = files::target().join("ui");
    let environment = match Environment::with(work.join("environment"), &[PLAYWRIGHT]) {
        Ok(environment) => environment,
        Err(why) => return Ok(format!("SKIP ui: no {PLAYWRIGHT} from PyPI: {why:#}")),
    };
    let axe = work.join("axe");
    let axe = match packages::npm(&axe, &[AXE]) {
        Ok(()) => Some(axe.join("node_modules/axe-core/axe.min.js")),
        Err(why) => {
            println!("SKIP axe-core: {why:#}");
            None
        }
    };
    demo::build()?;
    let keys = work.join("keys");
    fs::write(&keys, KEY).with_context(|| format!("cannot write {}", keys.display()))?;
    let open = demo::start(&[])?;
    let keyed = demo::start(&["--api-key-file".as_ref(), keys.as_os_str()])?;
    let said = program(environment.bin("python"))
        .args(["-B", "xtask/ui/check_page.py"])
        .args([chromium])
        .args([&open, &keyed].map(|server| format!("http://{}", server.address)))
        .args([KEY.as_ref(), work.as_os_str()])
        .args(axe)
        .output()?;
    Ok(said.trim_end().to_owned())
}
