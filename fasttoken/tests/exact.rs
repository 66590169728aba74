//! The gate: equality with the reference on adversarial strings.

mod common;

use common::{Both, shared_vocabularies};

/// Strings for the demo vocabulary in every run.
const DEMO_STRINGS: usize = 100_000;
/// Strings for each real vocabulary; `FASTTOKEN_STRINGS` overrides it.
const SHARED_STRINGS: usize = 5_000;

#[test]
fn demo_vocabulary_is_exact() {
    let both = Both::demo();
    both.check_vocabulary();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let both = &both;
            scope.spawn(move || both.check_many(1 + half, DEMO_STRINGS / 2));
        }
    });
}

#[test]
fn shared_vocabularies_are_exact() {
    let strings = std::env::var("FASTTOKEN_STRINGS")
        .map_or(SHARED_STRINGS, |n| n.parse().expect("a number of strings"));
    for (name, path) in shared_vocabularies() {
        let both = Both::from_json(&name, &std::fs::read(path).expect("readable"));
        both.check_vocabulary();
        both.check_many(3, strings);
        println!("{name}: {strings} strings are exact");
    }
}

/// No input takes quadratic time; a quadratic step would take minutes here. The
/// reference is asked for a shorter text, since it is slow on some of these.
#[test]
fn long_inputs_are_exact_and_finish() {
    // Real vocabularies get shorter ones, since there are so many of them.
    let mut all = vec![(Both::demo(), 1 << 20)];
    for (name, path) in shared_vocabularies() {
        let both = Both::from_json(&name, &std::fs::read(path).expect("readable"));
        all.push((both, 1 << 15));
    }
    let base64 = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM0NTY3";
    for (both, long) in &all {
        for unit in [
            "a", "A", " ", "\n", " \n", "\t", "\u{3000}", "🙂", "漢", "漢A", "aA", "1", "!", "'",
            "'s", "\u{301}", "a\u{301}", "각", base64, "<", "<|", "[", "한",
        ] {
            let text = unit.repeat(long / unit.len());
            let ids = both.ours.encode(&text, false);
            assert_eq!(both.ours.count(&text, false), ids.len());
            let (prefix, _) = both.ours.encode_prefix(&text, 1000);
            assert_eq!(prefix, ids[..ids.len().min(1000)]);
            both.check_text(&unit.repeat(3_000 / unit.len()));
        }
    }
}
