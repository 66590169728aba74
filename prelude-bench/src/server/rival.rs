//! Other servers and libraries of the same models, by the table in `rivals.toml`: installed into a
//! folder that git ignores, never compiled in.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    sync::LazyLock,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use prelude_measure::{
    process::{Output, Process, free_address},
    server::{Server, is_healthy},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Config;

/// A rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Rival {
    /// vLLM's build for processors.
    Vllm,
    /// The server of llama.cpp: --llama-server names the program.
    LlamaCpp,
    /// sentence-transformers on torch: a library, for the part `encoders` alone.
    SentenceTransformers,
    /// ONNX Runtime on models that torch exports: a library, for the part `encoders` alone.
    OnnxRuntime,
    /// OpenVINO on models that it converts from torch: a library, for the part `encoders` alone.
    Openvino,
    /// infinity, a server of encoders on torch: for the part `encoders` alone.
    Infinity,
    /// Hugging Face's text-embeddings-inference, for the part `encoders` alone: --tei names the
    /// program, which no package index carries.
    Tei,
    /// The server of Laya's authors: for the part `decisions` alone.
    Laya,
    /// The same server on ONNX Runtime: for the part `decisions` alone.
    LayaOnnx,
    /// sys1, a server of Layas in Rust: for the part `decisions` alone.
    Sys1,
}

/// The entry of a rival.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct About {
    pub(super) title: String,
    folder: String,
    #[serde(default)]
    pip: Vec<Vec<String>>,
    #[serde(default)]
    python: Vec<String>,
    /// The crate whose program cargo compiles for this processor.
    #[serde(rename = "crate")]
    of_crate: Option<String>,
    program: Option<String>,
    /// The option that names its program, where it has none of its own.
    option: Option<String>,
    #[serde(default)]
    start: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The models that it serves, and the arguments that each takes.
    serves: BTreeMap<String, Vec<String>>,
    pub(super) rerank: Option<[String; 2]>,
    /// True if targets are set against it.
    #[serde(default)]
    pub(super) is_aimed_at: bool,
    /// True if its program says its version.
    #[serde(default)]
    tells_version: bool,
    /// The ways in which a library is called: a title and the script's arguments.
    #[serde(default)]
    ways: BTreeMap<String, [String; 2]>,
}

static RIVALS: LazyLock<BTreeMap<String, About>> =
    LazyLock::new(|| toml::from_str(include_str!("rivals.toml")).expect("a test reads the table"));

/// The package that compiles llama.cpp for the processor that it is installed on: ten minutes on
/// two cores.
const LLAMA_CPP: &str = "llama-cpp-python==0.3.36";
/// A program that writes a Qwen3 model as llama.cpp reads it.
const CONVERT: &str = include_str!("rival/gguf.py");
/// A program that calls libraries of encoders.
const LIBRARIES: &str = include_str!("rival/sentence_transformers.py");
/// Longest start: some compile their kernels then.
const START_WITHIN: Duration = Duration::from_secs(400);

/// A rival that has loaded a model, and its title.
pub(super) enum Running {
    Server(Server),
    Library(Library),
}

