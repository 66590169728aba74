//! Folders that hold something else than a model of Prelude's, or more than one: each is told for
//! what it is before anything large is read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use prelude_models::{fields, refused_files};
use serde_json::Value;

use super::{LoadError, read};

const CONFIG: &str = "config.json";
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Fields of a table of words' vectors, of which Model2Vec has written neither class nor type.
const TABLE_FIELDS: [&str; 4] = [
    "apply_zipf",
    "sif_coefficient",
    "embedding_dtype",
    "vocabulary_quantization",
];

/// Files of weights that Prelude reads.
const WEIGHTS: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];

/// The advice where files of a decision model are refused.
const PLAIN: &str =
    "--plain, or `plain = true` in the model's settings, serves the backbone without them";

/// Refuses a folder that holds something else than a whole model, and one whose files beside the model
/// would change its answers, unless the plain model is meant.
pub(super) fn check(folder: &Path, is_plain: bool) -> Result<(), LoadError> {
    let has = |file: &str| folder.join(file).exists();
    let has_weights = WEIGHTS.iter().any(|file| has(file));
    let other = |what: String| LoadError::Folder {
        folder: folder.to_owned(),
        what,
    };
    if !is_plain && let Some(what) = refused_files(has) {
        return Err(other(format!("{what}. {PLAIN}")));
    }
    if let Some(base) = adapter(folder)? {
        return Err(other(match has_weights {
            true => beside(&base),
            false => format!(
                "is a LoRA adapter ({ADAPTER_CONFIG}) of {base}, which is no folder here. Name the \
                 base with --base, or as `base` in the settings of the model: a folder, or a name on \
                 the Hugging Face Hub. The adapter is merged into it as it is loaded"
            ),
        }));
    }
    if is_static(folder)? {
        return Err(other(
            "is a static embedding (StaticEmbedding of sentence-transformers, or Model2Vec): a \
             table of words without a transformer, which is not served. Use the model that it was \
             distilled from"
                .to_owned(),
        ));
    }
    if !has_weights && !has("pytorch_model.bin") && (has("model.onnx") || has("onnx/model.onnx")) {
        return Err(other(
            "is an ONNX export. Prelude reads safetensors: serve the model that it was exported from"
                .to_owned(),
        ));
    }
    if !has(CONFIG) && !has_weights && !has("modules.json") {
        let (last, inner) = models_within(folder);
        if let Some(checkpoint) = last {
            return Err(other(format!(
                "is the output of a training: give one of its checkpoints, for example {:?}",
                folder.join(checkpoint)
            )));
        }
        if let Some(inner) = inner {
            return Err(other(format!(
                "has no model of its own, but folders with models: give one of them, for example {:?}",
                folder.join(inner)
            )));
        }
    }
    Ok(())
}

/// Refuses an adapter's folder that holds a whole model, too, or files that would change its answers.
pub(super) fn check_adapter(folder: &Path) -> Result<(), LoadError> {
    let has = |file: &str| folder.join(file).exists();
    let other = match (refused_files(has), adapter(folder)?) {
        (Some(what), _) => what,
        (None, Some(base)) if WEIGHTS.iter().any(|file| has(file)) => beside(&base),
        (None, None) => format!(
            "is no LoRA adapter: it has no {ADAPTER_CONFIG}. --base is for a folder that PEFT wrote"
        ),
        (None, Some(_)) => return Ok(()),
    };
    Err(LoadError::Folder {
        folder: folder.to_owned(),
        what: other,
    })
}

/// Returns what is wrong with an adapter of `base` and a model in one folder.
fn beside(base: &str) -> String {
    format!(
        "has an adapter ({ADAPTER_CONFIG}, of {base}) beside a whole model, and does not say which \
         is meant. Move one of them out of the folder"
    )
}

