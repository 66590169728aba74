//! Texts in every form, against the reference, and what is known of characters.

use super::ascii::replace_byte;
use super::nfc::{is_inert_lead, is_known_inert, next_unsure};
use super::*;
use crate::unicode::classes;
use proptest::prelude::*;
use tokenizers::normalizers::{NFC, NFD, NFKC, NFKD, NormalizerWrapper};
use tokenizers::{NormalizedString, Normalizer as _};
use unicode_normalization_alignments::char::{canonical_combining_class, is_combining_mark};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

#[test]
fn bytes_are_replaced_as_strings_are() {
    let mut text = String::new();
    for n in 0..300u32 {
        text.push(['a', ' ', 'é', '漢', ' ', 'b', '\u{20AC}'][(n * n % 11 % 7) as usize]);
        for to in ["", "▁", "  "] {
            let expected = text.replace(' ', to);
            let found = replace_byte(&text, b' ', to).unwrap_or_else(|| text.clone());
            assert_eq!(found, expected);
        }
    }
    assert_eq!(replace_byte("aé", b' ', "_"), None);
}

fn check(text: &str) {
    let forms: [(Form, NormalizerWrapper); 4] = [
        (Form::Nfc, NFC.into()),
        (Form::Nfd, NFD.into()),
        (Form::Nfkc, NFKC.into()),
        (Form::Nfkd, NFKD.into()),
    ];
    for (form, reference) in forms {
        let mut expected = NormalizedString::from(text);
        reference.normalize(&mut expected).unwrap();
        let ours = Normalizer {
            steps: vec![form.into()],
            ..Normalizer::default()
        };
        assert_eq!(ours.apply(text), expected.get(), "{form:?} of {text:?}");
        assert_eq!(ours.alignment(text).len(), expected.get().len());
    }
}

#[test]
fn every_character_normalizes_as_in_the_reference() {
    let all: Vec<char> = ('\0'..=char::MAX).collect();
    for chunk in all.chunks(1024) {
        let mut text = String::new();
        for &c in chunk {
            // Marks of low and high combining class show the class of `c`.
            text.extend(['e', '\u{345}', c, '\u{334}', '\u{301}', c]);
        }
        check(&text);
    }
}

#[test]
fn inert_characters_are_starters_that_stay() {
    for c in '\0'..=char::MAX {
        let mut buffer = [0; 4];
        if is_inert_lead(c.encode_utf8(&mut buffer).as_bytes()[0]) {
            let yes = is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes;
            assert!(yes && canonical_combining_class(c) == 0, "{c:?}");
        }
    }
}

#[test]
fn known_characters_are_starters_that_stay() {
    let (mut known, mut missed) = (0, 0);
    for c in '\u{80}'..=char::MAX {
        let mut buffer = [0; 4];
        c.encode_utf8(&mut buffer);
        let [a, second, third, _] = buffer;
        // A byte after the character must not decide, in this text or any other.
        for after in [0, 0x80, 0x99, 0xFF] {
            let at = |n: usize, byte: u8| if n < c.len_utf8() { byte } else { after };
            let found = is_known_inert(a, at(1, second), at(2, third));
            let inert = classes().is_inert(c);
            assert!(!found || inert, "{c:?}");
            known += usize::from(found);
            missed += usize::from(!found && inert && ('\u{620}'..'\u{640}').contains(&c));
        }
    }
    assert!(known > 4 * 37_000 && missed == 0, "{known} {missed}");
}

/// Windows of every length and place, against a look at each character.
#[test]
fn unsure_characters_are_found_anywhere() {
    for c in ['\u{301}', '\u{654}', '\u{3099}', '\u{1161}', '\u{340}'] {
        for filler in ["a", "é", "ع", "か", "하", "漢", "。"] {
            for before in 0..40 {
                for after in [0, 1, 2, 30, 31, 32, 33, 34] {
                    let text = [
                        &filler.repeat(before),
                        &*c.to_string(),
                        &filler.repeat(after),
                    ];
                    let text = text.concat();
                    let found = next_unsure(text.as_bytes(), 0);
                    assert_eq!(found, Some(before * filler.len()), "{text:?}");
                    let rest = before * filler.len() + c.len_utf8();
                    assert_eq!(next_unsure(text.as_bytes(), rest), None, "{text:?}");
                }
            }
        }
    }
}

#[test]
fn whole_characters_stay_in_every_form() {
    for c in ('\0'..=char::MAX).filter(|c| form::is_whole(*c)) {
        let text = c.to_string();
        for form in [Form::Nfc, Form::Nfd, Form::Nfkc, Form::Nfkd] {
            let mut found = String::new();
            form.transform(&text, |(c, _)| found.push(c));
            assert_eq!(found, text, "{form:?}");
        }
        assert!(canonical_combining_class(c) == 0 && !is_combining_mark(c));
    }
}

#[test]
fn classes_know_what_nfc_leaves_alone() {
    for c in '\0'..=char::MAX {
        let yes = is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes;
        let starter = canonical_combining_class(c) == 0;
        assert_eq!(classes().is_inert(c), yes && starter, "{c:?}");
    }
}

proptest! {
    #[test]
    fn the_check_in_parts_is_that_of_the_whole(
        text in r"([a-cäж漢かがيَ이]|[\u{300}-\u{345}]|[\u{3099}\u{64B}\u{651}\u{5B0}\u{93C}\u{94D}]|[\u{1161}-\u{1165}]|\PC){0,40}"
    ) {
        let whole = is_nfc_quick(text.chars()) == IsNormalized::Yes;
        prop_assert_eq!(Form::Nfc.quick_check(&text), whole);
        check(&text);
    }

    #[test]
    fn strings_normalize_as_in_the_reference(
        text in r"([a-e]|[\u{300}-\u{345}]|[\u{1100}-\u{1112}\u{1161}-\u{1175}\u{11A8}-\u{11C2}]|[가각Åﬁ½\u{958}\u{F73}\u{1D15E}]|\PC){0,16}"
    ) {
        check(&text);
    }
}

/// Spec trap: the reference normalizes by Unicode 9; later marks stay put.
#[test]
fn younger_characters_are_left_alone() {
    let text = "a\u{301}\u{10D69}\u{105D2}\u{307}";
    check(text);
    let nfc = Normalizer {
        steps: vec![Form::Nfc.into()],
        ..Normalizer::default()
    };
    assert_eq!(nfc.apply("\u{105D2}\u{307}"), "\u{105D2}\u{307}");
}
