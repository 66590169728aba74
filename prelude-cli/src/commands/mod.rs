//! One file per command, and what they share: settings, exit codes, loading, output.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
};

use prelude_engine::{EngineError, SchedulerConfig};
use prelude_hub::Progress;
use prelude_models::{Checkpoint, file};
use prelude_server::{
    DecideConfig, Limits, ServerConfig,
    assets::{Assets, EmbeddedModel, LoadError},
    demo,
    executor::{
        CudaConfig, CudaPlaces, Device, DeviceChoice, Devices, ExecutorConfig, ExecutorDtype,
        automatic_device,
    },
    load::{KvSettings, LoadOptions, Loaded},
    log,
};
use serde::{Deserialize, Serialize};

use crate::args::ModelArgs;

pub(crate) mod cuda;
pub(crate) mod hub;
pub(crate) mod kv_events;
pub(crate) mod loading;
pub(crate) mod manuals;
pub(crate) mod models;
pub(crate) mod one_shot;
pub(crate) mod profile;
pub(crate) mod run_batch;
pub(crate) mod serve;
mod signals;
pub(crate) mod supervisor;
pub(crate) mod texts;
pub(crate) mod traces;

/// The failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    message: String,
}

/// Exit codes, as the help text lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Something did not work.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// The model could not be loaded.
    Model = 3,
    /// An engine is lost.
    Engine = 4,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }

    /// Returns the failure with the name of the model that it is about.
    pub(crate) fn of(self, model: &str) -> Self {
        let message = format!("{model}: {}", self.message);
        Self { message, ..self }
    }

    pub(crate) fn code(&self) -> u8 {
        self.code as u8
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        match error {
            // What the user asked for is at fault, not the model.
            LoadError::Option(message) => Self::new(Code::Usage, message),
            LoadError::Engine(EngineError::Config(error)) => Self::new(Code::Usage, error),
            LoadError::Together(message) => Self::new(Code::Model, message),
            _ => Self::new(
                Code::Model,
                format_args!("the model cannot be loaded: {error}"),
            ),
        }
    }
}

/// All settings of a configuration file: a table for each part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// The HTTP edge.
    pub(crate) server: ServerConfig,
    /// Limits on what clients may send.
    pub(crate) limits: Limits,
    /// Typed decisions.
    pub(crate) decide: DecideConfig,
    /// The order of work.
    pub(crate) scheduler: SchedulerConfig,
    /// Memory and arithmetic.
    pub(crate) executor: ExecutorConfig,
    /// The pool of KV blocks.
    pub(crate) kv: KvSettings,
    /// Events of the KV cache.
    pub(crate) kv_events: kv_events::KvEventSettings,
    /// Memory and libraries on NVIDIA GPUs.
    pub(crate) cuda: CudaConfig,
    /// Text to ids.
    pub(crate) tokenizer: TokenizerSettings,
    /// Measured times.
    pub(crate) profile: ProfileSettings,
    /// Several models in one process, by their names.
    #[serde(skip_serializing_if = "models::Models::is_empty")]
    pub(crate) models: models::Models,
}

/// Settings of loading tokenizers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TokenizerSettings {
    /// Folder where compiled tokenizers are kept (default none): loading one takes milliseconds
    /// instead of a tenth of a second. A user who can write to the folder decides which ids texts
    /// become.
    pub(crate) cache: Option<PathBuf>,
}

/// Settings of measured times.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProfileSettings {
    /// The file that `prelude profile` wrote for the served model and its device (default none). It
    /// is what `srjf`, `laps` and predicted waits know of the time that steps take; without it the
    /// first two go by tokens, and waits by what was measured while serving.
    pub(crate) file: Option<PathBuf>,
}

/// The environment variables that all commands obey.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// The configuration file, unless a flag names one.
    pub(crate) config: Option<PathBuf>,
    /// Settings: `PRELUDE_LIMITS__ROWS` as (`LIMITS__ROWS`, its value).
    pub(crate) variables: Vec<(String, String)>,
    /// Variables of OpenTelemetry, with their names.
    pub(crate) otel: Vec<(String, String)>,
}

impl Environment {
    /// Returns the settings in effect where `config` is the file that a flag names.
    pub(crate) fn settings(&self, config: Option<&Path>) -> Result<Settings, Failure> {
        Settings::read(config.or(self.config.as_deref()), &self.variables)
    }
}

