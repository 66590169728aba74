//! The tokens of the few words of a short text.
//!
//! What the pipeline of [`super::words`] costs before the first and after the last of its
//! groups is more than that many words take one by one, with a branch on what each is.

use super::{Bpe, Scratch};
use crate::cache::{Cache, MANY, SHORT_TOKENS};
use crate::compare::Scalar;
use crate::pretokenize::Words;
use crate::vocab::Vocab;
use crate::words::Key;

/// Most words that go this way: 12 to 16 of them take as long as in the pipeline.
pub(super) const FEW_WORDS: usize = 8;

/// A word, and what is known of it.
#[derive(Debug, Clone, Copy)]
struct Probe {
    key: Key,
    hash: u64,
    /// Its tokens and their number, or what is in place of that.
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
    /// [`Bpe::encode_words`] for up to [`FEW_WORDS`].
    pub(super) fn encode_few(
        &self,
        words: &Words<'_>,
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
        let mut probes = [Probe::default(); FEW_WORDS];
        let mut start = words.start;
        for (probe, &end) in probes.iter_mut().zip(words.ends) {
            probe.key = Key::new(bytes, start, end);
            probe.hash = probe.key.hash();
            cache.prefetch(probe.hash);
            start = end;
        }
        for probe in &mut probes[..words.ends.len()] {
            let wanted = Cache::wanted(self.owner, probe.key, probe.hash);
            let (four, tokens) = cache.first::<Scalar>(&wanted);
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
                *tokens = cache.further::<Scalar>(self.owner, &self.words, *key, *hash, four);
            }
            if usize::from(*tokens) > SHORT_TOKENS {
                if (*tokens == MANY || key.is_none()) && self.encode_known(word, cache, out) {
                    continue;
                }
                let rest = (&mut *cache, &mut *merging, &mut *ids);
                self.encode_rare(word, (*key, *hash), vocab, rest, out);
                continue;
            }
            // Without a call to copy so few.
            for id in &four[..usize::from(*tokens) % 4] {
                out.push(*id);
            }
        }
    }
}
