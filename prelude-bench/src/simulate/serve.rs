//! The command `sim serve` of the program.

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result};
use prelude_bench::sim::{EngineConfig, EngineModel, Preset, serve::Serving};
use prelude_server::profile;

use crate::Policy;

const EXAMPLES: &str = "\
Example, with a picker and Envoy before sixteen engines:
  prelude-bench sim serve --engines 16 --port 8101
  prelude-epp $(seq -f '--endpoint 127.0.0.1:%.0f' 8101 8116)
  prelude-epp envoy-config $(seq -f '--endpoint 127.0.0.1:%.0f' 8101 8116) > envoy.yaml
  envoy -c envoy.yaml

A prompt's tokens are four bytes of its text each. Answers take the time that the model says, and
their texts are made up.";

/// Serves modelled engines over HTTP: each is a real scheduler before a device that takes time and
/// computes nothing.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Number of engines, at consecutive ports.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    engines: u16,
    /// Address at which the engines listen.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port of the first engine; 0 gives each engine a free port.
    #[arg(long, default_value_t = 8101)]
    port: u16,
    /// Model of an engine: the time of its iterations and the size of its memory.
    #[arg(long, default_value = "mistral-7b-a6000")]
    preset: Preset,
    /// Profile of an engine of ours, which `prelude profile` wrote, in place of a preset.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    profile: Option<PathBuf>,
    /// Policy that orders the waiting requests of an engine.
    #[arg(long, default_value = "fcfs")]
    policy: Policy,
    /// Number of tokens whose keys and values an engine can hold [default: the preset's].
    #[arg(long, value_parser = clap::value_parser!(u64).range(16..))]
    kv_tokens: Option<u64>,
}

/// Serves until the program is interrupted. Returns what is printed then: nothing.
pub(super) fn run(args: Args) -> Result<String> {
    let model = match &args.profile {
        Some(path) => EngineModel::Measured(Arc::new(profile::read(path)?)),
        None => args.preset.into(),
    };
    let (_, policy) = args.policy.config();
    let mut config = EngineConfig::new(model, policy);
    config.kv_tokens = args.kv_tokens.unwrap_or(config.kv_tokens);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build();
    runtime
        .context("cannot start the event loop")?
        .block_on(async {
            let serving = Serving::bind(&config, args.engines, args.host, args.port).await?;
            for address in serving.addresses()? {
                println!("listening on http://{address}");
            }
            tokio::select! {
                ended = serving.run() => ended?,
                interrupted = tokio::signal::ctrl_c() => interrupted?,
            }
            Ok(String::new())
        })
}
