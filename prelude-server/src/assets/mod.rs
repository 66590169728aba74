//! The parts of a model beside its weights: tokenizer, templates, prompts. Read from a folder
//! in the Hugging Face layout or from bytes inside the program.

mod documents;
mod error;
mod folder;
mod sentence;

use std::{borrow::Cow, fs, io, path::Path};

use prelude_models::{Checkpoint, CheckpointFiles, fields, file};
use prelude_text::{
    Tokenizer,
    shared_prefix::SafeCuts,
    template::{ChatTemplate, TemplateError},
};

pub use self::{documents::TokenizerConfig, error::LoadError, sentence::SentenceConfig};

/// The most bytes of a `tokenizer.json`: ten times the largest that is published.
const TOKENIZER_BYTES_MAX: u64 = 512 << 20;

/// A model's files, read and checked; nothing is computed yet.
#[derive(Debug)]
pub struct Assets {
    /// The folder's name: what the model is called unless it is told otherwise.
    pub name: String,
    /// The commit on the Hub, if the folder is one of its cache.
    pub revision: Option<String>,
    /// Configuration and weights.
    pub checkpoint: Checkpoint,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// The places at which the tokenizer's prompts may be cut.
    pub cuts: SafeCuts,
    /// Special tokens and the like.
    pub tokenizer_config: TokenizerConfig,
    /// Source of the chat template, if there is one.
    pub chat_template: Option<String>,
    /// The files hold a second chat template, for requests with tools, which is not served.
    pub has_tool_template: bool,
    /// Settings in the files of sentence-transformers.
    pub sentence: SentenceConfig,
    /// Longest text by the files beside `config.json`, if they say so.
    pub max_len: Option<u32>,
    /// Sizes to which embeddings may be cut; empty if the model does not say.
    pub matryoshka: Vec<u32>,
    /// Warnings for the operator about the files.
    pub warnings: Vec<String>,
}

/// The files of a model as bytes of the program: configuration, tokenizer and weights.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedModel {
    /// The name of the model.
    pub name: &'static str,
    /// `config.json`.
    pub config: &'static [u8],
    /// `generation_config.json`.
    pub generation_config: Option<&'static [u8]>,
    /// `model.safetensors`.
    pub weights: &'static [u8],
    /// `tokenizer.json`.
    pub tokenizer: &'static [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: &'static [u8],
}

impl Assets {
    /// Reads the model in `folder`, or that of a GGUF file with a `tokenizer.json` beside it.
    ///
    /// # Errors
    /// [`LoadError`] with the file at fault.
    pub fn open(folder: &Path) -> Result<Self, LoadError> {
        Self::open_cached(folder, None)
    }

    /// Opens a model's files as [`Assets::open`] does, with a folder where compiled tokenizers are
    /// kept from one start to the next. A folder that cannot be written to is a warning.
    ///
    /// # Errors
    /// The same as of [`Assets::open`].
    pub fn open_cached(path: &Path, tokenizers: Option<&Path>) -> Result<Self, LoadError> {
        Self::open_as(path, tokenizers, false)
    }

    /// Opens a model's files as [`Assets::open_cached`] does, without looking at files beside them by
    /// which a decision model decides.
    ///
    /// # Errors
    /// The same as of [`Assets::open`].
    pub fn open_plain(path: &Path, tokenizers: Option<&Path>) -> Result<Self, LoadError> {
        Self::open_as(path, tokenizers, true)
    }

