//! Merging from whole characters and part by part, with rules that no training would
//! make: whether a character may be taken for whole depends on the order of all rules.

use crate::common::small::Small;
use fasttoken::Tokenizer;
use proptest::prelude::*;

/// Spellings of the bytes C3, C4, A8, A9, E4, B8, BA, of `a` and of the space, and of F1
/// and 80, of which U+40000 is made.
const BYTES: &[&str] = &["Ã", "Ä", "¨", "©", "ä", "¸", "º", "a", "Ġ", "ñ", "Ģ"];

/// The rules that training would find, as indexes into the tokens made so far.
const NATURAL: &[(&str, &str)] = &[
    ("Ã", "©"),
    ("Ã", "¨"),
    ("Ä", "©"),
    ("ä", "¸"),
    ("ä¸", "º"),
    ("Ġ", "Ã"),
    ("ĠÃ", "©"),
    ("Ã©", "Ã"),
    ("Ã©Ã", "¨"),
    ("Ã©", "Ã©"),
    ("Ġ", "a"),
];

/// A natural rule, or one of two tokens that are there.
fn rule() -> impl Strategy<Value = (bool, usize, usize)> {
    (prop::bool::weighted(0.6), 0..1000usize, 0..1000usize)
}

/// Without those of `BYTES` that `missing` names by index.
fn tokenizer(rules: &[(bool, usize, usize)], ignore_merges: bool, missing: &[usize]) -> Vec<u8> {
    let mut small = Small::new().with_model("ignore_merges", ignore_merges.into());
    let bytes = BYTES.iter().enumerate();
    let mut tokens: Vec<String> = bytes
        .filter(|(n, _)| !missing.contains(n))
        .map(|(_, byte)| (*byte).to_owned())
        .collect();
    for &(natural, left, right) in rules {
        let (left, right) = if natural {
            let (left, right) = NATURAL[left % NATURAL.len()];
            (left.to_owned(), right.to_owned())
        } else {
            let pick = |n: usize| tokens[n % tokens.len()].clone();
            (pick(left), pick(right))
        };
        if left.chars().count() + right.chars().count() > 8
            || !tokens.contains(&left)
            || !tokens.contains(&right)
        {
            continue;
        }
        small = small.merge(&left, &right);
        tokens.push(left + &right);
    }
    for n in missing {
        small = small.without_token(BYTES[*n]);
    }
    small.bytes()
}

/// A byte without a token vanishes, and what was on its two sides merges.
#[test]
fn neighbours_of_a_missing_byte_merge() {
    let ascii = Small::new().merge("a", "c").without_token("b");
    let lead = Small::new().merge("¡", "Ģ").merge("Â", "¡");
    let lead = lead.without_token("ñ");
    let tail = Small::new().merge("Ã", "Ã").merge("Ã", "¨");
    let tail = tail.without_token("©");
    for (small, text, expected) in [
        (ascii, "abc", vec!["ac"]),
        (lead, "¡\u{40000}", vec!["Â", "¡Ģ", "Ģ", "Ģ"]),
        (tail, "éè", vec!["ÃÃ", "¨"]),
    ] {
        let json = small.bytes();
        let ours = Tokenizer::from_bytes(&json).unwrap();
        let reference = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        let compiled = ours_compiled(&json);
        // Alone and in a word that is merged by the heap.
        for text in [text.to_owned(), text.repeat(40)] {
            let theirs = reference.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(ours.encode(&text, false), theirs.get_ids(), "{text:?}");
            assert_eq!(compiled.encode(&text, false), theirs.get_ids(), "{text:?}");
        }
        let ids = ours.encode(text, false);
        let found: Vec<_> = ids.iter().filter_map(|id| ours.id_to_token(*id)).collect();
        assert_eq!(found, expected, "{text:?}");
    }
}

fn ours_compiled(json: &[u8]) -> Tokenizer {
    let compiled = Tokenizer::compile(json).expect("the file compiles");
    Tokenizer::from_compiled_bytes(&compiled).expect("the compiled tokenizer opens")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_rules_merge_as_in_the_reference(
        rules in prop::collection::vec(rule(), 0..40),
        texts in prop::collection::vec(
            "[éèĩĨ为亸a \u{40000}]{0,24}|[éè]{0,70}|[为a]{0,30}|[éèĩa]{1,4}",
            8,
        ),
        ignore_merges in prop::bool::weighted(0.2),
        missing in prop_oneof![
            Just(Vec::new()),
            prop::collection::vec(0..BYTES.len(), 1..3),
        ],
    ) {
        let json = tokenizer(&rules, ignore_merges, &missing);
        let ours = Tokenizer::from_bytes(&json).unwrap();
        let reference = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        // Twice, since the thread remembers words.
        for text in texts.iter().chain(&texts) {
            let expected = reference.encode_fast(text.as_str(), false).unwrap();
            prop_assert_eq!(ours.encode(text, false), expected.get_ids(), "{:?}", text);
        }
    }
}

/// 8,192 characters that may join the first byte of 64 others, before more and more of
/// these merge. What is prepared for that has bounds, and ids are the reference's on both
/// sides of them.
#[test]
fn crowds_of_rules_before_characters_change_no_ids() {
    let spell = |bytes: &[u8]| -> String {
        let itself = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..);
        let letter = |&byte: &u8| match itself(byte) {
            true => char::from(byte),
            false => {
                let before = (0..byte).filter(|byte| !itself(*byte)).count() as u32;
                char::from_u32(256 + before).expect("a letter")
            }
        };
        bytes.iter().map(letter).collect()
    };
    let mut small = Small::new();
    let mut lefts = Vec::new();
    for code in (0x5000..0x7000).filter_map(char::from_u32) {
        let bytes = code.to_string().into_bytes();
        if bytes[2] == 0x80 {
            small = small.merge(&spell(&bytes[..1]), &spell(&bytes[1..2]));
        }
        small = small.merge(&spell(&bytes[..2]), &spell(&bytes[2..]));
        lefts.push(spell(&bytes));
    }
    let lead = spell(&[0xE4]);
    for (lefts, second) in lefts.chunks(128).zip(0x80..) {
        for left in lefts {
            small = small.merge(left, &lead);
        }
        small = small.merge(&lead, &spell(&[second]));
    }
    for second in 0x80..0xC0 {
        small = small.merge(&spell(&[0xE4, second]), &spell(&[0x80]));
    }
    let both = crate::common::Both::from_json("crowds", &small.bytes());
    let mut rng = crate::common::Rng(9);
    for _ in 0..500 {
        let pick = |rng: &mut crate::common::Rng| match rng.below(3) {
            0 => 0x4000 + 64 * rng.below(64),
            1 => 0x4000 + rng.below(0x1000),
            _ => 0x5000 + rng.below(0x2000),
        };
        let text = (0..1 + rng.below(30)).filter_map(|_| char::from_u32(pick(&mut rng) as u32));
        both.check_text(&text.collect::<String>());
    }
}