impl Rival {
    pub(super) fn about(self) -> &'static About {
        let name = self.to_possible_value().expect("none is left out");
        &RIVALS[name.get_name()]
    }

    /// Installs it below `out`; of llama.cpp only what writes its format. What is there already is
    /// kept.
    ///
    /// # Errors
    /// If a package cannot be had.
    pub(crate) fn install(self, out: &Path) -> Result<()> {
        let About {
            pip,
            python,
            of_crate,
            ..
        } = self.about();
        if let Some(of_crate) = of_crate {
            let root = self.folder(out);
            let native = "build.rustflags=['-Ctarget-cpu=native']";
            let root = root.to_string_lossy();
            let args = [
                "install", of_crate, "--locked", "--config", native, "--root", &root,
            ];
            return run(Path::new("cargo"), &args);
        }
        if pip.is_empty() {
            return Ok(());
        }
        if !self.python(out).exists() {
            let folder = self.folder(out);
            run(
                Path::new("python3"),
                &["-m", "venv", &folder.to_string_lossy()],
            )?;
        }
        for packages in pip {
            self.pip(out, packages)?;
        }
        let mut scripts = python.iter();
        scripts.try_for_each(|script| run(&self.python(out), &["-c", script]))
    }

    /// Installs packages into its environment.
    fn pip(self, out: &Path, packages: &[String]) -> Result<()> {
        let mut call = vec!["-m", "pip", "install", "-q", "--disable-pip-version-check"];
        call.extend(packages.iter().map(String::as_str));
        run(&self.python(out), &call)
    }

    /// Installs llama.cpp below `out` so that it can be called in process.
    ///
    /// # Errors
    /// If the package cannot be had or does not compile.
    pub(crate) fn install_llama_cpp(out: &Path) -> Result<()> {
        Self::LlamaCpp.install(out)?;
        Self::LlamaCpp.pip(out, &[LLAMA_CPP.to_owned()])
    }

    /// Returns the path of `model` in llama.cpp's format, and writes that first if it is not there.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn llama_cpp_model(out: &Path, model: &Path) -> Result<PathBuf> {
        let folder = Self::LlamaCpp.folder(out);
        let name = name_of(model);
        let file = folder.join(format!("{name}.gguf"));
        if file.exists() {
            return Ok(file);
        }
        // Renamed when it is whole.
        let part = folder.join(format!("{name}.part"));
        let (from, to) = (model.to_string_lossy(), part.to_string_lossy());
        let python = Self::LlamaCpp.python(out);
        run(&python, &["-c", CONVERT, &from, &to]).context("the model in llama.cpp's format")?;
        fs::rename(&part, &file).with_context(|| format!("cannot make {}", file.display()))?;
        Ok(file)
    }

    fn folder(self, out: &Path) -> PathBuf {
        out.join(&self.about().folder)
    }

    /// Returns the interpreter of the environment that it is installed into.
    pub(crate) fn python(self, out: &Path) -> PathBuf {
        self.folder(out).join("bin/python")
    }

    /// Returns the path of its program, if there is one.
    fn program(self, config: &Config) -> Option<PathBuf> {
        match (&self.about().program, self) {
            (Some(program), _) => Some(self.folder(&config.out).join(program)),
            (None, Self::Tei) => config.tei.clone(),
            (None, _) => config.llama_server.clone(),
        }
    }

    /// Returns the step that is missing before it can be started.
    pub(super) fn lacks(self, config: &Config) -> Option<String> {
        let About {
            option,
            pip,
            of_crate,
            ..
        } = self.about();
        let Some(program) = self.program(config) else {
            let option = option.as_deref().unwrap_or_default();
            return Some(format!("name its program with {option}"));
        };
        let python = !pip.is_empty() && !self.python(&config.out).exists();
        if python || of_crate.is_some() && !program.exists() {
            return Some("it is not installed; --install-rivals does that".to_owned());
        }
        (!program.exists()).then(|| "its program is not there".to_owned())
    }

    /// Returns the version that the program reports, unless the title has it.
    pub(super) fn version(self, config: &Config) -> Option<String> {
        let program = self
            .program(config)
            .filter(|_| self.about().tells_version)?;
        let output = Command::new(program).arg("--version").output().ok()?;
        // Some releases say it on one, some on the other.
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let line = said.lines().find_map(|line| line.strip_prefix("version: "));
        line.map(|line| format!("version {}", line.trim()))
    }

    /// Starts it on a model's folder, under the folder's name, in each of its ways; of each the title
    /// and what runs.
    pub(super) fn start(
        self,
        config: &Config,
        serve: &str,
        model: &Path,
    ) -> Vec<(String, Result<Running>)> {
        let about = self.about();
        if about.ways.is_empty() {
            let server = self.server(config, serve, model).map(Running::Server);
            return vec![(about.title.clone(), server)];
        }
        let library = |(title, way): (&String, &[String; 2])| {
            let library = self.library(config, (title, way), serve, model);
            (title.clone(), library.map(Running::Library))
        };
        about.ways.iter().map(library).collect()
    }

    fn server(self, config: &Config, serve: &str, model: &Path) -> Result<Server> {
        let about = self.about();
        let more = about.serves.get(serve);
        let more = more.with_context(|| format!("it does not serve {serve}"))?;
        ensure!(model.is_dir(), "{} is no folder", model.display());
        let address = free_address()?;
        let name = name_of(model);
        let gguf = match self {
            Self::LlamaCpp => Self::llama_cpp_model(&config.out, model)?,
            _ => PathBuf::new(),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let filled = |argument: &String| {
            argument
                .replace("{model}", &model.to_string_lossy())
                .replace("{gguf}", &gguf.to_string_lossy())
                .replace("{name}", &name)
                .replace("{port}", address.rsplit(':').next().unwrap_or_default())
                .replace("{cores}", &cores.to_string())
        };
        let mut command = Command::new(self.program(config).context("no program to start")?);
        command.args(about.start.iter().map(filled)).args(more);
        let env = about.env.iter().map(|(name, value)| (name, filled(value)));
        command.envs(env).env("HF_HUB_OFFLINE", "1");
        let log = config.out.join(format!("{}-{name}.log", about.folder));
        Server::at(address, &mut command, &log, START_WITHIN, is_healthy)
    }

    fn library(
        self,
        config: &Config,
        (title, way): (&str, &[String; 2]),
        serve: &str,
        model: &Path,
    ) -> Result<Library> {
        ensure!(
            self.about().serves.contains_key(serve),
            "it is a library: --only encoders measures it"
        );
        let mut command = Command::new(self.python(&config.out));
        command
            .args(["-c", LIBRARIES])
            .arg(model)
            .arg(serve)
            .args(way);
        command
            .env("HF_HUB_OFFLINE", "1")
            .env("TOKENIZERS_PARALLELISM", "false");
        let log = config
            .out
            .join(format!("{}-{}.log", way.join("-"), name_of(model)));
        let mut process = Process::start(&mut command, Output::Piped(Some(&log)))?;
        let (input, output) = process.pipes().context("pipes to the library")?;
        let mut library = Library {
            title: title.to_owned(),
            input,
            output: BufReader::new(output),
            log,
            _process: process,
        };
        let ready = library.line()?;
        ensure!(ready == "ready", "{title} said {ready:?}, not ready");
        Ok(library)
    }
}

