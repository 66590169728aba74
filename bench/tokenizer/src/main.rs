//! fasttoken against its rivals: the same texts, in turns, each engine in a process of its own.
//!
//! Started by `cargo xtask bench tokenizer`; `bench/tokenizer/README.md` says what is measured and
//! what came out.

mod also;
mod collect;
mod corpus;
mod engines;
mod judge;
mod kind;
mod papers_tokenizer;
mod process;
mod protocol;
mod race;
mod report;
mod synth;
mod vocabularies;
mod worker;
mod workloads;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use prelude_measure::record::Record;

use crate::{
    also::Also,
    corpus::Corpus,
    engines::Who,
    judge::Line,
    process::Launcher,
    race::Race,
    report::About,
    vocabularies::{Given, Vocabulary},
    workloads::{Row, rows},
};

#[derive(Parser)]
#[command(name = "cargo xtask bench tokenizer", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    hidden: Option<Hidden>,
    /// The tokenizer.json to use; by default Qwen 3's beside the checkout, or the demo model's.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    given: Given,
    /// Rounds of each measurement; the median counts.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Only rows whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Leave these rivals out: fastokens, gigatoken, tokenizers-rc, tokenizers, sentencepiece,
    /// tiktoken, paper (the tokenizer that the repository of the paper's authors uses).
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// One more rival: the engine of another build of bench/tokenizer, shown under a title. Its
    /// ids are checked as those of all engines; targets do not count it. May be given several
    /// times.
    #[arg(long, value_name = "TITLE=ENGINE:PROGRAM", value_parser = Also::parse)]
    also: Vec<Also>,
    /// Race fasttoken without each of its fast paths, in place of rivals.
    #[arg(long)]
    ablation: bool,
    /// First gather real text from this machine and from Debian packages into the output folder.
    /// Without it, text that was gathered before is used, and generated text where there is none.
    #[arg(long)]
    collect: bool,
    /// First install what is not compiled in into the output folder: gigatoken, sentencepiece and
    /// tiktoken (Python), and the tokenizer that the repository of the paper's authors uses (from its git repository).
    #[arg(long)]
    install_rivals: bool,
    /// A Python that can import gigatoken, sentencepiece and tiktoken, instead of that virtual
    /// environment.
    #[arg(long)]
    python: Option<PathBuf>,
    /// The paper's own figures, to be printed beside ours: a JSON object from names of rows to
    /// any text.
    #[arg(long)]
    paper: Option<PathBuf>,
    /// Also write the results into the repository, as RESULTS.md in bench/results/tokenizer.
    #[arg(long)]
    page: bool,
    /// Folder for texts and results; git ignores the default.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Hidden {
    /// Print the version of the protocol between builds of this program.
    #[command(hide = true)]
    Protocol,
    /// An engine's process.
    #[command(hide = true)]
    Worker {
        #[arg(long)]
        engine: String,
        #[arg(long)]
        threads: usize,
        #[arg(long)]
        leave_out: Option<String>,
    },
}

/// Returns true if the vocabulary has the tokens of a chat, and fails if fasttoken cannot load it.
fn has_chat_tokens(tokenizer: &Path) -> Result<bool> {
    let ours = fasttoken::Tokenizer::from_file(tokenizer)
        .with_context(|| format!("fasttoken cannot load {}", tokenizer.display()))?;
    Ok(ours.token_to_id("<|im_start|>").is_some())
}

/// Installs the rivals, and prints the name of each that fails.
fn install_rivals(environment: &Path, out: &Path) {
    let installed = [
        ("a rival of Python", install_python(environment)),
        ("the paper's tokenizer", papers_tokenizer::install(out)),
    ];
    for (name, result) in installed {
        if let Err(error) = result {
            println!("SKIP  {name} could not be installed: {error:#}");
        }
    }
}

/// Runs the hidden command of the arguments, if there is one.
fn run_hidden(hidden: Option<&Hidden>) -> Result<bool> {
    match hidden {
        Some(Hidden::Worker {
            engine,
            threads,
            leave_out,
        }) => {
            leave_out.as_deref().map(also::leave_out).transpose()?;
            worker::serve(Who::from_key(engine)?, *threads)?;
        }
        Some(Hidden::Protocol) => println!("{}", protocol::version()),
        None => return Ok(false),
    }
    Ok(true)
}

