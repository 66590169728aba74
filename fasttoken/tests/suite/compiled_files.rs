//! Compiled tokenizers: the same tokenizer, or an error.

use crate::common::scored::Scored;
use crate::common::sentencepiece_models::Shape;
use crate::common::small::Small;
use crate::common::words::Words;
use crate::common::{DEMO, Rng, adversarial, shared_vocabularies};
use fasttoken::{CacheUse, CompiledError, Error, StreamState, Tokenizer};
use proptest::prelude::*;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use twox_hash::XxHash3_64;

const WORDPIECE_JSON: &[u8] = include_bytes!("../data/wordpiece.json");
const UNIGRAM_JSON: &[u8] = include_bytes!("../data/unigram.json");

/// A folder that is gone with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fasttoken-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Checks that the compiled form of `json` is the same tokenizer.
fn check(name: &str, json: &[u8], strings: usize) {
    let expected = Tokenizer::from_bytes(json).expect("the file loads");
    let compiled = Tokenizer::compile(json).expect("the file compiles");
    check_same(name, &expected, &compiled, strings);
}

/// Checks that a compiled file is the tokenizer `expected`.
fn check_same(name: &str, expected: &Tokenizer, compiled: &[u8], strings: usize) {
    let compiled = Tokenizer::from_compiled_bytes(compiled).expect("the compiled tokenizer loads");
    let added: Vec<String> = expected
        .added_tokens()
        .map(|(_, token)| token.content.clone())
        .collect();
    assert_eq!(compiled.vocab_size(), expected.vocab_size(), "{name}");
    assert!(
        compiled.added_tokens().eq(expected.added_tokens()),
        "{name}"
    );
    assert_eq!(compiled.reassigned_tokens(), expected.reassigned_tokens());
    for id in 0..expected.vocab_size() as u32 + 100 {
        let token = expected.id_to_token(id);
        assert_eq!(compiled.id_to_token(id), token, "{name}: {id}");
        assert_eq!(compiled.id_to_piece(id), expected.id_to_piece(id));
        assert_eq!(compiled.is_special(id), expected.is_special(id));
        if let Some(token) = token {
            assert_eq!(compiled.token_to_id(&token), expected.token_to_id(&token));
        }
    }
    let mut rng = Rng(7);
    for _ in 0..strings {
        let text = adversarial(&mut rng, &added);
        let ids = expected.encode(&text, true);
        assert_eq!(compiled.encode(&text, true), ids, "{name}: {text:?}");
        assert_eq!(compiled.count(&text, true), ids.len());
        for skip in [false, true] {
            assert_eq!(compiled.decode(&ids, skip), expected.decode(&ids, skip));
        }
    }
}

#[test]
fn compiled_files_are_the_same_tokenizers() {
    check("demo", DEMO, 300);
    check("plain", &Small::new().bytes(), 100);
    let holes = Small::new()
        .merge("a", "b")
        .merge("Ġ", "ab")
        .token("漢 raw")
        .token("a long token without an end, or nearly so")
        .with_model("ignore_merges", json!(true));
    check("holes", &holes.bytes(), 100);
}

#[test]
fn compiled_files_of_sentencepiece_models_are_the_same_tokenizers() {
    let mut normalized = Shape::legacy();
    for token in normalized.json["added_tokens"]
        .as_array_mut()
        .expect("a list")
    {
        // As in older files: the model has the token, and decoding shows it with a `▁`.
        token["normalized"] = json!(true);
    }
    normalized.add("card", false, true);
    normalized.add("<tool>", false, false);
    let whole = |shape: Shape| shape.model("ignore_merges", json!(true));
    for (name, shape) in [
        ("Llama 2", Shape::legacy()),
        ("Llama 2 with Metaspace", Shape::metaspace("first", false)),
        ("Gemma", Shape::gemma()),
        ("ignore_merges", whole(Shape::metaspace("always", true))),
        (
            "no bytes, no unknown token",
            Shape::legacy()
                .model("byte_fallback", json!(false))
                .model("unk_token", json!(null)),
        ),
        (
            "no bytes, single unknowns",
            Shape::legacy()
                .model("byte_fallback", json!(false))
                .model("fuse_unk", json!(false)),
        ),
        ("normalized added tokens", normalized),
    ] {
        let json = shape.bytes();
        check(name, &json, 200);
        let (compiled, other) = (
            Tokenizer::compile(&json).unwrap(),
            Tokenizer::compile(&json),
        );
        assert_eq!(compiled, other.unwrap(), "{name}: compiled twice");
    }
    let mut normalized = whole(Shape::legacy());
    for token in normalized.json["added_tokens"]
        .as_array_mut()
        .expect("a list")
    {
        token["normalized"] = json!(true);
    }
    check(
        "normalized added tokens, ignore_merges",
        &normalized.bytes(),
        200,
    );
}

