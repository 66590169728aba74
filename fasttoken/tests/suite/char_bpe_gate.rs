//! The gate for SentencePiece-style models: equality with the reference in the shapes of
//! published files, and in shapes that nobody publishes but the format allows.

use crate::common::Both;
use crate::common::sentencepiece_models::{Shape, decoder, replace};
use serde_json::json;

/// Strings for each of the three published shapes in every run, and for each unusual one:
/// a hundred thousand for the vocabulary, which all share.
const PUBLISHED_STRINGS: usize = 20_000;
const UNUSUAL_STRINGS: usize = 2_000;

fn both(name: &str, shape: &Shape) -> Both {
    Both::from_json(name, &shape.bytes())
}

fn check(shapes: Vec<(&str, Shape)>, strings: usize) {
    // The vocabulary is trained once, outside the threads.
    let all: Vec<Both> = shapes.iter().map(|(name, s)| both(name, s)).collect();
    std::thread::scope(|scope| {
        for (n, both) in all.iter().enumerate() {
            scope.spawn(move || {
                both.check_vocabulary();
                both.check_many(n as u64, strings);
            });
        }
    });
}

#[test]
fn published_shapes_are_exact() {
    let shapes = vec![
        ("Llama 2", Shape::legacy()),
        ("Llama 2 with Metaspace", Shape::metaspace("first", false)),
        ("Gemma", Shape::gemma()),
    ];
    check(shapes, PUBLISHED_STRINGS);
}

#[test]
fn unusual_shapes_are_exact() {
    let metaspace = |scheme: &str| {
        json!({
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true,
        })
    };
    let mut normalized = Shape::legacy();
    normalized.add("<tool>", false, true);
    normalized.add("card", false, true);
    let mut first = Shape::metaspace("first", false);
    first.add("▁▁", false, true);
    first.add("<tool>", true, true);
    let first = first.with("normalizer", replace("é", "▁▁"));
    let mut old = Shape::legacy();
    for token in old.json["added_tokens"].as_array_mut().expect("a list") {
        token["normalized"] = json!(true);
    }
    let is_byte = |token: &str| token.starts_with("<0x");
    let few = |shape: Shape| shape.without(move |t| is_byte(t) && t > "<0x80>");
    let shapes = vec![
        ("always, split", Shape::metaspace("always", true)),
        ("always", Shape::metaspace("always", false)),
        ("first, split", Shape::metaspace("first", true)),
        ("never, split", Shape::metaspace("never", true)),
        ("never", Shape::metaspace("never", false)),
        ("normalized added tokens", normalized),
        ("first after a normalizer", first),
        ("special tokens in normalized text", old),
        (
            "first, spaces to nothing",
            Shape::metaspace("first", false).with("normalizer", replace(" ", "")),
        ),
        (
            "first, two characters to one",
            Shape::metaspace("first", true).with("normalizer", replace("th", "x")),
        ),
        (
            "ignore_merges",
            Shape::metaspace("always", true).model("ignore_merges", json!(true)),
        ),
        (
            "NFKC",
            Shape::metaspace("always", true).with("normalizer", json!({"type": "NFKC"})),
        ),
        (
            "spaces to nothing",
            Shape::legacy().with("normalizer", replace(" ", "")),
        ),
        (
            "Metaspace decoder, always",
            Shape::metaspace("always", true).with("decoder", metaspace("always")),
        ),
        (
            "Metaspace decoder, never",
            Shape::metaspace("never", true).with("decoder", metaspace("never")),
        ),
        (
            "Metaspace decoder and bytes",
            Shape::metaspace("first", true).with(
                "decoder",
                json!({"type": "Sequence", "decoders": [
                    metaspace("first"), {"type": "ByteFallback"}, {"type": "Fuse"},
                ]}),
            ),
        ),
        (
            "no ByteFallback in the decoder",
            Shape::legacy().with(
                "decoder",
                json!({"type": "Sequence", "decoders": [replace("▁", " "), {"type": "Fuse"}]}),
            ),
        ),
        (
            "no bytes, fused unknowns",
            Shape::legacy().model("byte_fallback", json!(false)),
        ),
        (
            "no bytes, single unknowns",
            Shape::legacy()
                .model("byte_fallback", json!(false))
                .model("fuse_unk", json!(false)),
        ),
        (
            "no bytes, no unknown token",
            Shape::legacy()
                .model("byte_fallback", json!(false))
                .model("unk_token", json!(null)),
        ),
        ("some bytes, fused unknowns", few(Shape::legacy())),
        (
            "some bytes, single unknowns",
            few(Shape::metaspace("first", true)).model("fuse_unk", json!(false)),
        ),
        (
            "some bytes, no unknown token",
            few(Shape::gemma()).model("unk_token", json!(null)),
        ),
        (
            "no space token",
            Shape::legacy().without(|token| token.contains('▁')),
        ),
        (
            "another decoder",
            Shape::gemma().with("decoder", decoder(true)),
        ),
    ];
    check(shapes, UNUSUAL_STRINGS);
}

