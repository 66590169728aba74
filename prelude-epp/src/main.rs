//! The program `prelude-epp`: the command line, the sources of engines, and signals. All else is in
//! the library.
#![forbid(unsafe_code)]

mod args;
mod sources;

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::{Context as _, Result};
use clap::Parser as _;
use fasttoken::Tokenizer;
use prelude_core::Profile;
use prelude_epp::{
    Config, Picker,
    endpoints::read_endpoints,
    envoy::EnvoyConfig,
    kv_events::{KvEventPorts, follow_kv_events},
    log,
    probe::{ProbeConfig, watch_health},
    server::{Limits, serve},
};
use prelude_router::RouterConfig;
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    flag,
};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use crate::args::{Cli, Command, EnvoyArgs, ServeArgs};

fn main() -> ExitCode {
    let Cli { command, serve } = Cli::parse();
    let done = match command {
        Some(Command::EnvoyConfig(args)) => print_envoy_config(args),
        None => run(&serve),
    };
    let code = match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::line(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    };
    log::flush();
    code
}

/// Prints a configuration of Envoy.
fn print_envoy_config(args: EnvoyArgs) -> Result<()> {
    let mut endpoints = args.engines.endpoints;
    if let Some(path) = &args.engines.endpoints_file {
        endpoints.extend(read_endpoints(path)?);
    }
    let config = EnvoyConfig {
        listen: args.listen.to_string(),
        admin: args.admin.to_string(),
        picker: args.picker.0,
        endpoints,
        dns: args.engines.dns.into_iter().map(|name| name.0).collect(),
        health_path: args.engines.health_path,
        sees_responses: !args.hide_responses,
    };
    std::io::stdout().write_all(config.to_yaml().as_bytes())?;
    Ok(())
}

fn run(args: &ServeArgs) -> Result<()> {
    let engines = &args.engines;
    let has_source = !engines.endpoints.is_empty()
        || engines.endpoints_file.is_some()
        || !engines.dns.is_empty();
    anyhow::ensure!(
        has_source,
        "no engines: name some by --endpoint HOST:PORT, --endpoints-file FILE or --dns NAME:PORT"
    );
    let tokenizer = { args.tokenizer.as_ref() }
        .map(Tokenizer::from_file)
        .transpose();
    let tokenizer = tokenizer.context("cannot load the tokenizer")?;
    let picker = Arc::new(Picker::new(config(args)?, tokenizer)?);
    runtime(args.threads)?.block_on(answer(picker, args))
}

/// Returns the runtime: on one thread nothing is handed from one to another.
fn runtime(threads: u16) -> Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads.into());
    }
    builder.enable_all().build().context("cannot start threads")
}

/// Lets the second signal to stop end the process whatever its threads wait for, and keeps SIGUSR1
/// and SIGUSR2, which tools send to have logs opened again, from ending it.
fn end_at_second_signal() -> Result<()> {
    let is_told = Arc::new(AtomicBool::new(false));
    for stop in [SIGTERM, SIGINT] {
        // In the handler itself, in this order.
        flag::register_conditional_shutdown(stop, 0, Arc::clone(&is_told))?;
        flag::register(stop, Arc::clone(&is_told))?;
    }
    for user in [SIGUSR1, SIGUSR2] {
        flag::register(user, Arc::default())?;
    }
    Ok(())
}

/// Answers until a signal ends it.
async fn answer(picker: Arc<Picker>, args: &ServeArgs) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    end_at_second_signal()?;
    log::start().context("cannot start threads")?;
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    log::line(format_args!("listening on {}", listener.local_addr()?));
    sources::start(&picker, &args.engines).await?;
    if picker.config().probes {
        let config = ProbeConfig {
            path: args.engines.health_path.clone(),
            every: args.probe_every,
            ..ProbeConfig::default()
        };
        tokio::spawn(watch_health(Arc::clone(&picker), config));
    }
    if let Some(events) = args.kv_events {
        let replay = args.kv_events_replay;
        let ports = KvEventPorts { events, replay };
        tokio::spawn(follow_kv_events(Arc::clone(&picker), ports));
    }
    let limits = Limits {
        drain_timeout: args.drain_timeout,
        ..Limits::default()
    };
    let draining = Arc::clone(&picker);
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        // Proxies learn by their health checks that this picker goes, and ask it no more.
        draining.drain();
        log::line(format_args!("draining"));
        sleep(args.drain_delay).await;
    };
    serve(picker, listener, limits, stop).await;
    Ok(())
}

