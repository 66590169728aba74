//! The tensors of a checkpoint as they lie in its files.

use std::ops::Range;

use crate::DType;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: Stored,
    pub(super) shape: Vec<usize>,
    /// The tensor's bytes in the file, header included.
    pub(super) bytes: Range<usize>,
    /// The rows of a head, if they are stored in pairs of one row of the head's first half and one of
    /// its second half.
    pub(super) paired_rows: Option<usize>,
}

/// An element type as named by the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// A type that Prelude computes with.
    Float(DType),
    /// A type that is widened to such numbers when the tensor is read.
    Quantised(Quantised),
    /// A sum, computed in f32 when the tensor is read.
    Merged(Box<Merged>),
    /// Another one: legal in a file, refused when the tensor is asked for.
    Other(&'static str),
}

impl Stored {
    /// Returns the type's name in messages.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Float(_) => "float",
            Self::Quantised(_) => "quantised",
            Self::Merged(_) => "merged",
            Self::Other(name) => name,
        }
    }
}

/// A base's tensor and what an adapter adds to it: a product of two matrices, times a factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    /// The type of the base's bytes.
    pub(super) base: Stored,
    /// The adapter's file, by its number.
    pub(super) file: usize,
    /// The matrices `[rows, rank]` and `[rank, columns]`.
    pub(super) factors: [Entry; 2],
    /// True if the matrices are stored as `[rank, rows]` and `[columns, rank]`.
    pub(super) is_transposed: bool,
    /// The factor, an f32 in little-endian bytes.
    pub(super) scale: [u8; 4],
}

/// The form of a tensor that is widened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quantised {
    pub(super) form: Form,
    /// The element type that the tensor is widened to.
    pub(super) dtype: DType,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// An e4m3 for each element.
    Fp8(Scales),
    /// Blocks of 32 elements: a scale in f16, then as many signed bytes.
    Q8_0,
}

/// The scales of a matrix `[rows, columns]` in fp8: one for each block of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scales {
    /// The file, by its number.
    pub(super) file: usize,
    /// The place of the tensor's bytes in the file.
    pub(super) bytes: Range<usize>,
    pub(super) dtype: DType,
    /// Rows and columns of a block.
    pub(super) block: [usize; 2],
}
