//! Texts that no engine has seen before.
//!
//! Engines keep what they have seen: whole inputs, or words. So *fresh* means here that each piece
//! of text is handed out once in a run, to every engine at the same point; a word may well come
//! again, as words do. When collected text runs out, its lines are put together in another order,
//! and the report says how often that happened.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};
use rand::{SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};

use crate::{kind::Kind, synth::Synth};

/// The texts of a run.
pub(crate) struct Corpus {
    pools: BTreeMap<Kind, Pool>,
}

struct Pool {
    source: Source,
    /// The unused rest of the current unit.
    rest: String,
    handed_out: usize,
}

enum Source {
    Collected {
        units: Vec<String>,
        next: usize,
        bytes: usize,
        /// The number of times that all units were reordered.
        reorders: u64,
    },
    Generated(Box<Synth>),
}

impl Corpus {
    /// Opens collected texts in `folder` where there are some, else generated ones.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let mut pools = BTreeMap::new();
        for kind in Kind::ALL {
            let path = folder.join(kind.file());
            let source = if path.exists() {
                let text = fs::read_to_string(&path);
                let text = text.with_context(|| format!("cannot read {}", path.display()))?;
                Source::collected(kind, &text)
            } else {
                Source::Generated(Box::new(Synth::new(kind)))
            };
            let pool = Pool {
                source,
                rest: String::new(),
                handed_out: 0,
            };
            pools.insert(kind, pool);
        }
        Ok(Self { pools })
    }

    /// Returns the next `bytes` bytes of a kind, or a little less: texts end with whole characters.
    pub(crate) fn take(&mut self, kind: Kind, bytes: usize) -> String {
        let pool = self.pools.get_mut(&kind).expect("open() made all pools");
        while pool.rest.len() < bytes {
            let unit = pool.source.unit();
            pool.rest.push_str(&unit);
            pool.rest.push('\n');
        }
        let mut end = bytes;
        while !pool.rest.is_char_boundary(end) {
            end -= 1;
        }
        // A character that is larger than what was asked for.
        if end == 0 {
            end = pool.rest.chars().next().map_or(0, char::len_utf8);
        }
        let rest = pool.rest.split_off(end);
        pool.handed_out += end;
        std::mem::replace(&mut pool.rest, rest)
    }

    /// Returns one line per kind: where its text came from, how much was used, and what came again.
    pub(crate) fn notes(&self) -> Vec<String> {
        let used = self.pools.iter().filter(|(_, pool)| pool.handed_out > 0);
        used.map(|(kind, pool)| {
            #[expect(clippy::cast_precision_loss, reason = "for print")]
            let megabytes = |bytes: usize| bytes as f64 / 1e6;
            let used = megabytes(pool.handed_out);
            match &pool.source {
                Source::Generated(_) => format!("{}: generated, {used:.1} MB used", kind.name()),
                Source::Collected {
                    bytes, reorders, ..
                } => {
                    let all = megabytes(*bytes);
                    let again = match reorders {
                        0 => "each line once".to_owned(),
                        n => format!("lines recombined in another order {n} time(s)"),
                    };
                    let name = kind.name();
                    format!("{name}: collected, {used:.1} MB used of {all:.1} MB, {again}")
                }
            }
        })
        .collect()
    }
}

impl Source {
    fn collected(kind: Kind, text: &str) -> Self {
        let mut units = Vec::new();
        let mut piece = String::new();
        for line in text.lines() {
            piece.push_str(line);
            // A line of code says little without the lines around it.
            if kind == Kind::Code && piece.len() < 1000 {
                piece.push('\n');
                continue;
            }
            units.push(std::mem::take(&mut piece));
        }
        units.extend((!piece.is_empty()).then_some(piece));
        Self::Collected {
            units,
            next: 0,
            bytes: text.len(),
            reorders: 0,
        }
    }

    fn unit(&mut self) -> String {
        match self {
            Self::Generated(synth) => synth.line(),
            Self::Collected {
                units,
                next,
                reorders,
                ..
            } => {
                if *next == units.len() {
                    *next = 0;
                    *reorders += 1;
                    units.shuffle(&mut StdRng::seed_from_u64(*reorders));
                }
                *next += 1;
                units.get(*next - 1).cloned().unwrap_or_default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_handed_out_once_and_then_recombined() {
        let lines: Vec<String> = (0..50).map(|n| format!("line {n} é")).collect();
        let mut corpus = Corpus::open(Path::new("/nonexistent")).expect("generated");
        let pool = corpus.pools.get_mut(&Kind::English).expect("all kinds");
        pool.source = Source::collected(Kind::English, &lines.join("\n"));
        let total = lines.join("\n").len() + 1;
        let mut text = String::new();
        while text.len() < total {
            text.push_str(&corpus.take(Kind::English, 7.min(total - text.len())));
        }
        assert_eq!(text, lines.join("\n") + "\n");
        let again = corpus.take(Kind::English, total);
        assert_ne!(again, text);
        let mut sorted: Vec<&str> = again.lines().collect();
        sorted.sort_unstable();
        let mut expected: Vec<&str> = lines.iter().map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!(sorted, expected);
        assert!(corpus.notes()[0].contains("1 time(s)"));
    }
}
