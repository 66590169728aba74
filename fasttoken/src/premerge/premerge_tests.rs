//! The limits of loading, and the packed fields.

use super::bits::EXCLUDED_CHAR_BITS;
use super::limits::{CHARS_MAX, Limits, RULES_MAX, SETS_MAX};
use super::premerge_builder::{END, entry};
use super::*;
use crate::alphabet;
use crate::pairs::PairTable;
use crate::vocab::{self, Vocab};
use std::collections::HashMap;

const NO_LIMITS: Limits = Limits {
    sets: SETS_MAX,
    chars: usize::MAX,
    rules: usize::MAX,
};

/// The neighbour at the begin of a word.
const START: (u8, u32) = (0, NO_CHAR);
const END_OF_WORD: (u32, u8) = (NO_CHAR, 0);

type Rule = (Vec<u8>, Vec<u8>);

/// Returns single bytes with their own ids, then the product of each rule. `id` chooses the id of a
/// token; others get the next one.
fn vocabulary(rules: &[Rule], id: impl Fn(&[u8]) -> Option<u32>) -> (PairTable, Vec<u32>, Vocab) {
    let mut builder = vocab::Builder::default();
    let mut known = HashMap::new();
    let mut add = |piece: &[u8]| {
        let next = known.len() as u32;
        *known.entry(piece.to_vec()).or_insert_with(|| {
            let id = id(piece).unwrap_or(next);
            assert_eq!(builder.add_model(&alphabet::spell(piece), id), Ok(()));
            id
        })
    };
    for byte in 0..=255 {
        add(&[byte]);
    }
    let rules: Vec<[u32; 3]> = rules
        .iter()
        .map(|(left, right)| [add(left), add(right), add(&[&left[..], right].concat())])
        .collect();
    let mut ids: Vec<u32> = known.into_values().collect();
    ids.sort_unstable();
    let names = builder.index().expect("each token once");
    (PairTable::new(&rules), ids, builder.finish(names, 0))
}

fn within(
    limits: Limits,
    (pairs, ids, vocab): &(PairTable, Vec<u32>, Vocab),
) -> (Premerged, usize) {
    let byte_ids = std::array::from_fn(|byte| byte as u32);
    Premerged::within(limits, &byte_ids, (pairs, pairs.iter()), ids, vocab)
}

/// 8,192 characters, each of which may join the first byte of 64 others, before the
/// first merge of more and more of those: the contexts of these have 128 characters,
/// 256, and so on to 8,192.
fn hostile() -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut lefts = Vec::new();
    for (first, second) in [0xE5, 0xE6]
        .iter()
        .flat_map(|&b| (0x80..0xC0).map(move |c| (b, c)))
    {
        rules.push((vec![first], vec![second]));
        for third in 0x80..0xC0 {
            rules.push((vec![first, second], vec![third]));
            lefts.push(vec![first, second, third]);
        }
    }
    for (lefts, second) in lefts.chunks(128).zip(0x80..) {
        rules.extend(lefts.iter().map(|left| (left.clone(), vec![0xE4])));
        rules.push((vec![0xE4], vec![second]));
    }
    rules.extend((0x80..0xC0).map(|second| (vec![0xE4, second], vec![0x80])));
    rules
}

/// The 64 characters of [`hostile`] with long contexts.
fn hostile_chars() -> impl Iterator<Item = u32> {
    (0..64).map(|n| 0x4000 + 64 * n)
}

/// Returns how many characters of [`hostile_chars`] are premerged within these limits, and the
/// number of visited rules. Each premerged character is so without limits as well.
fn premerged_of_hostile(limits: Limits, made: &(PairTable, Vec<u32>, Vocab)) -> (usize, usize) {
    let (all, _) = within(NO_LIMITS, made);
    let (premerged, seen) = within(limits, made);
    for code in 0..END as u32 {
        let id = premerged.get(code, START, END_OF_WORD)[0];
        assert!(
            id == NOT_PREMERGED || id == all.get(code, START, END_OF_WORD)[0],
            "{code:x}"
        );
    }
    for code in hostile_chars() {
        // The first of all that excludes them.
        assert_eq!(
            premerged.get(code, (0x80, 0x5000), END_OF_WORD)[0],
            NOT_PREMERGED
        );
    }
    let found =
        hostile_chars().filter(|code| premerged.get(*code, START, END_OF_WORD)[0] != NOT_PREMERGED);
    (found.count(), seen)
}

