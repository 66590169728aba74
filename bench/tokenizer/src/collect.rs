//! Gathers real text into an ignored folder: from this machine, and from Debian packages where
//! `apt-get` and `dpkg-deb` are at hand. None of it may enter the repository.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::kind::Kind;

/// Enough for a run without using a line twice.
const BYTES_MAX: usize = 24_000_000;
/// Files larger than this are data, not prose or code.
const FILE_BYTES_MAX: u64 = 2_000_000;

/// The Debian packages with text of a kind, each with the folder in it that holds nothing else.
const PACKAGES: &str = r#"
English = ["libreoffice-help-en-us", "debian-reference-en", "debian-handbook usr/share/doc/debian-handbook/html/en-US", "git-doc", "gnome-user-docs usr/share/help/C", "erlang-doc"]
Chinese = ["libreoffice-help-zh-cn", "debian-reference-zh-cn", "debian-handbook usr/share/doc/debian-handbook/html/zh-CN", "gnome-user-docs usr/share/help/zh_CN"]
Japanese = ["libreoffice-help-ja", "debian-reference-ja", "debian-handbook usr/share/doc/debian-handbook/html/ja-JP", "gnome-user-docs usr/share/help/ja"]
Arabic = ["libreoffice-l10n-ar", "iso-codes", "digikam-data", "evolution-common", "gimp-data", "gnucash-common", "kdenlive-data", "vlc-l10n", "debian-handbook usr/share/doc/debian-handbook/html/ar-MA"]
Russian = ["libreoffice-help-ru", "debian-handbook usr/share/doc/debian-handbook/html/ru-RU", "gnome-user-docs usr/share/help/ru"]
Korean = ["libreoffice-help-ko", "debian-handbook usr/share/doc/debian-handbook/html/ko-KR", "gnome-user-docs usr/share/help/ko"]
"#;

/// Writes one file per kind into `folder`; says what it got and what it did not.
pub(crate) fn collect(folder: &Path, mut say: impl FnMut(String)) -> Result<()> {
    let scratch = folder.join("packages");
    fs::create_dir_all(&scratch)?;
    let packages: BTreeMap<String, Vec<String>> = toml::from_str(PACKAGES)?;
    for kind in Kind::ALL {
        let mut files = local_files(kind);
        for package in packages.get(kind.name()).into_iter().flatten() {
            let (package, under) = package.split_once(' ').unwrap_or((package, ""));
            match unpack(&scratch, package) {
                Ok(folder) => files.extend(files_under(&folder.join(under))),
                Err(error) => say(format!("SKIP  package {package}: {error:#}")),
            }
        }
        files.sort();
        let text = if kind == Kind::Code {
            code(&files)
        } else {
            prose(kind, &files)
        };
        if text.is_empty() {
            say(format!("SKIP  {}: nothing found", kind.name()));
            continue;
        }
        let path = folder.join(kind.file());
        fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        say(format!("{}: {} bytes", kind.name(), text.len()));
    }
    Ok(())
}

/// Sources and documentation that a machine with Rust has.
fn local_files(kind: Kind) -> Vec<PathBuf> {
    let home = |variable: &str, folder: &str| {
        let set = std::env::var_os(variable).map(PathBuf::from);
        let fallback = std::env::var_os("HOME").map(|home| Path::new(&home).join(folder));
        set.or(fallback).unwrap_or_default()
    };
    let crates = home("CARGO_HOME", ".cargo").join("registry/src");
    let toolchains = home("RUSTUP_HOME", ".rustup").join("toolchains");
    let ends = |file: &PathBuf, endings: &[&str]| {
        let ending = file.extension().and_then(|e| e.to_str());
        ending.is_some_and(|e| endings.contains(&e))
    };
    match kind {
        Kind::Code => {
            let mut files = files_under(&crates);
            files.extend(files_under(Path::new("/usr/lib/python3")));
            files.retain(|file| ends(file, &["rs", "c", "h", "py", "js", "ts"]));
            files
        }
        Kind::English => {
            let mut files = files_under(&crates);
            files.retain(|file| ends(file, &["md"]));
            let books = ["book", "reference", "cargo", "edition-guide", "nomicon"];
            // One toolchain: another would say the same again.
            if let Some(toolchain) = sorted_entries(&toolchains).first() {
                for book in books {
                    files.extend(files_under(
                        &toolchain.join("share/doc/rust/html").join(book),
                    ));
                }
            }
            files
        }
        _ => Vec::new(),
    }
}

fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for path in sorted_entries(&folder) {
            let Ok(about) = path.symlink_metadata() else {
                continue;
            };
            if about.is_dir() {
                open.push(path);
            } else if about.is_file() && about.len() <= FILE_BYTES_MAX {
                files.push(path);
            }
        }
    }
    files
}