fn main() -> Result<()> {
    let args = Args::parse();
    if run_hidden(args.hidden.as_ref())? {
        return Ok(());
    }
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| repository().join("bench/out/tokenizer"));
    let (texts, scratch) = (out.join("texts"), out.join("scratch"));
    for folder in [&texts, &scratch] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    if args.collect {
        collect::collect(&texts, |line| println!("{line}"))?;
    }
    let environment = out.join("python");
    if args.install_rivals {
        install_rivals(&environment, &out);
    }
    let python = (args.python.clone()).unwrap_or_else(|| environment.join("bin/python"));
    let (mut engines, also) = match args.ablation {
        true => (vec![Who::Fasttoken], Also::ablations()?),
        false => (engines(&args, &python)?, other_builds(&args, &out)),
    };
    engines.extend(also.iter().map(Also::who));
    let tokenizer = tokenizer(args.tokenizer.clone())?;
    let only = args.only.as_deref();
    let patterns = vocabularies::patterns(&repository(), &tokenizer, &scratch, only)?;
    let families = vocabularies::families(&repository(), &out, &args.given)?;
    let family_names = families.iter().map(|f| vocabulary_name(&f.path)).collect();
    let paper = args.paper.as_deref().map(report::figures).transpose()?;
    // Fast paths change no id: with and without them they are those of fasttoken.
    let right = |reference| match args.ablation {
        true => Who::Fasttoken,
        false => reference,
    };
    let mut race = Race {
        launcher: Launcher { python, also },
        tokenizer: tokenizer.clone(),
        engines,
        reference: right(Who::Tokenizers),
        corpus: Corpus::open(&texts)?,
        rounds: args.rounds.max(1),
        scratch,
        chat_markers: has_chat_tokens(&tokenizer)?,
        running: BTreeMap::new(),
        remarks: Vec::new(),
        title: String::new(),
    };
    println!("vocabulary: {}", tokenizer.display());
    let loads = load_average();
    let others = patterns.into_iter().chain(families);
    let lines = measure_all(&mut race, others, only, right)?;
    ensure!(!lines.is_empty(), "no row is called like that");
    let about = About {
        record: Record::new("tokenizer", lines.iter().flat_map(Line::records).collect()),
        load_average: format!("{loads} before, {} after", load_average()),
        command: command(&args),
        tokenizer: vocabulary_name(&tokenizer),
        families: family_names,
        texts: race.corpus.notes(),
        remarks: race.remarks,
        rounds: race.rounds,
        paper: paper.unwrap_or_default(),
    };
    let page = args
        .page
        .then(|| repository().join("bench/results/tokenizer"));
    publish(&out, page.as_deref(), &lines, &race.engines, &about)?;
    if args.ablation {
        print!(
            "\nwithout a fast path, longer on one row by\n{}",
            report::most(&lines, &race.engines)
        );
    }
    Ok(())
}

/// Returns the engines of this build that can take part, ours first, and prints those that cannot.
fn engines(args: &Args, python: &Path) -> Result<Vec<Who>> {
    let keys = args.without.iter();
    let keys = keys.filter(|key| *key != papers_tokenizer::KEY);
    let without = keys
        .map(|key| Who::from_key(key))
        .collect::<Result<Vec<Who>>>()?;
    ensure!(
        !without.contains(&Who::Fasttoken),
        "fasttoken always takes part"
    );
    let mut engines: Vec<Who> = Who::ALL
        .into_iter()
        .filter(|w| !without.contains(w))
        .collect();
    engines.retain(|who| {
        if !Who::OF_PYTHON.contains(who) {
            return true;
        }
        let module = who.key();
        let mut import = Command::new(python);
        import.args(["-c", &format!("import {module}")]);
        import.stdin(Stdio::null());
        let status = import.stdout(Stdio::null()).stderr(Stdio::null()).status();
        let found = status.is_ok_and(|s| s.success());
        if !found {
            println!("SKIP  {module} is not installed; --install-rivals does that");
        }
        found
    });
    Ok(engines)
}

/// Returns the paper's tokenizer, if it is installed, and those that were given; says aloud if the
/// former does not take part.
fn other_builds(args: &Args, out: &Path) -> Vec<Also> {
    let mut builds = Vec::new();
    if !args.without.iter().any(|key| key == papers_tokenizer::KEY) {
        match papers_tokenizer::installed(out) {
            Some(Ok(also)) => builds.push(also),
            Some(Err(error)) => println!("SKIP  {error:#}; --install-rivals does that"),
            None => {
                println!(
                    "SKIP  the paper's tokenizer is not installed; --install-rivals does that"
                );
            }
        }
    }
    builds.extend(args.also.iter().cloned());
    builds
}