    fn open_as(path: &Path, tokenizers: Option<&Path>, is_plain: bool) -> Result<Self, LoadError> {
        let gguf = Some(path).filter(|path| is_gguf_file(path));
        let root = match gguf.map(|path| path.parent().unwrap_or_else(|| Path::new(""))) {
            None => path,
            // A name alone lies in the folder of the process.
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
        };
        if !root.is_dir() {
            return Err(match Checkpoint::is_gguf(path) {
                true => LoadError::NoGguf(path.to_owned()),
                false => LoadError::NoFolder(path.to_owned()),
            });
        }
        if gguf.is_none()
            && let Some(base) = folder::base(root)?
        {
            return Self::open_adapter(root, &base, tokenizers);
        }
        folder::check(root, is_plain)?;
        // The model's own files, which sentence-transformers once put into a folder within.
        let decides = match gguf {
            None if !is_plain => Checkpoint::decision_tokenizer(root)?,
            _ => None,
        };
        let is_decision = decides.is_some();
        let folder = &match (gguf, decides) {
            (None, Some(tokenizer)) => tokenizer,
            (None, None) => Checkpoint::body_folder(root)?,
            (Some(_), _) => root.to_owned(),
        };
        if folder != root && !is_decision {
            folder::check(folder, is_plain)?;
        }
        // Before the tokenizer: a model that is not served is told as such.
        let checkpoint = match gguf {
            Some(path) => Some(Checkpoint::open_gguf(path)?),
            None if is_plain => Some(Checkpoint::open_plain(root)?),
            None if is_decision || folder.join("config.json").exists() => {
                Some(Checkpoint::open(root)?)
            }
            None => None,
        };
        let places = Places {
            root,
            body: folder,
            tokenizer: folder,
            sentence: [root, folder],
        };
        let name = gguf.map_or_else(|| folder_name(root), file_name);
        let assets = places.read(name, checkpoint, tokenizers)?;
        Ok(assets.of_revision(root))
    }

    /// Opens a LoRA adapter as PEFT saves it, merged into the model in the folder `base`. The files of
    /// the tokenizer are the adapter's if it has a `tokenizer.json`, and those of sentence-transformers
    /// if it has a `modules.json`; else they are the base's.
    ///
    /// # Errors
    /// The same as of [`Assets::open`], and those of [`Checkpoint::open_adapter`].
    pub fn open_adapter(
        adapter: &Path,
        base: &Path,
        tokenizers: Option<&Path>,
    ) -> Result<Self, LoadError> {
        if let Some(path) = [adapter, base].into_iter().find(|path| !path.is_dir()) {
            return Err(LoadError::NoFolder(path.to_owned()));
        }
        folder::check_adapter(adapter)?;
        folder::check(base, false)?;
        let body = &Checkpoint::body_folder(base)?;
        let checkpoint = Checkpoint::open_adapter(adapter, base)?;
        let places = Places {
            root: base,
            body,
            tokenizer: match adapter.join("tokenizer.json").exists() {
                true => adapter,
                false => body,
            },
            sentence: match adapter.join("modules.json").exists() {
                true => [adapter, adapter],
                false => [base, body],
            },
        };
        let assets = places.read(folder_name(adapter), Some(checkpoint), tokenizers)?;
        Ok(assets.of_revision(adapter))
    }

    /// Takes over the commit that the Hub's cache names a folder by.
    fn of_revision(mut self, folder: &Path) -> Self {
        let is_of_hub = folder
            .parent()
            .is_some_and(|above| above.ends_with("snapshots"));
        let commit = folder.file_name().and_then(|name| name.to_str());
        let is_commit =
            |name: &&str| name.len() == 40 && name.bytes().all(|b| b.is_ascii_hexdigit());
        let commit = commit.filter(|name| is_of_hub && is_commit(name));
        self.revision = commit.map(str::to_owned);
        self
    }

    /// Checks what takes several files, and gathers what they say in common.
    fn checked(mut self) -> Result<Self, LoadError> {
        self.tokenizer_config.check_added_tokens(&self.tokenizer)?;
        let lengths = [
            self.tokenizer_config.model_max_length,
            self.sentence.max_seq_length,
        ];
        let decision = self.checkpoint.decision();
        let of_format = decision.and_then(|of| of.max_tokens());
        let of_format = of_format.and_then(|most| u32::try_from(most).ok());
        let lengths = lengths.into_iter().chain([of_format]);
        self.max_len = lengths.flatten().min();
        let longest = self.checkpoint.config().embedding_size();
        let shortens = |size: &u32| (*size as usize) < longest;
        self.sentence.truncate_dim = self.sentence.truncate_dim.filter(shortens);
        self.warnings.extend_from_slice(self.checkpoint.warnings());
        self.warnings.append(&mut self.tokenizer_config.warnings);
        self.warnings.append(&mut self.sentence.warnings);
        Ok(self)
    }

