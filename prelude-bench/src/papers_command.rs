//! The command `papers`.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum as _;
use indicatif::{ProgressBar, ProgressStyle};
use prelude_bench::papers::{self, Paper, Progress};

const EXAMPLES: &str = "\
Examples:
  prelude-bench papers
      all papers, with plots in bench/out/papers
  prelude-bench papers --only prefill-only,laps --seeds 5
      two of them, each simulation with five seeds
  prelude-bench papers --seeds 1 --share 0.1
      a tenth of the requests, which takes seconds

Time is virtual and no clock is read: the same arguments print the same figures.";

/// Prints the papers' tables and figures that simulation can show, beside the papers' figures.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only these papers [default: all].
    #[arg(long, value_delimiter = ',')]
    only: Vec<Paper>,
    /// Number of seeds of each simulation; medians are printed.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    first_seed: u64,
    /// Part of the papers' numbers of requests that is simulated, above 0 and at most 1: less takes
    /// less time, and gives other figures.
    #[arg(long, value_name = "PART", default_value_t = 1.0)]
    share: f64,
    /// Folder for papers.md and its plots.
    #[arg(long, default_value = "bench/out/papers")]
    out: PathBuf,
}

/// Runs the command and returns what it prints.
pub(crate) fn run(args: Args) -> Result<String> {
    let papers = match &args.only[..] {
        [] => Paper::value_variants(),
        only => only,
    };
    let bar = ProgressBar::new(0);
    let template = "{elapsed_precise} {bar:30} {pos}/{len} requests, {msg}";
    bar.set_style(ProgressStyle::with_template(template)?);
    let seeds = args.first_seed..args.first_seed.saturating_add(args.seeds);
    let page = papers::run(papers, seeds, args.share, |progress| match progress {
        Progress::Section(paper, name) => bar.set_message(format!("{}: {name}", paper.title())),
        Progress::Run(requests) => bar.inc_length(requests as u64),
        Progress::Request => bar.inc(1),
    })?;
    bar.finish_and_clear();
    page.write(&args.out)?;
    let path = args.out.join("papers.md");
    Ok(format!(
        "{}\nwith plots: {}\n",
        page.render(),
        path.display()
    ))
}
