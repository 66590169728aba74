//! The ratchet: `sizes.toml` says how much code each crate has outside tests, and code that grows
//! over it is refused.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result};
use proc_macro2::{TokenStream, TokenTree};
use serde::Deserialize;

use super::{
    crates,
    cycles::{asks_for_tests, ends_item, product_files},
};
use crate::{
    metadata::Metadata,
    run::{program, root},
};

const FILE: &str = "sizes.toml";

/// Languages, and the ends of their files' names.
const LANGUAGES: [(&str, &[&str]); 6] = [
    ("C++", &["c", "cpp", "cu", "cuh", "h"]),
    ("JavaScript", &["css", "html", "js", "mjs"]),
    ("Python", &["py", "pyi"]),
    ("Shell", &["sh"]),
    // Examples, benches, scripts and build scripts.
    ("Rust outside src", &["rs"]),
    ("data", &["csv", "json", "jsonl", "toml", "yaml", "yml"]),
];

/// Folders of tests and of what programs record, and manifests.
const NO_CODE: [&str; 6] = [
    "/tests/",
    "/fuzz/",
    "/golden/",
    "/bench/gpu/",
    "/bench/results/",
    "/Cargo.toml",
];

/// The beginnings of lines that are comments, in the languages beside Rust.
const COMMENTS: [&str; 4] = ["# ", "//", "/*", "* "];

/// Lines of code, files with code, and types of a crate or a language.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Size {
    code: usize,
    #[serde(default)]
    files: usize,
    #[serde(default)]
    types: usize,
}

