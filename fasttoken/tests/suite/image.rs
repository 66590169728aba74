//! Compiled images: the same tokenizer, or an error.

use crate::common::pieces::Shape;
use crate::common::small::Small;
use crate::common::{DEMO, Rng, adversarial, shared_vocabularies};
use fasttoken::{CacheUse, Error, ImageError, StreamState, Tokenizer};
use proptest::prelude::*;
use serde_json::json;
use std::path::PathBuf;
use std::sync::LazyLock;
use twox_hash::XxHash3_64;

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

/// The image of `json` is the same tokenizer.
fn check(name: &str, json: &[u8], strings: usize) {
    let expected = Tokenizer::from_bytes(json).expect("the file loads");
    let image = Tokenizer::compile(json)
        .and_then(|image| Tokenizer::from_image_bytes(&image))
        .expect("the image loads");
    let added: Vec<String> = expected
        .added_tokens()
        .map(|(_, token)| token.content.clone())
        .collect();
    assert_eq!(image.vocab_size(), expected.vocab_size(), "{name}");
    assert!(image.added_tokens().eq(expected.added_tokens()), "{name}");
    assert_eq!(image.reassigned_tokens(), expected.reassigned_tokens());
    for id in 0..expected.vocab_size() as u32 + 100 {
        let token = expected.id_to_token(id);
        assert_eq!(image.id_to_token(id), token, "{name}: {id}");
        assert_eq!(image.id_to_piece(id), expected.id_to_piece(id));
        assert_eq!(image.is_special(id), expected.is_special(id));
        if let Some(token) = token {
            assert_eq!(image.token_to_id(&token), expected.token_to_id(&token));
        }
    }
    let mut rng = Rng(7);
    for _ in 0..strings {
        let text = adversarial(&mut rng, &added);
        let ids = expected.encode(&text, true);
        assert_eq!(image.encode(&text, true), ids, "{name}: {text:?}");
        assert_eq!(image.count(&text, true), ids.len());
        for skip in [false, true] {
            assert_eq!(image.decode(&ids, skip), expected.decode(&ids, skip));
        }
    }
}

#[test]
fn images_are_the_same_tokenizers() {
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
fn images_of_sentencepiece_models_are_the_same_tokenizers() {
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
        let (image, other) = (
            Tokenizer::compile(&json).unwrap(),
            Tokenizer::compile(&json),
        );
        assert_eq!(image, other.unwrap(), "{name}: compiled twice");
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
fn images_of_shared_vocabularies_are_the_same_tokenizers() {
    for (name, path) in shared_vocabularies() {
        check(&name, &std::fs::read(path).unwrap(), 500);
    }
}

static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let small = Small::new().merge("a", "b").merge("Ġ", "ab");
    Tokenizer::compile(&small.bytes()).expect("the file loads")
});

static SENTENCEPIECE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut shape = Shape::legacy();
    shape.add("<tool>", false, true);
    Tokenizer::compile(&shape.bytes()).expect("the file loads")
});

