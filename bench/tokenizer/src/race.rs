//! Measuring: every engine does the same work in every round, in turns.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use indicatif::ProgressBar;
use serde_json::Value;

use crate::{
    corpus::Corpus,
    engines::Who,
    process::{Launcher, Process},
    protocol::{Cost, Order, Work, read, write},
    workloads::Row,
};

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
    pub(crate) running: BTreeMap<usize, Vec<Process>>,
    /// Remarks of the run: engines that refuse, ids that differ.
    pub(crate) remarks: Vec<String>,
    /// The name of the vocabulary in remarks, or nothing for the first one.
    pub(crate) title: String,
}

/// The result of one engine in one row: a value per round, in the row's unit.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) who: Who,
    pub(crate) values: Vec<f64>,
    /// Texts whose ids are not those of the reference, of how many.
    pub(crate) differing: (usize, usize),
}

/// Returns the entry of an engine, which is added if there is none.
fn entry(entries: &mut Vec<Entry>, who: Who) -> &mut Entry {
    let at = entries.iter().position(|entry| entry.who == who);
    let at = at.unwrap_or_else(|| {
        entries.push(Entry {
            who,
            values: Vec::new(),
            differing: (0, 0),
        });
        entries.len() - 1
    });
    &mut entries[at]
}

/// The input of a round.
#[derive(Clone, Copy, Default)]
struct Input {
    bytes: usize,
    /// The number of parts of the work that a value is per.
    parts: usize,
}

impl Race {
    /// Goes on with another vocabulary, without chat markers: engines start anew, texts do not. Remarks
    /// from here on begin with `title`.
    pub(crate) fn change_vocabulary(&mut self, title: &str, tokenizer: PathBuf, reference: Who) {
        self.running.clear();
        self.tokenizer = tokenizer;
        self.reference = reference;
        self.chat_markers = false;
        title.clone_into(&mut self.title);
    }

    /// Returns the rounds of a row, but for the first one, whose values do not count.
    pub(crate) fn rounds_of(&self, row: &Row) -> usize {
        match row.work {
            // One short call per round, timed by the clock on the wall.
            Work::Batch if row.fresh => self.rounds * 3,
            Work::Load | Work::LoadCompiled | Work::Memory => self.rounds.min(5),
            // A process of its own for each value.
            Work::Crowd | Work::Further | Work::First => self.rounds.min(3),
            _ => self.rounds,
        }
    }

    /// Measures one row.
    pub(crate) fn run(&mut self, row: &Row, bar: &ProgressBar) -> Result<Vec<Entry>> {
        match row.work {
            Work::Share | Work::Apart => self.share(row, bar),
            Work::LoadCompiled => self.load_compiled(row, bar),
            _ => self.race(row, bar),
        }
    }

    fn race(&mut self, row: &Row, bar: &ProgressBar) -> Result<Vec<Entry>> {
        let threads = match row.work {
            Work::Batch => row.threads,
            _ => 1,
        };
        let is_new = matches!(
            row.work,
            Work::First
                | Work::Load
                | Work::LoadCompiled
                | Work::Memory
                | Work::Crowd
                | Work::Further
        );
        let mut processes = match is_new {
            true => Vec::new(),
            false => self.processes(threads)?,
        };
        let mut entries = Vec::new();
        let mut input = Input::default();
        for round in 0..=self.rounds_of(row) {
            if is_new {
                processes = self.started(1)?;
            }
            if round == 0 || row.fresh {
                // New processes are given it in their turns, once they have loaded.
                let given = if is_new {
                    &mut [][..]
                } else {
                    &mut processes[..]
                };
                input = self.prepare(row, given)?;
            }
            let count = processes.len();
            for n in 0..count {
                // Each round begins with the next engine.
                let process = &mut processes[(n + round) % count];
                let entry = entry(&mut entries, process.who);
                match self.turn(row, round == 0, process, input) {
                    Ok(Some(value)) if round > 0 => entry.values.push(value),
                    Ok(_) => {}
                    Err(error) => {
                        let loads = matches!(row.work, Work::Load | Work::Memory);
                        let what = if loads { "left out" } else { &row.name };
                        self.remark(format!("{what}: {error:#}"));
                    }
                }
            }
            let has_answer = row.work == Work::First || !is_new;
            if has_answer && (round == 0 || row.fresh) {
                self.compare(row, &mut processes, &mut entries)?;
            }
            bar.inc(1);
        }
        if !is_new {
            self.running.insert(threads, processes);
        }
        Ok(entries)
    }

