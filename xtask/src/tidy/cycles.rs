//! Finds cycles between the top-level modules of a crate.
//!
//! A module depends on another if its code, tests left out, names it in a path that begins with
//! `crate::` or with as many `super::` as lead to the root of the crate, directly or by an item that
//! the root re-exports from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{crates, relative, rust_files};
use crate::metadata::Metadata;

/// Modules and the modules that each depends on.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Adds a fault for each cycle in a crate of the workspace, and in the tokenizer's race.
pub(super) fn check(metadata: &Metadata, faults: &mut Vec<String>) -> Result<()> {
    for (name, folder) in crates(metadata) {
        for cycle in cycles(&graph(&folder.join("src"))?) {
            let names: Vec<String> = cycle.into_iter().collect();
            faults.push(format!(
                "{name}: its modules depend on each other in a cycle: {}",
                names.join(", ")
            ));
        }
    }
    Ok(())
}

/// Returns the sets of modules each of which depends on all others of its set.
fn cycles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&String> = vec![from];
        while let Some(module) = open.pop() {
            for next in graph.get(module).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = graph
        .keys()
        .map(|module| (module, reached(module)))
        .collect();
    let is_mutual = |a: &String, b: &String| reached[a].contains(b) && reached[b].contains(a);
    let cycle_of = |a: &String| graph.keys().filter(|b| is_mutual(a, b)).cloned().collect();
    let cycles: BTreeSet<BTreeSet<String>> = graph.keys().map(cycle_of).collect();
    cycles.into_iter().filter(|cycle| cycle.len() > 1).collect()
}

/// Reads the sources of a crate.
fn graph(src: &Path) -> Result<Graph> {
    let files = modules(src)?;
    let is_tested = |path: &[String]| is_test_only(path, &files);
    let modules: BTreeSet<&String> = files.keys().filter_map(|path| path.first()).collect();
    let root = files.get(&Vec::new()).map_or("", String::as_str);
    let exported = exports(root, &modules);
    let mut graph = Graph::new();
    for (path, text) in &files {
        let Some(module) = path.first().filter(|_| !is_tested(path)) else {
            continue;
        };
        // In a program of its own, `crate::` is that program.
        if module == "bin" {
            continue;
        }
        let depends = graph.entry(module.clone()).or_default();
        for name in root_names(text, path.len()) {
            let owner = modules.get(&name).copied().or_else(|| exported.get(&name));
            depends.extend(owner.filter(|owner| *owner != module).cloned());
        }
    }
    Ok(graph)
}

/// Returns the files of a crate that are not for tests alone.
pub(super) fn product_files(src: &Path) -> Result<Vec<PathBuf>> {
    let modules = modules(src)?;
    let mut files = rust_files(src)?;
    files.retain(|file| !is_test_only(&module_path(&relative(src, file)), &modules));
    Ok(files)
}

/// Returns the code of each module of a crate, tests left out, by the module's path.
fn modules(src: &Path) -> Result<BTreeMap<Vec<String>, String>> {
    let mut modules: BTreeMap<Vec<String>, String> = BTreeMap::new();
    for file in rust_files(src)? {
        // A library and a program may have one root.
        let text = modules
            .entry(module_path(&relative(src, &file)))
            .or_default();
        text.push_str(&code(&fs::read_to_string(&file)?));
    }
    Ok(modules)
}

/// Returns the path of the module that a file below `src` contains; none for the crate's root, `bin`
/// and a name for the root of a program beside it.
fn module_path(file: &str) -> Vec<String> {
    let parts = file.trim_end_matches(".rs").split('/');
    let parts = parts.filter(|part| !["lib", "main", "mod"].contains(part));
    parts.map(str::to_owned).collect()
}

/// Returns true if a module, or one that contains it, is declared for tests alone: its declaration
/// is not in the code of the module above, from which tests were taken out.
fn is_test_only(path: &[String], files: &BTreeMap<Vec<String>, String>) -> bool {
    let roots = if path.first().is_some_and(|first| first == "bin") {
        2
    } else {
        0
    };
    (roots + 1..=path.len()).any(|depth| {
        let declaration = format!("mod {};", path[depth - 1]);
        let above = files.get(&path[..depth - 1]);
        above.is_some_and(|text| !text.contains(&declaration))
    })
}

/// Returns the module from which the root of a crate re-exports each name.
fn exports(root: &str, modules: &BTreeSet<&String>) -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    for (at, _) in root.match_indices("use ") {
        let statement = root[at + 4..].split(';').next().unwrap_or_default();
        let path = statement.trim_start_matches("self::");
        let Some((module, items)) = path.split_once("::") else {
            continue;
        };
        if modules.contains(&module.trim().to_owned()) {
            let names = words(items).filter(|word| !["self", "as", "crate"].contains(word));
            exported.extend(names.map(|name| (name.to_owned(), module.trim().to_owned())));
        }
    }
    exported
}

