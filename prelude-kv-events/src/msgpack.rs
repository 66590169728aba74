//! MessagePack, as far as events need it.

use thiserror::Error;

/// Bytes that are no MessagePack, or not the value that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MsgpackError {
    /// The bytes end inside of a value.
    #[error("the message ends early")]
    Short,
    /// The value is of another type.
    #[error("byte {at:#04x} stands where {expected} is expected")]
    Type {
        /// The first byte of the value.
        at: u8,
        /// The type expected.
        expected: &'static str,
    },
    /// Lists or maps lie deeper in each other than is allowed.
    #[error("more than {MAX_DEPTH} levels of nesting")]
    Deep,
    /// A text is no UTF-8.
    #[error("a text is not UTF-8")]
    Utf8,
}

/// Upper bound of the nesting of values that are skipped.
const MAX_DEPTH: usize = 32;

/// Writes values to the end of a buffer, each in its shortest form.
pub(crate) trait Write {
    fn nil(&mut self);
    fn uint(&mut self, value: u64);
    fn float(&mut self, value: f64);
    fn text(&mut self, value: &str);
    fn array(&mut self, len: usize);
    fn map(&mut self, len: usize);
}

impl Write for Vec<u8> {
    fn nil(&mut self) {
        self.push(0xc0);
    }

