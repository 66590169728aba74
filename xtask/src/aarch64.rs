//! Checks that what differs by processor compiles for ARM, and tests what ARM's own instructions compute.
//!
//! From another machine: with the target's standard library, a C compiler for it, and QEMU, which
//! runs the tests. What is missing of these is said.

use anyhow::{Context as _, Result};

use crate::{
    asan,
    run::{Invocation, cargo, program, root, test_programs},
};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// The folder of the target's libraries in Debian's packages.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Crates that have instructions of ARM, and the names of the tests that every commit runs there: those
/// that reach the instructions. In emulation the others take minutes, and find what they find elsewhere.
const FEW: &[(&str, &[&str])] = &[
    (
        "fasttoken",
        &[
            "compare::",
            "scan::class_masks::",
            "scan::scan_tests::blocks_",
        ],
    ),
    (
        "prelude-exec-cpu",
        &[
            "kernels::",
            "arena::",
            "measure::",
            "conformance::elementwise",
            "conformance::products",
            "conformance::encoders",
            "conformance::experts",
            "conformance::heads",
            "invariance::rows_do_not_depend_on_their_batch_with_odd_shapes",
        ],
    ),
];

/// Crates whose code differs by processor, which every commit compiles for ARM.
const DIFFER: &[&str] = &["fasttoken", "prelude-exec-cpu", "prelude-hub"];

/// The tests to run: emulation is slow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tests {
    /// The tests in [`FEW`]; of other crates those in [`DIFFER`] are compiled.
    Few,
    /// The unit tests of all crates with unsafe leaves; all other crates are compiled.
    All,
}

/// Returns what to show: done, or why it was skipped.
pub(crate) fn run(tests: Tests) -> Result<String> {
    if cfg!(target_arch = "aarch64") {
        return Ok("aarch64: this machine is one, so all other steps are about it".to_owned());
    }
    if !has_target()? {
        return Ok(format!(
            "SKIP aarch64: its standard library is not installed (`rustup target add {TARGET}`)"
        ));
    }
    if !program(LINKER).args(["--version"]).succeeds() {
        return Ok(format!(
            "SKIP aarch64: no {LINKER} (`apt-get install gcc-aarch64-linux-gnu`)"
        ));
    }
    match tests {
        Tests::Few => {
            let crates = DIFFER.iter().flat_map(|name| ["-p", name]);
            for_target(&["check", "--lib"]).args(crates).run()?;
        }
        Tests::All => for_target(&["clippy", "--workspace", "--all-targets"])
            .args(["--", "-D", "warnings"])
            .run()?,
    }
    let compile = match tests {
        Tests::Few => "crates that differ by processor compile",
        Tests::All => "all crates compile",
    };
    if !program(EMULATOR).args(["--version"]).succeeds() {
        return Ok(format!(
            "aarch64: {compile}; SKIP tests: no {EMULATOR} (`apt-get install qemu-user`)"
        ));
    }
    let crates: Vec<(&str, &[&str])> = match tests {
        Tests::Few => FEW.to_vec(),
        Tests::All => asan::CRATES.iter().map(|&name| (name, &[][..])).collect(),
    };
    // Built together, so that what they share is built once.
    let packages = crates.iter().flat_map(|&(name, _)| ["-p", name]);
    let programs = test_programs(for_target(&["test", "--lib"]).args(packages))?;
    for &(name, filters) in &crates {
        let tests = programs.get(&name.replace('-', "_"));
        program(EMULATOR)
            // All instructions that it knows, bf16 and products of bytes among them.
            .args(["-cpu", "max", "-L", LIBRARIES])
            .args([tests.with_context(|| format!("no tests of {name}"))?])
            .args(filters)
            .folder(&root().join(name))
            .env("PRELUDE_TEST_ALL_PATHS", "1")
            .run()?;
    }
    let names: Vec<&str> = crates.iter().map(|&(name, _)| name).collect();
    let which = match tests {
        Tests::Few => "unit tests that instructions of ARM concern",
        Tests::All => "unit tests",
    };
    Ok(format!(
        "aarch64: {compile}; {which} of {} pass in emulation",
        names.join(", ")
    ))
}

fn has_target() -> Result<bool> {
    let mut rustc = program(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc = rustc.args(["--print", "target-libdir", "--target", TARGET]);
    let folder = rustc.output()?;
    Ok(std::path::Path::new(folder.trim()).is_dir())
}

/// Returns a cargo command for the target.
fn for_target(args: &[&str]) -> Invocation {
    cargo(args)
        // In the folder of other builds, whose macros and build scripts are used again.
        .args(["--target", TARGET])
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
            "-Dwarnings",
        )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::metadata::Metadata;

    /// Returns true if a file of Rust below a folder asks for the processor.
    fn differs(folder: &std::path::Path) -> bool {
        let entries = fs::read_dir(folder).into_iter().flatten();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.any(|path| match path.is_dir() {
            true => differs(&path),
            false => {
                path.extension().is_some_and(|ext| ext == "rs")
                    && fs::read_to_string(&path).unwrap().contains("target_arch")
            }
        })
    }

    #[test]
    fn crates_that_ask_for_the_processor_are_listed() {
        let metadata = Metadata::load().unwrap();
        let members = metadata.members().filter(|package| package.name != "xtask");
        let mut found: Vec<&str> = members
            .filter(|package| differs(&root().join(package.folder()).join("src")))
            .map(|package| &*package.name)
            .collect();
        found.sort_unstable();
        assert_eq!(found, DIFFER);
    }
}
