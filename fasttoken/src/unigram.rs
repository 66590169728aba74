//! The model Unigram: a word is cut so that the scores of its tokens have the largest sum.

use crate::error::Error;
use crate::format::{CompiledError, Reader, Section, Writer};
use crate::json::ModelJson;
use crate::lattice::Lattice;
use crate::pieces::{Token, Tokens};
use crate::store::Flat;
use crate::trie::Trie;

/// The tokens of a Unigram model with their scores.
#[derive(Debug)]
pub(crate) struct Unigram {
    trie: Trie,
    /// Scores by id.
    scores: Flat<f64>,
    unk: u32,
    /// The score of a character that is no token.
    unk_score: f64,
    /// The tokens of bytes, if unknown text is written with them.
    bytes: Option<Box<[Option<u32>; 256]>>,
}

/// The difference between the smallest score and that of an unknown character.
const UNK_PENALTY: f64 = 10.0;

/// The number that stands for no token in a compiled tokenizer.
const NO_ID: u32 = u32::MAX;

/// Returns the score of a character that is no token.
fn unk_score(scores: &[f64]) -> f64 {
    scores.iter().copied().fold(f64::INFINITY, f64::min) - UNK_PENALTY
}

impl Unigram {
    /// Creates the model of `tokens`, which have `scores` by id.
    pub(crate) fn new(model: &ModelJson, tokens: &Tokens, scores: Vec<f64>) -> Result<Self, Error> {
        let path = "$.model.unk_id";
        let Some(unk) = model.unk_id else {
            return Err(Error::unsupported(
                path,
                "a Unigram model without an unknown token, which cannot encode every text",
            ));
        };
        let known = u32::try_from(unk).ok();
        let Some(unk) = known.filter(|unk| (*unk as usize) < scores.len()) else {
            let count = scores.len();
            return Err(Error::invalid(
                path,
                format!("{unk} is not the id of one of the {count} tokens"),
            ));
        };
        let byte = |byte: usize| tokens.id(&format!("<{byte:#04X}>"));
        let bytes = || Box::new(std::array::from_fn(byte));
        Ok(Self {
            trie: Trie::new(tokens.iter(), "$.model.vocab")?,
            unk,
            unk_score: unk_score(&scores),
            scores: scores.into(),
            bytes: (model.byte_fallback == Some(true)).then(bytes),
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        self.trie.write(Section::Trie, writer);
        writer.put(Section::Scores, &self.scores);
        if let Some(bytes) = &self.bytes {
            writer.put(Section::ByteIds, &bytes.map(|id| id.unwrap_or(NO_ID)));
        }
    }

    /// Reads the model from a compiled tokenizer, whose ids are below `end`; `model` is its
    /// configuration.
    pub(crate) fn read(
        reader: &Reader,
        model: &ModelJson,
        unk: u32,
        end: u32,
    ) -> Result<Self, CompiledError> {
        let scores: Flat<f64> = reader.get(Section::Scores)?;
        let len = u32::try_from(scores.len()).unwrap_or(u32::MAX);
        if len > end || unk >= len {
            return Err(Section::Scores.invalid("it contradicts the other tables"));
        }
        let mut bytes = None;
        if model.byte_fallback == Some(true) {
            let ids: [u32; 256] = reader.get::<u32>(Section::ByteIds)?[..]
                .try_into()
                .map_err(|_| Section::ByteIds.invalid("there are not 256 of them"))?;
            bytes = Some(Box::new(ids.map(|id| (id < len).then_some(id))));
        }
        Ok(Self {
            trie: Trie::read(reader, Section::Trie, len)?,
            unk,
            unk_score: unk_score(&scores),
            scores,
            bytes,
        })
    }

    pub(crate) fn unk(&self) -> u32 {
        self.unk
    }

    /// Replaces `out` by the tokens of `word`. Those for which `taken` is true are not used.
    pub(crate) fn encode(
        &self,
        word: &str,
        taken: impl Fn(u32) -> bool,
        lattice: &mut Lattice<f64>,
        out: &mut Vec<Token>,
    ) {
        out.clear();
        let score = |id: u32, _| (!taken(id)).then(|| self.scores[id as usize]);
        let unknown = (self.unk, self.unk_score);
        lattice.fill(&self.trie, (word, 0.0), unknown, score, |_| ());
        // From the last token to the first one.
        let mut end = word.len();
        let mut unknown = None;
        while end > 0 {
            let Token { id, start, .. } = lattice.last(end);
            if id == self.unk {
                // Unknown characters that follow each other are one.
                unknown = Some(unknown.map_or(end, |last| last));
            } else {
                if let Some(last) = unknown.take() {
                    self.push_unknown(word, end, last, &taken, out);
                }
                out.push(Token { id, start, end });
            }
            end = start;
        }
        if let Some(last) = unknown {
            self.push_unknown(word, 0, last, &taken, out);
        }
        out.reverse();
    }

    /// Appends the tokens of unknown text, the last one first.
    fn push_unknown(
        &self,
        word: &str,
        start: usize,
        end: usize,
        taken: &impl Fn(u32) -> bool,
        out: &mut Vec<Token>,
    ) {
        let text = &word.as_bytes()[start..end];
        let token = |id: u32| Token { id, start, end };
        // Together, unknown characters can be a token.
        if let Some(id) = self.whole(text).filter(|id| !taken(*id)) {
            out.push(token(id));
            return;
        }
        if let Some(bytes) = &self.bytes {
            let id = |byte: &u8| bytes[usize::from(*byte)].filter(|id| !taken(*id));
            if text.iter().all(|byte| id(byte).is_some()) {
                out.extend(text.iter().rev().filter_map(id).map(token));
                return;
            }
        }
        out.push(token(self.unk));
    }

    /// Returns the token that is all of `text`.
    fn whole(&self, text: &[u8]) -> Option<u32> {
        let mut place = self.trie.root();
        let mut last = None;
        for &byte in text {
            (place, last) = self.trie.step(place, byte)?;
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::File;
    use crate::pieces::read_scored;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::HashMap;
    use tokenizers::Model as _;

    /// Returns the largest sum of scores over all cuts, by trying all of them.
    fn largest(vocab: &HashMap<&str, f64>, unknown: f64, word: &str) -> f64 {
        let Some(c) = word.chars().next() else {
            return 0.0;
        };
        let mut best = f64::NEG_INFINITY;
        let mut single = false;
        for end in (1..=word.len()).filter(|end| word.is_char_boundary(*end)) {
            if let Some(score) = vocab.get(&word[..end]) {
                single |= end == c.len_utf8();
                best = best.max(score + largest(vocab, unknown, &word[end..]));
            }
        }
        if !single {
            best = best.max(unknown + largest(vocab, unknown, &word[c.len_utf8()..]));
        }
        best
    }

    fn check(tokens: &[(String, i8)], byte_fallback: bool, words: &[String]) {
        let mut vocab: Vec<(String, f64)> = vec![("?".to_owned(), 0.0)];
        for (token, score) in tokens {
            if !token.is_empty() && vocab.iter().all(|(other, _)| other != token) {
                // Halves are exact, so sums do not depend on their order.
                vocab.push((token.clone(), f64::from(*score) / 2.0));
            }
        }
        let json = json!({"model": {
            "type": "Unigram", "unk_id": 0, "byte_fallback": byte_fallback, "vocab": vocab,
        }});
        let json = json.to_string();
        let file: File = serde_json::from_str(&json).unwrap();
        let (tokens, scores) = read_scored(file.model.vocab.as_ref().unwrap()).unwrap();
        let model = Unigram::new(&file.model, &tokens, scores).unwrap();
        let reference =
            tokenizers::models::unigram::Unigram::from(vocab.clone(), Some(0), byte_fallback)
                .unwrap();
        let map: HashMap<&str, f64> = vocab
            .iter()
            .map(|(t, score)| (t.as_str(), *score))
            .collect();
        let (mut lattice, mut found) = (Lattice::default(), Vec::new());
        for word in words {
            model.encode(word, |_| false, &mut lattice, &mut found);
            let expected = reference.tokenize(word).unwrap();
            let expected: Vec<(u32, (usize, usize))> = expected
                .iter()
                .map(|token| (token.id, token.offsets))
                .collect();
            let ours: Vec<_> = found.iter().map(|t| (t.id, (t.start, t.end))).collect();
            assert_eq!(ours, expected, "{word:?} with {vocab:?}");
            let sum = lattice.sum(word.len());
            assert_eq!(
                sum,
                largest(&map, model.unk_score, word),
                "{word:?} with {vocab:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn ways_are_the_best_and_those_of_the_reference(
            tokens in prop::collection::vec(("[abé漢?]{1,4}|<0x[46][1-3]>|<0xC3>|<0xA9>", -40i8..8), 0..30),
            byte_fallback in any::<bool>(),
            words in prop::collection::vec("[abcé漢?]{0,9}", 1..12),
        ) {
            check(&tokens, byte_fallback, &words);
        }
    }
}
