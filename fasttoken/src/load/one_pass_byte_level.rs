//! Reads a usual byte-level file in one pass, and gives up on any other file.
//!
//! The result equals that of the slower way ([`super::byte_level_model`]): tokens and rules that are spelled
//! by the byte-level alphabet, with the same checks. At the first unusual thing it returns `None`
//! without a reason.

use super::byte_level_model::Model;
use crate::json::id_limit;
use crate::json::one_pass_model::{RuleReader, RuleTokens, read_model};
use crate::json::one_pass_scanner::{Scanner, Spelled};
use crate::pairs::TOKEN_END;
use crate::vocab::{Builder, Sought};
use std::ops::Range;

/// A file whose vocabulary and merges were read.
pub(super) struct Quick {
    /// The file with an empty vocabulary and empty merges.
    pub(super) config: Vec<u8>,
    pub(super) model: Model,
    /// The rules in the form of [`Model::rules`].
    pub(super) rules: Vec<[u32; 3]>,
}

impl Quick {
    pub(super) fn read(json: &[u8]) -> Option<Self> {
        let (config, model, rules) = read_model(json, read_vocab, read_merges)?;
        Some(Self {
            config,
            model,
            rules,
        })
    }
}

fn read_vocab(scanner: &mut Scanner<'_>) -> Option<Model> {
    // As in `Model::load`: no entry is shorter than `"":0,`, and no id may
    // reserve more memory than that many entries could need.
    let most = id_limit(scanner.left() / 5 + 1);
    let mut tokens = Builder::default();
    // Rarely less than this, and untouched memory costs nothing.
    tokens.reserve(scanner.left() / 32);
    let mut piece = Vec::new();
    let (mut text_bytes, mut raw) = (0, 0);
    scanner.expect(b'{')?;
    loop {
        piece.clear();
        let spelled = scanner.spelled(&mut piece)?;
        scanner.expect(b':')?;
        let id = scanner.number().filter(|id| u64::from(*id) <= most)?;
        match spelled {
            Spelled::Bytes => {
                // Spellings are up to twice as long.
                text_bytes += 2 * piece.len();
                tokens.add_piece(&piece, id).then_some(())?;
            }
            Spelled::Other(token) => {
                text_bytes += token.len();
                tokens.add_model(&token, id).ok()?;
                raw += usize::from(!tokens.is_spelled(id));
                // A SentencePiece-style vocabulary: the rest need not be read.
                if raw > 1024 && raw > tokens.model_len() / 2 {
                    return None;
                }
            }
        }
        // The slower way counts exactly and reports the error.
        if text_bytes > u32::MAX as usize / 4 {
            return None;
        }
        if !scanner.more(b'}')? {
            break;
        }
    }
    let near = tokens.id_end() as u64 <= id_limit(tokens.model_len()) + 1;
    if !near {
        return None;
    }
    let names = tokens.index().ok()?;
    Some(Model { tokens, names })
}

fn read_merges(scanner: &mut Scanner<'_>, model: &Model) -> Option<Vec<[u32; 3]>> {
    let mut rules = RuleReader::new(model, scanner);
    scanner.expect(b'[')?;
    loop {
        let start = rules.text.len();
        match scanner.merge(&mut rules.text)? {
            Ok(cut) => rules.push(start, cut)?,
            Err(range) => {
                rules.finish_group()?;
                add_other(&mut rules, scanner.slice(range))?;
            }
        }
        if !scanner.more(b']')? {
            break;
        }
    }
    rules.finish()
}

impl RuleTokens for Model {
    type Sought = Sought;

    #[inline]
    fn seek(&self, text: &[u8], range: Range<usize>) -> Sought {
        self.tokens.seek(&self.names, text, range)
    }

    #[inline]
    fn seek_further(&self, sought: &Sought) {
        self.tokens.seek_slot(&self.names, sought);
    }

    #[inline]
    fn found(&self, sought: &Sought, text: &[u8], _: Range<usize>) -> Option<u32> {
        self.tokens.found(&self.names, text, sought)
    }

    #[inline]
    fn is(&self, id: u32, text: &[u8], range: Range<usize>) -> bool {
        self.tokens.is_word(id, text, range)
    }
}

