//! Any ids: the text is the reference's, at once and as the ids arrive.
#![no_main]

use fasttoken::Tokenizer;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tokenizers::Tokenizer as Reference;

const DEMO: &[u8] = include_bytes!("../../tests/data/tokenizer.json");
static OURS: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_bytes(DEMO).expect("loads"));
static REFERENCE: LazyLock<Reference> =
    LazyLock::new(|| Reference::from_bytes(DEMO).expect("loads"));

fuzz_target!(|input: (bool, Vec<u16>)| {
    let (skip, ids) = input;
    let ids: Vec<u32> = ids.into_iter().map(u32::from).collect();
    let expected = REFERENCE.decode(&ids, skip).expect("decoding works");
    assert_eq!(OURS.decode(&ids, skip), expected);
    let mut decoder = OURS.stream_decoder(skip);
    let mut streamed = String::new();
    for &id in &ids {
        decoder.push(id, &mut streamed);
        assert!(expected.starts_with(&streamed));
    }
    decoder.finish(&mut streamed);
    assert_eq!(streamed, expected);
});
