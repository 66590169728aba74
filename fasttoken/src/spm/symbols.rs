//! User-defined symbols: pieces that are found in a text before anything else happens to it.

use super::model_file::{Kind, ModelFile};
use crate::error::Error;
use crate::trie::Trie;

/// The user-defined symbols of a file.
#[derive(Debug)]
pub(super) struct Symbols {
    /// `None` if the file has no symbols.
    pub(super) trie: Option<Trie>,
}

impl Symbols {
    pub(super) fn new(file: &ModelFile) -> Result<Self, Error> {
        let symbols = file.of_kind(Kind::UserDefined);
        let mut symbols = symbols
            .map(|(id, piece)| (piece.text.as_str(), id))
            .peekable();
        let trie = match symbols.peek() {
            None => None,
            Some(_) => Some(Trie::new(symbols, "pieces")?),
        };
        Ok(Self { trie })
    }

    /// Returns the length in bytes and the id of the longest symbol that `text` begins with. Those of
    /// a forged compiled tokenizer that end inside of a character are not found.
    #[inline]
    pub(super) fn longest(&self, text: &str) -> Option<(usize, u32)> {
        let trie = self.trie.as_ref()?;
        let is_whole = |len, _| text.is_char_boundary(len);
        trie.longest(trie.root(), text.as_bytes(), is_whole)
    }
}
