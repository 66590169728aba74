//! The models that a process serves: one, the demo models, or several that the command line
//! (`NAME=MODEL`) and the tables `[models.NAME]` of the settings name.

use std::{collections::BTreeMap, path::Path};

use indexmap::IndexMap;
use prelude_core::{Pooling, Profile};
use prelude_server::{
    ModelKind, ReasoningParser, ToolParser, demo,
    executor::{Device, DeviceChoice, Devices},
    load::LoadOptions,
    profile,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::path::PathBuf;
use toml::Table;

use super::{Code, Failure, Settings, Source, host_alone};
use crate::{
    args::{GenerationConfig, ModelArgs},
    wording,
};

/// The tables `[models.NAME]`, in the order in which they were given. The first model answers requests
/// that name none, as far as it serves what they ask for.
pub(crate) type Models = IndexMap<String, ModelSettings>;

/// Settings of one of several models. What is absent is as the process's settings say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ModelSettings {
    /// Folder of the model, its name on the Hugging Face Hub, or `demo-lm` or `demo-classifier`.
    /// Required, unless the command line says `NAME=MODEL`.
    pub(crate) model: Option<PathBuf>,
    /// Branch, tag or commit of a model on the Hub (default `main`).
    pub(crate) revision: Option<String>,
    /// The model that `model`, the folder of a LoRA adapter, changes: a folder, or a name on the Hub, of
    /// which `revision` is then (default the folder that the adapter names).
    pub(crate) base: Option<PathBuf>,
    /// Words in which a language model is asked typed questions: `prelude-decide-1` (default), `tev1`, or a
    /// file in TOML.
    pub(crate) decide_format: Option<String>,
    /// True to serve the plain model of a folder with files by which a decision model decides (default
    /// false).
    pub(crate) plain: Option<bool>,
    /// Further names by which requests may ask for the model (default none).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) aliases: Vec<String>,
    /// Device: `auto` (default), `cpu`, `cuda` or `cuda:N`. Auto is the CPU if there are several models.
    pub(crate) device: Option<DeviceChoice>,
    /// Task of the checkpoint, where there is a choice: `lm`, `reranker`, `embedding`, `classifier` or
    /// `reward`.
    pub(crate) kind: Option<ModelKind>,
    /// Longest sequence served, in tokens (default the model's own limit). Less needs less memory.
    pub(crate) max_model_len: Option<u32>,
    /// True if texts over the context are cut, unless a request says otherwise, where they are
    /// classified, ranked or embedded (default false: they are refused).
    pub(crate) auto_truncate: Option<bool>,
    /// File of a chat template instead of the model's own.
    pub(crate) chat_template: Option<PathBuf>,
    /// Prompt about a query and a document: `qwen3`, or a template file. Makes a language or reward
    /// model rank documents.
    pub(crate) rerank_template: Option<PathBuf>,
    /// Pooling of embeddings: `cls`, `last` or `mean`. Makes a language model serve them too.
    pub(crate) pooling: Option<Pooling>,
    /// Source of sampling parameters that requests leave out: `auto` (default) is
    /// `generation_config.json`, `none` leaves them neutral.
    pub(crate) generation_config: Option<GenerationConfig>,
    /// Form of the model's reasoning, in place of `server.reasoning_parser`.
    pub(crate) reasoning_parser: Option<ReasoningParser>,
    /// Form of the model's tool calls, in place of `server.tool_parser`.
    pub(crate) tool_parser: Option<ToolParser>,
    /// Settings over those of `[scheduler]`.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) scheduler: Table,
    /// Settings over those of `[kv]`.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) kv: Table,
    /// Settings over those of `[executor]`.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) executor: Table,
    /// Settings over those of `[cuda]`.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) cuda: Table,
    /// Settings over those of `[profile]`.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) profile: Table,
    /// Settings over those of `[decide.calibration]`.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) calibration: Table,
}

