//! The packages of others: their licences, the registry that they come from, known vulnerabilities.

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use crate::{
    metadata::Metadata,
    run::{self, cargo, program},
};

/// The one registry that packages come from, as lock files write it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The part of `deny.toml` that is read here; `cargo deny` reads all of it.
#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    /// `None` for a package of the repository.
    source: Option<String>,
}

/// Checks licences and sources, and asks `cargo deny` about vulnerabilities if it is installed and its
/// database can be had. Returns what to show.
pub(crate) fn run() -> Result<String> {
    let root = run::root();
    let text = std::fs::read_to_string(root.join("deny.toml"))?;
    let deny: Deny = toml::from_str(&text).context("deny.toml")?;
    let allowed = licensees(&deny.licenses.allow)?;
    let packages = Metadata::load()?.packages;
    for package in &packages {
        let license = package.license.as_deref().unwrap_or("no licence");
        check_license(license, &allowed)
            .with_context(|| format!("{} {}", package.name, package.version))?;
    }
    let tracked = program("git").args(["ls-files", "*Cargo.lock"]).output()?;
    for path in tracked.lines() {
        let lock: Lock = toml::from_str(&std::fs::read_to_string(root.join(path))?)?;
        check_sources(&lock).with_context(|| path.to_owned())?;
    }
    let known = format!(
        "licences of {} packages and sources of {} lock files pass",
        packages.len(),
        tracked.lines().count()
    );
    if !cargo(["deny", "--version"]).succeeds() {
        return Ok(format!(
            "{known}; SKIP vulnerabilities: `cargo install --locked cargo-deny` adds them"
        ));
    }
    if !cargo(["deny", "fetch", "db"]).succeeds() {
        return Ok(format!(
            "{known}; SKIP vulnerabilities: the database of advisories cannot be had"
        ));
    }
    cargo(["deny", "check", "advisories"]).run()?;
    Ok(format!("{known}; no known vulnerability"))
}

fn licensees(names: &[String]) -> Result<Vec<Licensee>> {
    let parse = |name: &String| Licensee::parse(name).with_context(|| format!("`{name}`"));
    names.iter().map(parse).collect()
}

/// Checks that a licence's terms can be met by licences that are allowed.
fn check_license(license: &str, allowed: &[Licensee]) -> Result<()> {
    // Old packages write `MIT/Apache-2.0` for `MIT OR Apache-2.0`.
    let terms = Expression::parse_mode(license, ParseMode::LAX)
        .map_err(|e| anyhow::anyhow!("the licence `{license}` is none that is known: {e}"))?;
    let is_met = terms.evaluate(|term| allowed.iter().any(|licensee| licensee.satisfies(term)));
    ensure!(
        is_met,
        "the licence `{license}` is not allowed by deny.toml"
    );
    Ok(())
}

fn check_sources(lock: &Lock) -> Result<()> {
    for package in &lock.package {
        match package.source.as_deref() {
            None | Some(REGISTRY) => {}
            Some(other) => bail!("{} comes from {other}, not from {REGISTRY}", package.name),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_and_sources_outside_the_lists_are_refused() {
        let allowed = licensees(&["MIT".to_owned(), "Apache-2.0".to_owned()]).unwrap();
        let check = |license: &str, fine: bool| {
            let checked = check_license(license, &allowed);
            assert_eq!(checked.is_ok(), fine, "{license}: {checked:?}");
        };
        check("MIT OR GPL-3.0-only", true);
        check("Unlicense/MIT", true);
        check("(MIT OR Apache-2.0) AND Unicode-3.0", false);
        check("GPL-3.0-only", false);
        check("Apache-2.0 WITH LLVM-exception", false);
        check("no licence", false);

        let lock = |source: Option<&str>| Lock {
            package: vec![Locked {
                name: "p".to_owned(),
                source: source.map(str::to_owned),
            }],
        };
        assert!(check_sources(&lock(None)).is_ok());
        assert!(check_sources(&lock(Some(REGISTRY))).is_ok());
        assert!(check_sources(&lock(Some("git+https://example.org/p"))).is_err());
    }
}
