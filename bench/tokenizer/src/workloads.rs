//! The rows of the table: what is done, what must be reached.

use std::ops::Range;

use serde::Serialize;

pub(crate) use crate::texts::{Pattern, Texts, What};
use crate::{engines::Who, kind::Kind, protocol::How};

/// A row of the table.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) work: Work,
    pub(crate) must: Must,
    pub(crate) part: Part,
}

/// The part of the table that a row is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// The target table and the degenerate inputs.
    Targets,
    /// The rows of the paper's table; they set no target here.
    Paper,
    /// A row of the SentencePiece-style vocabulary.
    SentencePiece,
    /// A row of the WordPiece vocabulary.
    WordPiece,
    /// A row of the Unigram vocabulary.
    Unigram,
    /// A row of the first vocabulary with the split pattern of some model.
    Patterns,
    /// A row of a SentencePiece `.model` file.
    Models,
    /// A row of a file of ranks: tiktoken's, or a `tekken.json`.
    Ranks,
}

impl Part {
    pub(crate) const ALL: [Self; 8] = [
        Self::Targets,
        Self::Patterns,
        Self::SentencePiece,
        Self::WordPiece,
        Self::Unigram,
        Self::Models,
        Self::Ranks,
        Self::Paper,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Targets => "Targets",
            Self::Paper => {
                "The rows of the paper's table, all warm: its 17 texts encoded and decoded, then batches, one id at a time, eight threads, loading"
            }
            Self::SentencePiece => "SentencePiece-style BPE with byte fallback",
            Self::WordPiece => "WordPiece",
            Self::Unigram => "Unigram",
            Self::Patterns => "Split patterns of other models, with the first vocabulary",
            Self::Models => "SentencePiece `.model` files",
            Self::Ranks => "Files of ranks: tiktoken and tekken",
        }
    }
}

/// The unit of a value. Except for rates and scaling, less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    #[serde(rename = "µs")]
    Microseconds,
    #[serde(rename = "ns")]
    Nanoseconds,
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "MB")]
    Megabytes,
    #[serde(rename = "x")]
    Times,
}

impl Unit {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::MegabytesPerSecond => "MB/s",
            Self::Microseconds => "µs",
            Self::Nanoseconds => "ns",
            Self::Milliseconds => "ms",
            Self::Megabytes => "MB",
            Self::Times => "x",
        }
    }

    pub(crate) fn more_is_better(self) -> bool {
        matches!(self, Self::MegabytesPerSecond | Self::Times)
    }
}

/// The measured work.
pub(crate) enum Work {
    /// A call for each text.
    Encode {
        texts: Texts,
        /// New texts in every round, or the same ones again and again.
        fresh: bool,
    },
    /// A call for each text, the first calls of a new process.
    FirstCall { texts: Texts },
    /// A batch call for all texts.
    Batch {
        texts: Texts,
        threads: usize,
        /// True if every round has new texts.
        fresh: bool,
    },
    /// Two threads that share one tokenizer, against one thread: how many times the work. Or
    /// against two processes, which share nothing.
    Share { texts: Texts, apart: bool },
    /// Some threads that share one tokenizer, each encoding the texts so many times: per text.
    Together {
        texts: Texts,
        threads: usize,
        passes: u32,
    },
    /// A list of ids to text.
    Decode { ids: Ids, how: How },
    /// A file to a tokenizer, in a new process: processor time.
    Load,
    /// Loading a compiled tokenizer, likewise.
    LoadImage,
    /// Resident memory that loading added.
    Memory,
    /// Resident memory that loading and some threads added which have encoded the texts; or
    /// what each thread after the first did.
    Threads {
        texts: Texts,
        threads: usize,
        each: bool,
    },
}

/// The ids to decode.
pub(crate) enum Ids {
    /// The given number of ids of new English text.
    English(usize),
    /// The ids of the last of these texts.
    Of(Texts),
    Range(Range<u32>),
}

/// The target of fasttoken's value.
#[derive(Clone, Copy)]
pub(crate) enum Must {
    /// The given factor better than this rival.
    Beat(Who, f64),
    /// The given factor better than the best rival.
    BeatBest(f64),
    /// A bound in the row's unit: an upper bound, or a lower bound where more is better.
    Reach(f64),
    Nothing,
}

impl Must {
    pub(crate) fn text(self, unit: Unit) -> String {
        match self {
            Self::Beat(who, ratio) => format!("{ratio:.2}x {}", who.key()),
            Self::BeatBest(ratio) => format!("{ratio:.2}x best"),
            Self::Reach(value) if unit.more_is_better() => format!("≥ {value} {}", unit.text()),
            Self::Reach(value) => format!("≤ {value} {}", unit.text()),
            Self::Nothing => String::new(),
        }
    }
}

