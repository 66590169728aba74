//! The build time of a newcomer: the first `cargo run --release`, from an empty target folder.

use std::{fs, thread, time::Instant};

use anyhow::{Result, bail};

use crate::{
    files,
    run::{cargo, root},
};

/// Builds the program as `cargo run --release` does, in an empty folder, and prints how long that
/// took. Crates are fetched before the clock starts.
pub(super) fn run(args: &[String]) -> Result<()> {
    match args.first().map(String::as_str) {
        None => (),
        Some("-h" | "--help") => {
            println!(
                "Builds the program in target/first-build, from nothing, and prints how long that \
                 took. Takes no arguments."
            );
            return Ok(());
        }
        Some(other) => bail!("cargo xtask bench build takes no arguments, but got {other:?}"),
    }
    let folder = root().join("target/first-build");
    files::remove(&folder)?;
    cargo(["fetch", "--locked"]).run()?;
    let start = Instant::now();
    let cpu_before = cpu_seconds();
    cargo(["run", "--release", "--locked", "--target-dir"])
        .args([folder.as_os_str()])
        .args(["--", "--version"])
        .run()?;
    let seconds = start.elapsed().as_secs_f64();
    let processors = thread::available_parallelism().map_or(1, usize::from);
    println!("first `cargo run --release`: {seconds:.0} s on {processors} processors");
    if let (Some(before), Some(after)) = (cpu_before, cpu_seconds()) {
        println!("of processor time: {:.0} s", after - before);
    }
    files::remove(&folder)
}

/// Returns the processor time of this program's children that have ended, where the system says it
/// as Linux does: fields 16 and 17 of `/proc/self/stat`, in ticks of 10 ms.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Field 2, the program's name, ends with the last parenthesis and may hold blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(16)? + ticks(17)?) / 100.0)
}