    /// Makes the next input and hands it to the engines that run.
    fn prepare(&mut self, row: &Row, processes: &mut [Process]) -> Result<Input> {
        let path = self.file("texts");
        let mut input = Input::default();
        if !row.text.is_empty() {
            let texts = row.texts(&mut self.corpus, self.chat_markers)?;
            input.bytes = texts.iter().map(String::len).sum();
            write(&path, &texts)?;
        }
        input.parts = match row.work {
            Work::Encode | Work::First => row.count,
            Work::Together => row.count * row.threads,
            _ => 1,
        };
        if !row.work.decodes() {
            for process in processes {
                process.obey(&Order::Texts { path: name(&path) })?;
            }
            return Ok(input);
        }
        let ids = self.ids(row, processes)?;
        if row.work != Work::Decode {
            input.parts = ids.len();
        }
        let path = self.file("ids");
        write(&path, &ids)?;
        for process in processes {
            process.obey(&Order::Ids { path: name(&path) })?;
        }
        Ok(input)
    }

    /// Returns the ids to decode: of the text as we encode it, or a range.
    fn ids(&self, row: &Row, processes: &mut [Process]) -> Result<Vec<u32>> {
        if let Some(first) = row.first_id {
            return Ok((first..).take(row.ids).collect());
        }
        let ours = processes.first_mut().context("fasttoken takes part")?;
        let path = name(&self.file("texts"));
        ours.obey(&Order::Texts { path })?;
        let path = self.file("answer");
        ours.obey(&Order::Answer {
            work: Work::Encode,
            path: name(&path),
        })?;
        let mut ids = read::<Vec<Vec<u32>>>(&path)?.pop().unwrap_or_default();
        ensure!(ids.len() >= row.ids, "the text has too few tokens");
        if row.ids > 0 {
            ids.truncate(row.ids);
        }
        Ok(ids)
    }

