//! Places at which a text can be cut without changing the ids before the cut.
//!
//! An encode with a limit of ids encodes a prefix of the text that ends at such a place, and a
//! longer prefix only if the first was too short. Normalizing, searching for added tokens and
//! splitting then cost as much as the ids that are kept, instead of as much as the text.
//!
//! A cut is safe before
//! - a space between a printing ASCII character and an ASCII letter, and
//! - common punctuation of Chinese and Japanese after an ideograph or kana.
//!
//! Proof, for the patterns of [`Grammar`], which are the only ones that are cut:
//!
//! - *Nothing matches across the cut.* A pattern matches a space only as the first character of a
//!   match or inside a run of blanks, and the character before the cut is no blank; so a match that
//!   begins before the space does not contain it. The ideograph is a letter, and no alternative takes
//!   punctuation after a letter (but the apostrophe of contractions); so a match with the ideograph
//!   does not contain the punctuation. The text that DeepSeek's patterns leave between matches has no
//!   spaces, ideographs or punctuation.
//!
//! - *No match before the cut looks beyond it.* Runs end at the cut as they would at the end of the
//!   text. `\s+(?!\S)` looks one character past a run of blanks, which ends before the cut.
//!
//! - *Normal forms do not change across the cut.* The character after the cut is a starter that
//!   composes with nothing before it. ASCII stays ASCII, and compatibility forms of the punctuation
//!   are punctuation.
//!
//! - *No added token is cut in two.* [`cuts_are_safe`] refuses added tokens that contain such a
//!   place, or a normal form of one: the kana may become a kana and a mark, and the punctuation that
//!   of ASCII.
//!
//! [`Grammar`]: crate::scan::Grammar

use crate::added::AddedTokens;
use crate::pretokenize::PreTokenizer;

/// The size of the smallest window: a few words hold a cut, and encoding them costs little.
const WINDOW_BYTES_MIN: usize = 256;
/// The bytes per id that most texts stay below, so that one window is mostly enough.
const BYTES_PER_ID: usize = 8;
/// The ratio of the sizes of successive windows. Text that is encoded in vain adds up to a third.
const GROWTH: usize = 4;

/// Punctuation of Chinese and Japanese, followed by its forms under NFKC and NFKD.
const PUNCTUATION: [char; 12] = [
    '。', '，', '、', '！', '？', '；', '：', ',', '!', '?', ';', ':',
];
/// The number of entries of `PUNCTUATION` that are not normalized forms.
const WIDE: usize = 7;

/// Returns true if texts can be cut with this pre-tokenizer and these added tokens.
pub(crate) fn cuts_are_safe(pre_tokenizer: &PreTokenizer, added: &AddedTokens) -> bool {
    let contents = added.tokens.iter().map(|(_, token)| &token.content);
    let mut contents = contents.chain(added.normalized_forms.values());
    pre_tokenizer.uses_known_grammars() && !contents.any(|content| may_cross_cut(content))
}

/// Growing prefixes of a text, each of which ends at a safe cut; the last one is the text.
#[derive(Debug)]
pub(crate) struct Windows<'t> {
    text: &'t str,
    size: usize,
    done: bool,
}

impl<'t> Windows<'t> {
    /// Creates windows for `max_ids` ids of `text`. Without `safe_cuts`, the text is the only window.
    pub(crate) fn new(safe_cuts: bool, text: &'t str, max_ids: usize) -> Self {
        let size = if safe_cuts {
            max_ids.saturating_mul(BYTES_PER_ID).max(WINDOW_BYTES_MIN)
        } else {
            usize::MAX
        };
        Self::with_size(text, size)
    }

    fn with_size(text: &'t str, size: usize) -> Self {
        Self {
            text,
            size,
            done: false,
        }
    }
}

impl<'t> Iterator for Windows<'t> {
    /// The window, and true if it is the whole text.
    type Item = (&'t str, bool);

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        while self.size < self.text.len() {
            let size = self.size;
            self.size = size.saturating_mul(GROWTH);
            // A window less than half as long as it may be is not worth its time.
            if let Some(end) = last_cut(self.text, size / 2, size) {
                return Some((&self.text[..end], false));
            }
        }
        self.done = true;
        Some((self.text, true))
    }
}

/// Returns the last safe cut in `from..to`.
fn last_cut(text: &str, from: usize, to: usize) -> Option<usize> {
    (from.max(1)..to.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at) && is_cut(text, at))
}

fn is_cut(text: &str, at: usize) -> bool {
    let (before, after) = (&text.as_bytes()[..at], &text.as_bytes()[at..]);
    match (before, after) {
        ([.., previous], [b' ', next, ..]) => {
            previous.is_ascii_graphic() && next.is_ascii_alphabetic()
        }
        _ => is_wide_pair(text, at),
    }
}

/// Returns true if `at` is between an ideograph or kana and punctuation.
fn is_wide_pair(text: &str, at: usize) -> bool {
    let (before, after) = text.split_at(at);
    let previous = before.chars().next_back();
    let next = after.chars().next();
    matches!(
        previous,
        Some('\u{4E00}'..='\u{9FA5}' | 'ぁ'..='ゖ' | 'ァ'..='ヺ')
    ) && next.is_some_and(|next| PUNCTUATION[..WIDE].contains(&next))
}

