//! `prelude run-batch`: a file of requests to a file of answers, by the server's own handlers.
//!
//! Lines are read in windows. What is in a window is asked in the order of its bodies, so that
//! prompts with a common beginning meet in the prefix cache, and a bounded number at a time.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashSet},
    io::{self, BufRead, Write},
    sync::Arc,
    time::Duration,
};

use prelude_engine::ScheduledEngine;
use prelude_server::{Answered, ApiKeys, App};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use self::files::{Done, OutputFile, open_input};
use super::{Code, Environment, Failure, loading, models, say};
use crate::args::RunBatchArgs;

mod files;

/// Requests on their way at the same time: enough to fill steps, and a bound on memory.
const IN_FLIGHT: usize = 64;
/// The time that a request waits after it found the queue full.
const QUEUE_FULL_WAIT: Duration = Duration::from_millis(50);
/// Longest line: as long as a server's longest body, and what is around it.
const LINE_BYTES_MAX: u64 = 11 << 20;

/// A line of the input.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    custom_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    url: Option<Cow<'a, str>>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

/// The field of a body that says if its answer is one document.
#[derive(Deserialize)]
struct Stream {
    #[serde(default)]
    stream: Option<bool>,
}

/// A line of the output.
#[derive(Serialize)]
struct Output<'a> {
    id: String,
    custom_id: Option<&'a str>,
    response: Option<Response<'a>>,
    error: Option<NeverRan>,
}

#[derive(Serialize)]
struct Response<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

/// The reason why a line was not asked.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct NeverRan {
    code: &'static str,
    message: String,
}

/// A line to be asked.
#[derive(Debug)]
struct Job {
    /// Place in the window.
    index: usize,
    custom_id: String,
    url: String,
    body: String,
}

/// The numbers of lines by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    pub(crate) never_ran: u64,
    skipped: u64,
    /// The skipped lines whose requests an earlier run saw refused.
    skipped_refused: u64,
}

impl Counts {
    /// Returns true if every line was answered, now or before.
    fn is_all_answered(&self) -> bool {
        self.refused + self.never_ran + self.skipped_refused == 0
    }
}

/// Runs the whole file. The exit code says whether every line was answered.
pub(crate) fn run(args: &RunBatchArgs, environment: &Environment) -> Result<u8, Failure> {
    let unusable = |failure: Failure| Failure::new(Code::Failed, failure);
    let (input, input_file) = open_input(&args.input).map_err(unusable)?;
    let output = OutputFile::open(&args.output, input_file.as_ref(), args.resume);
    let (output, done) = output.map_err(unusable)?;
    let (app, engines) = load(args, environment).map_err(unusable)?;
    // The file that was there is touched only now that the requests can be answered.
    let mut output = output.start().map_err(unusable)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::new(Code::Failed, format_args!("cannot start: {e}")))?;
    let batch = Batch {
        app,
        window: args.window.max(1),
        is_ordered: args.ordered,
    };
    let counts = runtime.block_on(batch.run(input, done, &mut output))?;
    for engine in engines {
        engine.stop();
    }
    say(format_args!(
        "{} answered, {} refused, {} never ran, {} were there already",
        counts.answered, counts.refused, counts.never_ran, counts.skipped
    ));
    Ok(u8::from(!counts.is_all_answered()) * 2)
}

fn load(
    args: &RunBatchArgs,
    environment: &Environment,
) -> Result<(Arc<App>, Vec<ScheduledEngine>), Failure> {
    let mut settings = environment.settings(args.config.as_deref())?;
    let lone = args.model.as_slice();
    models::put(lone, &mut settings.models)?;
    let flags = models::Flags {
        model: &args.model_args,
        generation_config: None,
        served_model_name: &[],
        has_profile: false,
        put: &Ok,
    };
    let chosen = models::choose(models::lone(lone), &settings, &flags)?;
    let limit = settings.executor.memory_limit_bytes;
    let (models, engines) = loading::load_all(chosen, limit, &|_| ())?;
    let app = App::new(settings.server_config(), ApiKeys::default());
    app.set_models(models);
    Ok((app, engines))
}

