//! Cached words, and words encoded together and alone.

use super::*;
use crate::{alphabet, vocab};

/// Returns a model whose bytes are their own ids, and whose tokens from 256 on are two, four, eight
/// and sixteen times `a`.
fn model() -> (Bpe, Vocab) {
    let mut builder = vocab::Builder::default();
    let bytes = (0..=255).map(|byte| vec![byte]);
    let runs = (1..5).map(|n| vec![b'a'; 1 << n]);
    for (id, piece) in (0..).zip(bytes.chain(runs)) {
        assert_eq!(builder.add_model(&alphabet::spell(&piece), id), Ok(()));
    }
    let names = builder.index().expect("each token once");
    let vocab = builder.finish(names, 0);
    let a = u32::from(b'a');
    let rules = [
        [a, a, 256],
        [256, 256, 257],
        [257, 257, 258],
        [258, 258, 259],
    ];
    let mut bpe = Bpe::new(
        std::array::from_fn(|byte| byte as u32),
        PairTable::new(&rules),
    );
    let all: Vec<u32> = (0..260).collect();
    let indexed = bpe.index_words(&all, &rules, &vocab, false);
    assert!(indexed.is_ok());
    (bpe, vocab)
}

#[test]
fn words_are_remembered_however_long_they_are_and_however_few_their_tokens() {
    let (bpe, vocab) = model();
    let run = "a".repeat(16);
    let words = [
        ("aab", 2),
        ("abab", 4),
        ("abababab", 8),
        (&*format!("{run}b"), 2),
        (&*format!("{run}bab"), 4),
        (&*format!("{run}babababa"), 9),
    ];
    for (word, tokens) in words {
        let mut scratch = ThreadScratch::default();
        let mut out = Vec::new();
        bpe.encode(word.as_bytes(), &vocab, &mut scratch, &mut out);
        assert_eq!(out.len(), tokens);
        let cache = scratch.get().cache();
        let key = Key::new(word.as_bytes(), 0, word.len());
        let long = LongKey::new(word.as_bytes()).expect("at most 31 bytes");
        let known = match cache.short(bpe.owner, key, key.hash()) {
            Some((four, tokens)) => Some(&four[..tokens]),
            _ => cache.long(bpe.owner, long),
        };
        // There is no room for more than seven.
        assert_eq!(known, (tokens <= 7).then_some(&*out), "{word}");
    }
}

/// Words encoded together give the tokens of words encoded alone.
#[test]
fn words_of_a_text_are_those_that_are_encoded_alone() {
    let (bpe, vocab) = model();
    let mut state = 1u64;
    let mut below = |end: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((state >> 33) % end) as usize
    };
    for count in [1, 3, 20, 64, 65, 300, 2000] {
        let (mut text, mut ends) = (String::new(), Vec::new());
        for _ in 0..count {
            for _ in 0..1 + below(9) {
                text.push_str(["a", "aa", "aaaa", "b", "ж", "漢", "é"][below(7)]);
            }
            ends.push(text.len());
        }
        let words = PreTokens {
            text: &text,
            start: 0,
            ends: &ends,
            base: 0,
            tokens: &[],
        };
        let (mut together, mut alone) = (vec![7], vec![7]);
        let mut scratch = ThreadScratch::default();
        bpe.encode_words(&words, &vocab, &mut scratch, &mut together);
        let mut start = 0;
        for &end in &ends {
            // Not the memory of the other one, which is in use.
            let mut scratch = ThreadScratch::default();
            bpe.encode(
                &text.as_bytes()[start..end],
                &vocab,
                &mut scratch,
                &mut alone,
            );
            start = end;
        }
        assert_eq!(together, alone, "{count} words");
        // All that can be remembered is, and remembered right.
        let mut again = vec![7];
        bpe.encode_words(&words, &vocab, &mut scratch, &mut again);
        assert_eq!(again, alone);
    }
}
