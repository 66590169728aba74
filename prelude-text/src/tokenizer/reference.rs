//! The reference crate `tokenizers` behind the calls that the server makes of fasttoken.

use std::collections::HashMap;

use fasttoken::{Side, Truncation, TruncationStrategy};
use tokenizers::PostProcessor as _;

/// A tokenizer of the crate `tokenizers`.
///
/// Encoding is infallible to callers, as fasttoken's is: what could make the reference fail (a
/// vocabulary without a token for unknown text) is looked for at load.
#[derive(Debug)]
pub(super) struct Reference {
    inner: tokenizers::Tokenizer,
    /// Content of the added tokens, and whether they are special.
    added: HashMap<u32, (String, bool)>,
    spelling: Spelling,
}

/// The way in which tokens spell the bytes of a text.
#[derive(Debug)]
enum Spelling {
    /// Each byte is spelled as one character of the byte-level alphabet.
    ByteLevel(HashMap<char, u8>),
    /// The spelling that the decoder undoes. A token behind this anchor, whose text is given,
    /// decodes as it does within a text.
    Decoded {
        anchor: Option<(u32, String)>,
        bytes: bool,
    },
}

impl Reference {
    /// # Errors
    /// The message of the reference about the file, or about the text that it cannot encode.
    pub(super) fn from_bytes(json: &[u8]) -> Result<Self, String> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
        if let tokenizers::ModelWrapper::BPE(model) = inner.get_model()
            && model.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            return Err("its `dropout` makes ids random".to_owned());
        }
        // Only the request decides about truncation, as with fasttoken.
        inner.with_truncation(None).map_err(|e| e.to_string())?;
        inner.with_padding(None);
        // Letters, a control character, one for private use, and an unassigned one.
        for text in ["a b", "é 中 א", "\u{1}", "\u{e000}", "\u{e0fff}"] {
            inner.encode_fast(text, true).map_err(|e| {
                format!("it loads, but cannot encode {text:?}, so not every text: {e}")
            })?;
        }
        let added = inner.get_added_tokens_decoder().into_iter();
        let added = added
            .map(|(id, token)| (id, (token.content, token.special)))
            .collect();
        let decoder = serde_json::to_value(inner.get_decoder()).map_err(|e| e.to_string())?;
        let mut this = Self {
            inner,
            added,
            spelling: Spelling::Decoded {
                anchor: None,
                bytes: names(&decoder, "ByteFallback"),
            },
        };
        if names(&decoder, "ByteLevel") {
            this.spelling = Spelling::ByteLevel(alphabet());
        } else {
            let found = this.find_anchor();
            if let Spelling::Decoded { anchor, .. } = &mut this.spelling {
                *anchor = found;
            }
        }
        Ok(this)
    }

    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode_into(text, add_special_tokens, &mut ids);
        ids
    }

    pub(super) fn encode_pair(
        &self,
        first: &str,
        second: &str,
        truncation: Option<Truncation>,
    ) -> (Vec<u32>, Vec<u32>) {
        // Encoding a pair, like encoding a text, never fails after the probes at load.
        let encoded = match truncation {
            None => self.inner.encode_fast((first, second), true),
            Some(truncation) => self.encode_cut([first, second], truncation),
        };
        encoded.map_or_else(
            |_| (Vec::new(), Vec::new()),
            |of| (of.get_ids().to_vec(), of.get_type_ids().to_vec()),
        )
    }

    /// Encodes a pair as the reference does by a truncation of its own, which is one for all threads.
    fn encode_cut(
        &self,
        texts: [&str; 2],
        truncation: Truncation,
    ) -> tokenizers::Result<tokenizers::Encoding> {
        let added = { self.inner.get_post_processor() }.map_or(0, |of| of.added_tokens(true));
        let params = tokenizers::TruncationParams {
            max_length: truncation.max_length.saturating_sub(added),
            strategy: match truncation.strategy {
                TruncationStrategy::LongestFirst => tokenizers::TruncationStrategy::LongestFirst,
                TruncationStrategy::OnlyFirst => tokenizers::TruncationStrategy::OnlyFirst,
                TruncationStrategy::OnlySecond => tokenizers::TruncationStrategy::OnlySecond,
            },
            direction: match truncation.side {
                Side::Left => tokenizers::TruncationDirection::Left,
                Side::Right => tokenizers::TruncationDirection::Right,
            },
            stride: truncation.stride,
        };
        let [first, second] = texts.map(|text| self.inner.encode_fast(text, false));
        let (first, mut second) = (first?, second?);
        second.set_type_ids(vec![1; second.len()]);
        let (first, second) = tokenizers::truncate_encodings(first, Some(second), &params)?;
        self.inner.post_process(first, second, true)
    }

    pub(super) fn encode_into(&self, text: &str, add_special_tokens: bool, out: &mut Vec<u32>) {
        // Never fails after the probes at load. If it does, there are no ids, and a prompt of no
        // tokens is refused.
        if let Ok(encoding) = self.inner.encode_fast(text, add_special_tokens) {
            out.extend_from_slice(encoding.get_ids());
        }
    }

    pub(super) fn count(&self, text: &str, add_special_tokens: bool) -> usize {
        self.inner
            .encode_fast(text, add_special_tokens)
            .map_or(0, |encoding| encoding.len())
    }

    pub(super) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let text = self.inner.decode(ids, skip_special_tokens);
        text.unwrap_or_default()
    }

    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.added.get(&id).is_some_and(|(_, special)| *special)
    }

    pub(super) fn id_to_piece(&self, id: u32) -> Option<Vec<u8>> {
        if let Some((content, _)) = self.added.get(&id) {
            return Some(content.clone().into_bytes());
        }
        let token = self.inner.id_to_token(id)?;
        Some(match &self.spelling {
            Spelling::ByteLevel(alphabet) => {
                let bytes = token.chars().map(|c| alphabet.get(&c).copied());
                let bytes: Option<Vec<u8>> = bytes.collect();
                bytes.unwrap_or_else(|| token.into_bytes())
            }
            Spelling::Decoded { anchor, bytes } => match byte_token(&token) {
                Some(byte) if *bytes => vec![byte],
                _ => self.behind(anchor.as_ref(), id).into_bytes(),
            },
        })
    }

    /// Returns the text of `id` behind the anchor.
    fn behind(&self, anchor: Option<&(u32, String)>, id: u32) -> String {
        let within = anchor.and_then(|(anchor, before)| {
            let text = self.decode(&[*anchor, id], false);
            text.strip_prefix(&**before).map(str::to_owned)
        });
        within.unwrap_or_else(|| self.decode(&[id], false))
    }

    /// Returns a token of letters, which no decoder changes for what follows.
    fn find_anchor(&self) -> Option<(u32, String)> {
        let ids = 0..u32::try_from(self.inner.get_vocab_size(false)).unwrap_or(u32::MAX);
        let mut tokens = ids.filter(|id| !self.added.contains_key(id));
        tokens.find_map(|id| {
            let text = self.decode(&[id], false);
            let letters = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic());
            letters.then_some((id, text))
        })
    }
}

