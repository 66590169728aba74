//! Data of tests.

/// The demo language model's `tokenizer.json`: a copy, since the crate is published alone.
pub(crate) const DEMO_TOKENIZER: &[u8] = include_bytes!("../tests/data/tokenizer.json");

#[test]
fn the_copy_of_the_demo_tokenizer_is_current() {
    let original = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../prelude-server/demo/demo-lm/tokenizer.json"
    );
    if let Ok(original) = std::fs::read(original) {
        assert!(original == DEMO_TOKENIZER, "copy the file anew");
    }
}
