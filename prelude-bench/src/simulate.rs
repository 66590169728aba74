//! The command `sim` of the program: its flags, and the experiments that they describe.

mod serve;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::Policy;
use anyhow::{Context as _, Result, ensure};
use clap::builder::RangedU64ValueParser;
use indicatif::{ProgressBar, ProgressStyle};
use prelude_bench::sim::{
    EngineConfig, EngineModel, Experiment, Gaps, Kind, Order, Preset, Progress, Report, Router,
    Setting, Source, Sustained, compare, compare_sustained, sustained, trace,
};
use prelude_server::profile;

const EXAMPLES: &str = "\
Examples:
  prelude-bench sim --workload toolbench --rate 12
      3,600 requests for 480 tools on four engines, five seeds
  prelude-bench sim --workload agent --route round-robin,cache-aware,e2
      three routers, compared with the first
  prelude-bench sim --workload posts --engines 1 --policy fcfs,srjf --order shuffled --rate 4
      PrefillOnly's posts, users mixed, first come against shortest remaining job first
  prelude-bench sim --workload posts --engines 1 --prefixes 60 --rate 4 --preset qwen3-4b-h100 --host-tokens 0,1000000
      evicted prefixes computed again, against copied back from host memory
  prelude-bench sim --workload video --route round-robin,e2 --sustain
      the highest rate that each router sustains
  prelude-bench sim --workload posts --engines 2 --profile profile.json --policy fcfs,srjf
      engines of ours, as `prelude profile` measured them
  prelude-bench sim serve --engines 16 --port 8101
      sixteen modelled engines at the ports 8101 to 8116, for a picker and a proxy
  prelude-bench sim --trace mooncake_conversation.jsonl --engines 16 --kv-tokens 20000000
      a recorded hour, with caches that never evict

Time is virtual and no clock is read: the same arguments print the same figures. What they say is
what a policy does under the preset's or the profile's model of time, not how fast a GPU is.";

/// Simulates several engines: real schedulers and routers, modelled devices, virtual time.
///
/// A seeded workload is generated with the moments that its paper gives, or a trace is read. A
/// router sends each request to an engine, which batches, caches and evicts as the server would.
/// The output has medians over the seeds, with minimum and maximum.
#[derive(clap::Args)]
#[command(
    after_long_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Workload to simulate, reconstructed from the moments that its paper gives.
    #[arg(long, required_unless_present = "trace", conflicts_with = "trace")]
    workload: Option<Kind>,
    /// Recorded traffic to simulate instead: Azure's .csv (lengths only, no shared prefixes),
    /// Mooncake's .jsonl, or conversations (ShareGPT's .json, LMSYS-Chat-1M's .jsonl).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Number of engines. Workloads scale with it, as in their papers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    engines: u16,
    /// Requests per second over all engines. Several rates give a table each [default: the middle
    /// of the paper's range; the trace's rate].
    #[arg(long, value_delimiter = ',')]
    rate: Vec<f64>,
    /// A closed loop of so many clients, each of which sends its next request when the last one is
    /// answered, in place of a rate.
    #[arg(long, conflicts_with_all = ["trace", "rate", "sustain"], value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    clients: Option<usize>,
    /// Number of requests; of a trace, the first ones [default: the paper's number; all].
    #[arg(long)]
    requests: Option<u32>,
    /// Number of different prefixes: tools, tasks, problems, videos, documents, users or
    /// conversations [default: the paper's number].
    #[arg(long, conflicts_with = "trace")]
    prefixes: Option<u32>,
    /// Order in which requests of different prefixes arrive.
    #[arg(long, default_value = "shuffled", conflicts_with = "trace")]
    order: Order,
    /// Azure's chat trace, for the gaps between tool requests of `mixed` [default: gaps with its
    /// moments].
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    chat_gaps: Option<PathBuf>,
    /// Azure's code trace, for the gaps between video requests of `mixed` [default: gaps with its
    /// moments].
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    code_gaps: Option<PathBuf>,
    /// The first seed.
    #[arg(long, default_value_t = 1, conflicts_with = "trace")]
    seed: u64,
    /// Number of seeds, one run each.
    #[arg(long, default_value_t = 5, conflicts_with = "trace")]
    seeds: u64,
    /// Model of an engine: the time of its iterations and the size of its memory.
    #[arg(long, default_value = "mistral-7b-a6000")]
    preset: Preset,
    /// Profile of an engine of ours, which `prelude profile` wrote, in place of a preset: routers,
    /// policies and the simulated engines take their times from it.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    profile: Option<PathBuf>,
    /// Router that chooses an engine for each request. Several routers are compared with the first.
    #[arg(long, value_delimiter = ',', default_value = "e2")]
    route: Vec<Router>,
    /// Policy that orders the waiting requests of an engine. Several policies are compared with the
    /// first.
    #[arg(long, value_delimiter = ',', default_value = "fcfs")]
    policy: Vec<Policy>,
    /// Find the highest rate at which requests take at most three times as long as alone.
    #[arg(long, conflicts_with_all = ["trace", "json"])]
    sustain: bool,
    /// Error in percent (below 100) of each service time that the router predicts, randomly too
    /// high or too low.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..100))]
    time_error: u8,
    /// Factor by which the first engine takes longer than its model and the routers say.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    slow_first: f64,
    /// Largest number of tokens in a step of an engine [default: the preset's chunk size].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    step_tokens: Option<u32>,
    /// Number of tokens whose keys and values an engine can hold [default: the preset's].
    #[arg(long)]
    kv_tokens: Option<u64>,
    /// Number of tokens whose keys and values the host memory of an engine can hold for prefixes that
    /// its cache evicts. Several numbers are compared with the first.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    host_tokens: Vec<u64>,
    /// Microseconds to copy the keys and values of a token to or from host memory. 3 is 147 KB, a
    /// token of Qwen3-4B, at 50 GB/s.
    #[arg(long, value_name = "US", default_value_t = 3.0)]
    copy_us: f64,
    /// Tokens of a KV block.
    #[arg(long, default_value_t = 16)]
    block_size: u32,
    /// Print JSON instead of a table, with every run.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Serve modelled engines over HTTP, by the clock, for proxies and pickers.
    Serve(serve::Args),
}