/// Returns true if a component, or a part of its sequence, has this type.
fn names(component: &serde_json::Value, wanted: &str) -> bool {
    component["type"] == wanted
        || component["decoders"]
            .as_array()
            .is_some_and(|parts| parts.iter().any(|part| names(part, wanted)))
}

/// Returns the byte of a token such as `<0x41>`.
fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2)
        .then(|| u8::from_str_radix(hex, 16).ok())
        .flatten()
}

/// Returns the byte-level alphabet of GPT-2: printable Latin-1 stands for itself, the other bytes
/// for the characters from U+0100 on.
fn alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~') || (byte >= 0xA1 && byte != 0xAD);
    let (plain, rest): (Vec<u8>, Vec<u8>) = (0..=u8::MAX).partition(|&byte| printable(byte));
    let plain = plain.into_iter().map(|byte| (char::from(byte), byte));
    plain.chain(('\u{100}'..).zip(rest)).collect()
}

/// Decodes ids as they arrive. Each id gives the text that it adds to the text of the ids before
/// it, unless that text ends in an unfinished character.
#[derive(Debug)]
pub struct Stream {
    skip_special_tokens: bool,
    /// The tokens written last, which decide how the next ones decode, and those held back.
    window: Vec<u32>,
    /// The number of these tokens that are written.
    written: usize,
}

/// Tokens that may be held back: characters have up to four bytes, but a text of invalid bytes
/// has no end of them.
const HELD_MAX: usize = 64;