impl Settings {
    /// Reads a TOML file, if there is one, with `variables` over it: each the rest of an
    /// environment variable's name behind `PRELUDE_` (`LIMITS__ROWS`) and its value.
    pub(crate) fn read(
        path: Option<&Path>,
        variables: &[(String, String)],
    ) -> Result<Self, Failure> {
        let wrong = |what: &dyn fmt::Display, why: &dyn fmt::Display| {
            Failure::new(Code::Usage, format_args!("cannot use {what}: {why}"))
        };
        let mut table = toml::Table::new();
        if let Some(path) = path {
            let text = file::read_text(path).map_err(|e| wrong(&path.display(), &e))?;
            // The file is read as a whole first: its errors name lines.
            toml::from_str::<Self>(&text).map_err(|e| wrong(&path.display(), &e))?;
            table = toml::from_str(&text).map_err(|e| wrong(&path.display(), &e))?;
        }
        let mut settings: Self = table
            .clone()
            .try_into()
            .map_err(|e| wrong(&"the settings", &e))?;
        for (name, value) in variables {
            put(&mut table, name, value);
            // Variables are merged one by one, so that an error names the variable.
            let merged = table.clone().try_into();
            settings = merged.map_err(|e| wrong(&format_args!("PRELUDE_{name}"), &e))?;
        }
        let checked = settings.server_config().validate();
        checked.map_err(|e| wrong(&"the settings", &e))?;
        settings.check_models()?;
        Ok(settings)
    }

    /// Returns the configuration of the HTTP edge, with the tables it is made of.
    pub(crate) fn server_config(&self) -> ServerConfig {
        ServerConfig {
            limits: self.limits.clone(),
            decide: self.decide.clone(),
            ..self.server.clone()
        }
    }

    /// Returns the devices of a model that has the process for itself.
    pub(crate) fn devices(
        &self,
        choice: Option<DeviceChoice>,
        options: &LoadOptions,
        source: &Source,
    ) -> Result<Devices, Failure> {
        let device = self.device(choice, host_alone(options, source, 1));
        self.devices_beside(&Devices::of_machine(), device)
    }

    /// Returns the device that is meant. Where it is left open, a line says which it is and why, unless
    /// there was nothing to choose from; `host_alone` is a reason for the host.
    pub(crate) fn device(
        &self,
        choice: Option<DeviceChoice>,
        host_alone: Option<&str>,
    ) -> ChosenDevice {
        if let DeviceChoice::On(device) = choice.unwrap_or_default() {
            let is_named = true;
            return ChosenDevice { device, is_named };
        }
        let (device, why) = match (automatic_device(&self.cuda, cuda::places), host_alone) {
            ((Device::Cuda(_), _), Some(why)) => (Device::Cpu, Some(why.to_owned())),
            (found, _) => found,
        };
        if let Some(why) = why {
            say(format_args!("device: {device}: {why}"));
        }
        let is_named = false;
        ChosenDevice { device, is_named }
    }

    /// Returns the devices of a model on `device`, which shares the threads of the host with `others`.
    pub(crate) fn devices_beside(
        &self,
        others: &Devices,
        ChosenDevice { device, is_named }: ChosenDevice,
    ) -> Result<Devices, Failure> {
        let places = match device {
            Device::Cpu => CudaPlaces::default(),
            Device::Cuda(_) => cuda::places(),
        };
        let devices = others.beside(device, &self.cuda, &places)?;
        Ok(match is_named {
            true => devices,
            false => devices.or_host(),
        })
    }

    /// Puts the flags of a model over the settings.
    pub(crate) fn load_options(&self, args: &ModelArgs) -> LoadOptions {
        let tables =
            LoadOptions::of_tables(&self.executor, &self.kv, &self.scheduler, &self.limits);
        let mut executor = tables.executor;
        executor.dtype = args.dtype.choice().or(executor.dtype);
        executor.quantization = args.quantization.or(executor.quantization);
        executor.num_blocks = args.kv_blocks.or(executor.num_blocks);
        executor.block_size = args.block_size.unwrap_or(executor.block_size);
        LoadOptions {
            kind: args.kind,
            max_model_len: args.max_model_len,
            auto_truncate: args.auto_truncate,
            chat_template: args.chat_template.clone(),
            pooling: args.pooling,
            rerank_template: args.rerank_template.clone(),
            decide_format: args.decide_format.as_deref().cloned().flatten(),
            plain: args.plain,
            tokenizer_cache: self.tokenizer.cache.clone(),
            executor,
            ..tables
        }
    }
}

/// A device, and whether someone named it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChosenDevice {
    pub(crate) device: Device,
    is_named: bool,
}

