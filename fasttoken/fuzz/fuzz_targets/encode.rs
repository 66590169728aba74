//! Any text: ids, offsets, word ids, counts and prefixes are the reference's.
#![no_main]

use fasttoken::{EncodeOptions, Offsets, Tokenizer};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tokenizers::Tokenizer as Reference;

/// The demo with tokens of every flag and the patterns of several models, and small WordPiece and
/// Unigram models. The first byte of an input chooses.
static BOTH: LazyLock<Vec<(Tokenizer, Reference)>> = LazyLock::new(|| {
    let demo = include_str!("../../tests/data/tokenizer.json");
    let added = r#""added_tokens":["#;
    let token = |id: u32, content: &str, flag: &str| {
        let set = |name: &str| name == flag;
        format!(
            r#"{{"id":{id},"content":"{content}","single_word":{},"lstrip":{},"rstrip":{},"normalized":{},"special":true}},"#,
            set("single_word"),
            set("lstrip"),
            set("rstrip"),
            set("normalized")
        )
    };
    let mut more = added.to_owned();
    for (n, (content, flag)) in [
        ("<l>", "lstrip"),
        ("<r>", "rstrip"),
        ("sw", "single_word"),
        ("ōn", "normalized"),
        ("  ", ""),
        ("<r", ""),
    ]
    .into_iter()
    .enumerate()
    {
        more += &token(5000 + n as u32, content, flag);
    }
    let flags = demo.replacen(added, &more, 1);
    let three_digits = demo.replacen(r"|\\p{N}|", r"|\\p{N}{1,3}|", 1);
    let gpt2 = three_digits.replacen(
        r#""add_prefix_space":false,"trim_offsets":false,"use_regex":false"#,
        r#""add_prefix_space":true,"trim_offsets":true,"use_regex":true"#,
        2,
    );
    let wordpiece = include_str!("../../tests/data/wordpiece.json");
    let unigram = include_str!("../../tests/data/unigram.json");
    [demo, &flags, &three_digits, &gpt2, wordpiece, unigram]
        .into_iter()
        .map(|json| {
            let ours = Tokenizer::from_bytes(json.as_bytes()).expect("the file loads");
            (ours, Reference::from_bytes(json).expect("the file loads"))
        })
        .collect()
});

fuzz_target!(|input: (u8, u8, &str)| {
    let (choice, limit, text) = input;
    let (ours, reference) = &BOTH[usize::from(choice) % BOTH.len()];
    let theirs = reference.encode(text, true).expect("encoding works");
    let encoding = ours.encode_with_offsets(text, true);
    assert_eq!(encoding.ids, theirs.get_ids());
    assert_eq!(encoding.offsets, theirs.get_offsets());
    assert_eq!(encoding.word_ids, theirs.get_word_ids());
    let ids = ours.encode(text, true);
    assert_eq!(ids, theirs.get_ids());
    assert_eq!(ours.count(text, true), ids.len());
    let limit = usize::from(limit);
    let plain = ours.encode(text, false);
    let (prefix, bytes) = ours.encode_prefix(text, limit);
    assert_eq!(prefix, plain[..limit.min(plain.len())]);
    assert!(text.is_char_boundary(bytes));
    let chars = reference
        .encode_char_offsets(text, false)
        .expect("encoding works");
    let options = EncodeOptions::new().offsets(Offsets::Chars);
    let encoding = ours.encode_with(text, &options).expect("no truncation");
    assert_eq!(encoding.offsets, chars.get_offsets());
    let mut trusted = Vec::new();
    ours.encode_plain_into(text, &mut trusted);
    // Unknown text stays unknown.
    let unknown = ["[UNK]", "<unk>"].map(|token| ours.token_to_id(token));
    let common = |id: u32| !ours.is_special(id) || unknown.contains(&Some(id));
    assert!(trusted.iter().all(|id| common(*id)));
});