fn image_error(image: &[u8]) -> ImageError {
    match Tokenizer::from_image_bytes(image) {
        Err(Error::Image { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let mut image = IMAGE.clone();
    // All of the header and table, and a sample of the rest: each flip reads it all.
    let rest = (600..image.len()).step_by(97);
    for at in (0..600).chain(rest) {
        image[at] ^= 1 << (at % 8);
        image_error(&image);
        image[at] ^= 1 << (at % 8);
    }
    assert!(Tokenizer::from_image_bytes(&image).is_ok());
}

#[test]
fn other_files_are_named() {
    assert_eq!(image_error(b""), ImageError::NotAnImage);
    assert_eq!(image_error(DEMO), ImageError::NotAnImage);
    assert_eq!(image_error(&IMAGE[..63]), ImageError::NotAnImage);
    for cut in [64, 100, IMAGE.len() / 2, IMAGE.len() - 1] {
        assert!(matches!(
            image_error(&IMAGE[..cut]),
            ImageError::Length { .. }
        ));
    }
    let mut longer = IMAGE.clone();
    longer.push(0);
    assert!(matches!(image_error(&longer), ImageError::Length { .. }));
    let mut newer = IMAGE.clone();
    newer[8] += 1;
    let supported = u32::from(IMAGE[8]);
    let found = supported + 1;
    assert_eq!(
        image_error(&newer),
        ImageError::Version { found, supported }
    );
    let mut swapped = IMAGE.clone();
    swapped[12..16].reverse();
    assert_eq!(image_error(&swapped), ImageError::ByteOrder);
    let mut damaged = IMAGE.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(image_error(&damaged), ImageError::Checksum { .. }));

    let folder = Folder::new("other-files");
    assert!(matches!(
        Tokenizer::from_image(&folder.0),
        Err(Error::Image {
            problem: ImageError::NotAnImage,
            ..
        })
    ));
    assert!(matches!(
        Tokenizer::from_image(folder.0.join("none.ftk")),
        Err(Error::Io { .. })
    ));
    let path = folder.0.join("json.ftk");
    std::fs::write(&path, DEMO).unwrap();
    let error = Tokenizer::from_image(&path).unwrap_err().to_string();
    assert!(error.contains("json.ftk"), "{error}");
}

/// Where the table says that the sections are.
fn sections(image: &[u8]) -> Vec<(usize, std::ops::Range<usize>)> {
    let number =
        |at: usize| u64::from_ne_bytes(image[at..at + 8].try_into().expect("eight bytes")) as usize;
    let count = number(24) & 0xFFFF_FFFF;
    let entries = (0..count).map(|n| 64 + 32 * n);
    entries
        .map(|at| (at, number(at + 8)..number(at + 8) + number(at + 16)))
        .collect()
}

/// Makes all checksums right.
fn forge(image: &mut [u8]) {
    let sections = sections(image);
    let table_end = 64 + 32 * sections.len();
    for (entry, range) in sections {
        let checksum = XxHash3_64::oneshot(&image[range]);
        image[entry + 24..entry + 32].copy_from_slice(&checksum.to_ne_bytes());
    }
    let checksum = XxHash3_64::oneshot(&image[..table_end]);
    image[table_end..table_end + 8].copy_from_slice(&checksum.to_ne_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Contents that were made up are an error or a tokenizer that is wrong, not more.
    #[test]
    fn forged_images_do_no_harm(
        sentencepiece in any::<bool>(),
        section in any::<prop::sample::Index>(),
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0), Just(0xFF)]),
            1..40,
        ),
        fill in prop::option::of(any::<u8>()),
        ids in prop::collection::vec(0u32..300, 0..20),
    ) {
        let mut image = if sentencepiece { SENTENCEPIECE.clone() } else { IMAGE.clone() };
        let sections = sections(&image);
        let (_, range) = section.get(&sections).clone();
        let bytes = &mut image[range];
        if let Some(byte) = fill {
            bytes.fill(byte);
        }
        if !bytes.is_empty() {
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        forge(&mut image);
        if let Ok(tokenizer) = Tokenizer::from_image_bytes(&image) {
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
        let mut image = IMAGE.clone();
        for (at, byte) in changes {
            image[at] = byte;
        }
        let count = u32::from_ne_bytes(image[24..28].try_into().unwrap()) as usize;
        let table_end = 64 + 32 * count.min(100);
        let checksum = XxHash3_64::oneshot(&image[..table_end]);
        image[table_end..table_end + 8].copy_from_slice(&checksum.to_ne_bytes());
        let _ = Tokenizer::from_image_bytes(&image);
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
    let [image] = &files[..] else {
        panic!("{files:?}");
    };
    let source = Tokenizer::image_source(image).unwrap();
    let hex: String = source.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(
        image
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(&hex)
    );

    for damage in [b"fasttokn".to_vec(), Vec::new(), IMAGE.clone()] {
        // The last one is whole, and of another file.
        std::fs::remove_file(image).unwrap();
        std::fs::write(image, damage).unwrap();
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
