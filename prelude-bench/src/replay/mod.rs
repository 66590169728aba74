//! A recorded trace against a real server: an open loop of completions that arrive when the trace
//! says, whatever the server does.
//!
//! ```text
//! trace ── requests ──▶ sent at their times ──▶ streams read ──▶ Report: text, JSON, HTML
//! ```
//!
//! Any server with OpenAI's `/v1/completions` will do. Prompts are token ids: traces hold lengths
//! and shared prefixes, and no text. A request that finds no connection free, or that the generator
//! sends late, has waited since its arrival, and that wait counts (Schroeder et al., *Open Versus
//! Closed*, NSDI 2006).

mod html;
mod report;
pub(crate) mod requests;
pub(crate) mod send;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};

pub use report::{Deadlines, Report, Times};
pub use requests::{Request, Shape};
pub use send::{Answer, Fate};

use crate::sim::trace;

const EXAMPLES: &str = "\
Examples:
  prelude-bench replay azure_llm_2023_code.csv --url http://127.0.0.1:8000 --lengths 0.1 --for 60s
      a minute of a trace, at a tenth of its lengths, with a report in bench/out/replay
  prelude-bench replay conversation.jsonl --speed 4 --first-ms 500 --end-ms 5000
      four times as fast, with the share of answers that meet two deadlines";

/// The trace to replay, and the server to send it to.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Config {
    /// The trace: Azure's .csv, Mooncake's .jsonl, or conversations: ShareGPT's .json,
    /// LMSYS-Chat-1M's as .jsonl.
    pub trace: PathBuf,
    /// URL of a server with OpenAI's /v1/completions.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// The form of the requests that are made of the trace.
    #[command(flatten)]
    pub shape: Shape,
    /// Requests in flight at the same time, at most. Requests beyond wait, and their wait counts.
    #[arg(long, default_value_t = 1_024)]
    pub connections: usize,
    /// Seconds after which a request has failed.
    #[arg(long, default_value_t = 600)]
    pub timeout_s: u64,
    /// The times by which an answer counts as good.
    #[command(flatten)]
    pub deadlines: Deadlines,
    /// Folder for replay.txt, replay.json and replay.html.
    #[arg(long, default_value = "bench/out/replay")]
    pub out: PathBuf,
}

/// Replays a trace and reports what came of it. Ctrl-C ends the replay early; the report then has
/// the requests that were answered by then. `progress` is told of the requests sent and answered.
///
/// # Errors
/// If the trace cannot be read or holds nothing to send, or no server answers at the URL.
pub fn run(config: &Config, progress: impl Fn(Progress)) -> Result<Report> {
    let workload = trace::read(&config.trace)?;
    let requests = requests::of(&workload, &config.shape)?;
    let address = address(&config.url)?;
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    let sent = send::Sent {
        address,
        connections: config.connections,
        timeout: Duration::from_secs(config.timeout_s),
    };
    let replayed = runtime.block_on(send::replay(&sent, &requests, progress))?;
    Ok(Report::new(
        workload.name.clone(),
        config,
        &requests,
        replayed,
    ))
}

/// The progress of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Requests of the whole replay.
    pub requests: usize,
    /// Requests that were sent.
    pub sent: usize,
    /// Requests that were answered, or failed.
    pub ended: usize,
}

