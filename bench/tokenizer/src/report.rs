//! Judged rows as a table that says who won, on the terminal and as Markdown.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use prelude_measure::{
    record::{Record, Verdict},
    table::Table,
};

use crate::{
    engines::Who,
    judge::{Cell, Line},
    workloads::rows,
};

/// The description of a run as a whole.
pub(crate) struct About {
    /// The machine, the day and the commit, with all values.
    pub(crate) record: Record,
    pub(crate) load_average: String,
    pub(crate) command: String,
    pub(crate) tokenizer: String,
    /// The vocabularies of the other families.
    pub(crate) families: Vec<String>,
    pub(crate) texts: Vec<String>,
    pub(crate) remarks: Vec<String>,
    pub(crate) rounds: usize,
    /// The paper's figures of some rows.
    pub(crate) paper: Figures,
}

/// Texts for rows, by their names.
pub(crate) type Figures = BTreeMap<String, String>;

/// Reads the paper's figures of some rows, by their names.
pub(crate) fn figures(path: &Path) -> Result<Figures> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let figures: Figures = serde_json::from_str(&text)
        .with_context(|| format!("{} is no JSON object of texts", path.display()))?;
    let names: Vec<String> = rows("paper", "").into_iter().map(|row| row.name).collect();
    if let Some(name) = figures.keys().find(|name| !names.contains(name)) {
        bail!(
            "{}: no row of the paper is called {name:?}; there are {}",
            path.display(),
            names.join("; ")
        );
    }
    Ok(figures)
}

