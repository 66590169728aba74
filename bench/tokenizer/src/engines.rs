//! The engines that are compiled in, behind one small interface.

use std::{ffi::OsStr, fs, path::Path};

use anyhow::{Context as _, Result, anyhow, bail};

/// A measured engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Fasttoken,
    Fastokens,
    Gigatoken,
    TokenizersRc,
    Tokenizers,
    /// The library for `.model` files, the reference of their rows.
    Sentencepiece,
    /// The library for files of ranks, the reference of their rows.
    Tiktoken,
    /// An engine of another process, by its title: see `--also` and `--ablation`.
    Also(&'static str),
}

impl Who {
    /// The engines of this program.
    pub(crate) const ALL: [Self; 7] = [
        Self::Fasttoken,
        Self::Fastokens,
        Self::Gigatoken,
        Self::TokenizersRc,
        Self::Tokenizers,
        Self::Sentencepiece,
        Self::Tiktoken,
    ];

    /// The engines that run in Python.
    pub(crate) const OF_PYTHON: [Self; 3] = [Self::Gigatoken, Self::Sentencepiece, Self::Tiktoken];

    /// Returns true if the engine takes part in rows whose ids are those of `reference`. The
    /// libraries for other files than a `tokenizer.json` take part only in the rows of these.
    pub(crate) fn races_with(self, reference: Self) -> bool {
        let own = [Self::Sentencepiece, Self::Tiktoken];
        self == reference || !own.contains(&self)
    }

    /// Returns the engine's name and version, and the value of `--engine`.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Fasttoken => ("fasttoken", "fasttoken"),
            Self::Fastokens => ("fastokens 0.3.5", "fastokens"),
            Self::Gigatoken => ("gigatoken 0.10.0", "gigatoken"),
            Self::TokenizersRc => ("tokenizers 1.0.0-rc.3", "tokenizers-rc"),
            Self::Tokenizers => ("tokenizers 0.23", "tokenizers"),
            Self::Sentencepiece => ("sentencepiece 0.2.3", "sentencepiece"),
            Self::Tiktoken => ("tiktoken 0.12.0", "tiktoken"),
            Self::Also(title) => (title, "also"),
        }
    }

    /// Returns the engine's name and version.
    pub(crate) fn title(self) -> &'static str {
        self.names().0
    }

    /// Returns the value of `--engine`.
    pub(crate) fn key(self) -> &'static str {
        self.names().1
    }

    /// Returns true if targets are set against the engine. Targets name published rivals, not
    /// engines that join for one run.
    pub(crate) fn is_rival(self) -> bool {
        !matches!(self, Self::Fasttoken | Self::Also(_))
    }

    pub(crate) fn from_key(key: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|who| who.key() == key);
        found.ok_or_else(|| {
            let keys = Self::ALL.map(Self::key).join(", ");
            anyhow!("no engine is called {key}; there are {keys}")
        })
    }
}

/// A loaded tokenizer. Special tokens in the text are recognised, none are added.
pub(crate) trait Engine: Sync {
    /// Replaces the contents of `out` by the ids of `text`, the fastest way that the engine has.
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()>;
    /// Returns the ids of all texts, by the engine's own call for batches.
    fn batch(&self, texts: &[String], threads: usize) -> Result<Vec<Vec<u32>>>;
    fn decode(&self, ids: &[u32]) -> Result<String>;
    /// Decodes one id at a time into `out`.
    fn stream(&self, ids: &[u32], out: &mut String) -> Result<()>;
}

/// Loads the tokenizer at `path` with an engine that is compiled in.
pub(crate) fn load(who: Who, path: &Path, threads: usize) -> Result<Box<dyn Engine>> {
    Ok(match who {
        Who::Fasttoken => Box::new(load_ours(path)?),
        Who::Fastokens => Box::new(fastokens::Tokenizer::from_file(path)?),
        Who::Tokenizers => Box::new(tokenizers::Tokenizer::from_file(path).map_err(foreign)?),
        Who::TokenizersRc => Box::new(ReleaseCandidate::load(path, threads)?),
        Who::Gigatoken | Who::Sentencepiece | Who::Tiktoken => {
            bail!("{} runs in Python: drivers/drive_python.py", who.title())
        }
        Who::Also(title) => bail!("{title} is an engine of another build"),
    })
}

