//! Files that must be refused, and damaged ones that must not do harm.

use crate::common::small::{Small, byte_level, sequence, split};
use crate::common::{Both, DEMO, Rng, split_patterns};
use fasttoken::{Error, SpecialTokens, Tokenizer, Warning};
use serde_json::{Value, json};

fn error(json: &[u8]) -> Error {
    match Tokenizer::from_bytes(json) {
        Ok(_) => panic!(
            "loaded: {}",
            String::from_utf8_lossy(&json[..json.len().min(300)])
        ),
        Err(error) => error,
    }
}

/// Checks that the file is refused, and that the message names the place.
fn check_unsupported(small: Small, path: &str) {
    let error = error(&small.bytes());
    assert!(
        matches!(&error, Error::Unsupported { path: at, .. } if at == path),
        "{error}"
    );
    assert!(error.to_string().contains(path));
}

fn check_invalid(small: Small, path: &str) {
    let error = error(&small.bytes());
    assert!(
        matches!(&error, Error::Invalid { path: at, .. } if at == path),
        "{error}"
    );
}

#[test]
fn unsupported_components_are_named() {
    for (name, value) in [
        ("type", json!("WordLevel")),
        ("type", json!("New")),
        ("dropout", json!(0.1)),
        ("continuing_subword_prefix", json!("##")),
        ("end_of_word_suffix", json!("</w>")),
    ] {
        let path = format!("$.model.{name}");
        check_unsupported(Small::new().with_model(name, value), &path);
    }
    let kind = |kind: &str| json!({"type": kind});
    let nested = json!({"type": "Sequence", "normalizers": [kind("NFC"), kind("Lowercase")]});
    for (name, value, below) in [
        ("version", json!("2.0"), ""),
        ("normalizer", kind("Lowercase"), ""),
        ("normalizer", nested, ".normalizers[1]"),
        ("pre_tokenizer", Value::Null, ""),
        ("pre_tokenizer", kind("Whitespace"), ""),
        ("post_processor", kind("OtherProcessing"), ""),
        ("decoder", Value::Null, ""),
        ("decoder", kind("Metaspace"), ""),
    ] {
        let path = format!("$.{name}{below}");
        check_unsupported(Small::new().with(name, value), &path);
    }
    for (step, below) in [
        (byte_level(true, false), ""),
        (kind("Metaspace"), ""),
        (split("a", "MergedWithNext", false), ".behavior"),
        (split("(a", "Isolated", false), ".pattern"),
        (split("[z-a]", "Isolated", false), ".pattern"),
        (split(r"\p{Nothing}", "Isolated", false), ".pattern"),
    ] {
        let path = format!("$.pre_tokenizer.pretokenizers[0]{below}");
        let small = Small::new().with("pre_tokenizer", sequence(vec![step]));
        check_unsupported(small, &path);
    }
    let changed = Small::new()
        .with("normalizer", json!({"type": "NFD"}))
        .added("é", &["normalized"]);
    check_unsupported(changed, "$.added_tokens");
}

#[test]
fn contradictions_are_named() {
    let template = |single: Value| {
        Small::new().with(
            "post_processor",
            json!({
                "type": "TemplateProcessing", "single": [single], "pair": [],
                "special_tokens": {"far": {"id": "far", "ids": [70_000], "tokens": ["far"]}},
            }),
        )
    };
    let b = json!({"Sequence": {"id": "B", "type_id": 0}});
    check_invalid(template(b), "$.post_processor.single");
    let gone = json!({"SpecialToken": {"id": "gone", "type_id": 0}});
    check_invalid(template(gone), "$.post_processor.single");
    let far = json!({"SpecialToken": {"id": "far", "type_id": 0}});
    check_invalid(template(far), "$.post_processor");
    check_invalid(Small::new().with("decoder", json!({})), "$.decoder");
    let cut = json!({"max_length": 5});
    check_invalid(Small::new().with("truncation", cut), "$.truncation");
    check_invalid(
        Small::new().with("padding", json!({"pad_id": 0})),
        "$.padding",
    );
    let padding = |strategy: Value, multiple: u64| {
        let padding = json!({
            "strategy": strategy, "direction": "Right", "pad_to_multiple_of": multiple,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "",
        });
        Small::new().with("padding", padding)
    };
    check_invalid(padding(json!({"Fixed": 1u64 << 40}), 1), "$.padding");
    check_invalid(padding(json!("BatchLongest"), 1 << 40), "$.padding");
    let processor = |value: Value| Small::new().with("post_processor", value);
    let roberta = json!({
        "type": "RobertaProcessing", "sep": ["</s>", 70_000], "cls": ["<s>", 0],
        "trim_offsets": true, "add_prefix_space": true,
    });
    check_invalid(processor(roberta.clone()), "$.post_processor");
    let twice = json!({"type": "Sequence", "processors": [roberta, roberta]});
    check_unsupported(processor(twice), "$.post_processor.processors[1]");
    let same = Small::new()
        .with("normalizer", json!({"type": "NFC"}))
        .added("Å", &["normalized"])
        .added("\u{212B}", &["normalized"]);
    check_invalid(same, "$.added_tokens");
    let mut json: Value = serde_json::from_slice(DEMO).unwrap();
    json["model"].as_object_mut().unwrap().remove("merges");
    assert!(matches!(
        error(&serde_json::to_vec(&json).unwrap()),
        Error::Invalid { .. }
    ));
}

