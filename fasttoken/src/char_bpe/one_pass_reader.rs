//! The vocabulary and the merges of a usual file in one pass, or nothing.
//!
//! As for byte-level files (`load::one_pass_byte_level`), the result equals that of the slower way, and at the
//! first unusual thing it returns `None` without a reason.

use crate::json::id_limit;
use crate::json::one_pass_model::{RuleReader, RuleTokens, read_model};
use crate::json::one_pass_scanner::Scanner;
use crate::pieces::{Tokens, TokensBuilder};
use crate::string_table::Sought;
use std::ops::Range;

/// Reads the vocabulary and the merges. Returns the file with both left empty, the tokens, and the
/// two tokens and the product of each rule.
pub(crate) fn read_in_one_pass(json: &[u8]) -> Option<(Vec<u8>, Tokens, Vec<[u32; 3]>)> {
    read_model(json, read_vocab, read_merges)
}

fn read_vocab(scanner: &mut Scanner<'_>) -> Option<Tokens> {
    let mut tokens = TokensBuilder::default();
    scanner.expect(b'{')?;
    loop {
        scanner.string(tokens.text())?;
        scanner.expect(b':')?;
        tokens.push(scanner.number()?);
        if tokens.bytes() > u32::MAX as usize / 4 {
            return None;
        }
        if !scanner.more(b'}')? {
            break;
        }
    }
    let (count, largest) = tokens.extent();
    // Checked before memory is reserved for that many ids.
    if u64::from(largest) > id_limit(count) {
        return None;
    }
    tokens.finish().ok()
}

fn read_merges(scanner: &mut Scanner<'_>, tokens: &Tokens) -> Option<Vec<[u32; 3]>> {
    let mut rules = RuleReader::new(tokens, scanner);
    scanner.expect(b'[')?;
    loop {
        let start = rules.text.len();
        let cut = if scanner.peek()? == b'[' {
            scanner.expect(b'[')?;
            scanner.string(&mut rules.text)?;
            scanner.expect(b',')?;
            let cut = rules.text.len();
            scanner.string(&mut rules.text)?;
            scanner.expect(b']')?;
            cut
        } else {
            scanner.string(&mut rules.text)?;
            let rule = &rules.text[start..];
            // The version line of the older text format of merges.
            if rule.starts_with(b"#version") {
                return None;
            }
            let cut = rule.iter().position(|b| *b == b' ')?;
            rules.text.remove(start + cut);
            if rules.text[start + cut..].contains(&b' ') {
                return None;
            }
            start + cut
        };
        rules.push(start, cut)?;
        if !scanner.more(b']')? {
            break;
        }
    }
    rules.finish()
}

impl RuleTokens for Tokens {
    type Sought = Sought;

    #[inline]
    fn seek(&self, text: &[u8], range: Range<usize>) -> Sought {
        Self::seek(self, &text[range])
    }

    #[inline]
    fn found(&self, sought: &Sought, text: &[u8], range: Range<usize>) -> Option<u32> {
        Self::found(self, *sought, &text[range])
    }

    #[inline]
    fn is(&self, id: u32, text: &[u8], range: Range<usize>) -> bool {
        Self::is(self, id, &text[range])
    }
}

#[cfg(test)]
mod tests {
    use crate::Tokenizer;
    use proptest::prelude::*;

    /// Returns a SentencePiece-style file with these values.
    fn file(vocab: &str, merges: &str) -> String {
        format!(
            r#"{{"model": {{"type": "BPE", "unk_token": null, "vocab": {vocab}, "merges": {merges}}},
            "decoder": {{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}}}}"#
        )
    }

    /// The result of the slower way: an error, or ids and spellings.
    fn check(json: &[u8], texts: &[String]) -> bool {
        let slow = crate::load::load_slowly(json);
        let Some(quick) = crate::load::load_char_bpe_quickly(json) else {
            let now = Tokenizer::from_bytes(json).map(|_| ());
            let then = slow.map(|_| ());
            assert_eq!(format!("{now:?}"), format!("{then:?}"));
            return false;
        };
        let slow = slow.expect("nothing is wrong with the file");
        assert_eq!(quick.vocab_size(), slow.vocab_size());
        for id in 0..200 {
            assert_eq!(quick.id_to_token(id), slow.id_to_token(id));
            assert_eq!(quick.id_to_piece(id), slow.id_to_piece(id));
            let token = slow.id_to_token(id).unwrap_or_default();
            assert_eq!(quick.token_to_id(&token), slow.token_to_id(&token));
        }
        for text in texts {
            assert_eq!(
                quick.encode(text, true),
                slow.encode(text, true),
                "{text:?}"
            );
        }
        true
    }

    #[test]
    fn both_shapes_of_merges_are_usual() {
        let vocab = r#"{"a": 0, "b": 1, "\u2581": 2, "ab": 3, "▁ab": 4, "\"": 5}"#;
        let texts = ["ab ab", "▁ab\"ba"].map(String::from);
        for merges in [r#"["a b", "▁ ab"]"#, r#"[["a", "b"], [ "\u2581" , "ab" ]]"#] {
            assert!(check(file(vocab, merges).as_bytes(), &texts));
        }
        for (vocab, merges) in [
            (r#"{"a": 0, "a": 1}"#, r#"["a b"]"#),
            (r#"{"a": 0, "b": 0}"#, r#"["a b"]"#),
            (r#"{"a": 0, "b": 99999999}"#, r#"["a b"]"#),
            (r#"{"a": 0, "b": 1}"#, r#"["a b"]"#),
            (r#"{"a": 0, "b": 1, "ab": 2}"#, r#"["ab"]"#),
            (r#"{"a": 0, "b": 1, "ab": 2}"#, r#"["a b "]"#),
            (r#"{"a": 0, "b": 1, "ab": 2}"#, r#"[["a", "b", "a"]]"#),
            (r#"{"a": 0, "b": 1, "ab": 2}"#, r#"["a b", 7]"#),
            (
                r#"{"a": 0, "b": 1, "ab": 2}"#,
                r##"["#version: 0.2", "a b"]"##,
            ),
        ] {
            assert!(
                !check(file(vocab, merges).as_bytes(), &[]),
                "{vocab} {merges}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_the_slower_way_reads(
            tokens in prop::collection::vec((r#"[ab"\\▁é漢 \n]{0,4}"#, 0u32..40), 0..12),
            rules in prop::collection::vec((0usize..12, 0usize..12, any::<bool>()), 0..8),
            texts in prop::collection::vec(r#"[ab"▁é漢 \n]{0,12}"#, 0..4),
            edit in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let mut vocab: Vec<(String, u32)> = tokens;
            let mut merges = Vec::new();
            for (left, right, list) in rules {
                let Some(left) = vocab.get(left).map(|token| token.0.clone()) else { continue };
                let Some(right) = vocab.get(right).map(|token| token.0.clone()) else { continue };
                vocab.push((format!("{left}{right}"), 40 + vocab.len() as u32));
                merges.push(if list {
                    serde_json::json!([left, right]).to_string()
                } else {
                    serde_json::json!(format!("{left} {right}")).to_string()
                });
            }
            // Written by hand, so that tokens and ids may be there twice.
            let vocab: Vec<String> = vocab
                .iter()
                .map(|(token, id)| format!("{}: {id}", serde_json::json!(token)))
                .collect();
            let vocab = format!("{{{}}}", vocab.join(", "));
            let mut json = file(&vocab, &format!("[{}]", merges.join(","))).into_bytes();
            if let Some((at, byte)) = edit {
                let at = at.index(json.len());
                json[at] = byte;
            }
            check(&json, &texts);
        }
    }
}
