//! Encoding of many prompts that begin alike, in which the common beginning is encoded once.
//!
//! The ids of a prompt are those of the *whole* prompt; parts encoded apart may differ from it.
//! But some tokenizers provably never join what lies on both sides of certain places, and there a
//! prompt can be cut. The proof is for byte-level BPE behind the split pattern of the Qwen2, Qwen3
//! and Llama 3 families:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! - *A newline, then an ASCII letter.* No alternative has a letter after a newline, so no match
//!   spans the place. What is matched before it is the same without the letter: the only
//!   look-ahead, `(?!\S)`, stands in an alternative that is tried after `\s*[\r\n]+`, which takes
//!   every run of white space that ends in a newline.
//! - *An ASCII letter, then a space.* Behind a letter an alternative can only go on with letters.
//!
//! The pattern has no look-behind, so what follows the place is matched as if it stood alone. NFC
//! composes nothing with a preceding ASCII character's right neighbour if that neighbour is ASCII
//! too. Added tokens are looked for before the split; none may contain or swallow white space.

use prelude_core::{NodeIdx, PromptTree, TokenId, TreeError};
use serde::Deserialize;

const QWEN_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The knowledge of where a tokenizer's texts may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SafeCuts {
    /// The proof in the module documentation holds.
    Proven,
    /// No safe place is known: every prompt is encoded whole.
    Unknown,
}

impl SafeCuts {
    /// Checks that a `tokenizer.json` has exactly the structure that the proof is about.
    #[must_use]
    pub fn of(tokenizer_json: &[u8]) -> Self {
        match serde_json::from_slice::<TokenizerFile>(tokenizer_json) {
            Ok(file) if file.is_proven() => Self::Proven,
            _ => Self::Unknown,
        }
    }

    /// Returns the last safe place strictly inside the first `limit` bytes of `text`.
    fn last_before(self, text: &str, limit: usize) -> Option<usize> {
        if self == Self::Unknown {
            return None;
        }
        let bytes = text.as_bytes();
        (1..limit.min(bytes.len())).rev().find(|&at| {
            let (left, right) = (bytes[at - 1], bytes[at]);
            (left == b'\n' && right.is_ascii_alphabetic())
                || (left.is_ascii_alphabetic() && right == b' ')
        })
    }
}

/// The part of `tokenizer.json` that the proof looks at.
#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Typed>,
    pre_tokenizer: PreTokenizer,
    model: Typed,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