/// Runs the command and returns what it prints.
pub(crate) fn run(mut args: Args) -> Result<String> {
    if let Some(Command::Serve(args)) = args.command.take() {
        return serve::run(args);
    }
    let rates: Vec<Option<f64>> = match &args.rate[..] {
        [] => vec![None],
        rates => rates.iter().copied().map(Some).collect(),
    };
    ensure!(
        !args.sustain || rates.len() == 1,
        "--sustain searches from one --rate on"
    );
    let (mut tables, mut all) = (Vec::new(), Vec::new());
    for rate in rates {
        let experiments = experiments(&args, rate)?;
        if args.sustain {
            let mut found: Vec<(Experiment, Sustained)> = Vec::new();
            for experiment in experiments {
                let rate = with_bar(|progress| sustained(&experiment, progress))?;
                found.push((experiment, rate));
            }
            return Ok(compare_sustained(&found));
        }
        let reports: Result<Vec<Report>> = experiments
            .iter()
            .map(|experiment| with_bar(|progress| experiment.run(progress)))
            .collect();
        let reports = reports?;
        tables.push(match &reports[..] {
            [report] => report.render(),
            _ => compare(&reports),
        });
        all.extend(reports);
    }
    if !args.json {
        return Ok(tables.join("\n"));
    }
    if let [report] = &all[..] {
        return Ok(report.json()? + "\n");
    }
    let all: Result<Vec<_>, _> = all.iter().map(Report::json).collect();
    Ok(format!("[{}]\n", all?.join(",\n")))
}

/// Returns the experiments of each router with each policy, with the same requests.
fn experiments(args: &Args, rate: Option<f64>) -> Result<Vec<Experiment>> {
    ensure!(args.block_size > 0, "--block-size must be at least 1");
    let slow = args.slow_first;
    ensure!(
        (1.0..=1000.0).contains(&slow),
        "--slow-first must be from 1 to 1000, not {slow}"
    );
    let copy_us = args.copy_us;
    ensure!(
        (0.0..=1e6).contains(&copy_us),
        "--copy-us must be from 0 to 1e6, not {copy_us}"
    );
    let source = source(args, rate)?;
    let model = match &args.profile {
        Some(path) => EngineModel::Measured(Arc::new(profile::read(path)?)),
        None => args.preset.into(),
    };
    let mut experiments = Vec::new();
    for &router in &args.route {
        for &policy in &args.policy {
            let (name, policy) = policy.config();
            let mut config = EngineConfig::new(model.clone(), policy);
            config.kv_tokens = args.kv_tokens.unwrap_or(config.kv_tokens);
            config.copy_us = copy_us;
            config.block_size = args.block_size;
            config.slow_first = args.slow_first;
            if let Some(tokens) = args.step_tokens {
                config = config.with_step_tokens(tokens);
            }
            experiments.extend(args.host_tokens.iter().map(|&host_tokens| Experiment {
                engines: usize::from(args.engines),
                config: EngineConfig {
                    host_tokens,
                    ..config.clone()
                },
                router,
                policy: name,
                time_error: f64::from(args.time_error) / 100.0,
                source: source.clone(),
            }));
        }
    }
    Ok(experiments)
}