/// A vocabulary so large that `ab` may have such an id, and merges `ab` with `c`.
fn with_far_token(id: u32) -> Vec<u8> {
    let small = Small::new().merge("a", "b").merge("ab", "c");
    let mut json: Value = serde_json::from_slice(&small.bytes()).expect("it is JSON");
    let vocab = &mut json["model"]["vocab"];
    vocab["ab"] = json!(id);
    for n in 258..258 + id / 4 {
        vocab[format!("x{n}")] = json!(n);
    }
    serde_json::to_vec(&json).expect("values are JSON")
}

#[test]
fn merges_join_tokens_below_a_limit() {
    let limit = (1 << 20) - 1;
    let last = with_far_token(limit - 1);
    let tokenizer = Tokenizer::from_bytes(&last).unwrap();
    assert_eq!(tokenizer.token_to_id("ab"), Some(limit - 1));
    let reference = tokenizers::Tokenizer::from_bytes(&last).unwrap();
    for text in ["abc", "ab", "cab", "abcabxab", "abababc"] {
        let expected = reference.encode_fast(text, false).unwrap();
        assert_eq!(tokenizer.encode(text, false), expected.get_ids(), "{text}");
    }
    let error = error(&with_far_token(limit));
    assert!(
        matches!(&error, Error::Unsupported { path, .. } if path == "$.model.merges[1]"),
        "{error}"
    );
    let message = error.to_string();
    assert!(
        message.contains(r#""ab", whose id is 1048575"#),
        "{message}"
    );
}

#[test]
fn damaged_vocabularies_are_named() {
    let with_vocab = |from: &str, to: &str| {
        let json = String::from_utf8(Small::new().merge("a", "b").bytes()).unwrap();
        assert!(json.contains(from), "{from} is in {json}");
        error(json.replacen(from, to, 1).as_bytes())
    };
    let ab = r#""ab":256"#;
    assert!(matches!(
        with_vocab(ab, r#""ab":3"#),
        Error::DuplicateId { id: 3, .. }
    ));
    assert!(matches!(
        with_vocab(ab, r#""ab":256,"ab":257"#),
        Error::DuplicateToken { .. }
    ));
    assert!(matches!(
        with_vocab(ab, r#""ab":99999999"#),
        Error::IdOutOfRange { id: 99_999_999, .. }
    ));
    assert!(matches!(
        with_vocab(ab, r#""ab":18446744073709551615"#),
        Error::IdOutOfRange { .. }
    ));
    for id in ["-1", "1.5", "1e2", "null", r#""2""#] {
        let error = with_vocab(ab, &format!(r#""ab":{id}"#)).to_string();
        assert!(
            error.contains(r#"$.model.vocab: the id of "ab""#),
            "{error}"
        );
    }
    assert!(matches!(
        with_vocab(ab, r#""ax":256"#),
        Error::UnknownMergeToken { index: 0, .. }
    ));
    let merge = r#"["a b"]"#;
    assert!(matches!(
        with_vocab(merge, r#"["a q r"]"#),
        Error::MalformedMerge { index: 0, .. }
    ));
    assert!(matches!(
        with_vocab(merge, r#"["a"]"#),
        Error::MalformedMerge { .. }
    ));
    assert!(matches!(
        with_vocab(merge, r#"[["a"]]"#),
        Error::MalformedMerge { .. }
    ));
    assert!(matches!(
        with_vocab(merge, r#"["a bb"]"#),
        Error::UnknownMergeToken { .. }
    ));
    let message = with_vocab(merge, "[3]").to_string();
    assert!(message.contains("$.model.merges[0]"), "{message}");
    let lacking = Small::new()
        .without_token("ñ")
        .with_model("unk_token", json!("a"));
    assert!(matches!(
        error(&lacking.bytes()),
        Error::MissingByte { byte: 0xF1, .. }
    ));
    let lacking = Small::new()
        .without_token("a")
        .with_model("byte_fallback", json!(true));
    assert!(matches!(
        error(&lacking.bytes()),
        Error::MissingByte { byte: b'a', .. }
    ));
}

#[test]
fn holes_stay_empty_and_collisions_are_errors() {
    let json = String::from_utf8(Small::new().merge("a", "b").bytes()).unwrap();
    let holed = json.replacen(r#""ab":256"#, r#""ab":260"#, 1);
    let both = Both::from_json("holed", holed.as_bytes());
    both.check_many(1, 200);
    assert_eq!(both.ours.id_to_token(258), None);
    assert_eq!(both.ours.decode(&[258, 260], false), "ab");
    assert_eq!(both.ours.vocab_size(), 257);

    // The reference gives an added token the number of tokens as its id, which the
    // vocabulary uses here.
    let json = String::from_utf8(Small::new().merge("a", "b").added("<x>", &[]).bytes()).unwrap();
    let holed = json.replacen(r#""ab":256"#, r#""ab":257"#, 1);
    assert!(matches!(
        error(holed.as_bytes()),
        Error::DuplicateId { id: 257, .. }
    ));
}

#[test]
fn old_files_without_a_model_type_load() {
    let mut json: Value = serde_json::from_slice(DEMO).unwrap();
    json["model"].as_object_mut().unwrap().remove("type");
    let both = Both::from_json("untyped", &serde_json::to_vec(&json).unwrap());
    both.check_many(2, 100);
}

#[test]
fn missing_files_say_so() {
    let error = Tokenizer::from_file("/nonexistent/tokenizer.json").unwrap_err();
    assert!(matches!(&error, Error::Io { .. }));
    assert!(error.to_string().contains("/nonexistent/tokenizer.json"));
    assert!(
        Tokenizer::from_file(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/tokenizer.json"
        ))
        .is_ok()
    );
}

/// Cut files and changed bytes give an error or a tokenizer that works, never a panic.
#[test]
fn damaged_files_do_no_harm() {
    let mut rng = Rng(5);
    let small = Small::new()
        .merge("a", "b")
        .merge("Ġ", "ab")
        .added("<x>", &["normalized", "lstrip"])
        .with("normalizer", json!({"type": "NFC"}))
        .with(
            "pre_tokenizer",
            sequence(vec![split(
                r"(?i:'s|'t)|\p{L}{1,3}| ?\S+|\s+(?!\S)",
                "Removed",
                true,
            )]),
        )
        .bytes();
    let mut loaded = 0;
    for _ in 0..20_000 {
        let mut json = small.clone();
        match rng.below(4) {
            0 => json.truncate(rng.below(json.len())),
            1 => {
                let at = rng.below(json.len());
                json.remove(at);
            }
            _ => {
                for _ in 0..1 + rng.below(2) {
                    let at = rng.below(json.len());
                    json[at] = b"\"{}[],:0123456789-ab\\*+?|()<>"[rng.below(29)];
                }
            }
        }
        if let Ok(tokenizer) = Tokenizer::from_bytes(&json) {
            loaded += 1;
            let ids = tokenizer.encode("it's  <x>ab é\u{301} 123\n漢", true);
            tokenizer.decode(&ids, false);
            tokenizer.encode_with_offsets("it's  <x>ab é\u{301} 123\n漢", true);
        }
    }
    assert!(loaded > 100, "some changes do no damage: {loaded}");
}

/// The author of a file knows the hash. What shares one place of a table with thousands of
/// others must not make loading take thousands of times as long: the first token beyond a
/// bound is refused (unit tests of the tables count the steps).
#[test]
fn tokens_that_were_made_to_collide_are_refused() {
    // Eight bytes that make a factor of the hash zero, as the byte-level alphabet spells
    // them, so that it is zero whatever follows.
    let zero = "\u{d3}\u{108}\u{a3}\u{127}\u{12a}j?$";
    let with = |count: u32| {
        let small = Small::new().with_model("ignore_merges", json!(true));
        let add = |small: Small, n: u32| small.token(&format!("{zero}{n}"));
        (0..count).fold(small, add).bytes()
    };
    let refused = error(&with(100_000));
    assert!(
        matches!(&refused, Error::Unsupported { path, .. } if path == "$.model.vocab"),
        "{refused}"
    );
    let tokenizer = Tokenizer::from_bytes(&with(300)).expect("not too many");
    let id = |n: u32| tokenizer.token_to_id(&format!("{zero}{n}"));
    assert_eq!(id(299), id(0).map(|first| first + 299));
}

#[test]
fn words_that_were_made_to_collide_are_found() {
    // The upper bits of this hash decide over the line of a short word's table.
    let hash = |word: &str| {
        let mut low = [0; 8];
        low[..word.len()].copy_from_slice(word.as_bytes());
        let low = u64::from_le_bytes(low) ^ 0x243F_6A88_85A3_08D3;
        let high = (word.len() as u64) << 56 ^ 0xB7E1_5162_8AED_2A6B;
        let product = u128::from(low) * u128::from(high);
        product as u64 ^ (product >> 64) as u64
    };
    let words = (0..100_000).map(|n| format!("x{n}"));
    let words: Vec<_> = words
        .filter(|word| hash(word) >> 59 == 0)
        .take(1_500)
        .collect();
    assert_eq!(words.len(), 1_500);
    let small = Small::new().with_model("ignore_merges", json!(true));
    // Splits before each space only, so that letters and digits are one word.
    let small = small.with(
        "pre_tokenizer",
        sequence(vec![split(" ?[^ ]+", "Isolated", false)]),
    );
    let json = words.iter().fold(small, |small, word| small.token(word));
    let tokenizer = Tokenizer::from_bytes(&json.bytes()).expect("a file like others");
    for (n, word) in words.iter().enumerate() {
        assert_eq!(tokenizer.encode(word, false), [256 + n as u32], "{word}");
    }
}

/// Ids, offsets and decoded texts with the split pattern of each model are those of the reference.
#[test]
fn patterns_of_models_split_as_the_reference_does() {
    for (seed, (name, json)) in (0..).zip(split_patterns()) {
        Both::from_json(&name, &json).check_many(seed, 300);
    }
}

/// Files load without warnings if their pattern has a scanner, and otherwise with one that names it.
#[test]
fn slow_patterns_and_those_not_known_to_be_exact_are_warned_of() {
    for (name, json) in split_patterns() {
        let tokenizer = Tokenizer::from_bytes(&json).expect("loads");
        assert_eq!(tokenizer.warnings().is_empty(), name != "bloom", "{name}");
    }
    let warnings = |pattern: &str| {
        let steps = sequence(vec![split(pattern, "Isolated", false)]);
        let tokenizer = Tokenizer::from_bytes(&Small::new().with("pre_tokenizer", steps).bytes());
        tokenizer.expect("loads").warnings().to_vec()
    };
    let place = "$.pre_tokenizer.pretokenizers[0].pattern";
    let slow = Warning::SlowPattern {
        path: place.to_owned(),
        pattern: r"\d+|\D".to_owned(),
        alternative: Some(1),
    };
    assert_eq!(warnings(r"\d+|\D"), [slow]);
    let found = warnings(r"\b\w+");
    assert!(
        matches!(found.as_slice(), [Warning::InexactPattern { path, pattern, .. }]
            if path == place && pattern == r"\b\w+"),
        "{found:?}"
    );
    assert!(found[0].to_string().contains(place));
}

#[test]
fn an_added_token_has_a_bounded_length() {
    let with_token = |content: &str| {
        let mut json: Value = serde_json::from_slice(DEMO).expect("JSON");
        let token = json["added_tokens"][0].as_object_mut().expect("a token");
        token.insert("content".to_owned(), content.into());
        token.insert("normalized".to_owned(), false.into());
        Tokenizer::from_bytes(json.to_string().as_bytes())
    };
    for first in ["x", "<"] {
        assert!(with_token(&first.repeat(4_096)).is_ok());
        let error = with_token(&first.repeat(4_097)).map(|_| ()).unwrap_err();
        let is_named = |part: &str| error.to_string().contains(part);
        assert!(is_named("id ") && is_named("4097 bytes"), "{error}");
        // Not within hours without the bound.
        assert!(with_token(&first.repeat(5_000_000)).is_err());
    }
}

/// Returns the result of `load`; panics if it takes a minute, as waiting for a pipe's other end does.
#[cfg(unix)]
fn in_time<T: Send + 'static>(load: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(load()));
    let result = receiver.recv_timeout(std::time::Duration::from_secs(60));
    result.expect("loading ends")
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_not_read() {
    let folder = std::env::temp_dir().join(format!("fasttoken-special-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    for kind in ["pipe", "zero"] {
        for name in [
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "a.ftk",
        ] {
            let path = folder.join(name);
            match kind {
                "pipe" => {
                    let made = std::process::Command::new("mkfifo").arg(&path).status();
                    assert!(made.expect("POSIX has mkfifo").success());
                }
                _ => std::os::unix::fs::symlink("/dev/zero", &path).expect("links can be made"),
            }
            let (cache, at, of) = (folder.clone(), path.clone(), name);
            let errors = in_time(move || match of {
                "tokenizer.json" => vec![
                    Tokenizer::from_file(&at).map(|_| ()),
                    Tokenizer::from_file_cached(&at, &cache).map(|_| ()),
                ],
                "a.ftk" => vec![Tokenizer::from_compiled(&at).map(|_| ())],
                _ => vec![SpecialTokens::from_folder(&cache).map(|_| ())],
            });
            for error in errors {
                let error = error.unwrap_err().to_string();
                assert!(error.contains(name), "{kind}: {error}");
            }
            std::fs::remove_file(path).expect("it was made");
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
}