impl Stream {
    pub(super) fn new(skip_special_tokens: bool) -> Self {
        Self {
            skip_special_tokens,
            window: Vec::new(),
            written: 0,
        }
    }

    pub(super) fn push(&mut self, tokenizer: &Reference, id: u32, out: &mut String) {
        self.window.push(id);
        let full = self.window.len() - self.written > HELD_MAX;
        let (before, now) = self.texts(tokenizer);
        if full || (now.len() > before.len() && !now.ends_with(char::REPLACEMENT_CHARACTER)) {
            out.push_str(added(&before, &now));
            self.window.drain(..self.written);
            self.written = self.window.len();
        }
    }

    pub(super) fn finish(&mut self, tokenizer: &Reference, out: &mut String) {
        let (before, now) = self.texts(tokenizer);
        out.push_str(added(&before, &now));
        self.window.clear();
        self.written = 0;
    }

    fn texts(&self, tokenizer: &Reference) -> (String, String) {
        let text = |ids| tokenizer.decode(ids, self.skip_special_tokens);
        (text(&self.window[..self.written]), text(&self.window))
    }
}

/// Returns the text that `now` has beyond `before`. A decoder that cleans up spaces may change the
/// end of text that is already written, which cannot be taken back.
fn added<'t>(before: &str, now: &'t str) -> &'t str {
    now.strip_prefix(before).unwrap_or_else(|| {
        let common = before.chars().zip(now.chars()).take_while(|(a, b)| a == b);
        let common: usize = common.map(|(a, _)| a.len_utf8()).sum();
        &now[common..]
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::DEMO_TOKENIZER;

    const TEXTS: [&str; 8] = [
        "Where is my card? I ordered it 2 weeks ago.",
        "pay 5 € <|im_end|>\n\n  déjà vu",
        "👍👍🏽 中文字符 עברית",
        "\u{1}\u{e000}\u{e0fff}",
        "<think>\n\n</think>\n\n<tool_call>",
        "   leading and trailing   ",
        "x",
        "",
    ];

    fn load(json: &Value) -> Reference {
        Reference::from_bytes(json.to_string().as_bytes()).unwrap()
    }

    fn streamed(tokenizer: &Reference, ids: &[u32], skip_special_tokens: bool) -> String {
        let mut stream = Stream::new(skip_special_tokens);
        let mut text = String::new();
        for &id in ids {
            stream.push(tokenizer, id, &mut text);
        }
        stream.finish(tokenizer, &mut text);
        text
    }

    /// On a file that both can serve, the two agree call by call.
    #[test]
    fn the_reference_does_what_fasttoken_does() {
        let reference = Reference::from_bytes(DEMO_TOKENIZER).unwrap();
        let fast = fasttoken::Tokenizer::from_bytes(DEMO_TOKENIZER).unwrap();
        for text in TEXTS {
            let ids = fast.encode(text, true);
            assert_eq!(reference.encode(text, true), ids, "{text:?}");
            assert_eq!(reference.count(text, true), ids.len());
            for skip in [false, true] {
                assert_eq!(reference.decode(&ids, skip), fast.decode(&ids, skip));
                assert_eq!(streamed(&reference, &ids, skip), fast.decode(&ids, skip));
            }
        }
        for id in 0..4100 {
            let piece = fast.id_to_piece(id).map(<[u8]>::to_vec);
            assert_eq!(reference.id_to_piece(id), piece, "{id}");
            assert_eq!(reference.is_special(id), fast.is_special(id), "{id}");
        }
        assert_eq!(
            reference.token_to_id("<|im_end|>"),
            fast.token_to_id("<|im_end|>")
        );
    }

    /// Pairs with their types, whole and cut, with and without a template of special tokens.
    #[test]
    fn pairs_are_cut_as_fasttoken_cuts_them() {
        let mut templated: Value = serde_json::from_slice(DEMO_TOKENIZER).unwrap();
        let special = |kind: u32| json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": kind}});
        let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
        templated["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [text("A", 0), special(0)],
            "pair": [text("A", 0), special(0), text("B", 1), special(1)],
            "special_tokens": {
                "<|endoftext|>": {"id": "<|endoftext|>", "ids": [4064], "tokens": ["<|endoftext|>"]},
            },
        });
        for file in [DEMO_TOKENIZER.to_vec(), templated.to_string().into_bytes()] {
            let reference = Reference::from_bytes(&file).unwrap();
            let (fast, _) = super::super::Tokenizer::from_bytes(&file).unwrap();
            let words = "Where is my new card now ".repeat(4);
            for (a, b) in [("a card", &*words), (&*words, "it"), (&*words, &*words)] {
                let whole = fast.encode_pair(a, b, None);
                assert_eq!(reference.encode_pair(a, b, None), whole);
                for (keep, side) in [(5, Side::Right), (12, Side::Left), (13, Side::Right)] {
                    let cut = Some(Truncation::new(keep).side(side));
                    let expected = fast.encode_pair(a, b, cut);
                    assert_eq!(expected.0.len(), keep);
                    assert_eq!(
                        reference.encode_pair(a, b, cut),
                        expected,
                        "{keep} {side:?}"
                    );
                }
            }
        }
    }

    /// A text of invalid bytes is written in the end, without holding back more than a bound.
    #[test]
    fn invalid_bytes_are_not_held_for_ever() {
        let reference = Reference::from_bytes(DEMO_TOKENIZER).unwrap();
        let first = (0..256)
            .find(|&id| reference.id_to_piece(id) == Some(vec![0xf0]))
            .unwrap();
        let mut stream = Stream::new(false);
        let mut text = String::new();
        for _ in 0..1000 {
            stream.push(&reference, first, &mut text);
            assert!(stream.window.len() <= 2 * (HELD_MAX + 1));
        }
        stream.finish(&reference, &mut text);
        assert_eq!(text, "\u{fffd}".repeat(1000));
    }

    fn unigram(byte_fallback: bool) -> Value {
        let mut vocab = vec![json!(["<unk>", 0.0])];
        for piece in ["▁card", "▁my", "s", "▁", "c", "a", "r", "d", "m", "y"] {
            vocab.push(json!([piece, -1.0 - vocab.len() as f64]));
        }
        if byte_fallback {
            vocab.extend((0..=255_u8).map(|byte| json!([format!("<0x{byte:02X}>"), -99.0])));
        }
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
            "split": true});
        let decoders = json!([{"type": "ByteFallback"}, metaspace]);
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": metaspace, "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab,
                "byte_fallback": byte_fallback},
        })
    }

    /// Pieces within a text are its bytes; only what the decoder strips at its begin is missing.
    #[test]
    fn pieces_of_other_families_join_to_the_text() {
        let tokenizer = load(&unigram(true));
        for text in ["my cards", "card € 5 my", "my 中"] {
            let ids = tokenizer.encode(text, false);
            let pieces = ids
                .iter()
                .flat_map(|&id| tokenizer.id_to_piece(id).unwrap());
            assert_eq!(
                String::from_utf8(pieces.collect()).unwrap(),
                format!(" {text}")
            );
            assert_eq!(tokenizer.decode(&ids, false), text);
            assert_eq!(streamed(&tokenizer, &ids, false), text);
        }
    }

    #[test]
    fn a_file_that_cannot_encode_every_text_is_refused() {
        let mut file = unigram(false);
        file["model"]["unk_id"] = Value::Null;
        let refused = Reference::from_bytes(file.to_string().as_bytes()).unwrap_err();
        assert!(refused.contains("cannot encode"), "{refused}");
    }

    #[test]
    fn a_file_that_makes_ids_random_is_refused() {
        let mut file: Value = serde_json::from_slice(DEMO_TOKENIZER).unwrap();
        file["model"]["dropout"] = json!(0.1);
        let refused = Reference::from_bytes(file.to_string().as_bytes()).unwrap_err();
        assert!(refused.contains("dropout"), "{refused}");
    }

    /// Padding and truncation of a file are for training and change nothing here.
    #[test]
    fn the_files_own_padding_and_truncation_are_left_out() {
        let mut file: Value = serde_json::from_slice(DEMO_TOKENIZER).unwrap();
        file["padding"] = json!({"strategy": {"Fixed": 32}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
        file["truncation"] = json!({"direction": "Right", "max_length": 2,
            "strategy": "LongestFirst", "stride": 0});
        let plain = Reference::from_bytes(DEMO_TOKENIZER).unwrap();
        for text in TEXTS {
            assert_eq!(load(&file).encode(text, true), plain.encode(text, true));
        }
    }
}
