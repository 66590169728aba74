//! The two big values of a file, `$.model.vocab` and `$.model.merges`, read in one pass.
//!
//! All spellings of a value lie in one string: a file has hundreds of thousands of them, and an
//! allocation for each would take longer than reading it.

use crate::error::Error;
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt::{self, Formatter};

const VOCAB: &str = "$.model.vocab";
const MERGES: &str = "$.model.merges";

/// Upper bound of the bytes of all spellings of a value.
const MAX_TEXT_BYTES: usize = u32::MAX as usize / 4;

/// A vocabulary, in the order of the file: a map from tokens to ids, or a list of tokens with their
/// scores. Nothing was checked against anything.
#[derive(Debug, Default)]
pub(crate) struct VocabJson {
    text: String,
    /// The end of each token's spelling in `text`, and its id.
    tokens: Vec<(u32, u32)>,
    /// The place and the id of the first token whose id does not fit there.
    far: Option<(usize, u64)>,
    /// The scores of a list, in which a token's place is its id.
    scores: Option<Vec<f64>>,
}

impl VocabJson {
    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the spellings of all tokens in one string.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the tokens and their ids. [`VocabJson::check_map`] bounds the ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        let mut start = 0;
        self.tokens.iter().map(move |&(end, id)| {
            let token = &self.text[start..end as usize];
            start = end as usize;
            (token, id)
        })
    }

    /// Checks that the vocabulary is a map, without ids that would ask for gigabytes. There is room
    /// for the holes of real files.
    pub(crate) fn check_map(&self) -> Result<(), Error> {
        if self.scores.is_some() {
            return Err(Error::invalid(VOCAB, "must be a map from tokens to ids"));
        }
        let limit = (self.len() as u64 * 4 + 0xFFFF).min(u64::from(u32::MAX / 4));
        let mut ids = self.tokens.iter().map(|(_, id)| u64::from(*id)).enumerate();
        let far = self.far.or_else(|| ids.find(|(_, id)| *id > limit));
        far.map_or(Ok(()), |(at, id)| {
            let (token, _) = self.iter().nth(at).unwrap_or_default();
            Err(Error::IdOutOfRange {
                token: token.to_owned(),
                id,
                tokens: self.len(),
                limit,
            })
        })
    }

    /// Returns the scores of the tokens by id.
    pub(crate) fn scores(&self) -> Result<&[f64], Error> {
        let problem = "must be a list of tokens with their scores";
        let scores = self.scores.as_deref();
        scores.ok_or_else(|| Error::invalid(VOCAB, problem))
    }
}

/// The merge rules, in the order of the file.
#[derive(Debug, Default)]
pub(crate) struct MergesJson {
    text: String,
    /// The ends of both tokens of each rule in `text`, where a space is between them. A rule is
    /// malformed if the first is [`MALFORMED`], and the version line of the older text format of merges
    /// has [`VERSION`] there.
    rules: Vec<[u32; 2]>,
}

const MALFORMED: u32 = u32::MAX;
const VERSION: u32 = u32::MAX - 1;

impl MergesJson {
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns the place in the list of each rule and its two tokens.
    ///
    /// # Errors
    /// In place of a rule that does not have two tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<(usize, &str, &str), Error>> {
        let mut start = 0;
        let rules = self.rules.iter().enumerate();
        rules.filter_map(move |(index, &[cut, end])| {
            let (from, end) = (start, end as usize);
            start = end;
            match cut {
                VERSION => None,
                MALFORMED => Some(Err(Error::MalformedMerge {
                    index,
                    text: self.text[from..end].to_owned(),
                })),
                cut => {
                    let cut = cut as usize;
                    Some(Ok((index, &self.text[from..cut], &self.text[cut + 1..end])))
                }
            }
        })
    }

    fn push(&mut self, cut: u32) {
        self.rules.push([cut, self.text.len() as u32]);
    }
}

