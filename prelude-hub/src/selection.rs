//! The files of a model that Prelude reads: never formats other than safetensors, and no copies for
//! other programs.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::{
    Error, Repo,
    listing::{Listing, RemoteFile},
    name::is_safe_path,
};

pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const CONFIG: &str = "config.json";
/// `config.json` of a decision model whose encoder has a folder of its own.
pub(crate) const ENCODER_CONFIG: &str = "encoder/config.json";
/// Configuration and weights of a decision model whose backbone has a folder of its own.
pub(crate) const BACKBONE: [&str; 2] = ["backbone/config.json", "backbone/model.safetensors"];
/// Upper bound in bytes of every file but weights.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 256 << 20;

/// Files that say which model it is, which are fetched before the others.
pub(crate) const JUDGED: [&str; 4] = [CONFIG, "modules.json", ENCODER_CONFIG, BACKBONE[0]];

/// Files that are fetched where a model has them.
const DOCUMENTS: [&str; 11] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
];

/// Files beside a backbone by which a decision model decides.
const OF_DECISIONS: [&str; 12] = [
    ENCODER_CONFIG,
    BACKBONE[0],
    "rl_agent_config.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "decision_config.json",
    "readout.safetensors",
    "head.pt",
    "decision_head.safetensors",
    "calibration.json",
    "score_bias.json",
    "MODEL_MANIFEST.json",
];

/// Files that are fetched where a model has no `tokenizer.json`.
const OTHER_TOKENIZERS: [&str; 8] = [
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tekken.json",
    "tiktoken.model",
];

/// Endings of weights in formats that are not read.
const OTHER_WEIGHTS: [&str; 6] = [".bin", ".gguf", ".pth", ".pt", ".h5", ".onnx"];

/// Returns the files of a model that are fetched first: all but shards.
///
/// # Errors
/// [`Error::NoFile`] without `config.json` or weights, [`Error::TooLarge`].
pub(crate) fn first_files(repo: &Repo, listing: &Listing) -> Result<Vec<RemoteFile>, Error> {
    let has_config = [CONFIG, ENCODER_CONFIG]
        .iter()
        .any(|path| listing.file(path).is_some());
    if !has_config {
        let advice = match listing.file("adapter_config.json") {
            None => "it is not a model in the format of transformers",
            Some(_) => {
                "it is a LoRA adapter; fetch its files with `hf download`, and serve their folder with --base"
            }
        };
        return Err(Error::NoFile {
            repo: repo.clone(),
            file: CONFIG,
            advice: advice.to_owned(),
        });
    }
    // As when a folder is loaded, a single file wins over an index.
    let weights = [WEIGHTS, INDEX, BACKBONE[1]]
        .into_iter()
        .find_map(|path| listing.file(path));
    let Some(weights) = weights else {
        let is_other = |path: &&str| OTHER_WEIGHTS.iter().any(|ending| path.ends_with(ending));
        let found = match listing.paths().find(is_other) {
            Some(path) => format!("it has {path}, a format that is not read; "),
            None => String::new(),
        };
        return Err(Error::NoFile {
            repo: repo.clone(),
            file: "model.safetensors",
            advice: format!("{found}look for a copy of the model in safetensors"),
        });
    };
    let tokenizers = ["tokenizer.json", "tokenizer/tokenizer.json"];
    let has_tokenizer = tokenizers.iter().any(|path| listing.file(path).is_some());
    let is_wanted = |path: &str| {
        DOCUMENTS.contains(&path)
            || OF_DECISIONS.contains(&path)
            || (!has_tokenizer && OTHER_TOKENIZERS.contains(&path))
            || (path.starts_with("additional_chat_templates/") && path.ends_with(".jinja"))
            || is_of_module(path)
    };
    let paths = listing.paths().filter(|path| is_wanted(path));
    let mut files: Vec<RemoteFile> = paths.filter_map(|path| listing.file(path)).collect();
    files.push(weights);
    let is_weights = |file: &RemoteFile| file.path.ends_with(".safetensors");
    match files
        .iter()
        .find(|f| !is_weights(f) && f.size > MAX_DOCUMENT_BYTES)
    {
        Some(file) => Err(Error::TooLarge {
            repo: repo.clone(),
            file: file.path.clone(),
            bytes: file.size,
            limit: MAX_DOCUMENT_BYTES,
        }),
        None => Ok(files),
    }
}

/// Returns true for the configuration and weights of a module of sentence-transformers:
/// `1_Pooling/config.json`, `2_Dense/model.safetensors`.
fn is_of_module(path: &str) -> bool {
    let Some((folder, file)) = path.split_once('/') else {
        return false;
    };
    let number = folder.split_once('_').map_or("", |(number, _)| number);
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number && matches!(file, "config.json" | "model.safetensors")
}

