//! Pairs, templates, truncation, padding and every column of an encoding, as in the
//! reference.

use crate::common::{Both, DEMO, Rng, adversarial, shared_vocabularies};
use fasttoken::{
    EncodeError, EncodeOptions, Encoding, Input, Offsets, Padding, PaddingLength, Side, Tokenizer,
    Truncation, TruncationStrategy,
};
use serde_json::{Value, json};
use tokenizers::utils::padding::{PaddingDirection, PaddingParams, PaddingStrategy};
use tokenizers::utils::truncation::{
    TruncationDirection, TruncationParams, TruncationStrategy as ReferenceStrategy,
};
use tokenizers::{EncodeInput, Encoding as ReferenceEncoding, Tokenizer as Reference};

/// Every column, and what overflowed, and what overflowed from that.
fn check_equal(ours: &Encoding, theirs: &ReferenceEncoding, columns: bool, what: &str) {
    assert_eq!(ours.ids, theirs.get_ids(), "ids: {what}");
    if columns {
        assert_eq!(ours.type_ids, theirs.get_type_ids(), "types: {what}");
        assert_eq!(ours.word_ids, theirs.get_word_ids(), "words: {what}");
        assert_eq!(ours.offsets, theirs.get_offsets(), "offsets: {what}");
    }
    let mask = theirs.get_special_tokens_mask();
    assert_eq!(ours.special_tokens_mask, mask, "special tokens: {what}");
    let mask = theirs.get_attention_mask();
    assert_eq!(ours.attention_mask, mask, "attention: {what}");
    let sequences = theirs.get_sequence_ids();
    assert_eq!(ours.sequence_ids(), sequences, "sequences: {what}");
    let overflowing = theirs.get_overflowing();
    assert_eq!(ours.overflowing.len(), overflowing.len(), "pieces: {what}");
    for (n, (ours, theirs)) in ours.overflowing.iter().zip(overflowing).enumerate() {
        check_equal(ours, theirs, columns, &format!("piece {n} of {what}"));
    }
}

fn processors() -> Vec<(&'static str, Value)> {
    let level = |trim: bool, prefix: bool| {
        json!({"type": "ByteLevel", "trim_offsets": trim, "add_prefix_space": prefix,
               "use_regex": true})
    };
    let special = |id: &str, type_id: u32| json!({"SpecialToken": {"id": id, "type_id": type_id}});
    let text = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
    let tokens = json!({
        "[C]": {"id": "[C]", "ids": [300], "tokens": ["[C]"]},
        "[S]": {"id": "[S]", "ids": [301, 302], "tokens": ["[S", "]"]},
    });
    let template = |single: Value, pair: Value| {
        json!({"type": "TemplateProcessing", "single": single, "pair": pair,
               "special_tokens": tokens})
    };
    let bert = template(
        json!([special("[C]", 0), text("A", 0), special("[S]", 0)]),
        json!([
            special("[C]", 0),
            text("A", 0),
            special("[S]", 0),
            text("B", 1),
            special("[S]", 1)
        ]),
    );
    let odd = template(
        json!([text("A", 3), special("[C]", 5), text("A", 4)]),
        json!([text("B", 2), text("A", 1), special("[C]", 7), text("B", 6)]),
    );
    let roberta = |trim: bool, prefix: bool| {
        json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0],
               "trim_offsets": trim, "add_prefix_space": prefix})
    };
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "processors": steps});
    vec![
        ("none", Value::Null),
        ("byte level", level(false, false)),
        ("byte level, trimming", level(true, false)),
        ("byte level, trimming after a space", level(true, true)),
        ("template", bert.clone()),
        ("odd template", odd),
        ("empty template", template(json!([]), json!([]))),
        (
            "byte level, template",
            sequence(vec![level(true, true), bert.clone()]),
        ),
        (
            "template, byte level",
            sequence(vec![bert, level(true, false)]),
        ),
        ("roberta", roberta(true, true)),
        ("roberta, no trimming", roberta(false, true)),
        (
            "byte level, roberta",
            sequence(vec![level(true, false), roberta(true, false)]),
        ),
    ]
}

