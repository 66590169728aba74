//! The vocabulary and the merges of a file's model, apart from the rest of the file.

use super::quick::Scanner;
use std::ops::Range;

/// Reads the vocabulary and the merges of a model. Returns the file with both left empty as well.
pub(crate) fn read_model<'a, V, M>(
    json: &'a [u8],
    mut read_vocab: impl FnMut(&mut Scanner<'a>) -> Option<V>,
    mut read_merges: impl FnMut(&mut Scanner<'a>, &V) -> Option<M>,
) -> Option<(Vec<u8>, V, M)> {
    let mut scanner = Scanner::new(json);
    let (mut vocab, mut merges) = (None, None);
    let mut cuts: Vec<(Range<usize>, &[u8])> = Vec::new();
    scanner.map(|scanner, key| {
        if key != b"model" {
            return scanner.skip();
        }
        scanner.map(|scanner, key| {
            scanner.peek()?;
            let start = scanner.at();
            match key {
                b"vocab" if vocab.is_none() => {
                    vocab = Some(read_vocab(scanner)?);
                    cuts.push((start..scanner.at(), b"{}"));
                }
                // Rules before their tokens are unusual.
                b"merges" if merges.is_none() => {
                    merges = Some(read_merges(scanner, vocab.as_ref()?)?);
                    cuts.push((start..scanner.at(), b"[]"));
                }
                _ => scanner.skip()?,
            }
            Some(())
        })
    })?;
    let mut config = Vec::new();
    let mut from = 0;
    for (cut, instead) in cuts {
        config.extend_from_slice(&json[from..cut.start]);
        config.extend_from_slice(instead);
        from = cut.end;
    }
    config.extend_from_slice(&json[from..]);
    Some((config, vocab?, merges?))
}