/// Appends a string to another one.
struct Append<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        if self.0.len() + text.len() > MAX_TEXT_BYTES {
            return Err(E::custom("more than a gigabyte of text"));
        }
        self.0.push_str(text);
        Ok(())
    }
}

impl<'de> Deserialize<'de> for VocabJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabVisitor)
    }
}

struct VocabVisitor;

impl<'de> Visitor<'de> for VocabVisitor {
    type Value = VocabJson;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tokens to ids or a list of tokens with their scores")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabJson, A::Error> {
        let mut vocab = VocabJson::default();
        let mut start = 0;
        while map.next_key_seed(Append(&mut vocab.text))?.is_some() {
            let id: u64 = map.next_value().map_err(|problem| {
                let token = &vocab.text[start..];
                let must = "must be a natural number below 2^64";
                de::Error::custom(format!("{VOCAB}: the id of {token:?} {must}: {problem}"))
            })?;
            start = vocab.text.len();
            if id > u32::MAX.into() {
                vocab.far.get_or_insert((vocab.tokens.len(), id));
            }
            vocab.tokens.push((start as u32, id as u32));
        }
        Ok(vocab)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<VocabJson, A::Error> {
        let mut vocab = VocabJson::default();
        let mut scores = Vec::new();
        while let Some((token, score)) =
            list.next_element::<(String, f64)>().map_err(|problem| {
                let must = "must be a list of tokens with their scores";
                de::Error::custom(format!("{VOCAB}: {must}: {problem}"))
            })?
        {
            Append(&mut vocab.text).visit_str(&token)?;
            let end = vocab.text.len() as u32;
            vocab.tokens.push((end, scores.len() as u32));
            scores.push(score);
        }
        vocab.scores = Some(scores);
        Ok(vocab)
    }
}

impl<'de> Deserialize<'de> for MergesJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(MergesVisitor)
    }
}

struct MergesVisitor;

impl<'de> Visitor<'de> for MergesVisitor {
    type Value = MergesJson;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<MergesJson, A::Error> {
        let mut merges = MergesJson::default();
        loop {
            let next = list.next_element_seed(Rule(&mut merges));
            let index = merges.len();
            let next =
                next.map_err(|problem| de::Error::custom(format!("{MERGES}[{index}]: {problem}")))?;
            if next.is_none() {
                return Ok(merges);
            }
        }
    }
}

/// Reads a rule: its two tokens with a space between both, or a list of them.
struct Rule<'a>(&'a mut MergesJson);

