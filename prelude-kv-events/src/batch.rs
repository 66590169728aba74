//! A message's contents: events with the time at which they were sent.

use std::sync::Arc;

use prelude_core::{KvEvent, StoredBlocks, TokenId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::msgpack::{MsgpackError, Reader, Write as _};

/// The form of each event in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Maps with the field `type`, as vLLM writes them since June 2026.
    #[default]
    Maps,
    /// Lists that begin with the type, as vLLM wrote them before. Readers of that time read no
    /// maps.
    Arrays,
}

/// Events of one message.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Seconds since 1970.
    pub time: f64,
    /// The events, in order.
    pub events: Vec<KvEvent>,
}

/// A message that holds no events that can be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message is no MessagePack of the form expected.
    #[error("{0}")]
    Msgpack(#[from] MsgpackError),
    /// A list has fewer values than its type needs.
    #[error("a {0} has too few fields")]
    TooFew(&'static str),
    /// A map lacks a field.
    #[error("a {event} has no field `{field}`")]
    Missing {
        /// The type of the event.
        event: &'static str,
        /// The field.
        field: &'static str,
    },
    /// The tokens are not as many as the blocks hold.
    #[error("{tokens} tokens do not fill {blocks} blocks of {block_size}")]
    Tokens {
        /// Tokens of the event.
        tokens: usize,
        /// Blocks of the event.
        blocks: usize,
        /// Tokens of a block, as the event says.
        block_size: u64,
    },
}

/// The place of the blocks. vLLM gives memory of the device this name, on a CPU as well, and
/// readers weigh other names as slower tiers.
const MEDIUM: &str = "GPU";

const STORED: &str = "BlockStored";
const REMOVED: &str = "BlockRemoved";
const CLEARED: &str = "AllBlocksCleared";

/// The fields of a stored run behind its type, in the order of the list.
const STORED_FIELDS: [&str; 8] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
];

impl Batch {
    /// Returns the message.
    #[must_use]
    pub fn encode(&self, format: Format) -> Vec<u8> {
        let mut out = Vec::new();
        // A batch is a list of time, events, and the rank among data-parallel engines.
        out.array(3);
        out.float(self.time);
        out.array(self.events.len());
        for event in &self.events {
            encode(event, format, &mut out);
        }
        out.uint(0);
        out
    }

    /// Reads a message in either form. Events of unknown types, and unknown fields, are skipped.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let fields = reader.array()?;
        if fields < 2 {
            return Err(DecodeError::TooFew("batch"));
        }
        let time = reader.float()?;
        let mut events = Vec::new();
        for _ in 0..reader.array()? {
            let is_list = matches!(reader.peek()?, 0x90..=0x9f | 0xdc..=0xdd);
            let fields = match is_list {
                true => Fields::of_list(&mut reader)?,
                false => Fields::of_map(&mut reader)?,
            };
            events.extend(fields.event()?);
        }
        (2..fields).try_for_each(|_| reader.skip())?;
        Ok(Self { time, events })
    }
}

fn encode(event: &KvEvent, format: Format, out: &mut Vec<u8>) {
    let name = |out: &mut Vec<u8>, name: &str| {
        if format == Format::Maps {
            out.text(name);
        }
    };
    let start = |out: &mut Vec<u8>, tag: &str, fields: usize| {
        match format {
            Format::Maps => out.map(fields + 1),
            Format::Arrays => out.array(fields + 1),
        }
        name(out, "type");
        out.text(tag);
    };
    match event {
        KvEvent::Stored(stored) => {
            start(out, STORED, STORED_FIELDS.len());
            for (n, field) in STORED_FIELDS.iter().enumerate() {
                name(out, field);
                stored_field(stored, n, out);
            }
        }
        KvEvent::Removed(hashes) => {
            start(out, REMOVED, 2);
            name(out, "block_hashes");
            uints(out, hashes.iter().copied());
            name(out, "medium");
            out.text(MEDIUM);
        }
        KvEvent::Cleared => start(out, CLEARED, 0),
    }
}

/// Writes the n-th of [`STORED_FIELDS`].
fn stored_field(stored: &StoredBlocks, n: usize, out: &mut Vec<u8>) {
    match n {
        0 => uints(out, stored.hashes.iter().copied()),
        1 => match stored.parent {
            Some(parent) => out.uint(parent),
            None => out.nil(),
        },
        2 => uints(out, stored.tokens.iter().map(|&token| u64::from(token))),
        3 => out.uint(stored.block_size() as u64),
        5 => out.text(MEDIUM),
        7 => match &stored.salt {
            None => out.nil(),
            Some(salt) => {
                // The extra keys have one entry for each block; the salt is in the hash of the
                // first.
                out.array(stored.hashes.len());
                out.array(1);
                out.text(salt);
                (1..stored.hashes.len()).for_each(|_| out.nil());
            }
        },
        // There is no adapter.
        _ => out.nil(),
    }
}

