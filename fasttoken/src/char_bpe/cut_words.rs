//! The words of a text: what stands between places that no rule joins.
//!
//! Words are looked up and cached whole, so a place is looked for where words of a language end:
//! before a space, and before a clause of Chinese or Japanese, which is cut further when it is merged.

use super::CharBpe;
use super::spelling::push_swapped;
use crate::bpe::{ThreadScratch, is_clause};
use crate::pretokenize::PreTokens;
use crate::scan::ENDS;

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
        let mut in_clause = is_clause(&bytes[start..]);
        for at in start + 1..bytes.len() {
            let byte = bytes[at];
            if byte & 0xC0 == 0x80 {
                continue;
            }
            let is_end = if byte == b' ' {
                in_clause = false;
                bytes[at - 1] != b' '
            } else {
                let before = in_clause;
                in_clause = is_clause(&bytes[at..]);
                in_clause != before
            };
            if is_end && !self.joins_at(text, at) {
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
