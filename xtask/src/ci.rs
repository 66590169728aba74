//! Everything that a commit must pass, in the order of what fails soonest.

use std::{collections::BTreeMap, fs, time::Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::{
    aarch64, accuracy, asan, bench, clients, demo, deny, envoy, fuzz, gpu, kernels, miri, package,
    parity, published, python,
    run::{cargo, root},
    tidy, ui,
};

/// Enough to see that the targets run; `cargo xtask fuzz` has time for more.
const FUZZ_SECONDS: u32 = 20;

/// The step that runs only when asked for: it downloads what others wrote.
const CLIENTS: &str = "clients";

struct Step {
    name: &'static str,
    run: fn() -> Result<Option<String>>,
}

/// Declares a step that cannot be skipped, or with `or skips` a step that may be.
macro_rules! step {
    ($name:expr, $body:expr) => {
        Step {
            name: $name,
            run: || $body.map(|()| None),
        }
    };
    ($name:expr, $body:expr, or skips) => {
        Step {
            name: $name,
            run: || $body.map(Some),
        }
    };
}

const STEPS: &[Step] = &[
    step!("fmt", cargo(["fmt", "--all", "--", "--check"]).run()),
    step!("tidy", tidy::run()),
    step!("deny", deny::run(), or skips),
    step!(
        "clippy",
        cargo("clippy --workspace --all-targets --all-features -- -D warnings".split(' ')).run()
    ),
    step!("test", crate::test(&[])),
    step!("parity", parity()),
    step!("envoy", envoy::ci(), or skips),
    step!("features", features()),
    step!(
        "doc",
        cargo("doc --workspace --no-deps --document-private-items".split(' '))
            .env(
                "RUSTDOCFLAGS",
                "-D warnings -A rustdoc::private_intra_doc_links"
            )
            .run()
    ),
    step!("smoke", demo::smoke()),
    step!("published", published::run(), or skips),
    step!("ui", ui::run(), or skips),
    step!("python", python::ci(), or skips),
    step!("kernels", kernels::ci(), or skips),
    step!("gpu", gpu::ci(), or skips),
    step!("accuracy", accuracy::run(None), or skips),
    step!("gate", bench::gate::ci(), or skips),
    step!("package", package::publish(), or skips),
    step!("msrv", package::oldest_compiler(), or skips),
    step!("fuzz", fuzz::run_short(FUZZ_SECONDS), or skips),
    step!("asan", asan::run(), or skips),
    step!("miri", miri::run(), or skips),
    step!("aarch64", aarch64::run(aarch64::Tests::Few), or skips),
    step!(CLIENTS, clients::run(&[]), or skips),
];

/// Libraries build with no features and with each one alone.
fn features() -> Result<()> {
    for (package, features) in [
        ("prelude-models", &["conformance"][..]),
        ("prelude-kernels", &["emu"]),
        ("fasttoken", &["cli", "reference"]),
        ("prelude-exec-cuda", &["emu", "measure"]),
        ("prelude-text", &["hf-fallback"]),
        ("prelude-server", &["cuda", "hf-fallback", "otlp"]),
        ("prelude-cli", &["cuda", "hf-fallback", "otlp"]),
    ] {
        let check = || cargo(["check", "-p", package, "--no-default-features"]);
        check().run()?;
        for feature in features {
            check().args(["--features", feature]).run()?;
        }
    }
    Ok(())
}

pub(crate) fn run(skip: &[String], only: &[String], clients: bool) -> Result<()> {
    for name in skip.iter().chain(only) {
        if !STEPS.iter().any(|s| s.name == name) {
            let names: Vec<_> = STEPS.iter().map(|s| s.name).collect();
            bail!("no step `{name}`; there are: {}", names.join(", "));
        }
    }
    let wanted = |step: &&Step| {
        let named = |list: &[String]| list.iter().any(|n| n == step.name);
        let by_default = only.is_empty() && step.name != CLIENTS;
        !named(skip) && (by_default || named(only) || (clients && step.name == CLIENTS))
    };
    let before = minutes()?;
    let mut lines = Vec::new();
    let mut failed = false;
    for step in STEPS.iter().filter(wanted) {
        println!("\n=== {} ===", step.name);
        let start = Instant::now();
        let result = (step.run)();
        let note = match &result {
            Ok(None) => "pass".to_owned(),
            Ok(Some(note)) => note.clone(),
            Err(error) => format!("FAIL: {error:#}"),
        };
        println!("{note}");
        failed |= result.is_err();
        let took = start.elapsed().as_secs_f64() / 60.0;
        let before = before.get(step.name).copied().unwrap_or_default();
        lines.push(format!(
            "{:<10} {took:>6.1} min ({before:.1})  {note}",
            step.name
        ));
    }
    println!("\n=== summary (in parentheses the minutes that sizes.toml has) ===");
    for line in &lines {
        println!("{line}");
    }
    if failed {
        bail!("ci failed");
    }
    Ok(())
}

/// Returns the minutes that steps took, as `sizes.toml` has them.
fn minutes() -> Result<BTreeMap<String, f64>> {
    #[derive(Deserialize)]
    struct Sizes {
        minutes: BTreeMap<String, f64>,
    }
    let text = fs::read_to_string(root().join("sizes.toml")).context("sizes.toml")?;
    let sizes: Sizes = toml::from_str(&text).context("sizes.toml")?;
    Ok(sizes.minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_its_minutes_in_the_file() {
        let minutes: Vec<String> = minutes().unwrap().into_keys().collect();
        let mut names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        assert_eq!(minutes, names);
    }
}
