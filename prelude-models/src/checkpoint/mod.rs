//! Checkpoints in the Hugging Face layout: `config.json` and one or several safetensors files.

mod adapter;
mod container;
mod gguf;
mod index;
mod map;
mod merged;
mod quantised;
mod stored;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, btree_map},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use prelude_core::Pooling;

use self::{
    adapter::Adapter,
    stored::{Entry, Stored},
};
use crate::{
    DType, Decision, DenseConfig, Error, Fp8Matrix, GenerationConfig, LogitScore, ModelConfig,
    ModelKind, Tensor, TensorView,
    config::Companions,
    decision::{DecisionFiles, HeadTensors, NamedTensor, widened},
    error::{TensorDefects, first_few},
    json,
    modules::{DenseDocument, MODULES, Modules},
    tensors::{self, Shapes},
};

const CONFIG_FILE: &str = "config.json";
const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Weights as PyTorch pickles them, and the advice where there are no others.
const PICKLED: &str = "pytorch_model.bin";
const CONVERT: &str = "Prelude reads safetensors. Convert pytorch_model.bin once, in the folder: \
     python -c \"import torch, safetensors.torch as s; s.save_file({k: v.clone().contiguous() for k, v in \
     torch.load('pytorch_model.bin', map_location='cpu', weights_only=True).items()}, \
     'model.safetensors', {'format': 'pt'})\"";

/// A model on disk or in memory: its configuration and its tensors, checked but not converted.
///
/// Opening reads headers only; weights are paged in as an executor converts them, and given back
/// ([`Checkpoint::release`]) tensor by tensor.
///
/// ```no_run
/// let checkpoint = prelude_models::Checkpoint::open("Qwen3-0.6B".as_ref())?;
/// let norm = checkpoint.tensor("model.norm.weight")?;
/// assert_eq!(norm.shape, [checkpoint.config().hidden_size]);
/// # Ok::<(), prelude_models::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    config: ModelConfig,
    generation: GenerationConfig,
    kind: ModelKind,
    logit_score: Option<LogitScore>,
    decision: Option<Arc<Decision>>,
    warnings: Vec<String>,
    chat_template: Option<String>,
    files: Vec<WeightFile>,
    /// The tensors, without those that the family does not read.
    tensors: Tensors,
    /// Names and shapes of the tensors that the model reads.
    shapes: Shapes,
}

/// Tensors by name: the number of the file that holds one, and its entry there.
type Tensors = BTreeMap<String, (usize, Entry)>;

/// The files of weights, and the tensors in them.
#[derive(Default)]
struct Weights {
    files: Vec<WeightFile>,
    tensors: Tensors,
    /// The adapter that is to be merged into them.
    adapter: Option<Adapter>,
}

#[derive(Debug)]
struct WeightFile {
    name: String,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped {
        map: memmap2::Mmap,
        identity: FileIdentity,
    },
    Memory(Cow<'static, [u8]>),
}

impl Bytes {
    /// Maps a file, and notes which one it is.
    fn mapped(path: &Path) -> Result<Self, Error> {
        let mapped = FileIdentity::of(path).and_then(|of| Ok((of, map::map(path)?)));
        let (identity, map) = mapped.map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::Mapped { map, identity })
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped { map, .. } => map,
            Self::Memory(bytes) => bytes,
        }
    }
}

/// A file as the system tells it from others and from its own earlier content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The path, links resolved.
    pub path: PathBuf,
    /// The length in bytes.
    pub bytes: u64,
    /// The time of the last change.
    pub modified: SystemTime,
}

impl FileIdentity {
    fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let metadata = path.metadata()?;
        Ok(Self {
            path,
            bytes: metadata.len(),
            modified: metadata.modified()?,
        })
    }
}

/// The files of a checkpoint that is embedded in a program or otherwise in memory.
#[derive(Clone, Debug, Default)]
pub struct CheckpointFiles<'a> {
    /// `config.json`.
    pub config: &'a [u8],
    /// `generation_config.json`, if there is one.
    pub generation_config: Option<&'a [u8]>,
    /// `modules.json`, which marks an embedding model or a cross-encoder.
    pub modules: Option<&'a [u8]>,
    /// `1_Pooling/config.json`.
    pub pooling: Option<&'a [u8]>,
    /// `config.json` of the module `Normalize`, if there is one.
    pub normalize: Option<&'a [u8]>,
    /// The files of the modules `Dense`, in the order of `modules.json`.
    pub dense: Vec<DenseFiles<'a>>,
    /// `1_LogitScore/config.json`.
    pub logit_score: Option<&'a [u8]>,
    /// `model.safetensors`.
    pub weights: Cow<'static, [u8]>,
}