fn unpack(scratch: &Path, package: &str) -> Result<PathBuf> {
    let folder = scratch.join(package);
    if folder.exists() {
        return Ok(folder);
    }
    let downloads = scratch.join(format!("{package}.download"));
    fs::create_dir_all(&downloads)?;
    let mut command = Command::new("apt-get");
    quietly(command.args(["download", "-q", package]), &downloads)
        .context("not in the lists of packages, which `apt-get update` renews, or no network")?;
    let archives = sorted_entries(&downloads);
    let archive = archives.first().context("apt-get left no file")?;
    let mut command = Command::new("dpkg-deb");
    quietly(command.arg("-x").arg(archive).arg(&folder), &downloads)?;
    fs::remove_dir_all(&downloads)?;
    Ok(folder)
}

fn quietly(command: &mut Command, folder: &Path) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let quiet = command.current_dir(folder).stdin(Stdio::null());
    let status = quiet.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot start {program}"))?;
    if !status.success() {
        bail!("{program} failed: {status}");
    }
    Ok(())
}

/// Joins whole files, each content once, from as many places as fit.
fn code(files: &[PathBuf]) -> String {
    let mut seen = HashSet::new();
    let texts: Vec<String> = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .filter(|text| text.len() > 400 && seen.insert(text.clone()))
        .collect();
    let total: usize = texts.iter().map(String::len).sum();
    // Every n-th file, so that no project fills it all.
    let step = (total / BYTES_MAX).max(1);
    let mut all = String::new();
    for text in texts.iter().step_by(step) {
        all.push_str(text);
    }
    all
}

/// Returns the lines that are mostly in the script of `kind`, each once.
fn prose(kind: Kind, files: &[PathBuf]) -> String {
    let mut seen = HashSet::new();
    let mut all = String::new();
    for file in files {
        if all.len() > BYTES_MAX {
            break;
        }
        let Some(text) = readable(kind, file) else {
            continue;
        };
        for line in text.lines() {
            let line = line.trim();
            let wanted = line.len() >= 24 && in_script(kind, line);
            if wanted && seen.insert(line.to_owned()) {
                all.push_str(line);
                all.push('\n');
            }
        }
    }
    all
}

fn readable(kind: Kind, file: &Path) -> Option<String> {
    let ending = file.extension()?.to_str()?;
    match ending {
        "html" | "page" => fs::read_to_string(file)
            .ok()
            .map(|text| without_tags(&text)),
        "md" | "txt" => fs::read_to_string(file).ok(),
        "mo" if kind == Kind::Arabic && file.components().any(|c| c.as_os_str() == "ar") => {
            let mut bytes = Vec::new();
            fs::File::open(file).ok()?.read_to_end(&mut bytes).ok()?;
            // The messages' texts are NUL-terminated; the script's filter drops the rest.
            Some(String::from_utf8_lossy(&bytes).replace('\0', "\n"))
        }
        _ => None,
    }
}

/// Returns the text of an HTML page, with line ends where blocks end.
fn without_tags(html: &str) -> String {
    let mut text = String::with_capacity(html.len() / 2);
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let lower: String = rest.chars().take(12).collect::<String>().to_lowercase();
        let end = if lower.starts_with("<script") {
            rest.find("</script>").map(|at| at + 9)
        } else if lower.starts_with("<style") {
            rest.find("</style>").map(|at| at + 8)
        } else {
            rest.find('>').map(|at| at + 1)
        };
        let inline = [
            "<a ", "<a>", "</a", "<em", "</em", "<code", "</code", "<span", "</span",
        ];
        if !inline.iter().any(|tag| lower.starts_with(tag)) {
            text.push('\n');
        }
        rest = &rest[end.unwrap_or(rest.len())..];
    }
    text.push_str(rest);
    for (entity, plain) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ] {
        text = text.replace(entity, plain);
    }
    text
}

/// Returns true if at least half of the letters are of the kind's script.
fn in_script(kind: Kind, line: &str) -> bool {
    let letters = line.chars().filter(|c| c.is_alphabetic()).count();
    let own = |c: &char| match kind {
        Kind::English | Kind::Code => c.is_ascii_alphabetic(),
        Kind::Chinese => ('\u{4E00}'..='\u{9FFF}').contains(c),
        Kind::Japanese => ('\u{3040}'..='\u{9FFF}').contains(c),
        Kind::Arabic => ('\u{600}'..='\u{6FF}').contains(c),
        Kind::Russian => ('\u{400}'..='\u{4FF}').contains(c),
        Kind::Korean => ('\u{AC00}'..='\u{D7A3}').contains(c),
    };
    let own = line
        .chars()
        .filter(|c| c.is_alphabetic())
        .filter(own)
        .count();
    let dense = kind != Kind::English || letters * 3 > line.len() * 2;
    letters >= 6 && own * 2 >= letters && dense
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_become_lines() {
        let html = "<p>One &amp; <em>two</em></p><script>var x = '<p>';</script><p>three";
        let text = without_tags(html);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty())
            .collect();
        assert_eq!(lines, ["One & two", "three"]);
    }

    #[test]
    fn lines_are_told_apart_by_script() {
        assert!(in_script(Kind::Russian, "Привет, мир и all"));
        assert!(!in_script(Kind::Russian, "plain English words"));
        assert!(!in_script(Kind::English, "1 + 2 = 3; x[4] {} () == 77"));
    }
}
