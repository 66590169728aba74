//! Log-probabilities as the two dialects print them.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    collections::{HashMap, hash_map::Entry},
    ops::Range,
};

use prelude_core::{PositionLogprobs, SampledToken, TokenId, TokenLogprob};
use schemars::{JsonSchema, json_schema};
use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq, SerializeStruct},
};

use super::choice::TokenRecord;
use crate::{served_model::ServedModel, wire::described};

/// JSON has no infinity; this stands for the log-probability of the impossible.
const FLOOR: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    logprob.max(FLOOR)
}

/// The form in which tokens are printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer<'a> {
    pub(crate) model: &'a ServedModel,
    /// `token_id:N` instead of text.
    pub(crate) as_ids: bool,
}

impl<'a> Printer<'a> {
    /// Returns the token's text alone. Part of a character prints as U+FFFD, an id beyond the
    /// tokenizer's as nothing.
    fn text(self, id: TokenId) -> Cow<'a, str> {
        if self.as_ids {
            return Cow::Owned(format!("token_id:{id}"));
        }
        self.model.tokenizer.id_to_text(id)
    }

    fn bytes(self, id: TokenId) -> Cow<'a, [u8]> {
        self.model.tokenizer.id_to_piece(id).unwrap_or_default()
    }
}

/// `logprobs` of completions.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "CompletionLogprobs")]
pub(crate) struct CompletionLogprobs<'a> {
    tokens: Vec<Cow<'a, str>>,
    token_logprobs: Vec<Option<f32>>,
    #[schemars(with = "Vec<Option<BTreeMap<String, f32>>>")]
    top_logprobs: Vec<Option<Top<'a>>>,
    text_offset: Vec<usize>,
}

impl<'a> CompletionLogprobs<'a> {
    /// Adds the tokens of an echoed prompt of `chars` code points. `scored[i]` belongs to token
    /// i + 1: the first has no log-probability.
    pub(crate) fn push_prompt(
        &mut self,
        printer: Printer<'a>,
        ids: &[TokenId],
        scored: &[PositionLogprobs],
        top: u32,
        chars: usize,
    ) {
        let mut decoded = CharCount::default();
        for (i, &id) in ids.iter().enumerate() {
            // Special tokens that the tokenizer added are not in the text as it came.
            self.text_offset.push(decoded.chars.min(chars));
            decoded.push(&printer.bytes(id));
            self.tokens.push(printer.text(id));
            let Some(score) = i.checked_sub(1).map(|i| &scored[i]) else {
                self.token_logprobs.push(None);
                self.top_logprobs.push(None);
                continue;
            };
            let best = score.top.iter().take(top as usize);
            self.token_logprobs.push(Some(finite(score.logprob)));
            self.top_logprobs
                .push(Some(Top::new(printer, id, score.logprob, best)));
        }
    }

    /// Adds generated tokens, whose text begins `start` code points into the whole text.
    pub(crate) fn push_generated(
        &mut self,
        printer: Printer<'a>,
        records: &[TokenRecord],
        start: usize,
    ) {
        for TokenRecord { token, offset } in records {
            let logprob = token.logprob.unwrap_or(FLOOR);
            self.tokens.push(printer.text(token.token));
            self.token_logprobs.push(Some(finite(logprob)));
            let top = Top::new(printer, token.token, logprob, token.top.iter());
            self.top_logprobs.push(Some(top));
            self.text_offset.push(start + offset);
        }
    }
}

/// Code points completed by bytes that arrive token by token.
#[derive(Debug, Default)]
struct CharCount {
    chars: usize,
    /// Continuation bytes the last character still lacks.
    missing: usize,
}

impl CharCount {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.missing > 0 && byte & 0xc0 == 0x80 {
                self.missing -= 1;
                if self.missing == 0 {
                    self.chars += 1;
                }
                continue;
            }
            // A character that was cut short became one U+FFFD.
            self.chars += usize::from(self.missing > 0);
            self.missing = match byte {
                0xc2..=0xdf => 1,
                0xe0..=0xef => 2,
                0xf0..=0xf4 => 3,
                _ => 0,
            };
            self.chars += usize::from(self.missing == 0);
        }
    }
}