/// The files of a module `Dense` in memory.
#[derive(Clone, Debug)]
pub struct DenseFiles<'a> {
    /// Name of the module's folder.
    pub folder: &'a str,
    /// `config.json`.
    pub config: &'a [u8],
    /// `model.safetensors`.
    pub weights: Cow<'static, [u8]>,
}

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
    fn assemble(
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

    /// Returns the checked content of `config.json`.
    #[must_use]
    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the end tokens and sampling defaults.
    #[must_use]
    pub const fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// Returns the purpose of the model.
    #[must_use]
    pub const fn kind(&self) -> &ModelKind {
        &self.kind
    }

    /// Returns the tokens whose logits are the score of a text, if the files say that the language
    /// model is a cross-encoder.
    #[must_use]
    pub const fn logit_score(&self) -> Option<LogitScore> {
        self.logit_score
    }

    /// Returns what makes the model a decision model, if it is one.
    #[must_use]
    pub const fn decision(&self) -> Option<&Arc<Decision>> {
        self.decision.as_ref()
    }

    /// Notes for the operator: fields of the files that are passed over.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the source of the chat template in a GGUF file. Other checkpoints have theirs beside the
    /// weights.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Returns the names of all tensors, sorted. Those that the architecture is known not to read,
    /// such as buffers of integers that old releases of transformers saved, are not among them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the names and shapes of the tensors that the architecture reads, sorted, whether or not
    /// the files have them.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        { self.shapes.iter() }.map(|(name, shape)| (name.as_str(), shape.as_slice()))
    }

    /// Returns true if a tensor of this name exists.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the bytes of the tensors that are read, in the dtypes in which the checkpoint stores them.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.tensors.values().map(|(_, e)| e.bytes.len()).sum()
    }

    /// Returns the tensor `name`, borrowed: one that is not stored in a form that is widened.
    ///
    /// # Errors
    /// [`Error::NoTensor`]; [`Error::DType`] if it is not bf16, f16 or f32.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let (file, entry) = self.entry(name)?;
        match &entry.dtype {
            Stored::Float(dtype) if entry.paired_rows.is_none() => Ok(TensorView {
                dtype: *dtype,
                shape: entry.shape.clone(),
                bytes: &file.bytes[entry.bytes.clone()],
            }),
            other => Err(Error::DType {
                file: file.name.clone(),
                tensor: name.to_owned(),
                dtype: other.name().to_owned(),
            }),
        }
    }

    /// Returns the tensor `name`, widened if it is stored in such a form, and with an adapter's product
    /// added if there is one. Then it is computed anew at each call.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::tensor`].
    pub fn read(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let (_, entry) = self.entry(name)?;
        let Stored::Merged(merged) = &entry.dtype else {
            return self.read_as(name, &entry.dtype);
        };
        let base = self.read_as(name, &merged.base)?;
        let mut values = Vec::with_capacity(base.view().len());
        base.view().read_f32(0..base.view().len(), &mut values);
        let columns = base.shape.last().copied().unwrap_or(0);
        merged.add(&self.files, columns, &mut values);
        let mut bytes = vec![0; values.len() * DType::F32.size()];
        quantised::write(values.into_iter(), DType::F32, &mut bytes);
        Ok(Tensor {
            dtype: DType::F32,
            shape: base.shape,
            bytes: Cow::Owned(bytes),
        })
    }

    /// Returns a tensor whose bytes are of the type `stored`.
    fn read_as(&self, name: &str, stored: &Stored) -> Result<Tensor<'_>, Error> {
        let (file, entry) = self.entry(name)?;
        let mut bytes = Cow::Borrowed(&file.bytes[entry.bytes.clone()]);
        if let Some(rows) = entry.paired_rows {
            bytes = Cow::Owned(quantised::unpaired(&bytes, &entry.shape, rows));
        }
        let dtype = match stored {
            Stored::Float(dtype) => *dtype,
            Stored::Quantised(quantised) => {
                bytes = Cow::Owned(quantised.widen(&self.files, &entry.shape, &bytes));
                quantised.dtype
            }
            Stored::Merged(_) | Stored::Other(_) => return self.tensor(name).map(Tensor::from),
        };
        Ok(Tensor {
            dtype,
            shape: entry.shape.clone(),
            bytes,
        })
    }

    /// Returns the matrix `name` as it is stored, if that is in fp8.
    #[must_use]
    pub fn fp8(&self, name: &str) -> Option<Fp8Matrix<'_>> {
        let (file, entry) = self.tensors.get(name)?;
        let (Stored::Quantised(quantised), &[rows, columns]) = (&entry.dtype, &entry.shape[..])
        else {
            return None;
        };
        let (scales, block) = quantised.scales(&self.files)?;
        Some(Fp8Matrix {
            shape: [rows, columns],
            block,
            data: &self.files[*file].bytes[entry.bytes.clone()],
            scales,
        })
    }

    /// Returns the element type and the shape that [`Checkpoint::read`] gives of a tensor; `None` if
    /// it cannot be read.
    #[must_use]
    pub fn form(&self, name: &str) -> Option<(DType, &[usize])> {
        let (_, entry) = self.tensors.get(name)?;
        let dtype = match &entry.dtype {
            Stored::Float(dtype) => *dtype,
            Stored::Quantised(quantised) => quantised.dtype,
            Stored::Merged(_) => DType::F32,
            Stored::Other(_) => return None,
        };
        Some((dtype, &entry.shape))
    }

    /// Returns all that a tensor's numbers follow from: its bytes in its file, and behind them the
    /// factor and the two matrices that an adapter adds to it, if there is one. Empty for a tensor that
    /// is not there.
    #[must_use]
    pub fn stored_parts(&self, name: &str) -> Vec<&[u8]> {
        let Some((file, entry)) = self.tensors.get(name) else {
            return Vec::new();
        };
        let mut parts = vec![&self.files[*file].bytes[entry.bytes.clone()]];
        if let Stored::Merged(merged) = &entry.dtype {
            parts.push(&merged.scale);
            parts.extend(merged.factor_bytes(&self.files));
        }
        parts
    }

    fn entry(&self, name: &str) -> Result<(&WeightFile, &Entry), Error> {
        let found = self.tensors.get(name);
        let (file, entry) = found.ok_or_else(|| Error::NoTensor(name.to_owned()))?;
        Ok((&self.files[*file], entry))
    }

    /// Returns the identities of the files that hold the tensors; `None` if one was given in memory.
    #[must_use]
    pub fn weight_files(&self) -> Option<Vec<&FileIdentity>> {
        let identities = self.files.iter().map(|file| match &file.bytes {
            Bytes::Mapped { identity, .. } => Some(identity),
            Bytes::Memory(_) => None,
        });
        identities.collect()
    }

    /// Gives the memory back into which the tensor's bytes were read from its file. Reading the
    /// tensor again is right, and reads the file again. Does nothing for a tensor that is not there
    /// or whose file was given in memory.
    pub fn release(&self, name: &str) {
        if let Some((file, entry)) = self.tensors.get(name)
            && let Bytes::Mapped { map, .. } = &self.files[*file].bytes
        {
            map::release(map, entry.bytes.clone());
        }
    }

    /// Compares names and shapes with what the architecture reads.
    pub(crate) fn check_tensors(&self) -> Result<(), Error> {
        let mut defects = TensorDefects::default();
        for (name, shape) in &self.shapes {
            match self.tensors.get(name) {
                None => defects.missing.push(name.clone()),
                Some((_, entry)) if entry.shape != *shape => {
                    defects
                        .misshaped
                        .push((name.clone(), shape.clone(), entry.shape.clone()));
                }
                Some(_) => (),
            }
        }
        defects.unexpected = self
            .names()
            .filter(|name| !self.shapes.contains_key(*name))
            .map(str::to_owned)
            .collect();
        if defects.is_empty() {
            return Ok(());
        }
        Err(Error::Tensors {
            architecture: self.config.architecture.clone(),
            defects,
        })
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

fn required(path: &Path) -> Result<Vec<u8>, Error> {
    json::read(path)?.ok_or_else(|| Error::Io {
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::NotFound, "there is no such file"),
    })
}

