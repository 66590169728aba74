//! The vocabularies beside the first one, each with rows of its own.
//!
//! A SentencePiece-style BPE vocabulary and small ones of WordPiece and Unigram stand for the other
//! families. Split patterns are compared with one vocabulary, the first one, in a file for each.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

use crate::workloads::{self, Row};

/// A vocabulary and the rows that are measured with it.
pub(crate) struct Vocabulary {
    /// The name in remarks and on the terminal.
    pub(crate) title: String,
    pub(crate) path: PathBuf,
    pub(crate) rows: Vec<Row>,
}

/// The split patterns of models, by name.
const PATTERNS: &str = "fasttoken/tests/data/patterns.json";

/// Returns the vocabularies of the other families. `sentencepiece`, `wordpiece` and `unigram` are
/// files that the user gave.
pub(crate) fn families(
    root: &Path,
    out: &Path,
    [sentencepiece, wordpiece, unigram]: [Option<PathBuf>; 3],
) -> Result<Vec<Vocabulary>> {
    let own = |name: &str| Some(root.join("fasttoken/tests/data").join(name));
    let found = [
        (
            "SentencePiece",
            find_sentencepiece(root, sentencepiece, out),
        ),
        ("WordPiece", wordpiece.or_else(|| own("wordpiece.json"))),
        ("Unigram", unigram.or_else(|| own("unigram.json"))),
    ];
    let mut all = Vec::new();
    for ((title, path), rows) in found.into_iter().zip(workloads::family_rows()) {
        let Some(path) = path else { continue };
        ensure!(path.exists(), "{} is not there", path.display());
        all.push(Vocabulary {
            title: title.to_owned(),
            path,
            rows,
        });
    }
    Ok(all)
}

/// Returns the file for the rows about SentencePiece-style BPE; says so if there is none.
fn find_sentencepiece(root: &Path, given: Option<PathBuf>, out: &Path) -> Option<PathBuf> {
    if given.is_some() {
        return given;
    }
    let shared = root.join("../shared/tokenizers");
    let folders = ["llama2", "mistral"].map(|name| shared.join(name));
    let mut candidates = folders.into_iter().chain([out.join("sentencepiece")]);
    let found = candidates.find_map(|folder| {
        let path = folder.join("tokenizer.json");
        path.exists().then_some(path)
    });
    if found.is_none() {
        println!(
            "SKIP  no SentencePiece-style tokenizer.json; fasttoken/scripts/convert_sentencepiece.py \
             makes one of a tokenizer.model, for --sentencepiece"
        );
    }
    found
}

/// Returns the vocabulary of `tokenizer` with each of the split patterns, written to `scratch`. With
/// an `only`, patterns without a row of that name are left out.
pub(crate) fn patterns(
    root: &Path,
    tokenizer: &Path,
    scratch: &Path,
    only: Option<&str>,
) -> Result<Vec<Vocabulary>> {
    let patterns = fs::read(root.join(PATTERNS)).with_context(|| format!("no {PATTERNS}"))?;
    let patterns: Map<String, Value> = serde_json::from_slice(&patterns)?;
    let mut file = None;
    let mut all = Vec::new();
    for (name, pattern) in &patterns {
        let rows = workloads::pattern_rows(name);
        if only.is_some_and(|only| !rows.iter().any(|row| row.name.contains(only))) {
            continue;
        }
        let file: &mut Value = match &mut file {
            Some(file) => file,
            none => none.insert(serde_json::from_slice(&fs::read(tokenizer)?)?),
        };
        file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]});
        let path = scratch.join(format!("pattern-{name}.json"));
        fs::write(&path, serde_json::to_vec(file)?)?;
        all.push(Vocabulary {
            title: format!("pattern {name}"),
            path,
            rows,
        });
    }
    Ok(all)
}