/// Options of asking lines.
pub(crate) struct Batch {
    pub(crate) app: Arc<App>,
    /// Lines in memory at once, at least 1.
    pub(crate) window: usize,
    /// True if answers are written in the order of their requests.
    pub(crate) is_ordered: bool,
}

impl Batch {
    /// Asks what `done` does not have of `input` and writes each answer as a line.
    ///
    /// # Errors
    /// The input cannot be read, the output cannot be written, or an engine is lost.
    pub(crate) async fn run(
        &self,
        mut input: impl BufRead,
        done: Done,
        output: &mut dyn Write,
    ) -> Result<Counts, Failure> {
        let mut counts = Counts::default();
        let mut seen = HashSet::new();
        let mut is_over = false;
        while !is_over {
            let mut jobs = Vec::new();
            let mut lines = Lines::new(self.is_ordered);
            let mut index = 0;
            while index < self.window {
                let Some(line) = read_line(&mut input)? else {
                    is_over = true;
                    break;
                };
                if line.as_ref().is_ok_and(|line| line.trim_ascii().is_empty()) {
                    continue;
                }
                match line.and_then(|line| self.read(&line, index, &mut seen)) {
                    Ok(job) => match done.get(&job.custom_id) {
                        Some(&is_answered) => {
                            counts.skipped += 1;
                            counts.skipped_refused += u64::from(!is_answered);
                        }
                        None => jobs.push(job),
                    },
                    // After a resume the answer stands twice in the file, which is better than never.
                    Err((custom_id, error)) => {
                        counts.never_ran += 1;
                        let line = self.never_ran(custom_id.as_deref(), error);
                        lines.put(index, line, output)?;
                    }
                }
                index += 1;
            }
            self.ask_all(jobs, &mut lines, &mut counts, output).await?;
            lines.finish(output)?;
        }
        Ok(counts)
    }

