//! The contents of a `.model` file: the message `ModelProto` of SentencePiece, checked.

use super::wire::Fields;
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// The parts of a file that encoding and decoding need.
#[derive(Debug)]
pub(super) struct ModelFile {
    /// The pieces in the order of their ids.
    pub(super) pieces: Vec<Piece>,
    /// The number of the model's type; see [`UNIGRAM`] and [`BPE`].
    pub(super) model_type: u64,
    /// True if unknown characters become the pieces of their bytes.
    pub(super) byte_fallback: bool,
    /// The text that decoding writes for the unknown piece.
    pub(super) unk_surface: String,
    pub(super) spaces: Spaces,
    /// The replacements of characters; empty if there are none.
    pub(super) charsmap: Vec<u8>,
    /// True if decoded text would be normalized.
    denormalizes: bool,
}

pub(super) const UNIGRAM: u64 = 1;
pub(super) const BPE: u64 = 2;

/// The settings about spaces.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Spaces {
    /// A space is put before the text, or after it with `as_suffix`.
    pub(super) add_dummy_prefix: bool,
    /// Spaces at both ends go, and of several spaces one stays.
    pub(super) remove_extra: bool,
    /// Spaces become `▁`.
    pub(super) escape: bool,
    pub(super) as_suffix: bool,
}

/// A piece of the vocabulary.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: Kind,
}

/// The kind of a piece, as SentencePiece numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Upper bound of the bytes of a piece, so that the time for a text does not grow with its square.
/// Trained pieces have at most 16 characters unless told otherwise.
const MAX_PIECE_BYTES: usize = 4096;

/// Upper bound of the bytes of a file; published ones have a few million.
const MAX_FILE_BYTES: usize = 1 << 30;

impl ModelFile {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > MAX_FILE_BYTES {
            let problem = format!("{} bytes, more than {MAX_FILE_BYTES}", bytes.len());
            return Err(Error::invalid("the SentencePiece model", problem));
        }
        let mut this = Self {
            pieces: Vec::new(),
            model_type: UNIGRAM,
            byte_fallback: false,
            unk_surface: " \u{2047} ".to_owned(),
            spaces: Spaces {
                add_dummy_prefix: true,
                remove_extra: true,
                escape: true,
                as_suffix: false,
            },
            charsmap: Vec::new(),
            denormalizes: false,
        };
        let mut fields = Fields::new(bytes);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => {
                    let piece = Piece::read(field.message()?, this.pieces.len())?;
                    this.pieces.push(piece);
                }
                2 => this.read_trainer(field.message()?)?,
                3 => this.read_normalizer(field.message()?)?,
                5 => this.denormalizes |= has_charsmap(field.message()?)?,
                _ => {}
            }
        }
        this.check()?;
        Ok(this)
    }

    fn read_trainer(&mut self, mut fields: Fields<'_>) -> Result<(), Error> {
        while let Some(field) = fields.next()? {
            match field.number {
                3 => self.model_type = field.number()?,
                24 => self.spaces.as_suffix = field.bool()?,
                35 => self.byte_fallback = field.bool()?,
                44 => self.unk_surface = field.text()?.to_owned(),
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, mut fields: Fields<'_>) -> Result<(), Error> {
        while let Some(field) = fields.next()? {
            match field.number {
                2 => self.charsmap = field.bytes()?.to_vec(),
                3 => self.spaces.add_dummy_prefix = field.bool()?,
                4 => self.spaces.remove_extra = field.bool()?,
                5 => self.spaces.escape = field.bool()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        let name = match self.model_type {
            UNIGRAM | BPE => None,
            3 => Some("WORD".to_owned()),
            4 => Some("CHAR".to_owned()),
            other => Some(format!("number {other}")),
        };
        if let Some(name) = name {
            return Err(Error::unsupported(
                "trainer_spec.model_type",
                format!("model type {name} (supported: UNIGRAM, BPE)"),
            ));
        }
        if self.denormalizes {
            return Err(Error::unsupported(
                "denormalizer_spec.precompiled_charsmap",
                "a normalizer of decoded text (supported: none)",
            ));
        }
        let path = "pieces";
        match self.of_kind(Kind::Unknown).count() {
            1 => {}
            count => {
                let problem = format!("{count} pieces are the unknown one, instead of 1");
                return Err(Error::invalid(path, problem));
            }
        }
        let bytes = self.of_kind(Kind::Byte).count();
        let needed = if self.byte_fallback { 256 } else { 0 };
        if bytes != needed {
            let byte_fallback = self.byte_fallback;
            let problem = format!(
                "{bytes} pieces stand for a byte, but byte_fallback = {byte_fallback} needs {needed}"
            );
            return Err(Error::invalid(path, problem));
        }
        if self.model_type == BPE
            && let Some((id, piece)) = self.of_kind(Kind::Unused).next()
        {
            let piece = &piece.text;
            return Err(Error::unsupported(
                format!("pieces[{id}].type"),
                format!("UNUSED piece {piece:?} in a BPE model"),
            ));
        }
        Ok(())
    }

    /// Returns the pieces of a kind with their ids.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (u32, &Piece)> {
        (0..)
            .zip(&self.pieces)
            .filter(move |(_, piece)| piece.kind == kind)
    }
}

impl Piece {
    fn read(mut fields: Fields<'_>, id: usize) -> Result<Self, Error> {
        let mut this = Self {
            text: String::new(),
            score: 0.0,
            kind: Kind::Normal,
        };
        let path = || format!("pieces[{id}]");
        while let Some(field) = fields.next()? {
            match field.number {
                1 => this.text = field.text()?.to_owned(),
                2 => this.score = field.float()?,
                3 => {
                    this.kind = match field.number()? {
                        1 => Kind::Normal,
                        2 => Kind::Unknown,
                        3 => Kind::Control,
                        4 => Kind::UserDefined,
                        5 => Kind::Unused,
                        6 => Kind::Byte,
                        other => {
                            let problem = format!("a piece has no type {other}");
                            return Err(Error::invalid(path(), problem));
                        }
                    }
                }
                _ => {}
            }
        }
        let text = &this.text;
        let problem = if text.is_empty() || text.contains('\0') {
            format!("the piece {text:?} is empty or has a NUL")
        } else if text.len() > MAX_PIECE_BYTES {
            format!(
                "a piece of {} bytes, more than {MAX_PIECE_BYTES}",
                text.len()
            )
        } else if !this.score.is_finite() {
            format!("the score of {text:?} is {}", this.score)
        } else if this.kind == Kind::Byte && this.byte().is_none() {
            format!("the piece {text:?} is no byte such as <0x0A>")
        } else {
            return Ok(this);
        };
        Err(Error::invalid(path(), problem))
    }

    /// Returns the byte that a piece such as `<0x0A>` stands for.
    pub(super) fn byte(&self) -> Option<u8> {
        let digits = self.text.strip_prefix("<0x")?.strip_suffix('>')?;
        let byte = u8::from_str_radix(digits, 16).ok()?;
        (digits == format!("{byte:02X}")).then_some(byte)
    }
}

fn has_charsmap(mut fields: Fields<'_>) -> Result<bool, Error> {
    while let Some(field) = fields.next()? {
        if field.number == 2 && !field.bytes()?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}