    /// Reads a model inside the program.
    ///
    /// # Errors
    /// The same as of [`Assets::open`].
    pub fn embedded(files: &EmbeddedModel) -> Result<Self, LoadError> {
        let tokenizer_config = TokenizerConfig::from_json(files.tokenizer_config)?;
        tokenizer_config.check_normalizer(files.tokenizer)?;
        let (tokenizer, warning) = Tokenizer::from_bytes(files.tokenizer)?;
        let assets = Self {
            name: files.name.to_owned(),
            revision: None,
            checkpoint: Checkpoint::from_files(CheckpointFiles {
                config: files.config,
                generation_config: files.generation_config,
                weights: Cow::Borrowed(files.weights),
                ..CheckpointFiles::default()
            })?,
            tokenizer,
            cuts: SafeCuts::of(files.tokenizer),
            chat_template: tokenizer_config.chat_template.clone(),
            has_tool_template: tokenizer_config.has_tool_template,
            tokenizer_config,
            sentence: SentenceConfig::default(),
            max_len: None,
            matryoshka: Vec::new(),
            warnings: Vec::from_iter(warning),
        };
        assets.checked()
    }

    /// Compiles the chat template, if there is one.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn compile_template(&self) -> Result<Option<ChatTemplate>, TemplateError> {
        let Some(source) = &self.chat_template else {
            return Ok(None);
        };
        ChatTemplate::new(source, self.tokenizer_config.special_tokens()).map(Some)
    }
}

/// The folders of a model's files.
struct Places<'a> {
    /// The model's own.
    root: &'a Path,
    /// That of `config.json`.
    body: &'a Path,
    tokenizer: &'a Path,
    /// Those of `config_sentence_transformers.json` and of `sentence_bert_config.json`.
    sentence: [&'a Path; 2],
}

impl Places<'_> {
    /// Reads what lies beside the weights; without a checkpoint, that of the folder.
    fn read(
        &self,
        name: String,
        checkpoint: Option<Checkpoint>,
        tokenizers: Option<&Path>,
    ) -> Result<Assets, LoadError> {
        let folder = self.tokenizer;
        let tokenizer_json = read_bounded(folder, "tokenizer.json", TOKENIZER_BYTES_MAX)?;
        let tokenizer_json = tokenizer_json.ok_or_else(|| folder::no_tokenizer(folder))?;
        let mut tokenizer_config = match read(folder, "tokenizer_config.json")? {
            Some(bytes) => TokenizerConfig::from_json(&bytes)?,
            None => TokenizerConfig::default(),
        };
        if let Some(bytes) = read(folder, "special_tokens_map.json")? {
            tokenizer_config.add_special_tokens(&bytes)?;
        }
        tokenizer_config.check_normalizer(&tokenizer_json)?;
        // A template in a file of its own wins, as in the reference.
        let own_template = read(folder, "chat_template.jinja")?;
        let more = read(folder, "additional_chat_templates/tool_use.jinja")?;
        let has_tool_template =
            more.is_some() || (own_template.is_none() && tokenizer_config.has_tool_template);
        let chat_template = match own_template {
            Some(bytes) => Some(text("chat_template.jinja", bytes)?),
            None => tokenizer_config.chat_template.clone(),
        };
        let (tokenizer, warning) = match tokenizers {
            None => Tokenizer::from_bytes(&tokenizer_json)?,
            Some(cache) => Tokenizer::from_bytes_cached(&tokenizer_json, cache)?,
        };
        let checkpoint = match checkpoint {
            Some(checkpoint) => checkpoint,
            None => Checkpoint::open(self.root)?,
        };
        let chat_template = chat_template.or_else(|| checkpoint.chat_template().map(str::to_owned));
        let assets = Assets {
            name,
            revision: None,
            checkpoint,
            tokenizer,
            cuts: SafeCuts::of(&tokenizer_json),
            tokenizer_config,
            chat_template,
            has_tool_template,
            sentence: SentenceConfig::from_json(
                read(self.sentence[0], "config_sentence_transformers.json")?.as_deref(),
                read(self.sentence[1], "sentence_bert_config.json")?.as_deref(),
            )?,
            max_len: None,
            matryoshka: matryoshka(self.body)?,
            warnings: Vec::from_iter(warning),
        };
        assets.checked()
    }
}

