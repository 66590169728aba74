//! The rows of the table, from `rows.toml`: what is done, with which texts, what must be reached.

use std::{collections::BTreeMap, sync::LazyLock, thread};

use anyhow::{Context as _, Result, bail};
use prelude_measure::record::Better;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde::Deserialize;

use crate::{corpus::Corpus, engines::Who, kind::Kind, protocol::Work};

/// A row of the table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// `MB/s`, `x`, or a unit of time or memory.
    pub(crate) unit: String,
    pub(crate) work: Work,
    /// A kind of text, `chat`, `base64`, or a name in `texts.json`.
    #[serde(default)]
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) bytes: usize,
    /// The number of texts.
    #[serde(default = "one")]
    pub(crate) count: usize,
    /// The number of threads; in the file, 0 for as many as the machine has.
    #[serde(default = "one")]
    pub(crate) threads: usize,
    /// New texts in every round, or the same ones again and again.
    #[serde(default)]
    pub(crate) fresh: bool,
    /// The number of ids to decode: the first of the text's, or those from `first_id` on; all of the
    /// text's if it is 0.
    #[serde(default)]
    pub(crate) ids: usize,
    #[serde(default)]
    pub(crate) first_id: Option<u32>,
    /// The target of fasttoken's value as the table shows it, see [`Must::read`].
    #[serde(default)]
    pub(crate) must: String,
}

fn one() -> usize {
    1
}

/// The target of fasttoken's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Must {
    /// The given factor better than a rival, or than the best one.
    Beat(Option<Who>, f64),
    /// A bound in the row's unit: an upper bound, or a lower bound where more is better.
    Reach(f64),
    Nothing,
}

impl Must {
    /// Reads `1.30x best`, `2.00x fastokens`, `≥ 10 MB/s`, `≤ 20 ns` or nothing.
    pub(crate) fn read(text: &str) -> Result<Self> {
        let Some((first, rest)) = text.split_once(' ') else {
            return Ok(Self::Nothing);
        };
        let number = |text: &str| {
            text.parse()
                .with_context(|| format!("`{text}` in a target"))
        };
        match first.strip_suffix('x') {
            Some(factor) if rest == "best" => Ok(Self::Beat(None, number(factor)?)),
            Some(factor) => Ok(Self::Beat(Some(Who::from_key(rest)?), number(factor)?)),
            None => Ok(Self::Reach(number(rest.split(' ').next().unwrap_or(rest))?)),
        }
    }
}

static ROWS: LazyLock<BTreeMap<String, Vec<Row>>> =
    LazyLock::new(|| toml::from_str(include_str!("rows.toml")).expect("a test reads the file"));

/// Texts as pieces that follow each other again and again.
static PIECES: LazyLock<BTreeMap<String, Vec<String>>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("texts.json")).expect("a test reads the file")
});

/// Returns the rows of a part of the file, with `title` before their names if there is one.
pub(crate) fn rows(part: &str, title: &str) -> Vec<Row> {
    let mut rows = ROWS.get(part).cloned().unwrap_or_default();
    for row in &mut rows {
        if !title.is_empty() {
            row.name = format!("{title}: {}", row.name);
        }
        if row.threads == 0 {
            row.threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        }
    }
    rows
}

impl Row {
    pub(crate) fn better(&self) -> Better {
        match &*self.unit {
            "MB/s" | "x" => Better::Higher,
            _ => Better::Lower,
        }
    }

    /// Returns how many of the unit of time a second has.
    pub(crate) fn per_second(&self) -> f64 {
        match &*self.unit {
            "ns" => 1e9,
            "µs" => 1e6,
            _ => 1e3,
        }
    }

    /// Returns the texts of the next round: text of a kind is new to every engine.
    pub(crate) fn texts(&self, corpus: &mut Corpus, chat_markers: bool) -> Result<Vec<String>> {
        let mut one = || {
            if let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == self.text) {
                return Ok(corpus.take(kind, self.bytes));
            }
            match &*self.text {
                "chat" => Ok(chat(corpus, self.bytes, chat_markers)),
                "base64" => Ok(base64(self.bytes)),
                name => in_turn(name, self.bytes),
            }
        };
        (0..self.count).map(|_| one()).collect()
    }
}

/// Returns the pieces of a text in turn, cut at `bytes` or before the character there.
fn in_turn(name: &str, bytes: usize) -> Result<String> {
    let Some(pieces) = PIECES.get(name) else {
        bail!("texts.json has no text `{name}`");
    };
    let mut text = String::with_capacity(bytes);
    for piece in pieces.iter().cycle() {
        if text.len() >= bytes {
            break;
        }
        text.push_str(piece);
    }
    text.truncate(text.floor_char_boundary(bytes));
    Ok(text)
}