impl Weights {
    /// Maps the weights of a folder and reads their headers.
    fn open(folder: &Path) -> Result<Self, Error> {
        let mut weights = Self::default();
        // As in transformers, a single file wins over an index.
        if folder.join(SINGLE_FILE).exists() {
            weights.add_mapped(folder, "", SINGLE_FILE)?;
            return Ok(weights);
        }
        let path = folder.join(INDEX_FILE);
        let Some(bytes) = json::read(&path)? else {
            return Err(Error::NoWeights {
                path: folder.to_owned(),
                hint: match folder.join(PICKLED).exists() {
                    true => CONVERT,
                    false => {
                        "Prelude reads model.safetensors, or the shards that model.safetensors.index.json names; convert other formats to safetensors"
                    }
                },
            });
        };
        let file = path.display().to_string();
        let map = index::parse(&file, &bytes)?;
        let shards: BTreeSet<&String> = map.values().collect();
        for shard in shards {
            weights.add_mapped(folder, "", shard)?;
        }
        weights.check_index(&file, &map)?;
        Ok(weights)
    }

    /// Takes the head's tensors out of a decision model's, and calls the others as definitions do.
    fn take_head(&mut self, of: &DecisionFiles) -> Result<HeadTensors, Error> {
        let mut head = Vec::new();
        for (name, (file, entry)) in std::mem::take(&mut self.tensors) {
            if !of.is_of_head(&name) {
                self.tensors.insert(of.renamed(&name), (file, entry));
            } else if let Stored::Float(dtype) = entry.dtype {
                let view = TensorView {
                    dtype,
                    shape: entry.shape.clone(),
                    bytes: &self.files[file].bytes[entry.bytes],
                };
                head.push((name, entry.shape, widened(&view)));
            }
        }
        Ok(HeadTensors::new(SINGLE_FILE, head))
    }

