//! SentencePiece `.model` files: the ids, offsets and texts of the library SentencePiece, and files
//! that are refused.

use crate::common::{Rng, adversarial};
use fasttoken::Tokenizer;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A text, its ids, the offsets of the pieces in bytes, and the decoded text.
type Text = (String, Vec<u32>, Vec<(usize, usize)>, String);

/// The records of `scripts/spm_models.py` for one model.
#[derive(Deserialize)]
struct Records {
    texts: Vec<Text>,
    /// Random ids and their text.
    sequences: Vec<(Vec<u32>, String)>,
}

/// Returns the folder of models: the small ones of this crate, or those of `FASTTOKEN_SPM_DATA`.
fn folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/spm");
    std::env::var_os("FASTTOKEN_SPM_DATA").map_or(here, PathBuf::from)
}

fn model(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(format!("{name}.model"))).expect("a model of spm_models.py")
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut decoder = tokenizer.stream_decoder(true);
    let mut text = String::new();
    for &id in ids {
        decoder.push(id, &mut text);
    }
    decoder.finish(&mut text);
    text
}

/// Compares everything that was recorded for a model.
fn check(name: &str) {
    let tokenizer = Tokenizer::from_sentencepiece(&model(name)).expect(name);
    let records = std::fs::read(folder().join(format!("{name}.json"))).expect(name);
    let records: Records = serde_json::from_slice(&records).expect(name);
    assert!(records.texts.len() >= 40, "{name}");
    for (text, ids, offsets, decoded) in &records.texts {
        assert_eq!(tokenizer.encode(text, true), *ids, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(ids, true), *decoded, "{name}: {text:?}");
        assert_eq!(streamed(&tokenizer, ids), *decoded, "{name}: {text:?}");
        let encoding = tokenizer.encode_with_offsets(text, true);
        assert_eq!(encoding.ids, *ids, "{name}: {text:?}");
        for ((&id, ours), theirs) in ids.iter().zip(&encoding.offsets).zip(offsets) {
            // The library gives the range of a character to the last of its bytes only.
            let byte = tokenizer
                .id_to_token(id)
                .is_some_and(|t| t.starts_with("<0x"));
            if !byte || theirs.0 != theirs.1 {
                assert_eq!(ours, theirs, "{name}: {id} in {text:?}");
            }
        }
    }
    for (ids, text) in &records.sequences {
        assert_eq!(tokenizer.decode(ids, true), *text, "{name}: {ids:?}");
        assert_eq!(streamed(&tokenizer, ids), *text, "{name}: {ids:?}");
        let bytes = tokenizer.decode_bytes(ids, true);
        if let Ok(exact) = String::from_utf8(bytes) {
            assert_eq!(exact, *text, "{name}: {ids:?}");
        }
    }
}

#[test]
fn ids_offsets_and_texts_are_those_of_the_library() {
    let files = std::fs::read_dir(folder()).expect("the folder of models");
    let mut names: Vec<String> = files
        .filter_map(|file| file.expect("an entry").file_name().into_string().ok())
        .filter_map(|file| Some(file.strip_suffix(".model")?.to_owned()))
        .collect();
    names.sort_unstable();
    assert!(names.len() >= 15, "{names:?}");
    for name in &names {
        check(name);
    }
}

/// What must hold for any file that loads, as in the fuzz target `model`.
fn check_consistent(model: &[u8], text: &str) -> bool {
    let Ok(tokenizer) = Tokenizer::from_sentencepiece(model) else {
        return false;
    };
    let ids = tokenizer.encode(text, false);
    assert_eq!(tokenizer.count(text, false), ids.len());
    let encoding = tokenizer.encode_with_offsets(text, false);
    assert_eq!(encoding.ids, ids);
    let mut last = 0;
    for &(start, end) in &encoding.offsets {
        assert!(last <= end && start <= end && end <= text.len(), "{text:?}");
        last = end;
    }
    assert!(ids.iter().all(|id| tokenizer.id_to_token(*id).is_some()));
    assert_eq!(streamed(&tokenizer, &ids), tokenizer.decode(&ids, true));
    true
}

/// Models with some changed, inserted and removed bytes load or are refused, and do not contradict
/// themselves.
#[test]
fn changed_models_do_not_contradict_themselves() {
    let names = [
        "unigram",
        "unigram-bytes",
        "unigram-suffix",
        "bpe",
        "bpe-bytes",
    ];
    let models = names.map(model);
    let mut rng = Rng(31);
    let mut loaded = 0;
    for round in 0..400 {
        let mut bytes = models[round % models.len()].clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len());
            // Bytes that are inserted or removed break most messages.
            let (end, count) = match rng.below(6) {
                0 => (bytes.len().min(at + rng.below(4)), rng.below(4)),
                _ => (at + 1, 1),
            };
            let inserted: Vec<u8> = (0..count).map(|_| rng.next() as u8).collect();
            bytes.splice(at..end, inserted);
        }
        loaded += usize::from(check_consistent(&bytes, &adversarial(&mut rng, &[])));
    }
    assert!(loaded > 20, "{loaded} of the changed models load");
}
