//! Adversarial strings, and the comparison of one tokenizer with the reference.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod onig;
pub(crate) mod scored;
pub(crate) mod sentencepiece_models;
pub(crate) mod small;
pub(crate) mod tiktoken_models;
pub(crate) mod words;

use fasttoken::{EncodeOptions, Offsets, Tokenizer};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use tokenizers::Tokenizer as Reference;

/// SplitMix64: small, seeded, and the same on every machine.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    fn char_in(&mut self, low: u32, high: u32) -> char {
        loop {
            let code = low + self.below((high - low + 1) as usize) as u32;
            if let Some(c) = char::from_u32(code) {
                return c;
            }
        }
    }
}

const BLANKS: &[&str] = &[
    " ", "  ", "   ", "\n", "\r\n", "\r", "\t", "\n\n", " \n", "\n ", "\u{85}", "\u{A0}",
    "\u{1680}", "\u{2003}", "\u{2028}", "\u{2029}", "\u{202F}", "\u{3000}", "\u{200B}", "\u{FEFF}",
    "\u{B}", "\u{C}", "\u{1C}", "\u{180E}", "\u{0}",
];
const CONTRACTIONS: &[&str] = &[
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'vE", "'M", "'lL", "'D", "'ſ",
    "'", "''", "’s", "'x", "'l", "'r", "'v", " 's", "I'm", "don't", "we'LLs", "O'Neil", "'ﬅ", "'ß",
];
const WORDS: &[&str] = &[
    "the",
    "card",
    " payment",
    "Hello",
    "WORLD",
    "tokenizer",
    "antidisestablishmentarianism",
    "naïve",
    "Ångström",
    "straße",
    "ǅungla",
    "ʰa",
    "ªº",
    "été",
    "ﬁn",
    "Привет",
    "Ελλάδα",
    "שלום",
    "مرحبا",
    "हिन्दी",
    "ภาษาไทย",
    "日本語",
    "カタカナ",
    "ひらがな",
    "中文分词",
    "龥",
    "한국어",
    "각",
    "ꯍ",
    "𐐀𐐨",
    "𝒜",
    "Ⓐ",
    "ᾈ",
    "ß",
    "İ",
    "ı",
    "K",
    "Å",
];
const CODE: &[&str] = &[
    "fn main() {\n    ",
    "if (x != y) ",
    "};\n",
    "//",
    "/* */",
    "\n\n\n",
    "\t\t",
    "->",
    "::<>",
    "&&",
    "0x1F",
    "==",
    "...",
    "#!/usr",
    "\\n",
    "\"",
    "`",
    "~",
    "^",
    "|",
    "@",
    "$",
    "%",
    "{}",
    "[]",
    "__a_b",
    "camelCase",
    "HTTPServer",
    "x1y2",
    "a/b/c\n/",
    "!!\r\n",
    "。",
    "「」",
    "—",
    "€",
    "±",
    "™",
];
const NUMBERS: &[&str] = &[
    "0",
    "7",
    "42",
    "123",
    "1234",
    "1234567",
    "3.14",
    "٣٤٥",
    "१२३",
    "Ⅷ",
    "½",
    "²³",
    "㉈",
    "𝟘𝟙",
    "〇",
    "一二",
    " 12",
    "1e9",
];
const EMOJI: &[&str] = &["🙂", "👩‍👩‍👧‍👦", "🇩🇪", "❤️", "👍🏽", "☃", "🫠", "🪿", "\u{1FAE8}"];
const MARKS: &[&str] = &[
    "\u{301}",
    "\u{300}",
    "\u{308}",
    "\u{323}",
    "\u{327}",
    "\u{345}",
    "\u{338}",
    "\u{20DD}",
    "\u{FE0F}",
    "\u{200D}",
    "\u{93C}",
    "\u{94D}",
    "\u{3099}",
    "\u{1DCE}",
    "\u{10D69}",
    "\u{E0100}",
    "\u{1D165}",
];

/// Returns a string of a dozen or so awkward parts. `added` are contents of added tokens.
pub(crate) fn adversarial(rng: &mut Rng, added: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..rng.below(14) {
        match rng.below(20) {
            0..=2 => text.push_str(rng.pick(BLANKS)),
            3..=4 => text.push_str(rng.pick(CONTRACTIONS)),
            5..=7 => text.push_str(rng.pick(WORDS)),
            8..=9 => text.push_str(rng.pick(CODE)),
            10 => text.push_str(rng.pick(NUMBERS)),
            11 => text.push_str(rng.pick(EMOJI)),
            12 => {
                let base = rng.pick(&["e", "A", "가", "漢", "", "क"]);
                text.push_str(base);
                for _ in 0..rng.below(4) {
                    text.push_str(rng.pick(MARKS));
                }
            }
            13 => {
                // Jamo, which NFC composes to syllables.
                text.push(rng.char_in(0x1100, 0x1113));
                text.push(rng.char_in(0x1160, 0x1176));
                if rng.below(2) == 0 {
                    text.push(rng.char_in(0x11A7, 0x11C3));
                }
            }
            14..=15 if !added.is_empty() => {
                let token = &added[rng.below(added.len())];
                let mut cut = token.len();
                if rng.below(4) == 0 {
                    cut = rng.below(token.len() + 1);
                    while !token.is_char_boundary(cut) {
                        cut -= 1;
                    }
                }
                if rng.below(6) == 0 {
                    text.push_str(&token[cut..]);
                } else {
                    text.push_str(&token[..cut]);
                }
            }
            16 => text.push(rng.char_in(0, 0x10FFFF)),
            17 => text.push(rng.char_in(0x80, 0x2FFF)),
            18 => text.push(rng.char_in(0x20, 0x7E)),
            _ => {
                let part = rng.pick(&["a", " ", "\n", "1", "!", "漢", "🙂", "\u{301}", "A", "'s"]);
                for _ in 0..rng.below(12) {
                    text.push_str(part);
                }
            }
        }
    }
    text
}

