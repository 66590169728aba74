//! Base64, in which some files keep bytes.

/// Decodes Base64 with its padding.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let value = |c: u8| -> Option<u32> {
        Some(match c {
            b'A'..=b'Z' => u32::from(c - b'A'),
            b'a'..=b'z' => u32::from(c - b'a') + 26,
            b'0'..=b'9' => u32::from(c - b'0') + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    let (groups, rest) = text.as_chunks::<4>();
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for (n, group) in groups.iter().enumerate() {
        let last = n + 1 == groups.len();
        let padding = group.iter().rev().take_while(|c| **c == b'=').count();
        if padding > 2 || (padding > 0 && !last) {
            return None;
        }
        let mut bits = 0;
        for &c in &group[..4 - padding] {
            bits = bits << 6 | value(c)?;
        }
        bits <<= 6 * padding;
        let bytes = bits.to_be_bytes();
        if bytes[4 - padding..].iter().any(|byte| *byte != 0) {
            return None;
        }
        out.extend_from_slice(&bytes[1..4 - padding]);
    }
    rest.is_empty().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn base64_is_decoded() {
        let text = |text: &str| decode(text.as_bytes()).map(|b| String::from_utf8(b).unwrap());
        for (encoded, decoded) in [
            ("", Some("")),
            ("TQ==", Some("M")),
            ("TWE=", Some("Ma")),
            ("TWFu", Some("Man")),
            ("TWFuTWE=", Some("ManMa")),
            ("TWE", None),
            ("TWE=TWE=", None),
            ("TR==", None),
            ("T===", None),
            ("====", None),
            ("TW E", None),
        ] {
            assert_eq!(text(encoded).as_deref(), decoded, "{encoded:?}");
        }
    }
}
