//! Servers of encoders, asked over HTTP as ours is.

use std::{path::Path, process::Command, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::super::{
    jobs,
    models::{Model, Task},
    speed,
    texts::Texts,
};
use crate::{
    load::{Load, check},
    process::{Process, free_address},
    server::{Config, rival::Rival},
};

/// The name by which requests call the model.
const MODEL: &str = "made";

/// Longest start: vLLM compiles its kernels then.
const START_WITHIN: Duration = Duration::from_secs(400);

/// A server that has loaded a model.
pub(in crate::server::encoders) struct Server {
    pub(super) title: &'static str,
    /// The path of reranking, and the field of the texts there.
    rerank: [&'static str; 2],
    process: Process,
}

impl Server {
    /// Starts a server on a model's folder and waits until it is healthy.
    pub(super) fn start(
        config: &Config,
        rival: Rival,
        model: &Model,
        folder: &Path,
    ) -> Result<Self> {
        let address = free_address()?;
        let port = address.rsplit(':').next().unwrap_or_default().to_owned();
        let program = rival.program(config).context("no program to start")?;
        let mut command = Command::new(program);
        command.env("HF_HUB_OFFLINE", "1");
        let rerank = match rival {
            Rival::Vllm => {
                command
                    .arg("serve")
                    .arg(folder)
                    .args(["--runner", "pooling", "--served-model-name", MODEL])
                    .args(["--dtype", "bfloat16", "--disable-uvicorn-access-log"])
                    .args(["--host", "127.0.0.1", "--port", &port])
                    .env("VLLM_CPU_KVCACHE_SPACE", "1")
                    .env("VLLM_LOGGING_LEVEL", "WARNING")
                    .env("VLLM_NO_USAGE_STATS", "1");
                if model.task == Task::Embed {
                    command.args(["--convert", "embed"]);
                }
                ["/rerank", "documents"]
            }
            Rival::Infinity => {
                command
                    .args(["v2", "--engine", "torch", "--device", "cpu"])
                    .args(["--dtype", "bfloat16", "--no-bettertransformer"])
                    .args(["--batch-size", "64", "--url-prefix", "/v1"])
                    .args(["--served-model-name", MODEL, "--model-id"])
                    .arg(folder)
                    .args(["--host", "127.0.0.1", "--port", &port])
                    .args(["--no-model-warmup", "--log-level", "warning"])
                    .env("DO_NOT_TRACK", "1");
                ["/v1/rerank", "documents"]
            }
            Rival::Tei => {
                command
                    .args(["--dtype", "float32", "--served-model-name", MODEL])
                    .arg("--model-id")
                    .arg(folder)
                    .args(["--hostname", "127.0.0.1", "--port", &port])
                    .env("LOG_LEVEL", "warn");
                ["/rerank", "texts"]
            }
            _ => bail!("{} is no server of encoders", rival.title()),
        };
        let log = format!("{rival:?}-{}.log", model.name).to_lowercase();
        let log = config.out.join(log);
        Ok(Self {
            title: rival.title(),
            rerank,
            process: Process::rival(&mut command, address, &log, START_WITHIN)?,
        })
    }

    /// Returns what [`Peer::measure`](super::Peer::measure) does.
    pub(super) fn measure(&self, texts: &Texts, load: &Load) -> Result<f64> {
        let jobs = Arc::new(jobs(texts, self.rerank, Some(MODEL)));
        check(&self.process.address, &jobs.first(2))?;
        speed(self.title, &self.process.address, &jobs, load)
    }
}
