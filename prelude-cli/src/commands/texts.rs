//! Texts of one-shot commands: arguments, or lines of a file or of standard input.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal as _},
    path::Path,
};

use serde_json::Value;

use super::{Code, Failure};
use crate::args::TextArgs;

/// Reads all texts. None at all is an error that says what to give.
pub(crate) fn read(args: &TextArgs) -> Result<Vec<String>, Failure> {
    if !args.texts.is_empty() {
        if let Some(folder) = args.texts.iter().find(|text| is_model(text)) {
            let message = format!(
                "{folder:?} is a model's folder, and texts are expected here; name the model \
                 with -m: -m {folder} TEXT"
            );
            return Err(Failure::new(Code::Usage, message));
        }
        return Ok(args.texts.clone());
    }
    let texts = match &args.input {
        Some(path) => {
            let file = File::open(path).map_err(|e| {
                Failure::new(
                    Code::Usage,
                    format_args!("cannot read {}: {e}", path.display()),
                )
            })?;
            lines(BufReader::new(file), args.jsonl)?
        }
        None if io::stdin().is_terminal() => Vec::new(),
        None => lines(io::stdin().lock(), args.jsonl)?,
    };
    if texts.is_empty() {
        let message = "no texts; give some as arguments, --input FILE, or lines on standard input";
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(texts)
}

/// Returns whether a text is the path of a model's folder. `prelude serve` takes such a path as its
/// argument, so people expect that this command does too.
fn is_model(text: &str) -> bool {
    Path::new(text).join("config.json").is_file()
}

fn lines(reader: impl BufRead, jsonl: bool) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    for (number, line) in reader.lines().enumerate() {
        let wrong =
            |why: &str| Failure::new(Code::Usage, format_args!("line {}: {why}", number + 1));
        let line = line.map_err(|e| wrong(&e.to_string()))?;
        if !jsonl {
            texts.push(line);
        } else if !line.trim().is_empty() {
            let text = match serde_json::from_str(&line) {
                Ok(Value::String(text)) => Some(text),
                Ok(Value::Object(fields)) => fields
                    .get("text")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
                _ => None,
            };
            texts.push(
                text.ok_or_else(|| wrong("neither a JSON string nor an object with a text"))?,
            );
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, jsonl: bool, expected: Result<&[&str], &str>) {
        let found = lines(input.as_bytes(), jsonl);
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{input}"),
            (Err(found), Err(part)) => assert!(found.to_string().contains(part), "{found}"),
            (found, _) => panic!("{input}: {found:?}"),
        }
    }

    #[test]
    fn lines_and_json_lines() {
        check("a\nb c\n", false, Ok(&["a", "b c"]));
        check("a\n\nb", false, Ok(&["a", "", "b"]));
        check(
            "\"a\\nb\"\n\n{\"text\":\"c\",\"id\":1}\n",
            true,
            Ok(&["a\nb", "c"]),
        );
        check("\"a\"\n3\n", true, Err("line 2"));
        check("a", true, Err("line 1"));
    }
}