fn with_processor(processor: Value) -> Vec<u8> {
    let mut json: Value = serde_json::from_slice(DEMO).expect("the demo is JSON");
    json["post_processor"] = processor;
    serde_json::to_vec(&json).expect("JSON can be written")
}

fn random_truncation(rng: &mut Rng) -> Truncation {
    let strategies = [
        TruncationStrategy::LongestFirst,
        TruncationStrategy::OnlyFirst,
        TruncationStrategy::OnlySecond,
    ];
    let stride = if rng.below(2) == 0 { 0 } else { rng.below(4) };
    Truncation::new(rng.below(24))
        .strategy(strategies[rng.below(3)])
        .side([Side::Left, Side::Right][rng.below(2)])
        .stride(stride)
}

fn random_padding(rng: &mut Rng) -> Padding {
    let mut padding = Padding::new(rng.below(300) as u32, "[PAD]")
        .side([Side::Left, Side::Right][rng.below(2)])
        .type_id(rng.below(3) as u32);
    if rng.below(2) == 0 {
        padding = padding.length(PaddingLength::Fixed(rng.below(30)));
    }
    if rng.below(2) == 0 {
        padding = padding.pad_to_multiple_of(rng.below(9));
    }
    padding
}

fn reference_truncation(ours: &Truncation) -> TruncationParams {
    TruncationParams {
        max_length: ours.max_length,
        stride: ours.stride,
        direction: match ours.side {
            Side::Left => TruncationDirection::Left,
            Side::Right => TruncationDirection::Right,
        },
        strategy: match ours.strategy {
            TruncationStrategy::LongestFirst => ReferenceStrategy::LongestFirst,
            TruncationStrategy::OnlyFirst => ReferenceStrategy::OnlyFirst,
            TruncationStrategy::OnlySecond => ReferenceStrategy::OnlySecond,
        },
    }
}

fn reference_padding(ours: &Padding) -> PaddingParams {
    PaddingParams {
        strategy: match ours.length {
            PaddingLength::BatchLongest => PaddingStrategy::BatchLongest,
            PaddingLength::Fixed(length) => PaddingStrategy::Fixed(length),
        },
        direction: match ours.side {
            Side::Left => PaddingDirection::Left,
            Side::Right => PaddingDirection::Right,
        },
        pad_to_multiple_of: ours.pad_to_multiple_of,
        pad_id: ours.id,
        pad_type_id: ours.type_id,
        pad_token: ours.token.clone(),
    }
}

fn to_reference(input: Input<'_>) -> EncodeInput<'_> {
    match input {
        Input::Single(text) => text.into(),
        Input::Pair(a, b) => (a, b).into(),
    }
}

/// The cases that `check_input` saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    cut: usize,
    refused: usize,
    with_pieces: usize,
}

impl Seen {
    /// Returns true if the inputs reached what they are for.
    pub(crate) fn is_enough(&self) -> bool {
        self.cut > 1_000 && self.with_pieces > 200
    }
}