fn config(args: &ServeArgs) -> Result<Config> {
    let mut config = Config {
        probes: !args.no_probes,
        max_body_bytes: args.max_body_bytes,
        max_buffered_bytes: args.max_buffered_bytes,
        body_timeout: args.body_timeout,
        sheddable: (!args.sheddable.is_empty()).then(|| args.sheddable.clone()),
        log_picks: args.log_picks,
        ..Config::default()
    };
    if let Some(path) = &args.router_config {
        let text = read(path)?;
        let router = toml::from_str::<RouterConfig>(&text);
        config.router = router.with_context(|| path.display().to_string())?;
    }
    if args.shed_ms.is_some() {
        config.router.shed_ms = args.shed_ms;
    }
    if let Some(path) = &args.profile {
        let profile = serde_json::from_str::<Profile>(&read(path)?);
        let profile = profile.with_context(|| path.display().to_string())?;
        config.service = profile.service;
        let capacity = &profile.capacity;
        config.kv_tokens = u64::from(capacity.num_blocks) * u64::from(capacity.block_size);
    }
    if let Some(tokens) = args.kv_tokens {
        config.kv_tokens = tokens;
    }
    Ok(config)
}

fn read(path: &Path) -> Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    // Asked before opening: opening a pipe would wait for its other end.
    let about = fs::metadata(path).with_context(cannot)?;
    anyhow::ensure!(about.is_file(), "{}: not a regular file", cannot());
    fs::read_to_string(path).with_context(cannot)
}

#[cfg(test)]
mod tests {
    use prelude_router::PolicyConfig;

    use super::*;

    /// Returns the config of a command line whose `@FILE` is a file with `text`.
    fn config_of(words: &[&str], name: &str, text: &str) -> Result<Config> {
        let file = format!("prelude-epp-{}-{name}", std::process::id());
        let file = std::env::temp_dir().join(file);
        fs::write(&file, text)?;
        let path = file.display().to_string();
        let words = words.iter().map(|word| word.replace("@FILE", &path));
        let cli = Cli::try_parse_from(["prelude-epp".to_owned()].into_iter().chain(words))?;
        let config = config(&cli.serve);
        fs::remove_file(&file)?;
        config
    }

    #[test]
    fn flags_become_knobs() {
        let flags = ["--endpoint", "a:1"];
        assert_eq!(config_of(&flags, "none", "").unwrap(), Config::default());
        let flags = [
            "--router-config",
            "@FILE",
            "--shed-ms",
            "7",
            "--sheddable",
            "batch",
            "--no-probes",
            "--kv-tokens",
            "9",
            "--body-timeout",
            "250ms",
        ];
        let text = "granule_tokens = 16\nshed_ms = 5\npolicy = \"min_cost\"";
        let found = config_of(&flags, "router", text).unwrap();
        assert_eq!(found.router.granule_tokens, 16);
        assert_eq!(found.router.policy, PolicyConfig::MinCost);
        assert_eq!(found.router.shed_ms, Some(7), "flags win");
        assert_eq!(found.sheddable, Some(vec!["batch".to_owned()]));
        assert_eq!((found.probes, found.kv_tokens), (false, 9));
        assert_eq!(found.body_timeout.as_millis(), 250);
        let wrong = config_of(&["--router-config", "@FILE"], "wrong", "granules = 1");
        assert!(format!("{:#}", wrong.unwrap_err()).contains("unknown field `granules`"));
    }

    #[test]
    fn a_profile_says_how_fast_engines_are_and_what_they_hold() {
        let text = r#"{
            "version": 1, "model": "m", "executor": "cpu",
            "capacity": {
                "block_size": 16, "num_blocks": 100, "max_step_tokens": 2048,
                "max_context_len": 1600, "vocab_size": 9, "pipeline_depth": 1, "passes": null
            },
            "service": {
                "floor_ms": 1.0, "per_cached_ms": 0.0, "base_ms": 2.0, "per_token_ms": 3.0,
                "per_pair_ms": 0.0, "decode_ms": 4.0
            },
            "prefill": [], "decode": []
        }"#;
        let found = config_of(&["--profile", "@FILE"], "profile", text).unwrap();
        assert_eq!(found.kv_tokens, 1600);
        assert_eq!(found.service.decode_ms, 4.0);
        let wrong = config_of(&["--profile", "@FILE"], "profile-wrong", "{}");
        assert!(format!("{:#}", wrong.unwrap_err()).contains("missing field"));
    }
}