#[test]
fn compiled_files_of_wordpiece_and_unigram_are_the_same_tokenizers() {
    check("wordpiece", WORDPIECE_JSON, 300);
    check("unigram", UNIGRAM_JSON, 300);
    for (name, json) in [
        ("cased", Words::cased().bytes()),
        (
            "renamed",
            Words::uncased().added("Card", &["normalized"]).bytes(),
        ),
        ("XLM-R", Scored::xlm_r().bytes()),
        ("T5", Scored::t5().added("<x>", &["special"]).bytes()),
        ("ALBERT with bytes", Scored::albert().bytes_too().bytes()),
    ] {
        check(name, &json, 200);
        let twice = [(); 2].map(|()| Tokenizer::compile(&json).expect("compiles"));
        assert_eq!(twice[0], twice[1], "{name}: compiled twice");
    }
}

/// Returns the small `.model` files of this crate.
fn models() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/spm");
    let files = std::fs::read_dir(folder).expect("the folder of models");
    let paths = files.map(|file| file.expect("an entry").path());
    let models = paths.filter(|path| path.extension().is_some_and(|end| end == "model"));
    models
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy();
            (name.into_owned(), std::fs::read(&path).expect("readable"))
        })
        .collect()
}

fn model(name: &str) -> Vec<u8> {
    let mut models = models().into_iter();
    models.find(|model| model.0 == name).expect("it is there").1
}

#[test]
fn compiled_files_of_models_are_the_same_tokenizers() {
    let models = models();
    assert!(models.len() >= 15);
    for (name, model) in models {
        let expected = Tokenizer::from_sentencepiece(&model).expect("the file loads");
        let compiled = Tokenizer::compile_sentencepiece(&model).expect("the file compiles");
        check_same(&name, &expected, &compiled, 300);
        let loaded = Tokenizer::from_compiled_bytes(&compiled).expect("loads");
        let mut rng = Rng(11);
        for _ in 0..100 {
            let text = adversarial(&mut rng, &[]);
            let both = [&expected, &loaded].map(|tokenizer| {
                let mut plain = Vec::new();
                tokenizer.encode_plain_into(&text, &mut plain);
                (tokenizer.encode_with_offsets(&text, true).offsets, plain)
            });
            assert_eq!(both[0], both[1], "{name}: {text:?}");
        }
        let twice = Tokenizer::compile_sentencepiece(&model).expect("compiles");
        assert_eq!(twice, compiled, "{name}: compiled twice");
    }
}

#[test]
fn the_cache_holds_models() {
    let folder = Folder::new("cache-models");
    let model = model("unigram-symbols");
    let load = || Tokenizer::from_sentencepiece_cached(&model, &folder.0).unwrap();
    let ids = ["a b", "漢字 <tool>"].map(|text| load().0.encode(text, false));
    let (tokenizer, used) = load();
    assert!(matches!(used, CacheUse::Found), "{used:?}");
    assert_eq!(
        ["a b", "漢字 <tool>"].map(|text| tokenizer.encode(text, false)),
        ids
    );
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    let broken = Tokenizer::from_sentencepiece_cached(b"\x0A", &folder.0);
    assert!(broken.is_err());
}

#[test]
fn compiled_files_of_shared_vocabularies_are_the_same_tokenizers() {
    for (name, path) in shared_vocabularies() {
        check(&name, &std::fs::read(path).unwrap(), 500);
    }
}

static COMPILED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let small = Small::new().merge("a", "b").merge("Ġ", "ab");
    Tokenizer::compile(&small.bytes()).expect("the file loads")
});

static SENTENCEPIECE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut shape = Shape::legacy();
    shape.add("<tool>", false, true);
    Tokenizer::compile(&shape.bytes()).expect("the file loads")
});