    fn uint(&mut self, value: u64) {
        if value < 0x80 {
            self.push(value as u8);
        } else if let Ok(value) = u8::try_from(value) {
            self.extend([0xcc, value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.push(0xcd);
            self.extend(value.to_be_bytes());
        } else if let Ok(value) = u32::try_from(value) {
            self.push(0xce);
            self.extend(value.to_be_bytes());
        } else {
            self.push(0xcf);
            self.extend(value.to_be_bytes());
        }
    }

    fn float(&mut self, value: f64) {
        self.push(0xcb);
        self.extend(value.to_be_bytes());
    }

    fn text(&mut self, value: &str) {
        match value.len() {
            len @ 0..32 => self.push(0xa0 | len as u8),
            len @ 32..256 => self.extend([0xd9, len as u8]),
            len => long(self, [0xda, 0xdb], len),
        }
        self.extend(value.as_bytes());
    }

    fn array(&mut self, len: usize) {
        match len {
            0..16 => self.push(0x90 | len as u8),
            _ => long(self, [0xdc, 0xdd], len),
        }
    }

    fn map(&mut self, len: usize) {
        match len {
            0..16 => self.push(0x80 | len as u8),
            _ => long(self, [0xde, 0xdf], len),
        }
    }
}

/// Writes a length in two bytes or four, behind the marker of either.
fn long(out: &mut Vec<u8>, [two, four]: [u8; 2], len: usize) {
    if let Ok(len) = u16::try_from(len) {
        out.push(two);
        out.extend(len.to_be_bytes());
    } else {
        let len =
            u32::try_from(len).expect("lists and strings of events have fewer than 2^32 elements");
        out.push(four);
        out.extend(len.to_be_bytes());
    }
}

/// Reads values from the start of a slice.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], MsgpackError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(MsgpackError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads an unsigned number of so many bytes.
    fn number(&mut self, len: usize) -> Result<u64, MsgpackError> {
        let bytes = self.take(len)?.iter();
        Ok(bytes.fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
    }

    fn len(&mut self, len: usize) -> Result<usize, MsgpackError> {
        let len = self.number(len)?;
        usize::try_from(len).map_err(|_| MsgpackError::Short)
    }

    /// Returns the first byte of the next value.
    pub(crate) fn peek(&self) -> Result<u8, MsgpackError> {
        self.0.first().copied().ok_or(MsgpackError::Short)
    }

    fn marker(&mut self) -> Result<u8, MsgpackError> {
        Ok(self.take(1)?[0])
    }

    /// Reads nil if it comes next. Returns whether it did.
    pub(crate) fn is_nil(&mut self) -> Result<bool, MsgpackError> {
        let is_nil = self.peek()? == 0xc0;
        if is_nil {
            self.take(1)?;
        }
        Ok(is_nil)
    }

    /// Reads an integer that is not negative.
    pub(crate) fn uint(&mut self) -> Result<u64, MsgpackError> {
        let at = self.marker()?;
        let expected = "a number from 0 on";
        match at {
            0..0x80 => Ok(u64::from(at)),
            0xcc..=0xcf => self.number(1 << (at - 0xcc)),
            // Numbers that are not negative, in signed forms.
            0xd0..=0xd3 => {
                let len = 1 << (at - 0xd0);
                let value = self.number(len)?;
                let is_negative = value >> (8 * len - 1) == 1;
                match is_negative {
                    true => Err(MsgpackError::Type { at, expected }),
                    false => Ok(value),
                }
            }
            _ => Err(MsgpackError::Type { at, expected }),
        }
    }

    /// Reads a number with or without a fraction.
    pub(crate) fn float(&mut self) -> Result<f64, MsgpackError> {
        match self.peek()? {
            0xca => {
                self.take(1)?;
                let bits = self.number(4)?;
                Ok(f64::from(f32::from_bits(bits as u32)))
            }
            0xcb => {
                self.take(1)?;
                Ok(f64::from_bits(self.number(8)?))
            }
            _ => Ok(self.uint()? as f64),
        }
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, MsgpackError> {
        let at = self.marker()?;
        let len = match at {
            0xa0..=0xbf => usize::from(at & 0x1f),
            0xd9..=0xdb => self.len(1 << (at - 0xd9))?,
            _ => {
                let expected = "a text";
                return Err(MsgpackError::Type { at, expected });
            }
        };
        std::str::from_utf8(self.take(len)?).map_err(|_| MsgpackError::Utf8)
    }

    /// Reads a byte string.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], MsgpackError> {
        let at = self.marker()?;
        match at {
            0xc4..=0xc6 => {
                let len = self.len(1 << (at - 0xc4))?;
                self.take(len)
            }
            _ => {
                let expected = "a byte string";
                Err(MsgpackError::Type { at, expected })
            }
        }
    }

    /// Reads the length of a list, whose values follow.
    pub(crate) fn array(&mut self) -> Result<usize, MsgpackError> {
        let at = self.marker()?;
        match at {
            0x90..=0x9f => Ok(usize::from(at & 0xf)),
            0xdc..=0xdd => self.len(2 << (at - 0xdc)),
            _ => {
                let expected = "a list";
                Err(MsgpackError::Type { at, expected })
            }
        }
    }

    /// Reads the length of a map, whose keys and values follow in turns.
    pub(crate) fn map(&mut self) -> Result<usize, MsgpackError> {
        let at = self.marker()?;
        match at {
            0x80..=0x8f => Ok(usize::from(at & 0xf)),
            0xde..=0xdf => self.len(2 << (at - 0xde)),
            _ => {
                let expected = "a map";
                Err(MsgpackError::Type { at, expected })
            }
        }
    }

    /// Reads any value and forgets it.
    pub(crate) fn skip(&mut self) -> Result<(), MsgpackError> {
        self.skip_to(MAX_DEPTH)
    }

    fn skip_to(&mut self, depth: usize) -> Result<(), MsgpackError> {
        let inside = match self.peek()? {
            0x80..=0x8f | 0xde..=0xdf => self.map()?.saturating_mul(2),
            0x90..=0x9f | 0xdc..=0xdd => self.array()?,
            0xa0..=0xbf | 0xd9..=0xdb => return self.text().map(drop),
            0xc4..=0xc6 => return self.bytes().map(drop),
            at => {
                self.take(1)?;
                let len = match at {
                    0..0x80 | 0xc0..=0xc3 | 0xe0..=0xff => 0,
                    0xcc..=0xcf => 1 << (at - 0xcc),
                    0xd0..=0xd3 => 1 << (at - 0xd0),
                    0xca => 4,
                    0xcb => 8,
                    // Extensions: a type, and data of a length that is said or follows.
                    0xd4..=0xd8 => 1 + (1 << (at - 0xd4)),
                    _ => 1 + self.len(1 << (at - 0xc7))?,
                };
                return self.take(len).map(drop);
            }
        };
        let below = depth.checked_sub(1).ok_or(MsgpackError::Deep)?;
        (0..inside).try_for_each(|_| self.skip_to(below))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_have_their_shortest_forms() {
        let written = |write: fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            out
        };
        assert_eq!(written(|o| o.uint(127)), [0x7f]);
        assert_eq!(written(|o| o.uint(128)), [0xcc, 0x80]);
        assert_eq!(written(|o| o.uint(256)), [0xcd, 1, 0]);
        assert_eq!(written(|o| o.uint(65_536)), [0xce, 0, 1, 0, 0]);
        assert_eq!(written(|o| o.uint(1 << 32)), [0xcf, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(written(|o| o.text("ab")), [0xa2, b'a', b'b']);
        assert_eq!(written(|o| o.array(16)), [0xdc, 0, 16]);
        assert_eq!(written(|o| o.map(2)), [0x82]);
        assert_eq!(written(|o| o.float(1.5))[..3], [0xcb, 0x3f, 0xf8]);
    }

    #[test]
    fn signed_forms_of_small_numbers_are_read() {
        assert_eq!(Reader(&[0xd0, 5]).uint(), Ok(5));
        assert_eq!(Reader(&[0xd1, 1, 0]).uint(), Ok(256));
        assert!(Reader(&[0xd0, 0xff]).uint().is_err());
        assert!(Reader(&[0xff]).uint().is_err());
    }

    #[test]
    fn deep_values_end_with_an_error() {
        assert_eq!(Reader(&[0x91; 100]).skip(), Err(MsgpackError::Deep));
        assert_eq!(
            Reader(&[0xdd, 255, 255, 255, 255]).skip(),
            Err(MsgpackError::Short)
        );
    }

    proptest! {
        #[test]
        fn written_values_read_back(
            number in any::<u64>(),
            shift in 0u32..64,
            float in any::<f64>(),
            text in ".{0,300}",
            len in 0usize..70_000,
        ) {
            let mut out = Vec::new();
            out.uint(number >> shift);
            out.float(float);
            out.text(&text);
            out.array(len);
            out.map(len);
            out.nil();
            let mut reader = Reader(&out);
            prop_assert_eq!(reader.uint(), Ok(number >> shift));
            prop_assert_eq!(reader.float().map(f64::to_bits), Ok(float.to_bits()));
            prop_assert_eq!(reader.text(), Ok(&*text));
            prop_assert_eq!((reader.array(), reader.map()), (Ok(len), Ok(len)));
            prop_assert_eq!(reader.is_nil(), Ok(true));
            prop_assert!(reader.0.is_empty());
        }

        /// Any bytes are skipped or refused, and nothing panics.
        #[test]
        fn any_bytes_are_skipped_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut reader = Reader(&bytes);
            while reader.skip().is_ok() {}
        }
    }
}
