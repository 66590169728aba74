//! Replacing an ASCII character.

/// Returns `text` with `to` for each ASCII character `from`, or `None` if it has none.
pub(super) fn replace_byte(text: &str, from: u8, to: &str) -> Option<String> {
    let first = position(text.as_bytes(), from)?;
    let mut replaced = String::new();
    replaced.push_str(&text[..first]);
    push_replaced(&text[first..], from, to, &mut replaced);
    Some(replaced)
}

/// Appends `text` with `to` for each `from`, an ASCII character. In texts of words, which
/// this is for, calling a search for each of them takes longer than looking at eight bytes.
pub(crate) fn push_replaced(text: &str, from: u8, to: &str, out: &mut String) {
    debug_assert!(from.is_ascii(), "its bytes are in no other character");
    let times = text.bytes().filter(|byte| *byte == from).count();
    out.reserve(text.len() + times * to.len());
    let mut rest = text;
    while let Some(at) = position(rest.as_bytes(), from) {
        out.push_str(&rest[..at]);
        out.push_str(to);
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

/// Returns the position of the first `byte`.
#[inline(always)]
fn position(bytes: &[u8], byte: u8) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (n, chunk) in chunks.iter().enumerate() {
        let unlike = u64::from_le_bytes(*chunk) ^ (u64::from(byte) * ONES);
        // The lowest bit that is set is that of the first byte that is zero.
        let zeros = unlike.wrapping_sub(ONES) & !unlike & (0x80 * ONES);
        if zeros != 0 {
            return Some(n * 8 + zeros.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|b| *b == byte)?;
    Some(chunks.len() * 8 + at)
}