impl Settings {
    /// Returns the settings of the model `name`: its own over the process's.
    ///
    /// # Errors
    /// If one of its tables has an unknown setting or a value of a wrong type.
    pub(crate) fn of_model(&self, name: &str, own: &ModelSettings) -> Result<Self, Failure> {
        fn over<T: Clone + Serialize + DeserializeOwned>(
            base: &mut T,
            own: &Table,
            place: &str,
        ) -> Result<(), Failure> {
            if own.is_empty() {
                return Ok(());
            }
            let wrong = |why: &dyn std::fmt::Display| {
                Failure::new(Code::Usage, format_args!("cannot use {place}: {why}"))
            };
            let mut table = Table::try_from(&*base).map_err(|e| wrong(&e))?;
            merge(&mut table, own);
            *base = table.try_into().map_err(|e| wrong(&e))?;
            Ok(())
        }
        let mut settings = self.clone();
        let place = |table: &str| format!("models.{name}.{table}");
        over(&mut settings.scheduler, &own.scheduler, &place("scheduler"))?;
        over(&mut settings.kv, &own.kv, &place("kv"))?;
        over(&mut settings.executor, &own.executor, &place("executor"))?;
        over(&mut settings.cuda, &own.cuda, &place("cuda"))?;
        over(&mut settings.profile, &own.profile, &place("profile"))?;
        let calibration = &mut settings.decide.calibration;
        over(calibration, &own.calibration, &place("calibration"))?;
        let server = &mut settings.server;
        server.reasoning_parser = own.reasoning_parser.or(server.reasoning_parser);
        server.tool_parser = own.tool_parser.or(server.tool_parser);
        Ok(settings)
    }

    /// Checks the tables of all models.
    ///
    /// # Errors
    /// If a name or a setting is malformed.
    pub(crate) fn check_models(&self) -> Result<(), Failure> {
        for (name, own) in &self.models {
            check_name(name)?;
            for alias in &own.aliases {
                check_name(alias)?;
            }
            self.of_model(name, own)?;
        }
        Ok(())
    }
}

