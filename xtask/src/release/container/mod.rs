//! The container image of a release: the programs of its archive and what they need to run, written
//! as an OCI image layout by this program alone. No base image, no network, no tool but `tar` and
//! `gzip`.

mod layout;
mod root;
mod trial;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use self::{layout::Image, root::Root};
use crate::{files, run::program};

/// The user that the programs run as, and its group. The number is that of other images without a
/// shell.
const USER: u64 = 65_532;

/// The home of that user: the cache of models is below it, so a volume belongs there.
const HOME: &str = "/home/nonroot";

/// The program that the image runs.
const ENTRYPOINT: &str = "/usr/local/bin/prelude";

/// The end of an archive's name.
const ARCHIVE: &str = ".tar.gz";

/// Makes the image of an archive's programs, beside the archive, and tries it. Returns the image and
/// what to show.
pub(super) fn make(archive: &Path) -> Result<(PathBuf, String)> {
    let archive = &std::path::absolute(archive)?;
    let name = archive.file_name().and_then(|name| name.to_str());
    let name = name.and_then(|name| name.strip_suffix(ARCHIVE));
    let name = name.with_context(|| format!("{} is no archive", archive.display()))?;
    let (version, target) = name
        .strip_prefix("prelude-")
        .and_then(|rest| rest.split_once('-'))
        .with_context(|| format!("{name} names no version and no target"))?;
    let work = files::target().join("release-container");
    files::remove(&work)?;
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    program("tar")
        .args(["-xzf".as_ref(), archive.as_os_str()])
        .args(["-C".as_ref(), work.as_os_str()])
        .run()?;
    let layer = Root::of_release(&work.join(name))?.layer()?;
    let image = Image {
        config: config(version, architecture(target)?),
        layer,
        name: "prelude".to_owned(),
        tag: version.to_owned(),
    };
    let layout = work.join("layout");
    image.write(&layout)?;
    let packed = archive.with_file_name(format!("{name}.oci{ARCHIVE}"));
    pack(&layout, &packed)?;
    let shown = trial::run(&packed, &work.join("trial"))?;
    Ok((packed, shown))
}

/// Packs a layout into one file, which `docker load` and `podman load` read.
fn pack(layout: &Path, packed: &Path) -> Result<()> {
    // The same layout gives the same bytes, whoever packs it and when.
    program("tar")
        .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0"])
        .args([
            "--numeric-owner",
            "--mode=a=rX,u+w",
            "-I",
            "gzip -9n",
            "-cf",
        ])
        .args([packed.as_os_str(), "-C".as_ref(), layout.as_os_str()])
        .args(layout::PATHS)
        .run()
}

/// Returns the name that images have for a target's kind of processor.
fn architecture(target: &str) -> Result<&'static str> {
    match target.split('-').next() {
        Some("x86_64") => Ok("amd64"),
        Some("aarch64") => Ok("arm64"),
        _ => bail!("no image is made for {target}"),
    }
}

/// Returns the image's configuration, but for its layer.
fn config(version: &str, architecture: &str) -> Value {
    json!({
        // The same files give the same image, whoever makes it and when.
        "created": "1970-01-01T00:00:00Z",
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "WorkingDir": HOME,
            "Entrypoint": [ENTRYPOINT],
            "Cmd": ["serve"],
            "ExposedPorts": { "8000/tcp": {} },
            "Env": [
                "PATH=/usr/local/bin",
                format!("HOME={HOME}"),
                // The address inside of a container is reached from outside only where it is told to be.
                "PRELUDE_SERVER__HOST=0.0.0.0",
            ],
            "Labels": {
                "org.opencontainers.image.title": "prelude",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
            },
        },
    })
}
