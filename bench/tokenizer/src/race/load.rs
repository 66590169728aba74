//! Loading a tokenizer, and the memory that it and its threads take.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;

use super::{Entry, Race, name};
use crate::{
    engines::Who,
    protocol::{Cost, Order, write_texts},
    workloads::Texts,
};

impl Race {
    /// Measures loading a file as a tokenizer, in a new process each time.
    pub(super) fn load(
        &mut self,
        rounds: usize,
        bar: &ProgressBar,
        value: impl Fn(Cost) -> f64,
    ) -> Result<Vec<Entry>> {
        let (path, engines) = (self.tokenizer.clone(), self.taking_part());
        self.load_from(&path, &engines, rounds, bar, value)
    }

    /// Measures loading a compiled tokenizer, which only fasttoken has.
    pub(super) fn load_image(&mut self, rounds: usize, bar: &ProgressBar) -> Result<Vec<Entry>> {
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
        let value = |cost: Cost| cost.cpu_s * 1e3;
        self.load_from(&path, &[Who::Fasttoken], rounds, bar, value)
    }

    fn load_from(
        &mut self,
        path: &Path,
        engines: &[Who],
        rounds: usize,
        bar: &ProgressBar,
        value: impl Fn(Cost) -> f64,
    ) -> Result<Vec<Entry>> {
        let mut results = Vec::new();
        for round in 0..=rounds {
            for &who in engines {
                let mut process = self.launcher.start(who, 1)?;
                let cost = process.obey(&Order::Load { path: name(path) });
                // The first round brings the file into the page cache.
                if let (Ok(cost), true) = (cost, round > 0) {
                    enter(&mut results, who, value(cost));
                }
            }
            bar.inc(1);
        }
        Ok(results)
    }

    /// Returns the memory that loading and `threads` threads added to a process once all have
    /// encoded the texts, or the memory that each thread after the first added.
    pub(super) fn crowd(
        &mut self,
        texts: &Texts,
        (threads, each): (usize, bool),
        rounds: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<Entry>> {
        let mut results = Vec::new();
        let texts_path = self.file("texts");
        for round in 0..=rounds {
            if round == 0 {
                let texts = texts.next(&mut self.corpus, self.chat_markers);
                write_texts(&texts_path, &texts)?;
                bar.inc(1);
                continue;
            }
            for who in self.taking_part() {
                let mut process = self.launcher.start(who, 1)?;
                let path = name(&self.tokenizer);
                let loaded = process.obey(&Order::Load { path });
                let texts = name(&texts_path);
                let added = loaded.and_then(|loaded| {
                    process.obey(&Order::Texts { path: texts })?;
                    if !each {
                        let all = process.obey(&Order::Crowd { threads })?;
                        return Ok(megabytes(loaded) + megabytes(all));
                    }
                    let one = process.obey(&Order::Crowd { threads: 1 })?;
                    let all = process.obey(&Order::Crowd { threads })?;
                    let added = all.rss_after.saturating_sub(one.rss_after);
                    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                    let each = added as f64 / 1e6 / (threads - 1) as f64;
                    Ok(each)
                });
                match added {
                    Ok(megabytes) => enter(&mut results, who, megabytes),
                    Err(error) => self.remark(format!("{error:#}")),
                }
            }
            bar.inc(1);
        }
        Ok(results)
    }
}

/// Returns the added resident memory.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(super) fn megabytes(cost: Cost) -> f64 {
    cost.rss_after.saturating_sub(cost.rss_before) as f64 / 1e6
}

fn enter(results: &mut Vec<Entry>, who: Who, value: f64) {
    match results.iter_mut().find(|r| r.who == who) {
        Some(result) => result.values.push(value),
        None => results.push(Entry {
            who,
            values: vec![value],
            differing: (0, 0),
        }),
    }
}
