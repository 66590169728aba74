//! Unit tests: files that are refused, and user-defined symbols in text that is not trusted.

use crate::{Error, Recognise, Tokenizer};

/// Returns a field of a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 128 && number < 16);
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// Returns a piece with a score and a kind.
fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let score = [&[2 << 3 | 5], score.to_le_bytes().as_slice()].concat();
    field(
        1,
        &[field(1, text.as_bytes()), score, vec![3 << 3, kind]].concat(),
    )
}

/// Returns a file with `trainer` as its settings of training, and an identity normalizer that keeps
/// spaces.
fn file(pieces: &[(&str, f32, u8)], trainer: &[u8]) -> Vec<u8> {
    let pieces = pieces
        .iter()
        .flat_map(|&(text, score, kind)| piece(text, score, kind));
    let mut file: Vec<u8> = pieces.collect();
    file.extend(field(2, trainer));
    file.extend(field(3, &[3 << 3, 0, 4 << 3, 0]));
    file
}

/// The settings of a BPE and of a Unigram model.
const BPE: &[u8] = &[3 << 3, 2];
const UNIGRAM: &[u8] = &[3 << 3, 1];

const UNK: (&str, f32, u8) = ("<unk>", 0.0, 2);

fn load(pieces: &[(&str, f32, u8)], trainer: &[u8]) -> Result<Tokenizer, Error> {
    Tokenizer::from_sentencepiece(&file(pieces, trainer))
}