#[derive(Deserialize)]
struct Typed {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct PreTokenizer {
    pretokenizers: (Split, ByteLevel),
}

#[derive(Deserialize)]
struct Split {
    pattern: Pattern,
    behavior: String,
    invert: bool,
}

#[derive(Deserialize)]
struct Pattern {
    #[serde(rename = "Regex")]
    regex: String,
}

#[derive(Deserialize)]
struct ByteLevel {
    #[serde(rename = "type")]
    kind: String,
    add_prefix_space: bool,
    use_regex: bool,
}

impl TokenizerFile {
    fn is_proven(&self) -> bool {
        let (split, bytes) = &self.pre_tokenizer.pretokenizers;
        let plain = |t: &AddedToken| {
            !t.lstrip && !t.rstrip && !t.single_word && !t.content.contains(char::is_whitespace)
        };
        let kind = |t: &Typed, wanted: &str| t.kind.as_deref() == Some(wanted);
        [QWEN_PATTERN, LLAMA3_PATTERN].contains(&split.pattern.regex.as_str())
            && split.behavior == "Isolated"
            && !split.invert
            && bytes.kind == "ByteLevel"
            && !bytes.add_prefix_space
            && !bytes.use_regex
            && self.normalizer.as_ref().is_none_or(|n| kind(n, "NFC"))
            && kind(&self.model, "BPE")
            && self.added_tokens.iter().all(plain)
    }
}

/// Most times that a common beginning becomes shorter: each time it is encoded again.
const SHORTER_MAX: usize = 4;

/// The token ids of several prompts, whose common beginning is kept once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPrompts {
    prefix: Vec<TokenId>,
    prompts: Vec<Encoded>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Encoded {
    after_prefix: bool,
    tokens: Vec<TokenId>,
}

impl SharedPrompts {
    /// Encodes `texts`, which are read one at a time. Their common beginning, up to a safe place, is
    /// encoded once: that of the first two, which becomes shorter where a later text parts from it
    /// earlier, four times at most.
    ///
    /// `encode` appends the ids of a text, without special tokens of its own. It is told the index of
    /// the text; the common beginning is the first text's.
    ///
    /// # Errors
    /// The first error of `texts` or `encode`.
    pub fn encode<E>(
        texts: impl IntoIterator<Item = Result<String, E>>,
        cuts: SafeCuts,
        mut encode: impl FnMut(usize, &str, &mut Vec<TokenId>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut texts = texts.into_iter();
        let mut shared = Self::default();
        let Some(first) = texts.next().transpose()? else {
            return Ok(shared);
        };
        let second = texts.next().transpose()?;
        // The cut is safe in a text that has both neighbours of the place.
        let cut_with = |first: &str, text: &str, most: usize| {
            let common = common_prefix(&first.as_bytes()[..most], text.as_bytes());
            cuts.last_before(first, common)
        };
        let mut cut = { second.as_ref() }.and_then(|second| cut_with(&first, second, first.len()));
        if let Some(cut) = cut {
            encode(0, &first[..cut], &mut shared.prefix)?;
        }
        let head = first.clone();
        let rest = [Some(first), second].into_iter().flatten().map(Ok);
        let mut shorter = 0;
        for (index, text) in rest.chain(texts).enumerate() {
            let text = text?;
            let begins = |cut: usize| text.as_bytes().starts_with(&head.as_bytes()[..=cut]);
            if let Some(before) = cut.filter(|&cut| shorter < SHORTER_MAX && !begins(cut))
                && let Some(now) = cut_with(&head, &text, before)
            {
                shared.shorten(&head, [now, before], &mut encode)?;
                (cut, shorter) = (Some(now), shorter + 1);
            }
            let from = cut.filter(|&cut| begins(cut));
            let mut tokens = Vec::new();
            encode(index, &text[from.unwrap_or(0)..], &mut tokens)?;
            shared.prompts.push(Encoded {
                after_prefix: from.is_some(),
                tokens,
            });
        }
        Ok(shared)
    }

    /// Makes the common beginning end at `now`, where it ended at `before` in the first text.
    fn shorten<E>(
        &mut self,
        first: &str,
        [now, before]: [usize; 2],
        mut encode: impl FnMut(usize, &str, &mut Vec<TokenId>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut between = Vec::new();
        encode(0, &first[now..before], &mut between)?;
        self.prefix.clear();
        encode(0, &first[..now], &mut self.prefix)?;
        for prompt in self.prompts.iter_mut().filter(|prompt| prompt.after_prefix) {
            prompt.tokens.splice(..0, between.iter().copied());
        }
        Ok(())
    }

    /// Creates prompts that all begin with `prefix`, which is kept once.
    #[must_use]
    pub fn after(prefix: Vec<TokenId>, suffixes: Vec<Vec<TokenId>>) -> Self {
        let after_prefix = !prefix.is_empty();
        let encoded = |tokens| Encoded {
            after_prefix,
            tokens,
        };
        Self {
            prefix,
            prompts: suffixes.into_iter().map(encoded).collect(),
        }
    }

    /// Returns the number of prompts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prompts.len()
    }

    /// Returns true if there are no prompts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }

    /// Returns the length of each whole prompt, in tokens.
    pub fn lens(&self) -> impl Iterator<Item = usize> {
        self.prompts.iter().map(|p| match p.after_prefix {
            true => self.prefix.len() + p.tokens.len(),
            false => p.tokens.len(),
        })
    }

    /// Returns the whole prompts, in order.
    pub fn into_prompts(self) -> impl Iterator<Item = Vec<TokenId>> {
        let prefix = self.prefix;
        self.prompts.into_iter().map(move |p| match p.after_prefix {
            true => [&prefix, p.tokens.as_slice()].concat(),
            false => p.tokens,
        })
    }

    /// Returns the prompts as a tree, and the node at which each prompt ends.
    ///
    /// # Errors
    /// [`TreeError::EmptyNode`] with the index of an empty prompt; [`TreeError::TooLong`].
    pub fn into_tree(self) -> Result<(PromptTree, Vec<NodeIdx>), TreeError> {
        if let Some(node) = self.lens().position(|len| len == 0) {
            return Err(TreeError::EmptyNode { node });
        }
        let mut tree = PromptTree::new();
        let mut ends = vec![NodeIdx(0); self.prompts.len()];
        for after_prefix in [true, false] {
            let mine = || {
                let all = self.prompts.iter().enumerate();
                all.filter(|(_, p)| p.after_prefix == after_prefix)
            };
            if mine().next().is_none() {
                continue;
            }
            let root = match after_prefix {
                true => Some(tree.push(None, self.prefix.clone())?),
                false => None,
            };
            // A prompt that equals the prefix ends at the root.
            for (index, _) in mine().filter(|(_, p)| p.tokens.is_empty()) {
                ends[index] = root.expect("no whole prompt is empty");
            }
            let (indices, tokens): (Vec<usize>, Vec<&[TokenId]>) = mine()
                .filter(|(_, p)| !p.tokens.is_empty())
                .map(|(i, p)| (i, p.tokens.as_slice()))
                .unzip();
            if indices.is_empty() {
                continue;
            }
            let (suffixes, suffix_ends) = PromptTree::from_prompts(&tokens)?;
            let mut nodes = Vec::with_capacity(suffixes.nodes().len());
            for node in suffixes.nodes() {
                let parent = node.parent.map(|p| nodes[p.index()]).or(root);
                nodes.push(tree.push(parent, node.tokens.clone())?);
            }
            for (index, end) in indices.into_iter().zip(suffix_ends) {
                ends[index] = nodes[end.index()];
            }
        }
        Ok((tree, ends))
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    const TOKENIZER: &[u8] = crate::testing::DEMO_TOKENIZER;

    fn encode(text: &str, out: &mut Vec<TokenId>) -> Result<(), Infallible> {
        use std::sync::LazyLock;
        static TOKENIZER_: LazyLock<fasttoken::Tokenizer> =
            LazyLock::new(|| fasttoken::Tokenizer::from_bytes(TOKENIZER).unwrap());
        TOKENIZER_.encode_into(text, false, out);
        Ok(())
    }

    #[test]
    fn the_proof_covers_the_demo_tokenizer_and_nothing_else() {
        let check = |from: &str, to: &str, expected| {
            let json = std::str::from_utf8(TOKENIZER).unwrap();
            assert!(json.contains(from), "{from}");
            assert_eq!(
                SafeCuts::of(json.replacen(from, to, 1).as_bytes()),
                expected,
                "{to}"
            );
        };
        check("NFC", "NFC", SafeCuts::Proven);
        check("NFC", "NFKC", SafeCuts::Unknown);
        check("\\\\p{N}|", "\\\\p{N}+|", SafeCuts::Unknown);
        check("\"Isolated\"", "\"Removed\"", SafeCuts::Unknown);
        check(
            "\"add_prefix_space\":false",
            "\"add_prefix_space\":true",
            SafeCuts::Unknown,
        );
        check("\"rstrip\":false", "\"rstrip\":true", SafeCuts::Unknown);
        check("<|im_start|>", "<im start>", SafeCuts::Unknown);
        assert_eq!(SafeCuts::of(b"{}"), SafeCuts::Unknown);
    }

    #[test]
    fn a_common_beginning_is_encoded_once() {
        let state = "a long state. ".repeat(100);
        // The first ones have more in common.
        let kind = |i| {
            if i < 10 {
                "a card or"
            } else {
                "an account and"
            }
        };
        let texts = (0..50).map(|i| format!("{state}\n\nQuestion: is it {} {i}?", kind(i)));
        let mut encoded_bytes = 0;
        let shared = SharedPrompts::encode(
            texts.map(Ok::<_, Infallible>),
            SafeCuts::Proven,
            |_, text, out| {
                encoded_bytes += text.len();
                encode(text, out)
            },
        )
        .unwrap();
        assert!(encoded_bytes < 4 * state.len(), "{encoded_bytes}");
        let len: usize = shared.lens().sum();
        let (tree, ends) = shared.into_tree().unwrap();
        assert!(tree.distinct_tokens() < len / 20);
        assert_eq!(ends.len(), 50);
    }

    #[test]
    fn a_given_prefix_is_kept_once() {
        let shared = SharedPrompts::after(vec![1, 2], vec![vec![3], vec![], vec![3, 4]]);
        assert_eq!(shared.lens().collect::<Vec<_>>(), [3, 2, 4]);
        let (tree, ends) = shared.into_tree().unwrap();
        assert_eq!(tree.distinct_tokens(), 4);
        let prompts: Vec<_> = ends.into_iter().map(|end| tree.prompt(end)).collect();
        assert_eq!(prompts, [vec![1, 2, 3], vec![1, 2], vec![1, 2, 3, 4]]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever the texts, the ids are those of each whole text, and the tree is as small as
        /// the one made from whole prompts.
        #[test]
        fn equals_encoding_every_prompt_whole(
            head in "([a-zA-Z' ]{0,6}|[\\n\\r\\t .!?'<|]{0,4}|[0-9é\u{301}ß字👍]{0,3}|<\\|im_end\\|>){0,8}",
            tails in prop::collection::vec("([ \\n]{0,2}[a-zA-Z']{1,4}|[\\n\\r\\t .!?'0-9\u{301}é字]{1,3}|<\\|im_start\\|>){1,4}", 1..6),
        ) {
            let texts: Vec<String> = tails.iter().map(|t| format!("{head}{t}")).collect();
            let mut indices = Vec::new();
            let shared = SharedPrompts::encode(
                texts.iter().cloned().map(Ok),
                SafeCuts::Proven,
                |index, text, out| {
                    indices.push(index);
                    encode(text, out)
                },
            ).unwrap();
            // Each text once, and the common beginning whenever it becomes shorter.
            let others = indices.iter().copied().filter(|&index| index > 0);
            prop_assert!(others.eq(1..texts.len()));
            let firsts = indices.iter().filter(|&&index| index == 0).count();
            prop_assert!((1..=2 + 2 * SHORTER_MAX).contains(&firsts));
            let whole: Vec<Vec<TokenId>> = texts.iter().map(|text| {
                let mut ids = Vec::new();
                encode(text, &mut ids).unwrap();
                ids
            }).collect();
            let lens: Vec<usize> = shared.lens().collect();
            prop_assert_eq!(lens, whole.iter().map(Vec::len).collect::<Vec<_>>());
            let (tree, ends) = shared.into_tree().unwrap();
            for (ids, end) in whole.iter().zip(ends) {
                prop_assert_eq!(&tree.prompt(end), ids);
            }
        }
    }
}