/// Installs the rivals that run in Python.
fn install_python(environment: &Path) -> Result<()> {
    let run = |program: &Path, args: &[&str]| -> Result<()> {
        let status = Command::new(program).args(args).status();
        let status = status.with_context(|| format!("cannot start {}", program.display()))?;
        ensure!(status.success(), "{} failed: {status}", program.display());
        Ok(())
    };
    if !environment.join("bin/python").exists() {
        let folder = environment.to_string_lossy();
        run(Path::new("python3"), &["-m", "venv", &folder])?;
    }
    let pip = ["-m", "pip", "install", "-q"];
    let rivals = Who::OF_PYTHON.map(|who| who.title().replace(' ', "=="));
    let rivals = rivals.each_ref().map(String::as_str);
    run(
        &environment.join("bin/python"),
        &[&pip[..], &rivals].concat(),
    )
}

fn tokenizer(given: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path);
    }
    let root = repository();
    let candidates = [
        root.join("../shared/tokenizers/qwen3/tokenizer.json"),
        root.join("fasttoken/tests/data/tokenizer.json"),
    ];
    let found = candidates.iter().find(|path| path.exists());
    match found {
        Some(path) => Ok(path.clone()),
        None => bail!("no tokenizer.json found; give one with --tokenizer"),
    }
}

/// Measures the rows of the first vocabulary, then those of the others.
fn measure_all(
    race: &mut Race,
    others: impl Iterator<Item = Vocabulary>,
    only: Option<&str>,
    right: impl Fn(Who) -> Who,
) -> Result<Vec<Line>> {
    let mut lines = measure(race, "Targets", rows("targets", ""), only)?;
    let title = "The rows of the paper's table, all warm: its 17 texts encoded and decoded, then \
                 batches, one id at a time, eight threads, loading";
    lines.extend(measure(race, title, rows("paper", ""), only)?);
    for vocabulary in others {
        let Vocabulary {
            title,
            path,
            part,
            reference,
            rows,
        } = vocabulary;
        if only.is_some_and(|only| !rows.iter().any(|row| row.name.contains(only))) {
            continue;
        }
        println!("{title}: {}", path.display());
        race.change_vocabulary(&title, path, right(reference));
        lines.extend(measure(race, part, rows, only)?);
    }
    Ok(lines)
}

fn measure(
    race: &mut Race,
    part: &'static str,
    mut rows: Vec<Row>,
    only: Option<&str>,
) -> Result<Vec<Line>> {
    rows.retain(|row| only.is_none_or(|part| row.name.contains(part)));
    let steps = rows.iter().map(|row| race.rounds_of(row) as u64 + 1).sum();
    let bar = ProgressBar::new(steps);
    bar.set_style(ProgressStyle::with_template(
        "{bar:30} {percent:>3} % {elapsed_precise} {msg}",
    )?);
    let mut lines = Vec::new();
    for row in &rows {
        bar.set_message(row.name.clone());
        lines.push(judge::judge(part, row, race.run(row, &bar)?)?);
    }
    bar.finish_and_clear();
    Ok(lines)
}

/// Prints the results and writes them to `out`, and the page to `page` too.
fn publish(
    out: &Path,
    page: Option<&Path>,
    lines: &[Line],
    engines: &[Who],
    about: &About,
) -> Result<()> {
    print!("{}", report::terminal(lines, engines, &about.paper));
    for line in about.texts.iter().chain(&about.remarks) {
        println!("- {line}");
    }
    let record = about.record.write(out)?;
    let text = report::markdown(lines, engines, about);
    for folder in [Some(out), page].into_iter().flatten() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(folder.join("RESULTS.md"), &text).context("cannot write RESULTS.md")?;
    }
    println!("\n{} and RESULTS.md beside it", record.display());
    Ok(())
}

fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Returns the command that repeats the run, without paths of this machine.
fn command(args: &Args) -> String {
    let mut command = format!("cargo xtask bench tokenizer --rounds {}", args.rounds);
    if let Some(only) = &args.only {
        command.push_str(&format!(" --only '{only}'"));
    }
    for also in &args.also {
        command.push_str(&format!(" --also '{}'", also.text()));
    }
    command
}

/// Returns the name of a vocabulary's file with its folder, which says what vocabulary it is:
/// `qwen3/tokenizer.json`.
fn vocabulary_name(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
    let file = path.file_name().unwrap_or_default();
    format!("{}/{}", folder.to_string_lossy(), file.to_string_lossy())
}

fn load_average() -> String {
    let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    loads.split(' ').next().unwrap_or("unknown").to_owned()
}