/// Checks one input with one setting. The reference already has the setting.
fn check_input(
    ours: &Tokenizer,
    reference: &Reference,
    input: Input<'_>,
    options: &EncodeOptions,
    special: bool,
    seen: &mut Seen,
) {
    let what = format!("{input:?} {options:?}");
    let options = options.clone().add_special_tokens(special);
    for offsets in [Offsets::Bytes, Offsets::Chars, Offsets::None] {
        let options = options.clone().offsets(offsets);
        let encoding = match ours.encode_with(input, &options) {
            // Here the reference panics, or counts below zero.
            Err(EncodeError::Stride { .. } | EncodeError::TemplateTooLong { .. }) => {
                seen.refused += 1;
                return;
            }
            other => other,
        };
        let input = to_reference(input);
        let theirs = match offsets {
            Offsets::Bytes => reference.encode(input, special),
            Offsets::Chars => reference.encode_char_offsets(input, special),
            Offsets::None => reference.encode_fast(input, special),
        };
        match (encoding, theirs) {
            (Ok(encoding), Ok(theirs)) => {
                check_equal(&encoding, &theirs, offsets != Offsets::None, &what);
                seen.with_pieces += usize::from(!encoding.overflowing.is_empty());
                seen.cut += 1;
            }
            (Err(EncodeError::NoSecondText | EncodeError::TooShort { .. }), Err(_)) => {
                seen.refused += 1;
            }
            (ours, theirs) => panic!("{ours:?} {theirs:?}: {what}"),
        }
    }
}

/// Checks `count` random settings, each with a few random inputs.
pub(crate) fn check_settings(name: &str, json: &[u8], seed: u64, count: usize) -> Seen {
    let mut both = Both::from_json(name, json);
    let mut rng = Rng(seed);
    let mut seen = Seen::default();
    for _ in 0..count {
        let truncation = (rng.below(6) > 0).then(|| random_truncation(&mut rng));
        let padding = (rng.below(3) == 0).then(|| random_padding(&mut rng));
        let theirs = truncation.as_ref().map(reference_truncation);
        let special = rng.below(2) == 0;
        let options = EncodeOptions::new()
            .truncation(truncation)
            .padding(padding.clone());
        let added = both.ours.count("", true);
        if truncation.is_some_and(|t| t.max_length < added)
            || both.reference.with_truncation(theirs).is_err()
        {
            // The reference refuses, or counts below zero.
            continue;
        }
        let theirs = padding.as_ref().map(reference_padding);
        both.reference.with_padding(theirs);
        for _ in 0..4 {
            let a = adversarial(&mut rng, &both.added);
            let b = adversarial(&mut rng, &both.added);
            for input in [Input::Single(&a), Input::Pair(&a, &b)] {
                check_input(
                    &both.ours,
                    &both.reference,
                    input,
                    &options,
                    special,
                    &mut seen,
                );
            }
        }
    }
    seen
}

#[test]
fn every_setting_with_every_processor() {
    let mut seen = Seen::default();
    for (name, processor) in processors() {
        let one = check_settings(name, &with_processor(processor), 11, 250);
        seen.cut += one.cut;
        seen.refused += one.refused;
        seen.with_pieces += one.with_pieces;
    }
    // The inputs must reach what they are for.
    assert!(seen.cut > 20_000, "{seen:?}");
    assert!(seen.refused > 500, "{seen:?}");
    assert!(seen.with_pieces > 5_000, "{seen:?}");
}

#[test]
fn every_setting_on_real_vocabularies() {
    for (name, path) in shared_vocabularies() {
        let json = std::fs::read(path).expect("readable");
        let seen = check_settings(&name, &json, 5, 100);
        assert!(seen.cut > 500 && seen.with_pieces > 100, "{seen:?}");
    }
}

