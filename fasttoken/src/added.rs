//! Added tokens: whole strings that are recognised before anything else happens.
//!
//! Tokens with `normalized: false` are cut from the raw text; what is left between
//! them is normalized, and the others are cut from that. Each of the two searches
//! takes, from left to right, the longest token at the leftmost place.

mod search;

use crate::error::Error;
use crate::json::AddedTokenJson;
use crate::normalize::Normalizer;
use crate::unicode::is_word;
use search::Search;
use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};

/// A token that was added to the model's vocabulary, with the flags of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddedToken {
    /// The text of the token.
    pub content: String,
    /// Recognised only where no word character touches it.
    pub single_word: bool,
    /// Takes the blanks to its left with it.
    pub lstrip: bool,
    /// Takes the blanks to its right with it.
    pub rstrip: bool,
    /// Searched in normalized text, in its own normalized form.
    pub normalized: bool,
    /// Left out of decoded text on request.
    pub special: bool,
}

impl AddedToken {
    /// Creates a token that is found in raw text, anywhere, without the blanks beside it, and is not
    /// special: what the reference's `AddedToken::from(content, false).normalized(false)` is.
    pub fn new(content: impl Into<String>) -> Self {
        Self {
            content: content.into(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: false,
        }
    }
}

/// An added token whose id in use is not the one its file states.
///
/// The reference gives an added token the id that the vocabulary has for its
/// content, or else the next free id after the vocabulary, and ignores the stated
/// id. So does this crate. A file with such tokens was made for another tool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reassigned {
    /// The text of the token.
    pub content: String,
    /// The id that the file states.
    pub stated: u32,
    /// The id that is used.
    pub used: u32,
}

/// The added tokens that encoding recognises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recognise {
    /// Every added token is recognised, as the reference does unless told otherwise.
    #[default]
    All,
    /// Only added tokens that are not special are recognised, as the reference does with
    /// `encode_special_tokens` set.
    NonSpecial,
    /// No added token is recognised, as with a file that lists none. For text that is not trusted, see
    /// [`Tokenizer::encode_plain_into`](crate::Tokenizer::encode_plain_into).
    None,
}

/// The added tokens and the two searches for them.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    /// The tokens, by rising id.
    pub(crate) tokens: Vec<(u32, AddedToken)>,
    /// Every content that was ever added, and its id.
    pub(crate) ids: HashMap<String, u32>,
    /// Contents that count as special when decoding.
    pub(crate) special_contents: HashSet<String>,
    /// Normalized forms of the tokens whose normalized form differs from the content.
    pub(crate) normalized_forms: HashMap<u32, String>,
    pub(crate) reassigned: Vec<Reassigned>,
    raw: Option<Listed>,
    normalized: Option<Listed>,
}

/// Tokens that are searched for.
#[derive(Debug)]
struct Listed {
    search: Search,
    /// The token of each string.
    matches: Vec<MatchInfo>,
}

#[derive(Debug, Clone, Copy)]
struct MatchInfo {
    id: u32,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    special: bool,
}

/// The text in which added tokens are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    Raw,
    Normalized,
}

/// A part of the searched text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text between added tokens; never empty.
    Text(Range<usize>),
    /// An added token with the blanks it took; never empty.
    Token(u32, Range<usize>),
}

const PATH: &str = "$.added_tokens";

/// The most bytes of a string that is searched for. Published tokens have some hundred at most, and a
/// longer one makes each search in a text that resembles it slow.
const BYTES_MAX: usize = 4 << 10;

impl AddedTokens {
    /// Assigns ids as the reference does. `model_id` looks up the model's
    /// vocabulary, which has `model_len` tokens.
    pub(crate) fn load(
        list: &[AddedTokenJson],
        model_len: usize,
        model_id: impl Fn(&str) -> Option<u32>,
        normalizer: &Normalizer,
    ) -> Result<Self, Error> {
        let mut ids: HashMap<String, u32> = HashMap::new();
        let mut by_id: HashMap<u32, AddedToken> = HashMap::new();
        let mut special_contents = HashSet::new();
        let mut normalized_forms = HashMap::new();
        let mut reassigned = Vec::new();
        let mut next_id = u32::try_from(model_len).expect("load bounds the vocabulary's size");
        for json in list.iter().filter(|json| !json.content.is_empty()) {
            let token = AddedToken {
                content: json.content.clone(),
                single_word: json.single_word,
                lstrip: json.lstrip,
                rstrip: json.rstrip,
                normalized: json.normalized,
                special: json.special,
            };
            let known = ids.get(&token.content).copied();
            let id = match known.or_else(|| model_id(&token.content)) {
                Some(id) => id,
                None => {
                    next_id += 1;
                    next_id - 1
                }
            };
            if id != json.id {
                reassigned.push(Reassigned {
                    content: token.content.clone(),
                    stated: json.id,
                    used: id,
                });
            }
            if token.normalized {
                let form = normalizer.apply(&token.content);
                if form != token.content {
                    normalized_forms.insert(id, form.into_owned());
                }
            }
            ids.insert(token.content.clone(), id);
            if token.special {
                special_contents.insert(token.content.clone());
            }
            by_id.insert(id, token);
        }
        let mut tokens: Vec<_> = by_id.into_iter().collect();
        tokens.sort_unstable_by_key(|(id, _)| *id);

        let info = |id: u32, token: &AddedToken| MatchInfo {
            id,
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            special: special_contents.contains(&token.content),
        };
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for (id, token) in &tokens {
            if token.normalized {
                let form = normalized_forms.get(id).unwrap_or(&token.content);
                normalized.push((form.as_str(), info(*id, token)));
            } else {
                raw.push((token.content.as_str(), info(*id, token)));
            }
        }
        let (raw, normalized) = (Listed::new(&raw)?, Listed::new(&normalized)?);
        Ok(Self {
            tokens,
            ids,
            special_contents,
            normalized_forms,
            reassigned,
            raw,
            normalized,
        })
    }

