//! Judged rows as a table that says who won, on the terminal and as Markdown.

use std::{collections::BTreeMap, fmt::Write as _};

use prelude_measure::table::Table;
use serde::Serialize;

use crate::{
    engines::Who,
    judge::{Cell, Line},
    workloads::Part,
};

/// The description of a run as a whole.
#[derive(Debug, Default, Serialize)]
pub(crate) struct About {
    pub(crate) machine: String,
    pub(crate) load_average: String,
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) tokenizer: String,
    /// The vocabularies of the other families.
    pub(crate) families: Vec<String>,
    pub(crate) commit: String,
    pub(crate) texts: Vec<String>,
    pub(crate) remarks: Vec<String>,
    pub(crate) rounds: usize,
    /// The paper's figures of some rows.
    pub(crate) paper: Figures,
}

/// Texts for rows, by their names.
pub(crate) type Figures = BTreeMap<String, String>;

/// Writes a number with three digits, as many as these measurements can bear.
fn digits(value: f64) -> String {
    match value {
        v if v < 1.0 => format!("{v:.3}"),
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Returns the lines as a table. The last column is the paper's, if its figures are there.
fn columns(lines: &[&Line], engines: &[Who], spreads: bool, paper: &Figures) -> Table {
    let mut header = vec!["workload".to_owned(), "unit".to_owned()];
    header.extend(engines.iter().map(|who| who.title().to_owned()));
    header.extend(["to best rival", "must", ""].map(str::to_owned));
    let paper = lines
        .iter()
        .any(|line| line.part == Part::Paper)
        .then_some(paper)
        .filter(|figures| !figures.is_empty());
    header.extend(paper.map(|_| "paper".to_owned()));
    let mut table = Table::new(header);
    for line in lines {
        let mut cells = vec![line.name.clone(), line.unit.text().to_owned()];
        for who in engines {
            let found = line.entries.iter().find(|cell| cell.who == *who);
            cells.push(found.map_or_else(|| "–".to_owned(), |cell| cell.text(spreads)));
        }
        cells.push(line.against_best.map_or_else(String::new, |(who, ratio)| {
            format!("{ratio:.2}x {}", who.key())
        }));
        cells.push(line.must.clone());
        cells.push(line.verdict.text().to_owned());
        cells.extend(paper.map(|figures| figures.get(&line.name).cloned().unwrap_or_default()));
        table.row(cells);
    }
    table
}

impl Cell {
    fn text(&self, spread: bool) -> String {
        let mark = if self.differing.0 > 0 { "≠ " } else { "" };
        let mut text = format!("{mark}{}", digits(self.median));
        if spread {
            let (least, most) = self.spread;
            let _ = write!(text, " [{} .. {}]", digits(least), digits(most));
        }
        text
    }
}

/// Returns the table for a terminal.
pub(crate) fn terminal(lines: &[Line], engines: &[Who], paper: &Figures) -> String {
    let mut text = String::new();
    for kind in Part::ALL {
        let title = kind.title();
        let part: Vec<&Line> = lines.iter().filter(|l| l.part == kind).collect();
        if part.is_empty() {
            continue;
        }
        let table = columns(&part, engines, false, paper);
        let _ = write!(text, "\n{title}\n{}", table.text());
    }
    text
}

/// Returns the page: what was measured, where, when and how.
pub(crate) fn markdown(lines: &[Line], engines: &[Who], about: &About) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "Command: `{}`\n", about.command);
    let _ = writeln!(
        text,
        "Machine: {}; load average {}.\nDate: {}, commit {}.\nVocabulary: {}; Other families: {}.\nRounds: {}.\n",
        about.machine,
        about.load_average,
        about.date,
        about.commit,
        about.tokenizer,
        about.families.join(", "),
        about.rounds
    );
    text.push_str("Texts:\n\n");
    for note in &about.texts {
        let _ = writeln!(text, "- {note}");
    }
    for kind in Part::ALL {
        let title = kind.title();
        let part: Vec<&Line> = lines.iter().filter(|l| l.part == kind).collect();
        if part.is_empty() {
            continue;
        }
        let table = columns(&part, engines, true, &about.paper);
        let _ = write!(text, "\n### {title}\n\n{}", table.markdown());
    }
    if !about.remarks.is_empty() {
        text.push_str("\n### Remarks of this run\n\n");
        for remark in &about.remarks {
            let _ = writeln!(text, "- {remark}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        judge::{
            judge,
            tests::{entry, row},
        },
        workloads::{Must, Row, Unit},
    };

    #[test]
    fn values_of_other_ids_are_marked() {
        let row = row(Unit::MegabytesPerSecond, Must::Nothing);
        let line = judge(&row, vec![entry(Who::Gigatoken, &[900.0], 3)]);
        let text = terminal(&[line], &[Who::Gigatoken], &Figures::new());
        assert!(text.contains("≠ 900") && !text.contains("paper"));
        let fork = Who::Also("a fork");
        let line = judge(&row, vec![entry(fork, &[80.0], 1)]);
        let text = terminal(&[line], &[fork], &Figures::new());
        assert!(text.contains("a fork") && text.contains("≠ 80.0"), "{text}");
    }

    #[test]
    fn the_papers_figures_stand_beside_its_rows() {
        let line = |part, name: &str| {
            let row = Row {
                name: name.to_owned(),
                part,
                ..row(Unit::Microseconds, Must::Nothing)
            };
            judge(&row, vec![entry(Who::Fasttoken, &[2.0], 0)])
        };
        let lines = [line(Part::Targets, "ours"), line(Part::Paper, "theirs")];
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
}
