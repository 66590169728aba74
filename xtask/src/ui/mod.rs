//! `cargo xtask ui`: the page at `/ui` in a real browser, against the demo server, by keyboard alone.
//!
//! Chromium is driven through chromedriver (W3C WebDriver over HTTP). Where one of them, or a tool
//! that one check needs, is missing, that is said aloud.

mod page;
mod webdriver;

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    clients::quiet,
    demo_server::{build, start_with},
    files,
};
use page::Page;
use webdriver::{Browser, Driver};

/// The checker of accessibility, from npm.
const AXE: &str = "axe-core@4.14.1";

/// The key of the server that has one.
const KEY: &str = "a-key-for-the-page";

/// Runs all checks; returns what to show: done, or why it was skipped.
pub(crate) fn run() -> Result<String> {
    let Some(driver) = Driver::start()? else {
        return Ok(
            "SKIP ui: no Chromium and chromedriver (apt-get install chromium chromium-driver)"
                .to_owned(),
        );
    };
    build()?;
    let work = files::target().join("ui");
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let axe = match axe(&work) {
        Ok(source) => Some(source),
        Err(why) => {
            println!("SKIP axe-core: {why:#}");
            None
        }
    };
    let mut notes = Vec::new();
    let server = start_with(&[])?;
    let browser = driver.open(&work.join("profile"))?;
    let page = Page::open(&browser, &server.address)?;
    page.decide()?;
    page.shot(&work.join("decide.png"))?;
    page.edit()?;
    notes.push(programs(&page)?);
    page.cost()?;
    page.shot(&work.join("cost.png"))?;
    page.live(&server.address)?;
    page.shot(&work.join("live.png"))?;
    page.compare()?;
    page.shot(&work.join("compare.png"))?;
    notes.push(accessibility(&browser, &page, axe.as_deref(), &work)?);
    browser.no_complaints()?;
    with_key(&browser, &work)?;
    notes.retain(|note| !note.is_empty());
    notes.insert(0, "the page works by keyboard".to_owned());
    Ok(notes.join("; "))
}

/// Installs the checker of accessibility and returns its source.
fn axe(work: &Path) -> Result<String> {
    let folder = work.join("axe");
    let script = folder.join("node_modules/axe-core/axe.min.js");
    let stamp = folder.join("installed");
    if !fs::read_to_string(&stamp).is_ok_and(|found| found == AXE) {
        files::remove(&folder)?;
        fs::create_dir_all(&folder)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error"]);
        npm.arg("--prefix").arg(&folder).arg(AXE);
        quiet(&mut npm)?;
        fs::write(stamp, AXE)?;
    }
    fs::read_to_string(&script).with_context(|| script.display().to_string())
}

/// Checks every tab in both colour schemes; returns a note.
fn accessibility(
    browser: &Browser<'_>,
    page: &Page<'_, '_>,
    axe: Option<&str>,
    work: &Path,
) -> Result<String> {
    if let Some(source) = axe {
        browser.run(source)?;
    }
    let mut checked = 0;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme)?;
        for tab in ["decide", "cost", "live", "compare"] {
            page.to_tab(tab)?;
            if scheme == "dark" {
                page.shot(&work.join(format!("{tab}-dark.png")))?;
            }
            if axe.is_none() {
                continue;
            }
            let found = browser.run_async(
                "const done = arguments[0];
                 axe.run().then(({ violations, passes }) => done({
                   passes: passes.length,
                   serious: violations.filter(({ impact }) => ['serious', 'critical'].includes(impact))
                     .map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((n) => n.html).join(' ')}`),
                 }));",
            )?;
            let serious = found["serious"].as_array().context("axe-core's answer")?;
            let list: Vec<&str> = serious.iter().filter_map(Value::as_str).collect();
            ensure!(list.is_empty(), "{tab}, {scheme}: {}", list.join("\n"));
            ensure!(
                found["passes"].as_u64() > Some(10),
                "axe-core checked nothing: {found}"
            );
            checked += 1;
        }
    }
    browser.prefer("light")?;
    Ok(match axe {
        Some(_) => format!("axe-core finds nothing serious on {checked} views"),
        None => "SKIP axe-core (not installable here)".to_owned(),
    })
}

/// Runs the programs that the page offers to copy: each prints the answer that the page shows. Returns
/// a note about those that were not run.
fn programs(page: &Page<'_, '_>) -> Result<String> {
    let mut skipped = Vec::new();
    for (language, interpreter, args) in [
        ("curl", "sh", &["-s"][..]),
        ("python", "python3", &["-"]),
        ("node", "node", &["--input-type=module", "-"]),
    ] {
        let text = page.copied(language)?;
        let needed = if language == "curl" {
            "curl"
        } else {
            interpreter
        };
        let is_here = Command::new(needed).arg("--version").output().is_ok();
        if !is_here {
            println!("SKIP the {language} program: there is no {needed}");
            skipped.push(needed);
            continue;
        }
        let mut child = Command::new(interpreter)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {interpreter}"))?;
        let mut input = child.stdin.take().context("a pipe")?;
        input.write_all(text.as_bytes())?;
        drop(input);
        let output = child.wait_with_output()?;
        let printed = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "{language}: {}\n{text}",
            output.status
        );
        let compact: String = printed.chars().filter(|c| !c.is_whitespace()).collect();
        ensure!(
            compact.contains(r#""choice":"card""#),
            "{language} printed {printed}\n{text}"
        );
    }
    Ok(match skipped.is_empty() {
        true => String::new(),
        false => format!("SKIP programs that need {}", skipped.join(", ")),
    })
}

/// Checks the page of a server with a key: the page asks for the key, says that a wrong one is wrong,
/// and works with the right one.
fn with_key(browser: &Browser<'_>, work: &Path) -> Result<()> {
    let keys = work.join("keys");
    fs::write(&keys, KEY)?;
    let server = start_with(&["--api-key-file".as_ref(), keys.as_os_str()])?;
    browser.go(&format!("http://{}/ui", server.address))?;
    browser.until(
        "the page asks for a key",
        "document.activeElement?.id === 'key'",
    )?;
    browser.type_text("wrong\u{e007}")?;
    browser.until(
        "a wrong key is refused",
        "document.getElementById('served').textContent.includes('not accept')",
    )?;
    browser.type_text(KEY)?;
    browser.type_text("\u{e007}")?;
    browser.until(
        "the key is taken",
        "document.getElementById('key-form').hidden && document.getElementById('served').textContent.includes('demo-lm')",
    )?;
    let page = Page::at(browser);
    page.decide()?;
    page.live(&server.address)?;
    let stored = browser
        .run("return localStorage.length + sessionStorage.length + document.cookie.length")?;
    ensure!(stored == 0, "the key is stored: {stored}");
    Ok(())
}