/// Texts of several kilobytes, of which a limited encode looks at a part only.
fn check_long_texts(both: &mut Both, seed: u64, texts: usize) {
    let mut rng = Rng(seed);
    let joints = [
        " and then ",
        "中文，",
        " ",
        "",
        "A b",
        "かな。",
        "\n",
        " 7 x ",
    ];
    for _ in 0..texts {
        let mut text = String::new();
        for _ in 0..rng.below(60) {
            text.push_str(&adversarial(&mut rng, &both.added));
            text.push_str(joints[rng.below(joints.len())]);
        }
        let all = both.ours.encode_with_offsets(&text, false);
        let mut covered = 0;
        let mut limits: Vec<usize> = (0..6).map(|_| rng.below(all.len() + 2)).collect();
        limits.extend([0, 1, 2, 30, 31, 32, 33, 34, all.len()]);
        limits.sort_unstable();
        for limit in limits {
            let (ids, bytes) = both.ours.encode_prefix(&text, limit);
            let kept = limit.min(all.len());
            assert_eq!(ids, all.ids[..kept], "{limit} of {text:?}");
            assert!(bytes >= covered && text.is_char_boundary(bytes));
            covered = bytes;
            if limit >= all.len() {
                assert_eq!(bytes, text.len());
            }
        }
        let max = rng.below(all.len() + 2);
        let truncation = Truncation::new(max);
        let theirs = Some(reference_truncation(&truncation));
        both.reference.with_truncation(theirs).expect("no stride");
        let options = EncodeOptions::new().truncation(Some(truncation));
        let input = Input::Pair(&text, &text);
        let (ours, reference) = (&both.ours, &both.reference);
        check_input(
            ours,
            reference,
            input,
            &options,
            false,
            &mut Seen::default(),
        );
    }
}

#[test]
fn the_beginning_of_a_long_text() {
    check_long_texts(&mut Both::demo(), 3, 400);
    // Tokens that could be cut in two, take blanks, or want to stand alone.
    let json: Value = serde_json::from_slice(DEMO).expect("the demo is JSON");
    for contents in [
        &["a b", "中，文"][..],
        &["<x>", " ", "and"],
        &["，", "A b ", "七"],
    ] {
        for flags in ["", "lstrip", "rstrip", "single_word", "normalized"] {
            let mut json = json.clone();
            for (n, content) in contents.iter().enumerate() {
                let mut token = json!({
                    "id": 5000 + n, "content": content, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": true,
                });
                if !flags.is_empty() {
                    token[flags] = json!(true);
                }
                let added = json["added_tokens"].as_array_mut().expect("a list");
                added.push(token);
            }
            let json = serde_json::to_vec(&json).expect("JSON can be written");
            let mut both = Both::from_json(flags, &json);
            check_long_texts(&mut both, 4, 25);
        }
    }
    for (name, path) in shared_vocabularies() {
        let mut both = Both::from_json(&name, &std::fs::read(path).expect("readable"));
        check_long_texts(&mut both, 5, 60);
    }
}

/// The window ends where the last id that is wanted ends, and in the whole text the
/// token takes the blank that follows.
#[test]
fn a_token_at_the_end_of_a_window_takes_its_blanks() {
    let mut json: Value = serde_json::from_slice(DEMO).expect("the demo is JSON");
    let added = json["added_tokens"].as_array_mut().expect("a list");
    added.push(json!({
        "id": 5000, "content": "<mark>", "single_word": false, "lstrip": false,
        "rstrip": true, "normalized": false, "special": true,
    }));
    let tokenizer = Tokenizer::from_bytes(&serde_json::to_vec(&json).expect("JSON"));
    let tokenizer = tokenizer.expect("the file loads");
    let text = format!("{} b{}", "<mark>".repeat(32), "~".repeat(999));
    let (ids, bytes) = tokenizer.encode_prefix(&text, 32);
    assert_eq!((ids.len(), bytes), (32, 32 * 6 + 1));
}

