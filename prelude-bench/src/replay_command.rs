//! The command `replay`.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use prelude_bench::replay::{self, Config, Deadlines, Progress, Shape};

const EXAMPLES: &str = "\
Examples:
  prelude-bench replay azure_llm_2023_code.csv --url http://127.0.0.1:8000 --lengths 0.1 --for 60s
      a minute of a trace, at a tenth of its lengths, with a report in bench/out/replay
  prelude-bench replay conversation.jsonl --speed 4 --first-ms 500 --end-ms 5000
      four times as fast, with the share of answers that meet two deadlines";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The trace: Azure's .csv, Mooncake's .jsonl, or conversations: ShareGPT's .json,
    /// LMSYS-Chat-1M's as .jsonl.
    trace: PathBuf,
    /// URL of a server with OpenAI's /v1/completions.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    url: String,
    /// The model's name, if the server needs one.
    #[arg(long)]
    model: Option<String>,
    /// The factor by which the requests arrive faster than recorded.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Lengths of prompts and outputs, as a share of those recorded.
    #[arg(long, default_value_t = 1.0)]
    lengths: f64,
    /// Cut prompts to this many tokens.
    #[arg(long, default_value_t = 8_192)]
    max_prompt: u32,
    /// Cut outputs to this many tokens.
    #[arg(long, default_value_t = 512)]
    max_output: u32,
    /// Token ids of prompts are below this; at most the model's vocabulary.
    #[arg(long, default_value_t = 4_000)]
    vocab_size: u32,
    /// Leave out requests that arrive later than this, such as 90s or 10m.
    #[arg(long = "for", value_parser = duration, default_value = "60s")]
    within: Duration,
    /// Send at most this many requests.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    limit: usize,
    /// Requests in flight at the same time, at most.
    #[arg(long, default_value_t = 1_024)]
    connections: usize,
    /// Seconds after which a request has failed.
    #[arg(long, default_value_t = 600)]
    timeout_s: u64,
    /// Deadline of the first token, in milliseconds from the arrival, for goodput.
    #[arg(long)]
    first_ms: Option<u64>,
    /// Deadline of the whole answer, in milliseconds from the arrival, for goodput.
    #[arg(long)]
    end_ms: Option<u64>,
    /// Folder for replay.txt, replay.json and replay.html.
    #[arg(long, default_value = "bench/out/replay")]
    out: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Reads `90s`, `10m` or `500ms`.
fn duration(text: &str) -> Result<Duration> {
    let at = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(at.unwrap_or(text.len()));
    let number: f64 = number.parse()?;
    let seconds = match unit {
        "ms" => number / 1_000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3_600.0,
        _ => bail!("a time is a number and ms, s, m or h, such as 90s"),
    };
    Ok(Duration::try_from_secs_f64(seconds)?)
}

/// Replays a trace, and returns what to print.
pub(crate) fn run(args: Args) -> Result<String> {
    let config = Config {
        trace: args.trace,
        url: args.url,
        shape: Shape {
            model: args.model,
            speed: args.speed,
            lengths: args.lengths,
            max_prompt: args.max_prompt,
            max_output: args.max_output,
            vocab_size: args.vocab_size,
            within: args.within,
            limit: args.limit,
        },
        deadlines: Deadlines {
            first_ms: args.first_ms,
            end_ms: args.end_ms,
        },
        connections: args.connections,
        timeout: Duration::from_secs(args.timeout_s),
    };
    let bar = ProgressBar::new(0);
    let style = "[{elapsed}] {bar:32} {pos} of {len} answered, {msg} in flight";
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
    let report = replay::run(&config, |progress: Progress| {
        bar.set_length(progress.requests as u64);
        bar.set_message((progress.sent - progress.ended).to_string());
        bar.set_position(progress.ended as u64);
    })?;
    bar.finish_and_clear();
    report.write(&args.out)?;
    match args.json {
        true => Ok(serde_json::to_string_pretty(&report)? + "\n"),
        false => Ok(format!(
            "{}\nreport: {}\n",
            report.render(),
            args.out.join("replay.html").display()
        )),
    }
}
