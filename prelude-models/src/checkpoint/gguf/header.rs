//! The header of a GGUF file: settings by name, and where tensors lie.
//!
//! Every number comes from a stranger: lengths are compared with what is left of the file before
//! anything is read or kept.

use std::{collections::BTreeMap, ops::Range};

use half::{bf16, f16};

use super::super::quantised::{Q8_0_BLOCK, Q8_0_BYTES};

const MAGIC: &[u8] = b"GGUF";
/// Most dimensions of a tensor.
const DIMENSIONS_MAX: u32 = 4;
/// Largest alignment of tensors.
const ALIGNMENT_MAX: u64 = 1 << 20;
const ALIGNMENT: u64 = 32;

/// A setting's value. Of lists nothing but the length is of use.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(u64),
}

/// An element type that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    F32,
    F16,
    Bf16,
    Q8_0,
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) name: String,
    pub(super) dtype: Type,
    /// Dimensions, outermost first.
    pub(super) shape: Vec<usize>,
    /// The tensor's bytes in the file.
    pub(super) bytes: Range<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) settings: BTreeMap<String, Value>,
    pub(super) tensors: Vec<Info>,
}

/// The types of the format that are not read, by number.
const OTHER_TYPES: [(u32, &str); 29] = [
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl Type {
    fn of(number: u32) -> Result<Self, String> {
        Ok(match number {
            0 => Self::F32,
            1 => Self::F16,
            8 => Self::Q8_0,
            30 => Self::Bf16,
            _ => {
                let other = OTHER_TYPES.iter().find(|(of, _)| *of == number);
                let name =
                    other.map_or_else(|| format!("{number}"), |(_, name)| (*name).to_owned());
                return Err(format!("has type {name}; F32, F16, BF16 and Q8_0 are read"));
            }
        })
    }

    /// Returns the bytes of a tensor whose rows have `columns` elements.
    fn size(self, elements: u64, columns: u64) -> Option<u64> {
        let of_one = match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 => size_of::<f16>(),
            Self::Bf16 => size_of::<bf16>(),
            Self::Q8_0 => {
                let block = Q8_0_BLOCK as u64;
                return match columns.is_multiple_of(block) {
                    true => (elements / block).checked_mul(Q8_0_BYTES as u64),
                    false => None,
                };
            }
        };
        elements.checked_mul(of_one as u64)
    }
}

/// The rest of the file from some place on.
struct Cursor<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8], String> {
        let left = self.all.len() - self.at;
        let len = usize::try_from(len).ok().filter(|&len| len <= left);
        let len =
            len.ok_or_else(|| "the header ends beyond the file: it is truncated".to_owned())?;
        let taken = &self.all[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.try_into().expect("as many were taken"))
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, String> {
        let len = self.u64()?;
        let bytes = self.take(len)?;
        let text = std::str::from_utf8(bytes);
        text.map(str::to_owned)
            .map_err(|_| "a name or a text is not UTF-8".to_owned())
    }

    /// Reads the value of a setting of the type with this number.
    fn value(&mut self, number: u32) -> Result<Value, String> {
        Ok(match number {
            0 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            9 => return self.list(),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("a setting has the unknown type {number}")),
        })
    }

    fn list(&mut self) -> Result<Value, String> {
        let number = self.u32()?;
        let count = self.u64()?;
        let size = match number {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                for _ in 0..count {
                    let len = self.u64()?;
                    self.take(len)?;
                }
                return Ok(Value::List(count));
            }
            _ => return Err(format!("a list has elements of the unknown type {number}")),
        };
        self.take(count.saturating_mul(size))?;
        Ok(Value::List(count))
    }
}

