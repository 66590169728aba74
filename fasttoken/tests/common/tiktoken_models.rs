//! The vocabularies that `tiktoken-rs` carries, as `tokenizer.json` files in memory.
#![allow(dead_code, reason = "each test file uses its own part")]

use serde_json::{Map, Value, json};
use std::collections::HashMap;
use tiktoken_rs::CoreBPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

pub(crate) const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

type Ranks = HashMap<Vec<u8>, u32>;

/// A vocabulary of `tiktoken-rs` and how it splits text; `None` is GPT-2's own way.
struct Bundled {
    name: &'static str,
    load: fn() -> &'static CoreBPE,
    pattern: Option<&'static str>,
    special: &'static [&'static str],
}

const BUNDLED: &[Bundled] = &[
    Bundled {
        name: "tiktoken r50k",
        load: tiktoken_rs::r50k_base_singleton,
        pattern: None,
        special: &["<|endoftext|>"],
    },
    Bundled {
        name: "tiktoken p50k",
        load: tiktoken_rs::p50k_base_singleton,
        pattern: None,
        special: &["<|endoftext|>"],
    },
    Bundled {
        name: "tiktoken cl100k",
        load: tiktoken_rs::cl100k_base_singleton,
        pattern: Some(CL100K),
        special: &["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>"],
    },
    Bundled {
        name: "tiktoken o200k",
        load: tiktoken_rs::o200k_base_singleton,
        pattern: Some(O200K),
        special: &["<|endoftext|>", "<|endofprompt|>"],
    },
];

/// Name and `tokenizer.json` of each, made when it is asked for.
pub(crate) fn bundled() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    BUNDLED.iter().map(|bundled| (bundled.name, bundled.json()))
}

/// Returns tiktoken's names of the vocabularies, with what encodes by them and the contents of their
/// files of ranks.
pub(crate) fn real_ranks() -> impl Iterator<Item = (&'static str, &'static CoreBPE, Vec<u8>)> {
    let names = ["r50k_base", "p50k_base", "cl100k_base", "o200k_base"];
    names.into_iter().zip(BUNDLED).map(|(name, bundled)| {
        let bpe = (bundled.load)();
        let line = |(token, rank): (Vec<u8>, u32)| format!("{} {rank}\n", base64(&token));
        let lines: String = ranks(bpe).into_iter().map(line).collect();
        (name, bpe, lines.into_bytes())
    })
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group
            .iter()
            .fold(0, |bits, byte| bits << 8 | usize::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for n in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * n) & 63];
            text.push(if n <= group.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    text
}

impl Bundled {
    /// Ids need not be tiktoken's, and are where the ranks leave no holes: both crates
    /// read the same file, and that is what is compared.
    fn json(&self) -> Vec<u8> {
        let ranks = ranks((self.load)());
        let alphabet = alphabet();
        let spell = |bytes: &[u8]| -> String {
            bytes
                .iter()
                .map(|byte| alphabet[usize::from(*byte)])
                .collect()
        };
        let mut tokens: Vec<(&Vec<u8>, u32)> = ranks.iter().map(|(t, r)| (t, *r)).collect();
        tokens.sort_unstable_by_key(|(_, rank)| *rank);
        let mut vocab = Map::new();
        let mut merges = Vec::new();
        for (id, (token, rank)) in tokens.iter().enumerate() {
            vocab.insert(spell(token), id.into());
            if let [left, right] = &split(token, &ranks, *rank)[..] {
                merges.push(Value::from(format!("{} {}", spell(left), spell(right))));
            }
        }
        let added = self.special.iter().enumerate().map(|(n, content)| {
            json!({
                "id": vocab.len() + n, "content": content, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true,
            })
        });
        let level = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                   "use_regex": use_regex})
        };
        let pre_tokenizer = self.pattern.map_or_else(
            || level(true),
            |pattern| {
                let split = json!({"type": "Split", "pattern": {"Regex": pattern},
                                   "behavior": "Isolated", "invert": false});
                json!({"type": "Sequence", "pretokenizers": [split, level(false)]})
            },
        );
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": added.collect::<Vec<_>>(), "normalizer": null,
            "pre_tokenizer": pre_tokenizer, "post_processor": level(true),
            "decoder": level(true),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": merges,
            },
        });
        serde_json::to_vec(&file).expect("JSON values can be written")
    }
}

/// The crate keeps its ranks to itself, but decodes them one by one. Special tokens are
/// decoded too, and left out again.
fn ranks(bpe: &CoreBPE) -> Ranks {
    let special = bpe.special_tokens();
    let decode = |rank: u32| Some((bpe.decode_bytes(&[rank]).ok()?, rank));
    (0..210_000)
        .filter_map(decode)
        .filter(|(bytes, _)| !std::str::from_utf8(bytes).is_ok_and(|t| special.contains(t)))
        .collect()
}

/// The pieces of `token` when only tokens of lower rank may be made: the last merge.
fn split<'t>(token: &'t [u8], ranks: &Ranks, limit: u32) -> Vec<&'t [u8]> {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    loop {
        let pairs = ends.windows(3).enumerate();
        let best = pairs
            .filter_map(|(n, ends)| Some((*ranks.get(&token[ends[0]..ends[2]])?, n)))
            .filter(|(rank, _)| *rank < limit)
            .min();
        match best {
            Some((_, n)) => ends.remove(n + 1),
            None => break,
        };
    }
    ends.windows(2)
        .map(|ends| &token[ends[0]..ends[1]])
        .collect()
}

/// The character that spells each byte, asked of the reference: printable Latin-1 stands
/// for itself, and the other bytes take what follows Latin-1 in order.
fn alphabet() -> [char; 256] {
    let mut all: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    all.sort_unstable();
    let (itself, mut others): (Vec<char>, Vec<char>) = all.iter().partition(|c| **c < '\u{100}');
    others.reverse();
    std::array::from_fn(|byte| {
        let c = char::from(byte as u8);
        if itself.contains(&c) {
            c
        } else {
            others.pop().expect("256 characters in all")
        }
    })
}