#[test]
fn rules_and_characters_looked_at_are_bounded() {
    let made = vocabulary(&hostile(), |_| None);
    // 128 rules and one more time 128 for each of the characters. Of the same first
    // bytes are 63 others, which are two tokens.
    let rules = |chars: usize| 128 * chars * (chars + 1) / 2;
    assert_eq!(premerged_of_hostile(NO_LIMITS, &made), (64, 64 * rules(64)));
    let chars_max = 128 * 32;
    assert_eq!(CHARS_MAX, chars_max);
    assert!(64 * (rules(32) + 32 * chars_max) > RULES_MAX);
    assert_eq!(premerged_of_hostile(Limits::USUAL, &made), (32, RULES_MAX));
    let up_to_ten = Limits {
        rules: rules(10) + 5,
        ..NO_LIMITS
    };
    assert_eq!(premerged_of_hostile(up_to_ten, &made), (10, rules(10) + 5));
    let none = Limits {
        rules: 0,
        ..NO_LIMITS
    };
    assert_eq!(premerged_of_hostile(none, &made), (0, 0));
}

/// The first set is the empty one.
#[test]
fn characters_beyond_the_last_set_are_not_premerged() {
    let made = vocabulary(&hostile(), |_| None);
    for sets in [2, 5, 64] {
        let limits = Limits { sets, ..NO_LIMITS };
        let (premerged, _) = within(limits, &made);
        assert_eq!(premerged.excluded.len(), sets);
        assert_eq!(premerged_of_hostile(limits, &made).0, sets - 1);
    }
}

#[test]
fn the_last_set_and_the_last_token_fit_into_an_entry() {
    let last = SETS_MAX as u32 - 1;
    let entry = entry(last, TOKEN);
    assert_ne!(entry, NOT_PREMERGED);
    assert_eq!((entry >> TOKEN_BITS, entry & TOKEN), (last, TOKEN));
    let mut excluded = vec![PackedContext::default(); SETS_MAX];
    // After any character that ends with 0x81.
    excluded[last as usize] = PackedContext {
        possible_before: [0, 0, 2, 0],
        always_before: [0, 0, 2, 0],
        ..PackedContext::default()
    };
    let mut tokens = vec![NOT_PREMERGED; 2 * BLOCK];
    tokens[BLOCK + 5] = entry;
    let premerged = Premerged {
        index: vec![0, 0, 1].into(),
        tokens: tokens.into(),
        excluded: excluded.into(),
        excluded_chars: vec![0; EXCLUDED_CHAR_BITS / 64].into(),
        ..Premerged::default()
    };
    let code = 2 * BLOCK as u32 + 5;
    assert_eq!(premerged.get(code, START, END_OF_WORD)[0], TOKEN);
    assert_eq!(premerged.get(code, (0x80, 0xC0), END_OF_WORD)[0], TOKEN);
    assert_eq!(
        premerged.get(code, (0x81, 0xC1), END_OF_WORD)[0],
        NOT_PREMERGED
    );
    assert_eq!(
        premerged.get(code + 1, START, END_OF_WORD)[0],
        NOT_PREMERGED
    );
}

#[test]
fn tokens_beyond_the_last_are_not_premerged() {
    let rules: Vec<Rule> = [0xA8, 0xA9, 0xAA]
        .map(|byte| (vec![0xC3], vec![byte]))
        .into();
    let made = vocabulary(&rules, |piece| match piece {
        [0xC3, 0xA8] => Some(TOKEN - 1),
        [0xC3, 0xA9] => Some(TOKEN),
        [0xC3, 0xAA] => Some(TOKEN + 1),
        _ => None,
    });
    let (premerged, _) = within(Limits::USUAL, &made);
    let ids = [0xE8, 0xE9, 0xEA].map(|code| premerged.get(code, START, END_OF_WORD)[0]);
    assert_eq!(ids, [TOKEN - 1, TOKEN, NOT_PREMERGED]);
}

#[test]
fn decode_finds_whole_characters() {
    for c in '\0'..=char::MAX {
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        assert_eq!(decode(bytes, 0), Some((u32::from(c), bytes.len())));
        if bytes.len() > 1 {
            assert_eq!(decode(&bytes[..bytes.len() - 1], 0), None);
            assert_eq!(decode(bytes, 1), None);
        }
    }
}

