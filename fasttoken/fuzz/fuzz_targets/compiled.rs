//! Any compiled tokenizer: reading gives a tokenizer or an error, and what is read encodes and decodes.
//!
//! Whole files of random bytes only find the magic number, so most inputs are changes to the
//! compiled forms of the demo, of a small SentencePiece-style model, or of a `.model` file: bytes that
//! are overwritten and a length to cut to. Checksums stop most of those, so each is tried again with checksums that fit, as somebody with bad intentions
//! would make them.
#![no_main]

use fasttoken::Tokenizer;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use twox_hash::XxHash3_64;

static COMPILED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let json = include_bytes!("../../tests/data/tokenizer.json");
    Tokenizer::compile(json).expect("the demo compiles")
});

static SENTENCEPIECE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend((0..256).map(|byte| format!("<{byte:#04X}>")));
    tokens.extend(["a", "b", "▁", "é", "漢", "ab", "▁a", "▁ab", "x"].map(String::from));
    let vocab: Vec<String> = tokens
        .iter()
        .enumerate()
        .map(|(id, token)| format!("{token:?}: {id}"))
        .collect();
    let json = format!(
        r#"{{"added_tokens": [
            {{"id": 1, "content": "<s>", "single_word": false, "lstrip": false,
              "rstrip": false, "normalized": true, "special": true}},
            {{"id": 400, "content": "<x>", "single_word": false, "lstrip": true,
              "rstrip": true, "normalized": false, "special": false}}],
          "normalizer": {{"type": "Sequence", "normalizers": [
            {{"type": "Prepend", "prepend": "▁"}},
            {{"type": "Replace", "pattern": {{"String": " "}}, "content": "▁"}}]}},
          "decoder": {{"type": "Sequence", "decoders": [
            {{"type": "Replace", "pattern": {{"String": "▁"}}, "content": " "}},
            {{"type": "ByteFallback"}}, {{"type": "Fuse"}},
            {{"type": "Strip", "content": " ", "start": 1, "stop": 0}}]}},
          "model": {{"type": "BPE", "unk_token": "<unk>", "fuse_unk": true,
            "byte_fallback": true, "vocab": {{{}}},
            "merges": ["a b", "▁ a", "▁ ab"]}}}}"#,
        vocab.join(", ")
    );
    Tokenizer::compile(json.as_bytes()).expect("a small model compiles")
});

static MODEL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let model = include_bytes!("../../tests/data/spm/unigram-symbols.model");
    Tokenizer::compile_sentencepiece(model).expect("a small model compiles")
});

const TEXT: &str = "ab it's  <x>ab é\u{301} 123\n漢<|im_end|>";

/// Length of the header, and where it has the number of sections.
const HEADER: usize = 64;
const SECTIONS: usize = 24;
/// Length of a section's entry, and where it has offset, length and checksum.
const ENTRY: usize = 32;

fn number(compiled: &[u8], at: usize) -> Option<usize> {
    let bytes = compiled.get(at..at + 8)?.first_chunk()?;
    usize::try_from(u64::from_ne_bytes(*bytes)).ok()
}

/// Writes checksums that fit, as far as the compiled tokenizer has places for them.
fn seal(compiled: &mut [u8]) -> Option<()> {
    let sections = u32::from_ne_bytes(*compiled.get(SECTIONS..)?.first_chunk()?) as usize;
    let end = HEADER.checked_add(sections.checked_mul(ENTRY)?)?;
    for entry in (HEADER..end.min(compiled.len())).step_by(ENTRY) {
        let (offset, len) = (number(compiled, entry + 8)?, number(compiled, entry + 16)?);
        let Some(section) = compiled.get(offset..offset.checked_add(len)?) else {
            continue;
        };
        let sum = XxHash3_64::oneshot(section).to_ne_bytes();
        compiled.get_mut(entry + 24..entry + 32)?.copy_from_slice(&sum);
    }
    let sum = XxHash3_64::oneshot(compiled.get(..end)?).to_ne_bytes();
    compiled.get_mut(end..end + 8)?.copy_from_slice(&sum);
    Some(())
}

fuzz_target!(|input: (u8, Vec<(u32, u8)>, Option<u32>, &[u8])| {
    let (file, changes, cut, whole) = input;
    let files = [&COMPILED, &SENTENCEPIECE, &MODEL];
    let mut compiled = files[usize::from(file) % files.len()].to_vec();
    for (at, byte) in changes {
        // Half of the changes go to the header and the table of sections.
        let end = if at % 2 == 0 { 768 } else { compiled.len() };
        compiled[at as usize / 2 % end] = byte;
    }
    if let Some(cut) = cut {
        compiled.truncate(cut as usize % (compiled.len() + 1));
    }
    let mut sealed = compiled.clone();
    // What cannot be sealed is refused as it is.
    let _ = seal(&mut sealed);
    for compiled in [&compiled[..], &sealed, whole] {
        let Ok(tokenizer) = Tokenizer::from_compiled_bytes(compiled) else {
            continue;
        };
        let ids = tokenizer.encode(TEXT, true);
        tokenizer.decode(&ids, false);
        tokenizer.encode_with_offsets(TEXT, false);
        for id in [0, 1, 4064, u32::MAX] {
            tokenizer.id_to_token(id);
            tokenizer.id_to_piece(id);
        }
        tokenizer.token_to_id("a");
    }
});
