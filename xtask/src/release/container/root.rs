//! The files of the image: the programs, the libraries that they are linked with, certificates of
//! authorities, a user, and the licences of all of it. No shell and no package manager.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use tar::{Builder, EntryType, Header};

use super::{HOME, USER};
use crate::{release::PROGRAMS, run::program};

/// Libraries that are not linked but loaded, if there are such: those of names and addresses in older
/// versions of the C library, and those that NVIDIA's driver asks for.
const LOADED: [&str; 6] = [
    "libdl.so.2",
    "libnss_dns.so.2",
    "libnss_files.so.2",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
];

/// The file of root certificates that the programs read to download models.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Packages of the system that files are taken from. Their notices go along.
const PACKAGES: [&str; 3] = ["ca-certificates", "libc6", "libgcc-s1"];

/// The notices of a release.
const NOTICES: [&str; 3] = ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.txt"];

/// The content of one path.
enum Content {
    File(PathBuf),
    Text(String),
    Folder,
}

/// A path of the image, without the slash that it begins with.
struct Entry {
    path: String,
    content: Content,
    mode: u32,
    owner: u64,
}

/// The files of an image, folders before what is in them.
pub(super) struct Root(Vec<Entry>);

impl Root {
    /// Returns the files for the programs in the folder of a release's archive.
    pub(super) fn of_release(unpacked: &Path) -> Result<Self> {
        let mut root = Self(Vec::new());
        let mut libraries = BTreeSet::new();
        for (name, ..) in PROGRAMS {
            let from = unpacked.join(name);
            libraries.extend(linked(&from)?);
            root.file(&format!("usr/local/bin/{name}"), from, 0o755);
        }
        libraries.extend(loaded(&libraries));
        for library in libraries {
            let text = library.to_str().context("a library's path is UTF-8")?;
            // The file is copied, not the link to it.
            let from = fs::canonicalize(&library)?;
            root.file(text.trim_start_matches('/'), from, 0o755);
        }
        let certificates = Path::new(CERTIFICATES);
        ensure!(
            certificates.is_file(),
            "there is no {CERTIFICATES}: install the package ca-certificates"
        );
        root.file(&CERTIFICATES[1..], certificates.to_owned(), 0o644);
        for package in PACKAGES {
            let from = PathBuf::from(format!("/usr/share/doc/{package}/copyright"));
            ensure!(
                from.is_file(),
                "there is no {}: images are made on Debian or Ubuntu, whose packages have it",
                from.display()
            );
            root.file(&from.display().to_string()[1..], from.clone(), 0o644);
        }
        for notice in NOTICES {
            let to = format!("usr/share/doc/prelude/{notice}");
            root.file(&to, unpacked.join(notice), 0o644);
        }
        root.user();
        Ok(root)
    }

    /// Adds the user, its home, and a folder for temporary files.
    fn user(&mut self) {
        let name = "nonroot";
        let mut text = |path: &str, text: String| {
            self.add(path, Content::Text(text), 0o644, 0);
        };
        text(
            "etc/passwd",
            format!(
                "root:x:0:0:root:/root:/sbin/nologin\n\
                 {name}:x:{USER}:{USER}:{name}:{HOME}:/sbin/nologin\n"
            ),
        );
        text("etc/group", format!("root:x:0:\n{name}:x:{USER}:\n"));
        text("etc/nsswitch.conf", "hosts: files dns\n".to_owned());
        self.add("tmp", Content::Folder, 0o1777, 0);
        let home = HOME.trim_start_matches('/');
        // A new volume takes the owner of the folder that it is mounted on.
        for folder in [home, &format!("{home}/.cache")] {
            self.add(folder, Content::Folder, 0o700, USER);
        }
    }

    fn file(&mut self, path: &str, from: PathBuf, mode: u32) {
        self.add(path, Content::File(from), mode, 0);
    }

    /// Adds a path, behind the folders that it is in.
    fn add(&mut self, path: &str, content: Content, mode: u32, owner: u64) {
        for (end, _) in path.match_indices('/') {
            let folder = &path[..end];
            if !self.0.iter().any(|entry| entry.path == folder) {
                self.push(folder, Content::Folder, 0o755, 0);
            }
        }
        self.push(path, content, mode, owner);
    }