/// One vocabulary in both implementations.
pub(crate) struct Both {
    pub(crate) name: String,
    pub(crate) ours: Tokenizer,
    pub(crate) reference: Reference,
    pub(crate) added: Vec<String>,
    /// True if decoding treats a run of byte tokens as a whole.
    pub(crate) bytes_are_runs: bool,
}

impl Both {
    pub(crate) fn from_json(name: &str, json: &[u8]) -> Self {
        let ours = Tokenizer::from_bytes(json).unwrap_or_else(|e| panic!("{name}: {e}"));
        let added = ours
            .added_tokens()
            .map(|(_, t)| t.content.clone())
            .collect();
        Self {
            name: name.to_owned(),
            ours,
            reference: Reference::from_bytes(json).unwrap_or_else(|e| panic!("{name}: {e}")),
            added,
            bytes_are_runs: json.windows(14).any(|part| part == b"\"ByteFallback\""),
        }
    }

    pub(crate) fn demo() -> Self {
        Self::from_json("demo", DEMO)
    }

    /// Checks everything that is offered for one text.
    pub(crate) fn check_text(&self, text: &str) -> Vec<u32> {
        let name = &self.name;
        let plain = self
            .reference
            .encode_fast(text, false)
            .expect("the reference works");
        let ids = self.ours.encode(text, false);
        assert_eq!(ids, plain.get_ids(), "{name}: ids of {text:?}");
        let full = self
            .reference
            .encode(text, true)
            .expect("the reference works");
        let ours = self.ours.encode_with_offsets(text, true);
        assert_eq!(
            ours.ids,
            full.get_ids(),
            "{name}: ids with specials of {text:?}"
        );
        assert_eq!(
            ours.offsets,
            full.get_offsets(),
            "{name}: offsets of {text:?}"
        );
        assert_eq!(ours.ids, self.ours.encode(text, true));
        assert_eq!(
            self.ours.count(text, true),
            ours.ids.len(),
            "{name}: {text:?}"
        );
        self.check_decode(&ids);
        ids
    }

    /// Checks the ids, offsets and decoded text of a longer text.
    pub(crate) fn check_document(&self, text: &str) {
        let name = &self.name;
        let theirs = self.reference.encode(text, false).expect("works");
        let ids = self.ours.encode(text, false);
        assert!(ids == theirs.get_ids(), "{name}: ids of {text:?}");
        let ours = self.ours.encode_with_offsets(text, false);
        assert!(ours.ids == ids, "{name}: ids with offsets of {text:?}");
        let offsets = theirs.get_offsets();
        assert!(ours.offsets == offsets, "{name}: offsets of {text:?}");
        self.check_decode(&ids);
    }

    pub(crate) fn check_decode(&self, ids: &[u32]) {
        let name = &self.name;
        for skip in [false, true] {
            let expected = self
                .reference
                .decode(ids, skip)
                .expect("the reference works");
            assert_eq!(self.ours.decode(ids, skip), expected, "{name}: {ids:?}");
            let mut decoder = self.ours.stream_decoder(skip);
            let mut streamed = String::new();
            for &id in ids {
                decoder.push(id, &mut streamed);
            }
            decoder.finish(&mut streamed);
            // Tokens for bytes are text only as a whole run: what a stream has written
            // of a run that breaks later is not taken back.
            if self.bytes_are_runs && expected.contains(char::REPLACEMENT_CHARACTER) {
                continue;
            }
            assert_eq!(streamed, expected, "{name}: streaming {ids:?}");
        }
    }

    /// Offsets in characters.
    fn check_chars(&self, text: &str) {
        let theirs = self.reference.encode_char_offsets(text, true);
        let theirs = theirs.expect("the reference works");
        let options = EncodeOptions::new()
            .add_special_tokens(true)
            .offsets(Offsets::Chars);
        let ours = self
            .ours
            .encode_with(text, &options)
            .expect("no truncation");
        let (name, offsets) = (&self.name, theirs.get_offsets());
        assert_eq!(ours.offsets, offsets, "{name}: characters of {text:?}");
    }

