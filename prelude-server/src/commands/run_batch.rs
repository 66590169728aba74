//! `prelude run-batch`: a file of requests to a file of answers, by the server's own handlers.
//!
//! Lines are read in windows. What is in a window is asked in the order of its bodies, so that
//! prompts with a common beginning meet in the prefix cache, and a bounded number at a time.

use std::{
    borrow::Cow,
    collections::HashSet,
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Seek as _, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use prelude_engine::ScheduledEngine;
use prelude_server::{Answered, ApiKeys, App, demo};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use super::{Code, Failure, Settings, Source, say};
use crate::args::RunBatchArgs;

/// Requests on their way at the same time: enough to fill steps, and a bound on memory.
const IN_FLIGHT: usize = 64;
/// How long a request waits that found the queue full.
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

/// What of a body says whether its answer is one document.
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

/// Why a line was not asked.
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

/// How many lines ended how.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    answered: u64,
    refused: u64,
    never_ran: u64,
    skipped: u64,
}

/// Runs the whole file. The exit code says whether every line was answered.
pub(crate) fn run(args: &RunBatchArgs) -> Result<u8, Failure> {
    let unusable = |failure: Failure| Failure::new(Code::Failed, failure);
    let input = open_input(&args.input).map_err(unusable)?;
    let (done, mut output) = open_output(&args.output, args.resume).map_err(unusable)?;
    let (app, engines) = load(args).map_err(unusable)?;
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
    Ok(u8::from(counts.refused + counts.never_ran > 0) * 2)
}

fn load(args: &RunBatchArgs) -> Result<(Arc<App>, Vec<ScheduledEngine>), Failure> {
    let settings = Settings::read(args.config.as_deref(), &[])?;
    let options = settings.load_options(&args.model_args);
    let sources = match &args.model {
        Some(folder) => vec![Source::Folder(folder.clone())],
        None => vec![
            Source::Embedded(demo::LM),
            Source::Embedded(demo::CLASSIFIER),
        ],
    };
    let devices = settings.devices(args.model_args.device)?;
    let mut models = Vec::new();
    let mut engines = Vec::new();
    for source in sources {
        let loaded = source.load(&options, &devices)?;
        models.push(loaded.model);
        engines.push(loaded.engine);
    }
    let app = App::new(settings.server_config(), ApiKeys::default());
    app.set_models(models);
    Ok((app, engines))
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        Code::Failed,
        format_args!("cannot use {}: {why}", path.display()),
    )
}

fn open_input(path: &PathBuf) -> Result<Box<dyn BufRead>, Failure> {
    if is_standard(path) {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).map_err(|e| unusable(path, &e))?;
    Ok(Box::new(BufReader::new(file)))
}

/// The output, and the ids of the lines it has already.
fn open_output(path: &PathBuf, resume: bool) -> Result<(HashSet<String>, Box<dyn Write>), Failure> {
    if is_standard(path) {
        if resume {
            let message = "--resume needs an output file: standard output cannot be read";
            return Err(Failure::new(Code::Usage, message));
        }
        return Ok((HashSet::new(), Box::new(io::stdout())));
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(!resume);
    let mut file = options.open(path).map_err(|e| unusable(path, &e))?;
    let mut done = HashSet::new();
    if resume {
        let whole = read_done(&file, &mut done).map_err(|e| unusable(path, &e))?;
        // A line that a crash tore is written again.
        file.set_len(whole).map_err(|e| unusable(path, &e))?;
        file.seek(SeekFrom::End(0))
            .map_err(|e| unusable(path, &e))?;
    }
    Ok((done, Box::new(file)))
}

/// Collects the ids of whole lines and returns how many bytes those are.
fn read_done(file: &File, done: &mut HashSet<String>) -> io::Result<u64> {
    let mut reader = BufReader::new(file);
    let mut whole = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        let len = reader.read_until(b'\n', &mut line)?;
        if len == 0 || line.last() != Some(&b'\n') {
            return Ok(whole);
        }
        let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&line);
        let Ok(parsed) = parsed else {
            return Ok(whole);
        };
        if let Some(id) = parsed["custom_id"].as_str() {
            done.insert(id.to_owned());
        }
        whole += len as u64;
    }
}

struct Batch {
    app: Arc<App>,
    window: usize,
    is_ordered: bool,
}

impl Batch {
    async fn run(
        &self,
        mut input: impl BufRead,
        done: HashSet<String>,
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
                    Ok(job) if done.contains(&job.custom_id) => counts.skipped += 1,
                    Ok(job) => jobs.push(job),
                    // Whoever resumes would be told twice, which is better than never.
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

    /// A line as what is to be asked.
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

    async fn ask_all(
        &self,
        mut jobs: Vec<Job>,
        lines: &mut Lines,
        counts: &mut Counts,
        output: &mut dyn Write,
    ) -> Result<(), Failure> {
        jobs.sort_by(|a, b| (&a.url, &a.body).cmp(&(&b.url, &b.body)));
        let mut asked = JoinSet::new();
        let mut jobs = jobs.into_iter();
        loop {
            while asked.len() < IN_FLIGHT
                && let Some(job) = jobs.next()
            {
                asked.spawn(ask(Arc::clone(&self.app), job));
            }
            let Some(answered) = asked.join_next().await else {
                return Ok(());
            };
            let (job, answered) = answered
                .map_err(|e| Failure::new(Code::Failed, format_args!("a request failed: {e}")))?;
            match answered.status {
                200 => counts.answered += 1,
                _ => counts.refused += 1,
            }
            lines.put(job.index, self.answered(&job.custom_id, &answered), output)?;
        }
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
        let mut line = serde_json::to_vec(output).expect("its keys are strings");
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
        // The rest is passed over, a piece at a time.
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

/// One write for each line: what is whole in the file was answered.
fn write(output: &mut dyn Write, line: &[u8]) -> Result<(), Failure> {
    output
        .write_all(line)
        .map_err(|e| Failure::new(Code::Failed, format_args!("cannot write the output: {e}")))
}