impl Size {
    /// The figures with their names.
    fn figures(self) -> [(&'static str, usize); 3] {
        [
            ("lines of code", self.code),
            ("files", self.files),
            ("types", self.types),
        ]
    }

    fn each(self, other: Self, with: fn(usize, usize) -> usize) -> Self {
        Self {
            code: with(self.code, other.code),
            files: with(self.files, other.files),
            types: with(self.types, other.types),
        }
    }

    fn add(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }
}

type Sizes = BTreeMap<String, Size>;

/// The contents of `sizes.toml`, which says itself what each part means.
#[derive(Deserialize)]
struct Ratchet {
    budget: Size,
    sizes: Sizes,
    #[serde(default)]
    reason: Vec<Reason>,
}

/// The permission to grow, which a commit with a new capability brings along.
#[derive(Deserialize)]
struct Reason {
    #[serde(rename = "crate")]
    name: String,
    #[serde(flatten)]
    size: Size,
    why: String,
}

/// Adds a fault for each crate that is larger than the file allows, and for a file that allows more
/// than its budget and its reasons come to.
pub(super) fn check(metadata: &Metadata, faults: &mut Vec<String>) -> Result<()> {
    let (ratchet, found) = (read()?, count(metadata)?);
    let smaller = verdicts(&ratchet, &found, faults);
    if smaller > 0 {
        println!("tidy: {smaller} rows of {FILE} can be lowered: `cargo xtask tidy --update`");
    }
    for reason in &ratchet.reason {
        let path = reason.why.split([' ', ':']).next().unwrap_or_default();
        if path.is_empty() || !root().join(path).exists() {
            faults.push(format!(
                "{FILE}: the reason of {} names no path that is there: `{}`; begin `why` with the \
                 path of what the capability adds",
                reason.name, reason.why
            ));
        }
    }
    Ok(())
}

/// Lowers the rows of the file, and its budget, to what is there; raises none.
pub(crate) fn update() -> Result<()> {
    let (ratchet, found) = (read()?, count(&Metadata::load()?)?);
    let path = root().join(FILE);
    let text = lowered(&fs::read_to_string(&path)?, &ratchet, &found);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn read() -> Result<Ratchet> {
    let path = root().join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
    toml::from_str(&text).with_context(|| FILE.to_owned())
}

/// Adds the faults of rows, and returns the number of rows that more than 1 % of code has left.
fn verdicts(ratchet: &Ratchet, found: &Sizes, faults: &mut Vec<String>) -> usize {
    for (name, size) in found {
        let row = ratchet.sizes.get(name).copied().unwrap_or_default();
        let figures = size.figures().into_iter().zip(row.figures());
        let grown = figures.filter(|((_, now), (_, was))| *now > was + was.div_ceil(100));
        let grown: Vec<String> = grown
            .map(|((what, now), (_, was))| format!("{now} {what}, {} more", now - was))
            .collect();
        if !grown.is_empty() {
            faults.push(format!(
                "{name} has {} than {FILE} says, which is over 1 %: make it smaller; or raise its \
                 row and lower others, by deleting there and `cargo xtask tidy --update`; or raise \
                 its row and add a [[reason]]",
                grown.join(" and ")
            ));
        }
    }
    let gone = ratchet
        .sizes
        .keys()
        .filter(|name| !found.contains_key(*name));
    faults.extend(gone.map(|name| format!("{FILE} has a row for {name}, which is not there")));
    let rows = sum(ratchet.sizes.values().copied());
    let allowed = sum(ratchet.reason.iter().map(|reason| reason.size)).add(ratchet.budget);
    for ((what, rows), (_, allowed)) in rows.figures().into_iter().zip(allowed.figures()) {
        if rows > allowed {
            faults.push(format!(
                "the rows of {FILE} come to {rows} {what}, {} more than budget and reasons: lower \
                 another row by deleting there, or add a [[reason]] for as many",
                rows - allowed
            ));
        }
    }
    let rows = ratchet
        .sizes
        .iter()
        .filter_map(|(name, row)| Some((found.get(name)?, row)));
    rows.filter(|(now, row)| now.code + row.code.div_ceil(100) < row.code)
        .count()
}

fn sum(sizes: impl Iterator<Item = Size>) -> Size {
    sizes.fold(Size::default(), Size::add)
}

/// Returns the file's text with lower figures where there is less; all else stays as it is written.
fn lowered(text: &str, ratchet: &Ratchet, found: &Sizes) -> String {
    let row = |name: &str| {
        let (row, now) = (ratchet.sizes.get(name)?, found.get(name)?);
        Some(row.each(*now, usize::min))
    };
    let rows = sum(ratchet.sizes.keys().filter_map(|name| row(name)));
    let reasons = sum(ratchet.reason.iter().map(|reason| reason.size));
    let needed = rows.each(reasons, usize::saturating_sub);
    let budget = ratchet.budget.each(needed, usize::min);
    let lines = text.lines().map(|line| {
        let Some((key, _)) = line.split_once(" = { code = ") else {
            return line.to_owned();
        };
        let new = match key {
            "budget" => Some(budget),
            name => row(name.trim_matches('"')),
        };
        new.map_or_else(
            || line.to_owned(),
            |Size { code, files, types }| {
                format!("{key} = {{ code = {code}, files = {files}, types = {types} }}")
            },
        )
    });
    lines.map(|line| line + "\n").collect()
}

/// Counts the crates and the languages of the repository.
fn count(metadata: &Metadata) -> Result<Sizes> {
    let mut sizes = Sizes::new();
    let mut add = |name: &str, size: Size| {
        let sum = sizes.entry(name.to_owned()).or_default();
        *sum = sum.add(size);
    };
    for (name, folder) in crates(metadata) {
        for file in product_files(&folder.join("src"))? {
            add(name, rust(&fs::read_to_string(file)?));
        }
    }
    let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
    for name in program("git").args(list).output()?.lines() {
        let end = name.rsplit('.').next().unwrap_or_default();
        let language = LANGUAGES.iter().find(|(_, ends)| ends.contains(&end));
        let has = |part: &str| format!("/{name}").contains(part);
        // The root has files about building alone.
        let is_code = name.contains('/') && !NO_CODE.iter().any(|part| has(part));
        let is_counted = end == "rs" && has("/src/");
        if let (Some((language, _)), true) = (language, is_code && !is_counted)
            && let Ok(text) = fs::read_to_string(root().join(name))
        {
            let size = if end == "rs" { rust } else { other };
            add(language, size(&text));
        }
    }
    Ok(sizes)
}

/// Counts lines of another language that are neither blank nor comment.
fn other(text: &str) -> Size {
    let is_code = |line: &&str| !line.is_empty() && !COMMENTS.iter().any(|c| line.starts_with(c));
    let code = text.lines().map(str::trim).filter(is_code).count();
    let files = usize::from(code > 0);
    Size {
        code,
        files,
        types: 0,
    }
}

/// Counts a Rust file's lines that are neither blank nor comment, and its types, without items for
/// tests alone.
fn rust(text: &str) -> Size {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut size = Size::default();
    let mut is_test = vec![false; lines.len() + 1];
    walk(
        text.parse().unwrap_or_default(),
        &mut is_test,
        &mut size.types,
    );
    let is_code = |(line, is_test): &(&&str, &bool)| {
        !**is_test && !line.is_empty() && !line.starts_with("//")
    };
    size.code = lines.iter().zip(&is_test).filter(is_code).count();
    size.files = usize::from(size.code > 0);
    size
}

fn walk(tokens: TokenStream, is_test: &mut [bool], types: &mut usize) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark)
                if mark.as_char() == '#' && tokens.peek().is_some_and(asks_for_tests) =>
            {
                let first = mark.span().start().line;
                let last = tokens.find(ends_item);
                let last = last.map_or(first, |last| last.span().end().line);
                is_test[first - 1..last].fill(true);
            }
            TokenTree::Ident(word) => {
                let defines = ["struct", "enum", "trait", "union", "type"]
                    .iter()
                    .any(|w| word == w);
                let named = matches!(tokens.peek(), Some(TokenTree::Ident(_)));
                *types += usize::from(defines && named);
            }
            TokenTree::Group(group) => walk(group.stream(), is_test, types),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_counted_without_blanks_comments_and_tests() {
        let text = "//! a\nuse b;\n\n/// c\nstruct D<'a> {\n    // e\n    f: &'a str,\n    #[cfg(test)]\n    g: u8,\n}\n\
                    trait H {\n    type I;\n}\n#[cfg(test)]\nmod tests {\n    struct J;\n}\n#[cfg(not(test))]\nfn k() {}\n";
        let expected = Size {
            code: 9,
            files: 1,
            types: 3,
        };
        assert_eq!(rust(text), expected);
        assert_eq!(rust("//! a\n"), Size::default());
    }