    /// Returns the value of an engine in its turn, in the row's unit. `is_first`: there is no value
    /// for repeated work, whose number of repetitions is found.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn turn(
        &self,
        row: &Row,
        is_first: bool,
        process: &mut Process,
        input: Input,
    ) -> Result<Option<f64>> {
        let load = |process: &mut Process| {
            let path = name(&self.tokenizer);
            process.obey(&Order::Load { path })
        };
        let crowd = |process: &mut Process, threads| process.obey(&Order::Crowd { threads });
        let texts = Order::Texts {
            path: name(&self.file("texts")),
        };
        let repeat = |work| {
            move |process: &mut Process, passes| process.obey(&Order::Repeat { work, passes })
        };
        let seconds = match row.work {
            Work::Load | Work::LoadCompiled => load(process)?.cpu_s,
            Work::Memory => return Ok(Some(megabytes(load(process)?))),
            Work::Crowd => {
                let loaded = load(process)?;
                process.obey(&texts)?;
                return Ok(Some(
                    megabytes(loaded) + megabytes(crowd(process, row.threads)?),
                ));
            }
            Work::Further => {
                load(process)?;
                process.obey(&texts)?;
                let one = crowd(process, 1)?;
                let all = crowd(process, row.threads)?;
                let added = all.rss_after.saturating_sub(one.rss_after);
                return Ok(Some(added as f64 / 1e6 / (row.threads - 1) as f64));
            }
            Work::First => {
                load(process)?;
                process.obey(&texts)?;
                repeat(Work::Encode)(process, 1)?.cpu_s
            }
            _ => {
                let done = match row.work {
                    Work::Together => {
                        let threads = row.threads;
                        let share = move |process: &mut Process, passes| {
                            process.obey(&Order::Share { threads, passes })
                        };
                        repeated(row, is_first, process, share)?
                    }
                    work => repeated(row, is_first, process, repeat(work))?,
                };
                let Some(seconds) = done else { return Ok(None) };
                seconds
            }
        };
        Ok(Some(match &*row.unit {
            "MB/s" => input.bytes as f64 / seconds / 1e6,
            _ => seconds / input.parts as f64 * row.per_second(),
        }))
    }

    /// Measures loading a compiled tokenizer, which only fasttoken has.
    fn load_compiled(&mut self, row: &Row, bar: &ProgressBar) -> Result<Vec<Entry>> {
        let contents = fs::read(&self.tokenizer)
            .with_context(|| format!("cannot read {}", self.tokenizer.display()))?;
        let is_model = self.tokenizer.extension().is_some_and(|e| e == "model");
        let compiled = if is_model {
            fasttoken::Tokenizer::compile_sentencepiece(&contents)?
        } else {
            fasttoken::Tokenizer::compile(&contents)?
        };
        let path = self.file("tokenizer.ftk");
        fs::write(&path, compiled).with_context(|| format!("cannot write {}", path.display()))?;
        let engines = std::mem::replace(&mut self.engines, vec![Who::Fasttoken]);
        let tokenizer = std::mem::replace(&mut self.tokenizer, path);
        let entries = self.race(row, bar);
        (self.engines, self.tokenizer) = (engines, tokenizer);
        entries
    }

    /// Ours alone: how many times the work two threads do in the time of one. `apart`: of two
    /// processes of one thread each, which share nothing but the machine, in the same round; what
    /// the machine makes of a second thread is out of that.
    fn share(&mut self, row: &Row, bar: &ProgressBar) -> Result<Vec<Entry>> {
        let mut processes = self.processes(1)?;
        let mut other = match row.work {
            Work::Apart => Some(self.launcher.start(Who::Fasttoken, 1)?),
            _ => None,
        };
        let path = name(&self.tokenizer);
        if let Some(other) = &mut other {
            other.obey(&Order::Load { path })?;
        }
        self.prepare(row, &mut processes[..1])?;
        let ours = processes.first_mut().context("fasttoken takes part")?;
        let path = name(&self.file("texts"));
        if let Some(other) = &mut other {
            other.obey(&Order::Texts { path })?;
        }
        let share = |process: &mut Process, threads| {
            let passes = 20;
            anyhow::Ok(process.obey(&Order::Share { threads, passes })?.wall_s)
        };
        let mut entries = Vec::new();
        let entry = entry(&mut entries, Who::Fasttoken);
        for round in 0..=self.rounds_of(row) {
            let against = match &mut other {
                None => 2.0 * share(ours, 1)?,
                Some(other) => thread::scope(|scope| {
                    let beside = scope.spawn(|| share(other, 1));
                    let own = share(ours, 1)?;
                    let beside = beside.join().map_err(|_| anyhow!("a thread panicked"))?;
                    anyhow::Ok(own.max(beside?))
                })?,
            };
            let two = share(ours, 2)?;
            if round > 0 {
                entry.values.push(against / two);
            }
            bar.inc(1);
        }
        self.running.insert(1, processes);
        Ok(entries)
    }

    /// Starts the engines for the vocabulary at hand, with `threads` threads each.
    fn started(&self, threads: usize) -> Result<Vec<Process>> {
        let engines = self.engines.iter().copied();
        let taking_part = engines.filter(|who| who.races_with(self.reference));
        let start = |who| self.launcher.start(who, threads);
        taking_part.map(start).collect()
    }

    /// Returns the engines with `threads` threads each, loaded. One that cannot load is left out aloud.
    fn processes(&mut self, threads: usize) -> Result<Vec<Process>> {
        if let Some(running) = self.running.remove(&threads) {
            return Ok(running);
        }
        let mut processes = Vec::new();
        for mut process in self.started(threads)? {
            let path = name(&self.tokenizer);
            match process.obey(&Order::Load { path }) {
                Ok(_) => processes.push(process),
                Err(error) => self.remark(format!("left out: {error:#}")),
            }
        }
        Ok(processes)
    }

    /// Asks all engines for what they make of the input and compares it with what the reference does.
    fn compare(
        &mut self,
        row: &Row,
        processes: &mut [Process],
        entries: &mut Vec<Entry>,
    ) -> Result<()> {
        let path = self.file("answer");
        let mut answers: Vec<(Who, Vec<Value>)> = Vec::new();
        for process in processes.iter_mut() {
            let order = Order::Answer {
                work: row.work,
                path: name(&path),
            };
            if process.obey(&order).is_ok() {
                answers.push((process.who, read(&path)?));
            }
        }
        let right = self.reference.title();
        let expected = answers.iter().find(|(who, _)| *who == self.reference);
        let Some((_, expected)) = expected else {
            self.remark(format!("{right} does not take part: ids were not compared"));
            return Ok(());
        };
        for (who, answer) in &answers {
            let title = who.title();
            ensure!(answer.len() == expected.len(), "{title} lost texts");
            let differing = answer.iter().zip(expected).filter(|(a, b)| a != b).count();
            let entry = entry(entries, *who);
            entry.differing.0 += differing;
            entry.differing.1 += answer.len();
            if differing > 0 {
                let made = match row.work.decodes() {
                    true => "decodes to another text than",
                    false => "gives other ids than",
                };
                self.remark(format!("{}: {title} {made} {right}", row.name));
            }
        }
        Ok(())
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
}

