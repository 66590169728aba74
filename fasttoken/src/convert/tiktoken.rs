//! `*.tiktoken` files: one token in Base64 and its rank in each line.

use super::byte_level_json::ByteLevel;
use crate::error::Error;
use crate::scan::{GPT2, O200K};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

/// The parts of a tiktoken encoding that are not in its file of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TiktokenEncoding {
    /// The pattern by which text is split, in Oniguruma's syntax.
    pub pattern: String,
    /// The special tokens and their ids.
    pub special_tokens: Vec<(String, u32)>,
}

// tiktoken writes `{1,3}+`, which means something else in Oniguruma's syntax, and `$` for the end of
// the text.
const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++(?![\s\S])|\s*[\r\n]|\s+(?!\S)|\s";

const END: &str = "<|endoftext|>";
const FIM: [&str; 3] = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"];
const END_OF_PROMPT: &str = "<|endofprompt|>";

impl TiktokenEncoding {
    /// Returns the encoding that tiktoken has under a name: `gpt2`, `r50k_base`, `p50k_base`,
    /// `p50k_edit`, `cl100k_base`, `o200k_base` or `o200k_harmony`.
    ///
    /// The ranks of `gpt2` are those of `r50k_base`. Where two special tokens of `o200k_harmony` share
    /// an id, the one that is not reserved has it.
    pub fn named(name: &str) -> Option<Self> {
        let [prefix, middle, suffix] = FIM;
        let (pattern, special_tokens): (&str, &[(&str, u32)]) = match name {
            "gpt2" | "r50k_base" | "p50k_base" => (GPT2, &[(END, 50256)]),
            "p50k_edit" => (
                GPT2,
                &[
                    (END, 50256),
                    (prefix, 50281),
                    (middle, 50282),
                    (suffix, 50283),
                ],
            ),
            "cl100k_base" => (
                CL100K,
                &[
                    (END, 100_257),
                    (prefix, 100_258),
                    (middle, 100_259),
                    (suffix, 100_260),
                    (END_OF_PROMPT, 100_276),
                ],
            ),
            "o200k_base" => (O200K, &[(END, 199_999), (END_OF_PROMPT, 200_018)]),
            "o200k_harmony" => return Some(harmony()),
            _ => return None,
        };
        let owned = |(name, id): &(&str, u32)| ((*name).to_owned(), *id);
        Some(Self {
            pattern: pattern.to_owned(),
            special_tokens: special_tokens.iter().map(owned).collect(),
        })
    }
}

fn harmony() -> TiktokenEncoding {
    let named = [
        (199_998, "<|startoftext|>"),
        (199_999, END),
        (200_002, "<|return|>"),
        (200_003, "<|constrain|>"),
        (200_005, "<|channel|>"),
        (200_006, "<|start|>"),
        (200_007, "<|end|>"),
        (200_008, "<|message|>"),
        (200_012, "<|call|>"),
        (200_018, END_OF_PROMPT),
    ];
    let token = |id: u32| {
        let name = named.iter().find(|named| named.0 == id);
        let name = name.map(|(_, name)| (*name).to_owned());
        (name.unwrap_or_else(|| format!("<|reserved_{id}|>")), id)
    };
    TiktokenEncoding {
        pattern: O200K.to_owned(),
        special_tokens: (199_998..201_088).map(token).collect(),
    }
}

/// Returns the contents of a `tokenizer.json` that gives the ids of a `*.tiktoken` file; see
/// [`Tokenizer::from_tiktoken`](crate::Tokenizer::from_tiktoken).
///
/// # Errors
/// When the ranks are malformed, contradict themselves, or have no counterpart in merge rules.
pub fn tiktoken_to_json(ranks: &[u8], encoding: &TiktokenEncoding) -> Result<Vec<u8>, Error> {
    let mut tokens = Vec::new();
    for (n, line) in ranks.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        tokens.push(read_line(line).ok_or_else(|| {
            let problem = "a line is a token in Base64, a space and a rank";
            Error::invalid(format!("line {} of the ranks", n + 1), problem)
        })?);
    }
    tokens.sort_unstable_by_key(|(_, rank)| *rank);
    let file = ByteLevel {
        tokens: &tokens,
        first_id: 0,
        special_tokens: &encoding.special_tokens,
        pattern: &encoding.pattern,
        begin: None,
    };
    file.write()
}

fn read_line(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    let token = BASE64.decode(&line[..space]).ok()?;
    let rank = std::str::from_utf8(&line[space + 1..]).ok()?;
    Some((token, rank.parse().ok()?))
}
