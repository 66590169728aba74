//! Tells `/version` which commit it was built from: `PRELUDE_COMMIT`, or what the checkout says.
//!
//! The checkout is asked in release builds alone: a commit does not make anybody compile the
//! server's tests anew. A package from a registry has no checkout, and then there is no commit.

#![expect(clippy::print_stdout, reason = "the way to tell cargo anything")]

mod commit;

use std::{env, path::Path};

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed=PRELUDE_COMMIT");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    // Where it is set, the compiler passes it on by itself.
    if env::var_os("PRELUDE_COMMIT").is_some() || !is_release {
        return;
    }
    let Ok(package) = env::var("CARGO_MANIFEST_DIR") else {
        return;
    };
    // Nowhere else: a package that is unpacked inside some other checkout is no part of it.
    let Some(found) = commit::of_checkout(&Path::new(&package).join("..")) else {
        return;
    };
    for path in found.depends_on {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rustc-env=PRELUDE_COMMIT={}", found.id);
}