impl Header {
    /// Reads and checks the header of a file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut cursor = Cursor { all: bytes, at: 0 };
        if cursor.take(4)? != MAGIC {
            return Err("it does not begin with `GGUF`".to_owned());
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!("its version is {version}; 2 and 3 are read"));
        }
        let (tensors, settings) = (cursor.u64()?, cursor.u64()?);
        let mut found = BTreeMap::new();
        for _ in 0..settings {
            let name = cursor.text()?;
            let number = cursor.u32()?;
            let value = cursor.value(number)?;
            if found.contains_key(&name) {
                return Err(format!("setting {name:?} appears twice"));
            }
            found.insert(name, value);
        }
        let mut header = Self {
            settings: found,
            tensors: Vec::new(),
        };
        let alignment = header.unsigned("general.alignment")?.unwrap_or(ALIGNMENT);
        if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
            return Err(format!("its alignment is {alignment}"));
        }
        let mut infos = Vec::new();
        for _ in 0..tensors {
            infos.push(info(&mut cursor)?);
        }
        let start = (cursor.at as u64).next_multiple_of(alignment);
        for (name, dtype, shape, offset) in infos {
            let bytes = range(bytes.len(), start, (&shape, offset), dtype, alignment)
                .map_err(|what| format!("tensor {name:?} {what}"))?;
            header.tensors.push(Info {
                name,
                dtype,
                shape,
                bytes,
            });
        }
        header.check_apart()?;
        Ok(header)
    }

    /// Checks that names differ and tensors do not overlap.
    fn check_apart(&mut self) -> Result<(), String> {
        self.tensors
            .sort_by_key(|of| (of.bytes.start, of.bytes.end));
        let mut pairs = self.tensors.windows(2);
        if let Some(pair) = pairs.find(|pair| pair[0].bytes.end > pair[1].bytes.start) {
            let [first, second] = [&pair[0].name, &pair[1].name];
            return Err(format!("tensors {first:?} and {second:?} overlap"));
        }
        self.tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let mut pairs = self.tensors.windows(2);
        match pairs.find(|pair| pair[0].name == pair[1].name) {
            None => Ok(()),
            Some(pair) => Err(format!("tensor {:?} appears twice", pair[0].name)),
        }
    }

    /// Returns a setting that is a count.
    pub(super) fn unsigned(&self, name: &str) -> Result<Option<u64>, String> {
        let number = |value: &Value| match value {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        self.read(name, "a count", number)
    }

    /// Returns a setting that is a number.
    pub(super) fn float(&self, name: &str) -> Result<Option<f64>, String> {
        let number = |value: &Value| match value {
            Value::Float(number) => Some(*number),
            Value::Unsigned(number) => Some(*number as f64),
            _ => None,
        };
        self.read(name, "a number", number)
    }

    /// Returns a setting that is a text.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, String> {
        let text = |value: &'_ Value| matches!(value, Value::Text(_)).then_some(());
        self.read(name, "a text", text)?;
        Ok(match self.settings.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        })
    }

    fn read<T>(
        &self,
        name: &str,
        must: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.settings.get(name) else {
            return Ok(None);
        };
        let found = read(value).ok_or_else(|| format!("setting {name:?} must be {must}"))?;
        Ok(Some(found))
    }
}

/// Reads one tensor's name, type, shape (outermost first) and offset.
fn info(cursor: &mut Cursor<'_>) -> Result<(String, Type, Vec<usize>, u64), String> {
    let name = cursor.text()?;
    let count = cursor.u32()?;
    if count > DIMENSIONS_MAX {
        return Err(format!("tensor {name:?} has {count} dimensions"));
    }
    let mut shape = Vec::new();
    for _ in 0..count {
        let size = usize::try_from(cursor.u64()?);
        shape.push(size.map_err(|_| format!("tensor {name:?} has an absurd shape"))?);
    }
    shape.reverse();
    let number = cursor.u32()?;
    let dtype = Type::of(number).map_err(|what| format!("tensor {name:?} {what}"))?;
    Ok((name, dtype, shape, cursor.u64()?))
}

/// Returns the place of a tensor in a file whose tensors begin at `start`.
fn range(
    len: usize,
    start: u64,
    (shape, offset): (&[usize], u64),
    dtype: Type,
    alignment: u64,
) -> Result<Range<usize>, String> {
    let mut sizes = shape.iter().map(|&size| size as u64);
    let elements = sizes.try_fold(1, u64::checked_mul);
    let columns = shape.last().map_or(1, |&columns| columns as u64);
    let size = elements.and_then(|elements| dtype.size(elements, columns));
    let size = size.ok_or_else(|| {
        format!("of type {dtype:?} has shape {shape:?}, which is no whole number of blocks")
    })?;
    if !offset.is_multiple_of(alignment) {
        return Err(format!("begins at {offset}, which is not aligned"));
    }
    let begin = start.checked_add(offset);
    let end = begin.and_then(|begin| begin.checked_add(size));
    let (Some(begin), Some(end)) = (begin, end.filter(|&end| end <= len as u64)) else {
        return Err(format!(
            "ends beyond the file of {len} bytes: it is truncated"
        ));
    };
    // Both are at most the file's length.
    Ok(begin as usize..end as usize)
}
