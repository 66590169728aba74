//! Offsets: the ranges of text that ids come from.

use crate::added::Recognise;
use crate::collect::Collected;
use crate::encoding::Encoding;
use crate::tokenizer::Tokenizer;
use crate::truncation::Side;

/// The unit of the offsets of an encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offsets {
    /// No offsets: they are `(0, 0)` and word ids are `None`, which is the fastest.
    None,
    /// Bytes of UTF-8.
    #[default]
    Bytes,
    /// Unicode scalar values.
    Chars,
}

impl Tokenizer {
    /// Encodes one text without a template. Offsets count bytes, and no sequences are set. With a
    /// limit, no more is encoded than the reference encodes.
    ///
    /// The flag says whether the limit was reached, so that more text after this one
    /// would change nothing.
    pub(crate) fn encode_text(
        &self,
        text: &str,
        offsets: Offsets,
        limit: Option<(usize, Side)>,
    ) -> (Encoding, bool) {
        if offsets == Offsets::None && limit.is_none() {
            let mut out = Encoding::default();
            out.ids.reserve(text.len() / 4 + 4);
            self.encode_recognising(text, Recognise::All, &mut out.ids);
            fill(&mut out, offsets);
            return (out, false);
        }
        let wanted = offsets != Offsets::None;
        let mut collected = Collected::new(&self.normalizer, text, wanted);
        collected.trims = wanted && self.post_processor.trims();
        collected.left = matches!(limit, Some((_, Side::Left)));
        if let Some((max, Side::Right)) = limit {
            collected.stop_at = max;
        }
        let flow = self.family.collect(self.text_steps(), text, &mut collected);
        let Collected {
            mut out, starts, ..
        } = collected;
        fill(&mut out, offsets);
        if let Some((max, Side::Left)) = limit {
            keep_right(&mut out, &starts, max);
        }
        (out, flow.is_break())
    }
}

/// Makes all columns as long as the ids.
fn fill(out: &mut Encoding, offsets: Offsets) {
    let len = out.ids.len();
    out.type_ids = vec![0; len];
    out.special_tokens_mask = vec![0; len];
    out.attention_mask = vec![1; len];
    if !matches!(offsets, Offsets::None) {
        debug_assert_eq!(out.offsets.len(), len);
    } else {
        out.offsets = vec![(0, 0); len];
        out.word_ids = vec![None; len];
    }
}

/// Keeps the ids from the last word with which there are at least `max`. `starts` are those of words
/// (`true`) and added tokens.
fn keep_right(out: &mut Encoding, starts: &[(usize, bool)], max: usize) {
    let len = out.ids.len();
    let is_enough = |&(at, is_word): &(usize, bool)| is_word && len - at >= max;
    let Some(first) = starts.iter().rposition(is_enough) else {
        return;
    };
    let at = starts[first].0;
    // The kept ids are a text of their own, whose words count from 0.
    let blanks = out.blanks.split_off(at.min(out.blanks.len()));
    out.cut(std::iter::once(at..len));
    out.blanks = blanks;
    for word in out.word_ids.iter_mut().flatten() {
        *word -= first as u32;
    }
}
