//! The contents of a `.model` file: the message `ModelProto` of SentencePiece, checked.

use crate::error::Error;
use prost::Message;
use serde::{Deserialize, Serialize};

/// The parts of a file that encoding and decoding need.
#[derive(Debug)]
pub(super) struct ModelFile {
    /// The pieces in the order of their ids.
    pub(super) pieces: Vec<Piece>,
    /// The number of the model's type; see [`UNIGRAM`] and [`BPE`].
    pub(super) model_type: i32,
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

pub(super) const UNIGRAM: i32 = 1;
pub(super) const BPE: i32 = 2;

/// The message of a whole file, by its names in `sentencepiece_model.proto`. Fields that decide
/// nothing here are left out.
#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<PieceProto>,
    #[prost(message, required, tag = "2")]
    trainer_spec: TrainerSpec,
    #[prost(message, required, tag = "3")]
    normalizer_spec: NormalizerSpec,
    #[prost(message, required, tag = "5")]
    denormalizer_spec: NormalizerSpec,
}

#[derive(Clone, PartialEq, Message)]
struct PieceProto {
    #[prost(string, required, tag = "1")]
    piece: String,
    #[prost(float, required, tag = "2")]
    score: f32,
    #[prost(int32, required, tag = "3", default = "1")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct TrainerSpec {
    #[prost(int32, required, tag = "3", default = "1")]
    model_type: i32,
    #[prost(bool, required, tag = "24")]
    treat_whitespace_as_suffix: bool,
    #[prost(bool, required, tag = "35")]
    byte_fallback: bool,
    #[prost(string, required, tag = "44", default = " \u{2047} ")]
    unk_surface: String,
}

#[derive(Clone, PartialEq, Message)]
struct NormalizerSpec {
    #[prost(bytes = "vec", required, tag = "2")]
    precompiled_charsmap: Vec<u8>,
    #[prost(bool, required, tag = "3", default = "true")]
    add_dummy_prefix: bool,
    #[prost(bool, required, tag = "4", default = "true")]
    remove_extra_whitespaces: bool,
    #[prost(bool, required, tag = "5", default = "true")]
    escape_whitespaces: bool,
}

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
        let invalid = |problem| Error::invalid("the SentencePiece model", problem);
        if bytes.len() > MAX_FILE_BYTES {
            let problem = format!("{} bytes, more than {MAX_FILE_BYTES}", bytes.len());
            return Err(invalid(problem));
        }
        let file = ModelProto::decode(bytes).map_err(|problem| invalid(problem.to_string()))?;
        let (trainer, normalizer) = (file.trainer_spec, file.normalizer_spec);
        let pieces = file.pieces.into_iter().enumerate();
        let this = Self {
            pieces: pieces
                .map(|(id, piece)| Piece::new(piece, id))
                .collect::<Result<_, _>>()?,
            model_type: trainer.model_type,
            byte_fallback: trainer.byte_fallback,
            unk_surface: trainer.unk_surface,
            spaces: Spaces {
                add_dummy_prefix: normalizer.add_dummy_prefix,
                remove_extra: normalizer.remove_extra_whitespaces,
                escape: normalizer.escape_whitespaces,
                as_suffix: trainer.treat_whitespace_as_suffix,
            },
            charsmap: normalizer.precompiled_charsmap,
            denormalizes: !file.denormalizer_spec.precompiled_charsmap.is_empty(),
        };
        this.check()?;
        Ok(this)
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
    fn new(proto: PieceProto, id: usize) -> Result<Self, Error> {
        let path = || format!("pieces[{id}]");
        let kind = match proto.kind {
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
        };
        let this = Self {
            text: proto.piece,
            score: proto.score,
            kind,
        };
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