/// Adds a rule of two strings, at least one of which has an escape or a character outside of
/// the alphabet.
#[cold]
fn add_other(rules: &mut RuleReader<'_, Model>, json: &[u8]) -> Option<()> {
    let (left, right) = if json.starts_with(b"[") {
        serde_json::from_slice::<(String, String)>(json).ok()?
    } else {
        let text: String = serde_json::from_slice(json).ok()?;
        if text.starts_with("#version") {
            return Some(());
        }
        let (left, right) = text.split_once(' ')?;
        (!right.contains(' ')).then(|| (left.to_owned(), right.to_owned()))?
    };
    let id = |token: &str| rules.tokens.id(token);
    let (left_id, right_id) = (id(&left)?, id(&right)?);
    let rule = [left_id, right_id, id(&format!("{left}{right}"))?];
    (left_id.max(right_id) < TOKEN_END).then(|| rules.made.push(rule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::File;
    use proptest::prelude::*;

    /// The spellings by id, and the rules.
    type Read = (Vec<Option<String>>, Vec<[u32; 3]>);

    /// Reads a file the slower way, or returns `None` if it refuses the file.
    fn slowly(json: &[u8]) -> Option<Read> {
        let file: File<'_> = serde_json::from_slice(json).ok()?;
        let model = Model::load(file.model.vocab?).ok()?;
        let rules = model.rules(file.model.merges?).ok()?;
        Some((spellings(&model), rules))
    }

    fn spellings(model: &Model) -> Vec<Option<String>> {
        let ids = 0..model.tokens.id_end() as u32;
        let spelling = |id| model.tokens.spelling(id).map(String::from);
        let spellings: Vec<Option<String>> = ids.map(spelling).collect();
        for (id, token) in spellings.iter().enumerate() {
            let found = token.as_ref().and_then(|token| model.id(token));
            assert_eq!(found, token.as_ref().map(|_| id as u32));
        }
        spellings
    }

    /// Returns true if the file is a usual one, and checks that both ways read the same.
    fn check(json: &[u8]) -> bool {
        let Some(quick) = Quick::read(json) else {
            return false;
        };
        let slow = slowly(json).expect("nothing is wrong with the model");
        assert_eq!((spellings(&quick.model), quick.rules), slow);
        let whole: serde_json::Value = serde_json::from_slice(json).expect("JSON");
        let mut expected = whole;
        expected["model"]["vocab"] = serde_json::json!({});
        expected["model"]["merges"] = serde_json::json!([]);
        let config: serde_json::Value = serde_json::from_slice(&quick.config).expect("JSON");
        assert_eq!(config, expected);
        true
    }

    #[test]
    fn published_shapes_are_usual() {
        let demo = include_bytes!("../../tests/data/tokenizer.json");
        assert!(check(demo));
        let value: serde_json::Value = serde_json::from_slice(demo).expect("JSON");
        assert!(check(&serde_json::to_vec(&value).expect("written")));
        let escaped: String = serde_json::to_string_pretty(&value)
            .expect("written")
            .chars()
            .map(|c| match c {
                ..='\x7F' => c.to_string(),
                _ => format!("\\u{:04x}", u32::from(c)),
            })
            .collect();
        assert!(check(escaped.as_bytes()));
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_the_slower_way_reads(
            tokens in prop::collection::vec((r#"[ab"\\ĠĊé漢 \n]{0,4}"#, 0u32..40), 0..12),
            rules in prop::collection::vec((0usize..12, 0usize..12, 0u8..4), 0..8),
            other in r#"[a"{}\[\],: \\]{0,8}"#,
            edit in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let mut vocab: Vec<(String, u32)> = tokens;
            let mut merges = Vec::new();
            for (left, right, shape) in rules {
                let Some(left) = vocab.get(left).map(|token| token.0.clone()) else { continue };
                let Some(right) = vocab.get(right).map(|token| token.0.clone()) else { continue };
                vocab.push((format!("{left}{right}"), 40 + vocab.len() as u32));
                merges.push(match shape {
                    0 => serde_json::json!([left, right]).to_string(),
                    1 => r##""#version: 0.2""##.to_owned(),
                    _ => serde_json::json!(format!("{left} {right}")).to_string(),
                });
            }
            // Written by hand, so that tokens and ids may be there twice.
            let vocab: Vec<String> = vocab
                .iter()
                .map(|(token, id)| format!("{}: {id}", serde_json::json!(token)))
                .collect();
            let mut json = format!(
                r#"{{"other": {}, "model": {{"vocab": {{{}}}, "type": "BPE", "merges": [{}]}}}}"#,
                serde_json::json!([other]),
                vocab.join(", "),
                merges.join(","),
            )
            .into_bytes();
            if let Some((at, byte)) = edit {
                let at = at.index(json.len());
                json[at] = byte;
            }
            if let Some(quick) = Quick::read(&json)
                && serde_json::from_slice::<File<'_>>(&quick.config).is_ok()
            {
                let slow = slowly(&json);
                prop_assert_eq!(Some((spellings(&quick.model), quick.rules)), slow);
            }
        }
    }
}