/// Returns a conversation of about `bytes` bytes: turns of English and code between the markers of a
/// chat.
fn chat(corpus: &mut Corpus, bytes: usize, markers: bool) -> String {
    let (open, close) = if markers {
        ("<|im_start|>", "<|im_end|>\n")
    } else {
        ("", "\n\n")
    };
    let mut text = format!("{open}system\nYou are a helpful assistant.{close}");
    let mut turn = 0;
    while text.len() < bytes {
        let role = ["user", "assistant"][turn % 2];
        // Questions are short, answers longer, and every third one brings code.
        let prose = corpus.take(Kind::English, [180, 700][turn % 2]);
        text.push_str(&format!("{open}{role}\n{prose}"));
        if turn % 6 == 5 {
            let code = corpus.take(Kind::Code, 500);
            text.push_str(&format!("\n```\n{code}\n```"));
        }
        text.push_str(close);
        turn += 1;
    }
    text
}

/// Returns text that looks like base64, always the same, without line ends.
fn base64(bytes: usize) -> String {
    const SYMBOLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut rng = StdRng::seed_from_u64(1);
    let symbols = (0..bytes).map(|_| char::from(SYMBOLS[rng.random_range(0..64)]));
    symbols.collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    fn text(name: &str) -> String {
        let name = format!("paper: encode {name}, ");
        let rows = rows("paper", "");
        let row = rows.iter().find(|row| row.name.starts_with(&name));
        let row = row.expect("a row of that name");
        let text = in_turn(&row.text, row.bytes).expect("of texts.json");
        assert!(row.name.ends_with(&format!(", {} B", text.len())), "{name}");
        text
    }

    #[test]
    fn texts_are_as_long_as_the_papers() {
        let named = rows("paper", "");
        let names = named.iter().filter_map(|row| {
            let rest = row.name.strip_prefix("paper: encode ")?;
            Some(rest.split_once(',')?.0)
        });
        let texts: BTreeSet<String> = names.map(text).collect();
        assert_eq!(texts.len(), 17);
        for (name, chars) in [
            ("short Chinese", 30),
            ("mixed languages", 460),
            ("long Chinese 32K", 10_844),
        ] {
            assert_eq!(text(name).chars().count(), chars, "{name}");
        }
        for (name, turns) in [("multi-turn chat 8K", 80), ("multi-turn chat 32K", 320)] {
            assert_eq!(text(name).matches("<|im_start|>user\n").count(), turns);
            assert!(text(name).ends_with("<|im_end|>\n"), "{name}");
        }
    }

    #[test]
    fn pieces_differ() {
        for (name, count) in [
            ("mixed languages", 9),
            ("sentences", 15),
            ("snippets", 6),
            ("paragraphs", 5),
            ("turns", 8),
        ] {
            let pieces: BTreeSet<&String> = PIECES[name].iter().collect();
            assert_eq!(pieces.len(), count, "{name}");
        }
        let blocks = PIECES["turns"]
            .iter()
            .filter(|text| text.contains("```python\n"));
        assert_eq!(blocks.count(), 2);
    }

    #[test]
    fn every_row_has_texts_a_unit_and_a_target() {
        let mut corpus = Corpus::open(Path::new("/nonexistent")).expect("generated");
        let mut names = BTreeSet::new();
        for (part, rows) in &*ROWS {
            for row in rows {
                assert!(names.insert((part, &row.name)), "{} twice", row.name);
                assert!(["MB/s", "x", "µs", "ns", "ms", "MB"].contains(&&*row.unit));
                assert_eq!(
                    Must::read(&row.must).expect(&row.name) == Must::Nothing,
                    row.must.is_empty()
                );
                if row.bytes > 0 {
                    let row = Row {
                        count: 1,
                        ..row.clone()
                    };
                    let texts = row.texts(&mut corpus, true).expect(&row.name);
                    let length = texts[0].len() + if row.text == "chat" { 0 } else { 13 };
                    assert!(length >= row.bytes, "{}", row.name);
                }
            }
        }
        assert_eq!(rows("paper", "").len(), 41);
        assert_eq!(rows("targets", "").len(), 37);
    }

    #[test]
    fn targets_are_read() {
        let check = |text: &str, expected: Must| {
            assert_eq!(Must::read(text).expect(text), expected);
        };
        check("", Must::Nothing);
        check("1.30x best", Must::Beat(None, 1.3));
        check("2.00x fastokens", Must::Beat(Some(Who::Fastokens), 2.0));
        check("≥ 10 MB/s", Must::Reach(10.0));
        assert!(Must::read("2.00x someone").is_err());
        assert!(Must::read("≤ few MB").is_err());
    }
}