#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

/// Returns the shards that an index names.
///
/// # Errors
/// The fault, in words.
pub(crate) fn shards(index: &[u8], listing: &Listing) -> Result<Vec<RemoteFile>, String> {
    let index: Index = serde_json::from_slice(index).map_err(|e| e.to_string())?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    let shard = |name: &String| {
        let is_shard = is_safe_path(name) && !name.contains('/') && name.ends_with(".safetensors");
        let file = listing.file(name).filter(|_| is_shard);
        file.ok_or_else(|| format!("it names the shard {name:?}, which the model does not have"))
    };
    names.iter().map(shard).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::tests::listing_of;

    fn check(paths: &[&str], expected: Result<&[&str], &str>) {
        let repo: Repo = "a/b".parse().unwrap();
        match (first_files(&repo, &listing_of(paths)), expected) {
            (Ok(files), Ok(expected)) => {
                let got: BTreeSet<&str> = files.iter().map(|f| f.path.as_str()).collect();
                assert_eq!(got, expected.iter().copied().collect(), "{paths:?}");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (got, _) => panic!("{paths:?}: {got:?}"),
        }
    }

    #[test]
    fn only_what_is_read_is_fetched() {
        let model = ["config.json", "model.safetensors", "tokenizer.json"];
        let others = [
            "README.md",
            "pytorch_model.bin",
            "original/consolidated.00.pth",
            "original/params.json",
            "consolidated.safetensors",
            "onnx/model.onnx",
            "onnx/config.json",
            "vocab.json",
            "merges.txt",
            "model.safetensors.index.json",
            "figures/a.png",
        ];
        check(&[&model[..], &others].concat(), Ok(&model));
        let modules = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "modules.json",
            "additional_chat_templates/tool_use.jinja",
            "chat_template.jinja",
        ];
        let all = [&model[..], &modules].concat();
        check(
            &[&all[..], &["2_Dense/pytorch_model.bin"]].concat(),
            Ok(&all),
        );
        let sentencepiece = ["config.json", "model.safetensors", "tokenizer.model"];
        check(&sentencepiece, Ok(&sentencepiece));
        let sharded = ["config.json", "model.safetensors.index.json"];
        check(
            &[&sharded[..], &["model-1.safetensors"]].concat(),
            Ok(&sharded),
        );
    }

    #[test]
    fn models_without_safetensors_are_refused_before_anything_is_fetched() {
        check(&["model.safetensors"], Err("no config.json"));
        check(&["adapter_config.json"], Err("it is a LoRA adapter"));
        check(
            &["config.json", "pytorch_model.bin"],
            Err("it has pytorch_model.bin"),
        );
        check(&["config.json"], Err("no model.safetensors"));
    }

    #[test]
    fn decision_models_have_files_in_folders() {
        let laya = [
            "encoder/config.json",
            "model.safetensors",
            "rl_agent_config.json",
            "tokenizer/tokenizer.json",
            "tokenizer/tokenizer_config.json",
        ];
        let more = ["multilingual/model.safetensors", "README.md", "vocab.txt"];
        check(&[&laya[..], &more].concat(), Ok(&laya));
        let package = [
            "config.json",
            "backbone/config.json",
            "backbone/model.safetensors",
            "decision_head.safetensors",
            "MODEL_MANIFEST.json",
            "tokenizer.json",
        ];
        check(&package, Ok(&package));
    }

    #[test]
    fn shards_are_those_of_the_index() {
        let listing = listing_of(&[
            "m-1.safetensors",
            "m-2.safetensors",
            "o/m.safetensors",
            "x.bin",
        ]);
        let check = |map: &str, expected: Result<usize, &str>| {
            let got = shards(
                format!(r#"{{"weight_map":{{{map}}}}}"#).as_bytes(),
                &listing,
            );
            match (got, expected) {
                (Ok(files), Ok(count)) => assert_eq!(files.len(), count),
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (got, _) => panic!("{map}: {got:?}"),
            }
        };
        check(
            r#""a":"m-1.safetensors","b":"m-2.safetensors","c":"m-1.safetensors""#,
            Ok(2),
        );
        for wrong in [
            "m-3.safetensors",
            "../m-1.safetensors",
            "o/m.safetensors",
            "x.bin",
        ] {
            check(&format!(r#""a":"{wrong}""#), Err("does not have"));
        }
        assert!(shards(b"[]", &listing).is_err());
    }
}