/// Returns the rows of the target table, then those of degenerate inputs.
pub(crate) fn rows() -> Vec<Row> {
    let mut rows = bulk_rows();
    rows.extend(call_rows());
    rows.extend(decode_rows());
    rows.extend(thread_rows());
    rows.extend(load_rows());
    rows.extend(patterns().map(|(name, pattern)| {
        let texts = Texts::new(What::Pattern(pattern), 1_000_000, 1);
        let name = format!("first call: 1 MB of {name}");
        rate(name, Work::FirstCall { texts }, Must::Reach(10.0))
    }));
    rows
}

fn target(name: impl Into<String>, unit: Unit, work: Work, must: Must) -> Row {
    Row {
        name: name.into(),
        unit,
        work,
        must,
        part: Part::Targets,
    }
}

fn rate(name: impl Into<String>, work: Work, must: Must) -> Row {
    target(name, Unit::MegabytesPerSecond, work, must)
}

fn plain(kind: Kind, bytes: usize, count: usize) -> Texts {
    Texts::new(What::Plain(kind), bytes, count)
}

fn fresh(texts: Texts) -> Work {
    Work::Encode { texts, fresh: true }
}

/// Rounds of fresh text are as long as five of them have new lines: of text whose words all came
/// before, an engine that remembers them all looks twice as fast.
fn bulk_rows() -> Vec<Row> {
    let warm = |kind: Kind| {
        let texts = plain(kind, 1_000_000, 1);
        let work = Work::Encode {
            texts,
            fresh: false,
        };
        let name = format!("warm bulk {}, 1 MB", kind.name());
        rate(name, work, Must::Beat(Who::Gigatoken, 1.0))
    };
    let new = |kind: Kind, count, must| {
        let name = format!("fresh {}, 8 KB each", kind.name());
        rate(name, fresh(plain(kind, 8192, count)), must)
    };
    let [english, code, others @ ..] = Kind::ALL;
    let best = Must::BeatBest(1.3);
    let chats = fresh(Texts::new(What::Chat, 8192, 40));
    let mut rows = vec![
        warm(english),
        warm(code),
        new(english, 48, best),
        new(code, 48, best),
        rate("fresh chat, 8 KB each", chats, best),
    ];
    rows.extend(others.map(|kind| new(kind, 24, Must::Beat(Who::Fastokens, 2.0))));
    rows
}

fn call_rows() -> Vec<Row> {
    let call = |(bytes, count)| {
        let name = format!("fresh call of {bytes} B, English");
        let work = fresh(plain(Kind::English, bytes, count));
        target(name, Unit::Microseconds, work, Must::BeatBest(1.0))
    };
    let chat = |(bytes, count, ratio)| {
        let name = format!("fresh chat of {} KB", bytes / 1000);
        let work = fresh(Texts::new(What::Chat, bytes, count));
        let must = Must::Beat(Who::Fastokens, ratio);
        target(name, Unit::Microseconds, work, must)
    };
    let mut rows: Vec<Row> = [(5, 10_000), (51, 3000), (674, 240)].map(call).into();
    // 131 / 90 and 378 / 260 µs in the target table.
    rows.extend([(21_000, 8, 131.0 / 90.0), (85_000, 2, 378.0 / 260.0)].map(chat));
    rows
}

fn decode_rows() -> [Row; 2] {
    let decode = |name, unit, how, must| {
        let ids = Ids::English(1245);
        target(name, unit, Work::Decode { ids, how }, must)
    };
    // 7.6 / 3 µs.
    let must = Must::Beat(Who::TokenizersRc, 7.6 / 3.0);
    let (whole, stream) = ("decode 1,245 ids", "streaming decode, per id");
    [
        decode(whole, Unit::Microseconds, How::Whole, must),
        decode(stream, Unit::Nanoseconds, How::Stream, Must::Reach(20.0)),
    ]
}

fn thread_rows() -> [Row; 3] {
    let batch = Work::Batch {
        texts: plain(Kind::English, 900, 64),
        threads: 2,
        fresh: true,
    };
    let share = |name, apart, must| {
        let texts = plain(Kind::English, 900, 512);
        target(name, Unit::Times, Work::Share { texts, apart }, must)
    };
    let name = "batch 64 × 900 B, two threads (wall)";
    let (together, against) = (
        "two threads share one tokenizer (wall)",
        "the same, against two processes that share nothing",
    );
    [
        target(name, Unit::Microseconds, batch, Must::BeatBest(1.5)),
        share(together, false, Must::Reach(1.9)),
        share(against, true, Must::Nothing),
    ]
}

