//! Decode rows that share pages: which splits of which rows are read together.
//!
//! Rows whose block tables begin alike are put behind each other, so that an item, one split of
//! several rows, is a range of rows:
//!
//! ```text
//! rows      a  b  c  d       a, b and c see the same prompt, b and c the same answer to it
//! split 0  [a  b  c] d       [ ]: rows that have the split in the same blocks, and a key behind it
//! split 1   a [b  c] d
//! ```
//!
//! Each split of a run of rows parts it into runs by a hash table and a counting sort, so finding
//! them takes a time that grows with the entries of the rows' block tables, and where nothing is shared
//! with the number of rows.

use std::ops::Range;

use prelude_kernels::families::{AttnDecodeParams, DecodeItem, DecodeRow};
use prelude_models::step::StepLayout;

use super::{count, splits_of};

/// An empty place of the hash table.
const NONE: u32 = u32::MAX;

/// Rows of a run that have a split in the same blocks, or one that does not see all of it.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// The first of the class's rows in the run.
    first: usize,
    count: usize,
    /// The place for the next row of the group.
    next: usize,
}

/// Finds what decode rows share. It keeps its memory from one step to the next.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Runs of rows that have all splits so far in the same blocks.
    runs: Vec<Range<usize>>,
    /// The parts of these runs that have the next split in the same blocks too.
    longer: Vec<Range<usize>>,
    /// The splits that each row shares with others.
    shared: Vec<u32>,
    classes: Vec<Class>,
    /// The class of each row of a run.
    class_of: Vec<u32>,
    /// Classes by a hash of their blocks.
    table: Vec<u32>,
    /// The rows of a run in the order before.
    rows: Vec<DecodeRow>,
}

impl Sharing {
    /// Adds the items of a launch's rows, of at most `most` rows each, if they are at most three
    /// quarters of what rows alone would read; else nothing. Rows that share splits are put behind each
    /// other.
    pub(super) fn plan(
        &mut self,
        rows: &mut [DecodeRow],
        layout: &StepLayout,
        most: usize,
        items: &mut Vec<DecodeItem>,
    ) {
        if most < 2 || rows.len() < 2 {
            return;
        }
        let start = items.len();
        let all = 0..rows.len();
        self.shared.clear();
        self.shared.resize(rows.len(), 0);
        self.runs.clear();
        self.runs.push(all);
        for split in 0.. {
            let runs = std::mem::take(&mut self.runs);
            self.longer.clear();
            for run in &runs {
                self.part(rows, run.clone(), split, layout);
            }
            self.runs = std::mem::replace(&mut self.longer, runs);
            if self.runs.is_empty() {
                break;
            }
            for run in &self.runs {
                let of_run = run.clone().step_by(most);
                items.extend(of_run.map(|at| item(at, most.min(run.end - at), split)));
                self.shared[run.clone()].fill(split + 1);
            }
        }
        if items.len() == start {
            return;
        }
        for (at, row) in rows.iter().enumerate() {
            let alone = self.shared[at]..count(splits_of(row));
            items.extend(alone.map(|split| item(at, 1, split)));
        }
        let reads: usize = rows.iter().map(splits_of).sum();
        if 4 * (items.len() - start) > 3 * reads {
            items.truncate(start);
        }
    }

    /// Parts a run by the blocks of a split: rows that have it in the same ones are put behind each other
    /// in the order in which they were, and are a longer run if they are several.
    fn part(&mut self, rows: &mut [DecodeRow], run: Range<usize>, split: u32, layout: &StepLayout) {
        let rows = &mut rows[run.clone()];
        let bits = (2 * rows.len()).next_power_of_two().ilog2();
        self.table.clear();
        self.table.resize(1 << bits, NONE);
        self.classes.clear();
        self.class_of.clear();
        for at in 0..rows.len() {
            let class = self.class(rows, at, split, (layout, bits));
            self.classes[class as usize].count += 1;
            self.class_of.push(class);
        }
        if self.classes.len() == rows.len() {
            return;
        }
        let mut end = 0;
        for class in &mut self.classes {
            class.next = end;
            end += class.count;
            if class.count > 1 {
                self.longer.push(run.start + class.next..run.start + end);
            }
        }
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        for (row, &class) in self.rows.iter().zip(&self.class_of) {
            let next = &mut self.classes[class as usize].next;
            rows[*next] = *row;
            *next += 1;
        }
    }

    /// Returns the class of a row of a run, a new one if no row before it has the split in the same
    /// blocks. The table has 2^`bits` places, twice as many as there are rows.
    fn class(
        &mut self,
        rows: &[DecodeRow],
        at: usize,
        split: u32,
        (layout, bits): (&StepLayout, u32),
    ) -> u32 {
        let new = count(self.classes.len());
        let blocks = blocks_of(&rows[at], split, layout);
        let mut class = new;
        if let Some(last) = blocks.and_then(<[u32]>::last) {
            // Blocks that are equal there are seldom different before.
            let mut place = (last.wrapping_mul(0x9e37_79b1) >> (32 - bits)) as usize;
            loop {
                class = self.table[place];
                if class == NONE {
                    class = new;
                    self.table[place] = class;
                    break;
                }
                let first = self.classes[class as usize].first;
                if blocks_of(&rows[first], split, layout) == blocks {
                    break;
                }
                place = (place + 1) % self.table.len();
            }
        }
        if class == new {
            self.classes.push(Class {
                first: at,
                count: 0,
                next: 0,
            });
        }
        class
    }
}

/// Returns the blocks of a split of a row, if there is a key of the row behind it: its own key is
/// written by the step.
fn blocks_of<'a>(row: &DecodeRow, split: u32, layout: &'a StepLayout) -> Option<&'a [u32]> {
    let keys = AttnDecodeParams::SPLIT_KEYS;
    if row.context_len <= (split + 1) * keys {
        return None;
    }
    // Blocks are smaller than a split.
    let each = keys / layout.block_size();
    let first = (row.block_first + split * each) as usize;
    Some(&layout.blocks[first..first + each as usize])
}

fn item(first: usize, rows: usize, split: u32) -> DecodeItem {
    DecodeItem {
        first: count(first),
        count: count(rows),
        split,
        reserved: 0,
    }
}

#[cfg(test)]
mod tests;
