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
    /// A file to a tokenizer, in a new process each time.
    pub(super) fn load(
        &mut self,
        rounds: usize,
        bar: &ProgressBar,
        value: impl Fn(Cost) -> f64,
    ) -> Result<Vec<Entry>> {
        let (path, engines) = (self.tokenizer.clone(), self.engines.clone());
        self.load_from(&path, &engines, rounds, bar, value)
    }

    /// The same for a compiled image, which only ours has.
    pub(super) fn load_image(&mut self, rounds: usize, bar: &ProgressBar) -> Result<Vec<Entry>> {
        let json = fs::read(&self.tokenizer)
            .with_context(|| format!("cannot read {}", self.tokenizer.display()))?;
        let path = self.file("tokenizer.ftk");
        fs::write(&path, fasttoken::Tokenizer::compile(&json)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
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

    /// What each of `threads` threads adds to a process, when all have encoded the texts.
    pub(super) fn per_thread(
        &mut self,
        texts: &Texts,
        threads: usize,
        rounds: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<Entry>> {
        let mut results = Vec::new();
        let (path, texts_path) = (name(&self.tokenizer), self.file("texts"));
        for round in 0..=rounds {
            if round == 0 {
                let texts = texts.next(&mut self.corpus, self.chat_markers);
                write_texts(&texts_path, &texts)?;
                bar.inc(1);
                continue;
            }
            for who in self.engines.clone() {
                let mut process = self.launcher.start(who, 1)?;
                let texts = name(&texts_path);
                let added = process
                    .obey(&Order::Load { path: path.clone() })
                    .and_then(|_| process.obey(&Order::Texts { path: texts }))
                    .and_then(|_| process.obey(&Order::Crowd { threads }));
                match added {
                    #[expect(clippy::cast_precision_loss, reason = "a few threads")]
                    Ok(cost) => enter(&mut results, who, megabytes(cost) / threads as f64),
                    Err(error) => self.remark(format!("{error:#}")),
                }
            }
            bar.inc(1);
        }
        Ok(results)
    }
}

/// How much more memory was resident.
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
