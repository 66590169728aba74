//! Measuring: every engine does the same work in every round, in turns.

mod decode;
mod first;
mod load;
mod threads;
mod turn;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::{
    corpus::Corpus,
    engines::Who,
    process::{Launcher, Process},
    protocol::{Order, read_ids, write_texts},
    workloads::{Part, Row, Texts, Unit, Work},
};
use turn::Turn;

/// The state of a run.
pub(crate) struct Race {
    pub(crate) launcher: Launcher,
    pub(crate) tokenizer: PathBuf,
    /// Engines that take part, ours first.
    pub(crate) engines: Vec<Who>,
    /// The engine whose ids are right.
    pub(crate) reference: Who,
    pub(crate) corpus: Corpus,
    pub(crate) rounds: usize,
    /// The folder of files for the engines.
    pub(crate) scratch: PathBuf,
    pub(crate) chat_markers: bool,
    /// Running engines, by the number of their threads.
    running: BTreeMap<usize, Vec<Process>>,
    /// Remarks of the run: engines that refuse, ids that differ.
    pub(crate) remarks: Vec<String>,
    /// The name of the vocabulary in remarks, or nothing for the first one.
    title: String,
}

/// The result of one engine in one row: a value per round, in the row's unit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) who: Who,
    pub(crate) values: Vec<f64>,
    /// Texts whose ids are not those of the reference, of how many.
    pub(crate) differing: (usize, usize),
}

/// Returns the target time of repeated work in a turn. It is shorter for the paper's rows, which
/// are many.
fn turn_s(row: &Row) -> f64 {
    match row.part {
        Part::Paper => 0.05,
        _ => 0.2,
    }
}

impl Race {
    pub(crate) fn new(
        launcher: Launcher,
        tokenizer: PathBuf,
        engines: Vec<Who>,
        corpus: Corpus,
        rounds: usize,
        scratch: PathBuf,
        chat_markers: bool,
    ) -> Self {
        Self {
            launcher,
            tokenizer,
            engines,
            reference: Who::Tokenizers,
            corpus,
            rounds,
            scratch,
            chat_markers,
            running: BTreeMap::new(),
            remarks: Vec::new(),
            title: String::new(),
        }
    }

    /// Goes on with another vocabulary, without chat markers: engines start anew, texts do not. Remarks
    /// from here on begin with `title`.
    pub(crate) fn change_vocabulary(&mut self, title: &str, tokenizer: PathBuf, reference: Who) {
        self.running.clear();
        self.tokenizer = tokenizer;
        self.reference = reference;
        self.chat_markers = false;
        title.clone_into(&mut self.title);
    }

    /// Rounds of a row, for the progress bar.
    pub(crate) fn steps(&self, row: &Row) -> u64 {
        (self.rounds_of(row) + 1) as u64
    }

    fn rounds_of(&self, row: &Row) -> usize {
        match row.work {
            // One short call per round, timed by the clock on the wall.
            Work::Batch { fresh: true, .. } => self.rounds * 3,
            Work::Load | Work::LoadImage | Work::Memory => self.rounds.min(5),
            // A process of its own for each value.
            Work::Threads { .. } | Work::FirstCall { .. } => self.rounds.min(3),
            _ => self.rounds,
        }
    }

    /// Returns the engines for the vocabulary at hand.
    fn taking_part(&self) -> Vec<Who> {
        let engines = self.engines.iter().copied();
        engines
            .filter(|who| who.races_with(self.reference))
            .collect()
    }

    /// Measures one row.
    pub(crate) fn run(&mut self, row: &Row, bar: &ProgressBar) -> Result<Vec<Entry>> {
        let rounds = self.rounds_of(row);
        match &row.work {
            Work::Encode { texts, fresh } => self.encode(row, texts, *fresh, rounds, bar),
            Work::FirstCall { texts } => self.first_call(row, texts, rounds, bar),
            Work::Batch {
                texts,
                threads,
                fresh,
            } => self.batch(row, texts, (*threads, *fresh), rounds, bar),
            Work::Share { texts, apart } => self.share(texts, *apart, rounds, bar),
            Work::Together {
                texts,
                threads,
                passes,
            } => self.together(row, texts, (*threads, *passes), rounds, bar),
            Work::Decode { ids, how } => self.decode(row, ids, *how, rounds, bar),
            Work::Load => self.load(rounds, bar, |cost| cost.cpu_s * 1e3),
            Work::LoadImage => self.load_image(rounds, bar),
            Work::Memory => self.load(rounds, bar, load::megabytes),
            Work::Threads {
                texts,
                threads,
                each,
            } => self.crowd(texts, (*threads, *each), rounds, bar),
        }
    }

    /// Returns the engines with `threads` threads each, loaded. One that cannot load is left out aloud.
    fn processes(&mut self, threads: usize) -> Result<Vec<Process>> {
        if let Some(running) = self.running.remove(&threads) {
            return Ok(running);
        }
        let mut processes = Vec::new();
        for who in self.taking_part() {
            let mut process = self.launcher.start(who, threads)?;
            let path = self.tokenizer.to_string_lossy().into_owned();
            match process.obey(&Order::Load { path }) {
                Ok(_) => processes.push(process),
                Err(error) => self.remark(format!("left out: {error:#}")),
            }
        }
        Ok(processes)
    }