fn uints(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u64>) {
    out.array(values.len());
    values.for_each(|value| out.uint(value));
}

/// The fields of an event, unread.
#[derive(Default)]
struct Fields<'a> {
    tag: &'a str,
    /// The values by their place in [`STORED_FIELDS`].
    values: [Option<Reader<'a>>; STORED_FIELDS.len()],
}

impl<'a> Fields<'a> {
    fn of_list(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = reader.array()?;
        if len == 0 {
            return Err(DecodeError::TooFew("event"));
        }
        let mut fields = Self {
            tag: reader.text()?,
            ..Self::default()
        };
        for n in 0..len - 1 {
            // A removed run has the hashes and the medium, which is not read.
            if let Some(value) = fields.values.get_mut(n) {
                *value = Some(reader.clone());
            }
            reader.skip()?;
        }
        Ok(fields)
    }

    fn of_map(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut fields = Self::default();
        for _ in 0..reader.map()? {
            let name = reader.text()?;
            if name == "type" {
                fields.tag = reader.text()?;
                continue;
            }
            if let Some(n) = STORED_FIELDS.iter().position(|&field| field == name) {
                fields.values[n] = Some(reader.clone());
            }
            reader.skip()?;
        }
        Ok(fields)
    }

    fn event(self) -> Result<Option<KvEvent>, DecodeError> {
        Ok(match self.tag {
            STORED => Some(KvEvent::Stored(self.stored()?)),
            REMOVED => Some(KvEvent::Removed(hashes(self.field(REMOVED, 0)?)?)),
            CLEARED => Some(KvEvent::Cleared),
            _ => None,
        })
    }