    /// Returns true if some added token is searched for in normalized text.
    pub(crate) fn has_normalized(&self) -> bool {
        self.normalized.is_some()
    }

    /// Calls `each` with the parts of `text` in order.
    // Inlined, so that parts stay in registers: reading them back from memory takes 10 ns each.
    #[inline(always)]
    pub(crate) fn split<F>(
        &self,
        pass: Pass,
        recognise: Recognise,
        text: &str,
        mut each: F,
    ) -> ControlFlow<()>
    where
        F: FnMut(Part) -> ControlFlow<()>,
    {
        let listed = match pass {
            Pass::Raw => self.raw.as_ref(),
            Pass::Normalized => self.normalized.as_ref(),
        };
        let mut done = 0;
        let mut blanks = 0..0;
        if let Some(Listed { search, matches }) = listed
            && recognise != Recognise::None
        {
            let mut from = 0;
            while let Some((n, found)) = search.find(text.as_bytes(), from) {
                from = found.end;
                let info = matches[n];
                let Some(range) = info.accept(recognise, text, done, &mut blanks, found) else {
                    continue;
                };
                if done < range.start {
                    each(Part::Text(done..range.start))?;
                }
                done = range.end;
                if !range.is_empty() {
                    each(Part::Token(info.id, range))?;
                }
            }
        }
        if done < text.len() {
            each(Part::Text(done..text.len()))?;
        }
        ControlFlow::Continue(())
    }
}

impl Listed {
    fn new(patterns: &[(&str, MatchInfo)]) -> Result<Option<Self>, Error> {
        let mut seen = HashSet::new();
        for (text, info) in patterns {
            if text.len() > BYTES_MAX {
                let (id, bytes) = (info.id, text.len());
                return Err(Error::invalid(
                    PATH,
                    format!(
                        "the token with id {id} has {bytes} bytes, and at most {BYTES_MAX} may be searched for"
                    ),
                ));
            }
            // The reference finds one of two equal strings at random.
            if text.is_empty() || !seen.insert(text) {
                return Err(Error::invalid(
                    PATH,
                    format!("two tokens are searched for as {text:?}"),
                ));
            }
        }
        if patterns.is_empty() {
            return Ok(None);
        }
        let strings: Vec<&str> = patterns.iter().map(|(text, _)| *text).collect();
        let search =
            Search::new(&strings).map_err(|problem| Error::invalid(PATH, problem.to_string()))?;
        Ok(Some(Self {
            search,
            matches: patterns.iter().map(|(_, info)| *info).collect(),
        }))
    }
}

impl MatchInfo {
    /// Returns the range that the token takes, if its flags allow a match there. `done` is the end
    /// of the token before it, and `blanks` the last blanks that were walked to the right: tokens
    /// of blanks can ask for the same ones again and again. A match that is turned down stays text,
    /// and is not searched for other tokens.
    fn accept(
        self,
        recognise: Recognise,
        text: &str,
        done: usize,
        blanks: &mut Range<usize>,
        found: Range<usize>,
    ) -> Option<Range<usize>> {
        if self.special && recognise == Recognise::NonSpecial {
            return None;
        }
        let Range { mut start, mut end } = found;
        let (before, after) = (&text[..start], &text[end..]);
        if self.single_word
            && (before.chars().next_back().is_some_and(is_word)
                || after.chars().next().is_some_and(is_word))
        {
            return None;
        }
        if self.lstrip {
            // Blanks that belong to the token before stay with it.
            let own = &text[done.min(start)..start];
            start -= own.len() - own.trim_end_matches(char::is_whitespace).len();
            start = start.max(done);
        }
        if self.rstrip {
            if !blanks.contains(&end) {
                let rest = after.trim_start_matches(char::is_whitespace);
                *blanks = end..text.len() - rest.len();
            }
            end = blanks.end.max(end);
        }
        Some(start.min(end)..end)
    }
}
