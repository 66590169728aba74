//! What can be wrong with an image.

/// Why a compiled image cannot be used. Compiling the `tokenizer.json` again makes a
/// new one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file is something else.
    #[error("it is not a compiled tokenizer image")]
    NotAnImage,
    /// Written by a machine that stores the bytes of a number the other way round.
    #[error("it was compiled on a machine with another byte order; compile it again here")]
    ByteOrder,
    /// Written by another version of this crate.
    #[error(
        "its format is version {found} and this program reads version {supported}; compile it again"
    )]
    Version {
        /// Version of the image.
        found: u32,
        /// Version that this crate reads and writes.
        supported: u32,
    },
    /// The file is shorter or longer than its header says.
    #[error("it has {found} bytes where its header says {expected}; it was cut or added to")]
    Length {
        /// Bytes that are there.
        found: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// A part does not have the checksum that was written with it.
    #[error("its {part} is damaged: the checksum does not match")]
    Checksum {
        /// Which part.
        part: &'static str,
    },
    /// A part has contents that no compilation writes.
    #[error("its {part} is invalid: {problem}")]
    Invalid {
        /// Which part.
        part: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}
