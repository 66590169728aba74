//! The tables and figures of the papers that simulation can show, beside the papers' own figures.
//!
//! Each section runs [`crate::sim`] in the setting of one figure: the server's scheduler and
//! `prelude-router`, with the published time models of devices that are not the papers'. So what is
//! compared is the shape of a curve and the ratio of two of its points, not a time.
//! What is simulated, read off and compared is in a file for each paper (`entry.rs`).
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "numbers of requests, and shares"
)]

mod claim;
mod entry;
mod page;
mod plot;
mod regret;
mod run;

use std::{
    num::NonZero,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, Result, ensure};
use entry::Entry;
pub use page::Page;
use page::Section;

use crate::sim::Progress as SimProgress;

/// A paper that has sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Paper {
    /// PrefillOnly (Du et al., SOSP 2025).
    PrefillOnly,
    /// LAPS (length-aware prefill serving).
    Laps,
    /// Preble (Srivatsa et al., ICLR 2025).
    Preble,
    /// The textbook's chapter 16 on LLM serving.
    Textbook,
    /// No paper: the scheduler's policies, on the workloads of all papers and three devices.
    Policies,
}

impl Paper {
    /// Returns the name of the paper's system.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::PrefillOnly => "PrefillOnly",
            Self::Laps => "LAPS",
            Self::Preble => "Preble",
            Self::Textbook => "Textbook, chapter 16",
            Self::Policies => "The scheduler's policies",
        }
    }

    /// Returns its sections, in the order of the paper.
    fn sections(self) -> Result<Vec<Entry>> {
        entry::read(match self {
            Self::PrefillOnly => include_str!("prefill_only.toml"),
            Self::Laps => include_str!("laps.toml"),
            Self::Preble => include_str!("preble.toml"),
            Self::Textbook => include_str!("textbook.toml"),
            Self::Policies => include_str!("policies.toml"),
        })
        .with_context(|| format!("the file of {}", self.title()))
    }
}

/// The progress of [`run()`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A section begins: its paper and its name.
    Section(Paper, String),
    /// A simulation begins, with so many requests.
    Run(usize),
    /// A request of it has ended.
    Request,
}

/// Runs the sections of these papers, each simulation with these seeds and with this share of the
/// papers' requests, on as many threads as the machine has cores.
///
/// # Errors
/// If there is no seed, if the share is not above 0 and at most 1, or if a simulation fails.
///
/// # Panics
/// If a simulation finds a defect of the scheduler.
pub fn run(
    papers: &[Paper],
    seeds: Range<u64>,
    share: f64,
    progress: impl Fn(Progress) + Sync,
) -> Result<Page> {
    ensure!(!seeds.is_empty(), "there must be at least one seed");
    ensure!(
        share > 0.0 && share <= 1.0,
        "the share of the requests must be above 0 and at most 1, not {share}"
    );
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let sections = sections(papers, &seeds, share, threads, &progress)?;
    Ok(Page {
        seeds,
        share,
        sections,
    })
}

/// Runs sections on so many threads, each of which takes the next one that is left.
fn sections(
    papers: &[Paper],
    seeds: &Range<u64>,
    share: f64,
    threads: usize,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<(Paper, Section)>> {
    let mut todo: Vec<(Paper, Entry)> = Vec::new();
    for &paper in papers {
        todo.extend(paper.sections()?.into_iter().map(|entry| (paper, entry)));
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some((paper, entry)) = todo.get(n) else {
                return Ok(made);
            };
            progress(Progress::Section(*paper, entry.name.clone()));
            let bench = Bench {
                seeds: seeds.clone(),
                share,
                progress,
            };
            let section = entry.make(&bench);
            let section = section.with_context(|| format!("{}: {}", paper.title(), entry.name))?;
            made.push((n, (*paper, section)));
        }
    };
    let made: Result<Vec<_>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = { workers.into_iter() }.map(|worker| {
            let made = worker.join();
            made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    });
    let mut made: Vec<_> = made?.into_iter().flatten().collect();
    made.sort_by_key(|(n, _)| *n);
    Ok(made.into_iter().map(|(_, section)| section).collect())
}

/// Runs the simulations of a section.
struct Bench<'a> {
    seeds: Range<u64>,
    /// The part of the papers' numbers of requests that is run.
    share: f64,
    progress: &'a (dyn Fn(Progress) + Sync),
}

impl Bench<'_> {
    /// Returns the part of a number of requests or users that is run.
    fn count(&self, all: u32) -> u32 {
        ((f64::from(all) * self.share) as u32).max(2)
    }
}

impl Progress {
    const fn of(step: SimProgress) -> Self {
        match step {
            SimProgress::Run(requests) => Self::Run(requests),
            SimProgress::Request => Self::Request,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    /// Every section runs, with a fiftieth of the requests, and is printed with its plots.
    #[test]
    fn every_section_is_made() {
        let ended = AtomicUsize::new(0);
        let progress = |step| {
            let ends = usize::from(step == Progress::Request);
            ended.fetch_add(ends, Ordering::Relaxed);
        };
        // The policies' settings are the same ones many times over.
        let papers = { Paper::value_variants().iter() }.filter(|&&paper| paper != Paper::Policies);
        let papers: Vec<Paper> = papers.copied().collect();
        assert_eq!(Paper::Policies.sections().unwrap().len(), 9);
        let sections = sections(&papers, &(1..2), 0.02, 2, &progress).unwrap();
        assert!(ended.into_inner() > 1_000);
        let page = Page {
            seeds: 1..2,
            share: 0.02,
            sections,
        };
        let text = page.render();
        for &paper in &papers {
            assert!(
                text.contains(&format!("\n## {}\n", paper.title())),
                "{text}"
            );
        }
        assert!(!text.contains("NaN"), "{text}");
        let folder = std::env::temp_dir().join(format!("prelude-page-{}", std::process::id()));
        page.write(&folder).unwrap();
        let written = std::fs::read_to_string(folder.join("papers.md")).unwrap();
        let plots = written.matches(".svg)").count();
        let files = std::fs::read_dir(&folder).unwrap().count();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(written.starts_with(&text[..200]));
        // Each plot is a file of its own, beside the page.
        assert!(
            plots > 5 && files == plots + 1,
            "{plots} plots, {files} files"
        );
    }

    #[test]
    fn without_seeds_or_requests_there_is_nothing_to_run() {
        let check = |seeds: u64, share, expected: &str| {
            let error = run(&[Paper::Laps], 1..1 + seeds, share, |_| ()).map(|_| ());
            assert_eq!(error.unwrap_err().to_string(), expected);
        };
        check(0, 1.0, "there must be at least one seed");
        for share in [0.0, -1.0, 1.5, f64::NAN] {
            let expected = "the share of the requests must be above 0 and at most 1, not ";
            check(1, share, &format!("{expected}{share}"));
        }
    }
}
