//! Encoding of short texts, one word after the other.
//!
//! The pipeline of [`super::pipeline`] has a fixed cost before its first and after its last group
//! of words. For a few words it exceeds the cost of encoding each word alone, with branches on how
//! the word was found.

use super::{Bpe, Scratch};
use crate::cache::{Cache, MANY_TOKENS, SHORT_TOKENS};
use crate::compare::Scalar;
use crate::pretokenize::PreTokens;
use crate::short_tokens::Key;
use crate::vocab::Vocab;

/// The largest number of words that are encoded one by one. The pipeline breaks even at 12 to 16
/// words.
pub(super) const SHORT_TEXT_WORDS: usize = 8;

/// A word with its cache lookup result.
#[derive(Debug, Clone, Copy)]
struct Probe {
    key: Key,
    hash: u64,
    /// The tokens of the word if `tokens` is at most [`SHORT_TOKENS`]; otherwise any values.
    four: [u32; 4],
    tokens: u8,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            key: Key::NONE,
            hash: 0,
            four: [0; 4],
            tokens: 0,
        }
    }
}

impl Bpe {
    /// Does the work of [`Bpe::encode_words`] for up to [`SHORT_TEXT_WORDS`] words.
    pub(super) fn encode_short_text(
        &self,
        words: &PreTokens<'_>,
        vocab: &Vocab,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        let bytes = words.text.as_bytes();
        let Scratch {
            cache,
            merging,
            ids,
            ..
        } = scratch;
        let cache: &mut Cache = cache;
        let mut probes = [Probe::default(); SHORT_TEXT_WORDS];
        let mut start = words.start;
        for (probe, &end) in probes.iter_mut().zip(words.ends) {
            probe.key = Key::new(bytes, start, end);
            probe.hash = probe.key.hash();
            cache.prefetch(probe.hash);
            start = end;
        }
        for probe in &mut probes[..words.ends.len()] {
            let wanted = Cache::probe(self.owner, probe.key, probe.hash);
            let (four, tokens) = cache.find_in_home::<Scalar>(&wanted);
            (probe.four, probe.tokens) = (*four, tokens as u8);
            if tokens > SHORT_TOKENS {
                cache.prefetch_other(probe.hash);
                self.words.prefetch(self.words.home(probe.hash));
            }
        }
        let mut added = words.tokens;
        let mut start = words.start;
        for (n, (&end, probe)) in words.ends.iter().zip(&mut probes).enumerate() {
            let word = &bytes[start..end];
            start = end;
            if let Some(((word, id), rest)) = added.split_first()
                && *word == n
            {
                out.push(*id);
                added = rest;
                continue;
            }
            let Probe {
                key,
                hash,
                four,
                tokens,
            } = probe;
            if usize::from(*tokens) > SHORT_TOKENS {
                *tokens =
                    cache.find_elsewhere::<Scalar>(self.owner, &self.words, *key, *hash, four);
            }
            if usize::from(*tokens) > SHORT_TOKENS {
                if (*tokens == MANY_TOKENS || key.is_none()) && self.encode_cached(word, cache, out)
                {
                    continue;
                }
                let rest = (&mut *cache, &mut *merging, &mut *ids);
                self.encode_uncached(word, (*key, *hash), vocab, rest, out);
                continue;
            }
            // A loop, since a call to copy so few tokens takes longer.
            for id in &four[..usize::from(*tokens) % 4] {
                out.push(*id);
            }
        }
    }
}