/// Reads a chat template from a file of the user's.
///
/// # Errors
/// [`LoadError::Read`] if it is missing or not text.
pub fn read_template(path: &Path) -> Result<String, LoadError> {
    file::read_text(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Returns the bytes of a document, or `None` if it does not exist.
fn read(folder: &Path, file: &str) -> Result<Option<Vec<u8>>, LoadError> {
    read_bounded(folder, file, file::DOCUMENT_BYTES_MAX)
}

fn read_bounded(folder: &Path, file: &str, most: u64) -> Result<Option<Vec<u8>>, LoadError> {
    let path = folder.join(file);
    match file::read(&path, most) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadError::Read { path, source }),
    }
}

fn text(file: &'static str, bytes: Vec<u8>) -> Result<String, LoadError> {
    String::from_utf8(bytes).map_err(|_| LoadError::Document {
        file,
        what: "is not UTF-8".to_owned(),
    })
}

/// Reads `matryoshka_dimensions` of `config.json`, which [`Checkpoint`] has no use for.
fn matryoshka(folder: &Path) -> Result<Vec<u32>, LoadError> {
    let Some(bytes) = read(folder, "config.json")? else {
        return Ok(Vec::new());
    };
    let config = fields::document("config.json", &bytes)?;
    let dimensions = config.get("matryoshka_dimensions").cloned();
    let dimensions = dimensions.filter(|d| !d.is_null());
    dimensions
        .map_or(Ok(Vec::new()), serde_json::from_value)
        .map_err(|_| LoadError::Document {
            file: "config.json",
            what: "has matryoshka_dimensions that are not a list of sizes".to_owned(),
        })
}

/// Returns true if a path leads to a GGUF file.
#[must_use]
pub fn is_gguf_file(path: &Path) -> bool {
    Checkpoint::is_gguf(path) && path.is_file()
}

/// Returns the name of a file without its extension.
fn file_name(path: &Path) -> String {
    let name = path.file_stem();
    name.map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned())
}