fn source(args: &Args, rate: Option<f64>) -> Result<Source> {
    if let Some(path) = &args.trace {
        return recorded(path, rate, args.requests);
    }
    let kind = args.workload.context("--workload or --trace is needed")?;
    let gaps = |path: &Option<PathBuf>| match path {
        Some(path) => trace::read(path).map(|workload| trace::gaps(&workload)),
        None => Ok(Vec::new()),
    };
    let given = args.chat_gaps.is_some() || args.code_gaps.is_some();
    ensure!(
        kind == Kind::Mixed || !given,
        "--chat-gaps and --code-gaps are for --workload mixed"
    );
    let setting = Setting {
        engines: args.engines.into(),
        rate,
        requests: args.requests,
        prefixes: args.prefixes,
        order: args.order,
        gaps: Gaps {
            chat: gaps(&args.chat_gaps)?,
            code: gaps(&args.code_gaps)?,
        },
        clients: args.clients,
        seed: args.seed,
    };
    Ok(Source::Seeded {
        kind,
        setting,
        seeds: args.seeds,
    })
}

fn recorded(path: &Path, rate: Option<f64>, requests: Option<u32>) -> Result<Source> {
    let mut workload = trace::read(path)?;
    if let Some(requests) = requests {
        ensure!(requests > 0, "--requests must be at least 1");
        workload.arrivals.truncate(requests as usize);
    }
    if let Some(rate) = rate {
        let fine = rate.is_finite() && rate > 0.0;
        ensure!(fine, "--rate must be above 0, not {rate}");
        workload = workload.at_rate(rate);
    }
    Ok(Source::Trace(workload))
}

