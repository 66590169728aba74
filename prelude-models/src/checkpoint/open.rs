//! Opening a checkpoint: its documents and weights are found, checked and put together.

use std::{
    borrow::Cow,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use prelude_core::Pooling;

use super::{
    CONFIG_FILE, Checkpoint, CheckpointFiles,
    adapter::Adapter,
    container, gguf, quantised,
    stored::{Entry, Stored},
    weights::{Bytes, SINGLE_FILE, Weights},
};
use crate::{
    DType, DenseConfig, Error, GenerationConfig, LogitScore, ModelConfig, ModelKind, TensorView,
    config::Companions,
    decision::{DecisionFiles, HeadTensors, NamedTensor, widened},
    json,
    modules::{DenseDocument, MODULES, Modules},
    tensors,
};

impl Checkpoint {
    /// Opens the checkpoint in `folder` and checks every header and configuration file. A folder
    /// without `config.json` may hold one GGUF file instead ([`Checkpoint::open_gguf`]).
    ///
    /// The files are mapped into memory: they must not be truncated or rewritten while the
    /// checkpoint is open. (Replacing them by renaming others into place is fine.)
    ///
    /// # Errors
    /// Anything in [`Error`] except [`Error::Tensors`], [`Error::NotFinite`] and
    /// [`Error::Loader`], which are found when a model is loaded.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        match DecisionFiles::find(folder)? {
            Some(files) => Self::open_decision(&files),
            None => Self::open_plain(folder),
        }
    }

    /// Opens the checkpoint in `folder` as [`Checkpoint::open`] does, without looking at files by which
    /// a decision model decides: what is served is the backbone alone.
    ///
    /// # Errors
    /// As of [`Checkpoint::open`].
    pub fn open_plain(folder: &Path) -> Result<Self, Error> {
        Self::open_with(folder, Some(folder), None, None)
    }

    /// Opens a LoRA adapter as PEFT saves it, merged into the checkpoint `base`: [`Checkpoint::read`]
    /// computes each matrix that the adapter changes in f32, `W + s·B·A`, and modules that the adapter
    /// replaces whole are its own. An adapter of a classifier makes the base one.
    ///
    /// The files of pooling and of other modules are the adapter's if its folder has a `modules.json`, else
    /// the base's. A decision model's head may lie beside the adapter.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::open`]; [`Error::Unsupported`] naming a field of
    /// `adapter_config.json` for what would not be merged exactly; [`Error::Tensors`] naming tensors of
    /// the adapter that the base has no place for, or in another shape.
    pub fn open_adapter(adapter: &Path, base: &Path) -> Result<Self, Error> {
        let opened = Adapter::open(adapter)?;
        let beside = match opened.has_modules {
            true => Some(adapter),
            false => Some(base).filter(|_| !opened.is_classifier()),
        };
        let decision = DecisionFiles::find(adapter)?;
        if let Some(files) = &decision {
            files.check_beside_adapter()?;
        }
        Self::open_with(base, beside, Some(opened), decision.as_ref())
    }

    /// Opens the checkpoint in `folder` with the modules that the folder `beside` names.
    fn open_with(
        folder: &Path,
        beside: Option<&Path>,
        adapter: Option<Adapter>,
        decision: Option<&DecisionFiles>,
    ) -> Result<Self, Error> {
        let document = |file: &str| match beside {
            Some(folder) => json::read(&folder.join(file)),
            None => Ok(None),
        };
        let modules = document(MODULES)?;
        let named = modules.as_deref().map(Modules::find).transpose()?;
        let named = named.unwrap_or_default();
        let body = match beside == Some(folder) {
            true => body_of(folder, &named),
            false => Self::body_folder(folder)?,
        };
        if !body.join(CONFIG_FILE).exists()
            && let Some(path) = gguf::only_file(folder)
        {
            return match adapter {
                None => Self::open_gguf(&path),
                Some(_) => Err(Error::Unsupported {
                    file: path.display().to_string(),
                    what: "an adapter of a GGUF file".to_owned(),
                }),
            };
        }
        let mut config = required(&body.join(CONFIG_FILE))?;
        if let Some(adapter) = &adapter {
            config = adapter.configured(config)?;
        }
        let generation = json::read(&body.join("generation_config.json"))?;
        let pooling = document("1_Pooling/config.json")?;
        let normalize = match &named.normalize {
            Some(name) => document(&format!("{name}/config.json"))?,
            None => None,
        };
        let logit_score = document("1_LogitScore/config.json")?;
        let mut weights = Weights::open(&body)?;
        let mut dense = Vec::new();
        let folder = beside.unwrap_or(folder);
        for name in named.dense {
            let config = required(&folder.join(&name).join("config.json"))?;
            weights.add_dense(folder, &name)?;
            dense.push(DenseDocument {
                folder: name,
                config,
            });
        }
        weights.adapter = adapter;
        Self::assemble(
            CONFIG_FILE,
            &Companions {
                config: &config,
                generation: generation.as_deref(),
                modules: modules.as_deref(),
                pooling: pooling.as_deref(),
                normalize: normalize.as_deref(),
                dense: &dense,
                logit_score: logit_score.as_deref(),
            },
            weights,
            decision.map(|files| (files, HeadTensors::new(SINGLE_FILE, []))),
        )
    }

    /// Returns the folder of the model's own files: the checkpoint's, unless its `modules.json` names
    /// another one within, such as `0_Transformer`.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Json`] of `modules.json`.
    pub fn body_folder(folder: &Path) -> Result<PathBuf, Error> {
        let modules = json::read(&folder.join(MODULES))?;
        let named = modules.as_deref().map(Modules::find).transpose()?;
        Ok(body_of(folder, &named.unwrap_or_default()))
    }

    /// Opens a decision model: a body, and what its format's files say.
    fn open_decision(files: &DecisionFiles) -> Result<Self, Error> {
        let config = required(&files.config.join(CONFIG_FILE))?;
        let mut weights = Weights::open(&files.weights)?;
        let of_head = weights.take_head(files)?;
        let documents = Companions {
            config: &config,
            ..Companions::default()
        };
        Self::assemble(CONFIG_FILE, &documents, weights, Some((files, of_head)))
    }

    /// Returns the folder with the tokenizer's files of a decision model; `None` for other folders.
    ///
    /// # Errors
    /// [`Error::Decision`] for files of a decision model whose format is not served.
    pub fn decision_tokenizer(folder: &Path) -> Result<Option<PathBuf>, Error> {
        Ok(DecisionFiles::find(folder)?.map(|files| files.tokenizer))
    }

    /// Returns a checkpoint whose files are in memory.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::open`].
    pub fn from_files(files: CheckpointFiles<'_>) -> Result<Self, Error> {
        let mut weights = Weights::default();
        weights.add(("", SINGLE_FILE.to_owned()), Bytes::Memory(files.weights))?;
        let mut dense = Vec::new();
        for module in files.dense {
            let folder = module.folder.to_owned();
            let (prefix, name) = (format!("{folder}/"), format!("{folder}/{SINGLE_FILE}"));
            let bytes = Bytes::Memory(module.weights);
            weights.add((&prefix, name), bytes)?;
            let config = module.config.to_vec();
            dense.push(DenseDocument { folder, config });
        }
        Self::assemble(
            CONFIG_FILE,
            &Companions {
                config: files.config,
                generation: files.generation_config,
                modules: files.modules,
                pooling: files.pooling,
                normalize: files.normalize,
                dense: &dense,
                logit_score: files.logit_score,
            },
            weights,
            None,
        )
    }

    /// Returns a checkpoint of `config.json` and `model.safetensors` alone, in memory.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::open`].
    pub fn from_bytes(
        config_json: &[u8],
        safetensors: impl Into<Cow<'static, [u8]>>,
    ) -> Result<Self, Error> {
        Self::from_files(CheckpointFiles {
            config: config_json,
            weights: safetensors.into(),
            ..CheckpointFiles::default()
        })
    }

    /// Puts a checkpoint together, whose `config.json` has the name `file` in messages.
    pub(super) fn assemble(
        file: &str,
        documents: &Companions<'_>,
        mut weights: Weights,
        decision: Option<(&DecisionFiles, HeadTensors)>,
    ) -> Result<Self, Error> {
        let mut config = ModelConfig::from_json(file, documents.config)?;
        let mut adapter = weights.adapter.take();
        if let Some(adapter) = &mut adapter {
            adapter.replace(&mut config, &mut weights);
        }
        let Weights {
            files, mut tensors, ..
        } = weights;
        let decision =
            decision.map(|(files, of_head)| files.read(&mut config, of_head, head_tensors));
        let decision = decision.transpose()?.map(Arc::new);
        let generation = GenerationConfig::from_documents(&config, documents.generation)?;
        let bare = !tensors.contains_key("model.embed_tokens.weight")
            && tensors.contains_key("embed_tokens.weight");
        let mut warnings = config.warnings.clone();
        warnings.extend_from_slice(&generation.warnings);
        let kind = match &decision {
            // The head reads the body's states as they are.
            Some(_) => ModelKind::Embedding {
                pooling: Pooling::Last,
                normalise: false,
            },
            None => ModelKind::of(&config, documents, bare, &mut warnings)?,
        };
        let logit_score = LogitScore::of(&config, documents, &mut warnings)?;
        if matches!(kind, ModelKind::Embedding { .. }) {
            let width = config.hidden_size;
            config.dense = DenseConfig::read_all(documents.dense, width, &mut warnings)?;
        }
        let contains = |name: &str| tensors.contains_key(name);
        let shapes = tensors::read_by(&config, &kind, contains)?;
        let embeds = matches!(kind, ModelKind::Embedding { .. }) && decision.is_none();
        let is_unread = |name: &str| config.family.is_unread(name, embeds);
        tensors.retain(|name, _| shapes.contains_key(name) || !is_unread(name));
        if let Some(form) = config.fp8 {
            let dtype = config.dtype.unwrap_or(DType::Bf16);
            quantised::attach_scales(form, dtype, &files, &mut tensors)?;
        }
        let mut checkpoint = Self {
            config,
            generation,
            kind,
            logit_score,
            decision,
            warnings,
            chat_template: None,
            files,
            tensors,
            shapes,
        };
        match adapter {
            None => Ok(checkpoint),
            Some(adapter) => adapter.merge(&mut checkpoint).map(|()| checkpoint),
        }
    }
}

/// Returns the tensors of a safetensors file, widened to f32, whose name in messages is `file`.
fn head_tensors(file: &str, bytes: &[u8]) -> Result<Vec<NamedTensor>, Error> {
    let tensor = |entry: Entry| match entry.dtype {
        Stored::Float(dtype) => {
            let view = TensorView {
                dtype,
                shape: entry.shape.clone(),
                bytes: &bytes[entry.bytes],
            };
            Ok((entry.name, entry.shape, widened(&view)))
        }
        other => Err(Error::DType {
            file: file.to_owned(),
            tensor: entry.name,
            dtype: other.name().to_owned(),
        }),
    };
    let entries = container::parse(file, bytes)?;
    entries.into_iter().map(tensor).collect()
}

fn body_of(folder: &Path, modules: &Modules) -> PathBuf {
    match &modules.body {
        Some(body) => folder.join(body),
        None => folder.to_owned(),
    }
}

pub(super) fn required(path: &Path) -> Result<Vec<u8>, Error> {
    json::read(path)?.ok_or_else(|| Error::Io {
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::NotFound, "there is no such file"),
    })
}