static WORDPIECE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = Words::uncased().added("<tool>", &[]);
    Tokenizer::compile(&words.bytes()).expect("the file loads")
});

static UNIGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let scored = Scored::t5().bytes_too().added("<tool>", &[]);
    Tokenizer::compile(&scored.bytes()).expect("the file loads")
});

static MODEL_UNIGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
    Tokenizer::compile_sentencepiece(&model("unigram-symbols")).expect("the file loads")
});

static MODEL_BPE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    Tokenizer::compile_sentencepiece(&model("bpe-symbols")).expect("the file loads")
});

fn compiled_error(compiled: &[u8]) -> CompiledError {
    match Tokenizer::from_compiled_bytes(compiled) {
        Err(Error::Compiled { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let mut compiled = COMPILED.clone();
    // All of the header and table, and a sample of the rest: each flip reads it all.
    let rest = (600..compiled.len()).step_by(97);
    for at in (0..600).chain(rest) {
        compiled[at] ^= 1 << (at % 8);
        compiled_error(&compiled);
        compiled[at] ^= 1 << (at % 8);
    }
    assert!(Tokenizer::from_compiled_bytes(&compiled).is_ok());
}

#[test]
fn other_files_are_named() {
    assert_eq!(compiled_error(b""), CompiledError::NotCompiled);
    assert_eq!(compiled_error(DEMO), CompiledError::NotCompiled);
    assert_eq!(compiled_error(&COMPILED[..63]), CompiledError::NotCompiled);
    for cut in [64, 100, COMPILED.len() / 2, COMPILED.len() - 1] {
        assert!(matches!(
            compiled_error(&COMPILED[..cut]),
            CompiledError::Length { .. }
        ));
    }
    let mut longer = COMPILED.clone();
    longer.push(0);
    assert!(matches!(
        compiled_error(&longer),
        CompiledError::Length { .. }
    ));
    let mut newer = COMPILED.clone();
    newer[8] += 1;
    let supported = u32::from(COMPILED[8]);
    let found = supported + 1;
    assert_eq!(
        compiled_error(&newer),
        CompiledError::Version { found, supported }
    );
    let mut swapped = COMPILED.clone();
    swapped[12..16].reverse();
    assert_eq!(compiled_error(&swapped), CompiledError::ByteOrder);
    let mut damaged = COMPILED.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(
        compiled_error(&damaged),
        CompiledError::Checksum { .. }
    ));

    let folder = Folder::new("other-files");
    assert!(matches!(
        Tokenizer::from_compiled(&folder.0),
        Err(Error::Compiled {
            problem: CompiledError::NotCompiled,
            ..
        })
    ));
    assert!(matches!(
        Tokenizer::from_compiled(folder.0.join("none.ftk")),
        Err(Error::Io { .. })
    ));
    let path = folder.0.join("json.ftk");
    std::fs::write(&path, DEMO).unwrap();
    let error = Tokenizer::from_compiled(&path).unwrap_err().to_string();
    assert!(error.contains("json.ftk"), "{error}");
}

/// Returns where the table says that the sections are.
fn sections(compiled: &[u8]) -> Vec<(usize, std::ops::Range<usize>)> {
    let number = |at: usize| {
        u64::from_ne_bytes(compiled[at..at + 8].try_into().expect("eight bytes")) as usize
    };
    let count = number(24) & 0xFFFF_FFFF;
    let entries = (0..count).map(|n| 64 + 32 * n);
    entries
        .map(|at| (at, number(at + 8)..number(at + 8) + number(at + 16)))
        .collect()
}

/// Makes all checksums right.
fn forge(compiled: &mut [u8]) {
    let sections = sections(compiled);
    let table_end = 64 + 32 * sections.len();
    for (entry, range) in sections {
        let checksum = XxHash3_64::oneshot(&compiled[range]);
        compiled[entry + 24..entry + 32].copy_from_slice(&checksum.to_ne_bytes());
    }
    let checksum = XxHash3_64::oneshot(&compiled[..table_end]);
    compiled[table_end..table_end + 8].copy_from_slice(&checksum.to_ne_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    /// Contents that were made up are an error or a tokenizer that is wrong, not more.
    #[test]
    fn forged_images_do_no_harm(
        family in 0usize..6,
        section in any::<prop::sample::Index>(),
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0), Just(0xFF)]),
            1..40,
        ),
        fill in prop::option::of(any::<u8>()),
        ids in prop::collection::vec(0u32..300, 0..20),
    ) {
        let files = [
            &COMPILED,
            &SENTENCEPIECE,
            &WORDPIECE,
            &UNIGRAM,
            &MODEL_UNIGRAM,
            &MODEL_BPE,
        ];
        let mut compiled = files[family].to_vec();
        let sections = sections(&compiled);
        let (_, range) = section.get(&sections).clone();
        let bytes = &mut compiled[range];
        if let Some(byte) = fill {
            bytes.fill(byte);
        }
        if !bytes.is_empty() {
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        forge(&mut compiled);
        if let Ok(tokenizer) = Tokenizer::from_compiled_bytes(&compiled) {
            let text = "ab ab aabb é 12 abab ab\n  ababababababababababababababababababababababababababab";
            let encoded = tokenizer.encode(text, true);
            let mut plain = Vec::new();
            tokenizer.encode_plain_into(text, &mut plain);
            let _ = tokenizer.encode_with_offsets(text, true);
            let _ = tokenizer.encode_with_offsets("a\u{FFFD}ﬁ 漢字 \u{10FFFF}<tool>", true);
            let mut state = StreamState::new(true);
            let mut out = String::new();
            for list in [&ids, &encoded] {
                let _ = tokenizer.decode(list, true);
                let _ = tokenizer.decode(list, false);
                for &id in list {
                    let _ = tokenizer.id_to_token(id);
                    state.push(&tokenizer, id, &mut out);
                }
            }
            let _ = (tokenizer.token_to_id("ab"), tokenizer.token_to_id("x y"));
        }
    }

    /// Forged tables of sections are errors or nothing that is seen.
    #[test]
    fn forged_headers_do_no_harm(changes in prop::collection::vec((8usize..400, any::<u8>()), 1..6)) {
        let mut compiled = COMPILED.clone();
        for (at, byte) in changes {
            compiled[at] = byte;
        }
        let count = u32::from_ne_bytes(compiled[24..28].try_into().unwrap()) as usize;
        let table_end = 64 + 32 * count.min(100);
        let checksum = XxHash3_64::oneshot(&compiled[..table_end]);
        compiled[table_end..table_end + 8].copy_from_slice(&checksum.to_ne_bytes());
        let _ = Tokenizer::from_compiled_bytes(&compiled);
    }
}

