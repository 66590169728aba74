//! Threads that share one tokenizer.

use std::thread;

use anyhow::{Context as _, Result, anyhow};
use indicatif::ProgressBar;

use super::{Board, Entry, Race, name, turns};
use crate::{
    engines::Who,
    protocol::{Order, write_texts},
    workloads::{Row, Texts},
};

/// The number of times that threads are started in a turn, since their start and end are uneven.
const STARTS: u32 = 5;

impl Race {
    /// Ours alone: how many times the work two threads do in the time of one. `apart`: of two
    /// processes of one thread each, which share nothing but the machine, in the same round; what
    /// the machine makes of a second thread is out of that.
    pub(super) fn share(
        &mut self,
        texts: &Texts,
        apart: bool,
        rounds: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<Entry>> {
        let mut processes = self.processes(1)?;
        let ours = processes.iter_mut().find(|p| p.who == Who::Fasttoken);
        let ours = ours.context("fasttoken takes part in every run")?;
        let path = self.file("texts");
        write_texts(&path, &texts.next(&mut self.corpus, self.chat_markers))?;
        ours.obey(&Order::Texts { path: name(&path) })?;
        let mut other = match apart {
            true => Some(self.launcher.start(Who::Fasttoken, 1)?),
            false => None,
        };
        if let Some(other) = &mut other {
            let tokenizer = self.tokenizer.to_string_lossy().into_owned();
            other.obey(&Order::Load { path: tokenizer })?;
            other.obey(&Order::Texts { path: name(&path) })?;
        }
        let mut values = Vec::new();
        let share = |threads| Order::Share {
            threads,
            passes: 20,
        };
        for round in 0..=rounds {
            let against = match &mut other {
                None => 2.0 * ours.obey(&share(1))?.wall_s,
                Some(other) => thread::scope(|scope| {
                    let beside = scope.spawn(|| other.obey(&share(1)));
                    let own = ours.obey(&share(1))?.wall_s;
                    let beside = beside.join().map_err(|_| anyhow!("a thread panicked"))?;
                    anyhow::Ok(own.max(beside?.wall_s))
                })?,
            };
            let two = ours.obey(&share(2))?.wall_s;
            if round > 0 {
                values.push(against / two);
            }
            bar.inc(1);
        }
        self.running.insert(1, processes);
        Ok(vec![Entry {
            who: Who::Fasttoken,
            values,
            differing: (0, 0),
        }])
    }

    /// Measures each engine: the wall time of all that the threads encode, per text.
    pub(super) fn together(
        &mut self,
        row: &Row,
        texts: &Texts,
        (threads, passes): (usize, u32),
        rounds: usize,
        bar: &ProgressBar,
    ) -> Result<Vec<Entry>> {
        let mut processes = self.processes(1)?;
        let mut board = Board::new(&processes);
        let path = self.file("texts");
        write_texts(&path, &texts.next(&mut self.corpus, self.chat_markers))?;
        for process in &mut processes {
            process.obey(&Order::Texts { path: name(&path) })?;
        }
        self.compare(&row.name, &mut processes, &mut board)?;
        #[expect(clippy::cast_precision_loss, reason = "a few threads and texts")]
        let done = (threads * texts.count) as f64 * f64::from(passes) * f64::from(STARTS);
        for round in 0..=rounds {
            for n in turns(processes.len(), round) {
                let order = Order::Share { threads, passes };
                let costs: Result<Vec<_>> =
                    (0..STARTS).map(|_| processes[n].obey(&order)).collect();
                match costs {
                    Ok(_) if round == 0 => {}
                    Ok(costs) => {
                        let wall_s: f64 = costs.iter().map(|cost| cost.wall_s).sum();
                        board.results[n].values.push(wall_s * 1e6 / done);
                    }
                    Err(error) => self.remark(format!("{}: {error:#}", row.name)),
                }
            }
            bar.inc(1);
        }
        self.running.insert(1, processes);
        Ok(board.results)
    }
}
