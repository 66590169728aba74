//! The tokens of a model at load: spellings in one allocation, and their index.

use crate::error::Error;
use crate::json::VocabJson;
use crate::string_table::{StringTable, StringTableBuilder};

/// Tokens by id and by spelling; no two have either in common.
pub(crate) struct Tokens {
    text: String,
    /// The range of each id's spelling in the text; [`HOLE`] for ids without one.
    places: Vec<[u32; 2]>,
    names: StringTable,
    count: usize,
}

const HOLE: [u32; 2] = [u32::MAX; 2];

impl Tokens {
    /// Indexes the tokens of a file, whose ids are bounded.
    fn new(vocab: &VocabJson) -> Result<Self, Error> {
        let text = vocab.text().to_owned();
        let id_end = vocab.iter().map(|(_, id)| id as usize + 1).max();
        let mut places = vec![HOLE; id_end.unwrap_or(0)];
        let mut names = StringTableBuilder::with_capacity(vocab.len());
        let mut start = 0;
        for (token, id) in vocab.iter() {
            let of = |[start, end]: [u32; 2]| &text[start as usize..end as usize];
            let resolve = |id: u32| of(places[id as usize]).as_bytes();
            let other = places[id as usize];
            let inserted = names.insert(token.as_bytes(), id, resolve);
            if inserted.map_err(|_| token_collides(token))?.is_some() {
                let token = token.to_owned();
                return Err(Error::DuplicateToken { token });
            }
            if other != HOLE {
                let [first, second] = [of(other), token].map(str::to_owned);
                return Err(Error::DuplicateId { id, first, second });
            }
            let end = start + token.len() as u32;
            places[id as usize] = [start, end];
            start = end;
        }
        Ok(Self {
            text,
            places,
            names: names.finish(),
            count: vocab.len(),
        })
    }

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns one more than the largest id.
    pub(crate) fn id_end(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&str> {
        let [start, end] = *self.places.get(id as usize)?;
        self.text.get(start as usize..end as usize)
    }

    #[inline]
    fn bytes(&self, id: u32) -> &[u8] {
        self.get(id).unwrap_or_default().as_bytes()
    }

    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.names.get(token.as_bytes(), |id| self.bytes(id))
    }

    /// Returns the tokens by rising id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        let ids = 0..self.places.len() as u32;
        ids.filter_map(|id| Some((self.get(id)?, id)))
    }
}

/// Reads a vocabulary that is a map from tokens to ids.
pub(crate) fn read_tokens(vocab: &VocabJson) -> Result<Tokens, Error> {
    vocab.check_map()?;
    Tokens::new(vocab)
}

/// Reads a vocabulary that is a list of tokens with their scores. Returns the scores as well.
pub(crate) fn read_scored(vocab: &VocabJson) -> Result<(Tokens, Vec<f64>), Error> {
    let scores = vocab.scores()?.to_owned();
    Ok((Tokens::new(vocab)?, scores))
}

pub(crate) fn token_collides(token: &str) -> Error {
    Error::too_many_collisions("$.model.vocab", &format!("token {token:?}"))
}
