//! The words of a text: what stands between places that no rule joins.
//!
//! Words are looked up and cached whole, so a place is looked for where words of a language end:
//! between characters of two kinds. A clause of Chinese or Japanese is cut further when it is merged.

use super::CharBpe;
use super::spelling::push_swapped;
use crate::bpe::ThreadScratch;
use crate::pretokenize::PreTokens;
use crate::scan::ENDS;

/// The kind of a character by its first byte. Words are cut between characters of two kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Space,
    /// A letter but those of clauses.
    Letter,
    Digit,
    Sign,
    /// A character of a clause of Chinese or Japanese.
    Clause,
    /// A byte inside of a character.
    Inside,
}

const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Sign; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            b' ' => Kind::Space,
            b'0'..=b'9' => Kind::Digit,
            0xE3..=0xE9 | 0xEF => Kind::Clause,
            0x80..=0xBF => Kind::Inside,
            b'a'..=b'z' | b'A'..=b'Z' | 0xC0.. => Kind::Letter,
            _ => Kind::Sign,
        };
        byte += 1;
    }
    kinds
};

impl CharBpe {
    /// Returns true if [`CharBpe::encode_word`] can encode words of this model.
    pub(crate) fn is_simple(&self) -> bool {
        self.complete && self.whole.is_none() && self.engine.has_byte(b' ')
    }

    /// Appends the ids of a word of the usual spelling.
    pub(crate) fn encode_word(&self, word: &str, memory: &mut ThreadScratch, out: &mut Vec<u32>) {
        self.encode_spelled(memory, out, |text| push_swapped(word, text));
    }

    /// Appends the ids of the text that `push` appends in the spelling of texts.
    pub(crate) fn encode_spelled(
        &self,
        memory: &mut ThreadScratch,
        out: &mut Vec<u32>,
        push: impl FnOnce(&mut String),
    ) {
        let scratch = memory.get();
        let mut text = std::mem::take(&mut scratch.spelled);
        let mut buffer = scratch.word_buffer.take().unwrap_or_default();
        text.clear();
        push(&mut text);
        let mut start = 0;
        while start < text.len() {
            let count = self.cut(&text, start, &mut buffer.ends);
            let ends = &buffer.ends[..count];
            let words = PreTokens {
                text: &text,
                start,
                ends,
                base: 0,
                tokens: &[],
            };
            self.engine
                .encode_words(&words, &self.no_words, memory, out);
            start = buffer.ends[count - 1];
        }
        let scratch = memory.get();
        scratch.word_buffer = Some(buffer);
        scratch.spelled = text;
    }

    /// Writes the ends of the words of `text` from byte `start` on, as many as there is room for.
    /// Returns their number, which is not zero.
    fn cut(&self, text: &str, start: usize, ends: &mut [usize; ENDS]) -> usize {
        let bytes = text.as_bytes();
        let mut count = 0;
        let mut last = KINDS[usize::from(bytes[start])];
        for (at, &byte) in bytes.iter().enumerate().skip(start + 1) {
            let kind = KINDS[usize::from(byte)];
            if kind == last || kind == Kind::Inside {
                continue;
            }
            last = kind;
            if !self.joins_at(text, at) {
                ends[count] = at;
                count += 1;
                if count == ENDS {
                    return count;
                }
            }
        }
        ends[count] = bytes.len();
        count + 1
    }

    /// Returns true if some rule may join the characters before and after byte `at`.
    fn joins_at(&self, text: &str, at: usize) -> bool {
        let (left, right) = (text[..at].chars().next_back(), text[at..].chars().next());
        let (Some(left), Some(right)) = (left, right) else {
            return false;
        };
        self.engine.may_join(left.into(), right.into())
    }
}
