//! Finds functions that do not fit on a screen.

use std::fs;

use anyhow::Result;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{
    crates,
    cycles::{asks_for_tests, ends_item, product_files},
    relative,
};
use crate::{metadata::Metadata, run};

/// Upper bound of a function's lines, from `fn` to its last brace.
const MAX_LINES: usize = 80;

/// Upper bound of the lines of nineteen in twenty functions of a crate.
const MAX_LINES_P95: usize = 45;

/// A function outside tests.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    lines: usize,
    name: String,
    at: usize,
}

/// Adds a fault for each function, and for each crate, over its bound.
pub(super) fn check(metadata: &Metadata, faults: &mut Vec<String>) -> Result<()> {
    for (name, folder) in crates(metadata) {
        let mut lengths = Vec::new();
        for file in product_files(&folder.join("src"))? {
            let file_name = relative(&run::root(), &file);
            for function in functions(&fs::read_to_string(&file)?) {
                let Function { lines, name, at } = &function;
                if *lines > MAX_LINES {
                    faults.push(format!(
                        "{file_name}:{at}: `{name}` has {lines} lines, more than {MAX_LINES}"
                    ));
                }
                lengths.push(function.lines);
            }
        }
        lengths.sort_unstable();
        let p95 = lengths.get(lengths.len() * 19 / 20).copied();
        if let Some(lines) = p95.filter(|&lines| lines > MAX_LINES_P95) {
            faults.push(format!(
                "{name}: one in twenty functions has {lines} lines or more, not {MAX_LINES_P95}"
            ));
        }
    }
    Ok(())
}

/// Returns the functions of a file that have a body, those inside others too, tests left out.
fn functions(text: &str) -> Vec<Function> {
    let mut found = Vec::new();
    push_functions(text.parse().unwrap_or_default(), &mut found);
    found
}

fn push_functions(tokens: TokenStream, found: &mut Vec<Function>) {
    let mut tokens = tokens.into_iter().peekable();
    // The function whose body has not come yet.
    let mut open: Option<(String, usize)> = None;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) => match mark.as_char() {
                '#' if tokens.peek().is_some_and(asks_for_tests) => {
                    tokens.find(ends_item);
                }
                // A function without a body.
                ';' => open = None,
                _ => {}
            },
            TokenTree::Ident(word) if word == "fn" => {
                let line = word.span().start().line;
                if let Some(TokenTree::Ident(name)) = tokens.peek() {
                    open = Some((name.to_string(), line));
                }
            }
            TokenTree::Group(group) => {
                if group.delimiter() == Delimiter::Brace
                    && let Some((name, at)) = open.take()
                {
                    let lines = group.span_close().end().line + 1 - at;
                    found.push(Function { lines, name, at });
                }
                push_functions(group.stream(), found);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_from_fn_to_the_last_brace() {
        let text = "const fn a<A, B>(x: [u8; 3]) -> u8 {\n    0\n}\ntrait T {\n    fn b(&self);\n    fn c(\n        &self,\n    ) {\n                            fn d() {}\n    }\n}\n#[cfg(test)]\nmod tests { fn e() {} }\nstatic F: fn(u8) = g;\nstruct S { x: u8 }\n";
        let found = functions(text);
        let found: Vec<_> = found.iter().map(|f| (&*f.name, f.lines, f.at)).collect();
        assert_eq!(found, [("a", 3, 1), ("c", 5, 6), ("d", 1, 9)]);
    }
}
