//! The requirements of a carried program on the machine that runs it.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};

use crate::run::program;

/// Libraries that every Linux with glibc has, and the loader.
const LIBRARIES: [&str; 4] = [
    "libc.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "ld-linux-x86-64.so.2",
];
/// Newest glibc that may be needed.
const GLIBC_MAX: (u32, u32) = (2, 36);

/// Refuses a program that links more than the C library, or a newer one than promised.
pub(super) fn check(path: &Path) -> Result<()> {
    let name = path.display();
    ensure!(
        fs::read(path)?.starts_with(b"\x7fELF"),
        "{name} is no ELF program"
    );
    let dynamic = readelf(path, "-d")?;
    let foreign: Vec<&str> = needed(&dynamic)
        .filter(|library| !LIBRARIES.contains(library))
        .collect();
    if !foreign.is_empty() {
        bail!(
            "{name} links {}, which GPU machines may lack",
            foreign.join(", ")
        );
    }
    let versions = readelf(path, "-V")?;
    let newest = newest_glibc(&versions).with_context(|| format!("{name} names no GLIBC"))?;
    if newest > GLIBC_MAX {
        bail!(
            "{name} needs glibc {}.{}, newer than {}.{}: build it on an older system",
            newest.0,
            newest.1,
            GLIBC_MAX.0,
            GLIBC_MAX.1
        );
    }
    Ok(())
}

fn readelf(path: &Path, what: &str) -> Result<String> {
    program("readelf")
        .args(["--wide", what])
        .args([path])
        .output()
        .context("readelf is part of binutils, which every C compiler brings")
}

/// Returns the libraries that a program needs, from lines such as
/// `0x… (NEEDED)  Shared library: [libc.so.6]`.
fn needed(dynamic: &str) -> impl Iterator<Item = &str> {
    let lines = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| line.split_once('[')?.1.split(']').next())
}

fn newest_glibc(versions: &str) -> Option<(u32, u32)> {
    let names = versions.split("GLIBC_").skip(1);
    let numbers = names.filter_map(|rest| {
        let text: String = rest
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        let mut parts = text.split('.');
        let number = |part: Option<&str>| part?.parse().ok();
        Some((number(parts.next())?, number(parts.next())?))
    });
    numbers.collect::<BTreeSet<_>>().pop_last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_read() {
        let dynamic = " 0x01 (NEEDED)  Shared library: [libgcc_s.so.1]\n 0x0e (SONAME) [x]\n \
                       0x01 (NEEDED)  Shared library: [libstdc++.so.6]\n";
        let all: Vec<_> = needed(dynamic).collect();
        assert_eq!(all, ["libgcc_s.so.1", "libstdc++.so.6"]);
        let versions = "Name: GLIBC_2.34  Flags: none\n Name: GLIBC_2.4\n Name: GLIBC_2.9.1";
        assert_eq!(newest_glibc(versions), Some((2, 34)));
        assert_eq!(newest_glibc("none"), None);
    }

    #[test]
    fn a_file_that_is_no_program_is_refused() {
        let error = check(
            Path::new(file!())
                .parent()
                .unwrap()
                .join("nothing")
                .as_path(),
        );
        assert!(error.is_err());
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let error = check(&manifest).unwrap_err().to_string();
        assert!(error.contains("no ELF program"), "{error}");
    }
}
