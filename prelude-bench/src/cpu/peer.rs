//! Other engines, each in a Python process that measures itself when it is asked to.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use prelude_measure::driver::Driver;
use serde_json::{Value, json};

use super::{Work, shape};
use crate::server::Rival;

/// The rest before a measurement, in which the threads of the engine before go to sleep.
const REST: Duration = Duration::from_millis(250);

/// Another engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// vLLM's build for processors, compiled.
    Vllm,
    /// Hugging Face transformers on torch.
    Hf,
    /// llama.cpp, as the package llama-cpp-python compiles it for this processor.
    LlamaCpp,
}

/// An engine that is loaded.
pub(super) struct Running {
    peer: Peer,
    driver: Driver,
    /// Seconds of loading, without the import of its modules.
    pub(super) loaded: f64,
}

impl Peer {
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM 0.32, compiled",
            Self::Hf => "transformers",
            Self::LlamaCpp => "llama.cpp",
        }
    }

    const fn script(self) -> &'static str {
        match self {
            Self::Vllm => include_str!("vllm.py"),
            Self::Hf => include_str!("transformers.py"),
            Self::LlamaCpp => include_str!("llama_cpp.py"),
        }
    }

    /// Returns the rival whose environment it runs in. That of vLLM has transformers, too.
    const fn rival(self) -> Rival {
        match self {
            Self::Vllm | Self::Hf => Rival::Vllm,
            Self::LlamaCpp => Rival::LlamaCpp,
        }
    }

    /// Installs the engine below `out`.
    pub(super) fn install(self, out: &Path) -> Result<()> {
        match self {
            Self::Vllm | Self::Hf => Rival::Vllm.install(out),
            Self::LlamaCpp => Rival::install_llama_cpp(out),
        }
    }

    /// Returns the reason why it cannot be measured.
    pub(super) fn lacks(self, out: &Path) -> Option<&'static str> {
        let there = self.python(out).exists();
        (!there).then_some("it is not installed; --install-peers does that")
    }

    fn python(self, out: &Path) -> PathBuf {
        self.rival().python(out)
    }

    pub(super) fn start(self, out: &Path, model: &Path) -> Result<Running> {
        let model = match self {
            Self::Vllm | Self::Hf => model.to_owned(),
            Self::LlamaCpp => Rival::llama_cpp_model(out, model)?,
        };
        let log = out.join(format!("cpu-{}.log", self.title().replace([' ', ','], "-")));
        let mut command = Command::new(self.python(out));
        command.args(["-c", self.script()]).arg(model);
        command.arg(shape::VOCABULARY.to_string());
        let mut driver = Driver::start(self.title(), &mut command, Some(&log))?;
        let loaded = driver.line()?;
        let loaded = loaded.parse().context("the seconds of loading")?;
        Ok(Running {
            peer: self,
            driver,
            loaded,
        })
    }
}

impl Running {
    pub(super) const fn title(&self) -> &'static str {
        self.peer.title()
    }

    /// Returns the seconds that the work takes; of decoding, those of a step on average.
    pub(super) fn measure(&mut self, work: Work) -> Result<f64> {
        thread::sleep(REST);
        self.driver.number(asked(work))
    }
}

fn asked(work: Work) -> Value {
    match work {
        Work::Prompts { shared, count, own } => {
            json!({"shared": shared, "count": count, "own": own})
        }
        Work::Decode { rows, context } => json!({"rows": rows, "context": context}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_ends_is_said_with_its_log() {
        let dir = std::env::temp_dir().join(format!("prelude-peer-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("vllm/bin")).unwrap();
        assert!(
            Peer::Hf
                .lacks(&dir)
                .is_some_and(|why| why.contains("--install-peers"))
        );
        assert!(Peer::LlamaCpp.lacks(&dir).is_some());
        std::os::unix::fs::symlink("/bin/false", Peer::Hf.python(&dir)).unwrap();
        assert_eq!(Peer::Hf.lacks(&dir), None);
        let error = Peer::Hf.start(&dir, &dir).err().unwrap().to_string();
        assert!(error.contains("transformers ended; see"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
