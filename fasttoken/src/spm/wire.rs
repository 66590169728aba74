//! A reader of protocol-buffer messages: the fields of a message, one after the other.
//!
//! A value borrows from the message, so reading takes no memory, whatever lengths the bytes state.

use crate::error::Error;

/// The fields of a message that have not been read.
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    /// The byte of the file at which `bytes` begin, for errors.
    place: usize,
}

/// A field of a message.
pub(super) struct Field<'a> {
    pub(super) number: u64,
    value: Value<'a>,
    /// The byte of the file at which the field begins.
    place: usize,
}

#[derive(Clone, Copy)]
enum Value<'a> {
    Varint(u64),
    /// Four bytes that lie in little-endian order.
    Fixed32([u8; 4]),
    Fixed64,
    /// Bytes, and the place in the file at which they begin.
    Bytes(&'a [u8], usize),
}

impl<'a> Fields<'a> {
    /// Creates a reader of a whole file.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, place: 0 }
    }

    /// Returns the next field, or `None` at the end of the message.
    ///
    /// # Errors
    /// When the bytes are no message.
    pub(super) fn next(&mut self) -> Result<Option<Field<'a>>, Error> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let place = self.place;
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let len = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                let start = self.place;
                Value::Bytes(self.take(len)?, start)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Fixed32([bytes[0], bytes[1], bytes[2], bytes[3]])
            }
            other => {
                let problem = format!("wire type {other}, which a SentencePiece model has nowhere");
                return Err(malformed(place, problem));
            }
        };
        let number = tag >> 3;
        Ok(Some(Field {
            number,
            value,
            place,
        }))
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(malformed(self.place, "a number of more than ten bytes"))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else {
            return Err(malformed(self.place, "the file ends inside of a value"));
        };
        self.bytes = rest;
        self.place += len;
        Ok(taken)
    }
}

impl<'a> Field<'a> {
    /// Returns the fields of the message that the value is.
    pub(super) fn message(&self) -> Result<Fields<'a>, Error> {
        match self.value {
            Value::Bytes(bytes, place) => Ok(Fields { bytes, place }),
            _ => Err(self.other_type()),
        }
    }

    pub(super) fn bytes(&self) -> Result<&'a [u8], Error> {
        match self.value {
            Value::Bytes(bytes, _) => Ok(bytes),
            _ => Err(self.other_type()),
        }
    }

    pub(super) fn text(&self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| malformed(self.place, "a string that is not UTF-8"))
    }

    pub(super) fn number(&self) -> Result<u64, Error> {
        match self.value {
            Value::Varint(number) => Ok(number),
            _ => Err(self.other_type()),
        }
    }

    pub(super) fn bool(&self) -> Result<bool, Error> {
        Ok(self.number()? != 0)
    }

    pub(super) fn float(&self) -> Result<f32, Error> {
        match self.value {
            Value::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(self.other_type()),
        }
    }

    fn other_type(&self) -> Error {
        let problem = format!(
            "field {} has another type than the format says",
            self.number
        );
        malformed(self.place, problem)
    }
}

fn malformed(place: usize, problem: impl Into<String>) -> Error {
    Error::invalid(format!("byte {place} of the SentencePiece model"), problem)
}