/// Runs an experiment with a progress bar.
fn with_bar<T>(run: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<T>) -> Result<T> {
    let bar = ProgressBar::new(0);
    let template = "{elapsed_precise} {bar:30} {pos}/{len} requests";
    bar.set_style(ProgressStyle::with_template(template)?);
    let result = run(&mut |progress| match progress {
        Progress::Run(requests) => bar.inc_length(requests as u64),
        Progress::Request => bar.inc(1),
    });
    bar.finish_and_clear();
    result
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use prelude_core::{Capacity, Profile, ServiceTime};

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn parse(flags: &str) -> Result<Args> {
        let words = ["prelude-bench"]
            .into_iter()
            .chain(flags.split_whitespace());
        Ok(Program::try_parse_from(words)?.args)
    }

    #[test]
    fn bad_arguments_say_what_is_wrong() {
        let check = |flags: &str, expected: &str| {
            let result = parse(flags).and_then(run);
            let error = format!("{:#}", result.unwrap_err());
            assert!(error.contains(expected), "{flags}: {error}");
        };
        check("", "--workload <WORKLOAD>");
        check("--workload nonsense", "possible values: toolbench");
        check("--workload video --trace x.csv", "cannot be used with");
        check("--trace x.csv --seeds 3", "cannot be used with");
        check("--trace no-such.csv", "cannot read no-such.csv");
        check("--workload video --engines 0", "0 is not in 1..=1024");
        check(
            "--workload video --rate=-1",
            "the rate must be above 0, not -1",
        );
        check("--workload video --seeds 0", "at least one seed");
        check("--workload video --time-error 100", "100 is not in 0..100");
        check("--workload video --step-tokens 1", "1 is not in 2..=65536");
        check(
            "--workload video --sustain --rate 1,2",
            "from one --rate on",
        );
        check("--trace x.csv --sustain", "cannot be used with");
        check("--workload video --clients 0", "0 is not in 1..");
        check(
            "--workload video --clients 2 --rate 3",
            "cannot be used with",
        );
        check("--workload video --slow-first 0.5", "from 1 to 1000");
        check("--workload video --block-size 0", "--block-size must be");
        check("--workload video --copy-us=-1", "--copy-us must be from 0");
        check("--workload video --kv-tokens 3", "capacity.num_blocks is 0");
        check(
            "--workload video --chat-gaps x.csv",
            "are for --workload mixed",
        );
    }

    #[test]
    fn the_command_prints_the_same_every_time() {
        let flags = "--workload toolbench --requests 60 --prefixes 6 --engines 2 --seeds 2";
        let once = run(parse(flags).unwrap()).unwrap();
        assert!(once.starts_with("toolbench, 2 engines\n"), "{once}");
        assert_eq!(once, run(parse(flags).unwrap()).unwrap());
        let json = run(parse(&format!("{flags} --json")).unwrap()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["runs"].as_array().unwrap().len(), 2);
        assert_eq!(value["preset"], "mistral-7b-a6000");
        let several = run(parse(&format!("{flags} --route e2,min-cost --json")).unwrap()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&several).unwrap();
        assert_eq!(value[1]["route"], "min-cost");
        let table = run(parse(&format!("{flags} --route e2,min-cost")).unwrap()).unwrap();
        assert!(table.contains("mean, e2/this"), "{table}");
        let policies = "--policy fcfs,srjf --rate 2,4 --time-error 30 --step-tokens 1024";
        let tables = run(parse(&format!("{flags} {policies}")).unwrap()).unwrap();
        assert_eq!(tables.matches("mean, fcfs/this").count(), 2, "{tables}");
        assert!(
            tables.contains("routers' times are off by 30 %"),
            "{tables}"
        );
        let host = "--route round-robin --kv-tokens 4000 --host-tokens 0,400000";
        let host = run(parse(&format!("{flags} {host}")).unwrap()).unwrap();
        assert!(host.contains("host tokens"), "{host}");
        let closed = run(parse(&format!("{flags} --clients 4")).unwrap()).unwrap();
        assert!(
            closed.starts_with("toolbench, closed loop of 4, 2"),
            "{closed}"
        );
        // Few requests never wait for each other for long.
        let many = "--workload toolbench --requests 400 --prefixes 6 --engines 1 --seeds 1";
        let found = format!("{many} --rate 20 --route e2,min-cost --sustain");
        let found = run(parse(&found).unwrap()).unwrap();
        assert!(found.contains("of the first"), "{found}");
    }

    #[test]
    fn engines_take_the_times_of_a_profile() {
        let path = std::env::temp_dir().join(format!("prelude-sim-{}.json", std::process::id()));
        let file = path.display();
        let flags = "--workload toolbench --requests 60 --prefixes 6 --engines 2 --seeds 1 --json";
        let json = |flags: &str| -> serde_json::Value {
            serde_json::from_str(&run(parse(flags).unwrap()).unwrap()).unwrap()
        };
        let mean = |flags: &str| {
            json(flags)["runs"][0]["latency"]["mean_ms"]
                .as_f64()
                .unwrap()
        };
        let mut measured = Profile {
            version: Profile::VERSION,
            model: "m".to_owned(),
            executor: "cpu".to_owned(),
            capacity: Capacity {
                block_size: 16,
                num_blocks: 10_000,
                max_step_tokens: 2048,
                full_step_tokens: 2048,
                max_context_len: 4096,
                vocab_size: 9,
                pipeline_depth: 1,
                passes: None,
                attention: prelude_core::Attention::Causal,
                host_blocks: 0,
            },
            service: ServiceTime::default(),
            prefill: Vec::new(),
            decode: Vec::new(),
        };
        profile::write(&path, &measured).unwrap();
        let found = json(&format!("{flags} --profile {file}"));
        assert_eq!(found["preset"], "m on cpu");
        assert_eq!(found["kv_tokens"], 160_000);
        let before = mean(&format!("{flags} --profile {file}"));
        // An engine that takes ten times as long makes requests wait for longer than that.
        let service = &mut measured.service;
        for ms in [
            &mut service.floor_ms,
            &mut service.base_ms,
            &mut service.per_token_ms,
            &mut service.per_pair_ms,
            &mut service.decode_ms,
        ] {
            *ms *= 10.0;
        }
        profile::write(&path, &measured).unwrap();
        let after = mean(&format!("{flags} --profile {file}"));
        assert!(after > 9.0 * before, "{before} and {after}");
        std::fs::write(&path, "{").unwrap();
        let torn = parse(&format!("{flags} --profile {file}")).and_then(run);
        assert!(format!("{:#}", torn.unwrap_err()).contains("EOF"));
        std::fs::remove_file(&path).unwrap();
        assert!(parse(&format!("{flags} --profile x --preset mistral-7b-a6000")).is_err());
    }
}