fn load_rows() -> [Row; 6] {
    let time = |name, work, must| target(name, Unit::Milliseconds, work, must);
    let memory = |name, work, limit| target(name, Unit::Megabytes, work, Must::Reach(limit));
    let crowd = |threads, each| Work::Threads {
        texts: plain(Kind::English, 8192, 128),
        threads,
        each,
    };
    // 20 MB, and 2 for each thread.
    [
        time(
            "load from JSON",
            Work::Load,
            Must::Beat(Who::Tokenizers, 3.0),
        ),
        time("load compiled", Work::LoadImage, Must::Reach(1.0)),
        memory("resident memory after load", Work::Memory, 20.0),
        memory("resident memory with two threads", crowd(2, false), 24.0),
        memory("resident memory with eight threads", crowd(8, false), 36.0),
        memory("of which each further thread", crowd(8, true), 2.0),
    ]
}

/// Returns the rows of a vocabulary of another family or format. Its reference alone sets their
/// targets, since no other rival has them all: 10 times the speed of `tokenizers`, and as fast as the
/// libraries for `.model` files and files of ranks.
pub(crate) fn family_rows(title: &str, part: Part, reference: Who) -> Vec<Row> {
    let row = |name: &str, unit, work, must| Row {
        name: format!("{title}: {name}"),
        unit,
        work,
        must,
        part,
    };
    let fresh = |kind: Kind| {
        let name = format!("fresh {}, 8 KB each", kind.name());
        let must = match reference {
            Who::Tokenizers => Must::Beat(reference, 10.0),
            other => Must::Beat(other, 1.0),
        };
        row(
            &name,
            Unit::MegabytesPerSecond,
            fresh(plain(kind, 8192, 16)),
            must,
        )
    };
    let mut rows: Vec<Row> = Kind::ALL.into_iter().map(fresh).collect();
    let load = |name, unit, work| row(name, unit, work, Must::Nothing);
    let name = match reference {
        Who::Tokenizers => "load from JSON",
        _ => "load",
    };
    rows.push(load(name, Unit::Milliseconds, Work::Load));
    if part == Part::Models {
        rows.push(load("load compiled", Unit::Milliseconds, Work::LoadImage));
    }
    rows.push(load(
        "resident memory after load",
        Unit::Megabytes,
        Work::Memory,
    ));
    rows
}

/// Returns the rows of the split pattern `name`, in two scripts with other rules for words.
pub(crate) fn pattern_rows(name: &str) -> Vec<Row> {
    let fresh = |kind: Kind| Row {
        name: format!("pattern {name}: fresh {}, 8 KB each", kind.name()),
        unit: Unit::MegabytesPerSecond,
        work: fresh(plain(kind, 8192, 16)),
        must: Must::Nothing,
        part: Part::Patterns,
    };
    [Kind::English, Kind::Chinese].map(fresh).into()
}

/// Inputs that make a careless tokenizer quadratic.
fn patterns() -> [(&'static str, Pattern); 11] {
    [
        ("`a`", |bytes| "a".repeat(bytes)),
        ("`ab`", |bytes| "ab".repeat(bytes / 2)),
        ("blanks", |bytes| " ".repeat(bytes)),
        ("line ends, CR LF", |bytes| "\r\n".repeat(bytes / 2)),
        ("a blank and a line end", |bytes| " \n".repeat(bytes / 2)),
        ("one emoji", |bytes| "🙂".repeat(bytes / 4)),
        ("one Han character", |bytes| "漢".repeat(bytes / 3)),
        ("combining marks", |bytes| "\u{301}".repeat(bytes / 2)),
        ("letters with marks out of order", |bytes| {
            "a\u{301}\u{323}".repeat(bytes / 5)
        }),
        ("base64", base64),
        ("alternating scripts", |bytes| {
            "aя漢한ع1 ".repeat(bytes / 13)
        }),
    ]
}

/// Returns text that looks like base64: 64 symbols from a fixed generator, without line ends.
fn base64(bytes: usize) -> String {
    const SYMBOLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = 1u64;
    (0..bytes)
        .map(|_| {
            // Knuth's MMIX constants; the high bits are the good ones.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            char::from(SYMBOLS[(state >> 58) as usize])
        })
        .collect()
}
