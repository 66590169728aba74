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
mod paper;
mod plot;
mod process;
mod protocol;
mod race;
mod report;
mod synth;
mod texts;
mod vocabularies;
mod worker;
mod workloads;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    also::Also,
    corpus::Corpus,
    engines::Who,
    judge::Line,
    process::Launcher,
    race::Race,
    report::About,
    vocabularies::{Given, Vocabulary},
    workloads::{Row, Unit},
};

#[derive(Parser)]
#[command(name = "cargo xtask bench tokenizer", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    hidden: Option<Hidden>,
    /// The tokenizer.json to use; by default Qwen 3's beside the checkout, or the demo model's.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// The tokenizer.json of a SentencePiece-style model for the rows about these; by default
    /// one beside the checkout or in the output folder.
    #[arg(long)]
    sentencepiece: Option<PathBuf>,
    /// The tokenizer.json of a WordPiece model for the rows about these; by default the small one
    /// of fasttoken's tests.
    #[arg(long)]
    wordpiece: Option<PathBuf>,
    /// The tokenizer.json of a Unigram model for the rows about these; by default the small one of
    /// fasttoken's tests.
    #[arg(long)]
    unigram: Option<PathBuf>,
    /// The SentencePiece .model file for the rows about these; by default two small ones of
    /// fasttoken's tests.
    #[arg(long)]
    model: Option<PathBuf>,
    /// The file of ranks for the rows about these: a *.tiktoken file, which gets the pattern of
    /// cl100k, or a tekken.json; by default small ones of fasttoken's tests.
    #[arg(long)]
    ranks: Option<PathBuf>,
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
    /// Also write the results into the repository, as RESULTS.md and its plots in
    /// bench/results/tokenizer.
    #[arg(long)]
    page: bool,
    /// Folder for texts, results and plots; git ignores the default.
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
        ("the paper's tokenizer", paper::tokenizer::install(out)),
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
        Some(Hidden::Worker { engine, threads }) => {
            worker::serve(Who::from_key(engine)?, *threads)?;
        }
        Some(Hidden::Protocol) => println!("{}", protocol::version()),
        None => return Ok(false),
    }
    Ok(true)
}

/// Returns the description of a run, without its load average, vocabularies and paper.
fn about(args: &Args, race: &Race) -> About {
    About {
        machine: machine(),
        date: jiff::Timestamp::now()
            .strftime("%Y-%m-%d %H:%M UTC")
            .to_string(),
        command: command(args),
        commit: commit(),
        texts: race.corpus.notes(),
        remarks: race.remarks.clone(),
        rounds: race.rounds,
        ..About::default()
    }
}

/// Returns the vocabularies that the command line names.
fn given(args: &Args) -> Given {
    Given {
        sentencepiece: args.sentencepiece.clone(),
        wordpiece: args.wordpiece.clone(),
        unigram: args.unigram.clone(),
        model: args.model.clone(),
        ranks: args.ranks.clone(),
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if run_hidden(args.hidden.as_ref())? {
        return Ok(());
    }
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| repository().join("bench/out/tokenizer"));
    let texts = out.join("texts");
    fs::create_dir_all(&texts).with_context(|| format!("cannot make {}", texts.display()))?;
    if args.collect {
        collect::collect(&texts, |line| println!("{line}"))?;
    }
    let environment = out.join("python");
    if args.install_rivals {
        install_rivals(&environment, &out);
    }
    let python = (args.python.clone()).unwrap_or_else(|| environment.join("bin/python"));
    let also = other_builds(&args, &out);
    let mut engines = engines(&args, &python)?;
    engines.extend(also.iter().map(Also::who));
    let tokenizer = tokenizer(args.tokenizer.clone())?;
    let chats = has_chat_tokens(&tokenizer)?;
    let scratch = out.join("scratch");
    fs::create_dir_all(&scratch)?;
    let families = vocabularies::families(&repository(), &out, given(&args))?;
    let only = args.only.as_deref();
    let patterns = vocabularies::patterns(&repository(), &tokenizer, &scratch, only)?;
    let named = |family: &Vocabulary| vocabulary_name(&family.path);
    let family_names = families.iter().map(named).collect();
    let paper = args.paper.as_deref().map(paper::figures).transpose()?;
    let launcher = Launcher {
        python: Some(python),
        also,
    };
    let mut race = Race::new(
        launcher,
        tokenizer.clone(),
        engines.clone(),
        Corpus::open(&texts)?,
        args.rounds.max(1),
        scratch,
        chats,
    );
    println!("vocabulary: {}", tokenizer.display());
    let loads = load_average();
    let rows = workloads::rows().into_iter().chain(paper::rows()).collect();
    let mut lines = measure(&mut race, rows, only)?;
    for vocabulary in patterns.into_iter().chain(families) {
        let Vocabulary {
            title,
            path,
            reference,
            rows,
        } = vocabulary;
        if only.is_some_and(|only| !rows.iter().any(|row| row.name.contains(only))) {
            continue;
        }
        println!("{title}: {}", path.display());
        race.change_vocabulary(&title, path, reference);
        lines.extend(measure(&mut race, rows, only)?);
    }
    ensure!(!lines.is_empty(), "no row is called like that");
    let about = About {
        load_average: format!("{loads} before, {} after", load_average()),
        tokenizer: vocabulary_name(&tokenizer),
        families: family_names,
        paper: paper.unwrap_or_default(),
        ..about(&args, &race)
    };
    publish(&out, &lines, &engines, &about)?;
    if args.page {
        write_page(
            &repository().join("bench/results/tokenizer"),
            &lines,
            &engines,
            &about,
        )?;
    }
    Ok(())
}