    /// Checks that our chunks together are the whole text, and that they are those of the reference,
    /// id by id, unless a SentencePiece-style text has U+FFFD, which the reference holds back.
    pub(crate) fn check_stream(&self, ids: &[u32]) {
        let whole = self.ours.decode(ids, true);
        let mut decoder = self.ours.stream_decoder(true);
        let mut written = String::new();
        ids.iter().for_each(|&id| decoder.push(id, &mut written));
        decoder.finish(&mut written);
        assert_eq!(written, whole, "{}: {ids:?}", self.name);
        if self.bytes_are_runs && whole.contains(char::REPLACEMENT_CHARACTER) {
            return;
        }
        let mut reference = self.reference.decode_stream(true);
        let mut decoder = self.ours.stream_decoder(true);
        let mut held = 0;
        for &id in ids {
            let mut chunk = String::new();
            decoder.push(id, &mut chunk);
            // The reference's stream fails where its prefix changes.
            let Ok(expected) = reference.step(id) else {
                return;
            };
            held += self.ours.id_to_piece(id).map_or(0, <[u8]>::len);
            if expected.is_some() {
                held = 0;
            } else if held > 128 {
                // Here the reference holds back without limit.
                return;
            }
            let expected = expected.unwrap_or_default();
            assert_eq!(chunk, expected, "{}: {ids:?}", self.name);
        }
    }

    /// Checks `strings` seeded strings, with a pair and random ids now and then.
    pub(crate) fn check_many(&self, seed: u64, strings: usize) {
        let mut rng = Rng(seed);
        let mut before = String::new();
        for n in 0..strings {
            let text = adversarial(&mut rng, &self.added);
            let ids = self.check_text(&text);
            if n % 4 == 0 {
                self.check_chars(&text);
            }
            if n % 16 == 0 {
                let pair = (before.as_str(), text.as_str());
                let expected = self
                    .reference
                    .encode_fast(pair, true)
                    .expect("the reference works");
                let ours = self.ours.encode((&*before, &*text), true);
                assert_eq!(ours, expected.get_ids(), "{}: {pair:?}", self.name);
                self.check_stream(&ids);
                let end = self.ours.vocab_size() + 10;
                let random: Vec<u32> = (0..rng.below(12)).map(|_| rng.below(end) as u32).collect();
                self.check_decode(&random);
            }
            before = text;
        }
    }

    pub(crate) fn check_vocabulary(&self) {
        let name = &self.name;
        assert_eq!(
            self.ours.vocab_size(),
            self.reference.get_vocab_size(true),
            "{name}"
        );
        for (token, id) in self.reference.get_vocab(true) {
            assert_eq!(self.ours.token_to_id(&token), Some(id), "{name}: {token:?}");
        }
        for id in 0..self.ours.vocab_size() as u32 + 100 {
            let expected = self.reference.id_to_token(id);
            assert_eq!(
                self.ours.id_to_token(id).as_deref(),
                expected.as_deref(),
                "{name}: {id}"
            );
            assert_eq!(self.ours.id_to_piece(id).is_some(), expected.is_some());
        }
        for (id, token) in self.reference.get_added_tokens_decoder() {
            assert_eq!(self.ours.is_special(id), token.special, "{name}: {id}");
        }
    }
}

pub(crate) const DEMO: &[u8] = include_bytes!("../data/tokenizer.json");

/// Returns the names of the split patterns of some models, each with the demo vocabulary split by it.
pub(crate) fn split_patterns() -> Vec<(String, Vec<u8>)> {
    let patterns = include_str!("../data/patterns.json");
    let patterns: Map<String, Value> = serde_json::from_str(patterns).expect("JSON");
    let file = |pattern| {
        let mut file: Value = serde_json::from_slice(DEMO).expect("JSON");
        file["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json!({ "Regex": pattern });
        file.to_string().into_bytes()
    };
    let all = patterns.into_iter();
    all.map(|(name, pattern)| (name, file(pattern))).collect()
}

/// Returns the real vocabularies beside the repository, or a visible line that there are none.
pub(crate) fn shared_vocabularies() -> Vec<(String, PathBuf)> {
    let folder = std::env::var_os("PRELUDE_SHARED_TOKENIZERS").map_or_else(
        || {
            PathBuf::from(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../shared/tokenizers"
            ))
        },
        PathBuf::from,
    );
    let mut found: Vec<_> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            let path = entry.path().join("tokenizer.json");
            (entry.file_name().to_string_lossy().into_owned(), path)
        })
        .filter(|(_, path)| path.is_file())
        .collect();
    found.sort();
    if found.is_empty() {
        let folder = folder.display();
        skip(&format!(
            "no real vocabularies in {folder} (set PRELUDE_SHARED_TOKENIZERS)"
        ));
    }
    found
}

/// Says what is not tested, past the test harness, which swallows what passing tests print.
pub(crate) fn skip(why: &str) {
    use std::io::Write as _;
    // Nothing is left to do when this cannot be written.
    let _ = std::io::stderr().write_all(format!("SKIP: {why}\n").as_bytes());
}