#[test]
fn the_cache_is_found_and_repaired() {
    let folder = Folder::new("cache");
    let json = folder.0.join("tokenizer.json");
    std::fs::write(&json, DEMO).unwrap();
    let cache = folder.0.join("not/there/yet");
    let load = || Tokenizer::from_file_cached(&json, &cache).unwrap();
    let expected = Tokenizer::from_bytes(DEMO).unwrap().encode("pay 5 €", true);

    let (tokenizer, used) = load();
    assert!(matches!(used, CacheUse::Written), "{used:?}");
    assert_eq!(tokenizer.encode("pay 5 €", true), expected);
    let (tokenizer, used) = load();
    assert!(matches!(used, CacheUse::Found), "{used:?}");
    assert_eq!(tokenizer.encode("pay 5 €", true), expected);

    // One file, named by what it was made from.
    let files: Vec<_> = std::fs::read_dir(&cache)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let [compiled] = &files[..] else {
        panic!("{files:?}");
    };
    let source = Tokenizer::compiled_source(compiled).unwrap();
    let hex: String = source.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(
        compiled
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(&hex)
    );

    for damage in [b"fasttokn".to_vec(), Vec::new(), COMPILED.clone()] {
        // The last one is whole, and of another file.
        std::fs::remove_file(compiled).unwrap();
        std::fs::write(compiled, damage).unwrap();
        let (tokenizer, used) = load();
        assert!(matches!(used, CacheUse::Written), "{used:?}");
        assert_eq!(tokenizer.encode("pay 5 €", true), expected);
        assert!(matches!(load().1, CacheUse::Found));
    }

    // A folder that cannot be is no error.
    let (tokenizer, used) = Tokenizer::from_file_cached(&json, &json).unwrap();
    assert!(matches!(used, CacheUse::NotWritten(_)), "{used:?}");
    assert_eq!(tokenizer.encode("pay 5 €", true), expected);
}