/// Returns why one of so many models of a process runs on the host, where its device is left open.
pub(crate) fn host_alone(
    options: &LoadOptions,
    source: &Source,
    models: usize,
) -> Option<&'static str> {
    if models > 1 {
        return Some("several models are served, and share a GPU only if each names it");
    }
    if matches!(source, Source::Embedded(_)) {
        return Some("the demo models are small");
    }
    if options.executor.quantization.is_some() {
        return Some("weights are quantised on the CPU alone");
    }
    let is_f32 = options.executor.dtype == Some(ExecutorDtype::F32);
    is_f32.then_some("models run in f32 on the CPU alone")
}

/// Puts the value of a variable where its name says: `LIMITS__ROWS` is `rows` in `[limits]`. The
/// value is TOML if it reads as such, else a string.
fn put(table: &mut toml::Table, name: &str, value: &str) {
    let parsed = toml::from_str::<toml::Table>(&format!("value = {value}"));
    let parsed = parsed.ok().and_then(|mut t| t.remove("value"));
    let parsed = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
    let name = name.to_ascii_lowercase();
    let (tables, field) = name.rsplit_once("__").unwrap_or(("", &name));
    let mut table = table;
    for part in tables.split("__").filter(|part| !part.is_empty()) {
        let entry = table.entry(part.to_owned());
        let entry = entry.or_insert_with(|| toml::Value::Table(toml::Table::new()));
        let toml::Value::Table(inner) = entry else {
            // A field taken for a table: a table in its place says so by its type.
            *entry = toml::Value::Table(toml::Table::new());
            return;
        };
        table = inner;
    }
    table.insert(field.to_owned(), parsed);
}

/// The source of a model.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Folder(PathBuf),
    /// A model on the Hub, which [`Source::fetched`] turns into `Fetched`.
    Hub(hub::HubModel),
    /// A model of the Hub, by its name, in a folder of the cache.
    Fetched(String, PathBuf),
    Embedded(EmbeddedModel),
    /// The folder of a LoRA adapter, and its base.
    Adapter(PathBuf, Box<Self>),
}

impl Source {
    /// Returns the source that an argument names: a folder or a GGUF file, if there is one or the name
    /// ends as that of such a file, or else a demo model or a model on the Hub.
    ///
    /// # Errors
    /// If the revision is malformed, or given for a folder.
    pub(crate) fn of(model: &Path, revision: Option<&str>) -> Result<Self, Failure> {
        let is_here = model.is_dir() || Checkpoint::is_gguf(model);
        if !is_here && let Some(model) = hub::HubModel::of(model, revision)? {
            return Ok(Self::Hub(model));
        }
        let is_named = |demo: &EmbeddedModel| !is_here && model == Path::new(demo.name);
        let mut demos = [demo::LM, demo::CLASSIFIER].into_iter();
        match revision {
            None => Ok(match demos.find(is_named) {
                Some(demo) => Self::Embedded(demo),
                None => Self::Folder(model.to_owned()),
            }),
            Some(revision) => Err(Failure::new(
                Code::Usage,
                format_args!(
                    "--revision {revision} is for names on the Hub (OWNER/MODEL), and {} is none",
                    model.display()
                ),
            )),
        }
    }

    /// Returns the source that an argument names; of an adapter's folder if there is a `base`, whose
    /// revision it is then.
    ///
    /// # Errors
    /// The errors of [`Source::of`].
    pub(crate) fn on(
        base: Option<&Path>,
        model: &Path,
        revision: Option<&str>,
    ) -> Result<Self, Failure> {
        match base {
            None => Self::of(model, revision),
            Some(base) => {
                let base = Box::new(Self::of(base, revision)?);
                Ok(Self::Adapter(model.to_owned(), base))
            }
        }
    }

    /// Downloads what is missing of a model on the Hub. `report` is told how far the download is.
    pub(crate) fn fetched(self, report: &dyn Fn(Progress)) -> Result<Self, Failure> {
        match self {
            Self::Hub(model) => {
                let folder = model.open(report)?;
                Ok(Self::Fetched(model.repo.to_string(), folder))
            }
            Self::Adapter(folder, base) => {
                Ok(Self::Adapter(folder, Box::new(base.fetched(report)?)))
            }
            here => Ok(here),
        }
    }

