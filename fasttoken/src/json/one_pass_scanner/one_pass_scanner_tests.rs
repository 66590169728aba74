//! The scanner against `serde_json`.

use super::*;
use proptest::prelude::*;

fn spelled(json: &str) -> Option<(Spelled, Vec<u8>, usize)> {
    let mut out = b"x".to_vec();
    let mut scanner = Scanner::new(json.as_bytes());
    let spelled = scanner.spelled(&mut out)?;
    Some((spelled, out.split_off(1), scanner.left()))
}

proptest! {
    #[test]
    fn strings_are_those_that_serde_reads(
        text in r#"[a-zA-Z~!"\\ \n\u{7f}\u{ad}ĠĊé漢Ń\u{144}😀]{0,20}"#,
        escaped in any::<bool>(),
    ) {
        let mut json = serde_json::to_string(&text).unwrap();
        if escaped {
            json = json.replace('Ġ', "\\u0120");
        }
        let (found, bytes, left) = spelled(&format!(" {json},")).unwrap();
        prop_assert_eq!(left, 1);
        let mut expected = Vec::new();
        let plain = alphabet::append_bytes(&text, &mut expected);
        match found {
            Spelled::Bytes => prop_assert!(plain && bytes == expected),
            Spelled::Other(other) => prop_assert!(other == text && bytes.is_empty()),
        }
        let mut plain = b"x".to_vec();
        let padded = format!(" {json},");
        let mut scanner = Scanner::new(padded.as_bytes());
        prop_assert_eq!(scanner.string(&mut plain), Some(()));
        prop_assert_eq!((scanner.left(), &plain[1..]), (1, text.as_bytes()));
        // Nothing that is cut short is a string.
        for end in 0..json.len() {
            if json.is_char_boundary(end) {
                prop_assert_eq!(spelled(&json[..end]), None);
                prop_assert_eq!(Scanner::new(&json.as_bytes()[..end]).string(&mut plain), None);
            }
        }
    }

    #[test]
    fn any_value_is_stepped_over(
        parts in prop::collection::vec(r#"[a"\\{}\[\],: ]{0,5}"#, 0..6),
        pretty in any::<bool>(),
    ) {
        let value = serde_json::json!([{"a": &parts, "b": [true, null, 1.5e3]}, parts.first(), []]);
        let json = if pretty {
            serde_json::to_string_pretty(&value)
        } else {
            serde_json::to_string(&value)
        };
        let json = format!("{} , 7", json.unwrap());
        let mut scanner = Scanner::new(json.as_bytes());
        prop_assert_eq!(scanner.skip(), Some(()));
        prop_assert_eq!(scanner.left(), " , 7".len());
    }

    #[test]
    fn nothing_makes_it_panic(json in r#"[\x00-\x22a0{}\[\],:\\Ġé"]{0,40}"#) {
        let mut out = Vec::new();
        for start in (0..json.len()).filter(|at| json.is_char_boundary(*at)) {
            let scanner = || Scanner::new(&json.as_bytes()[start..]);
            let _ = scanner().spelled(&mut out);
            let _ = scanner().string(&mut out);
            let _ = scanner().merge(&mut out);
            let _ = scanner().skip();
            let _ = scanner().number();
            let _ = scanner().map(|scanner, _| scanner.skip());
        }
    }
}

#[test]
fn merges_of_both_shapes_are_read() {
    let merge = |json: &str| {
        let mut out = b"x".to_vec();
        let mut scanner = Scanner::new(json.as_bytes());
        let merge = scanner.merge(&mut out)?;
        Some((merge, out.split_off(1), scanner.at()))
    };
    let whole = |json: &str| Some((Err(0..json.len()), vec![], json.len()));
    for json in [r#""Ġa b""#, r#"["Ġa","b"]"#, "[ \"Ġa\" ,\n \"b\" ]"] {
        assert_eq!(merge(json), Some((Ok(3), b" ab".to_vec(), json.len())));
    }
    for json in [
        r##""#version: 0.2""##,
        r#""a""#,
        r#""a b c""#,
        r#""a \"""#,
        r#"["a","b","c"]"#,
        r#"["a",1]"#,
        r#"["a b","\""]"#,
        "7",
    ] {
        assert_eq!(merge(json), whole(json), "{json}");
    }
    for json in ["", "[\"a\"", "\"a b"] {
        assert_eq!(merge(json), None, "{json}");
    }
}

#[test]
fn numbers_are_those_of_json() {
    let number = |json: &str| Scanner::new(json.as_bytes()).number();
    assert_eq!(number(" 0"), Some(0));
    assert_eq!(number("151642,"), Some(151_642));
    assert_eq!(number("999999999"), Some(999_999_999));
    for json in ["", "-1", "01", "1000000000", "a"] {
        assert_eq!(number(json), None, "{json}");
    }
}
