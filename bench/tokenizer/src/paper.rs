//! The rows of the table in Prelude's paper: 17 texts encoded and decoded, then batches, one id
//! at a time, eight threads, loading.
//!
//! What is measured, and each text's kind and bytes, are those of the program that makes the
//! paper's table (`tokenizer_bench` in Virtue-Research/prelude). The sentences are our own.

pub(crate) mod tokenizer;

use std::{collections::BTreeMap, fs, path::Path, sync::LazyLock, thread};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::{
    protocol::How,
    workloads::{Ids, Must, Part, Pattern, Row, Texts, Unit, What, Work},
};

/// The sentences and snippets of the rows, whose kinds and lengths are those of the paper's program.
#[derive(Deserialize)]
struct Sentences {
    tiny: String,
    short_english: String,
    short_chinese: String,
    prose: String,
    snippet: String,
    /// English, Chinese, French, Japanese, Korean, German, Russian, Spanish, Portuguese.
    languages: Vec<String>,
    repeated: String,
    system: String,
    question: String,
    sentences: Vec<String>,
    snippets: Vec<String>,
    /// The messages of a user and the assistant, in turns.
    turns: Vec<(String, String)>,
    paragraphs: Vec<String>,
}

static TEXTS: LazyLock<Sentences> = LazyLock::new(|| {
    serde_json::from_str(include_str!("paper/texts.json")).expect("a test reads the file")
});

/// A text of the table.
struct Sample {
    name: &'static str,
    bytes: usize,
    make: Pattern,
}

/// The paragraph that batches and threads encode.
const PROSE: Sample = sample("medium prose", 674, |_| TEXTS.prose.clone());

const SAMPLES: [Sample; 17] = [
    sample("tiny", 5, |_| TEXTS.tiny.clone()),
    sample("short English", 51, |_| TEXTS.short_english.clone()),
    sample("short Chinese", 90, |_| TEXTS.short_chinese.clone()),
    PROSE,
    sample("code snippet", 470, |_| TEXTS.snippet.clone()),
    sample("mixed languages", 641, |_| TEXTS.languages.join(" ")),
    sample("long repeat", 2025, |_| TEXTS.repeated.repeat(45)),
    sample("long unique 4K", 4000, sentences),
    sample("very long 8K", 8000, sentences),
    sample("chat template", 212, |_| question()),
    sample("long 32K", 32_000, sentences),
    sample("long 64K", 64_000, sentences),
    sample("long 200K", 200_000, sentences),
    sample("long code 16K", 16_000, |bytes| {
        in_turn(&TEXTS.snippets, "\n", bytes)
    }),
    sample("multi-turn chat 8K", 21_370, |_| conversation(80)),
    sample("multi-turn chat 32K", 85_480, |_| conversation(320)),
    // 32,000 would be inside a character.
    sample("long Chinese 32K", 31_998, |bytes| {
        in_turn(&TEXTS.paragraphs, "\n", bytes)
    }),
];

const fn sample(name: &'static str, bytes: usize, make: Pattern) -> Sample {
    Sample { name, bytes, make }
}

impl Sample {
    /// Returns the text `count` times.
    fn times(&self, count: usize) -> Texts {
        Texts::new(What::Pattern(self.make), self.bytes, count)
    }
}

/// Returns the rows. Each text repeats, as in the paper's program.
pub(crate) fn rows() -> Vec<Row> {
    let row = |name: String, unit, work| Row {
        name: format!("paper: {name}"),
        unit,
        work,
        must: Must::Nothing,
        part: Part::Paper,
    };
    let encode = |sample: &Sample| {
        let name = format!("encode {}, {} B", sample.name, sample.bytes);
        let texts = sample.times(1);
        let work = Work::Encode {
            texts,
            fresh: false,
        };
        row(name, Unit::Microseconds, work)
    };
    let decode = |sample: &Sample| {
        let name = format!("decode {}, {} B", sample.name, sample.bytes);
        let ids = Ids::Of(sample.times(1));
        let how = How::Whole;
        row(name, Unit::Microseconds, Work::Decode { ids, how })
    };
    // The number of threads of a program that sets none.
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let batch = |count| {
        let name = format!("batch of {count} × {} B (wall)", PROSE.bytes);
        let work = Work::Batch {
            texts: PROSE.times(count),
            threads,
            fresh: false,
        };
        row(name, Unit::Microseconds, work)
    };
    let one_by_one = Work::Decode {
        ids: Ids::Range(100..200),
        how: How::Each,
    };
    let together = Work::Together {
        texts: PROSE.times(1),
        threads: 8,
        passes: 100,
    };
    let mut rows: Vec<Row> = SAMPLES.iter().map(encode).collect();
    rows.extend(SAMPLES.iter().map(decode));
    rows.extend([1, 4, 16, 64].map(batch));
    rows.extend([
        row(
            "decode one id, per id".to_owned(),
            Unit::Nanoseconds,
            one_by_one,
        ),
        row(
            format!("eight threads, encode {} B (wall)", PROSE.bytes),
            Unit::Microseconds,
            together,
        ),
        row(
            "load from tokenizer.json".to_owned(),
            Unit::Milliseconds,
            Work::Load,
        ),
    ]);
    rows
}

