//! `tekken.json`, the format of Mistral's models since Nemo.

use super::byte_level_json::ByteLevel;
use crate::error::Error;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    /// Files before version 11 may lack them.
    #[serde(default)]
    special_tokens: Option<Vec<SpecialToken>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    /// Number of ids, those of special tokens too. The vocabulary may have more tokens, which are not
    /// used.
    default_vocab_size: u32,
    default_num_special_tokens: u32,
}

#[derive(Deserialize)]
struct Token {
    rank: u32,
    token_bytes: String,
}

#[derive(Deserialize)]
struct SpecialToken {
    rank: u32,
    token_str: String,
}

/// The special tokens of files that do not name them, by their ids.
const SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Upper bound of the number of special tokens; files have 1,000.
const SPECIAL_MAX: u32 = 100_000;

/// Returns the contents of a `tokenizer.json` that gives the ids of a `tekken.json`; see
/// [`Tokenizer::from_tekken`](crate::Tokenizer::from_tekken).
///
/// # Errors
/// When the file is malformed or contradicts itself, or its ranks have no counterpart in merge rules.
pub fn tekken_to_json(json: &[u8]) -> Result<Vec<u8>, Error> {
    let file: File = serde_json::from_slice(json)?;
    let Config {
        pattern,
        default_vocab_size: size,
        default_num_special_tokens: reserved,
    } = &file.config;
    let used = size
        .checked_sub(*reserved)
        .filter(|_| *reserved <= SPECIAL_MAX);
    let used = used.filter(|used| *used as usize <= file.vocab.len());
    let Some(used) = used else {
        let problem = format!(
            "{size} ids, {reserved} of them special, do not fit {} tokens",
            file.vocab.len()
        );
        return Err(Error::invalid("$.config", problem));
    };
    let mut tokens = Vec::with_capacity(used as usize);
    for (n, token) in file.vocab[..used as usize].iter().enumerate() {
        let invalid = |problem| Error::invalid(format!("$.vocab[{n}]"), problem);
        if token.rank as usize != n {
            return Err(invalid("the rank is not the place in the list"));
        }
        let bytes = BASE64.decode(&token.token_bytes);
        let bytes = bytes.map_err(|_| invalid("token_bytes is not Base64"))?;
        tokens.push((bytes, token.rank));
    }
    let special_tokens = special_tokens(&file, *reserved)?;
    let file = ByteLevel {
        tokens: &tokens,
        first_id: *reserved,
        special_tokens: &special_tokens,
        pattern,
        begin: Some(SPECIAL[1]),
    };
    file.write()
}

/// Returns all special tokens by rising id; ids without a name get one.
fn special_tokens(file: &File, reserved: u32) -> Result<Vec<(String, u32)>, Error> {
    let mut names = vec![None; reserved as usize];
    let mut name = |id: u32, token: &str| {
        let place = format!("$.special_tokens, {token:?}");
        match names.get_mut(id as usize) {
            Some(slot @ None) => *slot = Some(token.to_owned()),
            Some(_) => return Err(Error::invalid(place, format!("rank {id} has two tokens"))),
            None => {
                let problem = format!("rank {id} is not below {reserved}");
                return Err(Error::invalid(place, problem));
            }
        }
        Ok(())
    };
    match &file.special_tokens {
        Some(tokens) => tokens
            .iter()
            .try_for_each(|token| name(token.rank, &token.token_str))?,
        None => (0..)
            .zip(SPECIAL)
            .try_for_each(|(id, token)| name(id, token))?,
    }
    let named = (0..).zip(names);
    let filled = named.map(|(id, name): (u32, Option<String>)| {
        (name.unwrap_or_else(|| format!("<SPECIAL_{id}>")), id)
    });
    Ok(filled.collect())
}
