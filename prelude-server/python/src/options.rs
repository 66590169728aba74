//! The options of a model, as Python hands them in: a JSON object whose tables and names are those of
//! the server's settings.

use std::path::PathBuf;

use prelude_core::Pooling;
use prelude_engine::SchedulerConfig;
use prelude_server::{
    DecideConfig, Limits, ModelKind, ReasoningParser, ServerConfig, ToolParser,
    executor::{CudaConfig, CudaPlaces, Device, ExecutorConfig, ExecutorDtype, Quantization},
    load::{KvSettings, LoadOptions},
    profile,
};
use serde::Deserialize;

use crate::errors::Failure;

/// The options of `LLM(...)`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// Folder, name on the Hugging Face Hub, `demo-lm` or `demo-classifier`.
    pub(crate) model: String,
    /// Branch, tag or commit of a model on the Hub.
    pub(crate) revision: Option<String>,
    pub(crate) device: Option<Device>,
    dtype: Option<ExecutorDtype>,
    quantization: Option<Quantization>,
    kind: Option<ModelKind>,
    pooling: Option<Pooling>,
    max_model_len: Option<u32>,
    chat_template: Option<PathBuf>,
    rerank_template: Option<PathBuf>,
    generation_config: Option<GenerationConfig>,
    reasoning_parser: Option<ReasoningParser>,
    tool_parser: Option<ToolParser>,
    seed: Option<u64>,
    #[serde(default)]
    settings: Tables,
    /// Folders of NVIDIA's libraries and of compiled kernels.
    #[serde(default)]
    places: Places,
}

/// The tables of the settings that concern a model without a server.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Tables {
    server: ServerTable,
    limits: Limits,
    decide: DecideConfig,
    scheduler: SchedulerConfig,
    executor: ExecutorConfig,
    kv: KvSettings,
    cuda: CudaConfig,
    tokenizer: TokenizerTable,
    profile: ProfileTable,
}

/// The settings of `[server]` that concern more than connections.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ServerTable {
    encode_threads: Option<usize>,
    max_logprobs: Option<i64>,
    require_cache_salt: Option<bool>,
    escape_special_tokens: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TokenizerTable {
    cache: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProfileTable {
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GenerationConfig {
    Auto,
    None,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Places {
    first: Vec<PathBuf>,
    fallback: Vec<PathBuf>,
    cache: Option<PathBuf>,
}

impl Options {
    /// Reads the options.
    ///
    /// # Errors
    /// [`Failure::Option`] that names the option or the setting.
    pub(crate) fn read(json: &str) -> Result<Self, Failure> {
        let mut reader = serde_json::Deserializer::from_str(json);
        let read: Result<Self, _> = serde_path_to_error::deserialize(&mut reader);
        let options = read.map_err(|error| {
            let path = error.path().to_string();
            // The position in a JSON document that Python wrote tells a user nothing.
            let message = error.into_inner().to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            Failure::Option(match &*path {
                "." => message.to_owned(),
                path => format!("{path}: {message}"),
            })
        })?;
        let checked = options.server_config().validate();
        checked.map_err(|e| Failure::Option(format!("settings: {e}")))?;
        Ok(options)
    }

    /// Returns the configuration of the handlers.
    pub(crate) fn server_config(&self) -> ServerConfig {
        let (tables, default) = (&self.settings, ServerConfig::default());
        let of = &tables.server;
        ServerConfig {
            encode_threads: of.encode_threads.unwrap_or(default.encode_threads),
            max_logprobs: of.max_logprobs.unwrap_or(default.max_logprobs),
            require_cache_salt: of.require_cache_salt.unwrap_or(default.require_cache_salt),
            escape_special_tokens: of
                .escape_special_tokens
                .unwrap_or(default.escape_special_tokens),
            seed: self.seed,
            reasoning_parser: self.reasoning_parser,
            tool_parser: self.tool_parser,
            limits: tables.limits.clone(),
            decide: tables.decide.clone(),
            ..default
        }
    }

    /// Returns the options of loading the model.
    ///
    /// # Errors
    /// [`Failure::Option`] if the file of measured times cannot be used.
    pub(crate) fn load_options(&self) -> Result<LoadOptions, Failure> {
        let tables = &self.settings;
        let mut executor = tables.executor.clone();
        executor.dtype = self.dtype.or(executor.dtype);
        executor.quantization = self.quantization.or(executor.quantization);
        let profile = tables.profile.file.as_deref().map(profile::read);
        let profile = profile.transpose();
        Ok(LoadOptions {
            kind: self.kind,
            max_model_len: self.max_model_len,
            chat_template: self.chat_template.clone(),
            pooling: self.pooling,
            rerank_template: self.rerank_template.clone(),
            generation_config: self.generation_config != Some(GenerationConfig::None),
            tokenizer_cache: tables.tokenizer.cache.clone(),
            profile: profile.map_err(|e| Failure::Option(e.to_string()))?,
            ..LoadOptions::of_tables(&executor, &tables.kv, &tables.scheduler, &tables.limits)
        })
    }

    /// Returns the settings of a GPU, and where its libraries may be.
    pub(crate) fn cuda(&self) -> (&CudaConfig, CudaPlaces) {
        let places = &self.places;
        let places = CudaPlaces {
            first: places.first.clone(),
            fallback: places.fallback.clone(),
            cache: places.cache.clone(),
        };
        (&self.settings.cuda, places)
    }
}