    fn remark(&mut self, remark: String) {
        // Names of rows begin with the title already.
        let remark = match self.title.as_str() {
            title if remark.starts_with(title) => remark,
            title => format!("{title}: {remark}"),
        };
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    fn encode(
        &mut self,
        row: &Row,
        texts: &Texts,
        fresh: bool,
        rounds: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<Entry>> {
        let mut processes = self.processes(1)?;
        let mut board = Board::new(&processes);
        let mut bytes = 0;
        let mut passes = vec![1; processes.len()];
        let path = self.file("texts");
        let turn = Turn {
            order: |passes| Order::Encode { passes },
            seconds: |cost| cost.cpu_s,
            repeat_s: (!fresh).then(|| turn_s(row)),
        };
        for round in 0..=rounds {
            if fresh || round == 0 {
                let texts = texts.next(&mut self.corpus, self.chat_markers);
                bytes = texts.iter().map(String::len).sum::<usize>();
                write_texts(&path, &texts)?;
                for process in &mut processes {
                    process.obey(&Order::Texts { path: name(&path) })?;
                }
            }
            for n in turns(processes.len(), round) {
                match turn.take(round, &mut processes[n], &mut passes[n]) {
                    Ok(None) => {}
                    Ok(Some(seconds)) => {
                        let value = per(row.unit, seconds, bytes, texts.count);
                        board.results[n].values.push(value);
                    }
                    Err(error) => self.remark(format!("{}: {error:#}", row.name)),
                }
            }
            if fresh || round == 0 {
                self.compare(&row.name, &mut processes, &mut board)?;
            }
            bar.inc(1);
        }
        self.running.insert(1, processes);
        Ok(board.results)
    }

    /// Asks all engines for ids and compares these with the ids of the reference.
    fn compare(&mut self, row: &str, processes: &mut [Process], board: &mut Board) -> Result<()> {
        let mut all = Vec::new();
        for process in processes.iter_mut() {
            let path = self.file(&format!("ids-{}", process.who.key()));
            let done = process.obey(&Order::Dump { path: name(&path) });
            all.push(match done {
                Ok(_) => Some(read_ids(&path)?),
                Err(_) => None,
            });
        }
        let right = self.reference;
        let reference = processes.iter().position(|p| p.who == right);
        let Some(expected) = reference.and_then(|at| all[at].clone()) else {
            let title = right.title();
            self.remark(format!("{title} does not take part: ids were not compared"));
            return Ok(());
        };
        for ((process, ids), result) in processes.iter().zip(&all).zip(&mut board.results) {
            let Some(ids) = ids else { continue };
            ensure!(
                ids.len() == expected.len(),
                "{} lost texts",
                process.who.title()
            );
            let differing = ids.iter().zip(&expected).filter(|(a, b)| a != b).count();
            result.differing.0 += differing;
            result.differing.1 += ids.len();
            if differing > 0 {
                let who = process.who.title();
                let remark = format!("{row}: {who} gives other ids than {}", right.title());
                self.remark(remark);
            }
        }
        Ok(())
    }

    fn batch(
        &mut self,
        row: &Row,
        texts: &Texts,
        (threads, fresh): (usize, bool),
        rounds: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<Entry>> {
        let mut processes = self.processes(threads)?;
        let mut board = Board::new(&processes);
        let mut passes = vec![1; processes.len()];
        let path = self.file("texts");
        let turn = Turn {
            order: |passes| Order::Batch { passes },
            seconds: |cost| cost.wall_s,
            repeat_s: (!fresh).then(|| turn_s(row)),
        };
        for round in 0..=rounds {
            if fresh || round == 0 {
                write_texts(&path, &texts.next(&mut self.corpus, self.chat_markers))?;
            }
            for n in turns(processes.len(), round) {
                processes[n].obey(&Order::Texts { path: name(&path) })?;
                match turn.take(round, &mut processes[n], &mut passes[n]) {
                    Ok(None) => {}
                    Ok(Some(seconds)) => board.results[n].values.push(seconds * 1e6),
                    Err(error) => self.remark(format!("{}: {error:#}", row.name)),
                }
            }
            if fresh || round == 0 {
                self.compare(&row.name, &mut processes, &mut board)?;
            }
            bar.inc(1);
        }
        self.running.insert(threads, processes);
        Ok(board.results)
    }
}

/// Results of the engines that run, in their order.
struct Board {
    results: Vec<Entry>,
}

impl Board {
    fn new(processes: &[Process]) -> Self {
        let empty = |process: &Process| Entry {
            who: process.who,
            values: Vec::new(),
            differing: (0, 0),
        };
        Self {
            results: processes.iter().map(empty).collect(),
        }
    }
}

fn name(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Returns the order of engines in a round. Each round begins with the next engine.
fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |n| (n + round) % count)
}

/// Returns a round's seconds for `count` texts of `bytes` bytes together, in the row's unit.
#[expect(clippy::cast_precision_loss, reason = "texts are far below 2^52 bytes")]
fn per(unit: Unit, seconds: f64, bytes: usize, count: usize) -> f64 {
    match unit {
        Unit::MegabytesPerSecond => bytes as f64 / seconds / 1e6,
        _ => seconds / count as f64 * 1e6,
    }
}