/// Puts the settings of `own` into `table`; tables in both are joined.
fn merge(table: &mut Table, own: &Table) {
    for (key, value) in own {
        match (table.get_mut(key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(own)) => merge(inner, own),
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Checks a name by which requests are to ask for a model.
fn check_name(name: &str) -> Result<(), Failure> {
    if name.is_empty() || name.chars().any(char::is_control) {
        let message = format_args!(
            "the model name {name:?} cannot be asked for: it must have at least one character and no \
             control characters"
        );
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(())
}

/// Splits an argument `NAME=MODEL`; `None` if it is a model without a name: a folder that is there, or
/// a path.
fn named(argument: &Path) -> Option<(&str, &str)> {
    if argument.is_dir() {
        return None;
    }
    let (name, model) = argument.to_str()?.split_once('=')?;
    (!name.starts_with(['.', '/'])).then_some((name, model))
}

/// Returns the model of the command line that has no name, if there is one alone.
pub(crate) fn lone(arguments: &[PathBuf]) -> Option<&Path> {
    match arguments {
        [argument] if named(argument).is_none() => Some(argument),
        _ => None,
    }
}

/// Puts the models of the command line that have names, `NAME=MODEL`, into the settings, in their
/// order. A table of the same name has their settings.
///
/// # Errors
/// If several models have no names, if two have one name, or if the settings have a model that the
/// command line does not name.
pub(crate) fn put(arguments: &[PathBuf], models: &mut Models) -> Result<(), Failure> {
    let wrong = |message: String| Err(Failure::new(Code::Usage, message));
    if arguments.is_empty() {
        return match models.iter().find(|(_, own)| own.model.is_none()) {
            Some((name, _)) => wrong(format!(
                "models.{name}.model is missing: name a folder or a model on the Hugging Face Hub \
                 there, or start with {name}=MODEL"
            )),
            None => Ok(()),
        };
    }
    let mut chosen = Models::new();
    for argument in arguments {
        let Some((name, model)) = named(argument) else {
            if arguments.len() == 1 && models.is_empty() {
                return Ok(());
            }
            return wrong(format!(
                "{0} needs a name where several models are served: NAME={0}",
                argument.display()
            ));
        };
        check_name(name)?;
        if model.is_empty() {
            return wrong(format!(
                "{name}= names no model; write {name}=MODEL with a folder or a name on the Hugging \
                 Face Hub"
            ));
        }
        let mut own = models.shift_remove(name).unwrap_or_default();
        own.model = Some(model.into());
        if chosen.insert(name.to_owned(), own).is_some() {
            return wrong(format!("two models are named {name}"));
        }
    }
    if let Some(name) = models.keys().next() {
        return wrong(format!(
            "the settings have a model {name} that the command line does not name; add {name}=MODEL \
             to it, or remove [models.{name}]"
        ));
    }
    *models = chosen;
    Ok(())
}

/// The flags that concern models.
pub(crate) struct Flags<'a> {
    pub(crate) model: &'a ModelArgs,
    pub(crate) generation_config: Option<GenerationConfig>,
    pub(crate) served_model_name: &'a [String],
    /// True if `--profile` is given.
    pub(crate) has_profile: bool,
    /// Puts flags over settings.
    pub(crate) put: &'a dyn Fn(Settings) -> Result<Settings, Failure>,
}

impl Flags<'_> {
    /// Returns a flag that says something of one model, with the setting that says it of one of
    /// several.
    fn of_one_model(&self) -> Option<(&'static str, &'static str)> {
        let model = self.model;
        let given = [
            (model.revision.is_some(), "--revision", "revision"),
            (model.base.is_some(), "--base", "base"),
            (model.plain, "--plain", "plain"),
            (
                model.decide_format.is_some(),
                "--decide-format",
                "decide_format",
            ),
            (model.kind.is_some(), "--kind", "kind"),
            (
                model.max_model_len.is_some(),
                "--max-model-len",
                "max_model_len",
            ),
            (
                model.chat_template.is_some(),
                "--chat-template",
                "chat_template",
            ),
            (
                model.rerank_template.is_some(),
                "--rerank-template",
                "rerank_template",
            ),
            (model.pooling.is_some(), "--pooling", "pooling"),
            (self.has_profile, "--profile", "profile.file"),
        ];
        let given = given.into_iter().find(|(is_given, ..)| *is_given);
        given.map(|(_, flag, setting)| (flag, setting))
    }
}

/// A model to be served.
#[derive(Debug)]
pub(crate) struct ToServe {
    /// The place of the model's files.
    pub(crate) source: Source,
    /// The options of loading the model. Those of several models have a name.
    pub(crate) options: LoadOptions,
    /// Further names by which requests may ask for the model.
    pub(crate) aliases: Vec<String>,
    /// The device that the model runs on.
    pub(crate) devices: Devices,
    /// The profile in its settings, and whether the profile is for this model alone.
    pub(crate) profile: Option<(Profile, bool)>,
}

impl ToServe {
    /// Returns the name by which the model is known before it is loaded.
    pub(crate) fn name(&self) -> String {
        match &self.options.name {
            Some(name) => name.clone(),
            None => self.source.name(),
        }
    }
}

/// Returns the models to serve: those of the settings, or else `lone`, or else the demo models.
///
/// # Errors
/// If a flag does not go with them, two have one name, or several would share a GPU without bounds.
pub(crate) fn choose(
    lone: Option<&Path>,
    settings: &Settings,
    flags: &Flags<'_>,
) -> Result<Vec<ToServe>, Failure> {
    if settings.models.is_empty() {
        return unlisted(lone, settings, flags);
    }
    let wrong = |message: String| Err(Failure::new(Code::Usage, message));
    if !flags.served_model_name.is_empty() {
        return wrong(
            "--served-model-name is for a model without a name; further names of NAME=MODEL are \
             `aliases` in [models.NAME]"
                .to_owned(),
        );
    }
    if settings.models.len() > 1
        && let Some((flag, setting)) = flags.of_one_model()
    {
        return wrong(format!(
            "{flag} is for one model, and {} are served; set {setting} in [models.NAME]",
            settings.models.len()
        ));
    }
    let machine = Devices::of_machine();
    let mut models = Vec::new();
    let mut unbounded: BTreeMap<u32, Vec<(&str, bool)>> = BTreeMap::new();
    for (name, own) in &settings.models {
        let model = listed(name, own, settings, flags, &machine);
        let (model, device) = model.map_err(|failure| failure.of(name))?;
        if let Device::Cuda(ordinal) = device {
            let executor = &model.options.executor;
            let is_bounded = executor.kv_bytes.is_some() || executor.num_blocks.is_some();
            unbounded
                .entry(ordinal)
                .or_default()
                .push((name, is_bounded));
        }
        models.push(model);
    }
    check_gpus(&unbounded)?;
    check_names(models.iter().flat_map(|model| {
        let name = model.options.name.iter();
        name.chain(&model.aliases).map(String::as_str)
    }))?;
    Ok(models)
}

/// Returns the model that the settings list as `name`, and its device.
fn listed(
    name: &str,
    own: &ModelSettings,
    settings: &Settings,
    flags: &Flags<'_>,
    machine: &Devices,
) -> Result<(ToServe, Device), Failure> {
    let model = own.model.as_deref().expect("`put` refuses a table without");
    let count = settings.models.len();
    let settings = (flags.put)(settings.of_model(name, own)?)?;
    let mut options = settings.load_options(flags.model);
    options.name = Some(name.to_owned());
    options.kind = options.kind.or(own.kind);
    options.max_model_len = options.max_model_len.or(own.max_model_len);
    options.auto_truncate |= own.auto_truncate.unwrap_or(false);
    options.plain |= own.plain.unwrap_or(false);
    if let (None, Some(own)) = (&flags.model.decide_format, &own.decide_format) {
        let wording = wording::read(own).map_err(|e| Failure::new(Code::Usage, e))?;
        options.decide_format = *wording;
    }
    options.pooling = options.pooling.or(own.pooling);
    let chat_template = options.chat_template.take();
    options.chat_template = chat_template.or_else(|| own.chat_template.clone());
    let rerank_template = options.rerank_template.take();
    options.rerank_template = rerank_template.or_else(|| own.rerank_template.clone());
    let generation = flags.generation_config.or(own.generation_config);
    options.generation_config = generation.unwrap_or_default() == GenerationConfig::Auto;
    options.reasoning_parser = settings.server.reasoning_parser;
    options.tool_parser = settings.server.tool_parser;
    options.calibration = Some(settings.decide.calibration.clone());
    let revision = flags.model.revision.as_deref().or(own.revision.as_deref());
    let is_own = count == 1 || !own.profile.is_empty();
    let base = flags.model.base.as_deref().or(own.base.as_deref());
    let source = Source::on(base, model, revision)?;
    let choice = flags.model.device.or(own.device);
    let device = settings.device(choice, host_alone(&options, &source, count));
    let model = ToServe {
        source,
        aliases: own.aliases.clone(),
        devices: settings.devices_beside(machine, device)?,
        profile: profile_of(&settings)?.map(|profile| (profile, is_own)),
        options,
    };
    Ok((model, device.device))
}

/// Returns the model of the command line that has no name, or the demo models.
fn unlisted(
    lone: Option<&Path>,
    settings: &Settings,
    flags: &Flags<'_>,
) -> Result<Vec<ToServe>, Failure> {
    let mut names = flags.served_model_name.iter().cloned();
    if lone.is_none() && names.len() > 0 {
        let message = "--served-model-name needs a MODEL before it: everything behind it is a name, \
                       and the demo models keep theirs";
        return Err(Failure::new(Code::Usage, message));
    }
    let base = flags.model.base.as_deref();
    if lone.is_none() && base.is_some() {
        let message = "--base needs a MODEL, the folder of the adapter that it is the base of";
        return Err(Failure::new(Code::Usage, message));
    }
    let mut options = settings.load_options(flags.model);
    options.generation_config =
        flags.generation_config.unwrap_or_default() == GenerationConfig::Auto;
    options.name = names.next();
    let aliases: Vec<String> = names.collect();
    let profile = profile_of(settings)?;
    let sources = match lone {
        Some(model) => vec![Source::on(base, model, flags.model.revision.as_deref())?],
        None => vec![
            Source::Embedded(demo::LM),
            Source::Embedded(demo::CLASSIFIER),
        ],
    };
    let is_lone = sources.len() == 1;
    let devices = settings.devices(flags.model.device, &options, &sources[0])?;
    let model = |source| ToServe {
        source,
        options: options.clone(),
        aliases: aliases.clone(),
        devices: devices.clone(),
        profile: profile.clone().map(|profile| (profile, is_lone)),
    };
    Ok(sources.into_iter().map(model).collect())
}

/// Reads the profile that the settings name, if they name one.
fn profile_of(settings: &Settings) -> Result<Option<Profile>, Failure> {
    let profile = settings.profile.file.as_deref().map(profile::read);
    profile
        .transpose()
        .map_err(|e| Failure::new(Code::Usage, e))
}

/// Checks that models of one GPU say how many KV blocks they take: by default the first would take all
/// memory that is free. `gpus` has the models of each, and whether each of them says so.
fn check_gpus(gpus: &BTreeMap<u32, Vec<(&str, bool)>>) -> Result<(), Failure> {
    for (ordinal, models) in gpus.iter().filter(|(_, models)| models.len() > 1) {
        if let Some((name, _)) = models.iter().find(|(_, is_bounded)| !is_bounded) {
            let message = format_args!(
                "{} models share cuda:{ordinal}, and {name} would take all memory that is free there \
                 for KV blocks; set kv_bytes in [models.{name}.kv]",
                models.len()
            );
            return Err(Failure::new(Code::Usage, message));
        }
    }
    Ok(())
}

/// Checks that no two models, or names of a model, are the same.
pub(crate) fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Failure::new(
            Code::Usage,
            format_args!("the served name {} is given twice", pair[0]),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Settings {
        let settings: Settings = toml::from_str(text).unwrap();
        settings.check_models().unwrap();
        settings
    }

    fn paths(arguments: &[&str]) -> Vec<PathBuf> {
        arguments.iter().map(PathBuf::from).collect()
    }

    /// Returns the names that are served, or the refusal.
    fn names(arguments: &[&str], text: &str) -> Result<Vec<String>, String> {
        chosen(arguments, text, &ModelArgs::default())
            .map(|chosen| chosen.iter().map(ToServe::name).collect())
            .map_err(|failure| failure.to_string())
    }

    fn chosen(arguments: &[&str], text: &str, model: &ModelArgs) -> Result<Vec<ToServe>, Failure> {
        let (arguments, mut settings) = (paths(arguments), read(text));
        put(&arguments, &mut settings.models)?;
        let flags = Flags {
            model,
            generation_config: None,
            served_model_name: &[],
            has_profile: false,
            put: &Ok,
        };
        choose(lone(&arguments), &settings, &flags)
    }

    #[test]
    fn models_keep_the_order_in_which_they_are_given() {
        let check = |arguments: &[&str], text, expected: &[&str]| {
            assert_eq!(names(arguments, text).unwrap(), expected);
        };
        check(&["z=demo-lm", "a=demo-classifier"], "", &["z", "a"]);
        let tables = "[models.z]\nmodel = 'demo-lm'\n[models.a]\nmodel = 'demo-lm'";
        check(&[], tables, &["z", "a"]);
        check(&["a=demo-lm", "z=demo-lm"], tables, &["a", "z"]);
        check(&[], "", &["demo-lm", "demo-classifier"]);
        check(&["demo-classifier"], "", &["demo-classifier"]);
        check(&["owner/model"], "", &["owner/model"]);
    }

    #[test]
    fn models_that_cannot_be_told_apart_are_refused() {
        let check = |arguments: &[&str], text, part: &str| {
            let refusal = names(arguments, text).unwrap_err();
            assert!(refusal.contains(part), "{part:?} in {refusal}");
        };
        check(&["demo-lm", "demo-lm"], "", "NAME=demo-lm");
        check(&["a=demo-lm", "a=demo-lm"], "", "two models are named a");
        check(&["a=", "b=demo-lm"], "", "a= names no model");
        check(&["=demo-lm"], "", "at least one character");
        check(&[], "[models.a]", "models.a.model is missing");
        let one = "[models.a]\nmodel = 'demo-lm'\naliases = ['b']";
        check(&["b=demo-lm"], one, "remove [models.a]");
        check(&["demo-lm"], one, "needs a name");
        check(&["a=x/y", "b=x/y"], one, "the served name b is given twice");
    }

    #[test]
    fn a_folder_may_have_the_sign_in_its_path() {
        assert_eq!(named(Path::new("a=b/c")), Some(("a", "b/c")));
        assert_eq!(named(Path::new("a=b=c")), Some(("a", "b=c")));
        for path in ["./a=b", "/x/a=b", "a/b"] {
            assert_eq!(named(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn settings_of_a_model_are_over_those_of_the_process() {
        let settings = read(
            "[kv]\nnum_blocks = 64\nblock_size = 32\n[scheduler.laps]\nchunk_tokens = 100\n\
             [models.a]\nmodel = 'demo-lm'\nreasoning_parser = 'qwen3'\nkv.num_blocks = 8\n\
             scheduler.laps.batch_tokens = 200\ncalibration.noul = 2.0\n\
             [models.b]\nmodel = 'demo-lm'",
        );
        let of = |name: &str| settings.of_model(name, &settings.models[name]).unwrap();
        let (a, b) = (of("a"), of("b"));
        assert_eq!((a.kv.num_blocks, b.kv.num_blocks), (Some(8), Some(64)));
        assert_eq!((a.kv.block_size, b.kv.block_size), (Some(32), Some(32)));
        let laps = |settings: &Settings| {
            let laps = &settings.scheduler.laps;
            (laps.chunk_tokens, laps.batch_tokens)
        };
        let default = Settings::default().scheduler.laps.batch_tokens;
        assert_eq!((laps(&a), laps(&b)), ((100, 200), (100, default)));
        assert_eq!(a.server.reasoning_parser, Some(ReasoningParser::Qwen3));
        assert_eq!(b.server.reasoning_parser, None);
        let noul = |settings: &Settings| settings.decide.calibration.noul;
        assert_eq!((noul(&a), noul(&b)), (2.0, 1.0));
    }

    #[test]
    fn unknown_settings_of_a_model_are_refused_by_name() {
        let check = |text: &str, part: &str| {
            let read = toml::from_str::<Settings>(text).map_err(|e| e.to_string());
            let checked = read.and_then(|s| s.check_models().map_err(|e| e.to_string()));
            let refusal = checked.unwrap_err();
            assert!(refusal.contains(part), "{part:?} in {refusal}");
        };
        check("[models.a]\nkindd = 'lm'", "unknown field `kindd`");
        check("[models.a]\nkind = 'judge'", "unknown variant `judge`");
        check(
            "[models.a]\ndevice = 'tpu'",
            "must be auto, cpu, cuda or cuda:N",
        );
        check(
            "[models.a.kv]\nblocks = 1",
            "models.a.kv: unknown field `blocks`",
        );
        check(
            "[models.a.scheduler]\nslice_ms = 'x'",
            "models.a.scheduler: ",
        );
        check("[models.\"\"]\nmodel = 'x'", "at least one character");
    }

    #[test]
    fn flags_of_one_model_are_refused_for_several() {
        let model = ModelArgs {
            kind: Some(ModelKind::Reranker),
            kv_blocks: Some(77),
            ..ModelArgs::default()
        };
        let refusal = chosen(&["a=demo-lm", "b=demo-lm"], "", &model).unwrap_err();
        assert_eq!(refusal.code(), 2);
        assert!(
            refusal.to_string().contains("--kind is for one model"),
            "{refusal}"
        );
        let one = chosen(&["a=demo-lm"], "[models.a.kv]\nnum_blocks = 5", &model).unwrap();
        assert_eq!(one[0].options.kind, Some(ModelKind::Reranker));
        // Flags win over the settings of a model too.
        assert_eq!(one[0].options.executor.num_blocks, Some(77));
    }

    #[test]
    fn an_adapter_has_a_base() {
        let base = |arguments: &[&str], text: &str, flag: Option<&str>| {
            let model = ModelArgs {
                base: flag.map(PathBuf::from),
                ..ModelArgs::default()
            };
            let models = chosen(arguments, text, &model).unwrap();
            match &models[0].source {
                Source::Adapter(folder, base) => format!("{} {}", folder.display(), base.name()),
                other => other.name(),
            }
        };
        assert_eq!(base(&["./a"], "", Some("x/y")), "./a x/y");
        let table = "[models.a]\nmodel = './a'\nbase = './b'";
        assert_eq!(base(&[], table, None), "./a ./b");
        assert_eq!(base(&[], table, Some("./c")), "./a ./c");
        assert_eq!(base(&["./a"], "", None), "./a");
        let model = ModelArgs {
            base: Some("./b".into()),
            ..ModelArgs::default()
        };
        let refusal = chosen(&[], "", &model).unwrap_err().to_string();
        assert!(refusal.contains("--base needs a MODEL"), "{refusal}");
    }

    #[test]
    fn models_of_one_gpu_bound_their_kv_blocks() {
        let check = |models: &[(&str, bool)]| {
            let gpus = BTreeMap::from([(0, models.to_vec())]);
            check_gpus(&gpus).map_err(|failure| failure.to_string())
        };
        assert_eq!(check(&[("a", false)]), Ok(()));
        assert_eq!(check(&[("a", true), ("b", true)]), Ok(()));
        let refusal = check(&[("a", true), ("b", false)]).unwrap_err();
        assert!(
            refusal.contains("set kv_bytes in [models.b.kv]"),
            "{refusal}"
        );
    }
}