    fn ratchet(rows: &str, reasons: &str) -> Ratchet {
        let budget = "budget = { code = 1000, files = 20, types = 0 }";
        toml::from_str(&format!(
            "{budget}\n[sizes]\n{rows}\n{reasons}\n[minutes]\n"
        ))
        .unwrap()
    }

    fn sizes(rows: &[(&str, usize)]) -> Sizes {
        let size = |code| Size {
            code,
            files: 10,
            types: 0,
        };
        rows.iter()
            .map(|&(name, code)| (name.to_owned(), size(code)))
            .collect()
    }

    const ROWS: &str = "a = { code = 400, files = 10 }\nb = { code = 600, files = 10 }";

    fn check(rows: &str, reasons: &str, found: &[(&str, usize)], fault: Option<&str>) {
        let mut faults = Vec::new();
        verdicts(&ratchet(rows, reasons), &sizes(found), &mut faults);
        match fault {
            None => assert!(faults.is_empty(), "{faults:?}"),
            Some(text) => assert!(faults.len() == 1 && faults[0].contains(text), "{faults:?}"),
        }
    }

    #[test]
    fn more_than_one_percent_is_refused() {
        check(ROWS, "", &[("a", 404), ("b", 606)], None);
        check(
            ROWS,
            "",
            &[("a", 405), ("b", 600)],
            Some("a has 405 lines of code, 5 more"),
        );
        check(ROWS, "", &[("a", 400)], Some("a row for b, which"));
        let new = [("a", 400), ("b", 600), ("c", 1)];
        check(
            ROWS,
            "",
            &new,
            Some("c has 1 lines of code, 1 more and 10 files, 10 more than"),
        );
    }

    #[test]
    fn a_raised_row_wants_a_lower_one_or_a_reason() {
        let found = [("a", 500), ("b", 600)];
        let raised = ROWS.replace("400", "500");
        check(
            &raised,
            "",
            &found,
            Some("1100 lines of code, 100 more than budget"),
        );
        let lower = raised.replace("600", "500");
        check(&lower, "", &[("a", 500), ("b", 500)], None);
        let reason = |code| format!("[[reason]]\ncrate = \"a\"\ncode = {code}\nwhy = \"a: x\"");
        check(&raised, &reason(100), &found, None);
        check(&raised, &reason(99), &found, Some("1 more than budget"));
    }

    #[test]
    fn an_update_lowers_rows_and_the_budget_and_raises_none() {
        let rows = "# c\na = { code = 500, files = 10, types = 0 }\nb = { code = 600, files = 10, types = 0 }\n";
        let reason = "[[reason]]\ncrate = \"a\"\ncode = 50\nwhy = \"x\"";
        let text = format!("budget = {{ code = 1000, files = 20, types = 0 }}\n{rows}");
        let new = lowered(
            &text,
            &ratchet(rows, reason),
            &sizes(&[("a", 510), ("b", 300)]),
        );
        // Of the 300 lines that left b, 50 serve a, with 50 of the reason.
        let expected = text.replace("= 600", "= 300").replace("= 1000", "= 750");
        assert_eq!(new, expected);
    }
}