/// Returns `host:port` of a URL.
fn address(url: &str) -> Result<String> {
    let host = url.strip_prefix("http://").unwrap_or(url);
    let host = host.trim_end_matches('/').trim_end_matches("/v1");
    ensure!(
        !host.is_empty() && !host.contains('/'),
        "{url} is not of the form http://host:port; put a proxy before a server that needs TLS"
    );
    let port = match host.rsplit_once(':') {
        Some((_, port)) => port
            .parse::<u16>()
            .with_context(|| format!("the port of {url}"))?,
        None => return Ok(format!("{host}:80")),
    };
    ensure!(port > 0, "the port of {url} must be at least 1");
    Ok(host.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use prelude_server::{ServerConfig, demo};

    use super::*;
    use crate::server::noop;

    const TRACE: &str = r#"
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
        {"timestamp": 30, "input_length": 700, "output_length": 3, "hash_ids": [0, 2]}
        {"timestamp": 40, "input_length": 12, "output_length": 1, "hash_ids": [3]}
        {"timestamp": 50, "input_length": 90000, "output_length": 1, "hash_ids": [TOO_LONG]}
    "#;

    fn config(folder: &std::path::Path, url: String) -> Config {
        let blocks: Vec<String> = (10..186).map(|id: u32| id.to_string()).collect();
        let trace = folder.join("trace.jsonl");
        fs::write(&trace, TRACE.replace("TOO_LONG", &blocks.join(", "))).unwrap();
        Config {
            trace,
            url,
            shape: Shape {
                model: Some("demo-lm".to_owned()),
                speed: 1.0,
                lengths: 1.0,
                max_prompt: 100_000,
                max_output: 4,
                vocab_size: 4_000,
                within: Duration::from_secs(1),
                limit: 10,
            },
            deadlines: Deadlines {
                first_ms: Some(600_000),
                end_ms: None,
            },
            connections: 2,
            timeout_s: 60,
            out: folder.to_owned(),
        }
    }

    /// Opens the page in a browser without a window, if there is one.
    fn check_in_a_browser(page: &std::path::Path) {
        let browsers = ["chromium", "chromium-browser", "google-chrome"];
        let found = browsers.iter().find_map(|browser| {
            let arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"];
            Command::new(browser)
                .args(arguments)
                .arg(page)
                .output()
                .ok()
        });
        let Some(output) = found else {
            use std::io::Write as _;
            // Past the harness, which shows what is printed only where a test fails.
            let _ = writeln!(
                std::io::stderr(),
                "SKIP: no browser ({browsers:?}) to open a report in"
            );
            return;
        };
        let dom = String::from_utf8_lossy(&output.stdout);
        assert!(
            dom.contains("<svg") && dom.contains("time to first token"),
            "{dom}"
        );
    }

    #[test]
    fn a_trace_is_replayed_against_a_server_and_reported() {
        let server = noop::Here::serve(
            ServerConfig::default(),
            vec![noop::demo(&demo::LM).unwrap()],
        );
        let server = server.unwrap();
        let folder = std::env::temp_dir().join(format!("prelude-replay-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let config = config(&folder, format!("http://{}", server.address));
        let last = std::cell::Cell::new(None);
        let report = run(&config, |progress| last.set(Some(progress))).unwrap();
        let last = last.get().unwrap();
        assert_eq!((last.requests, last.sent, last.ended), (4, 4, 4));
        assert_eq!((report.answered, report.is_cut), (3, false));
        // The last prompt is longer than the model's context.
        assert_eq!(report.refused.into_iter().collect::<Vec<_>>(), [(400, 1)]);
        assert!(report.failed.is_empty());
        assert_eq!(report.first_ms.count, 3);
        assert!(report.first_ms.max <= report.end_ms.max);
        // One token has no time between tokens.
        assert_eq!(report.per_token_ms.count, 2);
        assert!((report.good_share - 0.75).abs() < 1e-9);
        let tokens = report.output_tokens_per_second * report.seconds;
        assert!((tokens - 8.0).abs() < 1e-6, "{tokens}");
        let prompts = report.prompt_tokens_per_second * report.seconds;
        assert!((prompts - 1_312.0).abs() < 1e-6, "{prompts}");

        let report = run(&config, |_| {}).unwrap();
        // Now the prompts are in the server's cache but for their last tokens.
        assert!(report.cached_share.unwrap() > 0.9);
        report.write(&folder).unwrap();
        let page = fs::read_to_string(folder.join("replay.html")).unwrap();
        assert_eq!(page.matches("<svg").count(), 2);
        let names = page
            .replace("http://www.w3.org/2000/svg", "")
            .replace(&config.url, "");
        assert!(
            !names.contains("http"),
            "the page needs nothing from elsewhere"
        );
        let json = fs::read(folder.join("replay.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["answered"], 3);
        check_in_a_browser(&folder.join("replay.html"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let folder = std::env::temp_dir().join(format!("prelude-no-server-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let error = run(&config(&folder, "http://127.0.0.1:1".to_owned()), |_| {}).unwrap_err();
        assert!(format!("{error:#}").contains("no server answers at 127.0.0.1:1"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn addresses_are_read_off_urls() {
        let check = |url: &str, expected: Option<&str>| {
            assert_eq!(address(url).ok().as_deref(), expected, "{url}");
        };
        check("http://127.0.0.1:8000", Some("127.0.0.1:8000"));
        check("http://127.0.0.1:8000/v1/", Some("127.0.0.1:8000"));
        check("host:9", Some("host:9"));
        check("host", Some("host:80"));
        check("https://host", None);
        check("http://host:no", None);
        check("http://", None);
    }
}