/// No input takes quadratic time; a quadratic step would take minutes here.
#[test]
fn long_inputs_are_exact_and_finish() {
    for (name, shape) in [
        ("Llama 2", Shape::legacy()),
        ("always, split", Shape::metaspace("always", true)),
        ("Gemma", Shape::gemma()),
    ] {
        let both = both(name, &shape);
        for unit in [
            "a",
            "e",
            " ",
            "▁",
            "\n",
            "🙂",
            "漢",
            "中",
            "the ",
            "ab▁",
            "QUJDREVGR0hJSktM",
            "1",
            "\u{301}",
            "한",
            "<0x41>",
            "<s>",
            "<",
        ] {
            let text = unit.repeat((1 << 19) / unit.len());
            let ids = both.ours.encode(&text, false);
            assert_eq!(both.ours.count(&text, false), ids.len());
            let (prefix, _) = both.ours.encode_prefix(&text, 1000);
            assert_eq!(prefix, ids[..ids.len().min(1000)]);
            both.check_text(&unit.repeat(3_000 / unit.len()));
        }
    }
}

/// Each part after an added token asks where it begins; a look at the whole segment for
/// each would take minutes.
#[test]
fn many_parts_of_one_segment_finish() {
    let mut shape = Shape::metaspace("first", false);
    shape.add("<tool>", false, true);
    let both = both("parts", &shape);
    let text = "a<tool>".repeat(1 << 17);
    assert!(both.ours.count(&text, false) >= 1 << 18);
    both.check_text(&"a<tool>".repeat(300));
}

#[test]
fn a_prefix_of_any_length_is_the_whole() {
    for shape in [Shape::legacy(), Shape::gemma()] {
        let ours = both("prefix", &shape).ours;
        let text = "Where is my card? 🙂";
        for max in [usize::MAX, usize::MAX - 1] {
            let whole = (ours.encode(text, false), text.len());
            assert_eq!(ours.encode_prefix(text, max), whole);
        }
    }
}

/// The documentation of `StreamDecoder` states this difference from the reference.
#[test]
fn a_stream_writes_a_whole_replacement_character_at_once() {
    let both = both("stream", &Shape::gemma());
    let ids = both.ours.encode("o_\u{FFFD}", false);
    let mut decoder = both.ours.stream_decoder(true);
    let mut reference = both.reference.decode_stream(true);
    let (mut text, mut theirs) = (String::new(), String::new());
    for &id in &ids {
        decoder.push(id, &mut text);
        theirs += &reference
            .step(id)
            .expect("the reference works")
            .unwrap_or_default();
    }
    assert_eq!(text, "o_\u{FFFD}");
    assert_eq!(theirs, "o_", "the reference holds it back");
}

/// Text from people must not speak as the program.
#[test]
fn plain_text_gives_no_added_tokens() {
    for shape in [
        Shape::legacy(),
        Shape::metaspace("first", false),
        Shape::gemma(),
    ] {
        let both = both("plain", &shape);
        for text in [
            "</s>",
            "a <s> b",
            "▁▁",
            "\n\n x\n\n",
            "<start_of_turn>user",
            "<unk>",
        ] {
            let mut ids = Vec::new();
            both.ours.encode_plain_into(text, &mut ids);
            let added = both.ours.added_tokens().map(|(id, _)| id);
            let found: Vec<u32> = added.filter(|id| ids.contains(id)).collect();
            assert!(found.is_empty(), "{text:?}: {ids:?} has {found:?}");
            let visible = both.ours.decode(&ids, true);
            assert_eq!(visible.trim_start(), text.replace('▁', " ").trim_start());
        }
    }
}

#[test]
fn settings_that_would_not_be_exact_are_refused_by_name() {
    let precompiled = crate::common::scored::precompiled();
    let regex = json!({
        "type": "Replace", "pattern": {"Regex": " +"}, "content": "▁",
    });
    let reversed = json!({"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, replace("▁", " "),
    ]});
    let stop = json!({"type": "Sequence", "decoders": [
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1},
    ]});
    let other = json!({
        "type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": true,
    });
    let contradiction = json!({
        "type": "Metaspace", "replacement": "▁", "add_prefix_space": false,
        "prepend_scheme": "always",
    });
    let cases = [
        ("normalizer", precompiled, "normalizer Precompiled"),
        ("normalizer", regex, "regular expression"),
        ("decoder", reversed, "decoder Replace at this place"),
        ("decoder", stop, "Strip at the end"),
        ("pre_tokenizer", other, "\"_\""),
        ("pre_tokenizer", contradiction, "contradicts"),
        ("pre_tokenizer", json!({"type": "Whitespace"}), "Whitespace"),
        (
            "post_processor",
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}),
            "trims offsets",
        ),
    ];
    for (part, value, expected) in cases {
        let file = Shape::legacy().with(part, value).bytes();
        let error = fasttoken::Tokenizer::from_bytes(&file).expect_err(part);
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains(part), "{text}");
    }
    let mut rule = Shape::legacy();
    let merges = rule.json["model"]["merges"].as_array_mut().expect("a list");
    merges.push(json!(["<0x41>", "a"]));
    rule.json["model"]["vocab"]["<0x41>a"] = json!(5_000);
    let error = fasttoken::Tokenizer::from_bytes(&rule.bytes()).expect_err("a merge of bytes");
    assert!(error.to_string().contains("stands for bytes"), "{error}");
}
