//! The generated class table against the reference, over all code points.

use crate::common::onig;

#[path = "../../src/unicode/category_table.rs"]
mod table;

#[test]
fn table_is_what_the_reference_says() {
    let expected = onig::class_bytes();
    for (n, &(start, class)) in table::RUNS.iter().enumerate() {
        let end = table::RUNS.get(n + 1).map_or(0x11_0000, |next| next.0);
        for code in start..end {
            assert_eq!(class, expected[code as usize], "U+{code:04X}");
        }
    }
    assert_eq!(table::RUNS[0].0, 0, "every code point is in a run");
}