/// Returns the first names behind the root of the crate of all paths in the code of a module that is
/// `depth` below the root.
fn root_names(text: &str, depth: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for prefix in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in text.match_indices(&prefix) {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            if before.is_alphanumeric() || "_$:".contains(before) {
                continue;
            }
            let rest = text[at + prefix.len()..].trim_start();
            match rest.strip_prefix('{') {
                Some(list) => names.extend(first_names(list)),
                None => names.extend(words(rest).next().map(str::to_owned)),
            }
        }
    }
    names.remove("super");
    names
}

/// Returns the first name of each entry of a list in braces, the first of which is open.
fn first_names(list: &str) -> Vec<String> {
    let (mut depth, mut entry, mut names) = (0, String::new(), Vec::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.extend(words(&std::mem::take(&mut entry)).next().map(str::to_owned))
            }
            _ if depth == 0 => entry.push(c),
            _ => {}
        }
    }
    names.extend(words(&entry).next().map(str::to_owned));
    names
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    parts.filter(|part| !part.is_empty())
}

/// Returns the code of a file without comments, literals, and items for tests alone.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    push_code(text.parse().unwrap_or_default(), &mut code);
    code
}

fn push_code(tokens: TokenStream, code: &mut String) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) => {
                let is_test = |next: &TokenTree| mark.as_char() == '#' && asks_for_tests(next);
                if tokens.peek().is_some_and(is_test) {
                    tokens.find(ends_item);
                } else {
                    code.push(mark.as_char());
                }
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ('{', '}'),
                    Delimiter::Bracket => ('[', ']'),
                    Delimiter::Parenthesis | Delimiter::None => ('(', ')'),
                };
                code.push(open);
                push_code(group.stream(), code);
                code.push(close);
            }
            TokenTree::Ident(name) => {
                if code.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                    code.push(' ');
                }
                code.push_str(&name.to_string());
            }
            TokenTree::Literal(_) => code.push(' '),
        }
    }
}

/// Returns true for the brackets of an attribute `#[cfg(..)]` that asks for tests.
pub(super) fn asks_for_tests(attribute: &TokenTree) -> bool {
    let text = attribute.to_string();
    let has = |name| words(&text).any(|word| word == name);
    words(&text).next() == Some("cfg") && has("test") && !has("not")
}

/// Returns true for the last token of an item or of a field.
pub(super) fn ends_item(token: &TokenTree) -> bool {
    match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(mark) => [';', ','].contains(&mark.as_char()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, depth: usize) -> Vec<String> {
        root_names(&code(text), depth).into_iter().collect()
    }

    #[test]
    fn paths_to_the_root_are_found() {
        let text = "use crate::{a::{self, x}, b, C};\n// crate::comment\n/// [`crate::doc`]\n\
                    fn f() { crate::d::g(\"crate::string\"); $crate::e; super::h::i(); }";
        assert_eq!(names(text, 1), ["C", "a", "b", "d", "h"]);
        assert_eq!(names(text, 2), ["C", "a", "b", "d"]);
        assert_eq!(names("use super::super::a;", 2), ["a"]);
    }

    #[test]
    fn tests_are_left_out() {
        let text = "use crate::a;\n#[cfg(test)]\nuse crate::b;\n#[cfg(not(test))]\nuse crate::c;\n\
                    #[cfg(any(test, feature = \"sim\"))]\nfn f() { crate::d::g('{', \"}\"); }\n\
                    #[cfg(test)]\nmod tests { use crate::e; fn f() {} }\nuse crate::g;";
        assert_eq!(names(text, 1), ["a", "c", "g"]);
    }

    #[test]
    fn re_exports_have_an_owner() {
        let (x, y) = ("x".to_owned(), "y".to_owned());
        let exported = exports(
            "mod x; pub use x::{A, z::B as C}; use y::D;",
            &[&x, &y].into(),
        );
        let owners: Vec<_> = exported.iter().map(|(a, b)| format!("{a}<{b}")).collect();
        assert_eq!(owners, ["A<x", "B<x", "C<x", "D<y", "z<x"]);
    }

    #[test]
    fn cycles_are_found() {
        let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e")];
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry(to.to_owned()).or_default();
            let from = graph.entry(from.to_owned()).or_default();
            from.insert(to.to_owned());
        }
        assert_eq!(cycles(&graph), [["a", "b", "c"].map(str::to_owned).into()]);
    }
}
