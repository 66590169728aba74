//! The page that the command prints and writes.

use std::{fmt::Write as _, fs, ops::Range, path::Path};

use anyhow::{Context as _, Result};

use super::{
    Paper,
    claim::Claim,
    plot::Plot,
    regret::{self, Regret},
};

/// The tables and plots of all sections.
pub struct Page {
    pub(super) seeds: Range<u64>,
    /// The part of the papers' numbers of requests that was simulated.
    pub(super) share: f64,
    pub(super) sections: Vec<(Paper, Section)>,
}

/// A table or figure of a paper, simulated.
pub(super) struct Section {
    /// The number of the table or figure, and its subject.
    pub(super) title: String,
    /// Sentences that say what was simulated.
    pub(super) setting: String,
    pub(super) tables: Vec<Table>,
    pub(super) claims: Vec<Claim>,
    pub(super) plots: Vec<Plot>,
    /// Settings in which the values of an axis are compared with the best one.
    pub(super) regrets: Vec<Regret>,
}

/// A table: its caption, its heads, and its rows of as many cells.
#[derive(Clone)]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Page {
    /// Returns the tables as Markdown.
    #[must_use]
    pub fn render(&self) -> String {
        self.markdown(false)
    }

    /// Writes `papers.md` and its plots into a folder, which is made if it is not there.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        for (_, section) in &self.sections {
            for plot in &section.plots {
                plot.write(folder)?;
            }
        }
        let path = folder.join("papers.md");
        fs::write(&path, self.markdown(true))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn markdown(&self, with_plots: bool) -> String {
        let share = match self.share {
            1.0 => String::new(),
            share => format!(", with {share} of the requests"),
        };
        let from = match self.seeds.start {
            1 => String::new(),
            first => format!(" from {first} on"),
        };
        let mut out = format!(
            "# The papers' figures, simulated\n\n\
             Virtual time, medians of {} seed(s){from}{share}; the same command prints the same figures.\n\
             Service times are published fits of devices that are not the papers': shapes and \
             ratios compare, times do not.\n",
            self.seeds.end - self.seeds.start
        );
        let mut last = None;
        for (paper, section) in &self.sections {
            if last != Some(*paper) {
                let _ = writeln!(out, "\n## {}", paper.title());
                last = Some(*paper);
                let of_paper = self.sections.iter().filter(|(of, _)| of == paper);
                let regrets = of_paper.flat_map(|(_, section)| &section.regrets);
                let regrets: Vec<&Regret> = regrets.collect();
                if !regrets.is_empty() {
                    regret::table(&regrets).markdown(&mut out);
                }
            }
            section.markdown(&mut out, with_plots);
        }
        out
    }
}

impl Section {
    fn markdown(&self, out: &mut String, with_plots: bool) {
        let _ = writeln!(out, "\n### {}\n\n{}", self.title, self.setting);
        for table in &self.tables {
            table.markdown(out);
        }
        if !self.claims.is_empty() {
            let heads = ["at", "figure", "the paper", "ours", ""];
            let claims = Table {
                caption: "Beside the paper:".to_owned(),
                head: heads.map(str::to_owned).to_vec(),
                rows: self.claims.iter().map(Claim::row).collect(),
            };
            claims.markdown(out);
        }
        if with_plots {
            for plot in &self.plots {
                let _ = writeln!(out, "\n![{}]({})", plot.title, plot.file());
            }
        }
    }
}

impl Table {
    fn markdown(&self, out: &mut String) {
        let _ = writeln!(out, "\n{}\n", self.caption);
        let mut row = |cells: &[String]| {
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        };
        row(&self.head);
        row(&vec!["---".to_owned(); self.head.len()]);
        for cells in &self.rows {
            assert_eq!(
                cells.len(),
                self.head.len(),
                "a row has a cell for each head"
            );
            row(cells);
        }
    }
}
