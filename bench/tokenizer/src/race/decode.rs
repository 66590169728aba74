//! Ids to text, at once or as a model makes them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use indicatif::ProgressBar;

use super::{Board, Entry, Race, name, turn::Turn, turn_s, turns};
use crate::{
    kind::Kind,
    process::Process,
    protocol::{How, Order, read_ids, write_ids, write_texts},
    workloads::{Ids, Row, Texts, What},
};

impl Race {
    pub(super) fn decode(
        &mut self,
        row: &Row,
        ids: &Ids,
        how: How,
        rounds: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<Entry>> {
        let mut processes = self.processes(1)?;
        let mut board = Board::new(&processes);
        let mut passes = vec![1; processes.len()];
        let path = self.file("ids");
        let ids = self.list(&mut processes, ids)?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52 ids")]
        let per_second = match how {
            How::Whole => 1e6,
            How::Stream | How::Each => 1e9 / ids.len() as f64,
        };
        write_ids(&path, &[ids])?;
        for process in &mut processes {
            process.obey(&Order::Ids { path: name(&path) })?;
        }
        let turn = Turn {
            order: |passes| Order::Decode { how, passes },
            seconds: |cost| cost.cpu_s,
            repeat_s: Some(turn_s(row)),
        };
        for round in 0..=rounds {
            for n in turns(processes.len(), round) {
                match turn.take(round, &mut processes[n], &mut passes[n]) {
                    Ok(None) => {}
                    Ok(Some(seconds)) => board.results[n].values.push(seconds * per_second),
                    Err(error) => self.remark(format!("{error:#}")),
                }
            }
            bar.inc(1);
        }
        self.compare_decoded(&row.name, &mut processes, how, &mut board)?;
        self.running.insert(1, processes);
        Ok(board.results)
    }

    fn list(&mut self, processes: &mut [Process], ids: &Ids) -> Result<Vec<u32>> {
        match ids {
            Ids::Range(range) => Ok(range.clone().collect()),
            Ids::Of(texts) => self.ids_of(processes, texts),
            Ids::English(count) => {
                // Tokens of English are shorter than twelve bytes.
                let texts = Texts::new(What::Plain(Kind::English), count * 12, 1);
                let mut ids = self.ids_of(processes, &texts)?;
                ensure!(ids.len() >= *count, "the text has too few tokens");
                ids.truncate(*count);
                Ok(ids)
            }
        }
    }

    /// Returns the ids of the last of the texts, as we make them.
    fn ids_of(&mut self, processes: &mut [Process], texts: &Texts) -> Result<Vec<u32>> {
        let (texts_path, ids_path) = (self.file("texts"), self.file("ids"));
        let texts = texts.next(&mut self.corpus, self.chat_markers);
        write_texts(&texts_path, &texts)?;
        let ours = processes.first_mut().context("fasttoken takes part")?;
        ours.obey(&Order::Texts {
            path: name(&texts_path),
        })?;
        ours.obey(&Order::Dump {
            path: name(&ids_path),
        })?;
        Ok(read_ids(&ids_path)?.pop().unwrap_or_default())
    }

    fn compare_decoded(
        &mut self,
        row: &str,
        processes: &mut [Process],
        how: How,
        board: &mut Board,
    ) -> Result<()> {
        let mut texts = Vec::new();
        for process in processes.iter_mut() {
            let path = self.file("decoded");
            let order = Order::Decoded {
                how,
                path: name(&path),
            };
            let done = process.obey(&order).is_ok();
            texts.push(done.then(|| fs::read(&path)).transpose()?);
        }
        let right = self.reference;
        let reference = processes.iter().position(|p| p.who == right);
        let Some(expected) = reference.and_then(|at| texts[at].clone()) else {
            return Ok(());
        };
        for ((process, text), result) in processes.iter().zip(&texts).zip(&mut board.results) {
            let Some(text) = text else { continue };
            result.differing = (usize::from(*text != expected), 1);
            if *text != expected {
                let who = process.who.title();
                self.remark(format!(
                    "{row}: {who} decodes to another text than {}",
                    right.title()
                ));
            }
        }
        Ok(())
    }
}