impl<'de> DeserializeSeed<'de> for Rule<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Rule<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a merge: "a b" or ["a", "b"]"#)
    }

    fn visit_str<E: de::Error>(self, rule: &str) -> Result<(), E> {
        let text = &mut self.0.text;
        let start = text.len();
        Append(text).visit_str(rule)?;
        let mut spaces = memchr::memchr_iter(b' ', rule.as_bytes());
        let cut = match (spaces.next(), spaces.next()) {
            _ if rule.starts_with("#version") => VERSION,
            (Some(cut), None) => (start + cut) as u32,
            _ => MALFORMED,
        };
        self.0.push(cut);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        let text = &mut self.0.text;
        let start = text.len();
        let mut ends = Vec::with_capacity(2);
        while parts.next_element_seed(Append(text))?.is_some() {
            ends.push(text.len());
            text.push(' ');
        }
        if !ends.is_empty() {
            text.pop();
        }
        let cut = match ends[..] {
            [cut, _] => cut as u32,
            _ => {
                let mut from = start;
                let parts = ends
                    .iter()
                    .map(|end| &text[std::mem::replace(&mut from, *end + 1)..*end]);
                let parts = format!("{:?}", parts.collect::<Vec<_>>());
                text.truncate(start);
                text.push_str(&parts);
                MALFORMED
            }
        };
        self.0.push(cut);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn tokens(json: &str) -> Result<Vec<(String, u32)>, Error> {
        let vocab: VocabJson = serde_json::from_str(json)?;
        vocab.check_map()?;
        let tokens = vocab.iter();
        Ok(tokens.map(|(token, id)| (token.to_owned(), id)).collect())
    }

    fn merges(json: &str) -> Result<Vec<(usize, String, String)>, Error> {
        let merges: MergesJson = serde_json::from_str(json)?;
        let rules = merges.iter().map(|rule| {
            rule.map(|(index, left, right)| (index, left.to_owned(), right.to_owned()))
        });
        rules.collect()
    }

    proptest! {
        #[test]
        fn tokens_are_those_of_the_file(
            map in prop::collection::btree_map(r#"[a"\\\n\u{7f}é漢😀/ :,{}\[\]]{0,6}"#, 0u32..0xFFFF, 0..8),
        ) {
            let json = serde_json::to_string(&map).unwrap();
            let expected: Vec<_> = map.into_iter().collect();
            prop_assert_eq!(tokens(&json).unwrap(), expected);
        }

        #[test]
        fn merges_are_those_of_the_file(
            list in prop::collection::vec((r#"[a"\\é漢\]]{1,3}"#, r#"[a"\\é漢,\[]{1,3}"#, any::<bool>()), 0..8),
        ) {
            let values: Vec<Value> = list
                .iter()
                .map(|(left, right, joined)| match joined {
                    true => format!("{left} {right}").into(),
                    false => vec![left.as_str(), right].into(),
                })
                .collect();
            let json = serde_json::to_string(&values).unwrap();
            let expected: Vec<_> = list.into_iter().enumerate().map(|(n, (l, r, _))| (n, l, r)).collect();
            prop_assert_eq!(merges(&json).unwrap(), expected);
        }
    }

    #[test]
    fn other_types_are_named_with_their_place() {
        for (json, place) in [
            (r#"["a"]"#, "$.model.vocab: must be a list"),
            (r#"{"a": 65540}"#, "65540"),
            (r#"[["a", 1]]"#, "$.model.vocab: must be a map"),
            ("1", "expected a map from tokens"),
            (
                r#"{"a": 1, "b": "2"}"#,
                r#"$.model.vocab: the id of "b" must"#,
            ),
            (r#"{"a": -1}"#, r#"the id of "a" must"#),
            (r#"{"a": 1.0}"#, r#"the id of "a" must"#),
            (r#"{"a": 1e3}"#, r#"the id of "a" must"#),
            (r#"{"a": 18446744073709551616}"#, r#"the id of "a" must"#),
            (r#"{"a": {}}"#, r#"the id of "a" must"#),
            (r#"{"\ud800": 1}"#, "malformed tokenizer JSON"),
        ] {
            let message = tokens(json).unwrap_err().to_string();
            assert!(message.contains(place), "{json}: {message}");
        }
        for (json, place) in [
            ("{}", "expected a list of merges"),
            (
                r#"["a b", 3]"#,
                "$.model.merges[1]: invalid type: integer `3`, expected a merge",
            ),
            (r#"["a b", ["a", 3]]"#, "$.model.merges[1]: invalid type"),
            (
                r#"["a b", ["a", "b", "c"]]"#,
                r#"merge 1 is not a pair of tokens: "[\"a\", \"b\", \"c\"]""#,
            ),
            (r#"["a b", []]"#, "merge 1 is not a pair"),
            (r#"["a b", "a b c"]"#, "merge 1 is not a pair"),
            (r#"["ab"]"#, "merge 0 is not a pair"),
            (r#"["a\udc00 b"]"#, "malformed tokenizer JSON"),
        ] {
            let message = merges(json).unwrap_err().to_string();
            assert!(message.contains(place), "{json}: {message}");
        }
        let versioned = merges(r##"["#version: 0.2", "a b"]"##).unwrap();
        assert_eq!(versioned, [(1, "a".to_owned(), "b".to_owned())]);
        assert_eq!(tokens(" { } ").unwrap(), []);
    }
}