/// Loads a file of any format by its name. A file of ranks gets cl100k's pattern, which
/// `drivers/drive_python.py` gives to tiktoken.
fn load_ours(path: &Path) -> Result<fasttoken::Tokenizer> {
    use fasttoken::{TiktokenEncoding, Tokenizer};
    let read = || fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let is = |name: &str| path.file_name().is_some_and(|file| file == name);
    let extension = path.extension().and_then(OsStr::to_str);
    Ok(match extension {
        Some("ftk") => Tokenizer::from_compiled(path)?,
        Some("model") => Tokenizer::from_sentencepiece(&read()?)?,
        Some("tiktoken") => {
            let encoding = TiktokenEncoding::named("cl100k_base").context("tiktoken has it")?;
            let special_tokens = Vec::new();
            let encoding = TiktokenEncoding {
                special_tokens,
                ..encoding
            };
            Tokenizer::from_tiktoken(&read()?, &encoding)?
        }
        Some("json") if is("tekken.json") => Tokenizer::from_tekken(&read()?)?,
        _ => Tokenizer::from_file(path)?,
    })
}

/// Wraps an error of an engine: some are boxed in a way that `anyhow` does not take.
fn foreign(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

impl Engine for fasttoken::Tokenizer {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        out.clear();
        self.encode_into(text, false, out);
        Ok(())
    }

    fn batch(&self, texts: &[String], threads: usize) -> Result<Vec<Vec<u32>>> {
        Ok(self.encode_batch(texts, false, threads))
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(Self::decode(self, ids, false))
    }

    fn stream(&self, ids: &[u32], out: &mut String) -> Result<()> {
        let mut decoder = self.stream_decoder(false);
        for &id in ids {
            decoder.push(id, out);
        }
        decoder.finish(out);
        Ok(())
    }
}

impl Engine for fastokens::Tokenizer {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        *out = Self::encode(self, text)?;
        Ok(())
    }

    fn batch(&self, texts: &[String], _: usize) -> Result<Vec<Vec<u32>>> {
        // Its threads come from the environment, which the parent set.
        Ok(self.encode_batch(texts, false)?)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(Self::decode(self, ids, false)?)
    }

    fn stream(&self, _: &[u32], _: &mut String) -> Result<()> {
        bail!("fastokens has no streaming decoder in Rust")
    }
}

impl Engine for tokenizers::Tokenizer {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let encoding = self.encode_fast(text, false).map_err(foreign)?;
        out.clear();
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    fn batch(&self, texts: &[String], _: usize) -> Result<Vec<Vec<u32>>> {
        let inputs: Vec<&str> = texts.iter().map(String::as_str).collect();
        let encodings = self.encode_batch_fast(inputs, false).map_err(foreign)?;
        Ok(encodings.iter().map(|e| e.get_ids().to_vec()).collect())
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        // `self.decode` would be this trait's method; the reference's is one level down.
        (**self).decode(ids, false).map_err(foreign)
    }

    fn stream(&self, ids: &[u32], out: &mut String) -> Result<()> {
        let mut decoder = self.decode_stream(false);
        for &id in ids {
            if let Some(chunk) = decoder.step(id).map_err(foreign)? {
                out.push_str(&chunk);
            }
        }
        Ok(())
    }
}

/// `tokenizers` 1.0 reads files of its own form, and brings a converter for all others.
struct ReleaseCandidate {
    tokenizer: tokenizers_rc::pipeline::PipelineTokenizer,
    options: tokenizers_rc::pipeline::EncodeOptions,
}

impl ReleaseCandidate {
    fn load(path: &Path, threads: usize) -> Result<Self> {
        tokenizers_rc::parallelism::set_num_threads(threads);
        let tokenizer = tokenizers_rc::from_json_file(path).or_else(|_| {
            let json = tokenizers_rc::canonicalize_file(path).map_err(foreign)?;
            tokenizers_rc::from_json(&json).map_err(foreign)
        })?;
        Ok(Self {
            tokenizer,
            options: tokenizers_rc::pipeline::EncodeOptions::no_specials(),
        })
    }
}

impl Engine for ReleaseCandidate {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let mut tokens = Vec::with_capacity(text.len() / 4 + 1);
        let result = self.tokenizer.encode_into(text, &self.options, &mut tokens);
        result.map_err(foreign)?;
        out.clear();
        out.extend_from_slice(tokenizers_rc::pipeline::PipelineToken::cast_slice(&tokens));
        Ok(())
    }

    fn batch(&self, texts: &[String], _: usize) -> Result<Vec<Vec<u32>>> {
        let inputs: Vec<&str> = texts.iter().map(String::as_str).collect();
        let handle = self.tokenizer.encode(inputs, &self.options);
        let encodings = handle.wait().map_err(foreign)?;
        Ok(encodings
            .iter()
            .map(|e| tokenizers_rc::pipeline::PipelineToken::cast_slice(e.ids()).to_vec())
            .collect())
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, false).map_err(foreign)
    }

    fn stream(&self, ids: &[u32], out: &mut String) -> Result<()> {
        let mut decoder = self.tokenizer.decode_stream(false);
        for &id in ids {
            if let Some(chunk) = decoder.step(id).map_err(foreign)? {
                out.push_str(&chunk);
            }
        }
        Ok(())
    }
}
