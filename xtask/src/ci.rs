//! Everything that a commit must pass, in the order of what fails soonest.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::{
    aarch64, accuracy, asan, bench, clients, fuzz, gpu, kernels, miri, package, parity, run::cargo,
    smoke, tidy,
};

/// Enough to see that the targets run; `cargo xtask fuzz` has time for more.
const FUZZ_SECONDS: u32 = 20;

/// The step that runs only when asked for: it downloads what others wrote.
const CLIENTS: &str = "clients";

struct Step {
    name: &'static str,
    run: fn() -> Result<Option<String>>,
}

/// Wraps a check that cannot be skipped.
macro_rules! step {
    ($name:literal, $body:expr) => {
        Step {
            name: $name,
            run: || {
                $body?;
                Ok(None)
            },
        }
    };
}

const STEPS: &[Step] = &[
    step!("fmt", cargo(["fmt", "--all", "--", "--check"]).run()),
    step!("tidy", tidy::run()),
    step!(
        "clippy",
        cargo([
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings"
        ])
        .run()
    ),
    step!("test", crate::test(&[])),
    step!("parity", parity()),
    step!("features", features()),
    step!(
        "doc",
        cargo([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items"
        ])
        .env(
            "RUSTDOCFLAGS",
            "-D warnings -A rustdoc::private_intra_doc_links"
        )
        .run()
    ),
    step!("smoke", smoke::run()),
    step!("examples", examples()),
    Step {
        name: "kernels",
        run: || kernels::ci().map(Some),
    },
    Step {
        name: "gpu",
        run: || gpu::ci().map(Some),
    },
    Step {
        name: "accuracy",
        run: || accuracy::run(None).map(Some),
    },
    Step {
        name: "gate",
        run: bench::gate::ci,
    },
    Step {
        name: "package",
        run: || package::publish().map(Some),
    },
    Step {
        name: "msrv",
        run: || package::oldest_compiler().map(Some),
    },
    Step {
        name: "fuzz",
        run: || fuzz::run_short(FUZZ_SECONDS).map(Some),
    },
    Step {
        name: "asan",
        run: || asan::run().map(Some),
    },
    Step {
        name: "miri",
        run: || miri::run().map(Some),
    },
    Step {
        name: "aarch64",
        run: || aarch64::run(aarch64::Tests::Few).map(Some),
    },
    Step {
        name: CLIENTS,
        run: || clients::run(&[]).map(Some),
    },
];

/// Examples that build something of one's own from the crates; each asserts what it finds.
fn examples() -> Result<()> {
    const MODEL: &str = "prelude-server/demo/demo-lm";
    for (package, example, args) in [
        ("prelude-server", "in_process", &[][..]),
        ("prelude-server", "own_endpoint", &[]),
        ("prelude-server", "without_http", &[MODEL]),
        ("prelude-engine", "own_policy", &[MODEL]),
        ("prelude-engine", "classify", &[MODEL, "660", "319", "281"]),
        ("prelude-sched", "by_hand", &[]),
        ("prelude-router", "by_hand", &[]),
    ] {
        cargo(["run", "--quiet", "-p", package, "--example", example, "--"])
            .args(args)
            .run()?;
    }
    Ok(())
}

/// Libraries build with no features and with each one alone.
fn features() -> Result<()> {
    for (package, features) in [
        ("prelude-sched", &["sim"][..]),
        ("prelude-models", &["conformance"]),
        ("prelude-kernels", &["emu"]),
        ("fasttoken", &["cli", "reference"]),
        ("prelude-exec-cuda", &["emu", "measure"]),
        ("prelude-server", &["cuda", "hf-fallback"]),
    ] {
        cargo(["check", "-p", package, "--no-default-features"]).run()?;
        for feature in features {
            cargo([
                "check",
                "-p",
                package,
                "--no-default-features",
                "--features",
                feature,
            ])
            .run()?;
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
        lines.push(summary(step.name, start.elapsed(), &note));
    }
    println!("\n=== summary ===");
    for line in &lines {
        println!("{line}");
    }
    if failed {
        bail!("ci failed");
    }
    Ok(())
}

fn summary(name: &str, took: Duration, note: &str) -> String {
    format!("{name:<10} {:>7.1} s  {note}", took.as_secs_f64())
}