/// Settings inside the file count, for `options` and only there.
#[test]
fn settings_of_the_file_are_its_options() {
    let mut json: Value = serde_json::from_slice(DEMO).expect("the demo is JSON");
    json["truncation"] = json!({
        "direction": "Left", "max_length": 5, "strategy": "OnlyFirst", "stride": 2,
    });
    json["padding"] = json!({
        "strategy": {"Fixed": 7}, "direction": "Left", "pad_to_multiple_of": 4, "pad_id": 9,
        "pad_type_id": 2, "pad_token": "<pad>",
    });
    let json = serde_json::to_vec(&json).expect("JSON can be written");
    let both = Both::from_json("with settings", &json);
    let text = "Where is my card? I am still waiting.";
    for special in [false, true] {
        let options = both.ours.options().add_special_tokens(special);
        let mut seen = Seen::default();
        let (ours, reference) = (&both.ours, &both.reference);
        check_input(
            ours,
            reference,
            Input::Single(text),
            &options,
            special,
            &mut seen,
        );
        let pair = Input::Pair(text, "It is on its way.");
        check_input(ours, reference, pair, &options, special, &mut seen);
        assert!(seen.cut > 0, "{seen:?}");
    }
    let plain = Tokenizer::from_bytes(DEMO).expect("the demo loads");
    assert_eq!(both.ours.encode(text, true), plain.encode(text, true));
    assert_eq!(
        both.ours.encode_batch(&[text], true, 1)[0],
        plain.encode(text, true)
    );
}

#[test]
fn a_batch_is_filled_up_together() {
    let mut rng = Rng(8);
    let mut both = Both::demo();
    for round in 0..60 {
        let padding = random_padding(&mut rng);
        both.reference
            .with_padding(Some(reference_padding(&padding)));
        let truncation = (round % 2 == 0).then(|| Truncation::new(4 + rng.below(9)));
        let theirs = truncation.as_ref().map(reference_truncation);
        both.reference.with_truncation(theirs).expect("no stride");
        let texts: Vec<String> = (0..rng.below(6))
            .map(|_| adversarial(&mut rng, &both.added))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let options = EncodeOptions::new()
            .truncation(truncation)
            .padding(Some(padding))
            .add_special_tokens(true);
        let ours = both.ours.encode_batch_with(&texts, &options, 1 + round % 3);
        let ours = ours.expect("nothing to refuse");
        let theirs = both
            .reference
            .encode_batch(texts.clone(), true)
            .expect("works");
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            check_equal(ours, theirs, true, &format!("{texts:?} {options:?}"));
        }
    }
}

#[test]
fn pairs_in_a_batch_are_pairs() {
    let both = Both::demo();
    let pairs = [("one", "two three"), ("", "x"), ("four", "")];
    let ids = both.ours.encode_batch(&pairs, true, 2);
    let encodings = both
        .ours
        .encode_batch_with(&pairs, &EncodeOptions::new().add_special_tokens(true), 2)
        .expect("no truncation");
    for (((a, b), ids), encoding) in pairs.iter().zip(&ids).zip(&encodings) {
        assert_eq!(ids, &both.ours.encode((*a, *b), true));
        assert_eq!(ids, &encoding.ids);
    }
    // The first error of a batch is its result.
    let options = EncodeOptions::new().truncation(Some(
        Truncation::new(1).strategy(TruncationStrategy::OnlySecond),
    ));
    let error = both.ours.encode_batch_with(&["a b c"], &options, 1);
    assert_eq!(error, Err(EncodeError::NoSecondText));
}

/// Overflowing pieces can be as large as the square of a text, which the reference accepts.
/// Returns the encoding of a text that the reference encodes without a limit and then truncates.
#[test]
fn whole_texts_overflow_to_their_end() {
    let both = Both::demo();
    let mut rng = Rng(29);
    for _ in 0..300 {
        let text = adversarial(&mut rng, &both.added);
        let truncation = Truncation::new(1 + rng.below(9)).side(match rng.below(2) {
            0 => Side::Left,
            _ => Side::Right,
        });
        let truncation = truncation.stride(rng.below(truncation.max_length));
        let options = EncodeOptions::new()
            .truncation(Some(truncation))
            .whole_texts(true);
        let ours = both.ours.encode_with(&text, &options).expect("encodes");
        let mut theirs = both
            .reference
            .encode(text.as_str(), false)
            .expect("encodes");
        let params = reference_truncation(&truncation);
        theirs.truncate(params.max_length, params.stride, params.direction);
        check_equal(
            &ours,
            &theirs,
            true,
            &format!("{text:?} with {truncation:?}"),
        );
    }
}

