//! Merging from whole characters and part by part, with rules that no training would
//! make: whether a character may be taken for whole depends on the order of all rules.

mod common;

use common::small::Small;
use fasttoken::Tokenizer;
use proptest::prelude::*;

/// Spellings of the bytes C3, C4, A8, A9, E4, B8, BA, of `a` and of the space.
const BYTES: &[&str] = &["Ã", "Ä", "¨", "©", "ä", "¸", "º", "a", "Ġ"];

/// The rules that training would find, as indexes into the tokens made so far.
const NATURAL: &[(&str, &str)] = &[
    ("Ã", "©"),
    ("Ã", "¨"),
    ("Ä", "©"),
    ("ä", "¸"),
    ("ä¸", "º"),
    ("Ġ", "Ã"),
    ("Ã©", "Ã©"),
    ("Ġ", "a"),
];

/// A natural rule, or one of two tokens that are there.
fn rule() -> impl Strategy<Value = (bool, usize, usize)> {
    (prop::bool::weighted(0.6), 0..1000usize, 0..1000usize)
}

fn tokenizer(rules: &[(bool, usize, usize)], ignore_merges: bool) -> Vec<u8> {
    let mut small = Small::new().with_model("ignore_merges", ignore_merges.into());
    let mut tokens: Vec<String> = BYTES.iter().map(|byte| (*byte).to_owned()).collect();
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
    small.bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_rules_merge_as_in_the_reference(
        rules in prop::collection::vec(rule(), 0..40),
        texts in prop::collection::vec("[éèĩĨ为亸a ]{0,24}|[éè]{0,70}|[为a]{0,30}", 8),
        ignore_merges in prop::bool::weighted(0.2),
    ) {
        let json = tokenizer(&rules, ignore_merges);
        let ours = Tokenizer::from_bytes(&json).unwrap();
        let reference = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        // Twice, since the thread remembers words.
        for text in texts.iter().chain(&texts) {
            let expected = reference.encode_fast(text.as_str(), false).unwrap();
            prop_assert_eq!(ours.encode(text, false), expected.get_ids(), "{:?}", text);
        }
    }
}