/// Returns the seconds for the work done once. In the first round, which prepares each engine and
/// finds the number of times that the engine repeats the work, there are none.
fn repeated(
    row: &Row,
    is_first: bool,
    process: &mut Process,
    order: impl Fn(&mut Process, u32) -> Result<Cost>,
) -> Result<Option<f64>> {
    // Shorter turns for the paper's rows, which are many.
    let turn_s = match row.name.starts_with("paper") {
        true => 0.05,
        false => 0.2,
    };
    let timed = |process: &mut Process, passes: u32| -> Result<f64> {
        let cost = order(process, passes)?;
        let seconds = match row.work {
            Work::Batch | Work::Together => cost.wall_s,
            _ => cost.cpu_s,
        };
        Ok(seconds / f64::from(passes))
    };
    if is_first {
        let cold = timed(process, 1)?;
        process.passes = 1;
        if !row.fresh {
            // The first time says little about later ones.
            let warm = timed(process, repeats(cold, turn_s / 10.0))?;
            process.passes = repeats(warm, turn_s);
        }
        return Ok(None);
    }
    if !row.fresh {
        // Warm text is text that this engine has just seen: after the turns of other engines, the
        // processor's caches have lost it.
        timed(process, 1)?;
    }
    timed(process, process.passes).map(Some)
}

fn repeats(seconds: f64, turn_s: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 1..1e6"
    )]
    let repeats = (turn_s / seconds.max(1e-9)).clamp(1.0, 1e6) as u32;
    repeats
}

/// Returns the added resident memory.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn megabytes(cost: Cost) -> f64 {
    cost.rss_after.saturating_sub(cost.rss_before) as f64 / 1e6
}

fn name(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_repeated_for_a_turns_time() {
        assert_eq!(repeats(0.01, 0.2), 20);
        assert_eq!(repeats(0.5, 0.2), 1);
        assert_eq!(repeats(0.0, 0.2), 1_000_000);
    }
}