    fn field(&self, event: &'static str, n: usize) -> Result<Reader<'a>, DecodeError> {
        let field = STORED_FIELDS[n];
        self.values[n]
            .clone()
            .ok_or(DecodeError::Missing { event, field })
    }

    fn stored(&self) -> Result<StoredBlocks, DecodeError> {
        let hashes = hashes(self.field(STORED, 0)?)?;
        let parent = match &self.values[1] {
            Some(value) => optional_hash(value.clone())?,
            None => None,
        };
        let mut value = self.field(STORED, 2)?;
        let tokens = (0..value.array()?).map(|_| value.uint()).map(|token| {
            let token = token?;
            let expected = "a token id";
            TokenId::try_from(token).map_err(|_| MsgpackError::Type { at: 0xcf, expected })
        });
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        let block_size = self.field(STORED, 3)?.uint()?;
        let expected = (hashes.len() as u64).checked_mul(block_size);
        if expected != Some(tokens.len() as u64) {
            return Err(DecodeError::Tokens {
                tokens: tokens.len(),
                blocks: hashes.len(),
                block_size,
            });
        }
        let salt = match (&self.values[7], parent) {
            (Some(value), None) => salt(value.clone())?,
            _ => None,
        };
        Ok(StoredBlocks {
            hashes,
            parent,
            tokens,
            salt,
        })
    }
}

fn hashes(mut value: Reader<'_>) -> Result<Vec<u64>, DecodeError> {
    let len = value.array()?;
    (0..len).map(|_| hash(&mut value)).collect()
}

fn optional_hash(mut value: Reader<'_>) -> Result<Option<u64>, DecodeError> {
    Ok(match value.is_nil()? {
        true => None,
        false => Some(hash(&mut value)?),
    })
}

/// Reads a number, or the last eight bytes of a byte string.
fn hash(value: &mut Reader<'_>) -> Result<u64, DecodeError> {
    if !matches!(value.peek()?, 0xc4..=0xc6) {
        return Ok(value.uint()?);
    }
    let bytes = value.bytes()?;
    let last = &bytes[bytes.len().saturating_sub(8)..];
    Ok(last.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

/// Reads the first text among the extra keys of the first block, which is the salt unless the
/// engine has adapters or images.
fn salt(mut value: Reader<'_>) -> Result<Option<Arc<str>>, DecodeError> {
    if value.is_nil()? || value.array()? == 0 || value.is_nil()? {
        return Ok(None);
    }
    for _ in 0..value.array()? {
        if matches!(value.peek()?, 0xa0..=0xbf | 0xd9..=0xdb) {
            return Ok(Some(value.text()?.into()));
        }
        value.skip()?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event() -> impl Strategy<Value = KvEvent> {
        let hash = (any::<u64>(), 0u32..64).prop_map(|(hash, shift)| hash >> shift);
        let hashes = proptest::collection::vec(hash, 1..20);
        let stored = (
            hashes.clone(),
            any::<Option<u64>>(),
            1usize..5,
            any::<u32>(),
            ".{0,40}",
        );
        let stored = stored.prop_map(|(hashes, parent, block_size, token, salt)| StoredBlocks {
            tokens: (0..hashes.len() * block_size)
                .map(|n| token.wrapping_add(n as u32))
                .collect(),
            salt: (parent.is_none() && token % 2 == 0).then(|| salt.as_str().into()),
            hashes,
            parent,
        });
        prop_oneof![
            stored.prop_map(KvEvent::Stored),
            hashes.prop_map(KvEvent::Removed),
            Just(KvEvent::Cleared),
        ]
    }

    proptest! {
        #[test]
        fn both_forms_are_read_as_they_were_written(
            time in 0.0f64..1e10,
            events in proptest::collection::vec(event(), 0..20),
        ) {
            let batch = Batch { time, events };
            for format in [Format::Maps, Format::Arrays] {
                let found = Batch::decode(&batch.encode(format));
                prop_assert_eq!(found.as_ref(), Ok(&batch));
            }
        }

        #[test]
        fn damaged_messages_are_read_or_refused(
            events in proptest::collection::vec(event(), 0..4),
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
            cut in any::<usize>(),
        ) {
            let batch = Batch { time: 1.0, events };
            for format in [Format::Maps, Format::Arrays] {
                let mut bytes = batch.encode(format);
                prop_assert!(Batch::decode(&bytes[..cut % bytes.len()]).is_err());
                for &(at, byte) in &changes {
                    let at = at % bytes.len();
                    bytes[at] = byte;
                }
                // It may be read by chance; it must not panic.
                let _ = Batch::decode(&bytes);
            }
        }
    }

    #[test]
    fn a_block_size_no_memory_could_hold_is_refused() {
        let hashes = vec![1, 2];
        let tokens = vec![3, 4];
        let stored = KvEvent::Stored(StoredBlocks {
            hashes,
            parent: None,
            tokens,
            salt: None,
        });
        let batch = Batch {
            time: 1.0,
            events: vec![stored],
        };
        let bytes = batch.encode(Format::Maps);
        let name = b"block_size";
        let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len();
        let mut changed = bytes[..at].to_vec();
        changed.push(0xcf);
        changed.extend(u64::MAX.to_be_bytes());
        changed.extend(&bytes[at + 1..]);
        assert_eq!(
            Batch::decode(&changed),
            Err(DecodeError::Tokens {
                tokens: 2,
                blocks: 2,
                block_size: u64::MAX,
            })
        );
    }

    /// The bytes of vLLM's own encoder for the same events, by msgspec 0.22.
    #[test]
    fn lists_are_byte_for_byte_those_of_msgspec() {
        let batch = Batch {
            time: 1.5,
            events: vec![KvEvent::Removed(vec![1, 300]), KvEvent::Cleared],
        };
        let mut expected = vec![0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x92];
        expected.extend([0x93, 0xac]);
        expected.extend(b"BlockRemoved");
        expected.extend([0x92, 1, 0xcd, 1, 44, 0xa3]);
        expected.extend(b"GPU");
        expected.extend([0x91, 0xb0]);
        expected.extend(b"AllBlocksCleared");
        expected.push(0);
        assert_eq!(batch.encode(Format::Arrays), expected);
    }

    #[test]
    fn fields_of_other_engines_are_read_or_skipped() {
        let mut out = Vec::new();
        out.array(2);
        out.uint(7);
        out.array(2);
        out.map(6);
        for (name, text) in [("kind", "new"), ("type", STORED)] {
            out.text(name);
            out.text(text);
        }
        out.text("block_hashes");
        out.array(1);
        out.extend([0xc4, 9, 9, 0, 0, 0, 0, 0, 0, 1, 2]);
        out.text("token_ids");
        uints(&mut out, [5, 6].into_iter());
        out.text("block_size");
        out.uint(2);
        out.text("extra_keys");
        out.array(1);
        out.array(2);
        out.uint(4);
        out.text("salt");
        out.array(1);
        out.text("FutureEvent");
        let stored = StoredBlocks {
            hashes: vec![258],
            parent: None,
            tokens: vec![5, 6],
            salt: Some("salt".into()),
        };
        let found = Batch::decode(&out).unwrap();
        assert_eq!(
            (found.time, found.events),
            (7.0, vec![KvEvent::Stored(stored)])
        );
    }
}