/// 你 is [E4 BD] and A0, and A0 is joined with 除 before it is whole; 値 stays two tokens.
#[test]
fn a_next_character_excludes_and_two_tokens_are_premerged() {
    let rules: Vec<Rule> = [
        (&b"\xE4"[..], &b"\xBD"[..]),
        (b"\xE5", b"\x80"),
        (b"\xE9", b"\x99"),
        (b"\xE9\x99", b"\xA4"),
        (b"\xA0", b"\xE9\x99\xA4"),
        (b"\xA0", b"\xED"),
        (b"\xE4\xBD", b"\xA0"),
    ]
    .map(|(left, right)| (left.to_vec(), right.to_vec()))
    .into();
    let made = vocabulary(&rules, |_| None);
    let (premerged, _) = within(Limits::USUAL, &made);
    let get = |c: char, next: Option<char>| {
        let next = next.map_or(END_OF_WORD, |next| {
            let mut buffer = [0; 4];
            (u32::from(next), next.encode_utf8(&mut buffer).as_bytes()[0])
        });
        premerged.get(u32::from(c), START, next)
    };
    let whole = [256 + 6, NO_TOKEN];
    assert_eq!(get('你', None), whole);
    assert_eq!(get('你', Some('a')), whole);
    assert_eq!(get('你', Some('你')), whole);
    assert_eq!(get('你', Some('除')), NONE);
    assert_eq!(get('你', Some('한')), NONE);
    assert_eq!(get('値', Some('除')), [256 + 1, 0xA4]);
    // Nothing of it merges.
    assert_eq!(get('漢', None), NONE);
}

/// In Qwen 3's vocabulary and here, a space and `о` take the first byte of `л` before its second
/// byte joins.
#[test]
fn two_characters_are_premerged_where_the_second_one_alone_is_not() {
    let l = [0xD0, 0xBB];
    let [space, o, s] = [" ", "о", "с"].map(|text| text.as_bytes().to_vec());
    let with_lead = |left: &[u8]| [left, &l[..1]].concat();
    let rule = |left: &[u8], right: &[u8]| (left.to_vec(), right.to_vec());
    let rules = [
        rule(&o[..1], &o[1..]),
        rule(&s[..1], &s[1..]),
        rule(&space, &l[..1]),
        rule(&o, &l[..1]),
        // Applies before `ол` is complete, so `ол` is not premerged after `с`.
        rule(&s, &with_lead(&o)),
        rule(&with_lead(&o), &l[1..]),
        rule(&with_lead(&space), &l[1..]),
        rule(&l[..1], &l[1..]),
        rule(&s, &o),
    ];
    let model = vocabulary(&rules, |_| None);
    let premerged = within(Limits::USUAL, &model).0;
    let vocab = &model.2;
    let id = |text: &str| {
        vocab
            .model_id(&alphabet::spell(text.as_bytes()))
            .expect("a token")
    };
    let before = |text: &str| {
        let last = text.chars().last().map_or(NO_CHAR, u32::from);
        (text.bytes().last().unwrap_or(0), last)
    };
    let alone = |left: &str| premerged.get(u32::from('л'), before(left), END_OF_WORD);
    let char_pair = |left: char, earlier: &str| {
        premerged.char_pair(u32::from(left), u32::from('л'), before(earlier))
    };
    assert_eq!(alone(""), [id("л"), NO_TOKEN]);
    assert_eq!(alone("с"), [id("л"), NO_TOKEN]);
    assert_eq!((alone("о"), alone(" ")), (NONE, NONE));

    assert_eq!(char_pair('о', ""), id("ол"));
    assert_eq!(char_pair('о', "л"), id("ол"));
    assert_eq!(char_pair('о', "с"), NO_TOKEN);
    assert_eq!(char_pair(' ', ""), id(" л"));
    // No pair is stored where none is needed.
    assert_eq!(
        (char_pair('с', ""), char_pair('x', "")),
        (NO_TOKEN, NO_TOKEN)
    );
}

#[test]
fn invalid_tables_of_character_pairs_are_refused() {
    let read = |slots: usize| CharPairs::from_slots(vec![1; slots].into());
    for len in [0, 1, 2, 8] {
        let full = read(len).expect("a power of two");
        assert_eq!(full.get(u32::from('о'), u32::from('л')), NOT_PREMERGED);
    }
    assert!(read(3).is_none());
}

#[test]
fn character_pairs_are_a_map() {
    let mut builder = char_pairs::Builder::default();
    let pairs = || (0..0x7FF).map(|n| (n, 0xFFFF - n * 31));
    for (left, right) in pairs() {
        builder.add(left, right, left ^ right);
    }
    let char_pairs = builder.finish();
    let mut there = 0;
    for (left, right) in pairs() {
        let entry = char_pairs.get(left, right);
        assert!(entry == left ^ right || entry == NOT_PREMERGED);
        there += usize::from(entry != NOT_PREMERGED);
        assert_eq!(char_pairs.get(left, right + 1), NOT_PREMERGED);
        assert_eq!(char_pairs.get(left + 0x800, right), NOT_PREMERGED);
    }
    // A pair that collides with too many others is left out.
    assert!(there > 0x7C0, "{there}");
}
