//! genai-bench, the client of the paper's tables, against Prelude's server and against vLLM's, and
//! our own client beside it with chats of the same lengths: the difference is the client's time.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use prelude_bench::load::seconds;
use serde_json::Value;

use super::{
    super::serve::{
        loads::each_once,
        requests::Words,
        server::{MODEL, Options, answers, start},
    },
    Load, Measure, against, folder_of, python_path,
};
use crate::{
    make_model, process,
    results::Outcome,
    session::{Session, median},
};

/// The variable that names the folder of genai-bench's packages: what `pip install --target` writes.
pub(in crate::parts) const GENAI_FOLDER: &str = "PRELUDE_RIVAL_GENAI_BENCH";

/// Longest run of one load: Python imports its packages, and a run takes a second at least.
const WITHIN: Duration = Duration::from_secs(50);
/// Seconds that one load takes, by our client and by genai-bench.
const TAKES: f64 = 16.0;
/// The number of times that genai-bench sends what our client sends once. It counts its start and
/// its end, a quarter of a second, as time of the requests.
const TIMES: usize = 5;
const NAME: &str = "genai-bench";
const PRELUDE: &str = "Prelude";

/// The figures of one load by one client.
#[derive(Debug)]
struct Figures {
    /// From a request to the first token of its answer.
    first: Times,
    /// From a request to the end of its answer.
    whole: Times,
    /// Requests a second.
    per_second: f64,
    requests: f64,
    /// The time of all requests.
    seconds: f64,
}

/// Seconds that the answers to a load took.
#[derive(Debug)]
struct Times {
    mean: f64,
    median: f64,
}

/// Starts Prelude's server and drives it by both clients.
pub(super) fn measure(session: &mut Session, model: &str, loads: &[Load]) -> Result<()> {
    let what = format!("{NAME}, {PRELUDE}, {model}");
    if let Err(error) = folder_of(GENAI_FOLDER, "genai_bench") {
        return session.skip(&what, format!("{error:#}"));
    }
    session.attempt_within(&what, 2.0 * TAKES, |session| {
        let options = Options {
            log: "-genai",
            // As vLLM's server is started.
            arguments: &["--max-model-len", "2048", "--no-enable-prefix-caching"],
            settings: &[],
        };
        let server = start(session, model, options)?;
        answers(session, &server.address, session.pick(128, 12))?;
        drive(session, PRELUDE, &server.address, model, loads)?;
        server.stop()
    })
}

/// Sends the paper's loads to a running server, by our client and then by genai-bench.
///
/// # Errors
/// If a request of either client is not answered as it was asked.
pub(super) fn drive(
    session: &mut Session,
    server: &str,
    address: &str,
    model: &str,
    loads: &[Load],
) -> Result<()> {
    let folder = match folder_of(GENAI_FOLDER, "genai_bench") {
        Ok(folder) => folder,
        Err(error) => {
            return session.skip(&format!("{NAME}, {server}, {model}"), format!("{error:#}"));
        }
    };
    let words = Words::open(session)?;
    for load in loads.iter().filter(|load| load.is_of_paper) {
        let name = format!("{server}, {model}: {}", load.name());
        let label = format!("{NAME}, {name}");
        if !session.has_time(&label, TAKES)? {
            continue;
        }
        let ours = by_ours(session, address, load, &words)?;
        let mut command = command(session, &folder, (address, model), load, &words)?;
        let log = format!(
            "rival-{NAME}-{}.txt",
            name.replace([',', ':', '/', ' '], "-")
        );
        match by_genai(session, &mut command, &log) {
            Ok(report) => {
                let theirs = figures(&report, load.output).context(label)?;
                file(session, &name, &theirs, &ours)?;
                if server != PRELUDE {
                    beside_prelude(session, (server, model), load, &theirs)?;
                }
            }
            // A client that cannot run says nothing about the server.
            Err(error) => session.skip(&label, format!("{error:#}"))?,
        }
    }
    Ok(())
}

/// Writes down how many times as fast as another server Prelude's was, both by genai-bench.
fn beside_prelude(
    session: &mut Session,
    (server, model): (&str, &str),
    load: &Load,
    theirs: &Figures,
) -> Result<()> {
    let ours = format!("{NAME}, {PRELUDE}, {model}: {}", load.name());
    let label = format!("ours to {server} by {NAME}, {model}: {}", load.name());
    let (figure, row) = match load.measure {
        Measure::Median => ((1e3 * theirs.whole.median, "ms"), format!("{ours}, E2E")),
        Measure::Rate => ((theirs.per_second, "req/s"), ours),
    };
    against(session, &label, load.measure, figure, ("rivals", &row))
}