/// Returns true if a token with this content could reach across a safe cut. The character after a
/// space is ignored, because it may be outside of the token.
fn may_cross_cut(content: &str) -> bool {
    let bytes = content.as_bytes();
    let space = bytes
        .windows(2)
        .any(|pair| pair[0].is_ascii_graphic() && pair[1] == b' ');
    let chars = content.chars();
    let mut pairs = chars.clone().zip(chars.skip(1));
    space || pairs.any(|(previous, next)| !previous.is_ascii() && PUNCTUATION.contains(&next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;
    use serde_json::{Value, json};

    #[test]
    fn windows_grow_to_the_text() {
        let text = "one two  three four.\nfive 中文，six seven";
        let windows: Vec<_> = Windows::with_size(text, 5).collect();
        assert_eq!(
            windows,
            [("one", false), ("one two  three", false), (text, true)]
        );
        let empty: Vec<_> = Windows::with_size("", 5).collect();
        assert_eq!(empty, [("", true)]);
    }

    #[test]
    fn cuts_are_where_the_proof_says() {
        let cuts = |text: &str| -> Vec<usize> {
            let cut = |at: &usize| last_cut(text, *at, *at + 1) == Some(*at);
            (0..=text.len()).filter(cut).collect()
        };
        assert_eq!(cuts("a b  c d"), [1, 6]);
        assert_eq!(cuts("a 1 \n x"), [0; 0]);
        assert_eq!(cuts("é x"), [0; 0]);
        assert_eq!(cuts("中，文。"), [3, 9]);
        assert_eq!(cuts("，，"), [0; 0]);
        assert!(may_cross_cut("a "));
        assert!(may_cross_cut("x中，"));
        // What NFKC and NFD make of pairs before which a text is cut.
        assert!(may_cross_cut("中,"));
        assert!(may_cross_cut("\u{3099}，"));
        assert!(!may_cross_cut("，"));
        assert!(!may_cross_cut("<|im_start|>"));
        assert!(!may_cross_cut("  "));
    }

    /// The proof on random texts: the ids of a text begin with the ids of the text before each cut.
    #[test]
    fn ids_before_a_cut_do_not_depend_on_what_follows() {
        use crate::scan::{CL100K, DEEPSEEK3, GPT2, O200K, QWEN2};
        let demo: Value = serde_json::from_slice(include_bytes!("../tests/data/tokenizer.json"))
            .expect("the demo is JSON");
        let mut seed = 1u64;
        let mut below = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        let parts = [
            "a", "B", "1", "'", "'s", "!", "<", "<x>", "é", "ōx", "\u{301}", "\u{3099}",
            "\u{FF9E}", "中", "か", "ヺ", "，", "。", "：", "、", " ", " ", " ", "  ", "\n", "\t",
            "\u{A0}", "\u{3000}", "x y", "of", "中，", "/", "\0",
        ];
        let mut cuts = 0;
        for (patterns, form) in [
            (&[GPT2][..], "NFC"),
            (&[QWEN2], "NFKC"),
            (&[CL100K], "NFD"),
            (&[O200K], "NFKD"),
            (&[O200K], "NFC"),
            (&DEEPSEEK3, "NFC"),
            (&DEEPSEEK3, "NFKD"),
        ] {
            for (contents, flag) in [
                (["<x>", "a"], "rstrip"),
                (["<x>", "of"], "lstrip"),
                (["a", "<x>"], "single_word"),
                (["ōx", "a"], "normalized"),
                (["B ", "中，"], "special"),
                (["中,", "\u{3099}，"], "normalized"),
            ] {
                let mut json = demo.clone();
                json["normalizer"] = json!({"type": form});
                let mut steps = demo["pre_tokenizer"]["pretokenizers"].clone();
                let steps = steps.as_array_mut().unwrap();
                let split = steps.remove(0);
                for pattern in patterns.iter().rev() {
                    let mut split = split.clone();
                    split["pattern"]["Regex"] = json!(pattern);
                    steps.insert(0, split);
                }
                json["pre_tokenizer"]["pretokenizers"] = json!(steps);
                for content in contents {
                    let mut token = json["added_tokens"][0].clone();
                    token["content"] = json!(content);
                    token[flag] = json!(true);
                    json["added_tokens"].as_array_mut().unwrap().push(token);
                }
                let json = serde_json::to_vec(&json).unwrap();
                let tokenizer = Tokenizer::from_bytes(&json).unwrap();
                let cut = contents.iter().any(|content| may_cross_cut(content));
                assert_eq!(tokenizer.family.has_safe_cuts(), !cut);
                for _ in 0..2_000 {
                    let text: String = (0..below(14)).map(|_| parts[below(parts.len())]).collect();
                    let all = tokenizer.encode(&text, false);
                    for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
                        if tokenizer.family.has_safe_cuts() && at > 0 && is_cut(&text, at) {
                            let before = tokenizer.encode(&text[..at], false);
                            assert!(all.starts_with(&before), "{at} of {text:?} with {flag}");
                            cuts += 1;
                        }
                    }
                }
            }
        }
        assert!(cuts > 10_000, "{cuts}");
    }
}
