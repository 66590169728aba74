//! SentencePiece `.model` files: any bytes load as a tokenizer or are refused by an error, and what
//! loads encodes, counts, gives offsets and decodes without contradicting itself.
//!
//! The input replaces a range of a small real model, so that most inputs get past the reader of
//! protocol buffers; and it is tried as a whole file.
#![no_main]

use fasttoken::Tokenizer;
use libfuzzer_sys::fuzz_target;

const MODELS: &[&[u8]] = &[
    include_bytes!("../../tests/data/spm/unigram.model"),
    include_bytes!("../../tests/data/spm/unigram-bytes.model"),
    include_bytes!("../../tests/data/spm/unigram-suffix.model"),
    include_bytes!("../../tests/data/spm/unigram-symbols.model"),
    include_bytes!("../../tests/data/spm/bpe.model"),
    include_bytes!("../../tests/data/spm/bpe-bytes.model"),
    include_bytes!("../../tests/data/spm/bpe-spaces.model"),
    include_bytes!("../../tests/data/spm/bpe-symbols.model"),
];

fn check(model: &[u8], text: &str) {
    let Ok(tokenizer) = Tokenizer::from_sentencepiece(model) else {
        return;
    };
    let ids = tokenizer.encode(text, false);
    assert_eq!(tokenizer.count(text, false), ids.len());
    let encoding = tokenizer.encode_with_offsets(text, false);
    assert_eq!(encoding.ids, ids);
    let mut last = 0;
    for &(start, end) in &encoding.offsets {
        assert!(last <= end && start <= end && end <= text.len());
        last = end;
    }
    for &id in &ids {
        assert!(tokenizer.id_to_token(id).is_some(), "{id} has no token");
    }
    let whole = tokenizer.decode(&ids, true);
    let mut decoder = tokenizer.stream_decoder(true);
    let mut streamed = String::new();
    for &id in &ids {
        decoder.push(id, &mut streamed);
    }
    decoder.finish(&mut streamed);
    assert_eq!(streamed, whole);
    // Ids that no text gives, and ids that do not exist.
    let any: Vec<u32> = text.bytes().map(u32::from).chain([u32::MAX]).collect();
    tokenizer.decode(&any, false);
}

fuzz_target!(|input: (u8, u16, u8, &[u8], &str)| {
    let (model, start, len, insert, text) = input;
    let model = MODELS[usize::from(model) % MODELS.len()];
    let start = usize::from(start) % model.len();
    let end = model.len().min(start + usize::from(len));
    let changed = [&model[..start], insert, &model[end..]].concat();
    check(&changed, text);
    check(insert, text);
});