/// Token texts and their log-probabilities, the chosen token among them.
#[derive(Debug)]
struct Top<'a>(Vec<(Cow<'a, str>, f32)>);

impl<'a> Top<'a> {
    fn new<'t>(
        printer: Printer<'a>,
        chosen: TokenId,
        logprob: f32,
        best: impl Iterator<Item = &'t TokenLogprob>,
    ) -> Self {
        let mut has_chosen = false;
        let mut entries: Vec<(Cow<'a, str>, f32)> = best
            .map(|entry| {
                has_chosen |= entry.token == chosen;
                (printer.text(entry.token), finite(entry.logprob))
            })
            .collect();
        if !has_chosen {
            entries.push((printer.text(chosen), finite(logprob)));
        }
        Self(distinct(entries))
    }
}

/// Merges entries that print alike, as different ids may: each text stays where it came first, with
/// its largest value.
fn distinct(entries: Vec<(Cow<'_, str>, f32)>) -> Vec<(Cow<'_, str>, f32)> {
    let mut places: HashMap<Cow<'_, str>, usize> = HashMap::with_capacity(entries.len());
    let mut distinct: Vec<(Cow<'_, str>, f32)> = Vec::with_capacity(entries.len());
    for (text, value) in entries {
        match places.entry(text) {
            Entry::Vacant(place) => {
                distinct.push((place.key().clone(), value));
                place.insert(distinct.len() - 1);
            }
            Entry::Occupied(place) => {
                let kept = &mut distinct[*place.get()].1;
                *kept = kept.max(value);
            }
        }
    }
    distinct
}

impl Serialize for Top<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, value)| (text, value)))
    }
}

/// `prompt_logprobs`: null for the first position and those outside the range asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptLogprobs<'a> {
    pub(crate) printer: Printer<'a>,
    /// Length of the prompt.
    pub(crate) prompt_len: usize,
    /// Position of the first of `scored`.
    pub(crate) first: usize,
    pub(crate) scored: &'a [PositionLogprobs],
    /// Likeliest tokens to print beside the prompt's own.
    pub(crate) top: u32,
}

impl Serialize for PromptLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.prompt_len))?;
        for position in 0..self.prompt_len {
            let score = position
                .checked_sub(self.first)
                .and_then(|i| self.scored.get(i));
            list.serialize_element(&score.map(|score| PromptPosition {
                printer: self.printer,
                score,
                top: self.top,
            }))?;
        }
        list.end()
    }
}

struct PromptPosition<'a> {
    printer: Printer<'a>,
    score: &'a PositionLogprobs,
    top: u32,
}

/// The schema of [`PromptLogprobs`]: by token id.
pub(crate) type PromptLogprobsSchema = Option<Vec<Option<BTreeMap<String, Ranked<'static>>>>>;

/// A token that might have stood at a place of the prompt.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PromptLogprob")]
pub(crate) struct Ranked<'a> {
    logprob: f32,
    rank: u32,
    decoded_token: Cow<'a, str>,
}

impl Serialize for PromptPosition<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let mut entry = |token: TokenId, logprob: f32, rank: u32| {
            let ranked = Ranked {
                logprob: finite(logprob),
                rank,
                decoded_token: self.printer.text(token),
            };
            map.serialize_entry(&token, &ranked)
        };
        let score = self.score;
        entry(score.token, score.logprob, score.rank)?;
        for (rank, best) in (1..=self.top).zip(&score.top) {
            if best.token != score.token {
                entry(best.token, best.logprob, rank)?;
            }
        }
        map.end()
    }
}

/// `logprobs` of chat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChatLogprobs<'a> {
    pub(crate) printer: Printer<'a>,
    pub(crate) records: &'a [TokenRecord],
}

