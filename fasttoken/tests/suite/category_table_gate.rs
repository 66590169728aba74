//! The generated class table against the reference, over all code points.

use crate::common::onig;

#[test]
fn table_is_what_the_reference_says() {
    let expected = onig::class_runs();
    let found = include_bytes!("../../src/unicode/category_table.bin");
    let (found, rest) = found.as_chunks::<4>();
    assert!(rest.is_empty() && found.len() == expected.len());
    for (found, (start, class)) in found.iter().zip(expected) {
        let found = u32::from_le_bytes(*found);
        assert_eq!((found >> 8, found as u8), (start, class), "U+{start:04X}");
    }
}