/// Sends chats of a load's lengths by our own client, after some that warm the server up.
fn by_ours(session: &Session, address: &str, load: &Load, words: &Words) -> Result<Figures> {
    let shape = (load.input, load.output);
    let warm_up = words.chats(51, 3 * load.at_once, shape);
    each_once(session, address, warm_up, load.at_once)?;
    let jobs = words.chats(52, load.requests, shape);
    let measured = each_once(session, address, jobs, load.at_once)?;
    let streams = measured.tally.streams.as_ref();
    let streams = streams.context("nothing was streamed")?;
    let times = |seconds: &[f64]| Times {
        mean: seconds.iter().sum::<f64>() / seconds.len() as f64,
        median: median(seconds),
    };
    let first = seconds(&streams.first);
    ensure!(!first.is_empty(), "no stream had a text");
    Ok(Figures {
        first: times(&first),
        whole: times(&measured.tally.seconds(200)),
        per_second: measured.per_second,
        requests: load.requests as f64,
        seconds: measured.tally.elapsed.as_secs_f64(),
    })
}

/// Returns the folder that genai-bench writes to.
fn results(session: &Session) -> PathBuf {
    session.models.join("rivals").join(NAME)
}

/// Returns the command that sends a load to a server of a model.
fn command(
    session: &Session,
    folder: &Path,
    (address, model): (&str, &str),
    load: &Load,
    words: &Words,
) -> Result<Command> {
    let results = results(session);
    let mut command = Command::new("python3");
    command
        .arg(session.home.join("genai.py"))
        // By this name it asks for answers that ignore the end of a text. The other options look at
        // it, so that it comes first.
        .args(["benchmark", "--api-backend", "vllm", "--api-key", "none"])
        .args(["--task", "text-to-text"])
        .args(["--api-base", &format!("http://{address}")])
        .args(["--api-model-name", MODEL, "--model-tokenizer"])
        .arg(make_model::folder(&session.models, model, None))
        .arg("--traffic-scenario")
        .arg(format!("D({},{})", load.input, load.output))
        .args(["--num-concurrency", &load.at_once.to_string()])
        .args([
            "--max-requests-per-run",
            &(TIMES * load.requests).to_string(),
        ])
        // Minutes; `limit` is less.
        .args(["--max-time-per-run", "1", "--metrics-time-unit", "s"])
        // It refuses streams without text.
        .args(["--additional-request-params", &words.sayable().to_string()])
        .arg("--experiment-folder-name")
        .arg(&results)
        .arg("--log-dir")
        .arg(&results)
        .env("PYTHONPATH", python_path(folder)?)
        .envs([("ENABLE_UI", "false"), ("TRANSFORMERS_OFFLINE", "1")])
        .envs([("NO_PROXY", "127.0.0.1"), ("no_proxy", "127.0.0.1")]);
    Ok(command)
}

/// Runs genai-bench's command; the file that it wrote.
fn by_genai(session: &Session, command: &mut Command, log: &str) -> Result<Vec<u8>> {
    let results = results(session);
    // Of the load before, if there was one.
    let _ = fs::remove_dir_all(&results);
    fs::create_dir_all(&results).with_context(|| format!("cannot make {}", results.display()))?;
    let limit = WITHIN.min(session.left());
    let beat = |line: &str| session.beat(|| line.to_owned());
    let said = process::logged(command, NAME, &session.out.join(log), limit, beat)?;
    // The file of one that was ended may not be whole.
    if said.status.is_none() {
        bail!("it did not end within {} s", limit.as_secs());
    }
    let path = report(&results);
    let path = path.with_context(|| format!("it wrote no result: {}", said.last_line()))?;
    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the result file of the one run in a folder of genai-bench's.
fn report(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path());
    paths.find(|path| {
        path.extension().is_some_and(|end| end == "json")
            && path
                .file_stem()
                .is_some_and(|name| name != "experiment_metadata")
    })
}