/// A library in a Python process that measures itself when it is asked to.
pub(super) struct Library {
    title: String,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    log: PathBuf,
    /// Ends with its input.
    _process: Process,
}

impl Library {
    /// Returns the median of milliseconds for a text alone, or the texts per second of several at
    /// once: of the texts in `file`.
    pub(super) fn measure(&mut self, file: &Path, load: &crate::load::Load) -> Result<f64> {
        let asked: Value = json!({
            "texts": file, "at_once": load.connections,
            "warm_up": load.warm_up.as_secs_f64(), "seconds": load.time.as_secs_f64(),
        });
        writeln!(self.input, "{asked}")?;
        let line = self.line()?;
        let value = line.parse();
        value.with_context(|| format!("{} printed `{line}`, no number", self.title))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let log = self.log.display();
        ensure!(!line.is_empty(), "{} ended; see {log}", self.title);
        Ok(line.trim().to_owned())
    }
}

/// Returns the name of a model's folder.
fn name_of(model: &Path) -> String {
    let name = model.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn run(program: &Path, args: &[&str]) -> Result<()> {
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .status();
    let status = status.with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(status.success(), "{} failed: {status}", program.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rival_has_its_entry() {
        for rival in Rival::value_variants() {
            let about = rival.about();
            assert_eq!(about.ways.is_empty(), !about.start.is_empty(), "{rival:?}");
            assert_ne!(about.program.is_some(), about.option.is_some(), "{rival:?}");
        }
        assert_eq!(RIVALS.len(), Rival::value_variants().len());
    }
}