/// Returns the last component of the folder's real path, so that `.` has a name too.
fn folder_name(folder: &Path) -> String {
    let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    real.file_name()
        .map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo;

    #[test]
    fn demo_models_are_complete() {
        for files in [demo::LM, demo::CLASSIFIER] {
            let assets = Assets::embedded(&files).unwrap();
            assert_eq!(assets.cuts, SafeCuts::Proven);
            assert!(assets.compile_template().unwrap().is_some());
            assert_eq!(
                assets.tokenizer_config.token("eos_token"),
                Some("<|im_end|>")
            );
        }
    }

    /// Returns the result of `read`; panics if it takes a minute, as waiting for a pipe's other end does.
    #[cfg(unix)]
    fn in_time<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(read()));
        let result = receiver.recv_timeout(std::time::Duration::from_secs(60));
        result.expect("reading ends")
    }

    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_are_refused_by_name() {
        use std::os::unix::fs::symlink;

        let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/demo/demo-lm"));
        let root = std::env::temp_dir().join(format!("prelude-special-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let put = |kind: &str, path: &Path| match kind {
            "pipe" => {
                let made = std::process::Command::new("mkfifo").arg(path).status();
                assert!(made.unwrap().success());
            }
            _ => symlink("/dev/zero", path).unwrap(),
        };
        for kind in ["pipe", "zero"] {
            for name in [
                "config.json",
                "generation_config.json",
                "model.safetensors",
                "modules.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "special_tokens_map.json",
                "chat_template.jinja",
                "additional_chat_templates/tool_use.jinja",
                "config_sentence_transformers.json",
                "sentence_bert_config.json",
            ] {
                let folder = root.join(format!("{kind}-{}", name.replace('/', "-")));
                fs::create_dir_all(folder.join("additional_chat_templates")).unwrap();
                for entry in fs::read_dir(demo).unwrap() {
                    let path = entry.unwrap().path();
                    if path.file_name().unwrap() != name {
                        symlink(&path, folder.join(path.file_name().unwrap())).unwrap();
                    }
                }
                put(kind, &folder.join(name));
                let error = in_time(move || Assets::open(&folder).map(|_| ()));
                let error = error.unwrap_err().to_string();
                let says = |what: &str| error.contains(what);
                assert!(says(name) && says("not a regular file"), "{kind}: {error}");
            }
            let file = root.join(format!("{kind}.jinja"));
            put(kind, &file);
            let at = file.clone();
            let error = in_time(move || read_template(&at)).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
            let error = in_time(move || crate::profile::read(&file));
            let error = error.unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_folder_reads_as_the_embedded_files_do() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/demo-lm");
        let assets = Assets::open(folder.as_ref()).unwrap();
        let embedded = Assets::embedded(&demo::LM).unwrap();
        assert_eq!(assets.name, "demo-lm");
        assert_eq!(assets.chat_template, embedded.chat_template);
        assert_eq!(
            assets.checkpoint.generation(),
            embedded.checkpoint.generation()
        );
        assert_eq!(
            assets.tokenizer.encode("card", true),
            embedded.tokenizer.encode("card", true)
        );
    }

    #[test]
    fn a_gguf_file_has_its_tokenizer_beside_it() {
        let Some(folder) = crate::testing::golden("rand-gguf-llama") else {
            return;
        };
        let folder = folder.join("model");
        let file = folder.join("rand-gguf-llama.gguf");
        let assets = Assets::open(&file).unwrap();
        assert_eq!(assets.name, "rand-gguf-llama");
        let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
        assert_eq!(assets.chat_template.as_deref(), Some(template));
        let names = |assets: &Assets| assets.checkpoint.names().count();
        assert_eq!(names(&assets), names(&Assets::open(&folder).unwrap()));
        let alone = std::env::temp_dir().join(format!("prelude-gguf-{}", std::process::id()));
        fs::create_dir_all(&alone).unwrap();
        fs::copy(&file, alone.join("m.gguf")).unwrap();
        let error = Assets::open(&alone.join("m.gguf")).unwrap_err().to_string();
        fs::remove_dir_all(&alone).unwrap();
        assert!(error.contains("has no tokenizer.json"), "{error}");
    }

    #[test]
    fn compiled_tokenizers_are_kept() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/demo-lm");
        let cache = std::env::temp_dir().join(format!("prelude-tokenizers-{}", std::process::id()));
        let expected = Assets::open(folder.as_ref()).unwrap();
        for _ in 0..2 {
            let assets = Assets::open_cached(folder.as_ref(), Some(&cache)).unwrap();
            assert_eq!(assets.warnings, [""; 0]);
            let ids = |assets: &Assets| assets.tokenizer.encode("my card <|im_end|>", true);
            assert_eq!(ids(&assets), ids(&expected));
            assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
        }
        fs::remove_dir_all(&cache).unwrap();
        fs::write(&cache, "a file").unwrap();
        let assets = Assets::open_cached(folder.as_ref(), Some(&cache)).unwrap();
        fs::remove_file(&cache).unwrap();
        assert!(assets.warnings[0].contains("cannot be kept in"));
    }

    #[test]
    fn a_folder_of_the_hub_s_cache_is_named_by_its_commit() {
        let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/demo/demo-lm"));
        let cache = std::env::temp_dir().join(format!("prelude-commit-{}", std::process::id()));
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let revision = |folder: &str| {
            let folder = cache.join(folder);
            fs::create_dir_all(&folder).unwrap();
            for entry in fs::read_dir(demo).unwrap() {
                let path = entry.unwrap().path();
                fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
            }
            Assets::open(&folder).unwrap().revision
        };
        let found = revision(&format!("snapshots/{commit}"));
        assert_eq!(found.as_deref(), Some(commit));
        assert_eq!(revision("snapshots/main"), None);
        assert_eq!(revision(&format!("other/{commit}")), None);
        fs::remove_dir_all(&cache).unwrap();
    }

    #[test]
    fn a_missing_folder_or_file_is_named() {
        let check = |path: &str, expected: &str| {
            let error = Assets::open(path.as_ref()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("/no/such/folder", "\"/no/such/folder\" is not a folder");
        check("no/such.gguf", "there is no file \"no/such.gguf\"");
        check(
            concat!(env!("CARGO_MANIFEST_DIR"), "/src"),
            "has no tokenizer.json",
        );
    }
}
