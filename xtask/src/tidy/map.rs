//! Reads the parts of ARCHITECTURE.md that a program can compare with the code: the list of
//! dependencies and the table of central types.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};

use super::rust_files;
use crate::metadata::Metadata;

/// The head of the table of dependencies.
const ARROWS_HEAD: &str = "| crate | may depend on |";
/// The head of the table of central types.
const TYPES_HEAD: &str = "| type or trait | crate and file | in one line |";

/// The tables of ARCHITECTURE.md that are compared with the code.
pub(super) struct Map {
    /// The crates that each crate may depend on.
    pub(super) arrows: BTreeMap<String, BTreeSet<String>>,
    /// Names of types, and the short name of the crate that each row puts them in.
    types: Vec<(String, String)>,
}

impl Map {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let arrows: BTreeMap<String, BTreeSet<String>> = rows(text, ARROWS_HEAD)
            .filter_map(|cells| {
                let from = quoted(cells.first()?).next()?;
                let to = cells.get(1).map(|cell| quoted(cell).collect());
                Some((from, to.unwrap_or_default()))
            })
            .collect();
        let types: Vec<(String, String)> = rows(text, TYPES_HEAD)
            .flat_map(|cells| {
                let place = cells.get(1).copied().unwrap_or_default();
                let owner = place.split_whitespace().next().unwrap_or_default();
                let names: Vec<_> = quoted(cells.first().copied().unwrap_or_default())
                    .map(|name| (name, owner.to_owned()))
                    .collect();
                names
            })
            .collect();
        ensure!(
            !arrows.is_empty() && !types.is_empty(),
            "ARCHITECTURE.md lacks the table `{ARROWS_HEAD}` or `{TYPES_HEAD}`"
        );
        Ok(Self { arrows, types })
    }
}

/// Returns the cells of each row of the table under `head`.
fn rows<'a>(text: &'a str, head: &str) -> impl Iterator<Item = Vec<&'a str>> {
    text.lines()
        .skip_while(move |line| line.trim() != head)
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

/// Returns what stands between backticks, without the generic parameters of a type.
fn quoted(cell: &str) -> impl Iterator<Item = String> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.map(|name| name.split('<').next().unwrap_or(name).to_owned())
}

/// Reports types of the map that the crate they are said to be in does not define.
pub(super) fn types(metadata: &Metadata, map: &Map, faults: &mut Vec<String>) -> Result<()> {
    let mut defined: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in metadata.members() {
        let folder = package
            .manifest_path
            .parent()
            .unwrap_or_else(|| Path::new(""));
        let mut names = BTreeSet::new();
        for file in rust_files(&folder.join("src"))? {
            names.extend(fs::read_to_string(&file)?.lines().filter_map(definition));
        }
        defined.insert(&package.name, names);
    }
    for (name, owner) in &map.types {
        let package = format!("prelude-{owner}");
        let names = defined
            .get(package.as_str())
            .or_else(|| defined.get(owner.as_str()));
        match names {
            None => faults.push(format!(
                "ARCHITECTURE.md puts {name} into {owner}, no crate of ours"
            )),
            Some(names) if !names.contains(name) => {
                faults.push(format!(
                    "ARCHITECTURE.md names {name} of {owner}, which does not exist"
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Returns the name of the type or trait that the line begins to define, if any: after a keyword,
/// or as `Name(u32)` alone on its line, as macros that define types take it.
fn definition(line: &str) -> Option<String> {
    let macro_argument = line
        .trim()
        .strip_suffix(')')
        .and_then(|l| l.split_once('('));
    if let Some((name, inner)) = macro_argument
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && [name, inner]
            .iter()
            .all(|part| part.chars().all(char::is_alphanumeric))
    {
        return Some(name.to_owned());
    }
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let kind = if first == "pub" || first.starts_with("pub(") {
        words.next()?
    } else {
        first
    };
    if !["struct", "enum", "trait", "type"].contains(&kind) {
        return None;
    }
    let name = words.next()?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(name[..end.unwrap_or(name.len())].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read() {
        let text = format!(
            "x\n{ARROWS_HEAD}\n| --- | --- |\n| `a` | |\n| `b` | `a`, `c` |\n\n\
             {TYPES_HEAD}\n| --- | --- | --- |\n| `X<T: Y>`, `Z` | core `x.rs` | `not` a type |\n"
        );
        let map = Map::parse(&text).unwrap();
        assert_eq!(map.arrows["a"], BTreeSet::new());
        assert_eq!(map.arrows["b"], ["a", "c"].map(String::from).into());
        let pair = |name: &str| (name.to_owned(), "core".to_owned());
        assert_eq!(map.types, [pair("X"), pair("Z")]);
    }

    #[test]
    fn definitions_are_found() {
        let name = |line: &str| definition(line);
        assert_eq!(name("pub struct A<T> {").as_deref(), Some("A"));
        assert_eq!(name("pub(crate) enum B {").as_deref(), Some("B"));
        assert_eq!(name("    pub trait C: Debug {").as_deref(), Some("C"));
        assert_eq!(name("pub type D = u32;").as_deref(), Some("D"));
        assert_eq!(name("    SeqId(u64)").as_deref(), Some("SeqId"));
        assert_eq!(name("// struct E"), None);
        assert_eq!(name("let type_name = 1;"), None);
    }
}