    /// Reads a line as a job to ask.
    fn read(
        &self,
        line: &[u8],
        index: usize,
        seen: &mut HashSet<String>,
    ) -> Result<Job, (Option<String>, NeverRan)> {
        let never = |id: Option<&str>, code, message: String| {
            (id.map(str::to_owned), NeverRan { code, message })
        };
        let parsed: Line<'_> = serde_json::from_slice(line).map_err(|e| {
            let message = format!("the line is no request object: column {}", e.column());
            never(None, "invalid_json", message)
        })?;
        let id = parsed.custom_id.as_deref().filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| {
            let message = "`custom_id` is required: a string that is not empty".to_owned();
            never(None, "missing_custom_id", message)
        })?;
        if !seen.insert(id.to_owned()) {
            let message = "an earlier line has this `custom_id`".to_owned();
            return Err(never(Some(id), "duplicate_custom_id", message));
        }
        if parsed
            .method
            .as_deref()
            .is_some_and(|method| method != "POST")
        {
            let message = "`method` must be POST".to_owned();
            return Err(never(Some(id), "invalid_method", message));
        }
        let url = parsed.url.as_deref().unwrap_or_default();
        if !App::infers(url) {
            let message = "`url` must be the path of an inference route".to_owned();
            return Err(never(Some(id), "unknown_url", message));
        }
        let body = parsed.body.map_or("", RawValue::get);
        let stream = serde_json::from_str::<Stream>(body);
        if stream.is_ok_and(|s| s.stream == Some(true)) {
            let message = "`stream` must not be true: an answer is one document".to_owned();
            return Err(never(Some(id), "stream", message));
        }
        Ok(Job {
            index,
            custom_id: id.to_owned(),
            url: url.to_owned(),
            body: body.to_owned(),
        })
    }

    /// Asks everything and writes what comes.
    ///
    /// # Errors
    /// The output cannot be written, or an engine is lost: what it did not answer has no line
    /// then, so that `--resume` asks it.
    async fn ask_all(
        &self,
        mut jobs: Vec<Job>,
        lines: &mut Lines,
        counts: &mut Counts,
        output: &mut dyn Write,
    ) -> Result<(), Failure> {
        jobs.sort_by(|a, b| (&a.url, &a.body).cmp(&(&b.url, &b.body)));
        let mut missing: BTreeSet<usize> = jobs.iter().map(|job| job.index).collect();
        let mut is_lost = false;
        let mut asked = JoinSet::new();
        let mut jobs = jobs.into_iter();
        loop {
            while asked.len() < IN_FLIGHT
                && !is_lost
                && let Some(job) = jobs.next()
            {
                asked.spawn(ask(Arc::clone(&self.app), job));
            }
            let Some(answered) = asked.join_next().await else {
                break;
            };
            let (job, answered) = answered
                .map_err(|e| Failure::new(Code::Failed, format_args!("a request failed: {e}")))?;
            if answered.reason == Some("engine_dead") {
                is_lost = true;
                continue;
            }
            missing.remove(&job.index);
            match answered.status {
                200 => counts.answered += 1,
                _ => counts.refused += 1,
            }
            lines.put(job.index, self.answered(&job.custom_id, &answered), output)?;
        }
        if !is_lost {
            return Ok(());
        }
        if let Some(&first) = missing.first() {
            // In the order of the input, no line may stand where a later run puts a missing one.
            lines.keep_before(first);
        }
        lines.finish(output)?;
        let message = "the engine is lost; what it did not answer has no line: run with --resume";
        Err(Failure::new(Code::Failed, message))
    }

    fn answered(&self, custom_id: &str, answered: &Answered) -> Vec<u8> {
        let body = std::str::from_utf8(&answered.body).unwrap_or("null");
        let body = RawValue::from_string(body.to_owned());
        let body = body.unwrap_or_else(|_| RawValue::NULL.to_owned());
        self.line(&Output {
            id: self.app.answer_id("batch_req_"),
            custom_id: Some(custom_id),
            response: Some(Response {
                status_code: answered.status,
                request_id: &answered.request_id,
                body: &body,
            }),
            error: None,
        })
    }

    fn never_ran(&self, custom_id: Option<&str>, error: NeverRan) -> Vec<u8> {
        self.line(&Output {
            id: self.app.answer_id("batch_req_"),
            custom_id,
            response: None,
            error: Some(error),
        })
    }

    fn line(&self, output: &Output<'_>) -> Vec<u8> {
        let mut line = serde_json::to_vec(output).expect("the keys of an output are strings");
        line.push(b'\n');
        line
    }
}

/// Asks until there is room: a file is in no hurry.
async fn ask(app: Arc<App>, job: Job) -> (Job, Answered) {
    loop {
        let answered = app.answer("POST", &job.url, job.body.clone()).await;
        if answered.reason != Some("queue_full") {
            return (job, answered);
        }
        tokio::time::sleep(QUEUE_FULL_WAIT).await;
    }
}

/// A line as bytes, or why it has none; `None` at the end.
#[expect(
    clippy::type_complexity,
    reason = "a line that is too long is an answer too"
)]
fn read_line(
    input: &mut impl BufRead,
) -> Result<Option<Result<Vec<u8>, (Option<String>, NeverRan)>>, Failure> {
    let wrong = |e| Failure::new(Code::Failed, format_args!("cannot read the input: {e}"));
    let mut line = Vec::new();
    let mut limited = io::Read::take(&mut *input, LINE_BYTES_MAX);
    let len = limited.read_until(b'\n', &mut line).map_err(wrong)?;
    if len == 0 {
        return Ok(None);
    }
    if len as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
        // The rest of the line is passed over, a piece at a time.
        loop {
            let buffered = input.fill_buf().map_err(wrong)?;
            let end = buffered.iter().position(|&b| b == b'\n');
            let (len, is_end) = match end {
                Some(at) => (at + 1, true),
                None => (buffered.len(), buffered.is_empty()),
            };
            input.consume(len);
            if is_end {
                break;
            }
        }
        let message = format!("the line has more than {LINE_BYTES_MAX} bytes");
        let code = "line_too_long";
        return Ok(Some(Err((None, NeverRan { code, message }))));
    }
    Ok(Some(Ok(line)))
}

