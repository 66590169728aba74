//! `cargo xtask release`: the files of a release for this machine's kind, tried before they count.

mod container;
mod notices;
mod trial;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::{
    files::{self, copy},
    kernels,
    metadata::Metadata,
    python,
    run::{self, cargo, program, root},
};

/// The programs of a release, their packages, and the features of these. The wheel has the first
/// program as a function.
const PROGRAMS: [(&str, &str, &str); 2] = [
    ("prelude", "prelude-cli", FEATURES),
    ("prelude-epp", "prelude-epp", ""),
];

/// The features of the server, in the archive and in the wheel.
const FEATURES: &str = "cuda,otlp";

/// Files of the repository that go along.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Files of `docs/deploy` that go along.
const DEPLOYMENT: [&str; 2] = ["prelude.service", "grafana.json"];

/// Completions in the archive: the shell, and the file's name as shells look for it.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "completions/prelude"),
    ("zsh", "completions/_prelude"),
    ("fish", "completions/prelude.fish"),
];

/// Folder of the man pages in the archive.
const MAN: &str = "man/man1";

/// Builds the wheels and the archive, tries them without Rust, and prints their sizes.
pub(crate) fn run() -> Result<()> {
    let target = run::host()?;
    if !target.ends_with("linux-gnu") {
        bail!("releases are made on Linux with the GNU C library; this is {target}");
    }
    let version = version()?;
    let folder = files::target().join("releases");
    files::remove(&folder)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let images = images();
    if let Err(missing) = &images {
        println!("SKIP images: {missing:#}; the programs compile kernels when they first start");
    }
    let has_images = images.is_ok();
    let wheel = wheel(&folder, has_images)?;
    let tokenizer = tokenizer_wheel(&folder)?;
    let archive = archive(&folder, &version, &target, has_images)?;
    let (_, container) = container::make(&archive).context("the container image does not work")?;
    checksums(&folder)?;
    let tried = [
        ("wheel", trial::wheel(&wheel)),
        ("archive", trial::archive(&archive, PROGRAMS[0].0)),
    ];
    println!();
    for (name, tried) in tried {
        let seconds = tried.with_context(|| format!("the {name} does not work"))?;
        println!(
            "the {name} answered {seconds:.2} s after its start, without Rust and with an empty home"
        );
    }
    println!(
        "{}",
        trial::tokenizer(&tokenizer).context("the tokenizer's wheel does not work")?
    );
    println!("{container}");
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        let size = entry.metadata()?.len() as f64 / 1e6;
        println!("{size:6.1} MB  {}", entry.path().display());
    }
    Ok(())
}

/// Makes and tries the container image of an archive that a release made. Returns what to show.
pub(crate) fn container(archive: &Path) -> Result<String> {
    let (image, tried) = container::make(archive)?;
    let size = fs::metadata(&image)?.len() as f64 / 1e6;
    Ok(format!("{tried}\n{size:6.1} MB  {}", image.display()))
}

/// Compiles the kernels for all processors that are supported.
fn images() -> Result<()> {
    kernels::set_up()?;
    kernels::build_images()
}

/// Returns a command with the environment in which compiled kernels get into a program.
fn with_images(command: run::Invocation, has_images: bool) -> run::Invocation {
    match has_images {
        true => command.env("PRELUDE_KERNEL_IMAGES", "target/kernels"),
        false => command,
    }
}

/// Builds the wheel of the server: the Python module, in which the program is a function.
fn wheel(folder: &Path, has_images: bool) -> Result<PathBuf> {
    python::serve::wheel(folder, None, |builder| {
        with_images(builder.args(["--features", FEATURES]), has_images)
    })
}

/// Builds the wheel of the tokenizer.
fn tokenizer_wheel(folder: &Path) -> Result<PathBuf> {
    python::wheel_builder(python::PACKAGE, folder, None)?.run()?;
    python::find_wheel(folder, "fasttoken")
}

/// Builds the programs and packs them.
fn archive(folder: &Path, version: &str, target: &str, has_images: bool) -> Result<PathBuf> {
    let name = format!("prelude-{version}-{target}");
    let inside = files::target().join("release-archive").join(&name);
    files::remove(&inside)?;
    fs::create_dir_all(&inside)?;
    let built = files::target().join("dist");
    for (file, package, features) in PROGRAMS {
        let build = cargo(["build", "--profile", "dist", "--locked", "-p", package]);
        with_images(build.args(["--features", features]), has_images).run()?;
        let to = inside.join(file);
        program("strip")
            .args(["-o"])
            .args([&to, &built.join(file)])
            .run()?;
    }
    for text in TEXTS {
        copy(&root().join(text), &inside.join(text))?;
    }
    manuals(&inside)?;
    for deployment in DEPLOYMENT {
        copy(
            &root().join("docs/deploy").join(deployment),
            &inside.join(deployment),
        )?;
    }
    let notices = notices::of(&PROGRAMS.map(|(_, package, features)| (package, features)))?;
    fs::write(inside.join("THIRD-PARTY.txt"), notices)?;
    let archive = folder.join(format!("{name}.tar.gz"));
    let above = inside.parent().context("the folder is inside another")?;
    // The same files give the same bytes, whoever packs them and when.
    program("tar")
        .args([
            "--sort=name",
            "--mtime=@0",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
        ])
        .args(["-I", "gzip -9n", "-cf"])
        .args([archive.as_os_str(), "-C".as_ref(), above.as_os_str()])
        .args([&name])
        .run()?;
    Ok(archive)
}

/// Writes the program's completions and man pages into the archive's folder.
fn manuals(inside: &Path) -> Result<()> {
    let prelude = inside.join(PROGRAMS[0].0);
    fs::create_dir_all(inside.join("completions"))?;
    for (shell, file) in COMPLETIONS {
        let text = program(&prelude).args(["completions", shell]).output()?;
        fs::write(inside.join(file), text)?;
    }
    program(&prelude)
        .args(["man".as_ref(), inside.join(MAN).as_os_str()])
        .run()
}

/// Writes the checksums of a folder's files, as `sha256sum --check` reads them.
fn checksums(folder: &Path) -> Result<()> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let digest = Sha256::digest(fs::read(entry.path())?);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        lines.push(format!("{hex}  {}\n", entry.file_name().display()));
    }
    lines.sort_unstable();
    fs::write(folder.join("SHA256SUMS"), lines.concat()).context("cannot write SHA256SUMS")
}

/// Returns the version of the first program.
fn version() -> Result<String> {
    let metadata = Metadata::load()?;
    let package = metadata.members().find(|p| p.name == PROGRAMS[0].1);
    Ok(package
        .context("the program has a package")?
        .version
        .clone())
}