    fn push(&mut self, path: &str, content: Content, mode: u32, owner: u64) {
        self.0.push(Entry {
            path: path.to_owned(),
            content,
            mode,
            owner,
        });
    }

    /// Returns the files as a layer: a tar file that depends on nothing but them.
    pub(super) fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = Builder::new(Vec::new());
        for entry in &self.0 {
            let (kind, bytes) = match &entry.content {
                Content::File(from) => {
                    let bytes = fs::read(from);
                    let bytes = bytes.with_context(|| format!("cannot read {}", from.display()))?;
                    (EntryType::Regular, bytes)
                }
                Content::Text(text) => (EntryType::Regular, text.clone().into_bytes()),
                Content::Folder => (EntryType::Directory, Vec::new()),
            };
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(entry.mode);
            header.set_uid(entry.owner);
            header.set_gid(entry.owner);
            header.set_mtime(0);
            header.set_size(bytes.len() as u64);
            layer.append_data(&mut header, &entry.path, &bytes[..])?;
        }
        layer
            .into_inner()
            .context("a tar file in memory has an end")
    }
}

/// Returns the libraries that a program is linked with, its loader among them.
fn linked(of: &Path) -> Result<BTreeSet<PathBuf>> {
    let text = program("ldd").args([of]).output()?;
    let libraries = libraries(&text)?;
    ensure!(
        libraries.iter().any(|path| has_name(path, "ld-linux")),
        "{} has no loader: it is not linked with the GNU C library",
        of.display()
    );
    Ok(libraries)
}

/// Reads what `ldd` prints: `libm.so.6 => /lib/libm.so.6 (0x…)`, `/lib64/ld-linux.so.2 (0x…)`, and
/// the name alone of what the kernel provides.
fn libraries(ldd: &str) -> Result<BTreeSet<PathBuf>> {
    let mut paths = BTreeSet::new();
    for line in ldd.lines() {
        ensure!(!line.contains("not found"), "a library is missing: {line}");
        let path = line.split_whitespace().find(|word| word.starts_with('/'));
        paths.extend(path.map(PathBuf::from));
    }
    Ok(paths)
}

/// Returns those of the libraries that are loaded later, from the folder of the C library.
fn loaded(linked: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let libc = linked.iter().find(|path| has_name(path, "libc.so"));
    let folder = libc.and_then(|path| path.parent());
    let paths = folder.map(|folder| LOADED.map(|name| folder.join(name)));
    let paths = paths.into_iter().flatten();
    paths.filter(|path| path.is_file()).collect()
}

fn has_name(path: &Path, begin: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f01)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";
        let paths = libraries(text).unwrap();
        let expected = [
            "/lib/x86_64-linux-gnu/libm.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(paths, expected.map(PathBuf::from).into());
        assert!(libraries("\tlibodd.so.1 => not found\n").is_err());
    }

    #[test]
    fn a_layer_has_folders_before_files_and_owners_of_its_own() {
        let mut root = Root(Vec::new());
        root.user();
        let layer = root.layer().unwrap();
        assert_eq!(layer, root.layer().unwrap());
        let mut archive = tar::Archive::new(&layer[..]);
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            let path = entry.path().unwrap().display().to_string();
            (path, header.mode().unwrap(), header.uid().unwrap())
        });
        let expected = [
            ("etc", 0o755, 0),
            ("etc/passwd", 0o644, 0),
            ("etc/group", 0o644, 0),
            ("etc/nsswitch.conf", 0o644, 0),
            ("tmp", 0o1777, 0),
            ("home", 0o755, 0),
            ("home/nonroot", 0o700, USER),
            ("home/nonroot/.cache", 0o700, USER),
        ];
        let expected = expected.map(|(path, mode, owner)| (path.to_owned(), mode, owner));
        assert_eq!(entries.collect::<Vec<_>>(), expected);
    }
}
