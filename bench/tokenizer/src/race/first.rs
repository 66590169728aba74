//! The first call of a process: an engine has seen no text before it.

use anyhow::Result;
use indicatif::ProgressBar;

use super::{Board, Entry, Race, name, per, turns};
use crate::{
    protocol::{Order, write_texts},
    workloads::{Row, Texts},
};

impl Race {
    /// Encodes the texts once in a new process, after loading. A value is the processor time of
    /// that call alone. The first round brings files into the page cache and compares ids.
    pub(super) fn first_call(
        &mut self,
        row: &Row,
        texts: &Texts,
        rounds: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<Entry>> {
        let path = self.file("texts");
        let texts = texts.next(&mut self.corpus, self.chat_markers);
        let bytes = texts.iter().map(String::len).sum::<usize>();
        write_texts(&path, &texts)?;
        let mut results = Vec::new();
        for round in 0..=rounds {
            // Processes that have encoded nothing: those of other rows are put aside.
            let others = self.running.remove(&1);
            let processes = self.processes(1);
            if let Some(others) = others {
                self.running.insert(1, others);
            }
            let mut processes = processes?;
            let mut board = Board::new(&processes);
            for n in turns(processes.len(), round) {
                let process = &mut processes[n];
                process.obey(&Order::Texts { path: name(&path) })?;
                match process.obey(&Order::Encode { passes: 1 }) {
                    Ok(_) if round == 0 => {}
                    Ok(cost) => {
                        let value = per(row.unit, cost.cpu_s, bytes, texts.len());
                        board.results[n].values.push(value);
                    }
                    Err(error) => self.remark(format!("{}: {error:#}", row.name)),
                }
            }
            if round == 0 {
                self.compare(&row.name, &mut processes, &mut board)?;
            }
            merge(&mut results, board.results);
            bar.inc(1);
        }
        Ok(results)
    }
}

/// Adds the values of a round to those of the rounds before it.
fn merge(results: &mut Vec<Entry>, round: Vec<Entry>) {
    for entry in round {
        match results.iter_mut().find(|known| known.who == entry.who) {
            Some(known) => {
                known.values.extend(entry.values);
                known.differing.0 += entry.differing.0;
                known.differing.1 += entry.differing.1;
            }
            None => results.push(entry),
        }
    }
}