    /// Returns the name under which the model is known: its folder, or its own.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Folder(path) | Self::Adapter(path, _) => path.display().to_string(),
            Self::Hub(model) => model.repo.to_string(),
            Self::Fetched(name, _) => name.clone(),
            Self::Embedded(files) => files.name.to_owned(),
        }
    }

    /// Opens the model's files; `tokenizers` is the folder of compiled tokenizers, if there is one.
    /// `is_plain` says not to look at what makes it a decision model.
    pub(crate) fn assets(
        &self,
        tokenizers: Option<&Path>,
        is_plain: bool,
    ) -> Result<Assets, LoadError> {
        let open = match is_plain {
            true => Assets::open_plain,
            false => Assets::open_cached,
        };
        match self {
            Self::Folder(path) => open(path, tokenizers),
            Self::Hub(model) => Err(LoadError::NoFolder(model.repo.to_string().into())),
            Self::Fetched(name, path) => {
                let mut assets = open(path, tokenizers)?;
                // The folder is named after a commit.
                assets.name.clone_from(name);
                Ok(assets)
            }
            Self::Embedded(files) => Assets::embedded(files),
            Self::Adapter(path, base) => match &**base {
                Self::Folder(base) | Self::Fetched(_, base) => {
                    Assets::open_adapter(path, base, tokenizers)
                }
                other => Err(LoadError::NoFolder(other.name().into())),
            },
        }
    }

    /// Loads the model, with a sign of life on a terminal and warnings on stderr.
    pub(crate) fn load(&self, options: &LoadOptions, devices: &Devices) -> Result<Loaded, Failure> {
        let assets = self.assets(options.tokenizer_cache.as_deref(), options.plain)?;
        loading::load_one(&self.name(), assets, options, devices)
    }
}

/// Writes a line for the person who runs the program.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    log::line(line);
}

/// Returns true if stderr is a terminal.
pub(crate) fn on_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Prints results. A reader that has seen enough (`| head`) ends the program quietly.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(Failure::new(
            Code::Failed,
            format_args!("cannot write the output: {e}"),
        )),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_settings_read_back() {
        let settings = Settings::default();
        let text = toml::to_string(&settings).unwrap();
        let read: Settings = toml::from_str(&text).unwrap();
        assert_eq!(toml::to_string(&read).unwrap(), text);
        for table in [
            "[server]",
            "[limits]",
            "[decide.calibration]",
            "[scheduler]",
            "[kv]",
            "[executor]",
        ] {
            assert!(text.contains(table), "{table} in {text}");
        }
    }

    #[test]
    fn a_missing_gguf_file_is_no_name_on_the_hub() {
        let of = |model: &str| Source::of(model.as_ref(), None);
        assert!(matches!(of("models/none.gguf"), Ok(Source::Folder(_))));
        assert!(matches!(of("models/none"), Ok(Source::Hub(_))));
    }

    #[test]
    fn unknown_settings_are_refused() {
        for text in ["[server]\nprot = 1", "[kv]\nx = 1", "speed = 9"] {
            assert!(toml::from_str::<Settings>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn variables_win_over_the_file() {
        let read = |variables: &[(&str, &str)]| {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            Settings::read(None, &variables.iter().map(owned).collect::<Vec<_>>())
        };
        let settings = read(&[
            ("LIMITS__ROWS", "7"),
            ("SERVER__HOST", "0.0.0.0"),
            ("SERVER__CORS_ORIGINS", "[\"https://a.example\"]"),
            ("DECIDE__CALIBRATION__CHOICE", "1.5"),
        ]);
        let settings = settings.unwrap();
        let config = settings.server_config();
        assert_eq!(
            (config.limits.rows, config.host.to_string()),
            (7, "0.0.0.0".to_owned())
        );
        assert_eq!(config.cors_origins, ["https://a.example"]);
        assert_eq!(config.decide.calibration.choice, 1.5);
        let check = |name: &str, value: &str| {
            let failure = read(&[(name, value)]).unwrap_err();
            assert_eq!(failure.code(), 2);
            assert!(
                failure.to_string().contains(&format!("PRELUDE_{name}")),
                "{failure}"
            );
        };
        check("LIMITS__RAWS", "7");
        check("LIMITS__ROWS", "many");
        check("LIMITS__ROWS__MORE", "1");
        check("WINGS__SPAN", "2");
        let failure = read(&[("LIMITS__KEEP_ALIVE_MS", "9223372036854775807")]).unwrap_err();
        assert!(
            failure.to_string().contains("limits.keep_alive_ms"),
            "{failure}"
        );
    }

    #[test]
    fn flags_win_over_settings() {
        let settings: Settings = toml::from_str("[kv]\nblock_size = 32\nnum_blocks = 9").unwrap();
        let args = ModelArgs {
            block_size: Some(8),
            ..ModelArgs::default()
        };
        let options = settings.load_options(&args);
        assert_eq!(options.executor.block_size, 8);
        assert_eq!(options.executor.num_blocks, Some(9));
        let blocks = |args| settings.load_options(&args).executor.num_blocks;
        assert_eq!(blocks(ModelArgs::default()), Some(9));
        let flag = ModelArgs {
            kv_blocks: Some(5),
            ..ModelArgs::default()
        };
        assert_eq!(blocks(flag), Some(5));
    }
}
