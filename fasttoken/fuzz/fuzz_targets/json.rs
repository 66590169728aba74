//! Any file: loading gives a tokenizer or an error, the same in both of its ways, and what
//! loads encodes and decodes.
//!
//! Bytes are put into a small file at a place that the input chooses, so that most inputs
//! get past the parser.
#![no_main]

use fasttoken::Tokenizer;
use libfuzzer_sys::fuzz_target;

const PARTS: &[&str] = &[
    r#"{"version":"1.0","truncation":"#,
    "null",
    r#","padding":"#,
    "null",
    r#","added_tokens":[{"id":9,"content":"#,
    r#""<x>""#,
    r#","single_word":false,"lstrip":false,"rstrip":true,"normalized":true,"special":true}],"normalizer":"#,
    r#"{"type":"NFC"}"#,
    r#","pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"#,
    r#""(?i:'s|'t)|\\p{L}{1,3}| ?\\S+|\\s+(?!\\S)""#,
    r#"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},"post_processor":"#,
    r#"{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{}}"#,
    r#","decoder":"#,
    r#"{"type":"ByteLevel"}"#,
    r#","model":{"type":"BPE","unk_token":null,"vocab":"#,
    r#"{"a":0,"b":1,"Ġ":2,"ab":3,"Ã":4,"©":5}"#,
    r#","merges":"#,
    r#"["a b"]"#,
    "}}",
];

const TEXT: &str = "ab it's  <x>ab é\u{301} 123\n漢";

fuzz_target!(|input: (u8, &str)| {
    let (place, insert) = input;
    // Even places are the frame, odd ones are the values.
    let place = usize::from(place) % (PARTS.len() / 2) * 2 + 1;
    let mut json = String::new();
    for (n, part) in PARTS.iter().enumerate() {
        json.push_str(if n == place { insert } else { part });
    }
    for json in [json.as_str(), insert] {
        // The same file to a parser of JSON, but not one that is read in one pass.
        let unusual = json.replacen(r#""model":"#, r#""mod\u0065l":"#, 1);
        let slowly = Tokenizer::from_bytes(unusual.as_bytes());
        let Ok(tokenizer) = Tokenizer::from_bytes(json.as_bytes()) else {
            assert!(slowly.is_err(), "only refused as it is");
            continue;
        };
        let slowly = slowly.expect("it loads as it is");
        let ids = tokenizer.encode(TEXT, true);
        assert_eq!(ids, slowly.encode(TEXT, true));
        assert_eq!(tokenizer.vocab_size(), slowly.vocab_size());
        for id in 0..20 {
            assert_eq!(tokenizer.id_to_token(id), slowly.id_to_token(id));
        }
        tokenizer.decode(&ids, false);
        tokenizer.encode((TEXT, "b"), true);
        let encoding = tokenizer.encode_with_offsets(TEXT, false);
        assert_eq!(encoding.ids, tokenizer.encode(TEXT, false));
        // Padding may be to millions of ids, which is not what is looked for here.
        let options = tokenizer.options().add_special_tokens(true).padding(None);
        let _ = tokenizer.encode_with((TEXT, "b"), &options);
    }
});
