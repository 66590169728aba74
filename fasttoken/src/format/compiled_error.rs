//! The errors of opening a compiled tokenizer.

/// An error of a compiled tokenizer. Compiling the `tokenizer.json` again resolves it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompiledError {
    /// The file is not a compiled tokenizer.
    #[error("it is not a compiled tokenizer")]
    NotCompiled,
    /// The file was written on a machine of the other byte order.
    #[error("it was compiled on a machine with another byte order; compile it again here")]
    ByteOrder,
    /// The file was written by another version of this crate.
    #[error(
        "its format is version {found} and this program reads version {supported}; compile it again"
    )]
    Version {
        /// Version of the file.
        found: u32,
        /// Version that this crate reads and writes.
        supported: u32,
    },
    /// The file is shorter or longer than its header says.
    #[error("it has {found} bytes where its header says {expected}; it was cut or added to")]
    Length {
        /// Length of the file in bytes.
        found: u64,
        /// Length that the header states.
        expected: u64,
    },
    /// The contents of a part do not match its checksum.
    #[error("its {part} is damaged: the checksum does not match")]
    Checksum {
        /// The name of the part.
        part: &'static str,
    },
    /// A part has contents that compiling never writes.
    #[error("its {part} is invalid: {problem}")]
    Invalid {
        /// The name of the part.
        part: &'static str,
        /// The problem.
        problem: String,
    },
}
