//! Packs compiled kernels into the crate, if the environment names a folder of them:
//! `PRELUDE_KERNEL_IMAGES`, from the workspace, as `cargo xtask kernels build` leaves it. Compiles nothing itself, and
//! without the variable packs nothing.

use std::{env, error::Error, fs, path::PathBuf};

const VARIABLE: &str = "PRELUDE_KERNEL_IMAGES";
const MANIFEST: &str = "manifest.json";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo names OUT_DIR")?);
    let packed = match env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        None => "None".to_owned(),
        Some(folder) => packed(PathBuf::from(folder))?,
    };
    let text = format!(
        "/// Images that were packed when this was built.\nconst PACKED: Option<Packed> = {packed};\n"
    );
    fs::write(out.join("packed.rs"), text)?;
    Ok(())
}

/// Returns an expression that holds the folder's manifest and the images named like a family: those
/// with a hash in their names are the build's own.
fn packed(folder: PathBuf) -> Result<String, Box<dyn Error>> {
    // Build scripts run in their crate's folder; a path is meant from the workspace's.
    let crates = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo names the crate")?);
    let folder = crates.join("..").join(folder);
    let wrong = |e| format!("{VARIABLE}={}: {e}", folder.display());
    let folder = fs::canonicalize(&folder).map_err(wrong)?;
    let manifest = folder.join(MANIFEST);
    if !manifest.is_file() {
        let what = "there is no manifest: run `cargo xtask kernels build` first";
        return Err(format!("{VARIABLE}={}: {what}", folder.display()).into());
    }
    println!("cargo::rerun-if-changed={}", manifest.display());
    let mut images = Vec::new();
    for entry in fs::read_dir(&folder).map_err(wrong)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|n| n.to_str()).unwrap_or("");
        let is_image = path.extension().is_some_and(|e| e == "fatbin");
        if is_image && !name.contains('-') {
            println!("cargo::rerun-if-changed={}", path.display());
            images.push(format!("({name:?}, include_bytes!({path:?}))"));
        }
    }
    images.sort_unstable();
    Ok(format!(
        "Some(Packed {{ manifest: include_str!({manifest:?}), images: &[{}] }})",
        images.join(", ")
    ))
}