/// Lines on their way out: as they come, or in the order of the input.
struct Lines {
    is_ordered: bool,
    kept: Vec<(usize, Vec<u8>)>,
}

impl Lines {
    fn new(is_ordered: bool) -> Self {
        Self {
            is_ordered,
            kept: Vec::new(),
        }
    }

    fn put(&mut self, index: usize, line: Vec<u8>, output: &mut dyn Write) -> Result<(), Failure> {
        if self.is_ordered {
            self.kept.push((index, line));
            return Ok(());
        }
        write(output, &line)
    }

    /// Forgets what is not written yet and stands behind `index`.
    fn keep_before(&mut self, index: usize) {
        self.kept.retain(|&(at, _)| at < index);
    }

    fn finish(&mut self, output: &mut dyn Write) -> Result<(), Failure> {
        self.kept.sort_by_key(|(index, _)| *index);
        for (_, line) in self.kept.drain(..) {
            write(output, &line)?;
        }
        output
            .flush()
            .map_err(|e| Failure::new(Code::Failed, format_args!("cannot write the output: {e}")))
    }
}

/// Writes a line by one call: every whole line in the file is then an answered one.
fn write(output: &mut dyn Write, line: &[u8]) -> Result<(), Failure> {
    output
        .write_all(line)
        .map_err(|e| Failure::new(Code::Failed, format_args!("cannot write the output: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
{\"custom_id\":\"a\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\",\"max_tokens\":1}}
{\"custom_id\":\"b\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"\"}}
{\"custom_id\":\"c\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"c\",\"max_tokens\":1}}
";

    /// Runs [`LINES`] on a new engine, stopped before if it is to be lost.
    fn run(is_lost: bool, done: &[(&str, bool)]) -> (Result<Counts, Failure>, String) {
        let args = RunBatchArgs {
            input: "-".into(),
            output: "-".into(),
            window: 8,
            ordered: true,
            resume: false,
            model: None,
            config: None,
            model_args: crate::args::ModelArgs::default(),
        };
        let (app, engines) = load(&args, &Environment::default()).unwrap();
        let mut engines = Some(engines);
        if is_lost {
            engines.take().into_iter().flatten().for_each(|e| e.stop());
        }
        let batch = Batch {
            app,
            window: 8,
            is_ordered: true,
        };
        let done = done.iter().map(|&(id, ok)| (id.to_owned(), ok)).collect();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut output = Vec::new();
        let counts = runtime.block_on(batch.run(LINES.as_bytes(), done, &mut output));
        (counts, String::from_utf8(output).unwrap())
    }

    #[test]
    fn a_lost_engine_leaves_its_lines_to_a_later_run() {
        let (counts, output) = run(true, &[("a", true)]);
        assert_eq!(counts.unwrap_err().code(), 1);
        // Not asked of the engine, so refused as ever.
        assert_eq!(output.lines().count(), 1, "{output}");
        assert!(output.contains("\"custom_id\":\"b\""), "{output}");
        let (_, output) = run(true, &[]);
        assert_eq!(output, "");
    }

    #[test]
    fn refusals_of_an_earlier_run_still_count() {
        let (counts, _) = run(false, &[("a", true), ("b", false)]);
        let counts = counts.unwrap();
        assert_eq!((counts.answered, counts.skipped), (1, 2));
        assert!(!counts.is_all_answered());
        let (counts, _) = run(false, &[("a", true), ("b", true), ("c", true)]);
        assert!(counts.unwrap().is_all_answered());
    }
}