impl Serialize for ChatLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct List<'a>(ChatLogprobs<'a>);
        impl Serialize for List<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let Self(ChatLogprobs { printer, records }) = *self;
                serializer.collect_seq(records.iter().map(|r| ChatToken {
                    printer,
                    token: &r.token,
                }))
            }
        }
        let mut object = serializer.serialize_struct("logprobs", 1)?;
        object.serialize_field("content", &List(*self))?;
        object.end()
    }
}

described!(ChatLogprobs<'_>, "ChatLogprobs", |generator| json_schema!({
    "type": "object",
    "properties": { "content": generator.subschema_for::<Vec<ChatTokenBody<'_>>>() },
    "required": ["content"],
}));

/// A token of an answer and the likeliest ones in its place.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatTokenLogprob")]
struct ChatTokenBody<'a> {
    #[serde(flatten)]
    chosen: ChatEntry<'a>,
    top_logprobs: Vec<ChatEntry<'a>>,
}

struct ChatToken<'a> {
    printer: Printer<'a>,
    token: &'a SampledToken,
}

/// A token of an answer.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatTopLogprob")]
struct ChatEntry<'a> {
    token: Cow<'a, str>,
    logprob: f32,
    bytes: Cow<'a, [u8]>,
}

impl<'a> ChatEntry<'a> {
    fn new(printer: Printer<'a>, token: TokenId, logprob: f32) -> Self {
        Self {
            token: printer.text(token),
            logprob: finite(logprob),
            bytes: printer.bytes(token),
        }
    }
}

impl Serialize for ChatToken<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { printer, token } = *self;
        let logprob = token.logprob.unwrap_or(FLOOR);
        let top = token.top.iter();
        ChatTokenBody {
            chosen: ChatEntry::new(printer, token.token, logprob),
            top_logprobs: top
                .map(|t| ChatEntry::new(printer, t.token, t.logprob))
                .collect(),
        }
        .serialize(serializer)
    }
}

/// Entries printed for a prompt of `len` tokens, each with its own log-probability or null, and
/// with `top` likeliest beside it at the positions in `range` (all, if absent).
pub(crate) fn entries(len: usize, range: Option<&Range<u32>>, top: u32) -> u64 {
    let len = len as u64;
    let scored = range.map_or(len, |r| u64::from(r.end.saturating_sub(r.start)));
    len.saturating_add(scored.saturating_mul(u64::from(top)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_print_alike_are_one() {
        let named = |list: &[(&'static str, f32)]| -> Vec<(Cow<'static, str>, f32)> {
            list.iter().map(|&(t, v)| (Cow::Borrowed(t), v)).collect()
        };
        let found = distinct(named(&[("b", -2.0), ("a", -3.0), ("b", -1.0), ("a", -4.0)]));
        assert_eq!(found, named(&[("b", -1.0), ("a", -3.0)]));
    }

    #[test]
    fn entries_are_positions_and_their_likeliest() {
        assert_eq!(entries(10, None, 0), 10);
        assert_eq!(entries(10, None, 4), 50);
        assert_eq!(entries(10, Some(&(2..5)), 4), 10 + 3 * 4);
    }

    #[test]
    fn characters_are_counted_where_they_end() {
        let check = |pieces: &[&[u8]], expected: &[usize]| {
            let mut count = CharCount::default();
            let found: Vec<usize> = pieces
                .iter()
                .map(|piece| {
                    count.push(piece);
                    count.chars
                })
                .collect();
            assert_eq!(found, expected, "{pieces:?}");
        };
        check(&[b"ab", b"c"], &[2, 3]);
        check(&["é".as_bytes(), b"x"], &[1, 2]);
        check(&[b"\xe2\x82", b"\xac", b"!"], &[0, 1, 2]);
        check(&[b"\xe2", b"a"], &[0, 2]);
        check(&[b"\xff", b"\x80"], &[1, 2]);
        check(&[b"\xf0\x9f", b"\x98\x80x"], &[0, 2]);
    }
}
