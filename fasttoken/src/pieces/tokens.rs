//! The tokens of a model at load: spellings in one allocation, and their index.

use crate::error::Error;
use crate::json::{for_each_token, id_limit};
use crate::string_table::{Sought, StringTable, StringTableBuilder};
use serde_json::value::RawValue;

/// Tokens by id and by spelling; no two have either in common.
pub(crate) struct Tokens {
    text: String,
    /// The range of each id's spelling in the text; [`HOLE`] for ids without one.
    places: Vec<[u32; 2]>,
    names: StringTable,
    count: usize,
}

const HOLE: [u32; 2] = [u32::MAX; 2];

/// [`Tokens`] that are being collected.
#[derive(Default)]
pub(crate) struct Builder {
    text: Vec<u8>,
    /// The end of each token's spelling, and its id.
    tokens: Vec<(u32, u32)>,
}

/// The reason why tokens do not form a vocabulary.
#[derive(Debug)]
pub(crate) enum Clash {
    /// A token that is there twice.
    Token(String),
    /// An id that two tokens have.
    Id(u32, String, String),
    /// A token that shares its place in a table with too many others.
    TooManyCollisions(String),
    /// Spellings that are not UTF-8.
    Text,
}

impl Builder {
    /// Returns the buffer to which the spelling of the next token is appended.
    pub(crate) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Returns the number of bytes of all spellings.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Returns the spelling of the token that was added as number `at`.
    pub(crate) fn spelling(&self, at: usize) -> String {
        let start = at.checked_sub(1).map_or(0, |last| self.tokens[last].0);
        let end = self.tokens[at].0;
        String::from_utf8_lossy(&self.text[start as usize..end as usize]).into_owned()
    }

    /// Makes a token of the appended bytes; all tokens together must have less than a gigabyte.
    pub(crate) fn push(&mut self, id: u32) {
        self.tokens.push((self.text.len() as u32, id));
    }

    /// Returns the number of tokens and their largest id.
    pub(crate) fn extent(&self) -> (usize, u32) {
        let ids = self.tokens.iter().map(|(_, id)| *id);
        (self.tokens.len(), ids.max().unwrap_or(0))
    }

    pub(crate) fn finish(self) -> Result<Tokens, Clash> {
        let Self { text, tokens } = self;
        let text = String::from_utf8(text).map_err(|_| Clash::Text)?;
        let ends = tokens.iter().map(|(_, id)| *id as usize + 1);
        let mut places = vec![HOLE; ends.max().unwrap_or(0)];
        let mut names = StringTableBuilder::with_capacity(tokens.len());
        let mut start = 0;
        for &(end, id) in &tokens {
            // Two halves of a character make one.
            let of = |place: [u32; 2]| text.get(place[0] as usize..place[1] as usize);
            let Some(token) = of([start, end]) else {
                return Err(Clash::Text);
            };
            let resolve = |id: u32| of(places[id as usize]).unwrap_or_default().as_bytes();
            let other = places[id as usize];
            match names.insert(token.as_bytes(), id, resolve) {
                Ok(None) if other == HOLE => {}
                Ok(None) => {
                    let first = of(other).unwrap_or_default().to_owned();
                    return Err(Clash::Id(id, first, token.to_owned()));
                }
                Ok(Some(_)) => return Err(Clash::Token(token.to_owned())),
                Err(_) => return Err(Clash::TooManyCollisions(token.to_owned())),
            }
            places[id as usize] = [start, end];
            start = end;
        }
        Ok(Tokens {
            text,
            places,
            names: names.finish(),
            count: tokens.len(),
        })
    }
}

impl Tokens {
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

    /// Returns true if a token has this spelling.
    #[inline]
    pub(crate) fn is(&self, id: u32, spelling: &[u8]) -> bool {
        self.bytes(id) == spelling && !spelling.is_empty()
    }

    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.names.get(token.as_bytes(), |id| self.bytes(id))
    }

    /// Begins to look up a token, and prefetches the memory that the lookup reads.
    #[inline]
    pub(crate) fn seek(&self, token: &[u8]) -> Sought {
        self.names.seek(token)
    }

    #[inline]
    pub(crate) fn found(&self, sought: Sought, token: &[u8]) -> Option<u32> {
        self.names.found(sought, token, |id| self.bytes(id))
    }

    /// Returns the tokens by rising id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        let ids = 0..self.places.len() as u32;
        ids.filter_map(|id| Some((self.get(id)?, id)))
    }
}

/// Reads a vocabulary that is a map from tokens to ids.
pub(crate) fn read_tokens(vocab: &RawValue) -> Result<Tokens, Error> {
    let path = "$.model.vocab";
    let mut tokens = Builder::default();
    let mut ids = Vec::new();
    for_each_token(vocab, |token, id| {
        if tokens.bytes() + token.len() > u32::MAX as usize / 4 {
            return Err(Error::invalid(path, "more than a gigabyte of text"));
        }
        tokens.text().extend_from_slice(token.as_bytes());
        // An id that does not fit is refused below.
        tokens.push(u32::try_from(id).unwrap_or(u32::MAX));
        ids.push(id);
        Ok(())
    })?;
    let limit = id_limit(ids.len());
    if let Some(at) = ids.iter().position(|id| *id > limit) {
        return Err(Error::IdOutOfRange {
            token: tokens.spelling(at),
            id: ids[at],
            tokens: ids.len(),
            limit,
        });
    }
    finish(tokens)
}

/// Reads a vocabulary that is a list of tokens with their scores. Returns the scores as well.
pub(crate) fn read_scored(vocab: &RawValue) -> Result<(Tokens, Vec<f64>), Error> {
    let path = "$.model.vocab";
    let list: Vec<(String, f64)> = serde_json::from_str(vocab.get()).map_err(|problem| {
        Error::invalid(
            path,
            format!("must be a list of tokens with their scores: {problem}"),
        )
    })?;
    let mut tokens = Builder::default();
    let mut scores = Vec::with_capacity(list.len());
    for (id, (token, score)) in (0..).zip(&list) {
        if tokens.bytes() + token.len() > u32::MAX as usize / 4 {
            return Err(Error::invalid(path, "more than a gigabyte of text"));
        }
        tokens.text().extend_from_slice(token.as_bytes());
        tokens.push(id);
        scores.push(*score);
    }
    Ok((finish(tokens)?, scores))
}

fn finish(tokens: Builder) -> Result<Tokens, Error> {
    tokens.finish().map_err(|clash| match clash {
        Clash::Token(token) => Error::DuplicateToken { token },
        Clash::Id(id, first, second) => Error::DuplicateId { id, first, second },
        Clash::TooManyCollisions(token) => token_collides(&token),
        Clash::Text => unreachable!("strings are UTF-8"),
    })
}

pub(crate) fn token_collides(token: &str) -> Error {
    Error::too_many_collisions("$.model.vocab", &format!("token {token:?}"))
}
