//! The model WordPiece: a word is cut into the longest tokens, from left to right.

use crate::error::Error;
use crate::format::{CompiledError, Reader, Section, Writer};
use crate::json::ModelJson;
use crate::pieces::{Token, Tokens};
use crate::trie::{Place, Trie};

/// The tokens of a WordPiece model and its settings.
#[derive(Debug)]
pub(crate) struct WordPiece {
    trie: Trie,
    /// The place after the prefix of tokens that go on with a word, if there are such tokens.
    inside: Option<Place>,
    unk: u32,
    /// Words with more characters become the unknown token.
    max_chars: usize,
}

impl WordPiece {
    pub(crate) fn new(model: &ModelJson, tokens: &Tokens) -> Result<Self, Error> {
        let missing = |name: &str| {
            let problem = format!("a WordPiece model needs {name:?}");
            Error::invalid("$.model", problem)
        };
        let unk = model.unk_token.as_deref();
        let unk = unk.ok_or_else(|| missing("unk_token"))?;
        let prefix = model.continuing_subword_prefix.as_deref();
        let prefix = prefix.ok_or_else(|| missing("continuing_subword_prefix"))?;
        let max_chars = model.max_input_chars_per_word;
        let max_chars = max_chars.ok_or_else(|| missing("max_input_chars_per_word"))?;
        let unk = tokens.id(unk).ok_or_else(|| {
            Error::invalid(
                "$.model.unk_token",
                format!("{unk:?} is not in the vocabulary"),
            )
        })?;
        let trie = Trie::new(tokens.iter(), "$.model.vocab")?;
        Ok(Self {
            inside: trie.after(prefix.as_bytes()),
            trie,
            unk,
            max_chars: usize::try_from(max_chars).unwrap_or(usize::MAX),
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        self.trie.write(Section::Trie, writer);
    }

    /// Reads the model from a compiled tokenizer, whose ids are below `end`; `model` is its
    /// configuration.
    pub(crate) fn read(
        reader: &Reader,
        model: &ModelJson,
        unk: u32,
        end: u32,
    ) -> Result<Self, CompiledError> {
        let settings = (
            model.continuing_subword_prefix.as_deref(),
            model.max_input_chars_per_word,
        );
        let (Some(prefix), Some(max_chars)) = settings else {
            return Err(Section::Config.invalid("it lacks settings of WordPiece"));
        };
        let trie = Trie::read(reader, Section::Trie, end)?;
        Ok(Self {
            inside: trie.after(prefix.as_bytes()),
            trie,
            unk,
            max_chars: usize::try_from(max_chars).unwrap_or(usize::MAX),
        })
    }

    pub(crate) fn unk(&self) -> u32 {
        self.unk
    }

    /// Replaces `out` by the tokens of `word`. Those for which `taken` is true are not used.
    #[inline]
    pub(crate) fn encode(&self, word: &str, taken: impl Fn(u32) -> bool, out: &mut Vec<Token>) {
        out.clear();
        let bytes = word.as_bytes();
        let long = bytes.len() > self.max_chars && word.chars().count() > self.max_chars;
        let mut start = 0;
        let mut place = Some(self.trie.root());
        while start < bytes.len() {
            let longest = |place| (self.trie).longest(place, &bytes[start..], |_, id| !taken(id));
            let Some((len, id)) = place.filter(|_| !long).and_then(longest) else {
                out.clear();
                out.push(Token {
                    id: self.unk,
                    start: 0,
                    end: bytes.len(),
                });
                return;
            };
            let end = start + len;
            out.push(Token { id, start, end });
            start = end;
            place = self.inside;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::File;
    use crate::pieces::read_tokens;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};
    use std::collections::HashMap;

    /// Returns the tokens of a word by looking up every part of it.
    fn naive(vocab: &HashMap<String, u32>, prefix: &str, max: usize, word: &str) -> Vec<Token> {
        let token = |id: u32, start: usize, end: usize| Token { id, start, end };
        let unknown = vec![token(vocab["?"], 0, word.len())];
        if word.chars().count() > max {
            return unknown;
        }
        let (mut out, mut start) = (Vec::new(), 0);
        while start < word.len() {
            let ends = (start + 1..=word.len()).filter(|end| word.is_char_boundary(*end));
            let id = |end: usize| {
                let before = if start > 0 { prefix } else { "" };
                vocab.get(&format!("{before}{}", &word[start..end]))
            };
            let Some(end) = ends.rev().find(|end| id(*end).is_some()) else {
                return unknown;
            };
            out.push(token(*id(end).unwrap(), start, end));
            start = end;
        }
        out
    }

    fn check(tokens: &[String], prefix: &str, max: usize, words: &[String]) {
        let mut vocab: HashMap<String, u32> = HashMap::from([("?".to_owned(), 0)]);
        for token in tokens {
            let id = vocab.len() as u32;
            vocab.entry(token.clone()).or_insert(id);
        }
        let map: Map<String, Value> = vocab
            .iter()
            .map(|(t, id)| (t.clone(), (*id).into()))
            .collect();
        let json = json!({"model": {
            "type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": prefix,
            "max_input_chars_per_word": max, "vocab": map,
        }});
        let json = json.to_string();
        let file: File = serde_json::from_str(&json).unwrap();
        let tokens = read_tokens(file.model.vocab.as_ref().unwrap()).unwrap();
        let model = WordPiece::new(&file.model, &tokens).unwrap();
        let mut found = Vec::new();
        for word in words {
            model.encode(word, |_| false, &mut found);
            let expected = naive(&vocab, prefix, max, word);
            assert_eq!(
                found,
                if word.is_empty() { vec![] } else { expected },
                "{word:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn the_longest_tokens_are_those_of_a_naive_search(
            tokens in prop::collection::vec("(##|#|é)?[abé漢#]{0,4}", 0..40),
            prefix in "##|#|é||xyz",
            max in 0usize..8,
            words in prop::collection::vec("[abé漢#]{0,9}", 1..20),
        ) {
            check(&tokens, &prefix, max, &words);
        }
    }
}