    /// Checks that every tensor lies in the shard that the index names, and that the shards hold no
    /// others: shards of two different savings in one folder would otherwise load as a model that never
    /// existed.
    fn check_index(&self, file: &str, map: &BTreeMap<String, String>) -> Result<(), Error> {
        let wrong = |what| {
            Err(Error::Index {
                file: file.to_owned(),
                what,
            })
        };
        for (tensor, shard) in map {
            let Some((at, _)) = self.tensors.get(tensor) else {
                return wrong(format!("tensor {tensor:?} is in none of the shards"));
            };
            let found = &self.files[*at].name;
            if found != shard {
                return wrong(format!(
                    "tensor {tensor:?} should be in {shard}, but is in {found}"
                ));
            }
        }
        let unknown = self.tensors.keys().filter(|name| !map.contains_key(*name));
        let unknown: Vec<String> = unknown.cloned().collect();
        if !unknown.is_empty() {
            return wrong(format!(
                "the shards hold tensors that the index lacks: {}",
                first_few(&unknown)
            ));
        }
        Ok(())
    }

    /// Adds the weights of the module `Dense` in a folder of the checkpoint's.
    fn add_dense(&mut self, folder: &Path, name: &str) -> Result<(), Error> {
        let path = folder.join(name);
        if !path.join(SINGLE_FILE).exists() {
            return Err(Error::NoWeights {
                path,
                hint: "the weights of a module `Dense` are read from its model.safetensors; convert other formats to safetensors",
            });
        }
        self.add_mapped(folder, &format!("{name}/"), SINGLE_FILE)
    }

    /// Maps a file of a folder, and adds the file. `prefix` is put before its name and those of its
    /// tensors.
    fn add_mapped(&mut self, folder: &Path, prefix: &str, name: &str) -> Result<(), Error> {
        let name = format!("{prefix}{name}");
        let bytes = Bytes::mapped(&folder.join(&name))?;
        self.add((prefix, name), bytes)
    }

    /// Adds a file of tensors, whose names get a prefix.
    fn add(&mut self, (prefix, name): (&str, String), bytes: Bytes) -> Result<(), Error> {
        for entry in container::parse(&name, &bytes)? {
            match self.tensors.entry(format!("{prefix}{}", entry.name)) {
                btree_map::Entry::Vacant(slot) => {
                    slot.insert((self.files.len(), entry));
                }
                btree_map::Entry::Occupied(slot) => {
                    let other = &self.files[slot.get().0].name;
                    let what = format!("tensor {:?} is also in {other}", entry.name);
                    return Err(Error::Container { file: name, what });
                }
            }
        }
        self.files.push(WeightFile { name, bytes });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
