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
    workloads::{self, Row},
};

/// A vocabulary and the rows that are measured with it.
pub(crate) struct Vocabulary {
    /// The name in remarks and on the terminal.
    pub(crate) title: String,
    pub(crate) path: PathBuf,
    /// The title of the part of the table.
    pub(crate) part: &'static str,
    /// The engine whose ids are right.
    pub(crate) reference: Who,
    pub(crate) rows: Vec<Row>,
}

/// The split patterns of models, by name.
const PATTERNS: &str = "fasttoken/tests/data/patterns.json";

/// The files of the other families that the user gave.
#[derive(clap::Args)]
pub(crate) struct Given {
    /// The tokenizer.json of a SentencePiece-style model for the rows about these; by default
    /// one beside the checkout or in the output folder.
    #[arg(long)]
    sentencepiece: Option<PathBuf>,
    /// The tokenizer.json of a WordPiece model for the rows about these; by default the small one
    /// of fasttoken's tests.
    #[arg(long)]
    wordpiece: Option<PathBuf>,
    /// The tokenizer.json of a Unigram model for the rows about these; by default the small one of
    /// fasttoken's tests.
    #[arg(long)]
    unigram: Option<PathBuf>,
    /// The SentencePiece .model file for the rows about these; by default two small ones of
    /// fasttoken's tests.
    #[arg(long)]
    model: Option<PathBuf>,
    /// The file of ranks for the rows about these: a *.tiktoken file, which gets the pattern of
    /// cl100k, or a tekken.json; by default small ones of fasttoken's tests.
    #[arg(long)]
    ranks: Option<PathBuf>,
}

/// Returns the vocabularies of the other families and formats.
pub(crate) fn families(root: &Path, out: &Path, given: &Given) -> Result<Vec<Vocabulary>> {
    const MODELS: &str = "SentencePiece `.model` files";
    const RANKS: &str = "Files of ranks: tiktoken and tekken";
    let own = |name: &str| Some(root.join("fasttoken/tests/data").join(name));
    let or = |given: &Option<PathBuf>, name: &str| given.clone().or_else(|| own(name));
    let spm = find_sentencepiece(root, given.sentencepiece.clone(), out);
    let byte_fallback = "SentencePiece-style BPE with byte fallback";
    let mut found = vec![
        ("SentencePiece", byte_fallback, spm),
        (
            "WordPiece",
            "WordPiece",
            or(&given.wordpiece, "wordpiece.json"),
        ),
        ("Unigram", "Unigram", or(&given.unigram, "unigram.json")),
    ];
    found.extend(match &given.model {
        None => vec![
            (".model BPE", MODELS, own("spm/bpe-bytes.model")),
            (".model Unigram", MODELS, own("spm/unigram.model")),
        ],
        some => vec![(".model", MODELS, some.clone())],
    });
    found.extend(match &given.ranks {
        None => vec![
            ("tiktoken", RANKS, own("small.tiktoken")),
            ("tekken", RANKS, own("tekken.json")),
        ],
        some => vec![("ranks", RANKS, some.clone())],
    });
    let mut all = Vec::new();
    for (title, part, path) in found {
        let Some(path) = path else { continue };
        ensure!(path.exists(), "{} is not there", path.display());
        let (reference, rows) = match part {
            MODELS => (Who::Sentencepiece, "models"),
            RANKS => (Who::Tiktoken, "ranks"),
            _ => (Who::Tokenizers, "family"),
        };
        all.push(Vocabulary {
            title: title.to_owned(),
            path,
            part,
            reference,
            rows: workloads::rows(rows, title),
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
        let title = format!("pattern {name}");
        let rows = workloads::rows("patterns", &title);
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
            title,
            path,
            part: "Split patterns of other models, with the first vocabulary",
            reference: Who::Tokenizers,
            rows,
        });
    }
    Ok(all)
}