/// Returns the engines of this build that can take part, ours first, and prints those that cannot.
fn engines(args: &Args, python: &Path) -> Result<Vec<Who>> {
    let keys = args.without.iter();
    let keys = keys.filter(|key| *key != paper::tokenizer::KEY);
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
    if !args.without.iter().any(|key| key == paper::tokenizer::KEY) {
        match paper::tokenizer::installed(out) {
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
    let rivals = [
        "gigatoken==0.10.0",
        "sentencepiece==0.2.3",
        "tiktoken==0.12.0",
    ];
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

fn measure(race: &mut Race, rows: Vec<Row>, only: Option<&str>) -> Result<Vec<Line>> {
    let rows: Vec<_> = rows
        .into_iter()
        .filter(|row| only.is_none_or(|part| row.name.contains(part)))
        .collect();
    let bar = ProgressBar::new(rows.iter().map(|row| race.steps(row)).sum());
    bar.set_style(ProgressStyle::with_template(
        "{bar:30} {percent:>3} % {elapsed_precise} {msg}",
    )?);
    let mut lines = Vec::new();
    for row in &rows {
        bar.set_message(row.name.clone());
        lines.push(judge::judge(row, race.run(row, &bar)?));
    }
    bar.finish_and_clear();
    Ok(lines)
}

fn publish(out: &Path, lines: &[Line], engines: &[Who], about: &About) -> Result<()> {
    print!("{}", report::terminal(lines, engines, &about.paper));
    for line in about.texts.iter().chain(&about.remarks) {
        println!("- {line}");
    }
    let json = serde_json::json!({ "about": about, "lines": lines });
    fs::write(
        out.join("results.json"),
        serde_json::to_string_pretty(&json)?,
    )?;
    write_page(out, lines, engines, about)?;
    println!(
        "\nresults.json, RESULTS.md and plots are in {}",
        out.display()
    );
    Ok(())
}

fn write_page(folder: &Path, lines: &[Line], engines: &[Who], about: &About) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let plots = [
        ("rates.svg", Unit::MegabytesPerSecond),
        ("times.svg", Unit::Microseconds),
    ];
    let mut text =
        "# Results\n\nWritten by the command below; bench/tokenizer/README.md says how to read it.\n\n".to_owned();
    text.push_str(&report::markdown(lines, engines, about));
    text.push('\n');
    for (file, unit) in plots {
        plot::bars(&folder.join(file), lines, unit, engines)?;
        text.push_str(&format!("![{}]({file})\n", unit.text()));
    }
    fs::write(folder.join("RESULTS.md"), text).context("cannot write RESULTS.md")
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

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model
        .and_then(|line| line.split(": ").nth(1))
        .unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("{model}, {cores} cores, {}", std::env::consts::OS)
}

fn load_average() -> String {
    let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    loads.split(' ').next().unwrap_or("unknown").to_owned()
}

/// Returns the commit that was measured, and whether anything differs from it.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args([
        "describe",
        "--always",
        "--dirty= with changes",
        "--exclude=*",
    ])
    .current_dir(repository());
    let output = git.output().ok().filter(|output| output.status.success());
    output.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