#[test]
fn overflowing_has_a_bound() {
    let tokenizer = Tokenizer::from_bytes(DEMO).expect("the demo loads");
    // One word of one token per character.
    let text: String = "ab~".repeat(30_000);
    let options = EncodeOptions::new().truncation(Some(Truncation::new(9_000).stride(8_999)));
    let text = text.replace(['a', 'b'], "\u{10FFFF}");
    let error = tokenizer.encode_with(&text, &options);
    assert!(
        matches!(error, Err(EncodeError::TooMuchOverflow { .. })),
        "{:?}",
        error.map(|encoding| (encoding.len(), encoding.overflowing.len()))
    );
    let kept = tokenizer
        .encode_with(&text, &options.overflowing(false))
        .expect("nothing overflows");
    assert_eq!((kept.len(), kept.overflowing.len()), (9_000, 0));
}

#[test]
fn a_prefix_of_any_length_is_the_whole() {
    let tokenizer = Tokenizer::from_bytes(DEMO).expect("the demo loads");
    let text = "Where is my card? 🙂";
    for max in [usize::MAX, usize::MAX - 1] {
        let whole = (tokenizer.encode(text, false), text.len());
        assert_eq!(tokenizer.encode_prefix(text, max), whole);
    }
}

/// Neither the pieces nor the length are many, but their product is.
#[test]
fn padding_of_all_pieces_has_a_bound() {
    let tokenizer = Tokenizer::from_bytes(DEMO).expect("the demo loads");
    let options = EncodeOptions::new()
        .truncation(Some(Truncation::new(1)))
        .padding(Some(
            Padding::new(0, "").length(PaddingLength::Fixed(1 << 16)),
        ));
    let refused = |error| matches!(error, Err(EncodeError::TooMuchPadding { .. }));
    let text = "\u{10FFFF}".repeat(25_000);
    assert!(refused(tokenizer.encode_with(&text, &options).map(drop)));
    let kept = tokenizer.encode_with(&text, &options.clone().overflowing(false));
    assert_eq!(kept.map(|encoding| encoding.len()), Ok(1 << 16));
    // One long text in a batch of many short ones.
    let long = "\u{10FFFF}".repeat(1 << 12);
    let mut batch = vec!["a"; 1 << 12];
    batch.push(&long);
    let longest = EncodeOptions::new().padding(Some(Padding::new(0, "")));
    let error = tokenizer.encode_batch_with(&batch, &longest, 1);
    assert!(refused(error.map(drop)));
}

#[test]
fn absurd_padding_is_refused() {
    let tokenizer = Tokenizer::from_bytes(DEMO).expect("the demo loads");
    let padding = Padding::new(0, "");
    for padding in [
        padding.clone().length(PaddingLength::Fixed(usize::MAX)),
        padding.clone().pad_to_multiple_of(usize::MAX),
    ] {
        let options = EncodeOptions::new().padding(Some(padding));
        let refused = |error| matches!(error, Err(EncodeError::PaddingTooLong { .. }));
        assert!(refused(tokenizer.encode_with("a", &options).map(drop)));
        let batch = tokenizer.encode_batch_with(&["a", "b"], &options, 1);
        assert!(refused(batch.map(drop)));
    }
}

#[test]
fn truncations_that_cannot_work_are_named() {
    let check = |max_length: usize, stride: usize, special: bool, expected: &str| {
        let tokenizer = Tokenizer::from_bytes(&with_processor(processors()[4].1.clone()));
        let tokenizer = tokenizer.expect("the template loads");
        let options = EncodeOptions::new()
            .truncation(Some(Truncation::new(max_length).stride(stride)))
            .add_special_tokens(special);
        let error = tokenizer
            .encode_with("one two three four", &options)
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    check(2, 0, true, "the template alone adds 3");
    check(5, 3, true, "a stride of 3 needs pieces of more");
}
