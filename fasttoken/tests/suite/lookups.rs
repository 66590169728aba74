//! Lookups and conveniences beside encoding, compared with the reference.

use fasttoken::{AddedToken, EncodeOptions, Offsets, Tokenizer};
use std::collections::HashMap;
use tokenizers::Tokenizer as Reference;

const JSON: &str = include_str!("../data/tokenizer.json");
const UNIGRAM: &str = include_str!("../data/unigram.json");
const TEXTS: [&str; 4] = [
    "Where is my card?<|im_end|> naïve €5",
    "",
    "  漢字 ▁ <tool>x<tool> ",
    "🙂 I am still waiting",
];

fn both(json: &str) -> (Tokenizer, Reference) {
    let reference = Reference::from_bytes(json).expect("the reference loads it");
    (json.parse().expect("loads"), reference)
}

#[test]
fn tokens_and_positions_are_those_of_the_reference() {
    let options = EncodeOptions::new()
        .add_special_tokens(true)
        .offsets(Offsets::Chars);
    for json in [JSON, UNIGRAM] {
        let (ours, reference) = both(json);
        for first in TEXTS {
            for second in TEXTS {
                let encoding = ours
                    .encode_with((first, second), &options)
                    .expect("encodes");
                let theirs = reference.encode_char_offsets((first, second), true);
                let theirs = theirs.expect("encodes");
                let tokens = encoding.tokens(&ours);
                assert_eq!(tokens.len(), theirs.len());
                assert_eq!(tokens, theirs.get_tokens());
                for (sequence, text) in [first, second].iter().enumerate() {
                    for at in 0..text.chars().count() + 2 {
                        let expected = theirs.char_to_token(at, sequence);
                        let found = encoding.char_to_token(at, sequence);
                        assert_eq!(
                            found, expected,
                            "{at} of {sequence} in {first:?}, {second:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_vocabulary_is_that_of_the_reference() {
    for json in [JSON, UNIGRAM] {
        let (ours, reference) = both(json);
        let all: HashMap<String, u32> = ours
            .vocab()
            .map(|(id, token)| (token.into_owned(), id))
            .collect();
        assert_eq!(all, reference.get_vocab(true).into_iter().collect());
        assert!(ours.vocab().map(|(id, _)| id).is_sorted_by(|a, b| a < b));
        assert_eq!(ours.vocab().count(), ours.vocab_size());
    }
}

#[test]
fn tokens_added_at_load_are_those_that_the_reference_adds() {
    for json in [JSON, UNIGRAM] {
        let (_, mut reference) = both(json);
        let mut strips = AddedToken::new("<strip>");
        (strips.lstrip, strips.rstrip, strips.special) = (true, true, true);
        let added = [AddedToken::new("<tool>"), strips, AddedToken::new("card")];
        let ours = Tokenizer::from_bytes_with_added(json.as_bytes(), &added).expect("loads");
        for token in &added {
            let theirs = tokenizers::AddedToken::from(token.content.clone(), token.special)
                .normalized(false)
                .lstrip(token.lstrip)
                .rstrip(token.rstrip);
            reference.add_tokens([theirs]).expect("adds");
        }
        assert_eq!(ours.reassigned_tokens(), []);
        let options = ours.options().add_special_tokens(true);
        for text in [
            "a <tool> b <strip> c",
            "my card,<tool><tool>",
            "cards <strip>",
        ] {
            let theirs = reference.encode(text, true).expect("encodes");
            let ids = ours.encode(text, true);
            assert_eq!(ids, theirs.get_ids(), "{text:?}");
            let encoding = ours.encode_with(text, &options).expect("encodes");
            assert_eq!(encoding.tokens(&ours), theirs.get_tokens(), "{text:?}");
            let decoded = reference.decode(&ids, true).expect("decodes");
            assert_eq!(ours.decode(&ids, true), decoded);
        }
    }
}

#[test]
fn chunks_are_what_a_stream_writes() {
    let (ours, _) = both(JSON);
    for text in TEXTS {
        let mut ids = ours.encode(text, true);
        // An unfinished character at the end.
        ids.extend(ours.encode("€", false).first());
        let chunks: Vec<String> = ours.stream_decoder(true).chunks(ids.clone()).collect();
        assert!(chunks.iter().all(|chunk| !chunk.is_empty()));
        assert_eq!(chunks.concat(), ours.decode(&ids, true));
    }
}

#[test]
fn a_batch_without_a_number_of_threads_is_the_same_batch() {
    let (ours, _) = both(JSON);
    let texts: Vec<String> = (0..400)
        .map(|n| format!("{} {n}", TEXTS[n % 4].repeat(9)))
        .collect();
    let one = ours.encode_batch(&texts, true, 1);
    assert_eq!(ours.encode_batch(&texts, true, None), one);
    assert_eq!(
        ours.decode_batch(&one, true, None),
        ours.decode_batch(&one, true, 1)
    );
}
