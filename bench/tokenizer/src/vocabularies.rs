//! The vocabularies beside the first one, each with rows of its own.
//!
//! A SentencePiece-style BPE vocabulary and small ones of WordPiece and Unigram stand for the other
//! families; small SentencePiece `.model` files and files of ranks for the other formats. Split patterns are compared with one vocabulary, the first one, in a file for each.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

use crate::{
    engines::Who,
    workloads::{self, Part, Row},
};

/// A vocabulary and the rows that are measured with it.
pub(crate) struct Vocabulary {
    /// The name in remarks and on the terminal.
    pub(crate) title: String,
    pub(crate) path: PathBuf,
    /// The engine whose ids are right.
    pub(crate) reference: Who,
    pub(crate) rows: Vec<Row>,
}

/// The split patterns of models, by name.
const PATTERNS: &str = "fasttoken/tests/data/patterns.json";

/// The files of the other families that the user gave.
pub(crate) struct Given {
    pub(crate) sentencepiece: Option<PathBuf>,
    pub(crate) wordpiece: Option<PathBuf>,
    pub(crate) unigram: Option<PathBuf>,
    /// A SentencePiece `.model` file.
    pub(crate) model: Option<PathBuf>,
    /// A `*.tiktoken` file, which gets the pattern of cl100k, or a `tekken.json`.
    pub(crate) ranks: Option<PathBuf>,
}

/// Returns the vocabularies of the other families and formats.
pub(crate) fn families(root: &Path, out: &Path, given: Given) -> Result<Vec<Vocabulary>> {
    let own = |name: &str| Some(root.join("fasttoken/tests/data").join(name));
    let sentencepiece = find_sentencepiece(root, given.sentencepiece, out);
    let mut found = vec![
        ("SentencePiece", Part::SentencePiece, sentencepiece),
        (
            "WordPiece",
            Part::WordPiece,
            given.wordpiece.or_else(|| own("wordpiece.json")),
        ),
        (
            "Unigram",
            Part::Unigram,
            given.unigram.or_else(|| own("unigram.json")),
        ),
    ];
    found.extend(match given.model {
        None => vec![
            (".model BPE", Part::Models, own("spm/bpe-bytes.model")),
            (".model Unigram", Part::Models, own("spm/unigram.model")),
        ],
        some => vec![(".model", Part::Models, some)],
    });
    found.extend(match given.ranks {
        None => vec![
            ("tiktoken", Part::Ranks, own("small.tiktoken")),
            ("tekken", Part::Ranks, own("tekken.json")),
        ],
        some => vec![("ranks", Part::Ranks, some)],
    });
    let mut all = Vec::new();
    for (title, part, path) in found {
        let Some(path) = path else { continue };
        ensure!(path.exists(), "{} is not there", path.display());
        let reference = match part {
            Part::Models => Who::Sentencepiece,
            Part::Ranks => Who::Tiktoken,
            _ => Who::Tokenizers,
        };
        all.push(Vocabulary {
            title: title.to_owned(),
            path,
            reference,
            rows: workloads::family_rows(title, part, reference),
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
            reference: Who::Tokenizers,
            rows,
        });
    }
    Ok(all)
}