/// Returns the advice for a folder without `tokenizer.json`: the line that writes it, if the folder has
/// the files of an older tokenizer.
pub(super) fn no_tokenizer(folder: &Path) -> LoadError {
    let has = |file: &str| folder.join(file).exists();
    let sources = [
        ("vocab.txt", has("vocab.txt")),
        (
            "vocab.json and merges.txt",
            has("vocab.json") && has("merges.txt"),
        ),
        ("sentencepiece.bpe.model", has("sentencepiece.bpe.model")),
        ("spiece.model", has("spiece.model")),
        ("tokenizer.model", has("tokenizer.model")),
    ];
    match sources.iter().find(|(_, is_there)| *is_there) {
        None => LoadError::NoFile {
            folder: folder.to_owned(),
            file: "tokenizer.json",
        },
        Some((source, _)) => LoadError::Folder {
            folder: folder.to_owned(),
            what: format!(
                "has no tokenizer.json, but {source}. Write it once, in the folder, with \
                 transformers: python -c \"from transformers import AutoTokenizer as T; \
                 T.from_pretrained('.', use_fast=True).save_pretrained('.')\""
            ),
        },
    }
}

/// Returns the base that an adapter in a folder without a model names, if that is a folder: by its
/// path, or by that from the adapter's own folder.
pub(super) fn base(folder: &Path) -> Result<Option<PathBuf>, LoadError> {
    if WEIGHTS.iter().any(|file| folder.join(file).exists()) {
        return Ok(None);
    }
    let Some(bytes) = read(folder, ADAPTER_CONFIG)? else {
        return Ok(None);
    };
    let config = fields::document(ADAPTER_CONFIG, &bytes)?;
    let named = config
        .get("base_model_name_or_path")
        .and_then(Value::as_str);
    let path = named
        .filter(|name| !name.is_empty())
        .map(|name| folder.join(name));
    Ok(path.filter(|path| path.is_dir()))
}

/// Returns the base of an adapter in a folder, in words; `None` if there is no adapter.
fn adapter(folder: &Path) -> Result<Option<String>, LoadError> {
    let names = [
        ADAPTER_CONFIG,
        "adapter_model.safetensors",
        "adapter_model.bin",
    ];
    if !names.iter().any(|name| folder.join(name).exists()) {
        return Ok(None);
    }
    let base = match read(folder, ADAPTER_CONFIG)? {
        None => None,
        Some(bytes) => {
            let config = fields::document(ADAPTER_CONFIG, &bytes)?;
            let text = |field| config.get(field).and_then(Value::as_str);
            let revision = text("revision").map(|of| format!(" at revision {of:?}"));
            let revision = revision.unwrap_or_default();
            text("base_model_name_or_path").map(|base| format!("{base:?}{revision}"))
        }
    };
    Ok(Some(base.unwrap_or_else(|| "an unnamed base".to_owned())))
}

/// Returns whether a folder holds a table of words' vectors.
fn is_static(folder: &Path) -> Result<bool, LoadError> {
    if let Some(bytes) = read(folder, "modules.json")?
        && let Ok(Value::Array(modules)) = serde_json::from_slice(&bytes)
        && let Some(kind) = modules.first().and_then(|first| first["type"].as_str())
        && (kind.ends_with(".StaticEmbedding") || kind.starts_with("model2vec."))
    {
        return Ok(true);
    }
    let Some(bytes) = read(folder, CONFIG)? else {
        return Ok(false);
    };
    let config = fields::document(CONFIG, &bytes)?;
    let has_class = config.get("architectures").is_some_and(|of| {
        let list = of.as_array().map_or(&[][..], Vec::as_slice);
        list.iter().any(|class| class == "StaticModel")
    });
    let has = |names: &[&str]| names.iter().any(|name| config.contains_key(*name));
    let is_table = has(&TABLE_FIELDS) && !has(&["hidden_size", "model_type", "architectures"]);
    let model_type = config.get("model_type").and_then(Value::as_str);
    Ok(has_class || is_table || model_type == Some("model2vec"))
}

/// Returns the names of two folders with a model inside a folder: the last checkpoint of a training,
/// and the first folder of any name.
fn models_within(folder: &Path) -> (Option<String>, Option<String>) {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let (mut last, mut first) = (None, None);
    for entry in entries.filter_map(Result::ok) {
        let is_model = [CONFIG, ADAPTER_CONFIG]
            .iter()
            .any(|file| entry.path().join(file).exists());
        let Some(name) = entry.file_name().into_string().ok().filter(|_| is_model) else {
            continue;
        };
        let number = name.strip_prefix("checkpoint-");
        if let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) {
            last = last.max(Some((number, name.clone())));
        }
        if first.as_ref().is_none_or(|known| name < *known) {
            first = Some(name);
        }
    }
    (last.map(|(_, name)| name), first)
}
