//! The command `sim` of the program: its flags, and what they make.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use prelude_bench::sim::{
    EngineConfig, Experiment, Gaps, Kind, Order, Preset, Progress, Report, Router, Setting, Source,
    Sustained, compare, compare_sustained, sustained, trace,
};
use prelude_sched::PolicyConfig;

const EXAMPLES: &str = "\
Examples:
  prelude-bench sim --workload toolbench --rate 12
      3,600 requests for 480 tools on four engines, five seeds
  prelude-bench sim --workload agent --route round-robin,cache-aware,e2
      three routers, compared with the first
  prelude-bench sim --workload posts --engines 1 --policy fcfs,srjf --order shuffled --rate 4
      PrefillOnly's posts, users mixed, first come against shortest remaining job first
  prelude-bench sim --workload video --route round-robin,e2 --sustain
      the highest rate that each router sustains
  prelude-bench sim --trace mooncake_conversation.jsonl --engines 16 --kv-tokens 20000000
      a recorded hour, with caches that never evict

Time is virtual and no clock is read: the same arguments print the same figures. What they say is
what a policy does under the preset's model of time, not how fast a GPU is.";

/// Simulates several engines: real schedulers, modelled devices, virtual time.
///
/// A workload is made by a seed with the moments that its paper gives, or a trace is read; each
/// request goes to an engine, which batches, caches and evicts as the server would. Printed are
/// medians over the seeds, with minimum and maximum.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to simulate: a workload of the papers, reconstructed from their moments.
    #[arg(long, required_unless_present = "trace", conflicts_with = "trace")]
    workload: Option<Kind>,
    /// Or recorded traffic: Azure's .csv (lengths; nothing is shared) or Mooncake's .jsonl.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How many engines. Workloads grow with them, as their papers' do.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    engines: u16,
    /// Requests per second, over all engines; of several, each gets a table [default: the middle
    /// of the paper's; the trace's].
    #[arg(long, value_delimiter = ',')]
    rate: Vec<f64>,
    /// How many requests: of a trace, the first [default: the paper's; all].
    #[arg(long)]
    requests: Option<u32>,
    /// How many tools, tasks, problems, videos, documents, users or conversations
    /// [default: the paper's].
    #[arg(long, conflicts_with = "trace")]
    prefixes: Option<u32>,
    /// In which order requests of different key portions come.
    #[arg(long, default_value = "shuffled", conflicts_with = "trace")]
    order: Order,
    /// Azure's chat trace, for the gaps between tools of `mixed` [default: made by its moments].
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    chat_gaps: Option<PathBuf>,
    /// Azure's code trace, for the gaps between videos of `mixed` [default: made by its moments].
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    code_gaps: Option<PathBuf>,
    /// The first seed.
    #[arg(long, default_value_t = 1, conflicts_with = "trace")]
    seed: u64,
    /// How many seeds, one run each.
    #[arg(long, default_value_t = 5, conflicts_with = "trace")]
    seeds: u64,
    /// How long an engine's iterations take, and what fits into its memory.
    #[arg(long, default_value = "mistral-7b-a6000")]
    preset: Preset,
    /// Who sends requests to engines; several are compared, with the first.
    #[arg(long, value_delimiter = ',', default_value = "e2")]
    route: Vec<Router>,
    /// How an engine orders its requests; several are compared, with the first.
    #[arg(long, value_delimiter = ',', default_value = "fcfs")]
    policy: Vec<Policy>,
    /// Finds the highest rate at which requests take at most three times as long as alone.
    #[arg(long, conflicts_with_all = ["trace", "json"])]
    sustain: bool,
    /// Percent by which each service time that a router believes is too high or too low, below 100.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..100))]
    time_error: u8,
    /// Most tokens that a step of an engine computes [default: the preset's chunks].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    step_tokens: Option<u32>,
    /// Tokens whose keys and values an engine holds [default: the preset's].
    #[arg(long)]
    kv_tokens: Option<u64>,
    /// Tokens of a KV block.
    #[arg(long, default_value_t = 16)]
    block_size: u32,
    /// Print JSON instead of a table, with every run.
    #[arg(long)]
    json: bool,
}

/// As the server's flag of that name.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Policy {
    /// First come, first served.
    Fcfs,
    /// Shortest remaining job first, calibrated by what the cache has; for answers of one token.
    Srjf,
    /// Priority groups by share of the prompt that the cache has.
    Groups,
    /// Short prompts apart from long ones.
    Laps,
}

impl Policy {
    const fn config(self) -> (PolicyConfig, &'static str) {
        match self {
            Self::Fcfs => (PolicyConfig::Fcfs, "fcfs"),
            Self::Srjf => (PolicyConfig::Srjf, "srjf"),
            Self::Groups => (PolicyConfig::Groups, "groups"),
            Self::Laps => (PolicyConfig::Laps, "laps"),
        }
    }
}

/// Runs the command and returns what it prints.
pub(crate) fn run(args: Args) -> Result<String> {
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

/// Each router before each policy, with the same requests.
fn experiments(args: &Args, rate: Option<f64>) -> Result<Vec<Experiment>> {
    ensure!(args.block_size > 0, "--block-size must be at least 1");
    let source = source(args, rate)?;
    let mut experiments = Vec::new();
    for &router in &args.route {
        for &policy in &args.policy {
            let (policy, name) = policy.config();
            let mut config = EngineConfig::new(args.preset, policy);
            config.kv_tokens = args.kv_tokens.unwrap_or(config.kv_tokens);
            config.block_size = args.block_size;
            if let Some(tokens) = args.step_tokens {
                config = config.with_step_tokens(tokens);
            }
            experiments.push(Experiment {
                engines: usize::from(args.engines),
                config,
                router,
                policy: name,
                time_error: f64::from(args.time_error) / 100.0,
                source: source.clone(),
            });
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

/// Runs experiments, telling on a terminal how far they are.
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
        check("--workload video --block-size 0", "--block-size must be");
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
        // Few requests never wait for each other for long.
        let many = "--workload toolbench --requests 400 --prefixes 6 --engines 1 --seeds 1";
        let found = format!("{many} --rate 20 --route e2,min-cost --sustain");
        let found = run(parse(&found).unwrap()).unwrap();
        assert!(found.contains("of the first"), "{found}");
    }
}
