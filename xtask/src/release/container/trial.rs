//! The trial of an image: its layout and its settings are checked, and its program is asked
//! questions, in the image's own root and, where there is Docker or Podman, as a container.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{ENTRYPOINT, USER, layout::Image};
use crate::{demo, files, run::program};

/// Arguments that start the image's server.
const SERVE: [&str; 3] = ["serve", "--port", "0"];

/// Programs that run containers, with the same arguments.
const ENGINES: [&str; 2] = ["docker", "podman"];

/// Words of an engine on a machine that does not let it start any container.
const DENIALS: [&str; 2] = ["setrlimit", "cgroup"];

/// Unpacks an image into a folder and tries it. Returns what to show.
pub(super) fn run(packed: &Path, folder: &Path) -> Result<String> {
    files::remove(folder)?;
    let (layout, root) = (folder.join("layout"), folder.join("root"));
    fs::create_dir_all(&layout)?;
    fs::create_dir_all(&root)?;
    unpack("-xzf", packed, &layout)?;
    let image = Image::read(&layout).context("the image's layout is wrong")?;
    check(&image)?;
    let layer = folder.join("layer.tar");
    fs::write(&layer, &image.layer)?;
    unpack("-xpf", &layer, &root)?;
    let (how, mut command) = inside(&root, &image)?;
    let server = demo::start_program(command.args(SERVE))
        .with_context(|| format!("the program does not run {how}"))?;
    let seconds = demo::ask(&server)?;
    drop(server);
    Ok(format!(
        "the image's program answered {seconds:.2} s after its start, {how}\n{}",
        as_container(packed, &image)?
    ))
}

fn unpack(how: &str, archive: &Path, to: &Path) -> Result<()> {
    let arguments = [
        how.as_ref(),
        archive.as_os_str(),
        "-C".as_ref(),
        to.as_os_str(),
    ];
    program("tar").args(arguments).run()
}

/// Checks that the image runs its program, which is in it, as a user that it knows and that is not
/// the administrator.
fn check(image: &Image) -> Result<()> {
    let config = &image.config["config"];
    let user = format!("{USER}:{USER}");
    ensure!(config["User"] == *user, "the user is {}", config["User"]);
    let entrypoint = &config["Entrypoint"];
    ensure!(entrypoint[0] == ENTRYPOINT, "it runs {entrypoint}");
    let mut modes = BTreeMap::new();
    let mut users = String::new();
    for entry in tar::Archive::new(&image.layer[..]).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.display().to_string();
        if path == "etc/passwd" {
            std::io::Read::read_to_string(&mut entry, &mut users)?;
        }
        modes.insert(path, entry.header().mode()?);
    }
    for (path, mode) in [
        (&ENTRYPOINT[1..], 0o755),
        ("etc/ssl/certs/ca-certificates.crt", 0o644),
        ("tmp", 0o1777),
    ] {
        let found = modes.get(path);
        let found = found.map_or_else(|| "none".to_owned(), |mode| format!("{mode:o}"));
        ensure!(found == format!("{mode:o}"), "{path} has the mode {found}");
    }
    let known = format!(":x:{USER}:{USER}:");
    ensure!(users.contains(&known), "no user {USER} in {users:?}");
    Ok(())
}

/// Returns a command that runs the image's program with the image's files and, where this machine
/// allows that, with no others.
fn inside(root: &Path, image: &Image) -> Result<(&'static str, Command)> {
    let is_root = program("id").args(["-u"]).output()?.trim() == "0";
    let unshare = ["--user", "--map-root-user", "chroot"];
    let can_unshare = || {
        let tried = program("unshare").args(unshare);
        tried.args(["/", "/bin/true"]).succeeds()
    };
    let (how, mut command) = if is_root {
        let mut command = Command::new("chroot");
        command.arg(format!("--userspec={USER}:{USER}"));
        command.arg(root).arg(ENTRYPOINT);
        ("alone in its files, as the image's user", command)
    } else if can_unshare() {
        let mut command = Command::new("unshare");
        command.args(unshare).arg(root).arg(ENTRYPOINT);
        ("alone in its files", command)
    } else {
        println!("SKIP a root of its own: neither chroot nor unshare is allowed here");
        let loader = loader(root)?;
        let mut command = Command::new(&loader.0);
        command.arg("--library-path").arg(&loader.1);
        command.arg(root.join(&ENTRYPOINT[1..]));
        ("with its libraries", command)
    };
    command.env_clear();
    let environment = image.config["config"]["Env"].as_array();
    for variable in environment.into_iter().flatten() {
        let (name, value) = { variable.as_str().and_then(|text| text.split_once('=')) }
            .with_context(|| format!("{variable} is no variable"))?;
        // `chroot` and `unshare` are looked for with the variable.
        match name {
            "PATH" => command.env("PATH", format!("{value}:/usr/sbin:/usr/bin:/sbin:/bin")),
            _ => command.env(name, value),
        };
    }
    Ok((how, command))
}

/// Returns the loader in an unpacked image, and the folder of the C library.
fn loader(root: &Path) -> Result<(PathBuf, PathBuf)> {
    let find = |name: &str| -> Result<PathBuf> {
        let found = program("find")
            .args([root.as_os_str(), "-name".as_ref(), name.as_ref()])
            .output()?;
        let first = found.lines().next();
        first
            .map(PathBuf::from)
            .with_context(|| format!("no {name}"))
    };
    let libc = find("libc.so.6")?;
    let folder = libc.parent().context("a file is in a folder")?;
    Ok((find("ld-linux*")?, folder.to_owned()))
}

/// A running container; removed when dropped.
struct Container {
    engine: &'static str,
    name: String,
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may be gone already.
        let remove = program(self.engine).args(["rm", "--force", &self.name]);
        remove.succeeds();
    }
}

/// Loads the image and asks its program as a container. Returns what to show.
fn as_container(packed: &Path, image: &Image) -> Result<String> {
    let runs = |engine: &&&str| program(engine).args(["info"]).succeeds();
    let Some(&engine) = ENGINES.iter().find(runs) else {
        let names = ENGINES.join(" nor ");
        return Ok(format!(
            "SKIP running a container: neither {names} works here"
        ));
    };
    program(engine)
        .args(["load".as_ref(), "--input".as_ref(), packed.as_os_str()])
        .run()?;
    let container = Container {
        engine,
        name: format!("prelude-trial-{}", std::process::id()),
    };
    let run = || {
        let mut command = Command::new(engine);
        command.args(["run", "--rm", "--network=host", "--read-only"]);
        command.args(["--name", &container.name]);
        command.arg(format!("{}:{}", image.name, image.tag));
        command
    };
    let first = run().arg("--version").output()?;
    if !first.status.success() {
        let said = String::from_utf8_lossy(&first.stderr);
        let said = said.lines().last().unwrap_or_default();
        ensure!(
            DENIALS.iter().any(|denial| said.contains(denial)),
            "{engine} does not run the image: {said}"
        );
        return Ok(format!(
            "SKIP running a container: {engine} loads the image, but may run none here: {said}"
        ));
    }
    let server = demo::start_program(run().args(SERVE))?;
    let seconds = demo::ask(&server)?;
    drop(container);
    Ok(format!(
        "as a container of {engine} it answered after {seconds:.2} s"
    ))
}