/// Writes a number with three digits, as many as these measurements can bear.
fn digits(value: f64) -> String {
    match value {
        v if v < 1.0 => format!("{v:.3}"),
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

impl Cell {
    fn text(&self, spread: bool) -> String {
        let mark = if self.differing.0 > 0 { "≠ " } else { "" };
        let mut text = format!("{mark}{}", digits(self.spread.median));
        if spread {
            let (low, high) = (digits(self.spread.low), digits(self.spread.high));
            let _ = write!(text, " [{low} .. {high}]");
        }
        text
    }
}

/// Returns a table for each part, after its title. The last column is the paper's, if its figures are
/// there.
fn tables<'a>(
    lines: &'a [Line],
    engines: &'a [Who],
    spreads: bool,
    paper: &'a Figures,
) -> impl Iterator<Item = (&'static str, Table)> {
    lines.chunk_by(|a, b| a.part == b.part).map(move |part| {
        let has_figures = part.iter().any(|line| paper.contains_key(&line.row.name));
        let figures = has_figures.then_some("paper");
        let header = ["workload", "unit"].into_iter();
        let header = header.chain(engines.iter().map(|who| who.title()));
        let mut table = Table::new(header.chain(["to best rival", "must", ""]).chain(figures));
        for line in part {
            let mut cells = vec![line.row.name.clone(), line.row.unit.clone()];
            for who in engines {
                let found = line.entries.iter().find(|cell| cell.who == *who);
                cells.push(found.map_or_else(|| "–".to_owned(), |cell| cell.text(spreads)));
            }
            let best =
                { line.against_best }.map(|(who, ratio)| format!("{ratio:.2}x {}", who.key()));
            cells.extend([best.unwrap_or_default(), line.row.must.clone()]);
            cells.push(match line.verdict {
                Verdict::Note => String::new(),
                verdict => verdict.word().to_owned(),
            });
            let figure = figures.map(|_| paper.get(&line.row.name).cloned().unwrap_or_default());
            table.row(cells.into_iter().chain(figure));
        }
        (part[0].part, table)
    })
}

/// Returns the table for a terminal.
pub(crate) fn terminal(lines: &[Line], engines: &[Who], paper: &Figures) -> String {
    let tables = tables(lines, engines, false, paper);
    tables
        .map(|(title, table)| format!("\n{title}\n{}", table.text()))
        .collect()
}

/// Returns the page: what was measured, where, when and how.
pub(crate) fn markdown(lines: &[Line], engines: &[Who], about: &About) -> String {
    let list =
        |items: &[String]| -> String { items.iter().map(|item| format!("- {item}\n")).collect() };
    let Record {
        machine,
        date,
        commit,
        ..
    } = &about.record;
    let mut text = format!(
        "# Results\n\nWritten by the command below; bench/tokenizer/README.md says how to read it.\n\n\
         Command: `{}`\n\nMachine: {machine}; load average {}.\nDate: {date}, commit {commit}.\n\
         Vocabulary: {}; Other families: {}.\nRounds: {}.\n\nTexts:\n\n{}",
        about.command,
        about.load_average,
        about.tokenizer,
        about.families.join(", "),
        about.rounds,
        list(&about.texts)
    );
    for (title, table) in tables(lines, engines, true, &about.paper) {
        let _ = write!(text, "\n### {title}\n\n{}", table.markdown());
    }
    if !about.remarks.is_empty() {
        let _ = write!(
            text,
            "\n### Remarks of this run\n\n{}",
            list(&about.remarks)
        );
    }
    text
}

/// Returns for each engine but ours the most that we are faster than it on any row, and the row.
pub(crate) fn most(lines: &[Line], engines: &[Who]) -> String {
    let worth = |who: &Who| {
        let of = |line: &Line| {
            let cell = line.entries.iter().find(|cell| cell.who == *who)?;
            Some((cell.ratio?, line.row.name.clone()))
        };
        let (ratio, row) = lines
            .iter()
            .filter_map(of)
            .max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(format!(
            "{:<24} {:>6.1} %  {row}\n",
            who.title(),
            (ratio - 1.0) * 100.0
        ))
    };
    engines.iter().skip(1).filter_map(worth).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        judge::{
            judge,
            tests::{entry, judged, row},
        },
        workloads::Row,
    };

    #[test]
    fn values_of_other_ids_are_marked() {
        let row = row("MB/s", "");
        let line = judged(&row, vec![entry(Who::Gigatoken, &[900.0], 3)]);
        let text = terminal(&[line], &[Who::Gigatoken], &Figures::new());
        assert!(text.contains("≠ 900") && !text.contains("paper"));
        let fork = Who::Also("a fork");
        let line = judged(&row, vec![entry(fork, &[80.0], 1)]);
        let text = terminal(&[line], &[fork], &Figures::new());
        assert!(text.contains("a fork") && text.contains("≠ 80.0"), "{text}");
    }

    #[test]
    fn the_papers_figures_stand_beside_its_rows() {
        let line = |part, name: &str| {
            let row = Row {
                name: name.to_owned(),
                ..row("µs", "")
            };
            let entries = vec![entry(Who::Fasttoken, &[2.0], 0)];
            judge(part, &row, entries).expect("its target is one")
        };
        let lines = [line("Targets", "ours"), line("Paper", "theirs")];
        let figures = Figures::from([("theirs".to_owned(), "1.5 µs, 7x".to_owned())]);
        let text = terminal(&lines, &[Who::Fasttoken], &figures);
        let of = |name: &str| {
            text.lines()
                .find(|line| line.starts_with(name))
                .map(str::to_owned)
        };
        assert!(
            of("theirs").is_some_and(|line| line.ends_with("1.5 µs, 7x")),
            "{text}"
        );
        assert!(
            of("ours").is_some_and(|line| !line.contains("7x")),
            "{text}"
        );
    }

    #[test]
    fn the_most_that_an_engine_loses_is_told_with_its_row() {
        let row = row("µs", "");
        let without = Who::Also("without Runs");
        let entries = vec![entry(Who::Fasttoken, &[2.0], 0), entry(without, &[3.0], 0)];
        let text = most(&[judged(&row, entries)], &[Who::Fasttoken, without]);
        assert!(
            text.starts_with("without Runs") && text.ends_with("50.0 %  a row\n"),
            "{text}"
        );
    }
}