/// Reads the paper's figures of some rows, by their names.
pub(crate) fn figures(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let figures: BTreeMap<String, String> = serde_json::from_str(&text)
        .with_context(|| format!("{} is no JSON object of texts", path.display()))?;
    let names: Vec<String> = rows().into_iter().map(|row| row.name).collect();
    if let Some(name) = figures.keys().find(|name| !names.contains(name)) {
        bail!(
            "{}: no row of the paper is called {name:?}; there are {}",
            path.display(),
            names.join("; ")
        );
    }
    Ok(figures)
}

fn sentences(bytes: usize) -> String {
    in_turn(&TEXTS.sentences, " ", bytes)
}

/// Returns the pieces in turn, each followed by `after`, cut at `bytes` or before the character there.
fn in_turn(pieces: &[String], after: &str, bytes: usize) -> String {
    let mut text = String::new();
    for piece in pieces.iter().cycle() {
        if text.len() >= bytes {
            break;
        }
        text.push_str(piece);
        text.push_str(after);
    }
    text.truncate(text.floor_char_boundary(bytes));
    text
}

/// Returns a chat up to where the assistant speaks.
fn question() -> String {
    format!(
        "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        TEXTS.system, TEXTS.question
    )
}

/// Returns a chat of so many questions with their answers.
fn conversation(turns: usize) -> String {
    let turn = |(user, assistant): &(String, String)| {
        format!(
            "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{assistant}<|im_end|>\n"
        )
    };
    TEXTS.turns.iter().cycle().take(turns).map(turn).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn text(name: &str) -> String {
        let sample = SAMPLES.iter().find(|sample| sample.name == name);
        let sample = sample.expect("a sample of that name");
        (sample.make)(sample.bytes)
    }

    #[test]
    fn texts_are_as_long_as_the_papers() {
        for sample in &SAMPLES {
            let text = (sample.make)(sample.bytes);
            assert_eq!(text.len(), sample.bytes, "{}", sample.name);
        }
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
        assert_eq!(TEXTS.repeated.len(), 45);
    }

    #[test]
    fn texts_and_their_pieces_differ() {
        fn differ<T: Ord>(pieces: impl IntoIterator<Item = T>, count: usize) {
            assert_eq!(pieces.into_iter().collect::<BTreeSet<T>>().len(), count);
        }
        differ(SAMPLES.iter().map(|sample| text(sample.name)), 17);
        differ(&TEXTS.languages, 9);
        differ(&TEXTS.sentences, 15);
        differ(&TEXTS.snippets, 6);
        differ(&TEXTS.paragraphs, 5);
        differ(
            TEXTS.turns.iter().flat_map(|(user, answer)| [user, answer]),
            16,
        );
    }

    #[test]
    fn pieces_are_of_their_kind() {
        for snippet in &TEXTS.snippets {
            assert!((150..=400).contains(&snippet.len()), "{snippet}");
            assert!(snippet.is_ascii());
        }
        for paragraph in &TEXTS.paragraphs {
            assert!(
                (60..=80).contains(&paragraph.chars().count()),
                "{paragraph}"
            );
        }
        let answers = || TEXTS.turns.iter().map(|(_, answer)| answer);
        let blocks = answers().filter(|text| text.contains("```python\n"));
        assert_eq!(blocks.count(), 2);
        assert_eq!(answers().filter(|text| !text.is_ascii()).count(), 1);
    }

    #[test]
    fn rows_are_those_of_the_table() {
        let rows = rows();
        let names: BTreeSet<&str> = rows.iter().map(|row| &*row.name).collect();
        assert_eq!((rows.len(), names.len()), (41, 41));
        assert!(rows.iter().all(|row| row.part == Part::Paper));
    }
}