#[track_caller]
fn refused(pieces: &[(&str, f32, u8)], trainer: &[u8], message: &str) {
    let error = load(pieces, trainer).unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn settings_and_pieces_that_are_not_supported_are_refused_by_name() {
    let a = ("a", -1.0, 1);
    let byte_fallback = &[3 << 3, 2, 0x98, 2, 1];
    for (trainer, message) in [
        (&[3 << 3, 3][..], "trainer_spec.model_type: model type WORD"),
        (&[3 << 3, 4], "model type CHAR"),
        (&[3 << 3, 9], "model type number 9"),
        (byte_fallback, "byte_fallback = true needs 256"),
    ] {
        refused(&[UNK, a], trainer, message);
    }
    refused(&[a], UNIGRAM, "0 pieces are the unknown one");
    refused(&[UNK, a, a], UNIGRAM, "lists token \"a\" twice");
    for (piece, message) in [
        (("b", -2.0, 5), "pieces[1].type: UNUSED piece \"b\""),
        (("", -1.0, 1), "pieces[1]: the piece \"\" is empty"),
        (("a\0", -1.0, 1), "has a NUL"),
        (("a", f32::NAN, 1), "the score of \"a\" is NaN"),
        (("<0x0a>", 0.0, 6), "is no byte such as <0x0A>"),
        (("<0x0A>", 0.0, 6), "1 pieces stand for a byte"),
        (("a", -1.0, 7), "a piece has no type 7"),
    ] {
        refused(&[UNK, piece], BPE, message);
    }
    let mut denormalizes = file(&[UNK, a], BPE);
    denormalizes.extend(field(5, &field(2, b"map")));
    let error = Tokenizer::from_sentencepiece(&denormalizes).unwrap_err();
    assert!(error.to_string().contains("denormalizer_spec"), "{error}");
    for bytes in [
        &b"\x0A"[..],
        b"\x0A\x7F",
        b"\x0B",
        b"\x08\x01",
        b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
    ] {
        let error = Tokenizer::from_sentencepiece(bytes).unwrap_err();
        assert!(
            error.to_string().contains("the SentencePiece model"),
            "{error}"
        );
    }
}

/// Pieces of one score merge from the left, whatever pair makes them: `aaa` is made of `aa` and `a`
/// and of `a` and `aa`.
#[test]
fn equal_scores_merge_from_the_left() {
    let pieces = [
        UNK,
        ("a", -3.0, 1),
        ("aa", -2.0, 1),
        ("aaa", -1.0, 1),
        ("b", -4.0, 1),
    ];
    let tokenizer = load(&pieces, BPE).unwrap();
    assert_eq!(tokenizer.encode("aaaaa", false), [3, 2]);
    assert_eq!(tokenizer.encode("baaaab", false), [4, 3, 1, 4]);
}

#[test]
fn user_defined_symbols_are_not_made_of_text_that_is_not_trusted() {
    let pieces = [
        UNK,
        ("<", -3.0, 1),
        ("t", -3.5, 1),
        (">", -3.5, 1),
        ("<t>", 0.0, 4),
        ("<t", -1.0, 1),
    ];
    for (trainer, plain) in [(BPE, [5, 3]), (UNIGRAM, [5, 3])] {
        let tokenizer = load(&pieces, trainer).unwrap();
        assert_eq!(tokenizer.encode("<t>", false), [4]);
        let mut ids = Vec::new();
        tokenizer.encode_plain_into("<t>", &mut ids);
        assert_eq!(ids, plain);
        ids.clear();
        tokenizer.encode_recognising("<t>", Recognise::NonSpecial, &mut ids);
        assert_eq!(ids, [4]);
    }
}

proptest::proptest! {
    /// The second call of `encode` finds its chunks in the thread's cache; offsets never use it.
    #[test]
    fn chunks_from_the_cache_have_the_pieces_of_merging(
        text in "([a-z]{1,9}| |<tool>|é|漢|\u{1F600}|[.,]){0,30}"
    ) {
        let model = include_bytes!("../../tests/data/spm/bpe-symbols.model");
        static TOKENIZER: std::sync::OnceLock<Tokenizer> = std::sync::OnceLock::new();
        let load = || Tokenizer::from_sentencepiece(model).unwrap();
        let tokenizer = TOKENIZER.get_or_init(load);
        let expected = tokenizer.encode_with_offsets(&text, false).ids;
        proptest::prop_assert_eq!(&tokenizer.encode(&text, false), &expected);
        proptest::prop_assert_eq!(&tokenizer.encode(&text, false), &expected);
        let (mut plain, mut again) = (Vec::new(), Vec::new());
        tokenizer.encode_plain_into(&text, &mut plain);
        let _ = tokenizer.encode(&text, false);
        tokenizer.encode_plain_into(&text, &mut again);
        proptest::prop_assert_eq!(plain, again);
    }
}

/// A control symbol is no text, and decoding hides it on request.
#[test]
fn control_symbols_are_found_in_no_text() {
    let pieces = [
        UNK,
        ("</s>", 0.0, 3),
        ("s", -1.0, 1),
        ("<", -1.0, 1),
        ("/", -1.0, 1),
        (">", -1.0, 1),
    ];
    let tokenizer = load(&pieces, UNIGRAM).unwrap();
    assert_eq!(tokenizer.encode("</s>", true), [3, 4, 2, 5]);
    assert_eq!(tokenizer.token_to_id("</s>"), Some(1));
    assert!(tokenizer.is_special(1) && !tokenizer.is_special(2));
    assert_eq!(tokenizer.decode(&[2, 1, 2, 0], true), "ss \u{2047} ");
    assert_eq!(tokenizer.decode(&[2, 1, 2], false), "s</s>s");
}

/// Damaged files are refused or loaded, and what is loaded encodes and decodes without a panic.
#[test]
fn damaged_files_do_no_harm() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/spm/unigram-symbols.model"
    );
    let whole = std::fs::read(path).unwrap();
    let check = |bytes: &[u8]| {
        if let Ok(tokenizer) = Tokenizer::from_sentencepiece(bytes) {
            let text = "  ﬁne e\u{301}\u{301} aaaa ①<tool> ド が \u{fffd}";
            let encoding = tokenizer.encode_with_offsets(text, true);
            for (start, end) in encoding.offsets {
                assert!(text.get(start..end).is_some());
            }
            let ids = tokenizer.encode(text, true);
            assert_eq!(encoding.ids, ids);
            let _ = tokenizer.decode(&ids, false);
        }
    };
    for len in (0..whole.len()).step_by(7) {
        check(&whole[..len]);
    }
    let mut seed = 1u64;
    for _ in 0..3000 {
        let mut damaged = whole.clone();
        for _ in 0..3 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % damaged.len();
            damaged[at] = (seed >> 20) as u8;
        }
        check(&damaged);
    }
}