/// Reads a result file of genai-bench, whose answers are to have `output` tokens each.
///
/// # Errors
/// If it is none, or a request was not answered so.
fn figures(text: &[u8], output: usize) -> Result<Figures> {
    let report: Value = serde_json::from_slice(text).context("genai-bench's result file")?;
    all_answered(&report)?;
    let number = |name: &str| {
        let found = report.pointer(&format!("/aggregated_metrics/{name}"));
        let found = found.and_then(Value::as_f64);
        found.with_context(|| format!("genai-bench's result file has no number {name}"))
    };
    let times = |name: &str| -> Result<Times> {
        Ok(Times {
            mean: number(&format!("stats/{name}/mean"))?,
            median: number(&format!("stats/{name}/p50"))?,
        })
    };
    for bound in ["min", "max"] {
        let tokens = number(&format!("stats/num_output_tokens/{bound}"))?;
        ensure!(
            tokens == output as f64,
            "answers of {output} tokens were asked for, and one has {tokens}"
        );
    }
    Ok(Figures {
        first: times("ttft")?,
        whole: times("e2e_latency")?,
        per_second: number("requests_per_second")?,
        requests: number("num_completed_requests")?,
        seconds: number("run_duration")?,
    })
}

/// Fails if a request was not answered, with what genai-bench says of the first such request.
fn all_answered(report: &Value) -> Result<()> {
    let requests = report["individual_request_metrics"].as_array();
    let requests = requests.context("genai-bench's result file lists no requests")?;
    let is_wrong = |request: &&Value| !request["error_code"].is_null();
    if let Some(wrong) = requests.iter().find(is_wrong) {
        bail!(
            "{} of {} requests were not answered; the first: {} {}",
            requests.iter().filter(is_wrong).count(),
            requests.len(),
            wrong["error_code"],
            wrong["error_message"]
        );
    }
    Ok(())
}

/// Writes down what both clients found; a row of genai-bench's says what ours found too.
fn file(session: &mut Session, name: &str, theirs: &Figures, ours: &Figures) -> Result<()> {
    let rows = |figures: &Figures| {
        let times = |times: &Times| {
            let mean = format!("mean {:.2}", 1e3 * times.mean);
            (1e3 * times.median, "ms", mean)
        };
        let minute = format!(
            "{:.0} a minute: {} in {:.1} s",
            60.0 * figures.per_second,
            figures.requests,
            figures.seconds
        );
        [
            (", TTFT", times(&figures.first)),
            (", E2E", times(&figures.whole)),
            ("", (figures.per_second, "req/s", minute)),
        ]
    };
    for ((what, theirs), (_, ours)) in rows(theirs).into_iter().zip(rows(ours)) {
        let (value, unit, more) = theirs;
        let reason = format!("{more}; by our client {:.2}, {}", ours.0, ours.2);
        let row = Outcome::figure(format!("{NAME}, {name}{what}"), (value, unit), None);
        session.timed(row.because(reason))?;
        let (value, unit, more) = ours;
        let mut row = Outcome::figure(format!("our client, {name}{what}"), (value, unit), None);
        row.detail = true;
        session.timed(row.because(more))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Written by genai-bench 0.0.5, but for most of its requests and statistics.
    const REPORT: &str = include_str!("genai-bench.json");

    /// Returns why a changed report is refused.
    fn refused(change: impl FnOnce(&mut Value)) -> String {
        let mut report = serde_json::from_str(REPORT).unwrap();
        change(&mut report);
        let text = report.to_string();
        format!("{:#}", figures(text.as_bytes(), 1).unwrap_err())
    }

    #[test]
    fn a_result_file_is_read() {
        let found = figures(REPORT.as_bytes(), 1).unwrap();
        assert_eq!(
            (found.first.mean, found.first.median),
            (0.005293882987651743, 0.003353408999828389)
        );
        assert_eq!(
            (found.whole.mean, found.whole.median),
            (0.0054205379185111304, 0.003423613999984809)
        );
        assert_eq!((found.requests, found.seconds), (405.0, 1.2612759040002857));
        assert!((found.per_second - found.requests / found.seconds).abs() < 1e-9);
    }

    #[test]
    fn a_result_of_other_answers_is_refused() {
        let failed = json!({"error_code": 404, "error_message": "the model is not served here"});
        let why = refused(|report| report["individual_request_metrics"][1] = failed);
        assert!(
            why.starts_with("1 of 2 requests were not answered; the first: 404 "),
            "{why}"
        );
        assert!(why.contains("is not served here"), "{why}");
        let tokens = "/aggregated_metrics/stats/num_output_tokens/min";
        let why = refused(|report| *report.pointer_mut(tokens).unwrap() = json!(0));
        assert!(
            why.contains("answers of 1 tokens were asked for, and one has 0"),
            "{why}"
        );
        let median = "/aggregated_metrics/stats/ttft/p50";
        let why = refused(|report| *report.pointer_mut(median).unwrap() = Value::Null);
        assert!(why.ends_with("has no number stats/ttft/p50"), "{why}");
        let why = refused(|report| *report = json!({}));
        assert!(why.ends_with("lists no requests"), "{why}");
    }
}
