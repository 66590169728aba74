//! Ids to text, at once or as a model makes them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use indicatif::ProgressBar;

use super::{Board, Entry, Race, name, repeats, turns};
use crate::{
    corpus::Kind,
    engines::Who,
    process::Process,
    protocol::{Order, read_ids, write_ids, write_texts},
    workloads::{Texts, What},
};

impl Race {
    pub(super) fn decode(
        &mut self,
        count: usize,
        stream: bool,
        rounds: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<Entry>> {
        let mut processes = self.processes(1)?;
        let mut board = Board::new(&processes);
        let path = self.file("ids");
        let ids = self.some_ids(&mut processes, count)?;
        write_ids(&path, &[ids])?;
        let mut passes = vec![1; processes.len()];
        for round in 0..=rounds {
            for n in turns(processes.len(), round) {
                if round == 0 {
                    processes[n].obey(&Order::Ids { path: name(&path) })?;
                }
                let passes = &mut passes[n];
                let order = if stream {
                    Order::Stream { passes: *passes }
                } else {
                    Order::Decode { passes: *passes }
                };
                let cost = match processes[n].obey(&order) {
                    Ok(cost) => cost,
                    Err(error) => {
                        self.remark(format!("{error:#}"));
                        continue;
                    }
                };
                let seconds = cost.cpu_s / f64::from(*passes);
                if round == 0 {
                    *passes = repeats(seconds);
                    continue;
                }
                #[expect(clippy::cast_precision_loss, reason = "a few thousand ids")]
                let value = if stream {
                    seconds * 1e9 / count as f64
                } else {
                    seconds * 1e6
                };
                board.results[n].values.push(value);
            }
            bar.inc(1);
        }
        self.compare_decoded(&mut processes, stream, &mut board)?;
        self.running.insert(1, processes);
        Ok(board.results)
    }

    /// Exactly `count` ids of English text.
    fn some_ids(&mut self, processes: &mut [Process], count: usize) -> Result<Vec<u32>> {
        let texts = Texts {
            what: What::Plain(Kind::English),
            bytes: count * 12,
            count: 1,
        };
        let (texts_path, ids_path) = (self.file("texts"), self.file("ids"));
        write_texts(&texts_path, &texts.next(&mut self.corpus, false))?;
        let ours = processes.first_mut().context("fasttoken takes part")?;
        ours.obey(&Order::Texts {
            path: name(&texts_path),
        })?;
        ours.obey(&Order::Dump {
            path: name(&ids_path),
        })?;
        let mut ids = read_ids(&ids_path)?.pop().unwrap_or_default();
        ensure!(ids.len() >= count, "the text has too few tokens");
        ids.truncate(count);
        Ok(ids)
    }

    fn compare_decoded(
        &mut self,
        processes: &mut [Process],
        stream: bool,
        board: &mut Board,
    ) -> Result<()> {
        let mut texts = Vec::new();
        for process in processes.iter_mut() {
            let path = self.file("decoded");
            let order = Order::Decoded {
                path: name(&path),
                stream,
            };
            let done = process.obey(&order).is_ok();
            texts.push(done.then(|| fs::read(&path)).transpose()?);
        }
        let reference = processes.iter().position(|p| p.who == Who::Tokenizers);
        let Some(expected) = reference.and_then(|at| texts[at].clone()) else {
            return Ok(());
        };
        for ((process, text), result) in processes.iter().zip(&texts).zip(&mut board.results) {
            let Some(text) = text else { continue };
            result.differing = (usize::from(*text != expected), 1);
            if *text != expected {
                let who = process.who.title();
                self.remark(format!(
                    "{who} decodes to another text than tokenizers 0.23"
                ));
            }
        }
        Ok(())
    }
}
