//! The golden files are the recorded ones, byte for byte.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, bail};

use crate::{files, run};

/// Folders under guard: recorded outputs, and the models they were recorded from.
const FOLDERS: &[&str] = &["golden", "prelude-server/demo"];
const MANIFEST: &str = "golden/MANIFEST";

pub(crate) fn run(accept: bool) -> Result<()> {
    let root = run::root();
    let mut found = BTreeMap::new();
    for folder in FOLDERS {
        for path in files::below(&root.join(folder))? {
            let name = path
                .strip_prefix(&root)?
                .to_string_lossy()
                .replace('\\', "/");
            if name != MANIFEST && path.extension().is_none_or(|end| end != "md") {
                found.insert(name, checksum(&fs::read(&path)?));
            }
        }
    }
    if accept {
        let lines: String = found
            .iter()
            .map(|(name, sum)| format!("{sum} {name}\n"))
            .collect();
        fs::write(root.join(MANIFEST), lines).context("cannot write the manifest")?;
        println!("golden: {} files recorded in {MANIFEST}", found.len());
        return Ok(());
    }
    let manifest = fs::read_to_string(root.join(MANIFEST)).with_context(|| {
        format!("cannot read {MANIFEST}; `cargo xtask golden --accept` makes it")
    })?;
    let mut wanted = BTreeMap::new();
    for line in manifest.lines() {
        let (sum, name) = line
            .split_once(' ')
            .with_context(|| format!("bad line: {line}"))?;
        wanted.insert(name.to_owned(), sum.to_owned());
    }
    let names = wanted
        .keys()
        .chain(found.keys().filter(|n| !wanted.contains_key(*n)));
    let faults: Vec<_> = names.filter(|n| wanted.get(*n) != found.get(*n)).collect();
    if faults.is_empty() {
        println!("golden: {} files are as recorded", found.len());
        return Ok(());
    }
    bail!("golden files differ from {MANIFEST}: {faults:?}");
}

/// Returns a guard against accidents, not against malice: FNV-1a, 64 bits, and the length.
fn checksum(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{sum:016x}:{}", bytes.len())
}
