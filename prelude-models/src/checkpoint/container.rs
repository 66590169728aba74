//! The safetensors container: 8 bytes of header length, a JSON header, then the tensors.
//!
//! Validation is our own, since a header comes from strangers: the `safetensors` crate (0.8) lets
//! a repeated name win silently and adds offsets without overflow checks. A valid header here
//! describes tensors that tile the rest of the file exactly, each as long as its shape says.

use std::{fmt, ops::Range};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::stored::{Entry, Stored};
use crate::{DType, Error};

/// Largest header that the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const LENGTH_BYTES: usize = 8;

/// Element types of the format and their sizes in bits.
const OTHER_TYPES: [(&str, usize); 18] = [
    ("BOOL", 8),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E5M2FNUZ", 8),
    ("F8_E4M3FNUZ", 8),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("F4", 4),
    ("I16", 16),
    ("U16", 16),
    ("I32", 32),
    ("U32", 32),
    ("I64", 64),
    ("U64", 64),
    ("F64", 64),
];

fn element(name: &str) -> Option<(Stored, usize)> {
    Some(match name {
        "BF16" => (Stored::Float(DType::Bf16), 16),
        "F16" => (Stored::Float(DType::F16), 16),
        "F32" => (Stored::Float(DType::F32), 32),
        "C64" => (Stored::Other("C64"), 64),
        _ => {
            let (name, bits) = OTHER_TYPES.iter().find(|(n, _)| *n == name)?;
            (Stored::Other(name), *bits)
        }
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header's tensors in file order, repeats included: a map would hide them.
struct RawHeader(Vec<(String, RawTensor)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(RawHeader(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Reads and checks the header of `bytes`. Entries come back sorted by name.
///
/// Allocates in proportion to the header's own bytes, whatever numbers it contains.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    entries(bytes).map_err(|what| Error::Container {
        file: file.to_owned(),
        what,
    })
}

fn entries(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let (length, rest) = bytes
        .split_first_chunk::<LENGTH_BYTES>()
        .ok_or_else(|| format!("{} bytes are too few for a header", bytes.len()))?;
    let length = u64::from_le_bytes(*length);
    if length > HEADER_BYTES_MAX {
        return Err(format!(
            "a header of {length} bytes is longer than the format's {HEADER_BYTES_MAX}"
        ));
    }
    let header = usize::try_from(length)
        .ok()
        .and_then(|n| rest.get(..n))
        .ok_or_else(|| {
            format!(
                "the header of {length} bytes ends beyond the file of {} bytes",
                bytes.len()
            )
        })?;
    let data_start = LENGTH_BYTES + header.len();
    if header.first() != Some(&b'{') {
        return Err("the header is not a JSON object".to_owned());
    }
    let header =
        std::str::from_utf8(header).map_err(|e| format!("the header is not UTF-8: {e}"))?;
    let RawHeader(raw) =
        serde_json::from_str(header).map_err(|e| format!("the header is malformed: {e}"))?;
    let mut entries = raw
        .into_iter()
        .map(|(name, tensor)| entry(name, &tensor, data_start, bytes.len()))
        .collect::<Result<Vec<_>, _>>()?;
    check_tiling(&mut entries, data_start..bytes.len())?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = entries.windows(2).find(|w| w[0].name == w[1].name) {
        return Err(format!("tensor {:?} appears twice", pair[0].name));
    }
    Ok(entries)
}

fn entry(
    name: String,
    tensor: &RawTensor,
    data_start: usize,
    file_len: usize,
) -> Result<Entry, String> {
    let (dtype, bits) = element(&tensor.dtype)
        .ok_or_else(|| format!("tensor {name:?} has unknown type {:?}", tensor.dtype))?;
    let size = byte_size(&tensor.shape, bits).ok_or_else(|| {
        let shape = &tensor.shape;
        format!("tensor {name:?} of shape {shape:?} has no whole number of bytes")
    })?;
    let [start, end] = tensor.data_offsets;
    if end < start || end - start != size {
        return Err(format!(
            "tensor {name:?} of shape {:?} and type {} needs {size} bytes, its offsets say {start}..{end}",
            tensor.shape, tensor.dtype
        ));
    }
    let in_file = |offset: u64| {
        usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(data_start))
            .filter(|&at| at <= file_len)
    };
    let (Some(start), Some(end)) = (in_file(start), in_file(end)) else {
        return Err(format!(
            "tensor {name:?} ends beyond the file of {file_len} bytes: it is truncated"
        ));
    };
    // A dimension may exceed the address space only beside a zero, where nothing is stored.
    let shape = tensor
        .shape
        .iter()
        .map(|&dim| usize::try_from(dim))
        .collect::<Result<_, _>>()
        .map_err(|_| format!("tensor {name:?} has an absurd shape"))?;
    Ok(Entry {
        name,
        dtype,
        shape,
        bytes: start..end,
        paired_rows: None,
    })
}

/// Returns the size of elements of `bits` bits each, if it is a whole number of bytes below 2⁶¹.
fn byte_size(shape: &[u64], bits: usize) -> Option<u64> {
    let mut dimensions = shape.iter();
    let bits = dimensions.try_fold(bits as u64, |n, &dim| n.checked_mul(dim))?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Checks that tensors follow each other without gap or overlap and fill `data`.
fn check_tiling(entries: &mut [Entry], data: Range<usize>) -> Result<(), String> {
    entries.sort_by_key(|e| (e.bytes.start, e.bytes.end));
    let mut at = data.start;
    for entry in &*entries {
        if entry.bytes.start != at {
            let how = if entry.bytes.start < at {
                "overlaps the one before it"
            } else {
                "leaves a gap before it"
            };
            return Err(format!("tensor {:?} {how}", entry.name));
        }
        at = entry.bytes.end;
    }
    if at != data.end {
        return Err(format!(
            "{} bytes after the last tensor belong to none",
            data.end - at
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn check(header: &str, data: usize, expected: Result<usize, &str>) {
        match (entries(&file(header, data)), expected) {
            (Ok(entries), Ok(n)) => assert_eq!(entries.len(), n),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (got, expected) => panic!("{header}: {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn headers_are_checked() {
        check("{}", 0, Ok(0));
        check(r#"{"__metadata__":{"format":"pt"}}  "#, 0, Ok(0));
        check(
            r#"{"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#,
            16,
            Ok(2),
        );
        check(
            r#"{"a":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}}"#,
            0,
            Ok(1),
        );
        check("", 0, Err("not a JSON object"));
        check("[]", 0, Err("not a JSON object"));
        check("{\"a\":1}", 0, Err("malformed"));
        check("{} x", 0, Err("malformed"));
        check(
            r#"{"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,4]}}"#,
            4,
            Err("unknown type \"Q4\""),
        );
        check(
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
            4,
            Err("needs 8 bytes"),
        );
        check(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
            4,
            Err("needs 4 bytes"),
        );
        check(
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
            4,
            Err("truncated"),
        );
        check(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            5,
            Err("1 bytes after the last tensor"),
        );
        check(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            8,
            Err("leaves a gap"),
        );
        check(
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            8,
            Err("overlaps"),
        );
        check(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            8,
            Err("appears twice"),
        );
        check(
            r#"{"a":{"dtype":"U8","shape":[4294967296,4294967296,2],"data_offsets":[0,0]}}"#,
            0,
            Err("no whole number of bytes"),
        );
        check(
            r#"{"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}}"#,
            0,
            Err("no whole number of bytes"),
        );
        check(
            r#"{"a":{"dtype":"U8","shape":[1152921504606846976],"data_offsets":[17293822569102704640,18446744073709551616]}}"#,
            0,
            Err("malformed"),
        );
        check(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}}"#,
            4,
            Err("malformed"),
        );
    }

    #[test]
    fn lengths_are_checked() {
        let check = |bytes: &[u8], part: &str| {
            let error = entries(bytes).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        check(b"", "too few");
        check(&[1, 2, 3], "too few");
        check(&u64::MAX.to_le_bytes(), "longer than the format's");
        check(&1000_u64.to_le_bytes(), "ends beyond the file");
        let mut not_utf8 = file("{\"x\":1}", 0);
        not_utf8[10] = 0xff;
        check(&not_utf8, "not UTF-8");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever is done to a valid file: an answer, and if it is yes, ranges in the file.
        #[test]
        fn damaged_files_never_panic(
            edits in prop::collection::vec((0usize..400, any::<u8>()), 0..6),
            cut in prop::option::of(0usize..400),
        ) {
            let mut bytes = file(
                r#"{"__metadata__":{"k":"v"},"a.weight":{"dtype":"BF16","shape":[4,3],"data_offsets":[0,24]},"b":{"dtype":"F32","shape":[5],"data_offsets":[24,44]}}"#,
                44,
            );
            for (at, value) in edits {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut);
            }
            if let Ok(entries) = entries(&bytes) {
                for e in entries {
                    prop_assert!(bytes.get(e.bytes.clone()).is_some());
                    if let Stored::Float(dtype) = e.dtype {
                        prop_assert_eq!(e.shape.iter().product::<usize>() * dtype.size(), e.bytes.len());
                    }
                }
            }
        }
    }
}
