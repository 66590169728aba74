//! Invariants of the interface, on strings that proptest makes and shrinks.

use crate::common::small::Small;
use crate::common::{Both, Rng, adversarial};
use fasttoken::{StreamState, Tokenizer};
use proptest::prelude::*;
use std::sync::{Barrier, LazyLock};

static DEMO: LazyLock<Tokenizer> = LazyLock::new(|| {
    Tokenizer::from_bytes(crate::common::DEMO).expect("the demo vocabulary loads")
});

/// Returns any text, with whole and cut added tokens in some.
fn text() -> impl Strategy<Value = String> {
    let added: Vec<String> = DEMO
        .added_tokens()
        .map(|(_, t)| t.content.clone())
        .collect();
    prop_oneof![
        any::<String>(),
        any::<u64>().prop_map(move |seed| adversarial(&mut Rng(seed), &added)),
    ]
}

/// Returns text that NFC leaves alone: no marks, no jamo, nothing that decomposes.
fn normalized_text() -> impl Strategy<Value = String> {
    "[ -~\r\n\t\u{A0}äéñŁ漢字가ЖאΩ🙂]{0,40}"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn decoding_gives_normalized_text_back(text in normalized_text()) {
        let ids = DEMO.encode(&text, false);
        prop_assert_eq!(DEMO.decode(&ids, false), text);
    }

    #[test]
    fn plain_encoding_decodes_to_the_text(text in normalized_text()) {
        let text = format!("{text}<|im_start|>{text}");
        let mut ids = Vec::new();
        DEMO.encode_plain_into(&text, &mut ids);
        prop_assert_eq!(DEMO.decode(&ids, true), text);
    }

    #[test]
    fn every_way_to_encode_agrees(text in text(), specials in any::<bool>()) {
        let ids = DEMO.encode(&text, specials);
        prop_assert_eq!(DEMO.count(&text, specials), ids.len());
        let mut out = vec![7, 8];
        DEMO.encode_into(&text, specials, &mut out);
        prop_assert_eq!(&out[..2], &[7, 8]);
        prop_assert_eq!(&out[2..], &ids);
        prop_assert_eq!(DEMO.encode_with_offsets(&text, specials).ids, ids);
    }

    #[test]
    fn a_prefix_is_a_prefix(text in text(), limit in 0usize..30) {
        let all = DEMO.encode(&text, false);
        let (ids, bytes) = DEMO.encode_prefix(&text, limit);
        prop_assert_eq!(&ids, &all[..all.len().min(limit)]);
        prop_assert!(text.is_char_boundary(bytes));
        if all.len() <= limit {
            prop_assert_eq!(bytes, text.len());
        }
        let (more, further) = DEMO.encode_prefix(&text, limit + 1);
        prop_assert!(more.len() >= ids.len() && further >= bytes);
        if limit == 0 {
            prop_assert_eq!(bytes, 0);
        }
    }

    #[test]
    fn the_ids_of_a_prefix_decode_to_the_prefix(text in normalized_text(), limit in 0usize..20) {
        let (ids, bytes) = DEMO.encode_prefix(&text, limit);
        let decoded = DEMO.decode(&ids, false);
        let decoded = decoded.trim_end_matches(char::REPLACEMENT_CHARACTER);
        prop_assert_eq!(decoded, &text[..bytes]);
    }

    #[test]
    fn offsets_cover_the_text_in_order(text in normalized_text()) {
        let encoding = DEMO.encode_with_offsets(&text, false);
        prop_assert_eq!(encoding.ids.len(), encoding.offsets.len());
        let mut end = 0;
        for &(from, to) in &encoding.offsets {
            prop_assert!(from <= end && from < to && to >= end);
            prop_assert!(text.get(from..to).is_some());
            end = to;
        }
        prop_assert_eq!(end, text.len());
    }

    #[test]
    fn a_batch_is_its_texts(texts in prop::collection::vec(text(), 0..8), threads in 0usize..5) {
        let batch = DEMO.encode_batch(&texts, true, threads);
        let single: Vec<_> = texts.iter().map(|text| DEMO.encode(text, true)).collect();
        prop_assert_eq!(&batch, &single);
        let decoded: Vec<_> = batch.iter().map(|ids| DEMO.decode(ids, true)).collect();
        for threads in [0, 1, 3] {
            prop_assert_eq!(&DEMO.decode_batch(&batch, true, threads), &decoded);
        }
    }

    #[test]
    fn the_stream_is_the_text(ids in prop::collection::vec(0u32..4_100, 0..30), skip in any::<bool>()) {
        let mut state = StreamState::new(skip);
        let mut text = String::new();
        for &id in &ids {
            let before = text.len();
            state.push(&DEMO, id, &mut text);
            // What was held back and one token: never more than is due.
            let piece = DEMO.id_to_piece(id).unwrap_or_default();
            prop_assert!(text.len() - before <= 3 * (piece.len() + 128));
        }
        state.finish(&DEMO, &mut text);
        prop_assert_eq!(text, DEMO.decode(&ids, skip));
    }

    #[test]
    fn tokens_and_ids_are_inverse(id in 0u32..4_200) {
        match DEMO.id_to_token(id) {
            Some(token) => prop_assert_eq!(DEMO.token_to_id(&token), Some(id)),
            None => prop_assert!(DEMO.id_to_piece(id).is_none() && !DEMO.is_special(id)),
        }
    }
}

#[test]
fn a_tokenizer_is_shared_by_threads() {
    fn assert_shared<T: Send + Sync>() {}
    assert_shared::<Tokenizer>();
    let both = Both::demo();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let both = &both;
            scope.spawn(move || both.check_many(seed, 200));
        }
    });
}

/// A thread takes the memory of one that has ended, with the words in it.
#[test]
fn tokenizers_in_turns_on_threads_that_come_and_go() {
    let small = Small::new().merge("a", "b").merge("ab", "a").bytes();
    let both = [Both::demo(), Both::from_json("small", &small)];
    let texts = [
        "abab aba",
        "Which card is it? ab",
        "a top-up, a transfer",
        "aaabaaab",
    ];
    for threads in [1, 1, 1, 20, 1, 20] {
        let ready = Barrier::new(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for text in texts.iter().chain(&texts) {
                        both.iter().for_each(|both| drop(both.check_text(text)));
                        both.iter()
                            .for_each(|both| drop(both.check_text(&text.repeat(40))));
                    }
                    ready.wait();
                });
            }
        });
    }
}
